import { expect, test } from 'vitest';
import { parse, placeAt, problem, quote, withMatcher, withoutMatcher, write, writeAll } from '../../src/query/selector';

const read = (text: string) => parse(text).map((one) => [one.label, one.op, one.value]);
const refused = (text: string) => {
  const found = problem(text);
  return found && `${found.at}: ${found.message}`;
};

test('every operator is read', () => {
  expect(read('unit="nginx.service",comm=~"ja.*",cgroup^="/system.slice",pid!="1",thread!~"w-."')).toEqual([
    ['unit', '=', 'nginx.service'],
    ['comm', '=~', 'ja.*'],
    ['cgroup', '^=', '/system.slice'],
    ['pid', '!=', '1'],
    ['thread', '!~', 'w-.'],
  ]);
});

test('braces, space and a last comma are optional', () => {
  for (const text of ['', '{}', ' { } ']) expect(read(text)).toEqual([]);
  for (const text of ['{comm="x"}', " { comm = 'x' , } ", 'comm=`x`,', 'comm=x'])
    expect(read(text)).toEqual([['comm', '=', 'x']]);
});

test('escapes are read', () => {
  expect(read(`${String.raw`comm="a\"\\\n\t\x41\u{20ac}",thread=~`}\`\\d+"\``)).toEqual([
    ['comm', '=', 'a"\\\n\tA€'],
    ['thread', '=~', '\\d+"'],
  ]);
});

test('errors say where and what, as the collector does', () => {
  expect(refused('unit')).toBe('4: expected one of `=`, `!=`, `=~`, `!~`, `^=`, found the end');
  expect(refused('="x"')).toBe('0: expected a label, found `=`');
  expect(refused('unit=')).toBe('5: expected a value, found the end');
  expect(refused('unit="x')).toBe('7: expected the closing quote, found the end');
  expect(refused('unit="x" comm="y"')).toBe('9: expected `,` or the end, found `c`');
  expect(refused('{unit="x"} y')).toBe('11: expected the end after `}`, found `y`');
  expect(refused(String.raw`comm=~"\d+"`)).toContain('unknown escape');
  expect(refused(String.raw`comm="\u{110000}"`)).toContain('unknown escape');
  expect(refused('cgroup^=""')).toContain('a subtree needs a path');
  expect(refused(`comm="${'x'.repeat(70_000)}"`)).toContain('at most 65536');
});

test('what is written is read back', () => {
  const values = [
    '',
    'plain',
    'a"b',
    'back\\slash',
    'new\nline',
    '\u001b[31m',
    'abc\u202edef',
    'שלום',
    '🔥',
    ', {} =~ `',
  ];
  for (const value of values)
    for (const label of ['unit', 'with space', 'q"uote'])
      expect(read(write({ label, op: '=', value }))).toEqual([[label, '=', value]]);
  expect(quote('a\u202eb')).toBe('"a\\u{202e}b"');
});

test('a click on another value of a label goes there', () => {
  expect(withMatcher('host="a", unit="x"', { label: 'host', op: '=', value: 'b' })).toBe('unit="x", host="b"');
  expect(withMatcher('host!="a"', { label: 'host', op: '!=', value: 'b' })).toBe('host!="a", host!="b"');
  expect(withMatcher('host=~"a.*"', { label: 'host', op: '=', value: 'b' })).toBe('host=~"a.*", host="b"');
  expect(withMatcher('broken=', { label: 'host', op: '=', value: 'b' })).toBe('host="b"');
  expect(withoutMatcher('host="a", unit="x"', 0)).toBe('unit="x"');
  expect(writeAll([])).toBe('');
});

test('the caret tells what can be completed', () => {
  const at = (text: string) => {
    const caret = text.indexOf('|');
    const place = placeAt(text.replace('|', ''), caret);
    return place && [place.kind, place.label, place.prefix, place.start, place.end];
  };
  expect(at('|')).toEqual(['label', '', '', 0, 0]);
  expect(at('ho|')).toEqual(['label', '', 'ho', 0, 2]);
  expect(at('ho|st="x"')).toEqual(['label', '', 'ho', 0, 4]);
  expect(at('host="we|')).toEqual(['value', 'host', 'we', 5, 8]);
  expect(at('host="we|b-1", unit="x"')).toEqual(['value', 'host', 'we', 5, 12]);
  expect(at('host="web-1", |')).toEqual(['label', '', '', 14, 14]);
  expect(at('host="web-1", unit=ng|')).toEqual(['value', 'unit', 'ng', 19, 21]);
  expect(at('host="web-1"|')).toBeUndefined();
  expect(at('host |')).toEqual(['operator', 'host', '', 5, 5]);
  expect(at('host !|')).toEqual(['operator', 'host', '!', 5, 6]);
});
