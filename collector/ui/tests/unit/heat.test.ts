import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { ProfileChunkSchema } from '../../src/gen/fleetprof/profile/v1/profile_pb';
import { COLUMNS_MAX, ROWS, beginOf, cellsOf, covered, gridOf, pickOf, sumOfCells, wallMs } from '../../src/heat/grid';
import { STEPS, coloursOf, stepOf, valueOfStep } from '../../src/heat/scale';
import {
  type Timestamps,
  TimestampsBuilder,
  between,
  firstAt,
  readPick,
  sumOf,
  writePick,
} from '../../src/query/timestamps';
import { Assembler, type Profile, ProfileError } from '../../src/query/profile';
import { random } from '../mock/fleet';

const START = 1_700_000_000_250_000_000n;

/** Time of a row. Unit: nanoseconds. */
const ROW_NS = 1e9 / ROWS;

/** A chunk with functions a, b, c at stacks 1, 2, 3 and a timestamp of 10 for each pair. */
function chunkOf(timestamps: readonly (readonly [atNs: number, stack: number])[], durationNs = 3_000_000_000n) {
  const columns = timestamps.map(([at], index) => BigInt(at - (index > 0 ? timestamps[index - 1][0] : 0)));
  return create(ProfileChunkSchema, {
    info: { unit: 'nanoseconds', event: 'cpu-clock', times: { startUnixNs: START, durationNs, dropped: 7n } },
    strings: ['', 'a', 'b', 'c'],
    frames: [{ function: 1 }, { function: 2 }, { function: 3 }],
    stackParents: [0, 1, 0],
    stackFrames: [0, 1, 2],
    sampleLabelSets: [0],
    sampleStacks: [1],
    sampleEnds: [0],
    sampleCounts: [1n],
    sampleWeights: [10n],
    timestampDeltasNs: columns,
    timestampLabelSets: timestamps.map(() => 0),
    timestampStacks: timestamps.map(([, stack]) => stack),
    timestampEnds: timestamps.map(() => 0),
    timestampWeights: timestamps.map(() => 10n),
    last: true,
  });
}

function profileOf(...timestamps: (readonly [atNs: number, stack: number])[]): Profile & { timestamps: Timestamps } {
  const assembler = new Assembler();
  assembler.addChunk(chunkOf(timestamps));
  const profile = assembler.finish();
  if (!profile.timestamps) throw new Error('no timestamps');
  return { ...profile, timestamps: profile.timestamps };
}

describe('timestamps of an answer', () => {
  test('are read with what they are of', () => {
    const { timestamps } = profileOf([0, 1], [100, 2], [100, 1], [2_000_000_000, 1]);
    expect([...timestamps.at]).toEqual([0, 100, 100, 2_000_000_000]);
    expect([...timestamps.row]).toEqual([0, 1, 0, 0]);
    expect([...timestamps.keys.stack]).toEqual([1, 2]);
    expect(timestamps.dropped).toBe(7);
    expect(timestamps.startUnixNs).toBe(START);
  });

  test('go on from chunk to chunk', () => {
    const assembler = new Assembler();
    const whole = chunkOf([[50, 1]]);
    assembler.addChunk({ ...whole, last: false });
    const more = create(ProfileChunkSchema, {
      timestampDeltasNs: [25n],
      timestampLabelSets: [0],
      timestampStacks: [3],
      timestampEnds: [0],
      timestampWeights: [1n],
      last: true,
    });
    assembler.addChunk(more);
    expect([...(assembler.finish().timestamps?.at ?? [])]).toEqual([50, 75]);
  });

  test('are absent where no times were kept, and empty where nothing was sampled', () => {
    const without = new Assembler();
    without.addChunk(create(ProfileChunkSchema, { info: { unit: 'nanoseconds' }, last: true }));
    expect(without.finish().timestamps).toBeUndefined();
    expect(profileOf().timestamps.at).toHaveLength(0);
  });

  test('that contradict themselves are refused', () => {
    const refuse = (change: object) => {
      const assembler = new Assembler();
      expect(() => assembler.addChunk({ ...chunkOf([[0, 1]]), ...change })).toThrow(ProfileError);
    };
    refuse({ timestampStacks: [4] });
    refuse({ timestampLabelSets: [1] });
    refuse({ timestampEnds: [] });
    refuse({ timestampDeltasNs: [2n ** 64n - 1n] });
    refuse({ info: create(ProfileChunkSchema, { info: { unit: 'x' } }).info });
    refuse({ info: create(ProfileChunkSchema, { info: { times: { durationNs: 2n ** 63n } } }).info });
  });

  test('later than what they say to cover are covered', () => {
    const assembler = new Assembler();
    assembler.addChunk(chunkOf([[10, 1]], 5n));
    expect(assembler.finish().timestamps?.durationNs).toBe(11);
  });

  test('that find no room are counted, and the time covered ends before them', () => {
    const builder = new TimestampsBuilder(2);
    const chunk = chunkOf([
      [10, 1],
      [20, 1],
      [30, 1],
      [40, 1],
    ]);
    if (chunk.info?.times) builder.begin(chunk.info.times);
    builder.add(chunk, { labelSets: 1, stacks: 4 });
    expect(builder.finish()).toMatchObject({ durationNs: 21, dropped: 9, at: Float64Array.of(10, 20) });
  });

  test('of many rows keep each its own', () => {
    const next = random(7);
    const list = Array.from({ length: 5000 }, (_, at) => [at, 1 + Math.floor(next() * 3)] as const);
    const { timestamps } = profileOf(...list);
    expect(timestamps.keys.stack).toHaveLength(3);
    for (const [index, [, stack]] of list.entries()) expect(timestamps.keys.stack[timestamps.row[index]]).toBe(stack);
  });
});

