// Incidents: their list, and one of them as a column: what it is, what can be done, its timeline.
// The column is the phone's view as well.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { FormatMenu } from '../app/Download';
import { FilterInput } from '../app/FilterInput';
import { Link } from '../app/Link';
import type { PageProps } from '../app/page';
import { Answer, Choice, Empty, Icon, Name, TroubleBox } from '../app/parts';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { numberOf } from '../capture/address';
import {
  type GetIncidentResponse,
  type Incident,
  type IncidentEntry,
  type IncidentEvidence,
  IncidentEntryKind,
  IncidentState,
} from '../gen/fleetprof/collector/v1/incidents_pb';
import { pageBase } from '../query/base';
import { useQuery } from '../query/useQuery';
import { addressOf, setState, useSelectionState, useViewState } from '../state/store';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { absoluteSpec, toMs } from '../time/range';
import { addEvidence, addNote, getIncident, listIncidents, openIncident, setIncident } from './client';
import { EvidenceFacts } from './EvidenceFacts';
import { EvidenceProfile, evidenceUrl } from './EvidenceProfile';
import './incidents.css';
import { labelsOf } from '../alerts/words';
import { useChange } from './useChange';
import { NOTE_MAX, TITLE_MAX, kindOf, labelsOfQuery, openedBy, ownAddress, stateOf } from './words';

export function IncidentsPage(props: PageProps) {
  const { incident } = useViewState('incident');
  return incident === '' ? <List {...props} /> : <One {...props} id={incident} />;
}

function List(props: PageProps) {
  const { pinTimes } = useViewState('pinTimes');
  const open = pinTimes === 'all';
  const query = useQuery(`incidents ${open}\n${props.selectionKey}`, (signal) => listIncidents(open, signal));
  return (
    <section class="page" aria-label="Incidents">
      <header class="page-head">
        <h2>Incidents</h2>
        <div class="pin-filters">
          <Choice
            label="Incidents"
            value={pinTimes}
            of={[
              ['all', 'Open', 'Incidents that are not closed'],
              ['range', 'All', 'Closed incidents too'],
            ]}
            onChange={(next) => setState({ pinTimes: next })}
          />
          <FilterInput label="Filter incidents" placeholder="Filter by title, label or host" />
        </div>
      </header>
      <OpenForm />
      <Answer query={query} what="the incidents">
        {(answer) => (
          <>
            {answer.leftOut > 0n && (
              <p class="notice">{format.count(Number(answer.leftOut))} older incidents are not listed.</p>
            )}
            <Rows {...props} incidents={answer.incidents} />
          </>
        )}
      </Answer>
    </section>
  );
}

function OpenForm() {
  const { query } = useSelectionState('query');
  const [title, setTitle] = useState('');
  const { busy, trouble, run } = useChange();
  const submit = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      const id = await openIncident(title, labelsOfQuery(query));
      setState({ incident: String(id) });
    });
  };
  return (
    <>
      <form class="incident-open" onSubmit={submit}>
        <input
          aria-label="Title of a new incident"
          placeholder="What is wrong, e.g. checkout slow"
          maxLength={TITLE_MAX}
          value={title}
          onInput={(event) => setTitle(event.currentTarget.value)}
        />
        <button type="submit" disabled={busy || title.trim() === ''}>
          Open incident
        </button>
      </form>
      {trouble && <TroubleBox trouble={trouble} />}
    </>
  );
}

function Rows(props: PageProps & { incidents: readonly Incident[] }) {
  const { filter, sort } = useViewState('filter', 'sort');
  const wanted = filter.toLowerCase();
  const matches = (one: Incident) =>
    [one.title, one.source, labelsOf(one), ...one.hosts].some((text) => text.toLowerCase().includes(wanted));
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of incidents">
      <SortedTable
        caption="Incidents"
        columns={columns(props)}
        rows={props.incidents.filter(matches)}
        sort={sort}
        onSort={(next) => setState({ sort: next })}
        keyOf={(one) => String(one.id)}
        empty={
          <Empty title={props.incidents.length ? 'No matching incidents' : 'No open incidents'}>
            {!props.incidents.length && (
              <p>
                An alert with `incident: true` opens one, a trigger that fires where `incidents.open_for_pins` is set,
                or you do above.
              </p>
            )}
          </Empty>
        }
      />
    </div>
  );
}

