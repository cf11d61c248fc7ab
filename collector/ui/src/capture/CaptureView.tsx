// A capture that ended, with its profile: which hosts it is of, when samples were taken, graph and
// table.

import { useMemo, useState } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { FileKind, LoadedProfile } from '../analysis/protocol';
import { useGraph } from '../analysis/useGraph';
import { Answer, Choice, Empty, Icon, Name, Popover, TroubleBox } from '../app/parts';
import type { PageProps } from '../app/page';
import { FormatList } from '../app/Download';
import { Link } from '../app/Link';
import { setState, useDisplayState, useSelectionState, useViewState } from '../state/store';
import { FunctionParts } from '../app/FunctionTrend';
import { FlamePanel } from '../flame/FlamePanel';
import { HeatPanel, Timed } from '../heat/HeatPanel';
import { type Pick, readPick, writePick } from '../query/timestamps';
import { type Trouble, troubleOf } from '../query/errors';
import { lossOf, samplingNotes } from '../query/quality';
import { TopTable } from '../tables/TopTable';
import * as format from '../text/format';
import { clipped } from '../text/printable';
import { toMs } from '../time/range';
import { type Kept, captureUrl } from './address';
import { LeftOut, whatOf } from './CaptureDialog';
import { HostLines, tallyText } from './HostLines';
import { Notices } from './Notices';
import { save } from './save';
import { linesDraft } from './form';
import { type Shown, tallyOf } from './session';
import { idOf } from './store';

/** `hasPast`: there is a profile of the time before, here or at the collector. */
export function CaptureView(props: PageProps & { session: Shown; hasPast: boolean }) {
  const { session, hasPast } = props;
  const { side: asked } = useViewState('side');
  const { pick: picked } = useSelectionState('pick');
  const side = hasPast ? asked : 'during';
  const profile = side === 'before' ? session.past : session.profile;
  const timestamps = profile?.timestamps;
  const pick = useMemo(() => timestamps && readPick(timestamps, picked), [timestamps, picked]);
  if (!profile) return null;
  const setPick = (next: Pick | undefined) => setState({ pick: timestamps ? writePick(timestamps, next) : '' });
  // That is said above, and there is nothing else to say.
  const allLost = profile.taken === 0 && profile.rows > 0;
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
        {hasPast && (
          <Choice
            label="Time"
            value={side}
            of={[
              ['during', 'During', 'Samples of the capture'],
              ['before', 'Before', 'Samples of the flight recorders from before the capture'],
            ]}
            onChange={(next) => setState({ side: next })}
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
          <HeatPanel profile={profile} timestamps={timestamps} pick={pick} onPick={setPick} />
        ) : (
          <p class="soft">
            {side === 'before'
              ? 'The samples from before the capture have no times.'
              : 'The samples have no times, so there is no heat map.'}
          </p>
        )}
        {allLost ? null : profile.rows === 0 ? (
          <Empty title="No samples">
            <p>The event did not occur in the selection during this time.</p>
          </Empty>
        ) : (
          <Stacks
            {...props}
            profile={profile}
            pick={pick}
            selector={session.request.selector}
            withLines={side !== 'before' && session.request.capture?.lines === true}
            name={`fleetprof-capture-${idOf(session)}${side === 'before' ? '-before' : ''}`}
            kept={session.result?.kept ? { id: idOf(session), past: side === 'before' } : undefined}
          />
        )}
      </Timed>
    </section>
  );
}

function Hosts({ session, profile }: { session: Shown; profile: LoadedProfile }) {
  const tally = useMemo(() => tallyOf(session.hosts.values()), [session]);
  const partial = tally.answered < tally.all || tally.partial > 0;
  const [open, setOpen] = useState(false);
  const { result } = session;
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
          {format.plural(profile.taken, 'sample')}
          {about.event !== '' && ` of ${clipped(about.event, 60)}`}
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
      {result && <Notices of={result} />}
      {open && <HostLines session={session} />}
    </div>
  );
}

interface StacksProps extends PageProps {
  profile: LoadedProfile;
  pick: Pick | undefined;
  name: string;
  kept: Kept | undefined;
  selector: string;
  withLines: boolean;
}

function Stacks(props: StacksProps) {
  const { profile, pick } = props;
  const of = { id: profile.id, pick };
  const query = useGraph(of);
  return (
    <Answer query={query} what="the graph">
      {(graph) => (
        <FlamePanel
          graph={graph}
          once
          labels={profile.labels}
          hasLines={props.withLines || profile.hasLines}
          about={(fn) => <FunctionParts fn={fn} of={of} labels={profile.labels} />}
          onRecord={(text) => props.openCapture(props.selector, linesDraft(text))}
          tools={<Files profile={profile} pick={pick} name={props.name} kept={props.kept} />}
          table={<TopTable graph={graph} source={{ profile: of }} labels={profile.labels} pruned={0} />}
        />
      )}
    </Answer>
  );
}

interface FilesProps {
  profile: LoadedProfile;
  pick: Pick | undefined;
  name: string;
  kept: Kept | undefined;
}

/**
 * Files of what is shown: the collector writes those of what it keeps, and the page what nobody
 * else has, such as the part of the time that is picked.
 */
function Files({ profile, pick, name, kept }: FilesProps) {
  const { samples } = useDisplayState('samples');
  const [trouble, setTrouble] = useState<Trouble>();
  const label = pick ? `${name}-part` : name;
  const write = (kind: FileKind, close: () => void) => {
    setTrouble(undefined);
    analysis.file({ of: { id: profile.id, pick }, kind, samples }, new AbortController().signal).then(
      (file) => {
        save(file, `${label}.${kind}`);
        close();
      },
      (error: unknown) => setTrouble(troubleOf(error)),
    );
  };
  return (
    <Popover title="Download the profile" align="right" label="Download">
      {(close) => (
        <div class="menu">
          {trouble && <TroubleBox trouble={trouble} />}
          {(!kept || pick) && (
            <>
              <button type="button" onClick={() => write('json', close)}>
                <b>JSON{pick && ' of the picked part'}</b>{' '}
                <span class="soft">
                  everything, with {profile.timestamps ? 'times and ' : ''}labels; `agent-ctl import` makes other
                  formats of it
                </span>
              </button>
              <button type="button" onClick={() => write('folded', close)}>
                <b>Folded stacks{pick && ' of the picked part'}</b>{' '}
                <span class="soft">one line a stack, counts are {samples ? 'samples' : profile.unit || 'weights'}</span>
              </button>
            </>
          )}
          {kept ? (
            <FormatList
              url={(extension) => captureUrl(kept, extension)}
              note={pick && 'These cover the complete time, not the picked part.'}
              close={close}
            />
          ) : (
            <p class="soft">
              {pick ? 'Only the picked part. ' : ''}The collector does not keep this profile: download it, or it is lost
              with this page.
            </p>
          )}
        </div>
      )}
    </Popover>
  );
}
