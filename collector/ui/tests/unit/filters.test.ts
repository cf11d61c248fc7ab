// Filters as chips: what is offered next, other operators, and what was meant.

import { describe, expect, test } from 'vitest';
import { changeText } from '../../src/app/verdictText';
import { distance, nearest } from '../../src/query/nearest';
import { completed } from '../../src/query/complete';
import { placeAt, withOp } from '../../src/query/selector';

describe('a filter that is being written', () => {
  const kindAt = (text: string) => placeAt(text, text.length)?.kind;

  test('goes from the label to the operator to the value', () => {
    expect(['', 'uni', 'unit ', 'unit!', 'unit=', 'unit="ng'].map(kindAt)).toEqual([
      'label',
      'label',
      'operator',
      'operator',
      'value',
      'value',
    ]);
  });
  test('is put together from what is chosen', () => {
    const choose = (text: string, kind: 'label' | 'operator' | 'value', chosen: string) => {
      const place = placeAt(text, text.length);
      if (!place) throw new Error(`nothing at the end of ${text}`);
      return completed(text, place, { kind, text: chosen }).text;
    };
    expect(choose('un', 'label', 'unit')).toBe('unit');
    expect(choose('', 'label', 'app.kubernetes.io/name')).toBe('"app.kubernetes.io/name"');
    expect(choose('unit', 'operator', '=~')).toBe('unit=~"');
    expect(choose('unit !', 'operator', '!~')).toBe('unit !~"');
    expect(choose('unit=~"', 'value', 'a"b')).toBe('unit=~"a\\"b"');
  });
});

describe('another operator', () => {
  test('selects the same value', () => {
    const matcher = { label: 'unit', op: '=', value: 'a.service' } as const;
    const pattern = withOp(matcher, '=~');
    expect(pattern).toEqual({ label: 'unit', op: '=~', value: 'a\\.service' });
    expect(withOp(pattern, '!=')).toEqual({ label: 'unit', op: '!=', value: 'a.service' });
  });
  test('leaves a pattern as it is written where no value is the same', () => {
    expect(withOp({ label: 'unit', op: '=~', value: 'web.*' }, '=').value).toBe('web.*');
    expect(withOp({ label: 'unit', op: '=~', value: 'a|b' }, '!~').value).toBe('a|b');
  });
});

describe('the nearest value', () => {
  const UNITS = ['nginx.service', 'postgresql.service', 'api-server.service', ''];
  test('is what begins so, or was written with a slip', () => {
    expect(nearest('nginx', UNITS)).toBe('nginx.service');
    expect(nearest('ngnix.service', UNITS)).toBe('nginx.service');
    expect(nearest('Unit', ['host', 'unit'])).toBe('unit');
    expect(nearest('sevrer', UNITS)).toBeUndefined();
  });
  test('is nothing where nothing is near', () => {
    expect(nearest('redis', UNITS)).toBeUndefined();
    expect(nearest('', UNITS)).toBeUndefined();
    expect(nearest('x', [])).toBeUndefined();
  });
  test('swapped letters are one slip', () => {
    expect([distance('ngnix', 'nginx'), distance('', 'abc'), distance('abc', 'abc')]).toEqual([1, 3, 0]);
  });
});

describe('the verdict', () => {
  test('tells a change in per cent, and nothing where a side is not known', () => {
    expect([changeText(9.8, 6.8), changeText(1, 4), changeText(2, 2.001)]).toEqual(['+44 %', '−75 %', 'unchanged']);
    expect([changeText(1, 0), changeText(1, Number.NaN), changeText(0, 0)]).toEqual(['nothing', '', '']);
  });
});
