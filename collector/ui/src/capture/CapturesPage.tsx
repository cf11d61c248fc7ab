// Captures of the fleet: those that run, those that ended, and the profiles that the collector
// keeps.

import { useEffect, useRef, useState } from 'preact/hooks';
import { Link } from '../app/Link';
import { Answer, Empty, Icon, Name, Popover, TroubleBox } from '../app/parts';
import type { PageProps } from '../app/page';
import { FilterInput } from '../app/FilterInput';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { getState, setState, useViewState } from '../state/store';
import type { FleetCaptureInfo } from '../gen/fleetprof/collector/v1/control_pb';
import type { Trouble } from '../query/errors';
import { useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { toMs } from '../time/range';
import { whatOf } from './CaptureDialog';
import { CaptureView } from './CaptureView';
import { cancelCapture, captures, deleteCapture, listCaptures } from './client';
import { KeptPage } from './KeptPage';
import { captureTrouble, keptTrouble } from './trouble';
import { useNews } from './store';

/** Time between questions while somebody looks at the list. Unit: milliseconds. */
const ASK_MS = 3000;

export function CapturesPage(props: PageProps) {
  const { capture } = useViewState('capture');
  useNews(captures);
  const held = capture === '' ? undefined : captures.find(capture);
  // What this page took is here already.
  if (held) return <CaptureView {...props} session={held} hasPast={held.past !== undefined} />;
  return capture === '' ? <List {...props} /> : <KeptPage {...props} capture={capture} />;
}

function List(props: PageProps) {
  const [turn, setTurn] = useState(0);
  const [trouble, setTrouble] = useState<Trouble>();
  const [ending, setEnding] = useState<readonly bigint[]>([]);
  const query = useQuery(`captures\n${turn}\n${props.selectionKey}`, listCaptures, {
    words: captureTrouble,
  });
  // After a failure it is asked again by hand: what is said of it stays.
  const stopped = useRef(false);
  stopped.current = query.trouble !== undefined || query.waiting;
  useEffect(() => {
    const timer = setInterval(() => {
      if (!document.hidden && !stopped.current) setTurn((value) => value + 1);
    }, ASK_MS);
    return () => clearInterval(timer);
  }, []);
  const cancel = (id: bigint) => {
    setTrouble(undefined);
    setEnding((before) => [...before, id]);
    cancelCapture(id).then(
      () => setTurn((value) => value + 1),
      (error: unknown) => {
        setEnding((before) => before.filter((one) => one !== id));
        setTrouble(captureTrouble(error));
      },
    );
  };
  const remove = (id: bigint) => {
    setTrouble(undefined);
    deleteCapture(id).then(
      () => {
        captures.forget(String(id));
        setTurn((value) => value + 1);
      },
      (error: unknown) => setTrouble(keptTrouble(error)),
    );
  };
  return (
    <section class="page" aria-label="Captures">
      <header class="page-head">
        <h2>Captures</h2>
        <button type="button" class="primary" onClick={() => props.openCapture(getState().query)}>
          <Icon of="plus" /> New capture
        </button>
        <FilterInput label="Filter captures" placeholder="Filter by person, selector or reason" />
      </header>
      {trouble && <TroubleBox trouble={trouble} />}
      <Answer query={query} what="the captures">
        {(answer) => (
          <>
            <Rows captures={answer.captures} columns={columns(props.now, ending, cancel, remove)} />
            {answer.leftOut > 0n && (
              <p class="soft">and {format.count(Number(answer.leftOut))} older ones that are not listed</p>
            )}
          </>
        )}
      </Answer>
    </section>
  );
}

function Rows(props: { captures: readonly FleetCaptureInfo[]; columns: readonly ColumnOf<FleetCaptureInfo>[] }) {
  const { filter, sort } = useViewState('filter', 'sort');
  const wanted = filter.toLowerCase();
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of captures">
      <SortedTable
        caption="Captures"
        columns={props.columns}
        rows={props.captures.filter((one) =>
          [what(one), who(one), one.peer, reason(one)].some((text) => text.toLowerCase().includes(wanted)),
        )}
        sort={sort || 'started'}
        onSort={(next) => setState({ sort: next })}
        keyOf={(one) => String(one.id)}
        empty={
          <Empty title={props.captures.length ? 'No matching captures' : 'No captures yet'}>
            {!props.captures.length && (
              <p>
                A capture samples one host or many for a while, with any event, and shows when each sample was taken.
              </p>
            )}
          </Empty>
        }
      />
    </div>
  );
}

const what = (one: FleetCaptureInfo) => (one.request ? whatOf(one.request) : '');
const who = (one: FleetCaptureInfo) => one.request?.capture?.who ?? '';
const reason = (one: FleetCaptureInfo) => one.request?.capture?.reason ?? '';

