// Lines of a series as a chart needs them: in cores, stacked, with colours that stay.

import type { DataQuality, SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import * as format from '../text/format';
import { hash } from '../text/hash';
import { toMs } from './range';

export interface Line {
  /** Value of the label it is grouped by. */
  name: string;
  rest: boolean;
  /** Rate in each step: cores, or events a second. NaN: it is not known. */
  rates: Float64Array;
  /** Sum over the steps that count for the mean, in the data's unit. */
  total: number;
  /** Mean over these steps, of the time they cover. NaN: there is none. */
  mean: number;
  colour: number;
}

/**
 * What a step can say: its rates, nothing because nobody sent anything, or too little because
 * samples were lost.
 */
export type StepState = 'known' | 'none' | 'lost';

/** From which lost part of what the hosts took a step is not believed. */
export const LOST_FROM = 0.1;

/**
 * Time of windows that the newest step must have on each host to be drawn, or nine tenths of it:
 * with those of some hosts alone its lines do not compare. Unit: nanoseconds.
 */
const ARRIVED_NS = 30e9;

export interface Chart {
  /** Start of each step, and the end of the last. Unit: seconds since the epoch. */
  times: number[];
  stepMs: number;
  lines: Line[];
  restLines: number;
  total: number;
  unit: string;
  states: StepState[];
  /** Lost part of what the hosts of each step took. */
  lost: Float64Array;
  /**
   * Time with windows in the steps, and what of it has too many samples lost. Unit: nanoseconds.
   */
  coveredNs: number;
  lostNs: number;
  /** Rates are the kernel's accounts: right also where samples were lost. */
  accounted: boolean;
}

/** Colours of lines; the last is that of the rest. */
export const COLOURS: readonly string[] = [
  '#3f7fd6',
  '#e2803a',
  '#4aa568',
  '#c75b7a',
  '#8f74d1',
  '#c2a02e',
  '#3aa6ad',
  '#a5694a',
  '#6d94c4',
  '#b5577f',
  '#7a9a3c',
  '#d0693d',
  '#5b6fc0',
  '#3f8f7d',
  '#b08bbd',
];
export const REST_COLOUR = '#9aa3ae';

/** Most steps taken: more than a screen has columns. */
export const STEPS_MAX = 20_000;

/**
 * How long windows may be under way: one that is open, and one that is being sent. Unit:
 * milliseconds. Steps that end later and have nothing yet are not drawn: they would look as if all
 * had stopped.
 */
export const ARRIVING_MS = 20_000;

/** The chart of an answer. Lines stand heaviest first, the rest last. */
export function chartOf(answer: SeriesResponse, by: string, nowMs: number): Chart {
  const stepNs = Number(answer.stepNs);
  const stepMs = stepNs / 1e6;
  const longest = answer.lines.reduce((most, line) => Math.max(most, line.weights.length), answer.steps.length);
  const startMs = toMs(answer.startUnixNs);
  let steps = stepMs > 0 ? Math.min(STEPS_MAX, longest) : 0;
  // By step: time of its windows for each host that covers it. A collector that does not tell
  // covers all.
  const told = answer.steps.length > 0;
  const hosts = (step: number) => (told ? Number(answer.steps[step]?.hosts ?? 0n) : 1);
  const covered = (step: number) =>
    told ? Number(answer.steps[step]?.coveredNs ?? 0n) / Math.max(1, hosts(step)) : stepNs;
  const empty = (step: number) => answer.lines.every((line) => (line.weights[step] ?? 0n) === 0n);
  const arrived = (step: number) => (told ? covered(step) >= Math.min(ARRIVED_NS, 0.9 * stepNs) : !empty(step));
  while (steps > 1 && startMs + steps * stepMs > nowMs - ARRIVING_MS && !arrived(steps - 1)) steps--;
  const times = Array.from({ length: steps + 1 }, (_, at) => (startMs + at * stepMs) / 1000);
  const lost = Float64Array.from({ length: steps }, (_, at) => {
    const { weight = 0n, lostWeight = 0n } = answer.steps[at] ?? {};
    return weight > 0n ? Number(lostWeight) / Number(weight) : 0;
  });
  const states: StepState[] = [];
  for (let at = 0; at < steps; at++) {
    // A window that started in a step before has the samples of this one: it is as good.
    if (hosts(at) > 0 && covered(at) === 0) {
      states.push(states[at - 1] ?? 'none');
      lost[at] = lost[at - 1] ?? 0;
    } else states.push(hosts(at) === 0 ? 'none' : lost[at] >= LOST_FROM ? 'lost' : 'known');
  }
  // What rates are of. Windows that are longer than the step bring more than its time. Where less
  // is there, it is missing on all hosts alike at the start and the end of the data; elsewhere on
  // some, which is a gap of theirs: the lines of the others are as they were.
  const timeAt = (at: number) => {
    const isEdge = at === steps - 1 || states[at - 1] === 'none' || states[at + 1] === 'none' || hosts(at) === 1;
    return isEdge ? covered(at) : Math.max(covered(at), covered(at) > 0 ? stepNs : 0);
  };
  const timeOf = (state: StepState) => states.reduce((sum, one, at) => sum + (one === state ? timeAt(at) : 0), 0);
  const lostNs = timeOf('lost');
  // Accounts are believed where samples are not.
  const isKnown = (state: StepState) => state === 'known' || (answer.accounted && state === 'lost');
  const knownNs = timeOf('known') + (answer.accounted ? lostNs : 0);
  const unit = answer.quality?.unit;
  const lines: Line[] = answer.lines.map((line) => {
    const weight = (at: number) => Number(line.weights[at] ?? 0n);
    const rates = new Float64Array(steps);
    for (let at = 0; at < steps; at++) {
      // Where all was lost, 0 would say that it stopped.
      if (states[at] === 'none' || (!isKnown(states[at]) && empty(at) && covered(at) > 0)) rates[at] = Number.NaN;
      else rates[at] = covered(at) > 0 ? rate(weight(at), timeAt(at), unit) : rates[at - 1];
    }
    const total = states.reduce((sum, state, at) => sum + (isKnown(state) ? weight(at) : 0), 0);
    return {
      name: line.rest ? 'rest' : (line.labels[by] ?? ''),
      rest: line.rest,
      rates,
      total,
      mean: knownNs > 0 ? rate(total, knownNs, unit) : Number.NaN,
      colour: -1,
    };
  });
  // Where nothing was selected and not all is known, 0 is what is known, and nothing what is not.
  if (!lines.length && states.includes('lost')) {
    const rates = Float64Array.from(states, (state) => (isKnown(state) ? 0 : Number.NaN));
    lines.push({ name: '', rest: false, rates, total: 0, mean: knownNs > 0 ? 0 : Number.NaN, colour: -1 });
  }
  const heaviest = new Map(lines.map((line, at) => [line, Number(answer.lines[at]?.totalWeight ?? 0n)]));
  const byWeight = (left: Line, right: Line) =>
    right.total - left.total || (heaviest.get(right) ?? 0) - (heaviest.get(left) ?? 0);
  lines.sort(
    (left, right) =>
      Number(left.rest) - Number(right.rest) || byWeight(left, right) || (left.name < right.name ? -1 : 1),
  );
  colour(lines);
  return {
    times,
    stepMs,
    lines,
    restLines: Number(answer.restLines),
    total: lines.reduce((sum, line) => sum + line.total, 0),
    unit: unit ?? 'nanoseconds',
    states,
    lost,
    coveredNs: timeOf('known') + lostNs,
    lostNs,
    accounted: answer.accounted,
  };
}

/**
 * What the chart does not know, in words; empty where it is all there. `rangeNs`: the range that
 * was asked for.
 */
export function missing(chart: Chart, rangeNs: number): string {
  const parts: string[] = [];
  // A window at each end may lie half outside.
  if (chart.coveredNs < rangeNs - 2e10 - 0.005 * rangeNs)
    parts.push(`covered ${roughly(chart.coveredNs)} of ${roughly(rangeNs)}`);
  if (chart.lostNs > 0)
    parts.push(`samples lost in ${roughly(chart.lostNs)}${chart.accounted ? ', CPU is exact' : ''}`);
  return parts.join(' · ');
}

/** A baseline as the chart that it stands behind has it. */
export interface Ghost {
  /** Rate in each of its steps. NaN: there are no data. */
  rates: Float64Array;
  /** Time without data of the baseline, at its place in the chart. */
  missing: Band[];
  /** Mean over the time that it covers; NaN: there is none. */
  mean: number;
  /** Mean of each line, by its ID. */
  means: ReadonlyMap<string, number>;
}

/**
 * Lays a baseline behind a chart: its first moment at that of the range, whatever steps either has.
 * `hidden`: IDs of lines that are not shown.
 */
export function ghostOf(
  chart: Chart,
  was: Chart,
  ranges: { now: number; was: number },
  hidden: readonly string[],
): Ghost {
  const lines = was.lines.filter((line) => !hidden.includes(idOf(line)));
  // Without lines nothing ran where there are data: that is 0, and not unknown.
  const sums = Float64Array.from(was.states, (state, step) =>
    state === 'none' ? Number.NaN : lines.length ? sumAt(lines, step) : 0,
  );
  const steps = chart.times.length - 1;
  const rates = Float64Array.from({ length: Math.max(0, steps) }, (_, step) => {
    // The middle of a step: what comes first or last in it does not decide.
    const at = chart.times[step] * 1000 + chart.stepMs / 2 - ranges.now + ranges.was;
    const of = Math.floor((at - was.times[0] * 1000) / was.stepMs);
    return sums[of] ?? Number.NaN;
  });
  const missing: Band[] = [];
  rates.forEach((value, step) => {
    if (!Number.isNaN(value)) return;
    const [fromMs, toMs] = [chart.times[step] * 1000, chart.times[step + 1] * 1000];
    const last = missing.at(-1);
    if (last && last.toMs === fromMs) last.toMs = toMs;
    else missing.push({ fromMs, toMs, state: 'none' });
  });
  const known = lines.filter((line) => Number.isFinite(line.mean));
  return {
    rates,
    missing,
    mean:
      known.length || (!lines.length && was.coveredNs > 0)
        ? known.reduce((sum, line) => sum + line.mean, 0)
        : Number.NaN,
    means: new Map(was.lines.map((line) => [idOf(line), line.mean])),
  };
}

/** The lines of a step together; NaN: none is known. */
export function sumAt(lines: readonly Line[], step: number): number {
  let [sum, known] = [0, false];
  for (const line of lines) {
    const rate = line.rates[step];
    if (Number.isNaN(rate) || rate === undefined) continue;
    sum += rate;
    known = true;
  }
  return known ? sum : Number.NaN;
}

/** Seconds do not matter beside minutes, nor minutes beside days. */
function roughly(ns: number): string {
  const unit = ns < 120e9 ? 1e9 : ns < 48 * 3600e9 ? 60e9 : 3600e9;
  return format.duration(Math.round(ns / unit) * unit);
}

/** Cores (or events a second) that an answer has on average; NaN where nothing is known. */
export function meanOf(answer: SeriesResponse, nowMs: number): number {
  const chart = chartOf(answer, '', nowMs);
  return chart.lines.reduce((sum, line) => sum + line.mean, chart.lines.length ? 0 : Number.NaN);
}

/** Part of all that the hosts of a selection took which was lost. */
export function hostsLost(answer: SeriesResponse | undefined): number {
  const sum = (of: 'weight' | 'lostWeight') =>
    (answer?.steps ?? []).reduce((total, step) => total + Number(step[of]), 0);
  const weight = sum('weight');
  return weight > 0 ? sum('lostWeight') / weight : 0;
}

/** Times of neighbouring steps in the same state, but for those that are known. */
export interface Band {
  fromMs: number;
  toMs: number;
  state: 'none' | 'lost';
}

export function bandsOf(chart: Chart): Band[] {
  const bands: Band[] = [];
  chart.states.forEach((state, at) => {
    if (state === 'known') return;
    const [fromMs, toMs] = [chart.times[at] * 1000, chart.times[at + 1] * 1000];
    const last = bands.at(-1);
    if (last && last.state === state && last.toMs === fromMs) last.toMs = toMs;
    else bands.push({ fromMs, toMs, state });
  });
  return bands;
}

function rate(weight: number, ns: number, unit: string | undefined): number {
  return (weight / ns) * (unit === 'nanoseconds' || !unit ? 1 : 1e9);
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

/** What the rest is called in the address: it cannot be a label's value. */
export const REST_ID = '\u0000rest';

/** What a line is called in the address. */
export function idOf(line: Line): string {
  return line.rest ? REST_ID : line.name;
}

/**
 * Upper edges of the lines when they stand on each other, in the order of `lines`; NaN where
 * nothing is known.
 */
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
    .map((gap) => ({
      fromMs: toMs(gap.startUnixNs),
      toMs: toMs(gap.endUnixNs),
      hosts: [gap.hostname || gap.hostId],
      causes: [gap.cause],
    }))
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
  absent: 'the host has sent nothing (yet)',
  spool_bytes: 'the host’s spool was full, so its oldest windows were dropped',
  spool_age: 'windows waited on the host longer than its spool keeps them',
  disk_full: 'the host’s disk was full',
  damaged: 'the spool on the host was damaged',
  unsaved: 'the daemon was killed: its open window was lost',
  refused: 'the collector refused the windows: too old, or from the future',
};

/** What a cause means. */
export function causeText(cause: string): string {
  return CAUSES[cause] ?? cause;
}
