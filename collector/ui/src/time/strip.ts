// The two sides of a comparison on one axis: times from the start of each side's range.

import { type Range, toMs } from './range';

/** How much around the longer range is shown, on each side. Part of its length. */
const AROUND = 0.25;

/** Most times on the axis. */
const TICKS_MAX = 9;

const STEPS_MS = [
  1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3, 900e3, 1800e3, 3600e3, 7200e3, 10_800e3, 21_600e3,
  43_200e3, 86_400e3, 172_800e3, 604_800e3, 2_592_000e3,
];

/** The axis of both ranges. Unit: milliseconds from the start of each. */
export function axisOf(ranges: readonly Range[]): Range {
  const longest = Math.max(...ranges.map((range) => range.to - range.from), 1000);
  const around = Math.round(AROUND * longest);
  return { from: -around, to: longest + around };
}

/** The times of a side that its axis shows, no later than now. */
export function shownOf(range: Range, axis: Range, nowMs: number): Range {
  const from = Math.max(0, range.from + axis.from);
  return { from, to: Math.max(Math.min(range.from + axis.to, Math.max(nowMs, range.to)), from + 1000) };
}

/** Times on the axis. */
export function ticksOf(axis: Range): number[] {
  const length = axis.to - axis.from;
  const step = STEPS_MS.find((one) => length / one <= TICKS_MAX) ?? Math.ceil(length / TICKS_MAX);
  const ticks: number[] = [];
  for (let at = Math.ceil(axis.from / step) * step; at <= axis.to; at += step) ticks.push(at === 0 ? 0 : at);
  return ticks;
}

/** A time from the start of a range: `0:00`, `+5:30`, `−1:05:00`, `+2d 3h`. */
export function relativeTime(ms: number): string {
  const sign = ms < 0 ? '−' : ms > 0 ? '+' : '';
  const seconds = Math.round(Math.abs(ms) / 1000);
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3600), Math.floor(seconds / 86_400)];
  const two = (value: number) => String(value).padStart(2, '0');
  if (days >= 2) return `${sign}${days}d${hours % 24 ? ` ${hours % 24}h` : ''}`;
  if (hours) return `${sign}${hours}:${two(minutes % 60)}:${two(seconds % 60)}`;
  return `${sign}${minutes}:${two(seconds % 60)}`;
}

/** A part of the axis that was dragged over, as a range of a side; undefined: it was a click. */
export function draggedOf(
  range: Range,
  axis: Range,
  parts: readonly [number, number],
  nowMs: number,
): Range | undefined {
  const [low, high] = parts[0] < parts[1] ? parts : [parts[1], parts[0]];
  if (high - low < 0.01) return undefined;
  const at = (part: number) => range.from + axis.from + part * (axis.to - axis.from);
  // Whole seconds: an address with milliseconds says no more.
  const whole = (ms: number) => Math.round(ms / 1000) * 1000;
  const [from, to] = [Math.max(0, whole(at(low))), Math.min(whole(at(high)), Math.max(nowMs, range.to))];
  return to - from >= 1000 ? { from, to } : undefined;
}

/** An end of a range. */
export type Edge = 'from' | 'to';

/** Least length of a range that is chosen on a strip. Unit: milliseconds. */
const LEAST_MS = 1000;

/**
 * A range with one end moved, by so much: within the axis, not past now, and never past its other
 * end. `axis` is that of the range as it was, which `start` is the start of.
 */
export function movedEdge(
  range: Range,
  { axis, start, nowMs }: { axis: Range; start: number; nowMs: number },
  edge: Edge,
  byMs: number,
): Range {
  const [first, last] = [Math.max(0, start + axis.from), Math.min(start + axis.to, Math.max(nowMs, range.to))];
  const [low, high] = edge === 'from' ? [first, range.to - LEAST_MS] : [range.from + LEAST_MS, last];
  const moved = Math.round((range[edge] + byMs) / 1000) * 1000;
  return { ...range, [edge]: Math.max(low, Math.min(high, moved)) };
}

/** When a value of a label was seen: from the first to behind the last step with weight. */
export function seenOf(
  answer: {
    startUnixNs: bigint;
    stepNs: bigint;
    lines: readonly { labels: Record<string, string>; weights: readonly bigint[]; rest: boolean }[];
  },
  label: string,
): Map<string, Range> {
  const [start, step] = [toMs(answer.startUnixNs), Number(answer.stepNs) / 1e6];
  const seen = new Map<string, Range>();
  for (const line of answer.lines) {
    const name = line.labels[label] ?? '';
    const first = line.weights.findIndex((weight) => weight > 0n);
    if (line.rest || name === '' || first < 0) continue;
    const last = line.weights.findLastIndex((weight) => weight > 0n);
    seen.set(name, { from: start + first * step, to: start + (last + 1) * step });
  }
  return seen;
}

/**
 * The range of the side of a version: the one that is looked at, if the version ran in most of it;
 * otherwise as much time at the end of when it ran.
 */
export function rangeOfVersion(seen: Range, range: Range): Range {
  const length = range.to - range.from;
  const both = Math.min(seen.to, range.to) - Math.max(seen.from, range.from);
  if (both >= length / 2) return range;
  return { from: Math.max(seen.from, seen.to - length), to: seen.to };
}
