// What changed between two profiles, by function: rows of a table, from the collector or from a
// graph of both.

import type { DiffResponse, OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import { KIND } from '../query/outcome';
import { lostPart } from '../query/quality';
import * as format from '../text/format';
import { toMs } from '../time/range';
import type { Chart } from '../time/series';

/** How many standard errors a share must move: 95 % of chance stays below. */
const SIGNIFICANT_ERRORS = 1.96;

/** Half the width of the 95 % interval of a change with this standard error. */
export const error95 = (stdError: number) => SIGNIFICANT_ERRORS * stdError;

/** A function before and after. */
export interface ChangeRow {
  name: string;
  module: string;
  kind: number;
  /** Weight of its own. */
  before: number;
  after: number;
  /** Standard error of the change of its share. */
  shareError: number;
  significant: boolean;
  appeared: boolean;
  vanished: boolean;
}

/** One side of a comparison. */
export interface Side {
  /** Samples taken; lost ones do not count. */
  samples: number;
  weight: number;
  /** Parts of its time that the error is from; less than 2: it is that of sampling alone. */
  parts: number;
  /** Groups of hosts that the error is from as well. */
  hostParts: number;
  /** Part of it that was lost. */
  lost: number;
}

export interface Changes {
  before: Side;
  after: Side;
  rows: ChangeRow[];
  leftOut: number;
  /** Most hosts of one side are not those of the other. */
  hostsDiffer: boolean;
}

/** As the collector tells them. */
export function changesOf(answer: DiffResponse): Changes {
  const side = (of: 'before' | 'after'): Side => {
    const sampled = of === 'before' ? answer.beforeSampled : answer.afterSampled;
    return {
      samples: Number(sampled?.count ?? 0n),
      weight: Number(sampled?.weight ?? 0n),
      parts: sampled?.parts ?? 0,
      hostParts: sampled?.hostParts ?? 0,
      lost: lostPart(answer[of]?.sampling),
    };
  };
  return {
    before: side('before'),
    after: side('after'),
    rows: answer.rows.map((row) => ({
      name: row.name,
      module: row.module,
      kind: row.kind,
      before: Number(row.beforeSelfWeight),
      after: Number(row.afterSelfWeight),
      shareError: row.shareError,
      significant: row.significant,
      appeared: row.appeared,
      vanished: row.vanished,
    })),
    leftOut: Number(answer.rowsLeftOut),
    hostsDiffer: answer.hostsDiffer,
  };
}

/** Rows that are no code: what was lost, cut, folded, or has no name. */
export const isCode = (row: Pick<ChangeRow, 'kind'>) => row.kind !== KIND.synthetic;

/** What of a row each side had, of what the side had in all. `rates`: that; `[1, 1]` for shares. */
export function partsOf(
  row: Pick<ChangeRow, 'before' | 'after'>,
  { before, after }: Changes,
  rates: readonly [number, number],
): [was: number, is: number] {
  return [
    before.weight > 0 ? (row.before / before.weight) * rates[0] : 0,
    after.weight > 0 ? (row.after / after.weight) * rates[1] : 0,
  ];
}

/** A row as it is shown: in cores, or in shares. */
export interface Shown {
  key: string;
  name: string;
  module: string;
  was: number;
  is: number;
  change: number;
  /** Standard error of the change; undefined: it is not known. */
  error: number | undefined;
  significant: boolean;
  appeared: boolean;
  vanished: boolean;
  /** When it started, in words; undefined: nobody looked. */
  since: string | undefined;
}

/** Functions or modules, in cores where `rates` are given. */
export function shownOf(changes: Changes, rates: readonly [number, number] | undefined): Shown[] {
  const scale = rates ? Math.max(rates[0], rates[1]) : 1;
  return changes.rows.filter(isCode).map((row) => {
    const [was, is] = partsOf(row, changes, rates ?? [1, 1]);
    return {
      key: `${row.kind} ${row.module} ${row.name}`,
      name: row.name,
      module: row.module,
      was,
      is,
      change: is - was,
      error: row.shareError * scale,
      significant: row.significant,
      appeared: row.appeared,
      vanished: row.vanished,
      since: undefined,
    };
  });
}

/**
 * Values of a label, in cores, or as shares of `wholes`. The change of cores is that of the part of
 * the range that differs most, as the overview has it; shares have no error of their own.
 */
export function shownRows(rows: readonly OverviewRow[], wholes: readonly [number, number] | undefined): Shown[] {
  return rows.map((row) => {
    const { change } = row;
    const [was, is] = wholes
      ? [wholes[0] > 0 ? row.baselineCores / wholes[0] : 0, wholes[1] > 0 ? row.cores / wholes[1] : 0]
      : [row.baselineCores, row.cores];
    const significant = change?.significant === true;
    const since = change && significant && change.sinceUnixNs !== 0n ? format.time(toMs(change.sinceUnixNs)) : '';
    return {
      key: row.name,
      name: row.name,
      module: '',
      was,
      is,
      change: !wholes && significant && change ? change.cores : is - was,
      error: wholes ? undefined : change?.error,
      significant,
      appeared: change?.appeared === true,
      vanished: change?.vanished === true,
      since,
    };
  });
}

/**
 * Values of a label by their means on both sides, and how many are among the rest of one side,
 * where nobody knows what they have. `ofWhole`: as shares of each side.
 */
export function shownMeans(before: Chart, after: Chart, ofWhole: boolean): { rows: Shown[]; leftOut: number } {
  const meansOf = (chart: Chart) => {
    const whole = ofWhole ? chart.lines.reduce((sum, line) => sum + line.mean, 0) : 1;
    const own = chart.lines.filter((line) => !line.rest);
    return new Map(own.map((line) => [line.name, whole > 0 ? line.mean / whole : 0]));
  };
  const [was, is] = [meansOf(before), meansOf(after)];
  const isKnown = (name: string) =>
    (was.has(name) || before.restLines === 0) && (is.has(name) || after.restLines === 0);
  const names = [...new Set([...was.keys(), ...is.keys()])];
  const rows = names.filter(isKnown).map((name) => {
    const sides = [was.get(name) ?? 0, is.get(name) ?? 0] as const;
    return {
      key: name,
      name,
      module: '',
      was: sides[0],
      is: sides[1],
      change: sides[1] - sides[0],
      error: undefined,
      significant: false,
      appeared: !was.has(name),
      vanished: !is.has(name),
      since: undefined,
    };
  });
  return { rows, leftOut: Math.max(before.restLines, after.restLines) };
}
