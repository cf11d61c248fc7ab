// Keys of a chart: arrows move along its steps, Enter starts a range and ends it.

import { useState } from 'preact/hooks';

const MOVES: Record<string, number> = {
  ArrowLeft: -1,
  ArrowRight: 1,
  PageUp: -10,
  PageDown: 10,
  Home: -Infinity,
  End: Infinity,
};

/** What the label of a chart says of its keys. */
export const KEYS_TOLD = 'Arrow keys move along it, Enter starts and ends a range';

/** Where keys are on a chart: they come from its start or its end, as they lead. */
export interface RangeKeys {
  /** The step; undefined: nowhere. */
  cursor?: number | undefined;
  /** Where a range was started. */
  anchor?: number | undefined;
}

/**
 * Where a key leads; `chosen`: it ends a range, of which this is the last step. Undefined: none of
 * them.
 */
export function moved(
  { cursor, anchor }: RangeKeys,
  key: string,
  steps: number,
): (RangeKeys & { chosen?: boolean }) | undefined {
  const by = MOVES[key];
  if (by !== undefined) {
    const from = cursor ?? (by > 0 ? -1 : steps);
    return { cursor: Math.max(0, Math.min(steps - 1, from + by)), anchor };
  }
  if (cursor === undefined) return undefined;
  if (key === 'Enter') return anchor === undefined ? { cursor, anchor: cursor } : { cursor, anchor, chosen: true };
  return key === 'Escape' ? {} : undefined;
}

/** Follows the keys of a chart of so many steps. `choose`: from a step to before another. */
export function useRangeKeys(steps: number, choose: (from: number, until: number) => void) {
  const [at, setAt] = useState<RangeKeys>({});
  const { cursor, anchor = cursor } = at;
  // Steps that are picked, or the one where the keys are.
  const marked: readonly [number, number] | undefined =
    cursor === undefined || anchor === undefined || cursor >= steps
      ? undefined
      : [Math.min(cursor, anchor), Math.max(cursor, anchor) + 1];
  const onKeyDown = (event: KeyboardEvent) => {
    const next = moved(at, event.key, steps);
    if (!next || event.ctrlKey || event.metaKey || event.altKey) return;
    if (next.chosen && marked) choose(...marked);
    setAt(next.chosen ? {} : next);
    event.preventDefault();
    event.stopPropagation();
  };
  return { cursor: marked && cursor, marked, onKeyDown, onBlur: () => setAt({}) };
}
