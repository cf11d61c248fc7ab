// Where the data of an alert are: its time, and what it is compared with.

import type { Alert } from '../gen/fleetprof/collector/v1/alerts_pb';
import type { State } from '../state/address';
import { baselineOf } from '../time/baseline';
import { absoluteSpec, toMs } from '../time/range';

const MINUTE = 60_000;

export function leads(one: Alert, now: number): { open: Partial<State>; compare: Partial<State> } {
  const begun = toMs(one.firedUnixNs || one.sinceUnixNs);
  const ended = one.resolvedUnixNs ? toMs(one.resolvedUnixNs) : now;
  const times = { from: begun - 30 * MINUTE, to: Math.min(ended + 10 * MINUTE, now) };
  const during = { from: begun - 5 * MINUTE, to: Math.max(begun + MINUTE, Math.min(ended, now)) };
  const was = absoluteSpec(baselineOf(during, 'day') ?? during);
  const common = { live: false, query: one.selector, filters: [] };
  return {
    open: { ...absoluteSpec(times), ...common, view: 'profile', search: one.function },
    compare: {
      ...absoluteSpec(during),
      ...common,
      view: 'compare',
      bfrom: was.from,
      bto: was.to,
      bquery: undefined,
    },
  };
}
