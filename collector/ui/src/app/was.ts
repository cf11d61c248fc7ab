// What the selection is held against, for whoever shows it: charts and tables. Who finds it out:
// `Baseline.tsx`.

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import type { Selection } from '../query/selection';

/** What the selection is held against. */
export interface Was {
  /** The same selection at another time. */
  selection: Selection;
  /**
   * Changes when it is to be queried again. What stands before its newline changes only when
   * something else is chosen: of that the answers to this are no baseline.
   */
  key: string;
  /** What it is called within a sentence: `compared with …`. */
  words: string;
  /** The same as a time: `cores in use …`. */
  when: string;
}

/** The baseline, and why there is none where one was chosen. */
export interface BaselineState {
  was: Was | undefined;
  /** When what is selected was deployed last; undefined: it is not known. Unit: milliseconds. */
  deployMs: number | undefined;
  /** Said where the choice cannot be followed; empty: it can. */
  lacks: string;
}

const Context = createContext<BaselineState>({ was: undefined, deployMs: undefined, lacks: '' });

export const BaselineProvider = Context.Provider;

export const useWas = () => useContext(Context);