function columns(props: PageProps): ColumnOf<Incident>[] {
  const opened = (one: Incident) => toMs(one.openedUnixNs);
  return [
    {
      key: 'name',
      title: 'Incident',
      by: (one) => one.title,
      cell: (one) => (
        <span class="pin-why">
          <Link to={{ incident: String(one.id) }}>
            {String(one.id)} <Name text={one.title} max={120} />
          </Link>
          {labelsOf(one) !== '' && (
            <span class="soft">
              <Name text={labelsOf(one)} max={160} />
            </span>
          )}
        </span>
      ),
    },
    { key: 'state', title: 'State', by: (one) => one.state, cell: (one) => stateOf(one) },
    {
      key: 'opened',
      title: 'Opened',
      number: true,
      by: opened,
      cell: (one) => <span title={format.stamp(opened(one))}>{format.ago(opened(one), props.now())}</span>,
    },
    { key: 'by', title: 'By', by: openedBy, cell: (one) => <Name text={openedBy(one)} max={60} /> },
    {
      key: 'hosts',
      title: 'Hosts',
      number: true,
      by: (one) => one.hosts.length,
      cell: (one) => <span title={shown(one.hosts.join(' '))}>{format.count(one.hosts.length)}</span>,
    },
  ];
}

function One(props: PageProps & { id: string }) {
  const number = numberOf(props.id);
  const query = useQuery(`incident ${props.id}\n${props.selectionKey}`, async (signal) => ({
    of: number === undefined ? undefined : await getIncident(number, signal),
  }));
  const { evidence } = useViewState('evidence');
  if (evidence !== '')
    return (
      <Answer query={query} what="the evidence">
        {({ of }) => <OneEvidence of={of} number={evidence} />}
      </Answer>
    );
  return (
    <section class="incident" aria-label="Incident">
      <header class="page-head">
        <Link class="back" to={{ incident: '' }}>
          <Icon of="left" /> All incidents
        </Link>
      </header>
      <Answer query={query} what="the incident">
        {({ of }) =>
          of?.incident ? (
            <Told {...props} of={of} incident={of.incident} again={query.again} />
          ) : (
            <Empty title="Incident not found">
              <p>It was deleted, or you may not see it.</p>
            </Empty>
          )
        }
      </Answer>
    </section>
  );
}

/** A piece of evidence of an incident, with the way back to it. */
function OneEvidence({ of, number }: { of: GetIncidentResponse | undefined; number: string }) {
  const entry = of?.entries.find((one) => String(one.evidence?.id ?? '') === number);
  const title = of?.incident?.title ?? '';
  return (
    <section class="capture-view evidence-view" aria-label="Evidence">
      <header class="page-head">
        <Link class="back" to={{ evidence: '' }}>
          <Icon of="left" /> {title === '' ? 'Incident' : <Name text={title} max={60} />}
        </Link>
        <h2>Evidence {shown(number, 20)}</h2>
      </header>
      {entry?.evidence ? (
        <>
          <p class="soft">
            {kindOf(entry.kind)} of <EvidenceFacts of={entry.evidence} />
          </p>
          {entry.text !== '' && (
            <p class="entry-text">
              <Name text={entry.text} max={NOTE_MAX} />
            </p>
          )}
          <EvidenceProfile of={entry.evidence} />
        </>
      ) : (
        <Empty title="Evidence not found">
          <p>It was deleted, or you may not see it.</p>
        </Empty>
      )}
    </section>
  );
}

interface ToldProps extends PageProps {
  of: GetIncidentResponse;
  incident: Incident;
  again: () => void;
}

