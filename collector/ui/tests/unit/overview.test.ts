import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { AnnotationSchema } from '../../src/gen/fleetprof/collector/v1/annotations_pb';
import { ChangeSchema, OverviewRowSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { comparedWith, dark, deployBefore, kindOf, paths, relative, signed, spoken } from '../../src/overview/overview';
import { stretched } from '../../src/overview/Spark';
import { baselineOf, wordsOf } from '../../src/time/baseline';

const DAY_MS = 86_400_000;

test('a baseline is of the same length, before', () => {
  const range = { from: 10 * DAY_MS, to: 10 * DAY_MS + 3_600_000 };
  expect(baselineOf(range, 'previous')).toEqual({ from: range.from - 3_600_000, to: range.from });
  expect(baselineOf(range, 'day')).toEqual({ from: range.from - DAY_MS, to: range.to - DAY_MS });
  expect(baselineOf(range, 'week')).toEqual({ from: range.from - 7 * DAY_MS, to: range.to - 7 * DAY_MS });
  expect(baselineOf(range, 'hour')).toEqual({ from: range.from - 3_600_000, to: range.to - 3_600_000 });
  expect(baselineOf({ from: 5, to: 10 }, 'week')?.from).toBe(0);
  expect(baselineOf(range, 'none')).toBeUndefined();
});

test('the baseline of a deploy is the time up to it, where one is known', () => {
  const range = { from: 10 * DAY_MS, to: 10 * DAY_MS + 3_600_000 };
  const deploy = range.from + 600_000;
  expect(baselineOf(range, 'deploy')).toBeUndefined();
  expect(baselineOf(range, 'deploy', deploy)).toEqual({ from: deploy - 3_600_000, to: deploy });
  expect(wordsOf('deploy', deploy)).toMatch(/^before the deploy at \d\d:\d\d:\d\d UTC/);
  expect(wordsOf('day')).toBe('yesterday');
});

test('a step without data is not drawn, and not zero', () => {
  expect(paths([1, 2, -1, 0], 2)).toBe('M0 0.5L1 0.5L1 0L2 0M3 1L4 1');
  expect(dark([-1, 1, -1, -1])).toEqual([
    [0, 1],
    [2, 4],
  ]);
  expect(paths([], 1)).toBe('');
  expect(paths([0, 0], 0)).toBe('M0 1L1 1L1 1L2 1');
});

test('a baseline of another length has the width of the range', () => {
  expect(stretched([1, 2], 4)).toEqual([1, 1, 2, 2]);
  expect(stretched([1, 2, 3, 4], 2)).toEqual([1, 3]);
  expect(stretched([], 3)).toEqual([]);
});

test('changes are told with sign, and of nothing no share', () => {
  expect(signed(1.254)).toBe('+1.25');
  expect(signed(-0.5)).toBe('−0.500');
  expect(signed(-0.0003)).toBe('±0');
  expect(relative(-0.0003, 2)).toBe('');
  expect(relative(0.5, 2)).toBe('+25 %');
  expect(relative(-0.1, 2)).toBe('−5.0 %');
  expect(relative(1, 0)).toBe('');
  expect(kindOf(create(ChangeSchema, { cores: 1, appeared: true }))).toBe('new');
  expect(kindOf(create(ChangeSchema, { cores: -1 }))).toBe('less');
});

test('a row leads to the time that differs, and to the host where it is one', () => {
  const change = create(ChangeSchema, { cores: 1, significant: true, sinceUnixNs: 1_800_000_000_000_000_000n });
  const of = { query: 'region="eu"', label: 'unit', name: 'api "x".service', hosts: ['web-1'] };
  const baseline = { from: 1_799_990_000_000, to: 1_799_993_600_000 };
  const range = { from: 1_799_997_000_000, to: 1_800_000_600_000 };
  const to = comparedWith(of, change, baseline, range);
  expect(to.view).toBe('compare');
  expect(to.query).toBe('region="eu", unit="api \\"x\\".service", host="web-1"');
  expect(Date.parse(to.from ?? '')).toBe(1_800_000_000_000);
  expect(Date.parse(to.to ?? '')).toBe(range.to);
  expect(Date.parse(to.bfrom ?? '')).toBe(baseline.from);
});

test('a row that changed on few hosts leads to these, and on most to all', () => {
  const change = create(ChangeSchema, { cores: 1, significant: true });
  const range = { from: 1_800_000_000_000, to: 1_800_003_600_000 };
  const query = (hosts: string[], all: number) =>
    comparedWith({ query: '', label: 'unit', name: 'a', hosts, all }, change, range, range).query;
  expect(query(['web-1.eu', 'b|c'], 4)).toBe('unit="a", host=~"web-1\\\\.eu|b\\\\|c"');
  expect(query(['a', 'b', 'c'], 4)).toBe('unit="a"');
  expect(query([], 4)).toBe('unit="a"');
});

test('a line is told to those who do not see it', () => {
  expect(spoken(create(OverviewRowSchema, { steps: [-1, 1, 2], baselineCores: 0.5 }))).toBe(
    'between 1.00 and 2.00 cores; before, 0.500 on average',
  );
  expect(spoken(create(OverviewRowSchema, { steps: [-1] }))).toBe('no data');
});

describe('the deploy that a change followed', () => {
  const MINUTE_NS = 60_000_000_000n;
  const since = 1_800_000_000_000_000_000n;
  const row = create(OverviewRowSchema, {
    name: 'api.service',
    change: create(ChangeSchema, { cores: 1, significant: true, sinceUnixNs: since }),
    changedHosts: ['web-1', 'web-2'],
  });
  const deploy = (minutes: bigint, labels: Record<string, string>, hostNames: string[] = ['web-1', 'web-2']) =>
    create(AnnotationSchema, { kind: 'deploy', startUnixNs: since + minutes * MINUTE_NS, labels, hostNames });
  const found = (...events: ReturnType<typeof deploy>[]) => {
    const one = deployBefore(row, 'unit', MINUTE_NS, events);
    return one && events.indexOf(one);
  };
  const api = { unit: 'api.service' };

  test('is the last of the service before it', () => {
    expect(found(deploy(-10n, api), deploy(-1n, api), deploy(5n, api))).toBe(1);
    // The change is known to a step.
    expect(found(deploy(1n, api))).toBe(0);
    expect(found(deploy(-16n, api))).toBeUndefined();
  });

  test('is no note, none of another service, and none where nothing changed', () => {
    expect(found(deploy(-1n, { unit: 'db.service' }))).toBeUndefined();
    expect(found(create(AnnotationSchema, { ...deploy(-1n, api), kind: 'note' }))).toBeUndefined();
    const calm = create(OverviewRowSchema, { name: 'api.service', change: { cores: 1, sinceUnixNs: since } });
    expect(deployBefore(calm, 'unit', MINUTE_NS, [deploy(-1n, api)])).toBeUndefined();
  });

  test('is of the hosts that changed where it has another label', () => {
    const image = { image: 'api:v42' };
    expect(found(deploy(-1n, image))).toBe(0);
    expect(found(deploy(-1n, image, ['web-1']))).toBeUndefined();
    expect(found(deploy(-1n, image, ['web-7']))).toBeUndefined();
    expect(found(deploy(-1n, { version: '7' }, ['web-1']))).toBe(0);
    expect(found(deploy(-1n, { agent_version: '0.2.0' }))).toBeUndefined();
  });
});