describe('a part of the time', () => {
  test('has what was sampled in it, its end not with it', () => {
    const profile = profileOf([0, 1], [100, 2], [200, 2], [300, 3]);
    const part = between(profile, profile.timestamps, { from: 100, until: 300 });
    expect([[...part.stack], [...part.count], [...part.weight]]).toEqual([[2], [2], [20]]);
    expect(part.about.startUnixNs).toBe(START + 100n);
    expect(sumOf(profile.timestamps, { from: 100, until: 301 })).toEqual({ count: 3, weight: 30 });
  });

  test('whichever two parts, together they are the whole', () => {
    const next = random(3);
    const profile = profileOf(
      ...Array.from({ length: 400 }, () => [Math.floor(next() * 3e9), 1 + Math.floor(next() * 3)] as const).sort(
        (left, right) => left[0] - right[0],
      ),
    );
    const sum = (part: Profile) => part.weight.reduce((total, weight) => total + weight, 0);
    for (let turn = 0; turn < 50; turn++) {
      const cut = Math.floor(next() * 3e9);
      const [before, after] = [
        { from: 0, until: cut },
        { from: cut, until: 3e9 },
      ].map((pick) => sum(between(profile, profile.timestamps, pick)));
      expect(before + after).toBe(4000);
    }
  });

  test('is found by its time', () => {
    const { timestamps } = profileOf([5, 1], [5, 1], [9, 1]);
    expect([0, 5, 6, 9, 10].map((ns) => firstAt(timestamps, ns))).toEqual([0, 0, 2, 2, 3]);
  });

  test('is written in the address and read back', () => {
    const { timestamps } = profileOf([0, 1]);
    const pick = { from: 1_500_000, until: 2_500_000 };
    expect(writePick(timestamps, pick)).toBe('1700000000251500-1700000000252500');
    expect(readPick(timestamps, writePick(timestamps, pick))).toEqual(pick);
    expect(readPick(timestamps, '0-999999999999999999')).toEqual({ from: 0, until: 3e9 });
    const now = '1700000000251500';
    for (const wrong of [
      '',
      '5',
      `${now}-${now}`,
      `${now}-1`,
      '1-2',
      '-1-5',
      '1-2-3',
      'a-b',
      `${now}-9999999999999999999`,
    ])
      expect(readPick(timestamps, wrong)).toBeUndefined();
    expect(writePick(timestamps, undefined)).toBe('');
  });
});

