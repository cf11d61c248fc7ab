// Alerts and incidents of the fleet that is not there: one fires, one waits, one has no data, one
// is over; an incident with evidence and a hostile one.

import { create } from '@bufbuild/protobuf';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { Code, ConnectError, type ConnectRouter } from '@connectrpc/connect';
import { AlertService, AlertState, ListAlertsResponseSchema } from '../../src/gen/fleetprof/collector/v1/alerts_pb';
import {
  type AddIncidentEntryRequest,
  type IncidentEntrySchema,
  IncidentEntryKind,
  type IncidentSchema,
  IncidentService,
  IncidentState,
} from '../../src/gen/fleetprof/collector/v1/incidents_pb';
import { SelectionSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { type SavedViewSchema, ViewService } from '../../src/gen/fleetprof/collector/v1/views_pb';
import { asked, profile } from './answers';
import { HOSTILE } from './fleet';

type View = MessageInitShape<typeof SavedViewSchema>;
type Incident = MessageInitShape<typeof IncidentSchema>;
type Entry = MessageInitShape<typeof IncidentEntrySchema>;

const KINDS: Record<string, IncidentEntryKind> = { view: IncidentEntryKind.VIEW, diff: IncidentEntryKind.DIFF };

const ns = (ms: number) => BigInt(Math.round(ms)) * 1_000_000n;
const MINUTE = 60_000;

export interface FakeAlerts {
  /** There are no rules. */
  none: boolean;
  incidents: { of: Incident; entries: Entry[] }[];
  /** What was to be kept. */
  kept: AddIncidentEntryRequest[];
  views: View[];
  /** Evidence that was read: its number, and whether the second profile. */
  read: [bigint, boolean][];
}

export function alertServices(router: ConnectRouter, now: number): FakeAlerts {
  const fake: FakeAlerts = {
    none: false,
    kept: [],
    views: [],
    read: [],
    incidents: [
      {
        of: {
          id: 2n,
          title: HOSTILE.script,
          state: IncidentState.OPEN,
          openedUnixNs: ns(now - 200 * MINUTE),
          openedBy: HOSTILE.newline,
          labels: { unit: HOSTILE.script },
          hosts: [HOSTILE.script],
        },
        entries: [
          {
            id: 1n,
            atUnixNs: ns(now - 200 * MINUTE),
            kind: IncidentEntryKind.NOTE,
            by: HOSTILE.script,
            text: `${HOSTILE.script}\n# second line`,
            address: 'javascript:window.__pwned=1',
          },
        ],
      },
      {
        of: {
          id: 1n,
          title: 'api-cpu unit=api.service',
          state: IncidentState.OPEN,
          openedUnixNs: ns(now - 23 * MINUTE),
          openedBy: 'collector',
          source: 'alert api-cpu',
          labels: { unit: 'api.service' },
          hosts: ['web-1', 'web-3'],
          bytes: 90_000n,
        },
        entries: [
          {
            id: 2n,
            atUnixNs: ns(now - 23 * MINUTE),
            kind: IncidentEntryKind.ALERT,
            by: 'collector',
            text: 'alert api-cpu unit=api.service fired at 9.80 cores',
          },
          {
            id: 4n,
            atUnixNs: ns(now - 12 * MINUTE),
            kind: IncidentEntryKind.DIFF,
            by: 'anna',
            text: 'it is visit_map',
            evidence: {
              id: 8n,
              incident: 1n,
              kind: IncidentEntryKind.DIFF,
              title: 'comm="api-server"',
              selector: 'comm="api-server"',
              range: { startUnixNs: ns(now - 33 * MINUTE), endUnixNs: ns(now - 22 * MINUTE) },
              baseline: { startUnixNs: ns(now - 93 * MINUTE), endUnixNs: ns(now - 82 * MINUTE) },
              hasBaseline: true,
              bytes: 180_000n,
              samples: 31_204n,
            },
          },
          {
            id: 3n,
            atUnixNs: ns(now - 33 * MINUTE),
            kind: IncidentEntryKind.VIEW,
            by: 'collector',
            address: '#view=profile&query=unit%3D%22api.service%22',
            evidence: {
              id: 7n,
              incident: 1n,
              kind: IncidentEntryKind.VIEW,
              title: 'comm="api-server"',
              selector: 'comm="api-server"',
              range: { startUnixNs: ns(now - 33 * MINUTE), endUnixNs: ns(now - 22 * MINUTE) },
              bytes: 90_000n,
              samples: 31_204n,
            },
          },
        ],
      },
    ],
  };
  const alert = (rule: string, state: AlertState, ago: number, more: object = {}) => ({
    fingerprint: `0123${rule}`,
    id: state === AlertState.FIRING || state === AlertState.RESOLVED ? BigInt(Math.round(ago)) : 0n,
    rule,
    state,
    sinceUnixNs: ns(now - ago * MINUTE),
    firedUnixNs: state === AlertState.FIRING || state === AlertState.RESOLVED ? ns(now - ago * MINUTE) : 0n,
    labels: { unit: 'api.service' },
    value: 9.8,
    threshold: 6.3,
    unit: 'cores',
    selector: 'unit="api.service"',
    ...more,
  });
  router.service(AlertService, {
    list(request) {
      if (fake.none) return create(ListAlertsResponseSchema, {});
      const past = alert('batch-cpu', AlertState.RESOLVED, 50, { resolvedUnixNs: ns(now - 40 * MINUTE) });
      return create(ListAlertsResponseSchema, {
        alerts: [
          alert('api-cpu', AlertState.FIRING, 23, {
            baseline: 4.2,
            severity: 'page',
            summary: 'more CPU than yesterday',
          }),
          alert(HOSTILE.script, AlertState.PENDING, 2, {
            labels: { unit: HOSTILE.newline },
            unit: 'percent',
            value: 13.4,
            threshold: 12,
            function: 'malloc',
          }),
          alert('db-cpu', AlertState.NO_DATA, 5, { value: undefined, noData: '1 of 2 hosts sends nothing: db-1' }),
          ...(request.range ? [past] : []),
        ],
        rules: [
          {
            name: 'api-cpu',
            selector: 'unit="api.service"',
            condition: 'cores > baseline x 1.5 (yesterday) for 5m',
            evaluatedUnixNs: ns(now - 12_000),
          },
          { name: 'db-cpu', condition: 'cores > 4', error: 'the query failed: too large' },
        ],
        receivers: [{ name: 'oncall', format: 'alertmanager', waiting: 3n, failures: 9n, error: 'it answered 503' }],
      });
    },
  });
  const find = (id: bigint) => {
    const found = fake.incidents.find((one) => one.of.id === id);
    if (!found) throw new ConnectError(`there is no incident ${id}`, Code.NotFound);
    return found;
  };
  const counted = (one: { of: Incident; entries: Entry[] }): Incident => ({
    ...one.of,
    entries: BigInt(one.entries.length),
  });
  router.service(IncidentService, {
    open(request) {
      const of: Incident = {
        id: BigInt(fake.incidents.length + 1),
        title: request.title,
        labels: request.labels,
        state: IncidentState.OPEN,
        openedUnixNs: ns(now),
        openedBy: 'anna',
      };
      fake.incidents.unshift({ of, entries: [] });
      return { incident: of };
    },
    list(request) {
      const shown = fake.incidents.filter((one) => !request.open || one.of.state !== IncidentState.CLOSED);
      return { incidents: shown.map(counted) };
    },
    get(request) {
      const found = find(request.id);
      return { incident: counted(found), entries: found.entries };
    },
    addEntry(request) {
      if (request.text === 'refuse') throw new ConnectError('the incident is full', Code.ResourceExhausted);
      fake.kept.push(request);
      const found = find(request.incident);
      const entry: Entry = {
        id: BigInt(100 + found.entries.length),
        atUnixNs: ns(now),
        kind: KINDS[request.evidence.case ?? ''] ?? IncidentEntryKind.NOTE,
        by: 'anna',
        text: request.text,
        address: request.address,
      };
      found.entries.push(entry);
      return { entry };
    },
    async *profile({ id, baseline }) {
      const entries = fake.incidents.flatMap((one) => one.entries).map((one) => one.evidence);
      const found = [...entries, ...fake.views.map((one) => one.snapshot)].find((one) => one?.id === id);
      const range = baseline ? found?.baseline : found?.range;
      if (!found || !range) throw new ConnectError(`there is no evidence ${id}`, Code.NotFound);
      fake.read.push([id, baseline]);
      const of = asked(create(SelectionSchema, { selector: found.selector ?? '', range }));
      for (const { chunk } of profile(of, ['host', 'unit'])) if (chunk) yield { chunk };
    },
    setState(request) {
      const found = find(request.id);
      found.of = { ...found.of, state: request.state, acknowledgedBy: 'anna' };
      return { incident: found.of };
    },
  });
  router.service(ViewService, {
    list: () => ({ views: fake.views }),
    save({ name, address, snapshot }) {
      const id = BigInt(fake.views.length + 1);
      const view: View = { id, name, address, by: 'anna', savedUnixNs: ns(now) };
      if (snapshot.value) {
        const isDiff = snapshot.case === 'diff';
        const after = isDiff ? snapshot.value.after : snapshot.value;
        view.snapshot = {
          id: 50n + id,
          kind: isDiff ? IncidentEntryKind.DIFF : IncidentEntryKind.VIEW,
          title: after?.selector ?? '',
          selector: after?.selector ?? '',
          range: after?.range ?? {},
          samples: 31_204n,
          bytes: 90_000n,
          ...(isDiff && snapshot.value.before?.range && { baseline: snapshot.value.before.range, hasBaseline: true }),
        };
      }
      fake.views.unshift(view);
      return { view };
    },
    delete({ id }) {
      fake.views = fake.views.filter((one) => one.id !== id);
      return {};
    },
  });
  return fake;
}
