// What "before" is, everywhere on the page: the range that charts, tables, the overview and the
// comparison hold the chosen range against.

import type { Baseline } from '../state/selection';
import { time } from '../text/format';
import { type Range, before } from './range';

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

/** Choices: the value, what a list says, and what it means. */
export const BASELINES: readonly (readonly [Baseline, string, string])[] = [
  ['none', 'No baseline', 'Show the range alone'],
  ['previous', 'Previous period', 'The same length right before'],
  ['hour', 'An hour before', 'The same length, an hour earlier'],
  ['day', 'Yesterday', 'The same time yesterday'],
  ['week', 'Last week', 'The same time a week ago'],
  ['deploy', 'Before the last deploy', 'The same length, up to the last deploy of what is selected'],
];

/** By how much a choice goes back. Unit: milliseconds. */
const BACK_MS = { hour: HOUR_MS, day: DAY_MS, week: 7 * DAY_MS } as const;

/**
 * The range that a choice means; undefined: there is none. `deployMs`: the last deploy, where it is
 * known.
 */
export function baselineOf(range: Range, baseline: Baseline, deployMs?: number): Range | undefined {
  switch (baseline) {
    case 'none':
      return undefined;
    case 'previous':
      return before(range);
    case 'deploy':
      return deployMs === undefined ? undefined : before({ from: deployMs, to: deployMs + range.to - range.from });
    default: {
      const by = BACK_MS[baseline];
      return { from: Math.max(0, range.from - by), to: Math.max(1, range.to - by) };
    }
  }
}

/** What a choice is called within a sentence: `compared with …`. */
export function wordsOf(baseline: Baseline, deployMs?: number): string {
  if (baseline === 'deploy' && deployMs !== undefined) return `before the deploy at ${time(deployMs)}`;
  if (baseline === 'previous') return 'the previous period';
  return (BASELINES.find(([one]) => one === baseline)?.[1] ?? '').toLowerCase();
}
