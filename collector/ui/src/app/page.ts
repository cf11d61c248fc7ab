// What every page is given: the data that are selected. What else a page shows it takes from the
// state.

import type { Draft } from '../capture/form';
import type { Selection } from '../query/selection';
import type { Range } from '../time/range';

export interface PageProps {
  range: Range;
  selection: Selection;
  /** Says what the selection is; changes when it is to be queried again. */
  selectionKey: string;
  /** Names of labels that there are. */
  labels: readonly string[];
  now: () => number;
  /** Opens the dialog that asks for a capture of a selection, with some fields filled in. */
  openCapture: (query: string, change?: Partial<Draft>) => void;
}

/** A text that is the same for equal selections. */
export function keyOf(selection: Selection, turn: number): string {
  return JSON.stringify([
    selection.range,
    selection.query,
    selection.filters,
    turn,
    ...(selection.type ? [selection.type] : []),
  ]);
}
