// The collector as the source of a table's sums.

import { top } from '../query/client';
import type { Selection } from '../query/selection';
import { withMatcher } from '../query/selector';
import { getState, setState } from '../state/store';
import type { AskedTable, TopAnswer } from './TopTable';

/** Exact sums of a selection. */
export function collectorTop(selection: Selection, key: string): AskedTable {
  const ask = async (of: Selection, by: string, byTotal: boolean, signal: AbortSignal): Promise<TopAnswer> => {
    const { rows, quality, rowsLeftOut } = await top(of, by, byTotal, signal);
    return {
      rows: (samples) =>
        rows.map((row, at) => ({
          key: String(at),
          name: row.name,
          module: row.module,
          kind: row.kind,
          own: Number(samples ? row.selfCount : row.selfWeight),
          total: Number(samples ? row.totalCount : row.totalWeight),
        })),
      whole: (samples) => Number((samples ? quality?.totalCount : quality?.totalWeight) ?? 0n),
      leftOut: Number(rowsLeftOut),
    };
  };
  return {
    key,
    top: (by, byTotal, signal) => ask(selection, by, byTotal, signal),
    before: ask,
    select: (label, value) => setState({ query: withMatcher(getState().query, { label, op: '=', value }) }),
  };
}
