// Asks the collector for what triggers pinned, and for what happened to the fleet.

import { createClient } from '@connectrpc/connect';
import { listAlerts } from '../alerts/client';
import type { Alert } from '../gen/fleetprof/collector/v1/alerts_pb';
import { type Annotation, AnnotationService } from '../gen/fleetprof/collector/v1/annotations_pb';
import { type HostPin, type ListHostPinsResponse, PinService } from '../gen/fleetprof/collector/v1/pins_pb';
import { transport } from '../query/client';
import { worded } from '../query/collectorErrors';
import { timeRangeOf } from '../query/selection';
import type { Range } from '../time/range';
import { DEPLOYS_BACK_MS } from './deploys';
import { missingOf } from './flags';

const pinClient = createClient(PinService, transport);
const annotationClient = createClient(AnnotationService, transport);

/** Most of each that a chart marks. */
const MARKED_MAX = 200;

/** Most pins of the list. */
const PINS_MAX = 1000;

/** Pins that fired in a range, the newest first; without a range: all. */
export function listPins(range: Range | undefined, signal: AbortSignal): Promise<ListHostPinsResponse> {
  return worded(pinClient.list({ limit: PINS_MAX, ...(range && { range: timeRangeOf(range) }) }, { signal }));
}

/** The pin of a number; undefined: there is none, or none that may be seen. */
export async function findPin(id: bigint, signal: AbortSignal): Promise<HostPin | undefined> {
  const answer = await worded(pinClient.list({ id, limit: 1 }, { signal }));
  return answer.pins[0];
}

/** Most deploys among which the last of a selection is looked for. */
const DEPLOYS_MAX = 500;

/** Deploys up to a time, the newest first. */
export async function deploysUpTo(ms: number, signal: AbortSignal): Promise<readonly Annotation[]> {
  const range = timeRangeOf({ from: Math.max(1, ms - DEPLOYS_BACK_MS), to: ms });
  const answer = await worded(annotationClient.list({ range, kind: 'deploy', limit: DEPLOYS_MAX }, { signal }));
  return answer.annotations;
}

/** What charts of a range mark. */
export interface Events {
  pins: readonly HostPin[];
  annotations: readonly Annotation[];
  alerts: readonly Alert[];
  /** What is not marked and why, as sentences. */
  missing: readonly string[];
}

export async function events(range: Range, signal: AbortSignal): Promise<Events> {
  const asked = { range: timeRangeOf(range), limit: MARKED_MAX };
  // A collector that has one of them only, or keeps none of them now, marks what there is.
  const [pins, annotations, alerts] = await Promise.allSettled([
    pinClient.list(asked, { signal }),
    annotationClient.list(asked, { signal }),
    listAlerts(range, signal, MARKED_MAX),
  ]);
  signal.throwIfAborted();
  return {
    pins: pins.status === 'fulfilled' ? pins.value.pins : [],
    annotations: annotations.status === 'fulfilled' ? annotations.value.annotations : [],
    alerts: alerts.status === 'fulfilled' ? alerts.value.alerts : [],
    missing: [
      ...missingOf(pins, 'pins'),
      ...missingOf(annotations, 'deploys and notes'),
      ...missingOf(alerts, 'alerts'),
    ],
  };
}
