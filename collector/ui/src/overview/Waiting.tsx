// What cgroups and hosts wait for: those that their CPU limits hold back, and hosts under pressure.

import { Link } from '../app/Link';
import { Name } from '../app/parts';
import type { PageProps } from '../app/page';
import { CaptureWaits } from '../capture/Waits';
import {
  type OverviewResponse,
  type PressedHost,
  Resource,
  type ThrottledCgroup,
} from '../gen/fleetprof/collector/v1/query_pb';
import { limitCores } from '../query/throttling';
import type { State } from '../state/address';
import * as format from '../text/format';
import { cores, when } from './overview';

/** Rows of each list. */
const LISTED_MAX = 6;

interface Props {
  answer: OverviewResponse;
  /** The profile of what has a label with this value. */
  profileOf: (label: string, name: string) => Partial<State>;
  openCapture: PageProps['openCapture'];
}

export function Waiting({ answer, profileOf, openCapture }: Props) {
  const throttled = answer.throttled.filter((one) => !one.inBaseline);
  const pressed = answer.pressed.filter((one) => !one.inBaseline);
  const before = answer.throttled.length - throttled.length + (answer.pressed.length - pressed.length);
  return (
    <>
      <h3>Throttled by their CPU limits</h3>
      {throttled.length === 0 && (
        <p class="soft">{answer.throttlingKnown ? 'None.' : 'Not known: no agent in this selection reports it.'}</p>
      )}
      <ul class="outliers">
        {throttled.slice(0, LISTED_MAX).map((one) => (
          <Throttled key={`${one.host} ${one.cgroup}`} of={one} to={profileOf('cgroup', one.cgroup)} />
        ))}
      </ul>
      <Rest of={throttled.length + Number(answer.throttledLeftOut)} />
      {throttled.length > 0 && (
        <p class="soft">
          A cgroup that has used up its limit stops until the next period, even if CPUs are idle. Raise the limit
          (CPUQuota=, limits.cpu) or run fewer threads.
        </p>
      )}
      <h3>Hosts under pressure</h3>
      {pressed.length === 0 && (
        <p class="soft">{answer.pressureHosts > 0 ? 'None.' : 'Not known: no host in this selection reports it.'}</p>
      )}
      <ul class="outliers">
        {pressed.slice(0, LISTED_MAX).map((one) => (
          <Pressed
            key={`${one.host} ${one.resource}`}
            of={one}
            to={profileOf('host', one.host)}
            openCapture={openCapture}
          />
        ))}
      </ul>
      <Rest of={pressed.length + Number(answer.pressedLeftOut)} />
      {before > 0 && <p class="soft">{format.plural(before, 'more')} as in the baseline</p>}
    </>
  );
}

/** That something is throttled or waits, in a line: what it is stands below. */
export function WaitingVerdict({ answer }: { answer: OverviewResponse }) {
  const throttled = answer.throttled.filter((one) => !one.inBaseline).length;
  const pressed = new Set(answer.pressed.filter((one) => !one.inBaseline).map((one) => one.host)).size;
  const parts = [
    throttled > 0 && `${format.plural(throttled, 'cgroup')} throttled`,
    pressed > 0 && `${format.plural(pressed, 'host')} under pressure`,
  ].filter(Boolean);
  return parts.length > 0 ? <p class="tone-warn">{parts.join(', ')}, below</p> : null;
}

/** What a path ends with: where a cgroup has no other name, that tells most. */
const endOf = (path: string) => path.slice(path.lastIndexOf('/') + 1);

function Throttled({ of, to }: { of: ThrottledCgroup; to: Partial<State> }) {
  return (
    <li>
      <Link to={to} title={of.cgroup.slice(0, 300)}>
        <Name text={of.container || of.service || endOf(of.cgroup)} empty="/" max={40} />
      </Link>{' '}
      on <Name text={of.host} max={40} /> got {format.percent(1 - of.share)} of the CPU time it wanted {when(of)}: its{' '}
      {of.limitCores > 0 ? `limit of ${limitCores(of.limitCores)}` : 'CPU limit'} withheld {cores(of.cores)} cores
      {before(of.baselineShare, of.baselineShare !== undefined && of.baselineShare > 0 ? 1 - of.baselineShare : 0)}
    </li>
  );
}

/** What tasks waited for, as a sentence goes on. */
function waited(of: PressedHost): string {
  const time = format.percent(of.share);
  switch (of.resource) {
    case Resource.CPU:
      return `had tasks waiting for a CPU ${time} of the time`;
    case Resource.MEMORY:
      return `did nothing but wait for memory ${time} of the time`;
    case Resource.IO:
      return `did nothing but wait for I/O ${time} of the time`;
    default:
      return `waited ${time} of the time`;
  }
}

function Pressed(props: { of: PressedHost; to: Partial<State>; openCapture: PageProps['openCapture'] }) {
  const { of, to, openCapture } = props;
  return (
    <li>
      <Link to={to}>
        <Name text={of.host} max={40} />
      </Link>{' '}
      {waited(of)} {when(of)}
      {before(of.baselineShare, of.baselineShare ?? 0)}
      {of.resource === Resource.IO && (
        <>
          {'. '}
          <CaptureWaits openCapture={openCapture} query={to.query ?? ''} />
        </>
      )}
    </li>
  );
}

/** `; 12 % in the baseline`; nothing where it is new. */
function before(share: number | undefined, shown: number): string {
  if (share === undefined) return '; not known of the baseline';
  return share < 0.005 ? '' : `; ${format.percent(shown)} in the baseline`;
}

/** How many of a list are not listed. */
function Rest({ of }: { of: number }) {
  return of > LISTED_MAX ? <p class="soft">and {format.count(of - LISTED_MAX)} more</p> : null;
}
