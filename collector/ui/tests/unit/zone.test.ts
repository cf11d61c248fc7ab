import { afterEach, expect, test, vi } from 'vitest';
import * as format from '../../src/text/format';
import { instant, title } from '../../src/time/range';

const AT = Date.UTC(2026, 10, 21, 22, 55, 10);

afterEach(() => {
  format.showUtc(false);
  vi.unstubAllEnvs();
});

test('every time has its zone', () => {
  vi.stubEnv('TZ', 'Asia/Kolkata');
  expect(format.stamp(AT)).toBe('2026-11-22 04:25:10 UTC+05:30');
  expect(format.time(AT)).toBe('04:25:10 UTC+05:30');
  expect(format.span(AT, AT + 60_000)).toBe('2026-11-22 04:25:10 – 04:26:10 UTC+05:30');
  vi.stubEnv('TZ', 'America/New_York');
  expect(format.stamp(AT)).toBe('2026-11-21 17:55:10 UTC−5');
});

test('in UTC the same moment has the same text everywhere', () => {
  format.showUtc();
  for (const zone of ['Asia/Kolkata', 'America/New_York']) {
    vi.stubEnv('TZ', zone);
    expect(format.stamp(AT)).toBe('2026-11-21 22:55:10 UTC');
    expect(title({ from: '2026-11-21T22:55:10Z', to: '2026-11-21T23:00:00Z' })).toBe('2026-11-21 22:55:10 – 23:00 UTC');
  }
});

test('what is typed is of the zone that is shown', () => {
  vi.stubEnv('TZ', 'Europe/Berlin');
  expect(instant('2026-11-21 22:55:10', 0)).toBe(AT - 3_600_000);
  format.showUtc();
  expect(instant('2026-11-21 22:55:10', 0)).toBe(AT);
  expect(instant('2026-11-21T22:55:10+01:00', 0)).toBe(AT - 3_600_000);
  expect(instant(format.written(AT), 0)).toBe(AT);
});

test('a span over a change of the clocks has both zones', () => {
  vi.stubEnv('TZ', 'Europe/Berlin');
  const change = Date.UTC(2026, 9, 25, 1);
  expect(format.span(change - 1000, change)).toBe('2026-10-25 02:59:59 UTC+2 – 02:00:00 UTC+1');
});
