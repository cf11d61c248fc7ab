import { expect, test } from 'vitest';
import {
  BACKWARDS,
  absolute,
  absoluteSpec,
  before,
  instant,
  lengthMs,
  resolve,
  shifted,
  title,
  toMs,
  toNs,
  widened,
} from '../../src/time/range';
import { moved } from '../../src/time/rangeKeys';

const NOW = Date.UTC(2026, 10, 21, 12);

test('lengths', () => {
  expect(lengthMs('1h30m')).toBe(5_400_000);
  expect(lengthMs('7d')).toBe(604_800_000);
  expect(lengthMs('2d12h')).toBe(216_000_000);
  expect([lengthMs('1w'), lengthMs('1y')]).toEqual([604_800_000, 365 * 86_400_000]);
  for (const text of ['', '1', 'h', '1h x', '1q', '-1h', '1e9d']) expect(lengthMs(text)).toBeUndefined();
});

test('instants', () => {
  expect(instant('now', NOW)).toBe(NOW);
  expect(instant(' now - 90m ', NOW)).toBe(NOW - 5_400_000);
  expect(instant('2026-11-21T10:00:00Z', NOW)).toBe(NOW - 7_200_000);
  expect(instant('2026-11-21 10:00:00+02:00', NOW)).toBe(NOW - 4 * 3_600_000);
  expect(instant(String(NOW), NOW)).toBe(NOW);
  expect(instant('2026-11-21 09:30', NOW)).toBe(new Date(2026, 10, 21, 9, 30).getTime());
  expect(instant('2026-11-21 9:30', NOW)).toBe(new Date(2026, 10, 21, 9, 30).getTime());
  for (const text of ['', 'then', '2026-13-01', '2026-11-21 25:00', '9999-01-01', 'now+1h', 'now-99999d', '1'])
    expect(instant(text, NOW)).toBeUndefined();
});

test('a range that is none has a sentence', () => {
  expect(resolve({ from: 'now-1h', to: 'now' }, NOW)).toEqual({ from: NOW - 3_600_000, to: NOW });
  expect(resolve({ from: 'x', to: 'now' }, NOW)).toContain('"From"');
  expect(resolve({ from: 'now', to: 'x' }, NOW)).toContain('"To"');
  expect(resolve({ from: 'now', to: 'now-1h' }, NOW)).toBe(BACKWARDS);
});

test('ranges move, widen and stay before now', () => {
  const range = { from: NOW - 3_600_000, to: NOW - 1_800_000 };
  expect(shifted(range, 0.5, NOW)).toEqual({ from: NOW - 2_700_000, to: NOW - 900_000 });
  expect(shifted(range, 5, NOW)).toEqual({ from: NOW - 1_800_000, to: NOW });
  expect(widened(range, NOW).to - widened(range, NOW).from).toBe(3_600_000);
  expect(before(range)).toEqual({ from: NOW - 5_400_000, to: NOW - 3_600_000 });
});

test('addresses and the protocol keep an instant', () => {
  expect(absolute(NOW)).toBe('2026-11-21T12:00:00Z');
  expect(instant(absolute(NOW + 123), 0)).toBe(NOW + 123);
  expect(toMs(toNs(NOW))).toBe(NOW);
  expect(resolve(absoluteSpec({ from: NOW - 1000, to: NOW }), 0)).toEqual({ from: NOW - 1000, to: NOW });
});

test('keys come onto a chart from the end that they lead away from, and stay on it', () => {
  expect(moved({}, 'ArrowRight', 5)).toEqual({ cursor: 0 });
  expect(moved({}, 'ArrowLeft', 5)).toEqual({ cursor: 4 });
  expect(moved({ cursor: 3 }, 'PageDown', 5)?.cursor).toBe(4);
  expect(moved({ cursor: 3 }, 'Home', 5)?.cursor).toBe(0);
  expect(moved({}, 'Enter', 5)).toBeUndefined();
  expect(moved({}, 'Escape', 5)).toBeUndefined();
  expect(moved({ cursor: 1 }, 'x', 5)).toBeUndefined();
});

test('a range of a chart starts with Enter, ends with Enter, and is left with Escape', () => {
  const started = moved({ cursor: 1 }, 'Enter', 5) ?? {};
  expect(started).toEqual({ cursor: 1, anchor: 1 });
  const longer = moved(started, 'ArrowRight', 5) ?? {};
  expect(moved(longer, 'Enter', 5)).toEqual({ cursor: 2, anchor: 1, chosen: true });
  expect(moved(longer, 'Escape', 5)).toEqual({});
});

test('titles', () => {
  expect(title({ from: 'now-1h', to: 'now' })).toBe('Last hour');
  expect(title({ from: 'now-2h', to: 'now-1h' })).toBe('now-2h – now-1h');
});
