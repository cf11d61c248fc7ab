// Timestamps as cells: a column is a second, a row a part of it, from the top down.
//
// Columns start with whole seconds of the clock, so that what happens at the same part of every
// second, on whichever host, stands in one row. A file may have cut its times otherwise: then its
// columns are of another length, and start with whole ones.

import type { Timestamps, Pick } from '../query/timestamps';

/** Rows of a column, unless a file says otherwise: 20 ms each, two samples at 99 Hz of one CPU. */
export const ROWS = 50;

const SECOND_NS = 1e9;

/** Most columns: more than 4 hours. Timestamps behind them are counted, not drawn. */
export const COLUMNS_MAX = 16_384;

/** Cells stand column by column, from the top down: a cell's number grows with its time. */
export interface Grid {
  columns: number;
  rows: number;
  /** Time of a column, and of a row. Unit: nanoseconds. */
  columnNs: number;
  rowNs: number;
  /** Samples by cell. */
  count: Float64Array;
  /** Weight by cell, in the profile's unit. */
  weight: Float64Array;
  /** First cell that has time covered, and the first behind the last. */
  first: number;
  end: number;
  /**
   * Start of the first column. Unit: nanoseconds since the start of the time covered; not above 0.
   */
  originNs: number;
  /** Length of the time covered. Unit: nanoseconds. */
  durationNs: number;
  /** Start of the first column. Unit: milliseconds since the epoch. */
  startMs: number;
  /** Timestamps behind the last column. */
  beyond: number;
  mostCount: number;
  mostWeight: number;
}

/** Puts timestamps into cells: one pass. */
export function gridOf(timestamps: Timestamps): Grid {
  const { columnNs, rows } = timestamps.cells ?? { columnNs: SECOND_NS, rows: ROWS };
  const rowNs = columnNs / rows;
  const column = BigInt(columnNs);
  const into = Number(((timestamps.startUnixNs % column) + column) % column);
  const whole = timestamps.cells?.columns ?? Math.ceil((into + timestamps.durationNs) / columnNs);
  const columns = Math.max(1, Math.min(COLUMNS_MAX, whole));
  const cells = columns * rows;
  const end = timestamps.cells?.end ?? Math.ceil((into + timestamps.durationNs) / rowNs);
  const grid: Grid = {
    columns,
    rows,
    columnNs,
    rowNs,
    count: new Float64Array(cells),
    weight: new Float64Array(cells),
    first: timestamps.cells?.first ?? Math.floor(into / rowNs),
    end: Math.min(cells, Math.max(1, end)),
    originNs: -into,
    durationNs: timestamps.durationNs,
    startMs: Number((timestamps.startUnixNs - BigInt(into)) / 1_000_000n),
    beyond: 0,
    mostCount: 0,
    mostWeight: 0,
  };
  const { at, weight } = timestamps;
  for (let index = 0; index < at.length; index++) {
    const cell = Math.floor((at[index] + into) / rowNs);
    if (cell >= cells) {
      // Oldest first: all others are behind it too.
      grid.beyond = at.length - index;
      break;
    }
    grid.count[cell] += timestamps.cells?.count[index] ?? 1;
    grid.weight[cell] += weight[index];
  }
  for (let cell = 0; cell < cells; cell++) {
    grid.mostCount = Math.max(grid.mostCount, grid.count[cell]);
    grid.mostWeight = Math.max(grid.mostWeight, grid.weight[cell]);
  }
  return grid;
}

/** Start of a cell. Unit: nanoseconds since the start of the time covered. */
export function beginOf(grid: Grid, cell: number): number {
  return grid.originNs + cell * grid.rowNs;
}

/** The time of the cells between two, both with it, in whichever order; cut to what is covered. */
export function pickOf(grid: Grid, one: number, other: number): Pick | undefined {
  const from = Math.max(0, beginOf(grid, Math.min(one, other)));
  const until = Math.min(grid.durationNs, beginOf(grid, Math.max(one, other) + 1));
  return from < until ? { from, until } : undefined;
}

/** First cell of a pick, and the first behind its last. */
export function cellsOf(grid: Grid, pick: Pick): [first: number, end: number] {
  const cells = grid.columns * grid.rows;
  const first = Math.max(0, Math.min(cells - 1, Math.floor((pick.from - grid.originNs) / grid.rowNs + 1e-6)));
  return [first, Math.max(first + 1, Math.min(cells, Math.ceil((pick.until - grid.originNs) / grid.rowNs - 1e-6)))];
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
