// Slice of the state: how data are drawn, and in which unit. The theme belongs here too, but is of
// the browser and not of the link: `theme.ts`.

import type { Compare, Width } from '../flame/diff';

export type Colours = 'kind' | 'module';

export interface DisplayState {
  colours: Colours;
  /** Root at the bottom. */
  flame: boolean;
  /** A run of the same function is one frame. */
  collapse: boolean;
  /** Frames that only start a program or a thread are shown each. */
  start: boolean;
  /** Functions where time was spent stand at the root, their callers on them. */
  bottomUp: boolean;
  /** Samples are counted, not CPU time. */
  samples: boolean;
  /** Unit of a comparison: shares, or cores. */
  compare: Compare;
  /** Whose width frames of a comparison have. */
  width: Width;
}

export const DISPLAY_DEFAULTS: DisplayState = {
  colours: 'kind',
  flame: false,
  collapse: false,
  start: false,
  bottomUp: false,
  samples: false,
  compare: 'sum',
  width: 'both',
};
