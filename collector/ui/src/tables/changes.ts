// What changed between two profiles, by function: rows of a table, from the collector or from a
// graph of both.

import type { DiffResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { lostPart } from '../query/quality';

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
  /** Part of it that was lost. */
  lost: number;
}

export interface Changes {
  before: Side;
  after: Side;
  rows: ChangeRow[];
  leftOut: number;
}

/** As the collector tells them. */
export function changesOf(answer: DiffResponse): Changes {
  const side = (of: 'before' | 'after'): Side => {
    const sampled = of === 'before' ? answer.beforeSampled : answer.afterSampled;
    return {
      samples: Number(sampled?.count ?? 0n),
      weight: Number(sampled?.weight ?? 0n),
      parts: sampled?.parts ?? 0,
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
  };
}
