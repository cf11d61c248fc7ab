// Hosts without usable samples, said on every page: what is read there is not what happened on
// them. Tells how far the clock of the collector is ahead, too: both are in its status.

import { useEffect, useRef, useState } from 'preact/hooks';
import type { StatusResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { status } from '../query/client';
import { useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { toMs } from '../time/range';
import { Link } from './Link';
import { useLive } from './live';
import { Icon, Name } from './parts';

/** Time between looks at which hosts are blind. Unit: milliseconds. */
const ALARM_MS = 15_000;

/** A clock that differs from the collector's by more is corrected. Unit: milliseconds. */
const SKEW_FROM_MS = 2000;

/** Most hosts named. */
const HOSTS_SHOWN = 3;

interface Props {
  now: () => number;
  /** Told when the difference of the clocks has changed. Unit: milliseconds. */
  onSkew: (ms: number) => void;
}

export function Alarm({ now, onSkew }: Props) {
  const [tick, setTick] = useState(0);
  const query = useQuery(`status\n${tick}`, async (signal) => ({ status: await status(signal), at: Date.now() }));
  // Whether hosts can be believed is queried whatever else stands still.
  useLive(true, () => setTick((value) => value + 1), ALARM_MS);
  const told = useRef(0);
  useEffect(() => {
    const { data } = query;
    const by = data && data.status.nowUnixNs > 0n ? toMs(data.status.nowUnixNs) - data.at : 0;
    // As it was while it is about the same: each change queries everything again.
    if (Math.abs(by - told.current) <= SKEW_FROM_MS) return;
    told.current = Math.abs(by) > SKEW_FROM_MS ? by : 0;
    onSkew(told.current);
  }, [query.data]);
  return query.data ? <BlindHosts status={query.data.status} now={now()} /> : null;
}

function BlindHosts({ status, now }: { status: StatusResponse; now: number }) {
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
          <span>{shown(why?.message ?? 'the agent gives no reason')}</span>
          {why && why.remedy !== '' && <code>{shown(why.remedy)}</code>}
        </li>
      ))}
      <li>
        {all > hosts.length && <span>and {format.plural(all - hosts.length, 'more host')}.</span>}
        <span>No profile shows what these hosts did in this time.</span>
        <Link to={{ view: 'hosts' }}>Show the hosts</Link>
      </li>
    </ul>
  );
}

/** The time alone where it is of the last hours. */
function since(ms: number, now: number): string {
  return now - ms < 12 * 3_600_000 ? format.time(ms) : format.stamp(ms);
}
