// Lines of a series as a chart needs them: in cores, stacked, with colours that stay.

import type { DataQuality, SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { hash } from '../text/hash';
import { toMs } from './range';

export interface Line {
  /** Value of the label it is grouped by. */
  name: string;
  rest: boolean;
  /** Rate in each step: cores, or events a second. */
  rates: Float64Array;
  /** Sum over the range, in the data's unit. */
  total: number;
  colour: number;
}

export interface Chart {
  /** Begin of each step, and the end of the last. Unit: seconds since the epoch. */
  times: number[];
  stepMs: number;
  lines: Line[];
  restLines: number;
  total: number;
  unit: string;
}

/** Colours of lines; the last is that of the rest. */
export const COLOURS: readonly string[] = [
  '#3f7fd6', '#e2803a', '#4aa568', '#c75b7a', '#8f74d1', '#c2a02e', '#3aa6ad', '#a5694a',
  '#6d94c4', '#b5577f', '#7a9a3c', '#d0693d', '#5b6fc0', '#3f8f7d', '#b08bbd',
];
export const REST_COLOUR = '#9aa3ae';

/** Most steps taken: more than a screen has columns. */
export const STEPS_MAX = 20_000;

/**
 * How long windows may be under way: one that is open, and one that is being sent. Unit: milliseconds.
 * Steps that end later and have nothing yet are not drawn: they would look as if all had stopped.
 */
export const ARRIVING_MS = 20_000;

/** The chart of an answer. Lines stand heaviest first, the rest last. */
export function chartOf(answer: SeriesResponse, by: string, nowMs: number): Chart {
  const stepMs = Number(answer.stepNs) / 1e6;
  const longest = answer.lines.reduce((most, line) => Math.max(most, line.weights.length), 0);
  const startMs = toMs(answer.startUnixNs);
  let steps = stepMs > 0 ? Math.min(STEPS_MAX, longest) : 0;
  const empty = (step: number) => answer.lines.every((line) => (line.weights[step] ?? 0n) === 0n);
  while (steps > 1 && startMs + steps * stepMs > nowMs - ARRIVING_MS && empty(steps - 1)) steps--;
  const times = Array.from({ length: steps + 1 }, (_, at) => (startMs + at * stepMs) / 1000);
  const lines = answer.lines.map((line) => ({
    name: line.rest ? 'rest' : (line.labels[by] ?? ''),
    rest: line.rest,
    rates: Float64Array.from({ length: steps }, (_, at) => rate(Number(line.weights[at] ?? 0n), Number(answer.stepNs), answer.quality?.unit)),
    total: Number(line.totalWeight),
    colour: -1,
  }));
  lines.sort((left, right) => Number(left.rest) - Number(right.rest) || right.total - left.total || (left.name < right.name ? -1 : 1));
  colour(lines);
  return {
    times,
    stepMs,
    lines,
    restLines: Number(answer.restLines),
    total: lines.reduce((sum, line) => sum + line.total, 0),
    unit: answer.quality?.unit ?? 'nanoseconds',
  };
}

function rate(weight: number, stepNs: number, unit: string | undefined): number {
  return (weight / stepNs) * (unit === 'nanoseconds' || !unit ? 1 : 1e9);
}

/** By name, so that a line keeps its colour when others come and go. */
function colour(lines: Line[]): void {
  const taken = new Set<number>();
  for (const line of [...lines].sort((left, right) => (left.name < right.name ? -1 : 1))) {
    if (line.rest) continue;
    let at = hash(line.name) % COLOURS.length;
    for (let step = 0; step < COLOURS.length && taken.has(at); step++) at = (at + 1) % COLOURS.length;
    taken.add(at);
    line.colour = at;
  }
}

/** What a line is drawn with. */
export function colourOf(line: Line): string {
  return line.rest ? REST_COLOUR : COLOURS[line.colour];
}

/** What a line is called in the address: that of the rest cannot be a label's value. */
export function idOf(line: Line): string {
  return line.rest ? '\u0000rest' : line.name;
}

/** Upper edges of the lines when they stand on each other, in the order of `lines`. */
export function stacked(lines: readonly Line[], steps: number): Float64Array[] {
  let below = new Float64Array(steps);
  return lines.map((line) => {
    const edge = below.slice();
    for (let at = 0; at < steps; at++) edge[at] += line.rates[at] ?? 0;
    below = edge;
    return edge;
  });
}

/** A time without data of some hosts. */
export interface Gap {
  fromMs: number;
  toMs: number;
  hosts: string[];
  causes: string[];
}

/** Gaps of hosts as ranges of time: those that touch are one. */
export function gapsOf(quality: DataQuality | undefined): Gap[] {
  const gaps = (quality?.gaps ?? [])
    .map((gap) => ({ fromMs: toMs(gap.startUnixNs), toMs: toMs(gap.endUnixNs), hosts: [gap.hostname || gap.hostId], causes: [gap.cause] }))
    .filter((gap) => gap.toMs > gap.fromMs)
    .sort((left, right) => left.fromMs - right.fromMs);
  const merged: Gap[] = [];
  for (const gap of gaps) {
    const last = merged.at(-1);
    if (last && gap.fromMs <= last.toMs) {
      last.toMs = Math.max(last.toMs, gap.toMs);
      last.hosts = [...new Set([...last.hosts, ...gap.hosts])];
      last.causes = [...new Set([...last.causes, ...gap.causes])];
    } else merged.push({ ...gap });
  }
  return merged;
}

const CAUSES: Record<string, string> = {
  absent: 'nothing came from the host (yet)',
  spool_bytes: 'the host’s spool was full, its oldest windows were given up',
  spool_age: 'windows waited on the host for longer than its spool keeps them',
  disk_full: 'the host’s disk was full',
  damaged: 'the spool on the host was damaged',
  unsaved: 'the daemon was killed: the window it was filling went with it',
  refused: 'the collector refused the windows: too old, or from the future',
};

/** What a cause means. */
export function causeText(cause: string): string {
  return CAUSES[cause] ?? cause;
}
