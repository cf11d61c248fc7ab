// Every host ever heard of: who is there, who is not, and what is wrong with their data.

import { type ColumnOf, SortedTable } from '../app/sorting';
import { Bar, Empty, Icon, Name } from '../app/parts';
import { FilterInput } from '../app/FilterInput';
import { getState, setState, useViewState } from '../state/store';
import type { Host, HostsResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { withMatcher } from '../query/selector';
import * as format from '../text/format';
import { shown } from '../text/printable';
import type { Range } from '../time/range';
import { toMs } from '../time/range';
import { Severity } from '../gen/fleetprof/agent/v1/agent_pb';
import { COVERAGE_HINT, COVERAGE_LOW, coverageOf } from '../query/quality';

/** A clock that is wrong by more is told of. Unit: nanoseconds. */
const CLOCK_WRONG_NS = 2e9;

interface Props {
  answer: HostsResponse;
  range: Range;
  now: number;
  /** Asks for a capture of a selection. */
  onCapture: (query: string) => void;
  /** The baseline; absent: there is none, or it is not known yet. */
  before?: Before;
}

interface Before {
  answer: HostsResponse;
  range: Range;
  /** What it is called. */
  words: string;
}

const hostname = (host: Host) => host.facts?.hostname || host.hostId;

/** Lost part of what a host took. */
const lostOf = (host: Host) => (host.weight > 0n ? Number(host.lostWeight) / Number(host.weight) : 0);

/** Time of the range that a host was heard in. Unit: nanoseconds. */
export function heardNs(host: Host, range: Range): number {
  const from = Math.max(range.from, toMs(host.firstSeenUnixNs));
  const to = Math.min(range.to, toMs(host.lastSeenUnixNs));
  return Math.max(0, (to - from) * 1e6 - Number(host.gapNs));
}

/** How bad it is: 2 no usable samples, 1 something is wrong, 0 all is well. */
function severityOf(host: Host): number {
  return host.blind || lostOf(host) >= 0.5 ? 2 : host.warnings.length > 0 || lostOf(host) > 0.01 ? 1 : 0;
}

export function Hosts({ answer, range, now, onCapture, before }: Props) {
  const { filter, sort } = useViewState('filter', 'sort');
  const wanted = filter.toLowerCase();
  const hosts = answer.hosts.filter((host) =>
    [hostname(host), host.hostId, host.facts?.kernel ?? '', ...Object.values(host.facts?.labels ?? {})].some((text) =>
      text.toLowerCase().includes(wanted),
    ),
  );
  const blind = answer.hosts.filter((host) => severityOf(host) === 2).length;
  const warned = answer.hosts.filter((host) => host.warnings.length > 0).length;
  const away = answer.hosts.filter((host) => !host.connected).length;
  // What is wrong stands first, until somebody sorts.
  if (sort === '')
    hosts.sort((left, right) => severityOf(right) - severityOf(left) || (hostname(left) < hostname(right) ? -1 : 1));
  return (
    <section class="page" aria-label="Hosts">
      <header class="page-head">
        <h2>Hosts</h2>
        <span class="soft">
          {format.plural(answer.hosts.length, 'host')}
          {blind > 0 && <b class="wrong">, {format.count(blind)} without usable samples</b>}
          {away > 0 && `, ${format.count(away)} not connected`}
          {warned > 0 && `, ${format.count(warned)} with warnings`}
        </span>
        <FilterInput label="Filter hosts" placeholder="Filter by name, id, kernel or label" />
      </header>
      <div class="scroll" tabIndex={0} role="region" aria-label="Table of hosts">
        <SortedTable
          caption="Hosts"
          columns={columns(range, now, answer.quality?.unit ?? '', onCapture, before)}
          rows={hosts}
          sort={sort}
          onSort={(next) => setState({ sort: next })}
          keyOf={(host) => `${host.hostId} ${host.bootId}`}
          rowClass={(host) => (severityOf(host) === 2 ? 'blind' : host.connected ? '' : 'away')}
          empty={
            <Empty title={answer.hosts.length ? 'No matching hosts' : 'No hosts'}>
              {!answer.hosts.length && (
                <p>
                  No host has sent data yet, or none is in the scope of your login. A host appears ten seconds after it
                  has joined (`agent-ctl join`), or its agent was started with `fleetprofd --collector HOST:PORT`.
                </p>
              )}
            </Empty>
          }
        />
      </div>
    </section>
  );
}

function columns(
  range: Range,
  now: number,
  unit: string,
  onCapture: Props['onCapture'],
  before: Before | undefined,
): ColumnOf<Host>[] {
  const seen = (host: Host) => toMs(host.lastSeenUnixNs);
  const spool = (host: Host) => Number(host.facts?.spool?.bytes ?? 0n);
  const openHost = (host: Host) =>
    setState({
      view: 'profile',
      query: withMatcher(getState().query, { label: 'host', op: '=', value: hostname(host) }),
    });
  return [
    {
      key: 'host',
      title: 'Host',
      by: hostname,
      cell: (host) => (
        <span class="cell-name">
          <span
            class={`dot ${severityOf(host) === 2 ? 'bad' : host.connected ? 'on' : ''}`}
            title={severityOf(host) === 2 ? 'no usable samples' : host.connected ? 'connected' : 'not connected'}
          />
          <button type="button" class="plain grow" title="Show its profile" onClick={() => openHost(host)}>
            <Name text={hostname(host)} max={80} />
          </button>
          {host.warnings.length > 0 && (
            <span class="badge warn" title={host.warnings.map((one) => shown(one)).join('\n')}>
              <Icon of="warn" /> {host.warnings.length}
            </span>
          )}
          {host.connected && (
            <button
              type="button"
              class="plain square-small"
              title="Capture on this host"
              aria-label={`Capture on ${hostname(host).slice(0, 60)}`}
              onClick={() => onCapture(withMatcher('', { label: 'host', op: '=', value: hostname(host) }))}
            >
              <Icon of="record" />
            </button>
          )}
        </span>
      ),
    },
    {
      key: 'seen',
      title: 'Last seen',
      number: true,
      by: seen,
      cell: (host) => (
        <span title={format.stamp(seen(host))}>
          {host.connected && now - seen(host) < 60e3 ? 'now' : format.ago(seen(host), now)}
        </span>
      ),
    },
    {
      key: 'cpu',
      title: 'CPU',
      hint: 'Mean cores in use, of all cores, over the time with data; cycles a second for hosts that count cycles. Lost samples are included as an estimate',
      number: true,
      by: (host) => (isTime(host, unit) ? 2 ** 64 : 0) + Number(host.weight),
      cell: (host) => <Cpu host={host} unit={host.unit || unit} rangeNs={heardNs(host, range)} />,
    },
    ...(before ? [beforeColumn(before, unit)] : []),
    {
      key: 'lost',
      title: 'Lost',
      hint: 'Part of the samples lost before they were read, in the range',
      number: true,
      by: lostOf,
      cell: (host) => <Lost host={host} />,
    },
    {
      key: 'coverage',
      title: 'Coverage',
      hint: COVERAGE_HINT,
      number: true,
      by: (host) => coverageOf(host.coverage) ?? -1,
      cell: (host) => <CoverageCell host={host} />,
    },
    {
      key: 'gap',
      title: 'Gaps',
      hint: 'Time without data in the range',
      number: true,
      by: (host) => Number(host.gapNs),
      cell: (host) =>
        host.gapNs > 0n ? (
          <span class="warned">{format.duration(Number(host.gapNs))}</span>
        ) : (
          <span class="soft">none</span>
        ),
    },
    {
      key: 'spool',
      title: 'Spool',
      hint: 'Data that waits on the host',
      number: true,
      by: spool,
      cell: (host) => <Spool host={host} now={now} />,
    },
    {
      key: 'clock',
      title: 'Clock',
      hint: 'Difference from the collector’s clock; positive is ahead',
      number: true,
      by: (host) => Math.abs(Number(host.clockAheadNs)),
      cell: (host) => <Clock host={host} />,
    },
    {
      key: 'version',
      title: 'Agent',
      by: (host) => host.facts?.agentVersion ?? '',
      cell: (host) => <Name text={host.facts?.agentVersion ?? ''} max={24} empty="–" />,
    },
    {
      key: 'kernel',
      title: 'Kernel',
      by: (host) => host.facts?.kernel ?? '',
      cell: (host) => (
        <Name text={[host.facts?.kernel, host.facts?.arch].filter(Boolean).join(' ')} max={48} empty="–" />
      ),
    },
    { key: 'labels', title: 'Warnings and labels', cell: (host) => <Notes host={host} /> },
  ];
}

/** Cores of each host in the baseline. A host has a row for each boot; they are one here. */
function beforeColumn({ answer, range, words }: Before, unit: string): ColumnOf<Host> {
  const cores = new Map<string, number>();
  for (const host of answer.hosts) {
    if (host.windows === 0n || !isTime(host, unit)) continue;
    const heard = heardNs(host, range);
    if (heard > 0) cores.set(host.hostId, (cores.get(host.hostId) ?? 0) + Number(host.weight) / heard);
  }
  return {
    key: 'before',
    title: 'Before',
    hint: `Mean cores in use ${words}`,
    number: true,
    by: (host) => cores.get(host.hostId) ?? -1,
    cell: (host) => {
      const value = cores.get(host.hostId);
      return <span class="soft">{value === undefined ? 'no data' : format.significant(value, 2)}</span>;
    },
  };
}

/** Weights of other hosts are cycles or events, which do not compare with time. */
function isTime(host: Host, unit: string): boolean {
  return (host.unit || unit) === 'nanoseconds' || host.weight === 0n;
}

function Cpu({ host, unit, rangeNs }: { host: Host; unit: string; rangeNs: number }) {
  if (host.windows === 0n)
    return (
      <span class="soft" title="The host has no windows that start in this time">
        –
      </span>
    );
  if (!isTime(host, unit)) {
    if (unit === '')
      return (
        <span title="Unknown unit: the host has sent nothing since the collector started">
          {format.compact(Number(host.weight))} ?
        </span>
      );
    return (
      <span
        title={`This host counts ${unit.slice(0, 40)}, not CPU time`}
      >{`${format.compact((Number(host.weight) / rangeNs) * 1e9)} ${unit.slice(0, 40)}/s`}</span>
    );
  }
  const cores = Number(host.weight) / rangeNs;
  const online = host.facts?.cpusOnline ?? 0;
  return (
    <Bar fraction={online > 0 ? cores / online : 0}>
      {format.significant(cores, 2)}
      {online > 0 && <span class="soft"> / {online}</span>}
    </Bar>
  );
}

function Lost({ host }: { host: Host }) {
  const lost = lostOf(host);
  return (
    <span class={lost >= 0.5 ? 'wrong' : lost > 0.01 ? 'warned' : 'soft'}>
      {lost > 0 ? format.percent(lost) : host.weight > 0n ? '0 %' : '–'}
    </span>
  );
}

function CoverageCell({ host }: { host: Host }) {
  const coverage = coverageOf(host.coverage);
  if (coverage === undefined) return <span class="soft">–</span>;
  return (
    <span class={coverage < 0.5 ? 'wrong' : coverage < COVERAGE_LOW ? 'warned' : ''}>
      {format.percent(Math.min(coverage, 9.99))}
    </span>
  );
}

function Spool({ host, now }: { host: Host; now: number }) {
  const spool = host.facts?.spool;
  if (!spool) return <span class="soft">–</span>;
  const title = `${format.plural(Number(spool.windows), 'window')} of at most ${format.bytes(Number(spool.bytesMax))}${spool.oldestUnixNs > 0n ? `, oldest ${format.ago(toMs(spool.oldestUnixNs), now)}` : ''}; dropped since boot: ${format.count(Number(spool.droppedWindows))}`;
  return (
    <span title={title} class={spool.droppedWindows > 0n ? 'warned' : spool.windows > 0n ? '' : 'soft'}>
      {spool.windows > 0n ? format.bytes(Number(spool.bytes)) : 'empty'}
      {spool.droppedWindows > 0n && ` (−${format.count(Number(spool.droppedWindows))})`}
    </span>
  );
}

function Clock({ host }: { host: Host }) {
  const ahead = Number(host.clockAheadNs);
  const wrong = Math.abs(ahead) > CLOCK_WRONG_NS;
  return (
    <span class={wrong ? 'warned' : 'soft'}>
      {Math.abs(ahead) < 1e6 ? '0 s' : `${ahead > 0 ? '+' : ''}${format.duration(ahead)}`}
    </span>
  );
}

function Notes({ host }: { host: Host }) {
  const told = host.degradations.filter((one) => one.severity === Severity.WARNING || one.severity === Severity.ERROR);
  return (
    <span class="notes">
      {told.map((one, at) => (
        <span
          class={one.severity === Severity.ERROR ? 'wrong' : 'warned'}
          key={`${at}`}
          title={
            [one.sinceUnixNs > 0n ? `since ${format.stamp(toMs(one.sinceUnixNs))}` : '', shown(one.remedy)]
              .filter(Boolean)
              .join('; ') || undefined
          }
        >
          <Name text={one.message} max={200} />
        </span>
      ))}
      {Object.entries(host.facts?.labels ?? {}).map(([name, value]) => (
        <span class="chip small" key={name}>
          <Name text={`${name}=${value}`} max={60} />
        </span>
      ))}
    </span>
  );
}
