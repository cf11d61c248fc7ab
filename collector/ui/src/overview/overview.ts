// What an overview says: lines with their gaps, changes in words, and where each leads.

import { escapeRegex } from '../flame/search';
import type { Annotation } from '../gen/fleetprof/collector/v1/annotations_pb';
import type { Change, OverviewFunction, OverviewResponse, OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import { type Matcher, withMatcher } from '../query/selector';
import type { Selection } from '../query/selection';
import type { State } from '../state/address';
import { error95 } from '../tables/changes';
import * as format from '../text/format';
import { type Range, absoluteSpec, toMs } from '../time/range';
import type { Band } from '../time/series';

export const isSignificant = (row: OverviewRow) => row.change?.significant === true;

/** How large a change is, of what was: `+62 %`; nothing where nothing was. */
export function relative(change: number, was: number): string {
  if (!(was > 0.001) || cores(change) === '0') return '';
  const percent = (change / was) * 100;
  const size = Math.abs(percent);
  return `${percent < 0 ? '−' : '+'}${size < 10 ? size.toFixed(1) : Math.round(size)} %`;
}

/** Cores: three digits, and no more of small numbers than matter. */
export const cores = (value: number) => format.significant(Math.abs(value) < 0.0005 ? 0 : value);

/** `+1.25`, or `±0` of what is too small to be shown. */
export function signed(value: number): string {
  const size = cores(Math.abs(value));
  return `${size === '0' ? '±' : value < 0 ? '−' : '+'}${size}`;
}

/** `± 0.08`: the 95 % error of a standard error, with as many decimals as tell something. */
export function error(stdError: number): string {
  const width = error95(stdError);
  return `± ${width < 0.1 ? width.toFixed(3) : width.toFixed(2)}`;
}

/** When a change began: `since 14:22:00`. */
export function when(change: Pick<Change, 'sinceUnixNs' | 'untilUnixNs'>): string {
  const time = (ns: bigint) => format.time(toMs(ns));
  const since = change.sinceUnixNs === 0n ? 'since before this range' : `since ${time(change.sinceUnixNs)}`;
  return change.untilUnixNs === 0n ? since : `${since}, until ${time(change.untilUnixNs)}`;
}

/** What a row is now, in words. */
export function kindOf(change: Change): 'new' | 'gone' | 'more' | 'less' {
  if (change.appeared) return 'new';
  if (change.vanished) return 'gone';
  return change.cores < 0 ? 'less' : 'more';
}

/** A selection of what a row is of. */
function selected(query: string, label: string, name: string): string {
  return withMatcher(query, { label, op: '=', value: name } satisfies Matcher);
}

/** Most hosts that a selection names. */
const HOSTS_MAX = 20;

/** Hosts by name, as a pattern of selectors: it matches all of a name. */
const oneOf = (hosts: readonly string[]) => hosts.map(escapeRegex).join('|');

/**
 * Shows what a row is made of, compared with its baseline: where it changed, by function. `hosts`:
 * where it changed, of how many `all`. What changed on few is lost among the others.
 */
export function comparedWith(
  of: { query: string; label: string; name: string; hosts?: readonly string[]; all?: number },
  change: Change | undefined,
  baseline: Range,
  range: Range,
): Partial<State> {
  let query = selected(of.query, of.label, of.name);
  const hosts = of.hosts ?? [];
  if (hosts.length === 1) query = selected(query, 'host', hosts[0]);
  else if (hosts.length > 1 && hosts.length <= HOSTS_MAX && hosts.length * 2 <= (of.all ?? 0))
    query = withMatcher(query, { label: 'host', op: '=~', value: oneOf(hosts) });
  const ms = (ns: bigint, otherwise: number) => (ns === 0n ? otherwise : toMs(ns));
  const after = change
    ? { from: ms(change.sinceUnixNs, range.from), to: ms(change.untilUnixNs, range.to) }
    : { from: range.from, to: range.to };
  const was = absoluteSpec(baseline);
  return {
    view: 'compare',
    query,
    bquery: undefined,
    ...absoluteSpec(after),
    bfrom: was.from,
    bto: was.to,
    filters: [],
    live: false,
  };
}

/** The profiles that such a comparison is made of. */
export function keptOf(to: Partial<State>): { before: Selection; after: Selection } {
  const of = (from: string | undefined, until: string | undefined): Selection => ({
    // Times of a comparison are written out.
    range: { from: Date.parse(from ?? ''), to: Date.parse(until ?? '') },
    query: to.query ?? '',
    filters: [],
  });
  return { before: of(to.bfrom, to.bto), after: of(to.from, to.to) };
}

/** Shows the profile of a row. */
export function profileOf(query: string, label: string, name: string): Partial<State> {
  return { view: 'profile', query: selected(query, label, name), zoom: '', transforms: [], fn: '', search: '' };
}

/** A function in the comparison of its service. */
export function functionIn(
  answer: OverviewResponse,
  row: OverviewFunction,
  query: string,
  label: string,
  baseline: Range,
  range: Range,
): Partial<State> {
  const service = answer.services.find((one) => one.name === row.service);
  const of = { query, label, name: row.service, hosts: service?.changedHosts, all: service?.hosts };
  return { ...comparedWith(of, service?.change, baseline, range), search: row.name, regex: false };
}

/** SVG path of a line. Steps without data are left out. Unit of y: parts of the height. */
export function paths(steps: readonly number[], most: number): string {
  let path = '';
  let open = false;
  for (const [at, value] of steps.entries()) {
    if (value < 0) {
      open = false;
      continue;
    }
    const y = most > 0 ? 1 - Math.min(1, value / most) : 1;
    path += `${open ? 'L' : 'M'}${at} ${round(y)}L${at + 1} ${round(y)}`;
    open = true;
  }
  return path;
}

/** True when something is known of a line. */
export const hasSteps = (steps: readonly number[]) => steps.some((value) => value >= 0);

/** Runs of steps without data: first, and behind the last. */
export function dark(steps: readonly number[]): [number, number][] {
  const runs: [number, number][] = [];
  for (const [at, value] of steps.entries()) {
    if (value >= 0) continue;
    const last = runs.at(-1);
    if (last && last[1] === at) last[1] = at + 1;
    else runs.push([at, at + 1]);
  }
  return runs;
}

/** Times as parts of a line of steps, for what is drawn over it. */
export function placed(bands: readonly Band[], startMs: number, stepMs: number, steps: number): [number, number][] {
  const at = (ms: number) => Math.max(0, Math.min(steps, (ms - startMs) / Math.max(stepMs, 1)));
  return bands.map((band): [number, number] => [at(band.fromMs), at(band.toMs)]).filter(([from, to]) => to > from);
}

const round = (value: number) => Math.round(value * 1000) / 1000;

/** The largest of both lines. */
export function mostOf(row: OverviewRow): number {
  return [...row.steps, ...row.baselineSteps].reduce((most, value) => Math.max(most, value), 0);
}

/** How a line is told to those who do not see it. */
export function spoken(row: OverviewRow): string {
  const known = row.steps.filter((value) => value >= 0);
  if (!known.length) return 'no data';
  const [least, most] = [Math.min(...known), Math.max(...known)];
  return `between ${cores(least)} and ${cores(most)} cores; before, ${cores(row.baselineCores)} on average`;
}

/** How long before a change a deploy may have started to be named with it. Unit: milliseconds. */
export const BEFORE_MS = 15 * 60_000;

/** Labels that say which service a deploy was of, besides the one that rows are told apart by. */
const OF_SERVICE = ['service', 'unit', 'image', 'container_name'];

/**
 * The deploy that a change followed, if there was one: of the service, or of half of the hosts that
 * changed, where it does not say which service it was of. Of several the last before the change.
 */
export function deployBefore(
  row: OverviewRow,
  label: string,
  stepNs: bigint,
  events: readonly Annotation[],
): Annotation | undefined {
  const since = row.change?.sinceUnixNs ?? 0n;
  if (!row.change?.significant || since === 0n) return undefined;
  // A change is known to a step, and noise at its edge may cost another.
  const [from, to] = [since - BigInt(BEFORE_MS) * 1_000_000n, since + 2n * stepNs];
  const isOfRow = (one: Annotation) => {
    const own = one.labels[label];
    if (own !== undefined) return own === row.name;
    if (OF_SERVICE.some((name) => one.labels[name] !== undefined && name !== label)) {
      // Of a service by another label: it is this one if it was where it changed.
      return onHosts(one, row) === 1;
    }
    return one.labels.agent_version === undefined && onHosts(one, row) >= 0.5;
  };
  const found = events.filter(
    (one) => one.kind === 'deploy' && one.startUnixNs >= from && one.startUnixNs <= to && isOfRow(one),
  );
  return found.sort((one, other) => Number(other.startUnixNs - one.startUnixNs))[0];
}

/** The share of the hosts that changed on which a deploy was seen. */
function onHosts(one: Annotation, row: OverviewRow): number {
  if (row.changedHosts.length === 0 || one.hostNames.length === 0) return 0;
  const on = new Set(one.hostNames);
  return row.changedHosts.filter((host) => on.has(host)).length / row.changedHosts.length;
}
