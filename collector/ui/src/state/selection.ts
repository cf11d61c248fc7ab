// Slice of the state: which data are looked at. A change of it asks the collector again.

export interface FrameFilter {
  op: 'keep' | 'drop';
  regex: string;
}

/** As much time right before, the same time a day before, or a week. */
export type Baseline = 'previous' | 'day' | 'week';

export interface SelectionState {
  /** The range, as written. */
  from: string;
  to: string;
  /** Refreshes with every window. */
  live: boolean;
  /** Selector text. */
  query: string;
  /** Applied by the collector, in order. */
  filters: FrameFilter[];
  /** Label that the chart is grouped by; empty: one line. */
  by: string;
  /** Label between root and stacks; empty: none. */
  root: string;
  /** The other side of a comparison; empty: the range before, the same selector. */
  bfrom: string;
  bto: string;
  bquery: string | undefined;
  /** What the overview compares with. */
  baseline: Baseline;
  /** Label of services; empty: `unit`. */
  services: string;
  /** Part of the heat map that is shown alone; empty: all of its time. */
  pick: string;
}

export const SELECTION_DEFAULTS: SelectionState = {
  from: 'now-1h',
  to: 'now',
  live: false,
  query: '',
  filters: [],
  by: 'host',
  root: '',
  bfrom: '',
  bto: '',
  bquery: undefined,
  baseline: 'previous',
  services: '',
  pick: '',
};
