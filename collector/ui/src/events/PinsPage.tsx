// What triggers pinned: the minutes around what they saw, on every host, and the profile of one.

import { useMemo } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useGraph } from '../analysis/useGraph';
import { useReloads } from '../analysis/useReloads';
import { FilterInput } from '../app/FilterInput';
import { FormatMenu } from '../app/Download';
import { Link } from '../app/Link';
import type { PageProps } from '../app/page';
import { Answer, Choice, Empty, Icon, Name } from '../app/parts';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { numberOf } from '../capture/address';
import { linesDraft } from '../capture/form';
import { FunctionParts } from '../app/FunctionTrend';
import { FlamePanel } from '../flame/FlamePanel';
import type { HostPin } from '../gen/fleetprof/collector/v1/pins_pb';
import { HeatPanel, Timed } from '../heat/HeatPanel';
import { baselineOf } from '../time/baseline';
import { lossOf, samplingNotes } from '../query/quality';
import { writeAll } from '../query/selector';
import { readPick, writePick } from '../query/timestamps';
import { useQuery } from '../query/useQuery';
import type { State } from '../state/address';
import { setState, useSelectionState, useViewState } from '../state/store';
import { TopTable } from '../tables/TopTable';
import * as format from '../text/format';
import { clipped, shown } from '../text/printable';
import { type Range, absoluteSpec, toMs } from '../time/range';
import { findPin, listPins } from './client';

export function PinsPage(props: PageProps) {
  const { pin } = useViewState('pin');
  return pin === '' ? <List {...props} /> : <One {...props} id={pin} />;
}

const hostOf = (one: HostPin) => one.hostname || one.hostId;
const triggerOf = (one: HostPin) => one.pin?.trigger ?? '';
const causeOf = (one: HostPin) => one.pin?.cause ?? '';
const lengthOf = (one: HostPin) => Number((one.pin?.range?.endUnixNs ?? 0n) - (one.pin?.range?.startUnixNs ?? 0n));

function List(props: PageProps) {
  const { pinTimes } = useViewState('pinTimes');
  const range = pinTimes === 'range' ? props.range : undefined;
  const query = useQuery(`pins ${pinTimes}\n${props.selectionKey}`, (signal) => listPins(range, signal));
  return (
    <section class="page" aria-label="Pins">
      <header class="page-head">
        <h2>Pins</h2>
        <div class="pin-filters">
          <Choice
            label="Pins"
            value={pinTimes}
            of={[
              ['all', 'All', 'Pins from any time'],
              ['range', 'In the range', 'Pins from the time range above'],
            ]}
            onChange={(next) => setState({ pinTimes: next })}
          />
          <FilterInput label="Filter pins" placeholder="Filter by host, trigger, cgroup or reason" />
        </div>
      </header>
      <Answer query={query} what="the pins">
        {(answer) => (
          <>
            {answer.leftOut > 0n && (
              <p class="notice">
                {format.count(Number(answer.leftOut))} older pins are not listed: choose a range that they fired in.
              </p>
            )}
            <Rows {...props} pins={answer.pins} />
          </>
        )}
      </Answer>
    </section>
  );
}

function Rows(props: PageProps & { pins: readonly HostPin[] }) {
  const { filter, sort } = useViewState('filter', 'sort');
  const wanted = filter.toLowerCase();
  const matches = (one: HostPin) =>
    [hostOf(one), triggerOf(one), causeOf(one), one.pin?.cgroup ?? ''].some((text) =>
      text.toLowerCase().includes(wanted),
    );
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of pins">
      <SortedTable
        caption="Pins"
        columns={columns(props)}
        rows={props.pins.filter(matches)}
        sort={sort || 'fired'}
        onSort={(next) => setState({ sort: next })}
        keyOf={(one) => String(one.id)}
        empty={
          <Empty title={props.pins.length ? 'No matching pins' : 'No pins'}>
            {!props.pins.length && (
              <p>
                A trigger of an agent’s configuration (`triggers`) pins the minutes around the moment it fires: what
                throttled, or waited for CPU, then. Nothing has fired, or no trigger is configured.
              </p>
            )}
          </Empty>
        }
      />
    </div>
  );
}

