// Incidents in words.

import { parse } from '../query/selector';
import { type Incident, IncidentEntryKind, IncidentState } from '../gen/fleetprof/collector/v1/incidents_pb';

const STATES: Record<IncidentState, string> = {
  [IncidentState.UNSPECIFIED]: 'unknown',
  [IncidentState.OPEN]: 'open',
  [IncidentState.ACKNOWLEDGED]: 'acknowledged',
  [IncidentState.CLOSED]: 'closed',
};

const KINDS: Record<IncidentEntryKind, string> = {
  [IncidentEntryKind.UNSPECIFIED]: 'entry',
  [IncidentEntryKind.NOTE]: 'note',
  [IncidentEntryKind.STATE]: 'state',
  [IncidentEntryKind.ALERT]: 'alert',
  [IncidentEntryKind.VIEW]: 'view',
  [IncidentEntryKind.DIFF]: 'comparison',
  [IncidentEntryKind.PIN]: 'pin',
  [IncidentEntryKind.CAPTURE]: 'capture',
};

export const stateOf = (incident: Incident) => STATES[incident.state] ?? 'unknown';
export const kindOf = (kind: IncidentEntryKind) => KINDS[kind] ?? 'entry';

/** Who opened it: a person, or what made the collector do so. */
export const openedBy = (incident: Incident) => incident.source || incident.openedBy;

/** Only the page itself may be linked to: what does not start with `#` leads elsewhere. */
export const ownAddress = (address: string) => (address.startsWith('#') ? address : '');

/** Longest title and note that the collector keeps. Unit: characters; its bound is in bytes. */
export const TITLE_MAX = 200;
export const NOTE_MAX = 4000;

/** The labels of an incident about a selection: what its selector equals. */
export function labelsFrom(matchers: readonly { label: string; op: string; value: string }[]): Record<string, string> {
  const equal = matchers.filter((one) => one.op === '=' && one.value !== '').slice(0, 16);
  return Object.fromEntries(equal.map((one) => [one.label, one.value]));
}

/** The same of the text of a selector; none of one that is not valid. */
export function labelsOfQuery(query: string): Record<string, string> {
  try {
    return labelsFrom(parse(query));
  } catch {
    return {};
  }
}
