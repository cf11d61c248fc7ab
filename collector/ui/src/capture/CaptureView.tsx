// A capture that ended, with its profile: which hosts it is of, when samples were taken, graph and table.

import { useEffect, useMemo, useState } from 'preact/hooks';
import { Choice, Empty, Icon, Name, Popover, TroubleBox } from '../app/parts';
import type { PageProps } from '../app/page';
import { Link } from '../app/Link';
import { useDisplayState, useSelectionState, useViewState } from '../state/store';
import { FlamePanel } from '../flame/FlamePanel';
import { Names } from '../flame/names';
import { buildTree } from '../flame/tree';
import { HeatPanel, Timed, usePart } from '../heat/HeatPanel';
import type { Pick } from '../query/timestamps';
import type { Profile } from '../query/profile';
import { END_LOST } from '../query/outcome';
import { lossOf, samplingNotes } from '../query/quality';
import { TopTable } from '../tables/TopTable';
import { labelsOf } from '../tables/sums';
import * as format from '../text/format';
import { toMs } from '../time/range';
import { LeftOut, whatOf } from './CaptureDialog';
import { HostLines, tallyText } from './HostLines';
import { folded, json, save } from './files';
import { linesDraft } from './form';
import { type Session, tallyOf } from './session';
import { idOf } from './store';

/** Most notices written out at once. */
const NOTICES_SHOWN = 8;

export function CaptureView(props: PageProps & { session: Session }) {
  const { session } = props;
  // This profile cannot be asked for again: which part is looked at is no one else's business.
  const [side, setSide] = useState<'during' | 'before'>('during');
  const [pick, setPick] = useState<Pick>();
  const profile = side === 'before' && session.past ? session.past : session.profile;
  useEffect(() => {
    setPick(undefined);
    setSide('during');
  }, [session]);
  const part = usePart(profile ?? NOTHING, pick);
  if (!profile) return null;
  const { timestamps } = profile;
  // That is said above, and there is nothing else to say.
  const allLost = takenOf(profile) === 0 && profile.stack.length > 0;
  return (
    <section class="capture-view" aria-label="Capture">
      <header class="page-head">
        <Link class="back" to={{ capture: '' }}>
          <Icon of="left" /> All captures
        </Link>
        <h2>Capture {idOf(session)}</h2>
        <span class="capture-what">
          <Name text={whatOf(session.request)} max={200} />
        </span>
        {session.past && (
          <Choice
            label="Which time"
            value={side}
            of={[
              ['during', 'During', 'What the capture took'],
              ['before', 'Before', 'What the flight recorders had of the time before'],
            ]}
            onChange={(next) => {
              setSide(next);
              setPick(undefined);
            }}
          />
        )}
        <button type="button" onClick={() => props.openCapture(session.request.selector)}>
          New capture
        </button>
      </header>
      <Hosts session={session} profile={profile} />
      {session.trouble && (
        <TroubleBox
          trouble={{ ...session.trouble, advice: `What came is below. ${session.trouble.advice}`, retry: false }}
        />
      )}
      <Timed onEscape={pick && (() => setPick(undefined))}>
        {allLost ? null : timestamps ? (
          <HeatPanel timestamps={timestamps} unit={profile.unit} pick={pick} onPick={setPick} />
        ) : (
          <p class="soft">
            {side === 'before'
              ? 'When samples of the time before were taken is not known.'
              : 'When samples were taken was not kept: there is no heat map.'}
          </p>
        )}
        {allLost ? null : profile.stack.length === 0 ? (
          <Empty title="Nothing was sampled">
            <p>Nothing that was selected had the event in this time.</p>
          </Empty>
        ) : (
          <Stacks
            {...props}
            part={part}
            pick={pick}
            whole={profile}
            selector={session.request.selector}
            withLines={side !== 'before' && session.request.capture?.lines}
            name={`capture-${idOf(session)}${side === 'before' ? '-before' : ''}`}
          />
        )}
      </Timed>
    </section>
  );
}

/** Stands where there is no profile, so that hooks have something to be of. */
const NOTHING: Profile = {
  strings: [''],
  kind: new Uint8Array(),
  unnamed: new Uint8Array(),
  fn: new Uint32Array(),
  systemName: new Uint32Array(),
  module: new Uint32Array(),
  file: new Uint32Array(),
  line: new Uint32Array(),
  parent: new Uint32Array(1),
  frame: new Uint32Array(1),
  labelSets: [new Uint32Array()],
  labels: new Uint32Array(),
  stack: new Uint32Array(),
  end: new Uint8Array(),
  count: new Float64Array(),
  weight: new Float64Array(),
  unit: '',
  quality: undefined,
  about: { startUnixNs: 0n, durationNs: 0n, event: '', period: 0n, sampling: undefined, coverage: undefined },
  timestamps: undefined,
};

