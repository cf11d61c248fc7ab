// A capture that another page or program took, or this one before it was loaded again: how far it
// is while it runs, and its profile once the collector keeps it.

import { useEffect, useRef, useState } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useReloads } from '../analysis/useReloads';
import { Link } from '../app/Link';
import { Answer, Icon, Name, TroubleBox } from '../app/parts';
import type { PageProps } from '../app/page';
import type { FleetCaptureInfo } from '../gen/fleetprof/collector/v1/control_pb';
import type { Trouble } from '../query/errors';
import { useQuery } from '../query/useQuery';
import { useViewState } from '../state/store';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { numberOf } from './address';
import { CaptureView } from './CaptureView';
import { runningText, whatOf } from './CaptureDialog';
import { cancelCapture, findCapture } from './client';
import { HostLines, steady } from './HostLines';
import { Notices } from './Notices';
import { shownOf, tallyOf } from './session';
import { captureTrouble, keptTrouble } from './trouble';

/** Time between questions how far a capture is. Unit: milliseconds. */
const ASK_MS = 1000;

export function KeptPage(props: PageProps & { capture: string }) {
  const id = numberOf(props.capture);
  if (id === undefined) return <NotThere capture={props.capture} />;
  return <Known {...props} key={props.capture} id={id} />;
}

function Known(props: PageProps & { capture: string; id: bigint }) {
  const { id, capture, selectionKey } = props;
  const [turn, setTurn] = useState(0);
  const query = useQuery(
    `capture ${capture}\n${turn}\n${selectionKey}`,
    async (signal) => ({ info: await findCapture(id, signal) }),
    { words: captureTrouble },
  );
  const runs = query.data?.info?.running === true && query.trouble === undefined;
  // A question under way is not given up for the next one: a slow collector would never answer.
  const waits = useRef(false);
  waits.current = query.waiting;
  useEffect(() => {
    if (!runs) return;
    const timer = setInterval(() => {
      if (!document.hidden && !waits.current) setTurn((value) => value + 1);
    }, ASK_MS);
    return () => clearInterval(timer);
  }, [runs]);
  return (
    <Answer query={query} what="the capture">
      {({ info }) =>
        info === undefined ? (
          <NotThere capture={capture} />
        ) : info.running ? (
          <Running info={info} />
        ) : info.kept ? (
          <Loaded {...props} info={info} />
        ) : (
          <WithoutProfile info={info} />
        )
      }
    </Answer>
  );
}

function Head({ capture, what }: { capture: string; what?: string }) {
  return (
    <header class="page-head">
      <Link class="back" to={{ capture: '' }}>
        <Icon of="left" /> All captures
      </Link>
      <h2>Capture {shown(capture, 40)}</h2>
      {what !== undefined && (
        <span class="capture-what">
          <Name text={what} max={200} />
        </span>
      )}
    </header>
  );
}

function NotThere({ capture }: { capture: string }) {
  return (
    <section class="page" aria-label="Capture">
      <Head capture={capture} />
      <p class="notice">
        There is no capture {shown(capture, 40)}: it was deleted, or removed because of its age or size (`captures` in
        the collector’s config), it was taken at another collector, or you may not see it.
      </p>
    </section>
  );
}

/** One that runs elsewhere. */
function Running({ info }: { info: FleetCaptureInfo }) {
  const [ending, setEnding] = useState(false);
  const [trouble, setTrouble] = useState<Trouble>();
  const session = shownOf(info);
  const tally = tallyOf(session.hosts.values());
  const durationNs = Number(session.request.capture?.durationNs ?? 0n);
  const farthest = Math.max(0, ...[...session.hosts.values()].map((host) => Number(host.progress?.elapsedNs ?? 0n)));
  const end = () => {
    setEnding(true);
    setTrouble(undefined);
    cancelCapture(info.id).catch((error: unknown) => {
      setEnding(false);
      setTrouble(captureTrouble(error));
    });
  };
  return (
    <section class="page capture-live" aria-label="Capture">
      <Head capture={String(info.id)} what={whatOf(session.request)} />
      {trouble && <TroubleBox trouble={trouble} />}
      <div class="capture-progress" role="status">
        <progress
          aria-label="Capture"
          max={1}
          value={!ending && durationNs > 0 ? Math.min(1, farthest / durationNs) : undefined}
        />
        <span class="soft">
          {ending
            ? 'Ending the capture on the hosts'
            : `${format.duration(steady(farthest))} of ${format.duration(durationNs)}; its profile opens here when it has ended`}
        </span>
      </div>
      <p>
        {runningText(ending, tally)}
        <span class="soft"> · {format.plural(tally.samples, 'sample')}</span>
      </p>
      <HostLines session={session} />
      <footer>
        <button
          type="button"
          disabled={ending}
          title="End the capture on all hosts and keep the samples so far"
          onClick={end}
        >
          {ending ? 'Ending …' : 'Stop and keep'}
        </button>
      </footer>
    </section>
  );
}

/** One that ended, and of which there is no profile. */
function WithoutProfile({ info }: { info: FleetCaptureInfo }) {
  const session = shownOf(info);
  return (
    <section class="page" aria-label="Capture">
      <Head capture={String(info.id)} what={whatOf(session.request)} />
      <p class="notice">
        {info.answered === 0
          ? 'No host returned a profile.'
          : 'The collector has no profile of this capture: only the person who started it has its files.'}
      </p>
      <Notices of={info} />
      {session.hosts.size > 0 && <HostLines session={session} />}
    </section>
  );
}

function Loaded(props: PageProps & { info: FleetCaptureInfo }) {
  const { info } = props;
  const { side } = useViewState('side');
  const past = side === 'before' && info.hasPast;
  const reloads = useReloads();
  const query = useQuery(
    `kept ${info.id} ${past}\n${reloads}`,
    (signal, progress) => analysis.kept(info.id, past, signal, progress),
    { dispose: (data: { profile: LoadedProfile }) => analysis.release(data.profile), words: keptTrouble },
  );
  return (
    <Answer query={query} what="the capture" unit="stacks">
      {(data) => (
        <CaptureView
          {...props}
          hasPast={info.hasPast}
          session={{
            ...shownOf({ ...info, ...data.info }),
            profile: past ? undefined : data.profile,
            past: past ? data.profile : undefined,
          }}
        />
      )}
    </Answer>
  );
}
