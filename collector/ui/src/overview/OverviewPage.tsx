// The landing page: what changed, where, since when, and how sure that is.

import { useMemo, useRef, useState } from 'preact/hooks';
import { Filters } from '../app/Filters';
import { Link } from '../app/Link';
import { QualityLine } from '../app/QualityLine';
import type { PageProps } from '../app/page';
import { useWas } from '../app/was';
import { Answer, Empty, Icon, Module, Name, TroubleBox, isStale, say } from '../app/parts';
import { CaptureWaits } from '../capture/Waits';
import { type Events, events } from '../events/client';
import type { HostsResponse, OverviewResponse, OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import { KeepIn } from '../incidents/KeepIn';
import { hosts, overview, profileTypes, series } from '../query/client';
import { type Query, useQuery } from '../query/useQuery';
import type { State } from '../state/address';
import { addressOf, setState, useSelectionState } from '../state/store';
import * as format from '../text/format';
import { type Range, before, toMs } from '../time/range';
import { type Band, bandsOf, chartOf } from '../time/series';
import { FiringAlerts } from './FiringAlerts';
import { FleetChart } from './FleetChart';
import {
  BEFORE_MS,
  comparedWith,
  cores,
  deployBefore,
  error,
  functionIn,
  hasSteps,
  isSignificant,
  keptOf,
  kindOf,
  profileOf,
  relative,
  signed,
  when,
} from './overview';
import { Spark } from './Spark';
import { Waiting, WaitingVerdict } from './Waiting';

/** Label of services that nobody chose. */
const SERVICES = 'unit';

/** Labels that services may be told apart by. */
const SERVICE_LABELS = ['unit', 'container_name', 'pod', 'image', 'service', 'slice', 'cgroup', 'comm'];

/** Sentences of the verdict. */
const SENTENCES_MAX = 3;

/** Hosts named where something changed on some; the others on a click. */
const HOSTS_NAMED = 4;

/** Hosts listed that differ from their peers, and with warnings. */
const LISTED_MAX = 6;

export function OverviewPage(props: PageProps) {
  const { range, selection, selectionKey, labels } = props;
  const { services } = useSelectionState('services');
  const label = services || SERVICES;
  const chosen = useWas();
  // An overview is a comparison: where no baseline is chosen or known it takes the time before.
  const was = chosen.was?.selection.range ?? before(range);
  const words = chosen.was?.words ?? 'the previous period';
  const key = `${label} ${was.from} ${was.to}\n${selectionKey}`;
  // First what is quick; functions of what changed follow.
  const quick = useQuery(`overview\n${key}`, (signal) => overview(selection, was, label, false, signal));
  const changed = quick.data?.services.some(isSignificant) === true;
  // What changed is known of the answer only, not of the question under way.
  const answered = useRef(key);
  if (!quick.waiting) answered.current = key;
  const whole = useQuery(changed ? `overview whole\n${answered.current}` : undefined, (signal) =>
    overview(selection, was, label, true, signal),
  );
  // In which time samples were lost: the small charts show it.
  const time = useQuery(`series \n${selectionKey}`, (signal) => series(selection, '', signal));
  const lost = useMemo(
    () => (time.data ? bandsOf(chartOf(time.data, '', props.now())).filter((band) => band.state === 'lost') : []),
    [time.data],
  );
  // From a while before: what changed at the start of the range may have been deployed then.
  const happened = useQuery(`events\n${range.from}\n${range.to}`, (signal) =>
    events({ from: Math.max(0, range.from - BEFORE_MS), to: range.to }, signal),
  ).data;
  const fleet = useQuery(`hosts\n${selectionKey}`, (signal) => hosts(range, signal));
  const offered = useMemo(() => SERVICE_LABELS.filter((one) => labels.includes(one) || one === label), [labels, label]);
  return (
    <>
      <h2 class="hidden">Overview</h2>
      <div class="overview-tools">
        <label class="soft">
          Services by{' '}
          <select
            value={label}
            onChange={(event) =>
              setState({ services: event.currentTarget.value === SERVICES ? '' : event.currentTarget.value })
            }
          >
            {offered.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
        <QualityLine quality={quick.data?.now} stale={isStale(quick)} />
      </div>
      <FiringAlerts turn={selectionKey} now={props.now} />
      <Filters note="not applied: an overview has no stacks" />
      <Answer query={quick} what="the overview" room="graph">
        {(answer) => (
          <Overview
            answer={answer}
            whole={whole}
            hosts={fleet}
            events={happened}
            of={{ query: selection.query, label, baseline: was, range, words, lost }}
            openCapture={props.openCapture}
          />
        )}
      </Answer>
    </>
  );
}

/** Most profile types that are named where agents sent nothing. */
const TYPES_NAMED = 8;

/** Leads to what others sent, which an overview is not of. */
function OtherSenders({ range }: { range: Range }) {
  const found = useQuery(`types\n${range.from}\n${range.to}`, (signal) => profileTypes(range, signal));
  const types = found.data ?? [];
  if (!types.length) return null;
  return (
    <p>
      This overview is of CPU that agents measured. Other senders have profiles in this range:{' '}
      {types.slice(0, TYPES_NAMED).map((type, at) => (
        <>
          {at > 0 && ', '}
          <Link to={{ view: 'profile', type, query: '', filters: [] }}>{format.typeWords(type)}</Link>
        </>
      ))}
      {types.length > TYPES_NAMED && ', …'}
    </p>
  );
}

/** What an overview is of. */
interface Of {
  query: string;
  label: string;
  baseline: Range;
  range: Range;
  /** What the baseline is called. */
  words: string;
  /** When samples were lost. */
  lost: readonly Band[];
}

interface OverviewProps {
  answer: OverviewResponse;
  /** The same with functions, asked where something changed. */
  whole: Query<OverviewResponse>;
  hosts: Query<HostsResponse>;
  events: Events | undefined;
  of: Of;
  openCapture: PageProps['openCapture'];
}

function Overview({ answer, whole, hosts, events, of, openCapture }: OverviewProps) {
  const fleet = answer.fleet;
  if (!fleet || answer.services.length === 0) {
    return (
      <Empty title="No data for this selection in this range.">
        <p class="soft">Choose a longer range, or remove filters.</p>
        <OtherSenders range={of.range} />
      </Empty>
    );
  }
  const changed = answer.services.filter(isSignificant);
  const changedHosts = answer.hosts.filter(isSignificant);
  const outliers = answer.outliers.filter((one) => !one.inBaseline);
  const hasBaseline = (answer.baseline?.hosts ?? 0n) > 0n;
  const difference = fleet.cores - fleet.baselineCores;
  const part = relative(difference, fleet.baselineCores);
  return (
    <>
      <section class="verdict" aria-label="Verdict">
        <p class="verdict-line">
          <b>
            {cores(fleet.cores)} cores on {format.plural(fleet.hosts, 'host')}
          </b>
          {hasBaseline ? (
            <span class={isSignificant(fleet) ? `tone-${fleet.cores < fleet.baselineCores ? 'less' : 'more'}` : 'soft'}>
              {' '}
              {signed(difference)}
              {part && ` (${part})`} against {of.words}
            </span>
          ) : (
            <span class="tone-warn"> · no data for the baseline</span>
          )}
        </p>
        {hasBaseline && changed.length === 0 && changedHosts.length === 0 && (
          <p class="verdict-calm">
            No significant change of at least 0.02 cores and 3 %. What is slow all the same waits:{' '}
            <CaptureWaits openCapture={openCapture} />
          </p>
        )}
        <ul>
          {changed.slice(0, SENTENCES_MAX).map((row) => (
            <Sentence key={row.name} row={row} answer={answer} events={events} of={of} />
          ))}
        </ul>
        {changed.length > SENTENCES_MAX && (
          <p class="soft">and {format.plural(changed.length - SENTENCES_MAX, 'more service')}, below</p>
        )}
        <WaitingVerdict answer={answer} />
      </section>
      <section class="panel-box" aria-label="CPU over time">
        <FleetChart answer={answer} row={fleet} baseline={of.words} lost={of.lost} events={events} />
      </section>
      <div class="overview-columns">
        <section class="panel-box" aria-label="What changed">
          <h3>What changed</h3>
          <Functions whole={whole} of={of} />
          <Rows
            answer={answer}
            lost={of.lost}
            rows={changedHosts}
            name="Host"
            to={(row) =>
              comparedWith({ query: of.query, label: 'host', name: row.name }, row.change, of.baseline, of.range)
            }
          />
          {changedHosts.length === answer.hosts.length && answer.hostsLeftOut > 0n && (
            <p class="soft">
              {format.plural(Number(answer.hostsLeftOut), 'more host')} not listed; their changes are smaller
            </p>
          )}
          {changed.length === 0 && changedHosts.length === 0 && (
            <p class="soft">
              {hasBaseline ? 'Nothing.' : 'Not known: choose a shorter range, or a baseline that has data.'}
            </p>
          )}
        </section>
        <section class="panel-box" aria-label="Outliers and trouble">
          <h3>Hosts that differ from their peers</h3>
          {outliers.length === 0 && <p class="soft">None.</p>}
          <ul class="outliers">
            {outliers.slice(0, LISTED_MAX).map((one) => (
              <li key={`${one.host} ${one.service}`}>
                <Link to={profileOf(profileQuery(of, one.service), 'host', one.host)}>
                  <Name text={one.host} max={40} />
                </Link>{' '}
                runs {cores(one.cores)} cores of <Name text={one.service} empty="(none)" max={40} />; half of{' '}
                {format.plural(one.hosts, 'host')} run {one.cores > one.medianCores ? 'less' : 'more'} than{' '}
                {cores(one.medianCores)}
              </li>
            ))}
          </ul>
          <More of={outliers.length} shown={LISTED_MAX} />
          <Waiting
            answer={answer}
            openCapture={openCapture}
            profileOf={(label, name) => profileOf(of.query, label, name)}
          />
          <h3>Hosts with warnings</h3>
          <Answer query={hosts} what="the hosts">
            {(answer) => <Troubled answer={answer} />}
          </Answer>
        </section>
      </div>
      <section class="panel-box" aria-label="Services">
        <h3>
          Services{' '}
          <span class="soft">
            {format.count(answer.services.length + Number(answer.servicesLeftOut))} by {of.label}; what changed first
          </span>
        </h3>
        <Rows
          answer={answer}
          lost={of.lost}
          rows={answer.services}
          name="Service"
          to={(row) => profileOf(of.query, of.label, row.name)}
          compare={(row) =>
            comparedWith(
              { query: of.query, label: of.label, name: row.name, hosts: row.changedHosts, all: row.hosts },
              row.change,
              of.baseline,
              of.range,
            )
          }
        />
        {!answer.accounted && (
          <p class="soft">
            Cores come from samples: the kernel’s accounting does not have the labels of this selection.
          </p>
        )}
      </section>
    </>
  );
}

/** How many of a list are not listed. */
function More({ of, shown }: { of: number; shown: number }) {
  return of > shown ? <p class="soft">and {format.count(of - shown)} more</p> : null;
}

function Troubled({ answer }: { answer: HostsResponse }) {
  const troubled = answer.hosts.filter((host) => host.blind || host.warnings.length > 0);
  if (!troubled.length) return <p class="soft">None.</p>;
  return (
    <>
      <ul class="outliers">
        {troubled.slice(0, LISTED_MAX).map((host) => (
          <li key={host.hostId}>
            <Icon of="warn" /> <Name text={host.facts?.hostname || host.hostId} max={40} />:{' '}
            <Name text={host.warnings[0] ?? 'sends no usable samples'} max={160} />
          </li>
        ))}
      </ul>
      {troubled.length > LISTED_MAX && (
        <p>
          <Link to={{ view: 'hosts' }}>{format.plural(troubled.length - LISTED_MAX, 'more host')}</Link>
        </p>
      )}
    </>
  );
}

/** The selection with a service of it. */
function profileQuery(of: Of, service: string): string {
  return profileOf(of.query, of.label, service).query ?? '';
}

interface SentenceProps {
  row: OverviewRow;
  answer: OverviewResponse;
  events: Events | undefined;
  of: Of;
}

function Sentence({ row, answer, events, of }: SentenceProps) {
  const change = row.change;
  if (!change) return null;
  const kind = kindOf(change);
  const deploy = deployBefore(row, of.label, answer.stepNs, events?.annotations ?? []);
  const to = comparedWith(
    { query: of.query, label: of.label, name: row.name, hosts: row.changedHosts, all: row.hosts },
    change,
    of.baseline,
    of.range,
  );
  return (
    <li>
      <span class={`tone-${kind === 'new' ? 'more' : kind === 'gone' ? 'less' : kind}`}>
        <span aria-hidden="true">{change.cores < 0 ? '▼' : '▲'}</span>{' '}
        <Link to={to} title="Compare with the baseline, by function">
          <Name text={row.name} empty="(none)" max={60} />
        </Link>{' '}
        <b>{signed(change.cores)}</b> {error(change.error)} cores
      </span>
      {kind === 'new' || kind === 'gone' ? `, ${kind}` : share(row)} {when(change)}
      {row.hostsChanged > 1 && row.hostsChanged === row.hosts && ` on all ${row.hosts} hosts`}
      {row.hostsChanged > 0 && row.hostsChanged < row.hosts && <ChangedHosts row={row} />}{' '}
      <KeepIn small of={`the change of ${say(row.name)}`} what={() => keptOf(to)} address={() => addressOf(to)} />
      {deploy && (
        <p class="verdict-deploy">
          after the deploy <Name text={deploy.text} max={160} />
          <span class="soft">
            {' '}
            at {format.clock(toMs(deploy.startUnixNs))}
            {deploy.endUnixNs > deploy.startUnixNs && ` to ${format.clock(toMs(deploy.endUnixNs))}`}
            {deploy.hosts > 0n && `, on ${format.plural(Number(deploy.hosts), 'host')}`}
          </span>
        </p>
      )}
    </li>
  );
}

function ChangedHosts({ row }: { row: OverviewRow }) {
  const [all, setAll] = useState(false);
  const names = all ? row.changedHosts : row.changedHosts.slice(0, HOSTS_NAMED);
  const more = row.hostsChanged - names.length;
  return (
    <>
      {' '}
      on {row.hostsChanged} of {format.plural(row.hosts, 'host')}:{' '}
      {names.map((host, at) => (
        <span key={host}>
          {at > 0 && ', '}
          <Name text={host} max={40} />
        </span>
      ))}
      {more > 0 && !all && (
        <>
          {' '}
          <button type="button" class="link more-hosts" onClick={() => setAll(true)}>
            and {more} more
          </button>
        </>
      )}
      {more > 0 && all && `, and ${more} more`}
    </>
  );
}

/** A change of all of a service, of what it was. */
function share(row: OverviewRow): string {
  const isOfAll = row.hostsChanged === 0 || row.hostsChanged === row.hosts;
  const text = isOfAll && row.change ? relative(row.change.cores, row.baselineCores) : '';
  return text === '' ? '' : ` (${text})`;
}

function Functions({ whole, of }: { whole: Query<OverviewResponse>; of: Of }) {
  const answer = whole.data;
  if (whole.waiting && !answer) return <p class="soft">Comparing functions …</p>;
  if (whole.trouble) return <TroubleBox trouble={whole.trouble} again={whole.again} />;
  if (!answer) return null;
  return (
    <>
      {answer.functionsMissing.map((service) => (
        <p key={service} class="notice">
          Functions of <Name text={service} empty="(none)" max={60} /> took too long or too much to compare. Take a
          shorter range.
        </p>
      ))}
      {answer.functions.length > 0 && <FunctionTable answer={answer} of={of} />}
      {answer.functions.length + answer.functionsMissing.length === 0 && answer.services.some(isSignificant) && (
        <p class="soft">No function with a significant change. Services that changed are below.</p>
      )}
    </>
  );
}

function FunctionTable({ answer, of }: { answer: OverviewResponse; of: Of }) {
  return (
    <div class="table-wrap">
      <table class="overview-table">
        <thead>
          <tr>
            <th scope="col">Function</th>
            <th scope="col" class="number">
              Cores
            </th>
            <th scope="col" class="number">
              Change
            </th>
            <th scope="col">Service</th>
          </tr>
        </thead>
        <tbody>
          {answer.functions.map((row) => (
            <tr key={`${row.service} ${row.module} ${row.name}`}>
              <td class="wide">
                <Link to={functionIn(answer, row, of.query, of.label, of.baseline, of.range)}>
                  <Name text={row.name} max={70} />
                </Link>{' '}
                <span class="soft">
                  <Module path={row.module} />
                </span>
              </td>
              <td class="number">{cores(row.cores)}</td>
              <td class={`number tone-${row.cores < row.baselineCores ? 'less' : 'more'}`}>
                {signed(row.cores - row.baselineCores)} <span class="soft plus-minus">{error(row.error)}</span>
              </td>
              <td>
                <Name text={row.service} empty="(none)" max={30} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

interface RowsProps {
  answer: OverviewResponse;
  lost: readonly Band[];
  rows: readonly OverviewRow[];
  name: string;
  to: (row: OverviewRow) => Partial<State>;
  compare?: (row: OverviewRow) => Partial<State>;
}

function Rows({ answer, lost, rows, name, to, compare }: RowsProps) {
  if (!rows.length) return null;
  // Hosts have none.
  const hasHosts = rows.some((row) => row.hosts > 0);
  return (
    <div class="table-wrap">
      <table class="overview-table">
        <thead>
          <tr>
            <th scope="col">{name}</th>
            <th scope="col">Over time</th>
            <th scope="col" class="number">
              Cores
            </th>
            <th scope="col" class="number" title="Mean cores in the baseline">
              Before
            </th>
            <th scope="col" class="number">
              Change
            </th>
            <th scope="col" class="since">
              Since
            </th>
            {hasHosts && (
              <th scope="col" class="number">
                Hosts
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.name}>
              <td class="wide">
                <Link to={to(row)}>
                  <Name text={row.name} empty="(none)" max={60} />
                </Link>
              </td>
              <td>
                <Spark row={row} answer={answer} lost={answer.accounted ? [] : lost} />
              </td>
              <td class="number">{cores(row.cores)}</td>
              <td class="number soft">{hasSteps(row.baselineSteps) ? cores(row.baselineCores) : 'no data'}</td>
              <td class="number">
                <ChangeCell row={row} to={compare?.(row)} />
              </td>
              <td class="soft since">{row.change?.significant ? when(row.change).replace(/^since /, '') : ''}</td>
              {hasHosts && (
                <td class="number soft">
                  {row.hostsChanged > 0 ? `${row.hostsChanged} of ${row.hosts}` : row.hosts || ''}
                </td>
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function ChangeCell({ row, to }: { row: OverviewRow; to: Partial<State> | undefined }) {
  const change = row.change;
  if (!change) return <span class="soft">not comparable</span>;
  if (!change.significant) return <span class="soft">within noise</span>;
  const kind = kindOf(change);
  const text = (
    <>
      {change.cores < 0 ? '▼' : '▲'} {signed(change.cores)} <span class="soft plus-minus">{error(change.error)}</span>
      {(kind === 'new' || kind === 'gone') && ` ${kind}`}
    </>
  );
  const tone = `tone-${change.cores < 0 ? 'less' : 'more'}`;
  return to ? (
    <Link to={to} class={tone} title="Compare with the baseline, by function">
      {text}
    </Link>
  ) : (
    <span class={tone}>{text}</span>
  );
}