/** Samples that were not lost. */
function takenOf(profile: Profile): number {
  return profile.count.reduce((sum, count, sample) => sum + (profile.end[sample] === END_LOST ? 0 : count), 0);
}

function Hosts({ session, profile }: { session: Session; profile: Profile }) {
  const tally = useMemo(() => tallyOf(session.hosts.values()), [session]);
  const partial = tally.answered < tally.all || tally.partial > 0;
  const [open, setOpen] = useState(false);
  const { result } = session;
  const notices = result ? [...(result.endedBy ? [result.endedBy] : []), ...result.notices] : [];
  const { about } = profile;
  const loss = lossOf(about.sampling, `of ${format.duration(Number(about.durationNs))}`);
  // What is said in full is not said again in figures.
  const notes = samplingNotes(about).filter((note) => !loss || !/^(lost|coverage) /.test(note.text));
  return (
    <div class={`panel capture-hosts${partial ? ' partial' : ''}`}>
      <div class="tools">
        <strong class={partial ? 'warned' : ''}>
          {partial && <Icon of="warn" />} {tallyText(tally)}
        </strong>
        <span class="soft">
          {format.span(toMs(about.startUnixNs), toMs(about.startUnixNs + about.durationNs))} ·{' '}
          {format.plural(takenOf(profile), 'sample')}
          {about.event !== '' && ` of ${about.event.slice(0, 60)}`}
        </span>
        <ul class="capture-notes">
          {notes.map((note) => (
            <li key={note.text} class={note.bad ? 'bad' : note.warn ? 'warned' : 'soft'} title={note.title}>
              {note.text}
            </li>
          ))}
        </ul>
        {loss && <strong class={loss.bad ? 'wrong' : 'warned'}>{loss.text}</strong>}
        <button type="button" aria-expanded={open} onClick={() => setOpen(!open)}>
          Hosts <Icon of="down" />
        </button>
      </div>
      {!result && <LeftOut session={session} />}
      {notices.length > 0 && (
        <ul class="capture-notices">
          {notices.slice(0, NOTICES_SHOWN).map((notice, at) => (
            <li key={`${at}`} class="warned">
              <Name text={notice} max={300} />
            </li>
          ))}
          {notices.length > NOTICES_SHOWN && (
            <li class="soft">and {format.count(notices.length - NOTICES_SHOWN)} more</li>
          )}
        </ul>
      )}
      {open && <HostLines session={session} />}
    </div>
  );
}

function Stacks(
  props: PageProps & {
    part: Profile;
    whole: Profile;
    pick: Pick | undefined;
    name: string;
    selector: string;
    withLines: boolean | undefined;
  },
) {
  const { part, whole } = props;
  const { samples, collapse } = useDisplayState('samples', 'collapse');
  const { focus } = useViewState('focus');
  const { root } = useSelectionState('root');
  const labels = useMemo(() => labelsOf(whole), [whole]);
  const tree = useMemo(
    () =>
      buildTree(new Names(), part, {
        measure: samples ? 'count' : 'weight',
        collapse,
        focus,
        root,
      }),
    [part, samples, collapse, focus, root],
  );
  return (
    <FlamePanel
      tree={tree}
      unit={part.unit}
      diff={false}
      once
      labels={labels}
      profile={part}
      withLines={props.withLines}
      onRecord={(text) => props.openCapture(props.selector, linesDraft(text))}
      tools={<Files {...props} />}
      table={<TopTable tree={tree} unit={part.unit} source={{ profile: part }} labels={labels} pruned={0} />}
    />
  );
}

/** Files of what is shown. The collector does not keep the profile, so the page writes them. */
function Files({ part, whole, pick, name }: { part: Profile; whole: Profile; pick: Pick | undefined; name: string }) {
  const { samples } = useDisplayState('samples');
  const { timestamps } = whole;
  const label = pick ? `${name}-part` : name;
  return (
    <Popover
      title="Download the profile"
      align="right"
      label={
        <>
          <Icon of="download" /> Download
        </>
      }
    >
      {(close) => (
        <div class="menu">
          <button
            type="button"
            onClick={() => {
              save(json(part, timestamps && { timestamps, pick }), `${label}.json`, 'application/json');
              close();
            }}
          >
            <b>JSON</b>{' '}
            <span class="soft">
              everything, with {timestamps ? 'times and ' : ''}labels; `agent-ctl import` makes other formats of it
            </span>
          </button>
          <button
            type="button"
            onClick={() => {
              save(folded(part, samples ? part.count : part.weight), `${label}.folded`, 'text/plain');
              close();
            }}
          >
            <b>Folded stacks</b>{' '}
            <span class="soft">one line a stack, counts are {samples ? 'samples' : part.unit || 'weights'}</span>
          </button>
          <p class="soft">
            {pick ? 'Only the picked part. ' : ''}The collector does not keep it: what is not downloaded goes with this
            page.
          </p>
        </div>
      )}
    </Popover>
  );
}
