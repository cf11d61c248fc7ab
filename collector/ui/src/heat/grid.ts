// Timestamps as cells: a column is a second, a row a part of it, from the top down.
//
// Columns begin with whole seconds of the clock, so that what happens at the same part of every
// second, on whichever host, stands in one row.

import type { Timestamps, Pick } from '../query/timestamps';

/** Rows of a column: 20 ms each, two samples at 99 Hz of one CPU. */
export const ROWS = 50;

const SECOND_NS = 1e9;

/** Time of one row. Unit: nanoseconds. */
export const ROW_NS = SECOND_NS / ROWS;

/** Most columns: more than 4 hours. Timestamps behind them are counted, not drawn. */
export const COLUMNS_MAX = 16_384;

/** Cells stand column by column, from the top down: a cell's number grows with its time. */
export interface Grid {
  columns: number;
  /** Samples by cell. */
  count: Float64Array;
  /** Weight by cell, in the profile's unit. */
  weight: Float64Array;
  /** First cell that has time covered, and the first behind the last. */
  first: number;
  end: number;
  /**
   * Begin of the first column. Unit: nanoseconds since the begin of the time covered; not above 0.
   */
  originNs: number;
  /** Length of the time covered. Unit: nanoseconds. */
  durationNs: number;
  /** Begin of the first column. Unit: milliseconds since the epoch. */
  startMs: number;
  /** Timestamps behind the last column. */
  beyond: number;
  mostCount: number;
  mostWeight: number;
}

/** Puts timestamps into cells: one pass. */
export function gridOf(timestamps: Timestamps): Grid {
  const second = BigInt(SECOND_NS);
  const into = Number(((timestamps.startUnixNs % second) + second) % second);
  const columns = Math.max(1, Math.min(COLUMNS_MAX, Math.ceil((into + timestamps.durationNs) / SECOND_NS)));
  const cells = columns * ROWS;
  const grid: Grid = {
    columns,
    count: new Float64Array(cells),
    weight: new Float64Array(cells),
    first: Math.floor(into / ROW_NS),
    end: Math.min(cells, Math.max(1, Math.ceil((into + timestamps.durationNs) / ROW_NS))),
    originNs: -into,
    durationNs: timestamps.durationNs,
    startMs: Number((timestamps.startUnixNs - BigInt(into)) / 1_000_000n),
    beyond: 0,
    mostCount: 0,
    mostWeight: 0,
  };
  const { at, weight } = timestamps;
  for (let index = 0; index < at.length; index++) {
    const cell = Math.floor((at[index] + into) / ROW_NS);
    if (cell >= cells) {
      // Oldest first: all others are behind it too.
      grid.beyond = at.length - index;
      break;
    }
    grid.count[cell]++;
    grid.weight[cell] += weight[index];
  }
  for (let cell = 0; cell < cells; cell++) {
    grid.mostCount = Math.max(grid.mostCount, grid.count[cell]);
    grid.mostWeight = Math.max(grid.mostWeight, grid.weight[cell]);
  }
  return grid;
}

/** Begin of a cell. Unit: nanoseconds since the begin of the time covered. */
export function beginOf(grid: Grid, cell: number): number {
  return grid.originNs + cell * ROW_NS;
}

/** The time of the cells between two, both with it, in whichever order; cut to what is covered. */
export function pickOf(grid: Grid, one: number, other: number): Pick | undefined {
  const from = Math.max(0, beginOf(grid, Math.min(one, other)));
  const until = Math.min(grid.durationNs, beginOf(grid, Math.max(one, other) + 1));
  return from < until ? { from, until } : undefined;
}

/** First cell of a pick, and the first behind its last. */
export function cellsOf(grid: Grid, pick: Pick): [first: number, end: number] {
  const cells = grid.columns * ROWS;
  const first = Math.max(0, Math.min(cells - 1, Math.floor((pick.from - grid.originNs) / ROW_NS + 1e-6)));
  return [first, Math.max(first + 1, Math.min(cells, Math.ceil((pick.until - grid.originNs) / ROW_NS - 1e-6)))];
}

/** Wall time of a place. Unit: milliseconds since the epoch. */
export function wallMs(grid: Grid, ns: number): number {
  return grid.startMs + (ns - grid.originNs) / 1e6;
}

/** A cell inside of what is covered. */
export function covered(grid: Grid, cell: number): number {
  return Math.max(grid.first, Math.min(grid.end - 1, cell));
}

/**
 * Samples and weight of a pick that is made of complete cells, as those of a hand are; undefined
 * for others, and for what reaches behind the last column.
 */
export function sumOfCells(grid: Grid, pick: Pick): { count: number; weight: number } | undefined {
  const [first, end] = cellsOf(grid, pick);
  const starts = pick.from === Math.max(0, beginOf(grid, first));
  const ends = pick.until === Math.min(grid.durationNs, beginOf(grid, end));
  if (!starts || !ends) return undefined;
  const sum = { count: 0, weight: 0 };
  for (let cell = first; cell < end; cell++) {
    sum.count += grid.count[cell];
    sum.weight += grid.weight[cell];
  }
  return sum;
}
