// What every page is given.

import type { Draft } from '../capture/form';
import type { Range } from '../time/range';
import type { Selection } from '../query/client';
import type { State } from './state';
import type { SetState } from './store';
import type { Theme } from './theme';

export interface PageProps {
  state: State;
  setState: SetState;
  theme: Theme;
  range: Range;
  selection: Selection;
  /** Says what is asked about; changes when it is to be asked again. */
  selectionKey: string;
  /** Names of labels that there are. */
  labels: readonly string[];
  now: () => number;
  /** Opens the dialog that asks for a capture of a selection, with some fields filled in. */
  openCapture: (query: string, change?: Partial<Draft>) => void;
}

/** A text that is the same for equal selections. */
export function keyOf(selection: Selection, turn: number): string {
  return JSON.stringify([selection.range, selection.query, selection.filters, turn]);
}