function columns(props: PageProps): ColumnOf<HostPin>[] {
  return [
    {
      key: 'fired',
      title: 'Fired',
      number: true,
      by: (one) => Number(one.pin?.firedUnixNs ?? 0n),
      cell: (one) => (
        <Link to={{ view: 'pins', pin: String(one.id) }} title={format.stamp(toMs(one.pin?.firedUnixNs ?? 0n))}>
          {format.ago(toMs(one.pin?.firedUnixNs ?? 0n), props.now())}
        </Link>
      ),
    },
    { key: 'host', title: 'Host', by: hostOf, cell: (one) => <Name text={hostOf(one)} max={60} /> },
    {
      key: 'name',
      title: 'Trigger',
      by: triggerOf,
      cell: (one) => (
        <span class="pin-why">
          <Name text={triggerOf(one)} max={60} empty="(not shown)" />
          {causeOf(one) !== '' && (
            <span class="soft">
              <Name text={causeOf(one)} max={160} />
            </span>
          )}
        </span>
      ),
    },
    {
      key: 'cgroup',
      title: 'Cgroup',
      by: (one) => one.pin?.cgroup ?? '',
      cell: (one) => <Name text={one.pin?.cgroup ?? ''} max={80} empty="host" />,
    },
    {
      key: 'length',
      title: 'Kept',
      number: true,
      by: lengthOf,
      cell: (one) => format.duration(lengthOf(one)),
    },
    {
      key: 'capture',
      title: 'Capture',
      by: (one) => Number(one.pin?.captureBytes ?? 0n),
      cell: (one) =>
        (one.pin?.captureBytes ?? 0n) > 0n ? (
          <Link to={{ view: 'pins', pin: String(one.id), part: 'captured' }}>Open</Link>
        ) : (
          <span class="soft">–</span>
        ),
    },
  ];
}

function One(props: PageProps & { id: string }) {
  const number = numberOf(props.id);
  const query = useQuery(`pin ${props.id}`, async (signal) => ({
    of: number === undefined ? undefined : await findPin(number, signal),
  }));
  return (
    <section class="capture-view pin-view" aria-label="Pin">
      <header class="page-head">
        <Link class="back" to={{ view: 'pins', pin: '' }}>
          <Icon of="left" /> All pins
        </Link>
        <h2>Pin {shown(props.id, 20)}</h2>
      </header>
      <Answer query={query} what="the pin">
        {({ of }) =>
          of ? (
            <Opened {...props} one={of} />
          ) : (
            <Empty title="Pin not found">
              <p>It is older than the retention (`pins.retention_days`), or you may not see it.</p>
            </Empty>
          )
        }
      </Answer>
    </section>
  );
}

/** Where the same host and cgroup are in what is stored. */
function selectorOf(one: HostPin): string {
  const host = { label: 'host', op: '=' as const, value: hostOf(one) };
  const cgroup = one.pin?.cgroup ?? '';
  return writeAll(cgroup === '' ? [host] : [host, { label: 'cgroup', op: '^=' as const, value: cgroup }]);
}

/** What leads from a pin to the data of its time, and of the day before. */
function leads(one: HostPin): { profile: Partial<State>; before: Partial<State> } | undefined {
  const { range } = one.pin ?? {};
  if (!range || range.endUnixNs <= range.startUnixNs) return undefined;
  const times: Range = { from: toMs(range.startUnixNs), to: toMs(range.endUnixNs) };
  const was = absoluteSpec(baselineOf(times, 'day') ?? times);
  const common = {
    ...absoluteSpec(times),
    live: false,
    query: selectorOf(one),
    pin: '',
    part: '' as const,
    filters: [],
  };
  return {
    profile: { ...common, view: 'profile' },
    before: { ...common, view: 'compare', bfrom: was.from, bto: was.to, bquery: undefined },
  };
}

