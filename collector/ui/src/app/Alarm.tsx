// Hosts without usable samples, said on every page: what is read there is not what happened on
// them.

import { Icon, Name } from './parts';
import type { State } from './state';
import { linkTo } from './store';
import type { StatusResponse } from '../gen/fleetprof/collector/v1/query_pb';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { toMs } from '../time/range';

/** Most hosts named. */
const HOSTS_SHOWN = 3;

export function Alarm({ status, now, state }: { status: StatusResponse; now: number; state: State }) {
  const all = Math.max(Number(status.hostsBlind), status.blindHosts.length);
  if (all === 0) return null;
  const hosts = status.blindHosts.slice(0, HOSTS_SHOWN);
  return (
    <ul class="alarm" role="alert" aria-label="Hosts without usable samples">
      {hosts.map(({ hostId, hostname, why }) => (
        <li key={hostId}>
          <Icon of="warn" />
          <b>
            <Name text={hostname || hostId} max={60} /> sends no usable samples
            {why && why.sinceUnixNs > 0n ? ` since ${since(toMs(why.sinceUnixNs), now)}` : ''}:
          </b>
          <span>{shown(why?.message ?? 'its agent does not say why')}</span>
          {why && why.remedy !== '' && <code>{shown(why.remedy)}</code>}
        </li>
      ))}
      <li>
        {all > hosts.length && <span>and {format.plural(all - hosts.length, 'more host')}.</span>}
        <span>What these hosts did in this time is not in any profile.</span>
        <a href={linkTo(state, { view: 'hosts' })}>See the hosts</a>
      </li>
    </ul>
  );
}

/** The time alone where it is of the last hours. */
function since(ms: number, now: number): string {
  return now - ms < 12 * 3_600_000 ? format.clock(ms) : format.stamp(ms);
}