function columns(
  now: () => number,
  ending: readonly bigint[],
  cancel: (id: bigint) => void,
  remove: (id: bigint) => void,
): ColumnOf<FleetCaptureInfo>[] {
  return [
    { key: 'id', title: 'No.', number: true, by: (one) => Number(one.id), cell: (one) => String(one.id) },
    {
      key: 'started',
      title: 'Started',
      number: true,
      by: (one) => Number(one.startedUnixNs),
      cell: (one) => (
        <span title={format.stamp(toMs(one.startedUnixNs))}>{format.ago(toMs(one.startedUnixNs), now())}</span>
      ),
    },
    {
      key: 'who',
      title: 'By',
      by: who,
      cell: (one) => (
        <span class="cell-name">
          {who(one) !== '' && <Name text={who(one)} max={40} />}
          <span class="soft">
            <Name text={one.peer} max={60} empty="" />
          </span>
        </span>
      ),
    },
    {
      key: 'name',
      title: 'What',
      by: what,
      cell: (one) => (
        <span class="cell-name">
          <Name text={what(one)} max={200} />
          {reason(one) !== '' && (
            <span class="soft">
              <Name text={reason(one)} max={120} />
            </span>
          )}
        </span>
      ),
    },
    {
      key: 'length',
      title: 'Duration',
      number: true,
      by: (one) => Number(one.elapsedNs),
      cell: (one) => format.duration(Math.round(Number(one.elapsedNs) / 1e8) * 1e8),
    },
    { key: 'outcome', title: 'Result', by: (one) => (one.running ? 'a' : 'b'), cell: (one) => <Outcome one={one} /> },
    {
      key: 'kept',
      title: 'Size',
      number: true,
      by: (one) => Number(one.bytes),
      cell: (one) => (one.kept ? format.bytes(Number(one.bytes)) : <span class="soft">–</span>),
    },
    {
      key: 'tools',
      title: 'Profile',
      cell: (one) => (
        <span class="capture-tools">
          {(one.running || one.kept || captures.find(String(one.id))) && (
            <Link class="small-button" to={{ capture: String(one.id) }}>
              Open
            </Link>
          )}
          {one.running && (
            <button
              type="button"
              class="small-button"
              disabled={ending.includes(one.id)}
              title="End the capture on all hosts and keep the samples so far"
              onClick={() => cancel(one.id)}
            >
              {ending.includes(one.id) ? 'Ending …' : 'End'}
            </button>
          )}
          {one.kept && (
            <Popover class="small-button" align="right" title="Remove this capture" label="Delete">
              {(close) => (
                <div class="menu">
                  <p>This deletes the capture for everyone. You cannot undo it.</p>
                  <button
                    type="button"
                    onClick={() => {
                      close();
                      remove(one.id);
                    }}
                  >
                    Delete capture {String(one.id)}
                  </button>
                </div>
              )}
            </Popover>
          )}
          {!one.running && !one.kept && !captures.find(String(one.id)) && (
            <span class="soft" title="The collector has no profile of this capture">
              –
            </span>
          )}
        </span>
      ),
    },
  ];
}

/** Most notices in a title. */
const NOTICES_TOLD = 20;

function Outcome({ one }: { one: FleetCaptureInfo }) {
  const notices = [
    ...(one.endedBy ? [one.endedBy] : []),
    ...one.notices,
    ...one.hosts
      .filter((host) => host.message !== '')
      .map((host) => `${host.hostname || host.hostId}: ${host.message}`),
  ].slice(0, NOTICES_TOLD);
  const title = notices.map((notice) => shown(notice, 300)).join('\n');
  if (one.running) {
    return (
      <span class="state on" title={title}>
        <span class="dot on" /> running on {format.plural(one.asked, 'host')}
      </span>
    );
  }
  const parts = [
    one.failed > 0 && `${format.count(one.failed)} failed`,
    one.lost > 0 && `${format.count(one.lost)} lost`,
  ].filter(Boolean);
  const whole = one.asked > 0 && one.answered === one.asked;
  return (
    <span class={whole ? '' : 'warned'} title={title}>
      {one.asked === 0 ? 'no host captured' : `${format.count(one.answered)} of ${format.plural(one.asked, 'host')}`}
      {parts.length > 0 && `: ${parts.join(', ')}`}
      {one.endedBy !== '' && (
        <span class="soft">
          {' '}
          <Name text={one.endedBy} max={60} />
        </span>
      )}
      {notices.length > 0 && (
        <span class="badge warn">
          <Icon of="warn" /> {notices.length}
        </span>
      )}
    </span>
  );
}
