// What the page must not say: rates of time that nobody covered, losses as nothing, chance as a
// change.

import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { expect, test } from 'vitest';
import { Names } from '../../src/flame/names';
import { changeOf, measure } from '../../src/flame/diff';
import { buildDiffTree, buildTree, functionRows } from '../../src/flame/tree';
import { CgroupSchema } from '../../src/gen/fleetprof/agent/v1/agent_pb';
import { SeriesResponseSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { collectorTrouble as troubleOf } from '../../src/query/collectorErrors';
import type { Profile } from '../../src/query/profile';
import { coverageOf, lossOf, samplingNotes } from '../../src/query/quality';
import { treeOf } from '../../src/tables/cgroupTree';
import { fewText } from '../../src/tables/DiffTable';
import { bandsOf, chartOf, hostsLost, meanOf, missing } from '../../src/time/series';

const SECOND = 1_000_000_000n;

interface StepOf {
  /** Seconds of windows that start in it, over its hosts. */
  covered: number;
  hosts?: number;
  /** Core seconds of its hosts, and lost ones. */
  weight?: number;
  lost?: number;
}

/** A series of one line: core seconds by step of `stepS`. */
function answer(stepS: number, weights: readonly number[], steps: readonly StepOf[]) {
  const ns = (seconds: number) => BigInt(Math.round(seconds * 1e9));
  return create(SeriesResponseSchema, {
    stepNs: ns(stepS),
    lines: [
      {
        labels: { unit: 'redis.service' },
        weights: weights.map(ns),
        totalWeight: ns(weights.reduce((sum, one) => sum + one, 0)),
      },
    ],
    steps: steps.map(({ covered, hosts, weight, lost }) => ({
      coveredNs: ns(covered),
      hosts: BigInt(hosts ?? (covered > 0 ? 1 : 0)),
      weight: ns(weight ?? 100),
      lostWeight: ns(lost ?? 0),
    })),
    quality: { unit: 'nanoseconds' },
  });
}

/** Now, long after all steps. */
const LATER = 1e9;

test('time before the first window is no data: neither 0 cores nor part of the mean', () => {
  const none = { covered: 0 };
  const chart = chartOf(
    answer(300, [0, 0, 0, 300, 80], [none, none, none, { covered: 300 }, { covered: 80 }]),
    'unit',
    LATER,
  );
  expect(chart.states).toEqual(['none', 'none', 'none', 'known', 'known']);
  expect([...chart.lines[0].rates]).toEqual([Number.NaN, Number.NaN, Number.NaN, 1, 1]);
  expect(chart.lines[0].mean).toBe(1);
  expect(bandsOf(chart)).toEqual([{ fromMs: 0, toMs: 900_000, state: 'none' }]);
  expect(missing(chart, 1500e9)).toBe('covered 6 min of 25 min');
});

test('a range that is all there says nothing of it', () => {
  const chart = chartOf(answer(60, [60, 60], [{ covered: 60 }, { covered: 60 }]), 'unit', LATER);
  expect(missing(chart, 120e9)).toBe('');
});

test('steps whose hosts lost samples are marked, and left out of the mean', () => {
  const chart = chartOf(
    answer(
      10,
      [2, 0, 1, 2],
      [{ covered: 10 }, { covered: 10, lost: 100 }, { covered: 10, lost: 30 }, { covered: 10, lost: 1 }],
    ),
    'unit',
    LATER,
  );
  expect(chart.states).toEqual(['known', 'lost', 'lost', 'known']);
  expect(chart.lines[0].rates[1]).toBeNaN();
  expect(chart.lines[0].rates[2]).toBeCloseTo(0.1);
  expect(chart.lines[0].mean).toBeCloseTo(0.2);
  expect(bandsOf(chart)).toEqual([{ fromMs: 10_000, toMs: 30_000, state: 'lost' }]);
  expect(missing(chart, 40e9)).toBe('samples lost in 20.0 s');
});

test('where all was lost there is no mean, rather than 0', () => {
  const all = answer(
    10,
    [0, 0],
    [
      { covered: 10, lost: 100 },
      { covered: 10, lost: 100 },
    ],
  );
  expect(chartOf(all, 'unit', LATER).lines[0].mean).toBeNaN();
  expect(meanOf(all, LATER)).toBeNaN();
});

test('a selection without any sample on hosts that lost theirs is not known, rather than 0', () => {
  const nothing = answer(10, [], [{ covered: 10, lost: 100 }, { covered: 10 }]);
  nothing.lines = [];
  const chart = chartOf(nothing, 'unit', LATER);
  expect([...chart.lines[0].rates]).toEqual([Number.NaN, 0]);
  expect(hostsLost(nothing)).toBeCloseTo(0.5);
});

test('a step of which a part has come is a rate of that part', () => {
  const chart = chartOf(answer(300, [300, 80], [{ covered: 300 }, { covered: 80 }]), 'unit', LATER);
  expect([...chart.lines[0].rates]).toEqual([1, 1]);
});

test('the newest step waits for the windows of all hosts', () => {
  const some = answer(
    10,
    [30, 10],
    [
      { covered: 30, hosts: 3 },
      { covered: 10, hosts: 3 },
    ],
  );
  expect(chartOf(some, 'unit', 25_000).times).toEqual([0, 10]);
  // What has not come by now is missing: on some hosts, so the lines of the others stay as they
  // are.
  expect([...chartOf(some, 'unit', LATER).lines[0].rates].length).toBe(2);
});

test('a host that is away for half of a step makes the others no busier', () => {
  const chart = chartOf(
    answer(
      60,
      [120, 90, 120],
      [
        { covered: 120, hosts: 2 },
        { covered: 90, hosts: 2 },
        { covered: 120, hosts: 2 },
      ],
    ),
    'unit',
    LATER,
  );
  expect([...chart.lines[0].rates]).toEqual([2, 1.5, 2]);
});

test('a window that took longer is no peak, and no stop after it', () => {
  const carried = { covered: 0, hosts: 1, weight: 0 };
  const chart = chartOf(
    answer(10, [10, 40, 0, 0, 0, 10], [{ covered: 10 }, { covered: 40 }, carried, carried, carried, { covered: 10 }]),
    'unit',
    LATER,
  );
  expect([...chart.lines[0].rates]).toEqual([1, 1, 1, 1, 1, 1]);
  expect(chart.lines[0].mean).toBe(1);
});

test('coverage is one thing: lost is not covered, and estimates count on neither side', () => {
  expect(coverageOf({ takenNs: 0n, expectedNs: 60n * SECOND, estimatedNs: 0n })).toBe(0);
  expect(coverageOf({ takenNs: 50n, expectedNs: 100n, estimatedNs: 40n })).toBeCloseTo(1 / 6);
  expect(coverageOf({ takenNs: 50n, expectedNs: 50n, estimatedNs: 50n })).toBeUndefined();
  expect(coverageOf(undefined)).toBeUndefined();
});

test('a loss of everything is one statement, and louder than one of a tenth', () => {
  const sampling = (taken: bigint, lostSamples: bigint) => ({ taken, lostSamples }) as never;
  expect(lossOf(sampling(0n, 15_437n), 'of 2 min')).toEqual({
    text: 'All 15,437 samples of 2 min were lost.',
    bad: true,
  });
  expect(lossOf(sampling(3n, 997n), 'before')).toMatchObject({
    bad: true,
    text: expect.stringContaining('99.7 % of the samples before were lost'),
  });
  expect(lossOf(sampling(80n, 20n), 'after')).toMatchObject({ bad: false });
  expect(lossOf(sampling(99n, 1n), 'after')).toBeUndefined();
  const notes = samplingNotes({ sampling: sampling(1n, 99n), coverage: undefined });
  expect(notes[0]).toMatchObject({ text: 'lost 99.0 %', bad: true });
});

test('a cgroup without a path keeps its name and stands in no other', () => {
  const cgroup = (path: string) => create(CgroupSchema, { path, totalWeight: 1n });
  const roots = treeOf([cgroup('/'), cgroup('/a'), cgroup('[unknown cgroup 139]'), cgroup('')]);
  expect(roots.map((row) => row.name).sort()).toEqual(['', '/', '[unknown cgroup 139]']);
});

test('a collector that answers that it cannot is not one that does not answer', () => {
  const full = troubleOf(new ConnectError('the store is unavailable: the disk is full', Code.Unavailable));
  expect(full?.title).toBe('The collector cannot answer now: its disk is full');
  expect(troubleOf(new ConnectError('the server is away', Code.Unavailable))?.title).toBe(
    'The collector cannot answer now',
  );
  expect(troubleOf(new TypeError('Failed to fetch'))?.title).toBe('The collector does not answer');
  expect(troubleOf(new ConnectError('HTTP 502', Code.Unavailable))?.title).toBe('The collector does not answer');
});

test('few samples are told with the change that they cannot show', () => {
  expect(fewText('before', 66)).toBe('before: 66 samples, too few for changes under 8 pp');
});

/** A profile of stacks from the root; `!` after a name: synthetic. The end of a stack after `|`. */
function profileOf(stacks: Record<string, number>): Profile {
  const strings = ['', 'app'];
  const frames = new Map<string, number>();
  const [kind, fn, parent, frame, stack, end, weight]: number[][] = [[], [], [0], [0], [], [], []];
  for (const [text, value] of Object.entries(stacks)) {
    const [path, how] = text.split('|');
    let at = 0;
    for (const name of path.split(';')) {
      const id = frames.get(name) ?? frames.size;
      if (!frames.has(name)) {
        frames.set(name, id);
        fn.push(strings.push(name.replace(/[!^]$/, '')) - 1);
        kind.push(name.endsWith('!') ? 5 : name.endsWith('^') ? 1 : 0);
      }
      let next = parent.findIndex((one, node) => node > 0 && one === at && frame[node] === id);
      if (next < 0) next = parent.push(at) - 1;
      frame[next] = id;
      at = next;
    }
    stack.push(at);
    end.push(Number(how ?? 0));
    weight.push(value);
  }
  const zeros = () => new Uint32Array(fn.length);
  return {
    strings,
    kind: Uint8Array.from(kind),
    unnamed: new Uint8Array(fn.length),
    fn: Uint32Array.from(fn),
    systemName: zeros(),
    module: zeros(),
    file: zeros(),
    line: zeros(),
    parent: Uint32Array.from(parent),
    frame: Uint32Array.from(frame),
    labelSets: [new Uint32Array()],
    labels: new Uint32Array(stack.length),
    stack: Uint32Array.from(stack),
    end: Uint8Array.from(end),
    count: Float64Array.from(weight),
    weight: Float64Array.from(weight),
    unit: 'nanoseconds',
    quality: undefined,
    about: {} as never,
    timestamps: undefined,
  } as Profile;
}

const OPTIONS = { measure: 'weight', collapse: false, transforms: [], root: '' } as const;

test('what was lost is not compared: shares are of what was sampled', () => {
  const tree = buildDiffTree(
    new Names(),
    profileOf({ 'main;a': 50, 'main;b': 50 }),
    profileOf({ 'main;a': 10, 'main;b': 10, '[lost]!|9': 980 }),
    OPTIONS,
  );
  expect([tree.total[0][0], tree.total[1][0]]).toEqual([100, 20]);
  const changes = Array.from(tree.parent, (_, node) => changeOf(tree, node, 'share').delta);
  expect(changes.every((delta) => Math.abs(delta) < 1e-12)).toBe(true);
});

test('sides of different length compare in cores', () => {
  // 30 s at 1 core before, 35 s at 1 core after: nothing changed.
  const tree = buildDiffTree(new Names(), profileOf({ 'main;a': 30 }), profileOf({ 'main;a': 35 }), OPTIONS, [1, 1]);
  expect(changeOf(tree, 0, 'sum')).toMatchObject({ delta: 0, relative: 0 });
  expect(measure(tree, 'sum', 'before')(30, 35)).toBe(35);
  const doubled = buildDiffTree(new Names(), profileOf({ 'main;a': 30 }), profileOf({ 'main;a': 70 }), OPTIONS, [1, 2]);
  expect(changeOf(doubled, 0, 'sum')).toMatchObject({ delta: 0.5 });
  expect(changeOf(doubled, 0, 'share')).toMatchObject({ delta: 0 });
});

test('a wait is blocked in the last frame of its program, whoever woke it, and not in the scheduler', () => {
  const tree = buildTree(
    new Names(),
    profileOf({
      'main;poll;do_poll^;schedule^;[woken by a hard interrupt]!;hrtimer^;sysvec_apic^': 70,
      'main;poll;do_poll^;schedule^;[woken by redis]!;wake_up': 20,
      'main;read;vfs_read^;schedule^;[uninterruptible]!;[waker unseen]!': 10,
      // Threads of the kernel, and stacks whose callers are not known, have none.
      'kthread^;kcompactd^;schedule^;[still waiting]!': 5,
      '[truncated]!;io_schedule^;[waker unseen]!': 3,
    }),
    OPTIONS,
  );
  const rows = functionRows(tree)
    .filter((row) => row.own > 0)
    .map((row) => [tree.names.text[row.name], row.own, row.waker && tree.names.text[row.waker.name]]);
  expect(rows).toEqual([
    ['poll', 90, '[woken by a hard interrupt]'],
    ['schedule', 5, '[still waiting]'],
    ['read', 10, '[waker unseen]'],
    ['io_schedule', 3, '[waker unseen]'],
  ]);
});
