// Slice of the state: which data are looked at. A change of it asks the collector again.

export interface FrameFilter {
  op: 'keep' | 'drop';
  regex: string;
}

/**
 * None, as much time right before, the same time an hour, a day or a week before, or the time up to
 * the last deploy.
 */
export type Baseline = 'none' | 'previous' | 'hour' | 'day' | 'week' | 'deploy';

export interface SelectionState {
  /** The range, as written. */
  from: string;
  to: string;
  /** Refreshes with every window. */
  live: boolean;
  /** Id of a profile type of other senders or of captures; empty: CPU of agents. */
  type: string;
  /** Selector text. */
  query: string;
  /** Applied by the collector, in order. */
  filters: FrameFilter[];
  /** Label that the chart is grouped by; empty: one line. */
  by: string;
  /** Label between root and stacks; empty: none. */
  root: string;
  /** The other side of a comparison; empty: the baseline's range, the same selector. */
  bfrom: string;
  bto: string;
  bquery: string | undefined;
  /** What charts, tables and the overview compare with. */
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
  type: '',
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