describe('the grid', () => {
  test('has seconds of the clock across and parts of them down', () => {
    const { timestamps } = profileOf([0, 1], [750_000_000, 1], [750_000_001, 1], [2_999_999_999, 1]);
    const grid = gridOf(timestamps);
    // Starts at a quarter past a second, and covers three.
    expect([grid.columns, grid.first, grid.end, grid.originNs]).toEqual([4, 12, 3 * ROWS + 13, -250_000_000]);
    const cells = [...grid.count.entries()].filter(([, count]) => count > 0);
    expect(cells).toEqual([
      [12, 1],
      [50, 2],
      [3 * ROWS + 12, 1],
    ]);
    expect([grid.mostCount, grid.mostWeight]).toEqual([2, 20]);
    expect(wallMs(grid, 0)).toBe(1_700_000_000_250);
  });

  test('has every timestamp in a cell', () => {
    const next = random(11);
    const list = Array.from({ length: 300 }, () => [Math.floor(next() * 3e9), 1] as const).sort(
      (left, right) => left[0] - right[0],
    );
    const grid = gridOf(profileOf(...list).timestamps);
    expect(grid.count.reduce((sum, count) => sum + count, 0)).toBe(300);
  });

  test('picks from cell to cell in order of time, cut to what is covered', () => {
    const grid = gridOf(profileOf([0, 1]).timestamps);
    expect(pickOf(grid, 60, 50)).toEqual({ from: 750_000_000, until: 750_000_000 + 11 * ROW_NS });
    expect(pickOf(grid, 0, 12)).toEqual({ from: 0, until: 13 * ROW_NS - 250_000_000 });
    expect(pickOf(grid, 0, 3)).toBeUndefined();
    for (const [one, other] of [
      [20, 20],
      [14, 77],
      [50, 149],
    ]) {
      const pick = pickOf(grid, one, other);
      expect(pick && cellsOf(grid, pick)).toEqual([one, other + 1]);
    }
    expect([covered(grid, 0), covered(grid, 9999)]).toEqual([12, 3 * ROWS + 12]);
    expect(beginOf(grid, 50)).toBe(750_000_000);
  });

  test('knows the sums of picks that are complete cells, and of no others', () => {
    const next = random(12);
    const list = Array.from({ length: 500 }, () => [Math.floor(next() * 3e9), 1] as const).sort(
      (left, right) => left[0] - right[0],
    );
    const { timestamps } = profileOf(...list);
    const grid = gridOf(timestamps);
    for (const [one, other] of [
      [20, 20],
      [0, 40],
      [77, 30],
      [100, 9999],
    ]) {
      const pick = pickOf(grid, one, other);
      if (!pick) throw new Error('no pick');
      expect(sumOfCells(grid, pick)).toEqual(sumOf(timestamps, pick));
    }
    expect(sumOfCells(grid, { from: 1000, until: 2 * ROW_NS })).toBeUndefined();
    expect(sumOfCells(grid, { from: 0, until: ROW_NS + 1 })).toBeUndefined();
  });

  test('does not grow with what a stranger says', () => {
    const { timestamps } = profileOf([0, 1]);
    const grid = gridOf({
      ...timestamps,
      durationNs: 2 ** 53,
      at: Float64Array.of(0, 2 ** 52, 2 ** 52),
      row: new Uint32Array(3),
      weight: new Float64Array(3),
    });
    expect([grid.columns, grid.beyond]).toEqual([COLUMNS_MAX, 2]);
  });
});

describe('the scale', () => {
  // What cones see of linear light: without the red, the green or the blue kind (Viénot 1999,
  // Brettel 1997).
  const SEEN: Record<string, number[][]> = {
    all: [
      [1, 0, 0],
      [0, 1, 0],
      [0, 0, 1],
    ],
    protan: [
      [0.11238, 0.88762, 0],
      [0.11238, 0.88762, 0],
      [0.00401, -0.00401, 1],
    ],
    deutan: [
      [0.29275, 0.70725, 0],
      [0.29275, 0.70725, 0],
      [-0.02234, 0.02234, 1],
    ],
    grey: [
      [0.2126, 0.7152, 0.0722],
      [0.2126, 0.7152, 0.0722],
      [0.2126, 0.7152, 0.0722],
    ],
  };
  const linear = (value: number) =>
    value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4;
  const lightness = (rgb: readonly number[], seen: number[][]) => {
    const light = seen.map((row) => row.reduce((sum, part, channel) => sum + part * linear(rgb[channel]), 0));
    const luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2];
    return 116 * Math.cbrt(Math.max(0, luminance)) - 16;
  };

  for (const theme of ['light', 'dark'] as const) {
    for (const [who, seen] of Object.entries(SEEN)) {
      test(`is one way of lightness in the ${theme} theme for ${who}`, () => {
        const seenAs = coloursOf(theme).map((rgb) => lightness(rgb, seen));
        const steps = seenAs.slice(1).map((value, at) => (theme === 'light' ? seenAs[at] - value : value - seenAs[at]));
        expect(Math.min(...steps)).toBeGreaterThan(0.8);
        expect(Math.abs(seenAs[STEPS - 1] - seenAs[0])).toBeGreaterThan(55);
      });
    }
  }

  test('goes from the least to the most', () => {
    expect([stepOf(0, 10), stepOf(10, 10), stepOf(1e-9, 10), stepOf(5, 0)]).toEqual([0, STEPS - 1, 0, 0]);
    for (let step = 0; step < STEPS; step++) expect(stepOf(valueOfStep(step, 700) * 1.0001 + 1e-9, 700)).toBe(step);
  });
});
