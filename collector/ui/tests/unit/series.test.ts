import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { expect, test } from 'vitest';
import { CgroupSchema } from '../../src/gen/fleetprof/agent/v1/agent_pb';
import { DataQualitySchema, SeriesResponseSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { collectorTrouble as troubleOf } from '../../src/query/collectorErrors';
import { notesOf } from '../../src/query/quality';
import { treeOf, visible } from '../../src/tables/cgroupTree';
import { chartOf, gapsOf, ghostOf, stacked, sumAt } from '../../src/time/series';

const SECOND = 1_000_000_000n;

test('weights become cores, the rest is last, colours stay with names', () => {
  const line = (host: string, weights: bigint[]) => ({
    labels: { host },
    weights,
    totalWeight: weights.reduce((sum, one) => sum + one, 0n),
  });
  const answer = (lines: object[]) =>
    create(SeriesResponseSchema, { startUnixNs: 0n, stepNs: 10n * SECOND, lines, quality: { unit: 'nanoseconds' } });
  const chart = chartOf(
    answer([
      { weights: [90n * SECOND], totalWeight: 90n * SECOND, rest: true },
      line('a', [5n * SECOND, 20n * SECOND]),
      line('b', [40n * SECOND]),
    ]),
    'host',
    1e9,
  );
  expect(chart.lines.map((one) => one.name)).toEqual(['b', 'a', 'rest']);
  expect([...chart.lines[1].rates]).toEqual([0.5, 2]);
  expect([...chart.lines[0].rates]).toEqual([4, 0]);
  expect(chart.times).toEqual([0, 10, 20]);
  expect(stacked(chart.lines, 2).map((edge) => [...edge])).toEqual([
    [4, 0],
    [4.5, 2],
    [13.5, 2],
  ]);
  const alone = chartOf(answer([line('a', [SECOND])]), 'host', 1e9);
  expect(alone.lines[0].colour).toBe(chart.lines[1].colour);
  expect(chartOf(answer([]), 'host', 1e9).times).toEqual([0]);
});

test('steps that have nothing yet are not drawn, those that have nothing any more are', () => {
  const answer = create(SeriesResponseSchema, {
    stepNs: 10n * SECOND,
    lines: [{ weights: [SECOND, 0n, 0n], totalWeight: SECOND }],
  });
  expect(chartOf(answer, '', 30_000).times).toEqual([0, 10]);
  expect(chartOf(answer, '', 45_000).times).toEqual([0, 10, 20]);
  expect(chartOf(answer, '', 60_000).times).toEqual([0, 10, 20, 30]);
});

/** A chart of one line by step, as cores; undefined: no host sent anything. */
function charted(startS: bigint, stepS: bigint, cores: (number | undefined)[]) {
  const weights = cores.map((value) => BigInt(Math.round((value ?? 0) * 1000)) * stepS * 1_000_000n);
  return chartOf(
    create(SeriesResponseSchema, {
      startUnixNs: startS * SECOND,
      stepNs: stepS * SECOND,
      lines: cores.some((value) => value) ? [{ labels: { host: 'a' }, weights, totalWeight: 1n }] : [],
      steps: cores.map((value) => ({
        coveredNs: value === undefined ? 0n : stepS * SECOND,
        hosts: value === undefined ? 0n : 1n,
        weight: value === undefined ? 0n : 1n,
      })),
      quality: { unit: 'nanoseconds' },
    }),
    'host',
    1e12,
  );
}

test('a baseline stands behind the chart by time, whatever steps either has', () => {
  const chart = charted(1000n, 10n, [2, 2, 2, 2]);
  const was = charted(0n, 20n, [1, 3]);
  const ghost = ghostOf(chart, was, { now: 1_000_000, was: 0 }, []);
  expect([...ghost.rates]).toEqual([1, 1, 3, 3]);
  expect(ghost.mean).toBe(2);
  expect(ghost.means.get('a')).toBe(2);
});

test('time without data of the baseline is missing, and not 0', () => {
  const chart = charted(1000n, 10n, [2, 2, 2, 2]);
  const ghost = ghostOf(chart, charted(0n, 10n, [undefined, undefined, 3, 0]), { now: 1_000_000, was: 0 }, []);
  expect([...ghost.rates]).toEqual([Number.NaN, Number.NaN, 3, 0]);
  expect(ghost.missing).toEqual([{ fromMs: 1_000_000, toMs: 1_020_000, state: 'none' }]);
  // Beyond its end nothing is known either.
  const short = ghostOf(chart, charted(0n, 10n, [1]), { now: 1_000_000, was: 0 }, []);
  expect(short.missing).toEqual([{ fromMs: 1_010_000, toMs: 1_040_000, state: 'none' }]);
});

test('what did not run in the baseline was 0 there', () => {
  const ghost = ghostOf(charted(1000n, 10n, [2, 2]), charted(0n, 10n, [0, 0]), { now: 1_000_000, was: 0 }, []);
  expect([...ghost.rates]).toEqual([0, 0]);
  expect(ghost.mean).toBe(0);
});

test('lines that are hidden are not in the baseline either', () => {
  const chart = charted(1000n, 10n, [2, 2]);
  const ghost = ghostOf(chart, charted(0n, 10n, [1, 1]), { now: 1_000_000, was: 0 }, ['a']);
  expect([...ghost.rates]).toEqual([0, 0]);
  expect(sumAt([], 0)).toBeNaN();
});

test('gaps that touch are one', () => {
  const gap = (hostname: string, from: bigint, to: bigint, cause: string) => ({
    hostname,
    startUnixNs: from * SECOND,
    endUnixNs: to * SECOND,
    cause,
  });
  const quality = create(DataQualitySchema, {
    gaps: [
      gap('b', 20n, 40n, 'absent'),
      gap('a', 10n, 30n, 'disk_full'),
      gap('c', 90n, 95n, 'absent'),
      gap('d', 7n, 7n, 'absent'),
    ],
  });
  expect(gapsOf(quality)).toEqual([
    { fromMs: 10_000, toMs: 40_000, hosts: ['a', 'b'], causes: ['disk_full', 'absent'] },
    { fromMs: 90_000, toMs: 95_000, hosts: ['c'], causes: ['absent'] },
  ]);
  expect(gapsOf(undefined)).toEqual([]);
});

test('every code has a sentence; what was given up has none', () => {
  for (const code of Object.values(Code).filter(
    (one): one is Code => typeof one === 'number' && one !== Code.Canceled,
  )) {
    expect(troubleOf(new ConnectError('said', code))).toMatchObject({
      detail: 'said',
      advice: expect.stringMatching(/\.$/),
    });
  }
  expect(troubleOf(new ConnectError('', Code.Canceled))).toBeUndefined();
  expect(troubleOf(new DOMException('', 'AbortError'))).toBeUndefined();
  expect(troubleOf(new TypeError('Failed to fetch'))?.code).toBe('Unavailable');
});

test('what is missing is told of, and warned of from a bound on', () => {
  const notes = notesOf(
    create(DataQualitySchema, {
      hosts: 2n,
      hostsAlive: 3n,
      totalWeight: 100n,
      prunedWeight: 5n,
      sampling: { taken: 1000n, lostSamples: 1n, truncated: 200n },
      coverage: { expectedNs: 100n, takenNs: 90n },
      damaged: ['p'],
      totalCount: 200n,
      namedLater: [{ source: 'upload', count: 50n }],
    }),
  );
  const said = Object.fromEntries(notes.map((note) => [note.text, note.warn]));
  expect(said).toMatchObject({
    '2/3 hosts': true,
    'lost 0.10 %': false,
    'incomplete stacks 20.0 %': true,
    'coverage 90.0 %': true,
    '5.0 % pruned': true,
    '1 partition missing': true,
    '25.0 % named by upload': false,
  });
});

test('sums that were cut are said before anything else', () => {
  const [first] = notesOf(create(DataQualitySchema, { hosts: 2n, hostsAlive: 3n, weightsCapped: true }));
  expect(first).toMatchObject({ text: 'weights too large', bad: true });
});

test('what a scope leaves out because it is not kept is said before anything else', () => {
  const sentences = ['not kept per `namespace` beyond 14 days', 'not kept per `pod` beyond 2 days'];
  const [first] = notesOf(create(DataQualitySchema, { hosts: 2n, hostsAlive: 2n, notKept: sentences }));
  expect(first).toMatchObject({ text: 'part of the range is missing', title: sentences.join('; '), bad: true });
});

test('cgroups stand under the nearest parent there is, heaviest first', () => {
  const cgroup = (path: string, totalWeight: bigint) => create(CgroupSchema, { path, totalWeight });
  const roots = treeOf([
    cgroup('/', 100n),
    cgroup('/a', 30n),
    cgroup('/b/c/d', 60n),
    cgroup('/b/c/d/e', 2n),
    cgroup('/ab', 10n),
    cgroup('/b/c/d', 60n),
  ]);
  const names = (filter: string, toggled: string[] = []) =>
    visible(roots, 100, new Set(toggled), filter).map((row) => `${row.depth} ${row.name}`);
  expect(names('')).toEqual(['0 /', '1 b/c/d', '2 e', '1 a', '1 ab']);
  expect(names('', ['/b/c/d'])).toEqual(['0 /', '1 b/c/d', '1 a', '1 ab']);
  expect(names('/e')).toEqual(['0 /', '1 b/c/d', '2 e']);
  expect(names('nothing')).toEqual([]);
});
