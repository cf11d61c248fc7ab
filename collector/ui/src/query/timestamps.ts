// When samples were taken: read from chunks, and the profile of a part of that time.
//
// Timestamps repeat what the samples of the profile say in sum, so they are never added to them.
// What was sampled (stack, labels, end) is kept once for all timestamps that share it, so that the
// profile of a part of the time is one pass over its timestamps.

import type { ProfileChunk, Times } from '../gen/fleetprof/profile/v1/profile_pb';
import { ProfileError, below, bytes, floats, words } from './columns';
import type { Profile } from './profile';

/**
 * Most timestamps kept: 1 hour of 10 CPUs at 99 Hz, or 30 s of 1,000. 20 bytes each. The time
 * covered ends before the first that finds no room; the samples are in the profile all the same.
 */
export const TIMESTAMPS_MAX = 4_000_000;

/**
 * Longest time covered. Unit: nanoseconds. Whole numbers are exact up to here, which is 104 days.
 */
export const COVERED_NS_MAX = 2 ** 53;

/** The time that timestamps cover. */
export interface Covered {
  startUnixNs: bigint;
  /** Unit: nanoseconds. */
  durationNs: number;
}

/** Timestamps in columns, oldest first. */
export interface Timestamps extends Covered {
  /** Samples of that time whose timestamp found no room. */
  dropped: number;
  /** Since `startUnixNs`. Unit: nanoseconds. */
  at: Float64Array;
  weight: Float64Array;
  /** What was sampled: a row of `keys`. */
  row: Uint32Array;
  keys: { labels: Uint32Array; stack: Uint32Array; end: Uint8Array };
  /** Set where times were kept by cells alone: `at` is the middle of one then. */
  cells?: Cells;
}

/** How time was cut by who wrote it down, and how many samples each entry stands for. */
export interface Cells {
  columnNs: number;
  rows: number;
  columns: number;
  /** First cell that has time covered, and the first behind the last. */
  first: number;
  end: number;
  count: Float64Array;
}

/** A part of the time that timestamps cover: from, until. Unit: nanoseconds since its start. */
export interface Pick {
  from: number;
  until: number;
}

/** Takes the timestamps of chunks in order. */
export class TimestampsBuilder {
  private times: Times | undefined;
  private readonly at = floats();
  private readonly weight = floats();
  private readonly row = words();
  private readonly labels = words();
  private readonly stack = words();
  private readonly end = bytes();
  // Open addressing: row + 1 of what was sampled; 0 is free.
  private table = new Uint32Array(1024);
  private last = 0;
  private beyond = 0;

  constructor(private readonly most = TIMESTAMPS_MAX) {}

  /** The time that is covered. */
  begin(times: Times): void {
    if (Number(times.durationNs) > COVERED_NS_MAX) throw new ProfileError('the times cover too long a range');
    this.times = times;
  }

  /**
   * Takes the timestamps of one chunk, whose tables are known.
   * @throws ProfileError when they contradict the tables or each other.
   */
  add(chunk: ProfileChunk, known: { labelSets: number; stacks: number }): void {
    const { timestampDeltasNs, timestampLabelSets, timestampStacks, timestampEnds, timestampWeights } = chunk;
    const count = timestampStacks.length;
    if (
      [timestampDeltasNs, timestampLabelSets, timestampEnds, timestampWeights].some((column) => column.length !== count)
    ) {
      throw new ProfileError('columns of timestamps differ in length');
    }
    if (count === 0) return;
    if (!this.times) throw new ProfileError('timestamps without their time range');
    for (const column of [this.at, this.weight, this.row]) column.reserve(Math.min(count, this.most - this.at.length));
    for (let index = 0; index < count; index++) {
      this.last += Number(timestampDeltasNs[index]);
      if (this.last > COVERED_NS_MAX) throw new ProfileError('a timestamp is too large');
      const labels = below(timestampLabelSets[index], known.labelSets, 'label set');
      const stack = below(timestampStacks[index], known.stacks, 'stack');
      if (this.at.length === this.most) {
        this.beyond++;
        continue;
      }
      this.at.push(this.last);
      this.weight.push(Number(timestampWeights[index]));
      this.row.push(this.rowOf(labels, stack, Math.min(timestampEnds[index], 255)));
    }
  }

  private rowOf(labels: number, stack: number, end: number): number {
    const mask = this.table.length - 1;
    let slot = slotOf(labels, stack, end) & mask;
    for (let found = this.table[slot]; found !== 0; found = this.table[slot]) {
      if (this.stack.at(found - 1) === stack && this.labels.at(found - 1) === labels && this.end.at(found - 1) === end)
        return found - 1;
      slot = (slot + 1) & mask;
    }
    this.labels.push(labels);
    this.stack.push(stack);
    this.end.push(end);
    this.table[slot] = this.stack.length;
    if (this.stack.length * 2 > this.table.length) this.rehash();
    return this.stack.length - 1;
  }

