import { create } from '@bufbuild/protobuf';
import { expect, test } from 'vitest';
import { lastDeploy } from '../../src/events/deploys';
import { AnnotationSchema } from '../../src/gen/fleetprof/collector/v1/annotations_pb';
import { DiffResponseSchema, OverviewRowSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { baselineRange, swapped, versionLabels } from '../../src/compare/sides';
import { changesOf, shownOf, shownRows } from '../../src/tables/changes';
import { comings, explain } from '../../src/tables/explain';
import {
  axisOf,
  draggedOf,
  rangeOfVersion,
  relativeTime,
  seenOf,
  shownOf as shownTime,
  ticksOf,
} from '../../src/time/strip';

const MINUTE = 60_000;

/** A comparison of functions, by their weights before and after. */
function changes(rows: [name: string, before: number, after: number, more?: object][]) {
  const sum = (at: 1 | 2) => rows.reduce((total, row) => total + row[at], 0);
  return changesOf(
    create(DiffResponseSchema, {
      rows: rows.map(([name, before, after, more]) => ({
        name,
        beforeSelfWeight: BigInt(before),
        afterSelfWeight: BigInt(after),
        shareError: 0.001,
        significant: true,
        appeared: before === 0,
        vanished: after === 0,
        ...more,
      })),
      beforeSampled: { count: 1000n, weight: BigInt(sum(1)), parts: 6 },
      afterSampled: { count: 1000n, weight: BigInt(sum(2)), parts: 6 },
    }),
  );
}

test('the starts of both ranges stand on each other, whatever their lengths', () => {
  const [a, b] = [
    { from: 0, to: 10 * MINUTE },
    { from: 1000 * MINUTE, to: 1040 * MINUTE },
  ];
  const axis = axisOf([a, b]);
  expect(axis).toEqual({ from: -10 * MINUTE, to: 50 * MINUTE });
  expect(shownTime(b, axis, 2000 * MINUTE)).toEqual({ from: 990 * MINUTE, to: 1050 * MINUTE });
  // Nothing is asked of what has not come, nor of the time before 1970.
  expect(shownTime(b, axis, 1041 * MINUTE).to).toBe(1041 * MINUTE);
  expect(shownTime(a, axis, 2000 * MINUTE).from).toBe(0);
  expect(ticksOf(axis)).toContain(0);
  expect(ticksOf(axis).length).toBeLessThanOrEqual(10);
});

test('times from the start of a range have a sign', () => {
  expect([0, 330e3, -65 * MINUTE, 50 * 60 * MINUTE].map(relativeTime)).toEqual(['0:00', '+5:30', '−1:05:00', '+2d 2h']);
});

test('a drag is a range of its side; a click is none, and nothing reaches past now', () => {
  const range = { from: 100 * MINUTE, to: 110 * MINUTE };
  const axis = axisOf([range]);
  expect(draggedOf(range, axis, [0.5, 0.7], 1000 * MINUTE)).toEqual({ from: 105 * MINUTE, to: 108 * MINUTE });
  expect(draggedOf(range, axis, [0.7, 0.5], 1000 * MINUTE)).toEqual({ from: 105 * MINUTE, to: 108 * MINUTE });
  expect(draggedOf(range, axis, [0.5, 0.505], 1000 * MINUTE)).toBeUndefined();
  expect(draggedOf(range, axis, [0.5, 1], 110 * MINUTE)?.to).toBe(110 * MINUTE);
});

test('the fewest functions that are most of a change explain it', () => {
  // 10 cores became 13: `parse` has 2 of the 3.
  const found = explain(
    changes([
      ['parse', 1000, 3000],
      ['hash', 1000, 1700],
      ['other', 8000, 8300],
    ]),
    [10, 13],
  );
  expect(found?.rows.map((row) => row.name)).toEqual(['parse', 'hash']);
  expect(found?.part).toBeCloseTo(0.9, 5);
  expect(found?.spread).toBe(false);
});

test('a load that grows evenly has no functions that explain it', () => {
  const even = Array.from({ length: 40 }, (_, at): [string, number, number] => [`f${at}`, 100, 150]);
  expect(explain(changes(even), [4, 6])?.spread).toBe(true);
});

test('an explanation goes the way of the change, and is of code', () => {
  const found = explain(
    changes([
      ['less', 3000, 1000],
      ['[truncated]', 0, 4000, { kind: 5 }],
      ['more', 1000, 2000],
    ]),
    [4, 7],
  );
  expect(found?.rows.map((row) => row.name)).toEqual(['more']);
  expect(explain(changes([['same', 1, 1]]), [2, 2])).toBeUndefined();
});

test('functions that came and went count where they are certain', () => {
  const of = changes([
    ['came', 0, 100],
    ['went', 100, 0],
    ['blink', 0, 1, { significant: false }],
    ['[lost]', 0, 50, { kind: 5 }],
  ]);
  expect(comings(of)).toEqual({ came: 1, went: 1 });
});

test('rows are in cores of what each side had, with the error of the share', () => {
  const of = changes([
    ['parse', 1000, 3000],
    ['other', 3000, 1000],
  ]);
  const [parse] = shownOf(of, [4, 8]);
  expect([parse.was, parse.is, parse.change]).toEqual([1, 6, 5]);
  expect(parse.error).toBeCloseTo(0.008);
  expect(shownOf(of, undefined)[0]).toMatchObject({ was: 0.25, is: 0.75, change: 0.5, error: 0.001 });
});

test('rows of a label have the change that the overview found', () => {
  const row = create(OverviewRowSchema, {
    name: 'api',
    cores: 3,
    baselineCores: 1,
    change: { cores: 2.4, error: 0.1, significant: true, sinceUnixNs: 60_000_000_000n },
  });
  const [shown] = shownRows([row], undefined);
  expect(shown).toMatchObject({ was: 1, is: 3, change: 2.4, error: 0.1, significant: true });
  expect(shown.since).toMatch(/^\d\d:\d\d:\d\d UTC/);
  expect(shownRows([row], [4, 6])[0]).toMatchObject({ was: 0.25, is: 0.5, change: 0.25, error: undefined });
  // Nothing is divided by a side that had nothing.
  expect(shownRows([row], [0, 0])[0]).toMatchObject({ was: 0, is: 0 });
});

test('a baseline that is written goes before the one that is chosen', () => {
  const range = { from: 100 * MINUTE, to: 110 * MINUTE };
  expect(baselineRange({ bfrom: '', bto: '', baseline: 'hour' }, range, undefined)).toEqual({
    from: 40 * MINUTE,
    to: 50 * MINUTE,
  });
  const written = { bfrom: '1970-01-01T00:01:00Z', bto: '1970-01-01T00:02:00Z', baseline: 'day' } as const;
  expect(baselineRange(written, range, undefined)).toEqual({ from: MINUTE, to: 2 * MINUTE });
  expect(baselineRange({ ...written, bto: 'never' }, range, undefined)).toMatch(/not a valid time/);
  // A comparison has two sides, also where charts have no baseline.
  for (const baseline of ['none', 'deploy'] as const)
    expect(baselineRange({ bfrom: '', bto: '', baseline }, range, undefined)).toEqual({
      from: 90 * MINUTE,
      to: 100 * MINUTE,
    });
});

test('sides that are swapped twice are as they were', () => {
  const side = (from: number, query: string) => ({ range: { from, to: from + MINUTE }, query, filters: [] });
  const [a, b] = [side(0, 'host="a"'), side(10 * MINUTE, 'host="b"')];
  expect(swapped(a, b)).toMatchObject({
    from: '1970-01-01T00:00:00Z',
    bfrom: '1970-01-01T00:10:00Z',
    query: 'host="a"',
    bquery: 'host="b"',
  });
  expect(swapped(b, a)).toMatchObject({ bfrom: '1970-01-01T00:00:00Z', query: 'host="b"', bquery: 'host="a"' });
  expect(swapped(a, { ...a }).bquery).toBeUndefined();
});

test('a version that does not run any more is compared by when it last ran', () => {
  const range = { from: 100 * MINUTE, to: 110 * MINUTE };
  expect(rangeOfVersion({ from: 0, to: 200 * MINUTE }, range)).toEqual(range);
  expect(rangeOfVersion({ from: 0, to: 50 * MINUTE }, range)).toEqual({ from: 40 * MINUTE, to: 50 * MINUTE });
  expect(rangeOfVersion({ from: 48 * MINUTE, to: 50 * MINUTE }, range).from).toBe(48 * MINUTE);
  const answer = {
    startUnixNs: 0n,
    stepNs: 60_000_000_000n,
    lines: [
      { labels: { version: '41' } as Record<string, string>, weights: [0n, 5n, 5n, 0n], rest: false },
      { labels: {} as Record<string, string>, weights: [1n], rest: true },
      { labels: { version: '42' } as Record<string, string>, weights: [0n, 0n], rest: false },
    ],
  };
  expect([...seenOf(answer, 'version')]).toEqual([['41', { from: MINUTE, to: 3 * MINUTE }]]);
  expect(versionLabels(['host', 'app_version', 'image', 'version'])).toEqual(['version', 'image', 'app_version']);
});

test('the last deploy is the newest that concerns the selection', () => {
  const deploy = (id: bigint, minutes: number, labels: Record<string, string>, kind = 'deploy') =>
    create(AnnotationSchema, { id, kind, startUnixNs: BigInt(minutes) * 60_000_000_000n, labels });
  const all = [
    deploy(1n, 10, { image: 'api:1' }),
    deploy(2n, 20, { image: 'web:7' }),
    deploy(3n, 30, { unit: 'db.service' }),
    deploy(4n, 40, {}, 'note'),
    deploy(5n, 90, {}),
  ];
  const last = (query: string, minutes = 60) => lastDeploy(all, query, minutes * MINUTE)?.id;
  expect(last('')).toBe(3n);
  expect(last('image=~"api:.*"')).toBe(3n);
  expect(last('image=~"api:.*",unit="api.service"')).toBe(1n);
  expect(last('unit!="db.service"')).toBe(2n);
  expect(last('', 5)).toBeUndefined();
  expect(last('', 100)).toBe(5n);
  // A selector that is being written says nothing.
  expect(last('image="')).toBe(3n);
});
