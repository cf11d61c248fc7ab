import { expect, test } from 'vitest';
import * as format from '../../src/text/format';
import { clipped, printable, shown } from '../../src/text/printable';
import { HOSTILE } from '../mock/fleet';

test('hostile characters are written out', () => {
  expect(printable(HOSTILE.newline)).toBe('two\\nlines\\tand a tab');
  expect(printable(HOSTILE.escape)).toBe('\\x1b[31mred\\x1b[0m');
  expect(printable(HOSTILE.bidi)).toBe('abc\\u{202e}gnirts\\u{202c}');
  expect(printable(HOSTILE.zero)).toBe('zero\\u{200b}width\\u{2060}joined');
  expect(printable('\u0085\u2028\ufeff\u{e0041}\ud800')).toBe('\\u{85}\\u{2028}\\u{feff}\\u{e0041}\\u{d800}');
  for (const fine of ['std::vec<int>', 'שלום', '🔥', HOSTILE.quote]) expect(printable(fine)).toBe(fine);
});

test('long texts are cut and say how long they are', () => {
  expect(shown('x'.repeat(5000))).toHaveLength(600 + '… (5,000 characters)'.length);
  expect(clipped('x'.repeat(500), 10)).toBe('xxxxxxxxxx…');
});

test('durations', () => {
  const cases: [number, string][] = [
    [0, '0 s'],
    [12, '12 ns'],
    [1500, '1.50 µs'],
    [2.5e6, '2.50 ms'],
    [1.234e9, '1.23 s'],
    [59.97e9, '1 min'],
    [243e9, '4 min 03 s'],
    [3600e9, '1 h'],
    [7500e9, '2 h 05 min'],
    [280_800e9, '3 d 06 h'],
    [-5e9, '−5.00 s'],
  ];
  for (const [ns, text] of cases) expect(format.duration(ns)).toBe(text);
});

test('weights of a column', () => {
  const cases: [most: number, unit: string, value: number, text: string][] = [
    [98.31e9, 'nanoseconds', 98.31e9, '98.31 s'],
    [98.31e9, 'nanoseconds', 0.99e9, '0.99 s'],
    [98.31e9, 'nanoseconds', 4e6, '<0.01 s'],
    [98.31e9, 'nanoseconds', 0, '0 s'],
    [990e9, 'nanoseconds', 5e9, '5.0 s'],
    [1200e9, 'nanoseconds', 90e9, '1.50 min'],
    [200_000e9, 'nanoseconds', 3600e9, '1.00 h'],
    [1e20, 'nanoseconds', 1e20, '27,777,778 h'],
    [2.5e6, 'nanoseconds', 2500, '0.003 ms'],
    [900, 'nanoseconds', 12, '12 ns'],
    [3 << 20, 'bytes', 1 << 20, '1.000 MiB'],
    [700, 'bytes', 3, '3 B'],
    [5e9, 'cycles', 1e9, '1.000 G cycles'],
    [12, '', 12, '12 samples'],
    [0, 'nanoseconds', 0, '0 ns'],
  ];
  for (const [most, unit, value, text] of cases) expect(format.weights(most, unit)(value)).toBe(text);
});

test('shares do not round to nothing or to all', () => {
  const cases: [number, string][] = [
    [0, '0 %'],
    [0.00001, '<0.01 %'],
    [0.0042, '0.42 %'],
    [0.1234, '12.3 %'],
    [0.99996, '99.9 %'],
    [1, '100.0 %'],
    [-0.05, '−5.0 %'],
  ];
  for (const [fraction, text] of cases) expect(format.percent(fraction)).toBe(text);
  expect(format.share(1, 0)).toBe('–');
});

test('sizes, counts and times', () => {
  expect(format.bytes(1 << 20)).toBe('1.00 MiB');
  expect(format.rate(3_835_927, 'bytes')).toBe('3.66 MiB/s');
  expect(format.rate(0.5, 'bytes')).toBe('0.500 B/s');
  expect(format.rate(1.25, 'nanoseconds')).toBe('1.25 cores');
  format.nameType('wall:wall:nanoseconds:wall:nanoseconds');
  expect(format.rate(1.25, 'nanoseconds')).toBe('1.25 s/s');
  format.nameType('sent_cpu:idle_cpu_wait:nanoseconds::');
  expect(format.rate(1.25, 'nanoseconds')).toBe('1.25 s/s');
  format.nameType('sent_cpu:cpu:nanoseconds:cpu:nanoseconds');
  expect(format.rate(1.25, 'nanoseconds')).toBe('1.25 cores');
  expect(format.compact(1_234_567)).toBe('1.23 M');
  // What is counted has no decimals.
  expect(format.compact(640)).toBe('640');
  expect(format.compact(6.4)).toBe('6.400');
  expect(format.signed(0.25, 'nanoseconds')).toBe('+0.250');
  expect(format.signed(-1e-9, 'nanoseconds')).toBe('±0');
  expect(format.signed(-3_835_927, 'bytes')).toBe('−3.66 MiB');
  expect(format.points(0.0123)).toBe('+1.23 pp');
  expect(format.plural(1, 'host')).toBe('1 host');
  expect(format.plural(2000, 'host')).toBe('2,000 hosts');
  expect(format.ago(1000, 64_000)).toBe('1 min 03 s ago');
  expect(format.weight(5e9, 'cycles')).toBe('5.00 G cycles');
});

test('what is measured follows the profile type', () => {
  format.nameType('memory:inuse_space:bytes:space:bytes');
  expect([format.measure(), format.measured(), format.ofSenders()]).toEqual(['inuse_space', 'inuse_space', true]);
  format.nameType('sent_cpu:cpu:nanoseconds:cpu:nanoseconds');
  expect([format.measure(), format.measured(), format.ofSenders()]).toEqual(['CPU', 'CPU time', true]);
  format.nameType('captured:off_cpu:nanoseconds:off_cpu:nanoseconds');
  expect([format.measure(), format.measured(), format.ofSenders()]).toEqual(['off_cpu', 'off_cpu', false]);
  format.nameType('');
  expect([format.measure(), format.measured(), format.ofSenders()]).toEqual(['CPU', 'CPU time', false]);
});
