// The head of the page: its views, the time range, and what concerns the page as such.

import type { State } from '../state/address';
import { addressOf, getState, setState, useSelectionState, useViewState } from '../state/store';
import { flipTheme, useTheme } from '../state/theme';
import type { View } from '../state/view';
import { TimePicker } from '../time/TimePicker';
import { type Range, absoluteSpec } from '../time/range';
import { flipZone, useZone } from '../state/zone';
import { zone } from '../text/format';
import { BaselineChoice } from './Baseline';
import { Link } from './Link';
import { CopyButton, Icon, Popover } from './parts';
import { SaveView } from '../views/SaveView';
import { Session } from './Session';

export const VIEWS: readonly (readonly [View, string])[] = [
  ['overview', 'Overview'],
  ['profile', 'Profile'],
  ['compare', 'Compare'],
  ['cgroups', 'Containers'],
  ['hosts', 'Hosts'],
  ['captures', 'Captures'],
  ['pins', 'Pins'],
  ['alerts', 'Alerts'],
  ['incidents', 'Incidents'],
  ['collector', 'Collector'],
];

const EVERYTHING: Partial<State> = {
  view: 'overview',
  query: '',
  zoom: '',
  transforms: [],
  fn: '',
  search: '',
  filters: [],
};

interface HeadProps {
  range: Range | undefined;
  now: () => number;
  onRefresh: () => void;
}

export function Head({ range, now, onRefresh }: HeadProps) {
  const { from, to, live } = useSelectionState('from', 'to', 'live');
  const { view } = useViewState('view');
  return (
    <header class="head">
      <h1>
        <Link to={EVERYTHING} title="Overview of the fleet">
          <Mark /> <span class="product">Fleetprof</span>
        </Link>
      </h1>
      <nav aria-label="Pages">
        {VIEWS.map(([one, title]) => (
          <Link key={one} to={{ view: one }} aria-current={one === view ? 'page' : undefined}>
            {title}
          </Link>
        ))}
      </nav>
      <TimePicker
        spec={{ from, to }}
        range={range}
        live={live}
        now={now}
        onRange={(spec) => setState(spec)}
        onLive={(next) =>
          setState(next && getState().to !== 'now' ? { live: next, from: 'now-15m', to: 'now' } : { live: next })
        }
        onRefresh={onRefresh}
      />
      <BaselineChoice />
      <div class="head-end">
        <ZoneButton now={now} />
        <Popover
          title="Links to this page, and saved views"
          align="right"
          label={
            <>
              <Icon of="link" /> <span class="wide-only">Link</span>
            </>
          }
        >
          {() => (
            <div class="menu">
              <CopyButton
                title="Copy a link that shows exactly these samples"
                text={() => `${location.href.split('#')[0]}${addressOf(range ? absoluteSpec(range) : {})}`}
              >
                <b>Copy link (fixed times)</b> <span class="soft">shows others the same data</span>
              </CopyButton>
              <CopyButton title="Copy the current address" text={() => location.href}>
                <b>Copy link {to.startsWith('now') ? '(relative times)' : '(current address)'}</b>{' '}
                <span class="soft">{to.startsWith('now') ? 'moves with the clock' : 'the times are fixed'}</span>
              </CopyButton>
              <SaveView />
            </div>
          )}
        </Popover>
        <ThemeButton />
        <Session />
      </div>
    </header>
  );
}

function ZoneButton({ now }: { now: () => number }) {
  const utc = useZone();
  const name = zone(now());
  return (
    <button
      type="button"
      class="zone"
      aria-pressed={utc}
      title={utc ? 'Times are in UTC. Show them in local time' : `Times are local (${name}). Show them in UTC`}
      onClick={flipZone}
    >
      {name}
    </button>
  );
}

function ThemeButton() {
  const theme = useTheme();
  return (
    <button
      type="button"
      class="square"
      title={theme === 'dark' ? 'Light' : 'Dark'}
      aria-label={theme === 'dark' ? 'Light theme' : 'Dark theme'}
      onClick={flipTheme}
    >
      <Icon of="theme" />
    </button>
  );
}

function Mark() {
  return (
    <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true" focusable="false">
      <rect x="1" y="3" width="18" height="4" rx="1" fill="#e2803a" />
      <rect x="1" y="8" width="12" height="4" rx="1" fill="#3f7fd6" />
      <rect x="1" y="13" width="7" height="4" rx="1" fill="#4aa568" />
    </svg>
  );
}
