// Slice of the state: what of the data is looked at, and from where.

import type { Transform } from '../flame/transforms';

export type View =
  | 'overview'
  | 'profile'
  | 'compare'
  | 'cgroups'
  | 'hosts'
  | 'captures'
  | 'pins'
  | 'alerts'
  | 'incidents'
  | 'views'
  | 'collector';
type Side = 'during' | 'before';
export type Panel = 'flame' | 'both' | 'table';

export interface ViewState {
  view: View;
  panel: Panel;
  /** Lines of the chart that are hidden, by name. */
  hidden: string[];
  search: string;
  regex: boolean;
  /** Path of hashes to the frame that fills the width. */
  zoom: string;
  /** A part of the width that is no frame's: start and end as fractions. */
  pan: string;
  /** What is done to stacks before they are drawn, in this order. */
  transforms: Transform[];
  /** Function of the sandwich; empty: none. */
  fn: string;
  /** As `zoom`, in the graph of its callers; `zoom` is in that of its callees. */
  callers: string;
  /** What rows of the table are: `function`, `module` or a label. */
  rows: string;
  sort: string;
  filter: string;
  /** Rows of a comparison within the noise are not shown. */
  sure: boolean;
  /** Number of the capture that is looked at; empty: the list of captures. */
  capture: string;
  /** Which time of the capture: what it took, or what flight recorders had of the time before. */
  side: Side;
  /** Number of the pin that is looked at; empty: the list of pins. */
  pin: string;
  /** What of a pin, kept in an incident or not: its minutes, or what was captured when it fired. */
  part: '' | 'captured';
  /** Number of the incident that is looked at; empty: the list of incidents. */
  incident: string;
  /** Number of the evidence of the incident that is looked at; empty: its timeline. */
  evidence: string;
  /** Number of the snapshot that is looked at; empty: the list of saved views. */
  saved: string;
  /**
   * Which are listed. Pins: all, or those of the range. Alerts: those of now, or those of the range
   * too. Incidents: the open ones (`all`), or the closed ones too (`range`).
   */
  pinTimes: 'all' | 'range';
  /** Rows of a tree that were opened or closed by hand. */
  toggled: string[];
}

export const VIEW_DEFAULTS: ViewState = {
  view: 'profile',
  panel: 'both',
  hidden: [],
  search: '',
  regex: false,
  zoom: '',
  pan: '',
  transforms: [],
  fn: '',
  callers: '',
  rows: 'function',
  sort: '',
  filter: '',
  sure: false,
  capture: '',
  side: 'during',
  pin: '',
  incident: '',
  evidence: '',
  saved: '',
  part: '',
  pinTimes: 'all',
  toggled: [],
};
