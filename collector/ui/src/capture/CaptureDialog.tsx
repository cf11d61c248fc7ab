// The dialog that asks for a capture, follows it on every host, and ends it.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Link } from '../app/Link';
import { Icon, TroubleBox } from '../app/parts';
import { SelectorInput } from '../query/SelectorInput';
import { writeSent } from '../query/selector';
import * as format from '../text/format';
import { clipped, shown } from '../text/printable';
import type { Range } from '../time/range';
import { HostLines, steady, tallyText } from './HostLines';
import { DRAFT, type Draft, EVENTS, type Problems, isOffCpu, isTracepoint, problemsOf, requestOf } from './form';
import { type Session, type Shown, tallyOf } from './session';
import { type Captures, idOf, useNews } from './store';

interface Props {
  captures: Captures;
  /** What the fields start with. */
  draft: Draft;
  range: Range | undefined;
  onClose: () => void;
  /** It ended, and there is a profile. */
  onDone: (session: Session) => void;
}

/** Where this browser keeps who asks. */
const WHO_KEY = 'fleetprof-who';

function knownWho(): string {
  try {
    return localStorage.getItem(WHO_KEY) ?? '';
  } catch {
    return '';
  }
}

/** The fields for a selection. */
export function draftOf(query: string): Draft {
  return { ...DRAFT, query, who: knownWho() };
}

