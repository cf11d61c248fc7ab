// What each host of a capture does: its state, how far it is, and why it failed.

import { useState } from 'preact/hooks';
import { Bar, Icon, Name } from '../app/parts';
import { type HostProgress, HostState } from '../gen/fleetprof/collector/v1/control_pb';
import * as format from '../text/format';
import type { Shown, Tally } from './session';

/** Lines drawn at first, and with each click on `more`. */
const LINES_DRAWN = 100;

/** Most notices of a host written out. */
const NOTICES_SHOWN = 20;

const WORDS: Record<HostState, [word: string, tone: string]> = {
  [HostState.UNSPECIFIED]: ['waiting', ''],
  [HostState.WAITING]: ['waiting', ''],
  [HostState.RUNNING]: ['running', 'on'],
  [HostState.DONE]: ['done', 'on'],
  [HostState.PARTIAL]: ['ended early', 'warn'],
  [HostState.FAILED]: ['failed', 'bad'],
  [HostState.LOST]: ['lost', 'bad'],
};

/** What is wrong stands first, what is done last. */
const ORDER: Record<HostState, number> = {
  [HostState.FAILED]: 0,
  [HostState.LOST]: 1,
  [HostState.PARTIAL]: 2,
  [HostState.RUNNING]: 3,
  [HostState.WAITING]: 4,
  [HostState.UNSPECIFIED]: 4,
  [HostState.DONE]: 5,
};

/** `47 of 50 hosts answered: 2 failed, 1 lost`. */
export function tallyText(tally: Tally): string {
  const parts = [
    tally.failed > 0 && `${format.count(tally.failed)} failed`,
    tally.lost > 0 && `${format.count(tally.lost)} lost`,
    tally.partial > 0 && `${format.count(tally.partial)} ended early`,
  ].filter(Boolean);
  return `${format.count(tally.answered)} of ${format.plural(tally.all, 'host')} answered${parts.length ? `: ${parts.join(', ')}` : ''}`;
}

export function HostLines({ session }: { session: Pick<Shown, 'hosts' | 'hostsUnheld' | 'request' | 'runs'> }) {
  const [drawn, setDrawn] = useState(LINES_DRAWN);
  const hosts = [...session.hosts.values()];
  // While it runs lines stay where they are; afterwards what is wrong comes first.
  if (!session.runs) hosts.sort((left, right) => (ORDER[left.state] ?? 9) - (ORDER[right.state] ?? 9));
  const durationNs = Number(session.request.capture?.durationNs ?? 0n);
  return (
    <div class="scroll host-lines" tabIndex={0} role="region" aria-label="Hosts of the capture">
      <table class="rows">
        <caption class="hidden">Hosts of the capture</caption>
        <thead>
          <tr>
            <th scope="col">Host</th>
            <th scope="col">State</th>
            <th scope="col" class="number">
              Time
            </th>
            <th scope="col" class="number">
              Samples
            </th>
            <th scope="col" class="number" title="Estimated samples lost">
              Lost
            </th>
            <th scope="col">Message</th>
          </tr>
        </thead>
        <tbody>
          {hosts.slice(0, drawn).map((host) => (
            <Line key={host.hostId} host={host} durationNs={durationNs} />
          ))}
        </tbody>
      </table>
      {hosts.length > drawn && (
        <p class="more">
          <button type="button" onClick={() => setDrawn(drawn + 10 * LINES_DRAWN)}>
            Show more
          </button>{' '}
          {format.count(drawn)} of {format.plural(hosts.length, 'host')}
        </p>
      )}
      {session.hostsUnheld > 0 && <p class="more">More hosts took part than are listed here.</p>}
    </div>
  );
}

/** A time that grows, without digits that nobody can read in passing. */
export function steady(ns: number): number {
  const step = ns < 10e9 ? 1e7 : 1e8;
  return Math.round(ns / step) * step;
}

function Line({ host, durationNs }: { host: HostProgress; durationNs: number }) {
  const [word, tone] = WORDS[host.state] ?? [`state ${host.state}`, ''];
  const { progress } = host;
  const elapsed = Number(progress?.elapsedNs ?? 0n);
  const lost = Number(progress?.lostSamples ?? 0n);
  const notices = host.notices.slice(0, NOTICES_SHOWN);
  return (
    <tr class={`host-${word.replace(' ', '-')}`}>
      <td class="col-host-name">
        <Name text={host.hostname || host.hostId} max={80} />
      </td>
      <td>
        <span class={`state ${tone}`}>
          {tone === 'bad' || tone === 'warn' ? <Icon of="warn" /> : <span class={`dot ${tone}`} />} {word}
        </span>
      </td>
      <td class="number">
        <Bar fraction={durationNs > 0 ? elapsed / durationNs : 0}>
          {progress ? format.duration(steady(elapsed)) : '–'}
        </Bar>
      </td>
      <td class="number">{progress ? format.count(Number(progress.samples)) : '–'}</td>
      <td class={`number ${lost > 0 ? 'warned' : 'soft'}`}>{progress ? format.count(lost) : '–'}</td>
      <td class="said">
        {host.message !== '' && (
          <div class={tone === 'bad' ? 'wrong' : ''}>
            <Name text={host.message} max={240} />
          </div>
        )}
        {notices.map((notice, at) => (
          <div class="warned" key={`${at}`}>
            <Name text={notice} max={240} />
          </div>
        ))}
        {host.notices.length > notices.length && (
          <div class="soft">and {format.count(host.notices.length - notices.length)} more</div>
        )}
      </td>
    </tr>
  );
}
