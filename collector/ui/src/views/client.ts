// Asks the collector for saved views, and changes them.

import { createClient } from '@connectrpc/connect';
import { type ListViewsResponse, ViewService } from '../gen/fleetprof/collector/v1/views_pb';
import { type Kept, profilesOf } from '../incidents/client';
import { transport } from '../query/client';
import { changed, worded } from '../query/collectorErrors';

const client = createClient(ViewService, transport);

export function listViews(signal: AbortSignal): Promise<ListViewsResponse> {
  return worded(client.list({}, { signal }));
}

/** Saves an address; with `snapshot` also the profiles that it shows. Its number. */
export async function saveView(name: string, address: string, snapshot?: Kept): Promise<bigint> {
  const request = snapshot ? { name, address, snapshot: profilesOf(snapshot) } : { name, address };
  const answer = await changed(client.save(request));
  return answer.view?.id ?? 0n;
}

export async function deleteView(id: bigint): Promise<void> {
  await changed(client.delete({ id }));
}