function Told(props: ToldProps) {
  const { incident, of, again } = props;
  const { busy, trouble, run } = useChange();
  const change = (what: () => Promise<void>) => void run(async () => what().then(again));
  const set = (state: IncidentState) => change(() => setIncident(incident.id, state));
  const base = `${pageBase()}/api`;
  return (
    <>
      <h2 class="incident-title">
        {String(incident.id)} <Name text={incident.title} max={200} />
      </h2>
      <p class={`incident-state ${stateOf(incident)}`} role="status">
        {stateOf(incident)}
        {incident.state === IncidentState.ACKNOWLEDGED && (
          <>
            {' '}
            by <Name text={incident.acknowledgedBy} max={60} />
          </>
        )}
      </p>
      <div class="incident-acts">
        {incident.state === IncidentState.OPEN && (
          <button type="button" disabled={busy} onClick={() => set(IncidentState.ACKNOWLEDGED)}>
            Acknowledge
          </button>
        )}
        {incident.state === IncidentState.CLOSED ? (
          <button type="button" disabled={busy} onClick={() => set(IncidentState.OPEN)}>
            Reopen
          </button>
        ) : (
          <button type="button" disabled={busy} onClick={() => set(IncidentState.CLOSED)}>
            Close
          </button>
        )}
        <button
          type="button"
          disabled={busy}
          title="Keep the profile of the current selection and time range"
          onClick={() => change(() => keepView(incident.id, props))}
        >
          Add current view
        </button>
        <a href={`${base}/incident.html?id=${incident.id}`} download>
          Bundle (HTML)
        </a>
        <a href={`${base}/incident.md?id=${incident.id}`} download>
          Markdown
        </a>
      </div>
      {trouble && <TroubleBox trouble={trouble} />}
      <Facts {...props} />
      <ol class="timeline">
        {of.entries.map((entry) => (
          <Entry key={String(entry.id)} entry={entry} />
        ))}
      </ol>
      <NoteForm busy={busy} onNote={(text) => run(async () => addNote(incident.id, text).then(again))} />
    </>
  );
}

/** What is selected above, at its exact time. */
async function keepView(incident: bigint, { selection, range }: PageProps): Promise<void> {
  const address = addressOf({ ...absoluteSpec(range), live: false, view: 'profile', incident: '' });
  await addEvidence(incident, '', { after: selection }, address);
}

function Facts({ incident, now }: ToldProps) {
  const facts: [string, ComponentChildren][] = [
    [
      'Opened',
      <>
        {format.stamp(toMs(incident.openedUnixNs))}, {format.ago(toMs(incident.openedUnixNs), now())}, by{' '}
        <Name text={openedBy(incident)} max={80} />
      </>,
    ],
  ];
  if (labelsOf(incident) !== '') facts.push(['About', <Name key="about" text={labelsOf(incident)} max={400} />]);
  if (incident.hosts.length) facts.push(['Hosts', <Name key="hosts" text={incident.hosts.join(' ')} max={400} />]);
  if (incident.closedUnixNs)
    facts.push([
      'Closed',
      <>
        {format.stamp(toMs(incident.closedUnixNs))}, by <Name text={incident.closedBy} max={80} />
      </>,
    ]);
  return (
    <dl class="pin-facts">
      {facts.map(([name, value]) => (
        <div key={name} class="incident-fact">
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function Entry({ entry }: { entry: IncidentEntry }) {
  const address = ownAddress(entry.address);
  return (
    <li class={`entry ${kindOf(entry.kind)}`}>
      <div class="soft">
        {format.stamp(toMs(entry.atUnixNs))} · <b>{kindOf(entry.kind)}</b> · <Name text={entry.by} max={60} />
      </div>
      {entry.text !== '' && (
        <p class="entry-text">
          {entry.text.split('\n').map((line, at) => (
            <span key={at}>{line === '' ? <br /> : <Name text={line} max={NOTE_MAX} />}</span>
          ))}
        </p>
      )}
      {entry.evidence && <Evidence of={entry.evidence} />}
      {address !== '' && <a href={address}>Open the page at this view</a>}
    </li>
  );
}

function Evidence({ of }: { of: IncidentEvidence }) {
  const isDiff = of.kind === IncidentEntryKind.DIFF;
  return (
    <div class="entry-evidence">
      <EvidenceFacts of={of} />
      <span class="entry-files">
        <Link to={{ evidence: String(of.id) }}>{isDiff ? 'Open the comparison' : 'Open the profile'}</Link>
        <FormatMenu
          url={(extension) => evidenceUrl(of, extension, false)}
          note={isDiff ? 'the side after' : undefined}
        />
      </span>
    </div>
  );
}

function NoteForm({ busy, onNote }: { busy: boolean; onNote: (text: string) => Promise<boolean> }) {
  const [text, setText] = useState('');
  const submit = (event: Event) => {
    event.preventDefault();
    void onNote(text).then((kept) => kept && setText(''));
  };
  return (
    <form class="incident-note" onSubmit={submit}>
      <textarea
        aria-label="Note"
        placeholder="What you found, or do"
        rows={2}
        maxLength={NOTE_MAX}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
      />
      <button type="submit" disabled={busy || text.trim() === ''}>
        Add note
      </button>
    </form>
  );
}
