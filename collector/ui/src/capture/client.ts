// Asks the collector for captures.

import { createClient } from '@connectrpc/connect';
import { analysis } from '../analysis/client';
import {
  CaptureService,
  type FleetCaptureInfo,
  type ListFleetCapturesResponse,
} from '../gen/fleetprof/collector/v1/control_pb';
import { transport } from '../query/client';
import { Captures } from './store';

const client = createClient(CaptureService, transport);

/** Captures of this page. */
export const captures = new Captures({
  capture: (request, options) => analysis.capture(request, options),
  cancel: (request) => client.cancel(request),
  release: (profile) => analysis.release(profile),
});
analysis.onLoss(() => captures.lose());

/** Captures of the fleet that run, that ended and that are kept, newest first. */
export function listCaptures(signal: AbortSignal): Promise<ListFleetCapturesResponse> {
  return client.list({}, { signal });
}

/** The capture with this id; undefined if the collector has none that this login may see. */
export async function findCapture(id: bigint, signal: AbortSignal): Promise<FleetCaptureInfo | undefined> {
  const { captures: found } = await client.list({ id }, { signal });
  return found.find((one) => one.id === id);
}

/** Removes a capture that is kept, for good. */
export async function deleteCapture(id: bigint): Promise<void> {
  await client.delete({ id });
}

/** Ends a capture, whoever started it, with what there is. */
export async function cancelCapture(id: bigint): Promise<void> {
  await client.cancel({ id });
}