export function CaptureDialog(props: Props) {
  const { captures, onClose, onDone } = props;
  const [draft, setDraft] = useState(props.draft);
  const [session, setSession] = useState<Session>();
  const [asks, setAsks] = useState(false);
  const box = useRef<HTMLDialogElement>(null);
  useNews(session);
  useEffect(() => {
    const before = document.activeElement;
    box.current?.showModal();
    return () => {
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  const done = session?.phase === 'done' && session.profile !== undefined;
  useEffect(() => {
    if (done && session) onDone(session);
  }, [done]);
  useEffect(() => {
    if (session && !session.runs) setAsks(false);
  }, [session?.runs]);
  const close = () => {
    if (session?.runs) setAsks(true);
    else {
      captures.leave();
      onClose();
    }
  };
  const start = () => {
    try {
      localStorage.setItem(WHO_KEY, draft.who.trim());
    } catch {
      // It is asked for again the next time.
    }
    setSession(captures.start(requestOf(draft)));
  };
  return (
    <dialog
      ref={box}
      class="capture panel"
      aria-labelledby="capture-title"
      onCancel={(event) => {
        event.preventDefault();
        if (asks) setAsks(false);
        else close();
      }}
    >
      <header>
        <h2 id="capture-title">{session ? 'Capture' : 'New capture'}</h2>
        <button type="button" class="square" aria-label="Close" title="Close (Esc)" onClick={close}>
          <Icon of="close" />
        </button>
      </header>
      {session ? (
        <Following
          session={session}
          asks={asks}
          onStay={() => setAsks(false)}
          onAway={() => {
            captures.leave();
            onClose();
          }}
          onAgain={start}
          onChange={() => setSession(undefined)}
        />
      ) : (
        <Form
          draft={draft}
          range={props.range}
          onDraft={(change) => setDraft((before) => ({ ...before, ...change }))}
          onStart={start}
          onClose={close}
        />
      )}
    </dialog>
  );
}

interface FormProps {
  draft: Draft;
  range: Range | undefined;
  onDraft: (change: Partial<Draft>) => void;
  onStart: () => void;
  onClose: () => void;
}

function Form({ draft, range, onDraft, onStart, onClose }: FormProps) {
  const [touched, setTouched] = useState<Partial<Record<keyof Draft, boolean>>>({});
  const form = useRef<HTMLFormElement>(null);
  const problems = useMemo(() => problemsOf(draft), [draft]);
  const field = (name: keyof Draft) => ({
    name,
    value: draft[name],
    problem: touched[name] ? problems[name] : undefined,
    onValue: (value: string) => onDraft({ [name]: value }),
    onLeave: () => setTouched((before) => ({ ...before, [name]: true })),
  });
  const submit = (event: Event) => {
    event.preventDefault();
    const first = Object.keys(problems)[0] as keyof Problems | undefined;
    if (first === undefined) return onStart();
    setTouched(Object.fromEntries(Object.keys(draft).map((key) => [key, true])));
    form.current?.querySelector<HTMLElement>(first === 'query' ? '.selector input' : `[name="${first}"]`)?.focus();
  };
  return (
    <form ref={form} class="capture-form" noValidate onSubmit={submit}>
      <div class="field wide">
        <span>Targets</span>
        <SelectorInput
          value={draft.query}
          range={range}
          label="Selector of the capture"
          onChange={(query) => onDraft({ query })}
          onText={(query) => onDraft({ query })}
        />
        <p class={touched.query && problems.query ? 'wrong' : 'hint'}>
          {(touched.query && problems.query) ||
            'Captures on hosts that had matching samples in the last 10 minutes. Empty: everything on every host.'}
        </p>
      </div>
      <Field
        {...field('event')}
        label="Event"
        list="capture-events"
        hint={EVENTS.find(([event]) => event === draft.event.trim())?.[1] ?? 'choose or type an event'}
      />
      <datalist id="capture-events">
        {EVENTS.map(([event, about]) => (
          <option key={event} value={event}>
            {about}
          </option>
        ))}
      </datalist>
      <Field {...field('duration')} label="Duration" hint="e.g. 500ms, 30s, 5m; at most 1h" />
      <Field {...field('hosts')} label="Max hosts" hint="others are skipped" numeric />
      <Field
        {...field('rate')}
        label="Rate"
        hint="Hz per CPU (default depends on the event)"
        placeholder="default"
        numeric
      />
      <label class="field">
        <span>Stacks</span>
        <select name="unwind" value={draft.unwind} onChange={(event) => onDraft({ unwind: event.currentTarget.value })}>
          <option value="">agents’ default</option>
          <option value="stack-copy">stack copy</option>
          <option value="frame-pointer">frame pointers</option>
        </select>
        <p class="hint">how to unwind stacks</p>
      </label>
      <label class="field">
        <span>Frames</span>
        <select name="detail" value={draft.detail} onChange={(event) => onDraft({ detail: event.currentTarget.value })}>
          <option value="">functions</option>
          <option value="lines">source lines, inlined functions</option>
        </select>
        <p class="hint">lines need debug information on the host</p>
      </label>
      <Field
        {...field('before')}
        label="Include history"
        hint="Add the minutes before, from each agent’s recorder, e.g. 5m"
        placeholder="nothing"
      />
      {isOffCpu(draft.event) && (
        <Field
          {...field('minWait')}
          label="Minimum wait"
          hint="shorter waits are skipped, e.g. 1ms"
          placeholder="all"
        />
      )}
      {isTracepoint(draft.event) && (
        <Field {...field('filter')} label="Filter" hint="kernel filter, e.g. prev_state != 0" placeholder="all" wide />
      )}
      <Field {...field('reason')} label="Reason" hint="shown in the list of captures" wide />
      <Field {...field('who')} label="Your name" hint="for the list of captures; stored in this browser" />
      <footer>
        <button type="button" onClick={onClose}>
          Close
        </button>
        <button type="submit" class="primary">
          Start
        </button>
      </footer>
    </form>
  );
}

interface FieldProps {
  name: string;
  label: string;
  value: string;
  problem: string | undefined;
  hint: string;
  list?: string;
  placeholder?: string;
  numeric?: boolean;
  wide?: boolean;
  onValue: (value: string) => void;
  onLeave: () => void;
}

function Field(props: FieldProps) {
  const { name, problem } = props;
  return (
    <label class={`field${props.wide ? ' wide' : ''}`}>
      <span>{props.label}</span>
      <input
        name={name}
        value={props.value}
        list={props.list}
        placeholder={props.placeholder}
        inputMode={props.numeric ? 'numeric' : undefined}
        spellcheck={false}
        autocomplete="off"
        aria-invalid={!!problem}
        aria-describedby={`capture-${name}-note`}
        onInput={(event) => props.onValue(event.currentTarget.value)}
        onBlur={props.onLeave}
      />
      <p id={`capture-${name}-note`} class={problem ? 'wrong' : 'hint'} aria-live="polite">
        {problem ?? props.hint}
      </p>
    </label>
  );
}

interface FollowingProps {
  session: Session;
  /** Whether to leave is asked. */
  asks: boolean;
  onStay: () => void;
  onAway: () => void;
  /** Asks the same again. */
  onAgain: () => void;
  /** Back to the fields. */
  onChange: () => void;
}

function Following({ session, asks, onStay, onAway, onAgain, onChange }: FollowingProps) {
  const tally = tallyOf(session.hosts.values());
  return (
    <div class="capture-live">
      <p class="capture-what">{shown(whatOf(session.request))}</p>
      <Progress session={session} />
      {session.trouble && <TroubleBox trouble={session.trouble} again={onAgain} />}
      {session.trouble && session.plan && (
        <p>
          <Link to={{ view: 'captures', capture: idOf(session) }} onClick={onAway}>
            Capture {idOf(session)}
          </Link>{' '}
          goes on at the collector.
        </p>
      )}
      {session.endTrouble && <TroubleBox trouble={session.endTrouble} />}
      {session.hosts.size > 0 && (
        <>
          <p>
            <span aria-live="polite">
              {session.runs ? runningText(session.phase === 'ending', tally) : tallyText(tally)}
            </span>
            <span class="soft">
              {' '}
              · {format.plural(tally.samples, 'sample')}
              {tally.lostSamples > 0 && `, ${format.count(tally.lostSamples)} lost`}
            </span>
          </p>
          <LeftOut session={session} />
          <HostLines session={session} />
        </>
      )}
      {!session.runs && !session.trouble && !session.profile && <Nothing session={session} />}
      {asks ? (
        <footer class="asking">
          <span role="alert">The capture continues on the collector.</span>
          <button type="button" onClick={onAway}>
            Leave it running
          </button>
          <button
            type="button"
            onClick={() => {
              session.end();
              onStay();
            }}
          >
            Stop and keep
          </button>
          <button type="button" class="primary" onClick={onStay}>
            Continue
          </button>
        </footer>
      ) : (
        <footer>
          {session.runs ? (
            <button
              type="button"
              class="primary"
              disabled={session.phase === 'ending'}
              onClick={() => session.end()}
              title="End the capture on all hosts and keep the samples so far"
            >
              {session.phase === 'asking' ? 'Cancel' : session.phase === 'ending' ? 'Ending …' : 'Stop and keep'}
            </button>
          ) : (
            <>
              <button type="button" onClick={onAway}>
                Close
              </button>
              <button type="button" class="primary" onClick={onChange}>
                Change and start again
              </button>
            </>
          )}
        </footer>
      )}
    </div>
  );
}

/** What is captured, in a line. */
export function whatOf(request: Shown['request']): string {
  const { capture } = request;
  const rate = capture?.rateHz
    ? ` at ${format.count(capture.rateHz)} Hz`
    : capture?.period
      ? `, one of ${format.count(Number(capture.period))}`
      : '';
  const before = capture?.beforeNs ? `, with ${format.duration(Number(capture.beforeNs))} before` : '';
  const lines = capture?.lines ? ', by source line' : '';
  // Commands send what they parsed.
  const selected = [request.selector, writeSent(capture?.matchers ?? [])].filter(Boolean).join(', ');
  return `${capture?.event || 'cpu-clock'}${rate}${lines} for ${format.duration(Number(capture?.durationNs ?? 0n))}${before}, of ${selected || 'everything'}`;
}

/** How many hosts of one that runs are how far. */
export function runningText(
  isEnding: boolean,
  { all, running, waiting, answered, failed, lost }: ReturnType<typeof tallyOf>,
): string {
  const parts = [
    [answered, 'done'],
    [running, isEnding ? 'ending' : 'running'],
    [waiting, 'waiting'],
    [failed, 'failed'],
    [lost, 'lost'],
  ] as const;
  return `${format.plural(all, 'host')}: ${parts
    .filter(([value]) => value > 0)
    .map(([value, word]) => `${format.count(value)} ${word}`)
    .join(', ')}`;
}

function Progress({ session }: { session: Session }) {
  const durationNs = Number(session.request.capture?.durationNs ?? 0n);
  const farthest = Math.max(0, ...[...session.hosts.values()].map((host) => Number(host.progress?.elapsedNs ?? 0n)));
  const still =
    session.stacks > 0
      ? `Taking the profile: ${format.plural(session.stacks, 'stack')}`
      : session.phase === 'asking'
        ? 'Asking the collector for hosts'
        : session.phase === 'ending'
          ? 'Ending the capture on the hosts'
          : `${format.duration(steady(farthest))} of ${format.duration(durationNs)}`;
  if (!session.runs) return null;
  return (
    <div class="capture-progress" role="status">
      <progress
        aria-label="Capture"
        max={1}
        value={
          session.phase === 'running' && session.stacks === 0 && durationNs > 0
            ? Math.min(1, farthest / durationNs)
            : undefined
        }
      />
      <span class="soft">{still}</span>
    </div>
  );
}

/** Most names of hosts written out. */
const ABSENT_SHOWN = 20;

/** Hosts that were not asked, and why. */
export function LeftOut({ session }: { session: Pick<Shown, 'plan' | 'request'> }) {
  const { plan } = session;
  if (!plan || (plan.leftOut === 0 && plan.absent === 0)) return null;
  return (
    <p class="warned">
      {format.plural(plan.selected, 'host')} {plan.selected === 1 ? 'matches' : 'match'}
      {plan.leftOut > 0 &&
        `; ${format.count(plan.leftOut)} left out, because at most ${format.plural(session.request.maxHosts || 50, 'host')} were asked for`}
      {plan.absent > 0 &&
        `; ${format.count(plan.absent)} not asked, because ${plan.absent === 1 ? 'its agent is' : 'their agents are'} not connected for captures`}
      {plan.absentHosts.length > 0 &&
        `: ${plan.absentHosts
          .slice(0, ABSENT_SHOWN)
          .map((name) => clipped(name, 60))
          .join(', ')}${plan.absent > Math.min(ABSENT_SHOWN, plan.absentHosts.length) ? ', …' : ''}`}
      .
    </p>
  );
}

function Nothing({ session }: { session: Session }) {
  const none = session.hosts.size === 0;
  return (
    <TroubleBox
      trouble={{
        title: none ? 'No host captured' : 'No host returned a profile',
        detail: (session.result?.notices ?? []).join('\n'),
        advice: none
          ? 'No matching agent is connected to this collector for captures. Check the Hosts page, and `captures.remote` in the agents’ config.'
          : 'The list shows the answer of each host.',
        retry: false,
        code: 'nothing',
      }}
    />
  );
}
