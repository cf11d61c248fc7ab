// The verdict of a comparison: how much more or less it is, which functions that is, and whether
// any of it is certain.

import { type ChangeRow, type Changes, isCode, partsOf } from './changes';

/** Most functions that an explanation names. */
const NAMED_MAX = 5;

/** An explanation of so much needs no more functions. */
const ENOUGH = 0.8;

/** What explains less is no explanation: the change is spread over many functions. */
const LITTLE = 0.3;

export interface Explanation {
  /** Largest first; all have the sign of the whole change. */
  rows: ChangeRow[];
  /** Part of the whole change. More than 1: others went the other way. */
  part: number;
  /** It is spread over so many functions that none of them explains it. */
  spread: boolean;
}

/** The fewest functions that are most of a change; undefined: nothing changed. */
export function explain(changes: Changes, rates: readonly [number, number]): Explanation | undefined {
  const whole = rates[1] - rates[0];
  if (!Number.isFinite(whole) || whole === 0) return undefined;
  const moved = changes.rows
    .filter(isCode)
    .map((row) => {
      const [was, is] = partsOf(row, changes, rates);
      return { row, part: (is - was) / whole };
    })
    .filter(({ part }) => part > 0)
    .sort((left, right) => right.part - left.part);
  const rows: ChangeRow[] = [];
  let sum = 0;
  for (const { row, part } of moved) {
    // Those that add next to nothing make the sentence longer and no clearer.
    if (rows.length === NAMED_MAX || sum >= ENOUGH || (rows.length > 0 && part < 0.05)) break;
    rows.push(row);
    sum += part;
  }
  return { rows, part: sum, spread: sum < LITTLE };
}

/** Functions that came and that went, for certain. */
export function comings(changes: Changes): { came: number; went: number } {
  const sure = changes.rows.filter((row) => isCode(row) && row.significant);
  return {
    came: sure.filter((row) => row.appeared).length,
    went: sure.filter((row) => row.vanished).length,
  };
}