function Opened(props: PageProps & { one: HostPin }) {
  const { one } = props;
  const { part } = useViewState('part');
  const { pin } = one;
  const hasCapture = (pin?.captureBytes ?? 0n) > 0n;
  const captured = part === 'captured' && hasCapture;
  const to = leads(one);
  const reloads = useReloads();
  const query = useQuery(
    `pin profile ${one.id} ${captured}\n${reloads}`,
    (signal, progress) => analysis.pin(String(one.id), captured, signal, progress),
    { dispose: (data) => analysis.release(data) },
  );
  return (
    <>
      <div class="panel">
        <dl class="pin-facts">
          <dt>Fired</dt>
          <dd>
            {format.stamp(toMs(pin?.firedUnixNs ?? 0n))}, {format.ago(toMs(pin?.firedUnixNs ?? 0n), props.now())}
          </dd>
          <dt>Host</dt>
          <dd>
            <Name text={hostOf(one)} max={120} />
          </dd>
          <dt>Trigger</dt>
          <dd>
            <Name text={triggerOf(one)} max={120} empty="(hidden: outside your scope)" />
          </dd>
          {causeOf(one) !== '' && (
            <>
              <dt>Why</dt>
              <dd>
                <Name text={causeOf(one)} max={600} />
              </dd>
            </>
          )}
          {pin?.cgroup !== '' && (
            <>
              <dt>Cgroup</dt>
              <dd>
                <Name text={pin?.cgroup ?? ''} max={300} />
              </dd>
            </>
          )}
          <dt>Kept</dt>
          <dd>
            {format.span(toMs(pin?.range?.startUnixNs ?? 0n), toMs(pin?.range?.endUnixNs ?? 0n))} (
            {format.duration(lengthOf(one))}), times of the host’s clock
          </dd>
        </dl>
        <div class="pin-acts">
          {hasCapture && (
            <Choice
              label="Part of the pin"
              value={captured ? 'captured' : ''}
              of={[
                ['', 'Minutes', 'The recorder’s minutes around the trigger'],
                ['captured', 'Captured', 'The trigger’s capture'],
              ]}
              onChange={(next) => setState({ part: next, pick: '' })}
            />
          )}
          {to && (
            <>
              <Link to={to.profile}>Open this time on the Profile page</Link>
              <Link to={to.before}>Compare with the same time a day before</Link>
            </>
          )}
        </div>
      </div>
      <Answer query={query} what="the profile of the pin" unit="stacks">
        {(profile) => <Stacks {...props} profile={profile} captured={captured} />}
      </Answer>
    </>
  );
}

function Stacks(props: PageProps & { one: HostPin; profile: LoadedProfile; captured: boolean }) {
  const { profile, one, captured } = props;
  const { timestamps, about } = profile;
  const { pick: picked } = useSelectionState('pick');
  const pick = useMemo(() => timestamps && readPick(timestamps, picked), [timestamps, picked]);
  const of = { id: profile.id, pick };
  const query = useGraph(of);
  if (profile.rows === 0)
    return (
      <Empty title="No samples">
        <p>The pin has no samples that you may see.</p>
      </Empty>
    );
  const loss = lossOf(about.sampling, `of ${format.duration(Number(about.durationNs))}`);
  return (
    <Timed onEscape={pick && (() => setState({ pick: '' }))}>
      <p class="soft">
        {format.plural(profile.taken, 'sample')}
        {about.event !== '' && ` of ${clipped(about.event, 60)}`}
        {samplingNotes(about).map((note) => ` · ${note.text}`)}
      </p>
      {loss && <strong class={loss.bad ? 'wrong' : 'warned'}>{loss.text}</strong>}
      {timestamps ? (
        <HeatPanel
          profile={profile}
          timestamps={timestamps}
          pick={pick}
          onPick={(next) => setState({ pick: writePick(timestamps, next) })}
        />
      ) : (
        <p class="soft">The samples have no times, so there is no heat map.</p>
      )}
      <Answer query={query} what="the graph">
        {(graph) => (
          <FlamePanel
            graph={graph}
            labels={profile.labels}
            hasLines={profile.hasLines}
            about={(fn) => <FunctionParts fn={fn} of={of} labels={profile.labels} />}
            onRecord={(text) => props.openCapture(selectorOf(one), linesDraft(text))}
            tools={
              <FormatMenu
                url={(extension) => `api/pin.${extension}?id=${one.id}${captured ? '&captured=1' : ''}`}
                note={pick ? 'complete pin, not the picked part' : undefined}
              />
            }
            table={<TopTable graph={graph} source={{ profile: of }} labels={profile.labels} pruned={0} />}
          />
        )}
      </Answer>
    </Timed>
  );
}
