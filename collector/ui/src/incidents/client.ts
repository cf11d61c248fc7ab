// Asks the collector for incidents, and changes them.

import { create } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import {
  type GetIncidentResponse,
  IncidentDiffSchema,
  IncidentService,
  type IncidentState,
  type ListIncidentsResponse,
} from '../gen/fleetprof/collector/v1/incidents_pb';
import { transport } from '../query/client';
import { changed, worded } from '../query/collectorErrors';
import { type Selection, messageOf } from '../query/selection';

const client = createClient(IncidentService, transport);

export function listIncidents(open: boolean, signal: AbortSignal): Promise<ListIncidentsResponse> {
  return worded(client.list({ open }, { signal }));
}

export function getIncident(id: bigint, signal: AbortSignal): Promise<GetIncidentResponse> {
  return worded(client.get({ id }, { signal }));
}

/** Opens one; its number. */
export async function openIncident(title: string, labels: Record<string, string>): Promise<bigint> {
  const answer = await changed(client.open({ title, labels }));
  return answer.incident?.id ?? 0n;
}

export async function setIncident(id: bigint, state: IncidentState): Promise<void> {
  await changed(client.setState({ id, state }));
}

export async function addNote(incident: bigint, text: string): Promise<void> {
  await changed(client.addEntry({ incident, text }));
}

/** What is kept: a selection, or two to compare. */
export interface Kept {
  before?: Selection;
  after: Selection;
}

/** The same as the protocol says it. */
export function profilesOf(of: Kept) {
  const after = messageOf(of.after);
  return of.before
    ? ({ case: 'diff', value: create(IncidentDiffSchema, { before: messageOf(of.before), after }) } as const)
    : ({ case: 'view', value: after } as const);
}

/** Keeps profiles, and the address of the page that shows them. */
export async function addEvidence(incident: bigint, text: string, of: Kept, address: string): Promise<void> {
  const evidence = profilesOf(of);
  await changed(client.addEntry({ incident, text, address, evidence }));
}
