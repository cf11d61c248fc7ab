// Flags over a chart, each with what happened there.

import { Link } from '../app/Link';
import { Name, say } from '../app/parts';
import * as format from '../text/format';
import type { Range } from '../time/range';
import { type Happening, flags } from './flags';

/** Room of a flag. Unit: CSS pixels. */
const ROOM = 24;

/** Most that one flag tells of. */
const TOLD_MAX = 12;

interface Props {
  all: readonly Happening[];
  range: Range;
  /** Where the plot is in its area. Unit: CSS pixels. */
  left: number;
  width: number;
}

export function Flags({ all, range, left, width }: Props) {
  const shown = flags(all, range, width, ROOM);
  if (!shown.length) return null;
  return (
    <ul class="flags" aria-label="What happened" style={{ left: `${left}px`, width: `${width}px` }}>
      {shown.map((flag) => {
        const kinds = new Set(flag.of.map((one) => one.kind));
        // What alerts and triggers saw goes first.
        const kind = kinds.has('alert') ? 'alert' : kinds.has('pin') ? 'pin' : kinds.has('deploy') ? 'deploy' : 'note';
        return (
          <li key={flag.of[0].key} class={`flag ${kind}`} style={{ left: `${flag.at * 100}%` }}>
            <button type="button" aria-label={spoken(flag.of)}>
              <Shape kind={kind} />
              {flag.of.length > 1 && <span class="flag-count">{flag.of.length}</span>}
            </button>
            {/* As far along itself as the flag is along the chart: it never leaves the chart. */}
            <div class="tip flag-tip" style={{ transform: `translateX(${-flag.at * 100}%)` }}>
              {flag.of.slice(0, TOLD_MAX).map((one) => (
                <Told key={one.key} one={one} />
              ))}
              {flag.of.length > TOLD_MAX && <p class="soft">and {flag.of.length - TOLD_MAX} more</p>}
            </div>
          </li>
        );
      })}
    </ul>
  );
}

function spoken(of: readonly Happening[]): string {
  const [first] = of;
  const text = `${first.kind} at ${format.stamp(first.at)}: ${say(first.text)}`;
  // It starts with the number that is shown.
  return of.length > 1 ? `${of.length}: ${text}, and ${of.length - 1} more` : text;
}

function Told({ one }: { one: Happening }) {
  return (
    <div class="flag-told">
      <div class="soft">
        {one.kind} · {format.stamp(one.at)}
        {one.until !== undefined && ` to ${format.clock(one.until)}`}
      </div>
      <div>
        <b>
          <Name text={one.text} max={300} />
        </b>
      </div>
      {one.about !== '' && (
        <div class="soft">
          <Name text={one.about} max={300} />
        </div>
      )}
      {one.kind === 'alert' && <Link to={{ view: 'alerts', pinTimes: 'range' }}>Open the alerts</Link>}
      {one.pin !== '' && <Link to={{ view: 'pins', pin: one.pin }}>Open the pin</Link>}
      {one.url !== '' && (
        <a href={one.url} target="_blank" rel="noopener noreferrer">
          More about it
        </a>
      )}
    </div>
  );
}

function Shape({ kind }: { kind: Happening['kind'] }) {
  const shape = {
    alert: 'M6 1 11 12H1L6 1Zm0 4v3m0 1.5v.5',
    pin: 'M2 1v12M2 1h8l-2 3 2 3H2',
    deploy: 'M6 2v9M2 7l4 5 4-5',
    note: 'M2 2h8v7H6l-3 3V9H2z',
  }[kind];
  return (
    <svg viewBox="0 0 12 14" width="12" height="14" aria-hidden="true" focusable="false">
      <path d={shape} fill="none" stroke="currentColor" stroke-width="1.8" stroke-linejoin="round" />
    </svg>
  );
}
