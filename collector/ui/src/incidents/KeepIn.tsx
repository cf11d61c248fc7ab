// Keeps what is on the screen beyond retention: in an incident that is open, in a new one, or as a
// snapshot, which is a link of its own.

import { useState } from 'preact/hooks';
import { Link } from '../app/Link';
import { Answer, Popover, TroubleBox } from '../app/parts';
import type { Incident } from '../gen/fleetprof/collector/v1/incidents_pb';
import { useQuery } from '../query/useQuery';
import type { State } from '../state/address';
import { clipped } from '../text/printable';
import { type Kept, addEvidence, listIncidents, openIncident } from './client';
import { NOTE_MAX, TITLE_MAX, labelsOfQuery } from './words';
import { useChange } from './useChange';
import { saveView } from '../views/client';
import './incidents.css';

/** Choices that are no number of an incident. */
const NEW = 'new';
const SNAPSHOT = 'snapshot';

interface Props {
  /** What is to be kept, when somebody asks for it. */
  what: () => Kept;
  /** The address of the page that shows it. */
  address: () => string;
  /** What it is called, for those who see several of these buttons. */
  of: string;
  /** It stands in a line of text. */
  small?: boolean;
}

export function KeepIn(props: Props) {
  return (
    <Popover
      title={`Keep ${props.of} in an incident or as a link, beyond retention`}
      class={props.small ? 'small-button' : undefined}
      align="right"
      label="Keep …"
    >
      {() => <Form {...props} />}
    </Popover>
  );
}

function Form(props: Props) {
  const query = useQuery('open incidents', (signal) => listIncidents(true, signal));
  return (
    <div class="keep-in">
      <Answer query={query} what="the open incidents">
        {(answer) => <Fields {...props} incidents={answer.incidents} />}
      </Answer>
    </div>
  );
}

function Fields({ what, address, incidents }: Props & { incidents: readonly Incident[] }) {
  // Whoever keeps something mostly means the incident that was opened last.
  const [chosen, setChosen] = useState(incidents.length ? String(incidents[0].id) : NEW);
  const [title, setTitle] = useState('');
  const [note, setNote] = useState('');
  const [kept, setKept] = useState<{ in: string; to: Partial<State> }>();
  const { busy, trouble, run } = useChange();
  const submit = (event: Event) => {
    event.preventDefault();
    void run(async () => {
      const asked = what();
      if (chosen === SNAPSHOT) {
        const id = String(await saveView(title, address(), asked));
        setKept({ in: `snapshot ${id}`, to: { view: 'views', saved: id } });
        return;
      }
      const id = chosen === NEW ? await openIncident(title, labelsOfQuery(asked.after.query)) : BigInt(chosen);
      // If it cannot be kept, the incident is there already: another try goes to it.
      setChosen(String(id));
      await addEvidence(id, note, asked, address());
      setKept({ in: `incident ${id}`, to: { view: 'incidents', incident: String(id) } });
    });
  };
  if (kept !== undefined)
    return (
      <p role="status">
        Kept in <Link to={kept.to}>{kept.in}</Link>.
      </p>
    );
  const isNamed = chosen === NEW || chosen === SNAPSHOT;
  const isListed = isNamed || incidents.some((one) => String(one.id) === chosen);
  return (
    <form onSubmit={submit}>
      <label>
        Keep in
        <select value={chosen} onChange={(event) => setChosen(event.currentTarget.value)}>
          {!isListed && <option value={chosen}>{chosen}</option>}
          {incidents.map((one) => (
            <option key={String(one.id)} value={String(one.id)}>
              {String(one.id)} {clipped(one.title, 60)}
            </option>
          ))}
          <option value={NEW}>New incident</option>
          <option value={SNAPSHOT}>Snapshot: a link, no incident</option>
        </select>
      </label>
      {isNamed && (
        <label>
          {chosen === NEW ? 'Title' : 'Name'}
          <input
            placeholder={chosen === NEW ? 'What is wrong, e.g. checkout slow' : 'What it shows'}
            maxLength={TITLE_MAX}
            value={title}
            onInput={(event) => setTitle(event.currentTarget.value)}
          />
        </label>
      )}
      {chosen !== SNAPSHOT && (
        <label>
          Note
          <textarea
            placeholder="What it shows (optional)"
            rows={2}
            maxLength={NOTE_MAX}
            value={note}
            onInput={(event) => setNote(event.currentTarget.value)}
          />
        </label>
      )}
      {trouble && <TroubleBox trouble={trouble} />}
      <button type="submit" disabled={busy || (isNamed && title.trim() === '')}>
        {busy ? 'Keeping …' : 'Keep'}
      </button>
    </form>
  );
}