  private rehash(): void {
    const table = new Uint32Array(this.table.length * 2);
    const mask = table.length - 1;
    for (let row = 0; row < this.stack.length; row++) {
      let slot = slotOf(this.labels.at(row), this.stack.at(row), this.end.at(row)) & mask;
      while (table[slot] !== 0) slot = (slot + 1) & mask;
      table[slot] = row + 1;
    }
    this.table = table;
  }

  /** The timestamps; undefined when no times were kept. With times kept there may still be none. */
  finish(): Timestamps | undefined {
    if (!this.times || (this.times.durationNs === 0n && this.at.length === 0)) return undefined;
    const end = this.at.length > 0 ? this.at.at(this.at.length - 1) + 1 : 0;
    return {
      startUnixNs: this.times.startUnixNs,
      // The stated and the seen duration may differ by a rounding: all timestamps are inside.
      durationNs: this.beyond > 0 ? end : Math.max(Number(this.times.durationNs), end),
      dropped: Number(this.times.dropped) + this.beyond,
      at: this.at.finish(),
      weight: this.weight.finish(),
      row: this.row.finish(),
      keys: { labels: this.labels.finish(), stack: this.stack.finish(), end: this.end.finish() },
    };
  }
}

function slotOf(labels: number, stack: number, end: number): number {
  const mixed = Math.imul(stack + 1, 0x9e3779b1) ^ Math.imul(labels + 1, 0x85ebca6b) ^ Math.imul(end + 1, 0xc2b2ae35);
  return (mixed ^ (mixed >>> 15)) >>> 0;
}

/** First timestamp at or after a time. */
export function firstAt(timestamps: Timestamps, ns: number): number {
  let [low, high] = [0, timestamps.at.length];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (timestamps.at[middle] >= ns) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Samples and weight of a part of the time. */
export function sumOf(timestamps: Timestamps, pick: Pick): { count: number; weight: number } {
  const [first, end] = [firstAt(timestamps, pick.from), firstAt(timestamps, pick.until)];
  const each = timestamps.cells?.count;
  const sum = { count: each ? 0 : Math.max(0, end - first), weight: 0 };
  for (let index = first; index < end; index++) {
    if (each) sum.count += each[index];
    sum.weight += timestamps.weight[index];
  }
  return sum;
}

/** The profile of a part of the time. Tables are shared with the whole, so names keep their ids. */
export function between(profile: Profile, timestamps: Timestamps, pick: Pick): Profile {
  const { keys } = timestamps;
  const counts = new Float64Array(keys.stack.length);
  const weights = new Float64Array(keys.stack.length);
  const [first, end] = [firstAt(timestamps, pick.from), firstAt(timestamps, pick.until)];
  for (let index = first; index < end; index++) {
    counts[timestamps.row[index]] += timestamps.cells?.count[index] ?? 1;
    weights[timestamps.row[index]] += timestamps.weight[index];
  }
  const rows = Uint32Array.from(counts.keys()).filter((row) => counts[row] > 0);
  return {
    ...profile,
    labels: rows.map((row) => keys.labels[row]),
    stack: rows.map((row) => keys.stack[row]),
    end: Uint8Array.from(rows, (row) => keys.end[row]),
    count: Float64Array.from(rows, (row) => counts[row]),
    weight: Float64Array.from(rows, (row) => weights[row]),
    // What was missed is known only for the complete profile.
    quality: undefined,
    about: {
      ...profile.about,
      startUnixNs: timestamps.startUnixNs + BigInt(Math.round(pick.from)),
      durationNs: BigInt(Math.round(pick.until - pick.from)),
      sampling: undefined,
      coverage: undefined,
    },
    timestamps: undefined,
  };
}

/**
 * `1700000000250000-1700000000500000`, in microseconds since the epoch, for the address; empty for
 * none.
 */
export function writePick(covered: Covered, pick: Pick | undefined): string {
  const wall = (ns: number) => String((covered.startUnixNs + BigInt(Math.round(ns))) / 1000n);
  return pick ? `${wall(pick.from)}-${wall(pick.until)}` : '';
}

/** The pick that a text means within the time covered; undefined when it means none. */
export function readPick(covered: Covered, text: string): Pick | undefined {
  const found = /^(\d{1,18})-(\d{1,18})$/.exec(text);
  if (!found) return undefined;
  const since = (digits: string) =>
    Math.max(0, Math.min(covered.durationNs, Number(BigInt(digits) * 1000n - covered.startUnixNs)));
  const [from, until] = [since(found[1]), since(found[2])];
  return from < until ? { from, until } : undefined;
}
