// The page: its head, the selection, and one of its views. Everything shown follows from the address.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { CaptureDialog, draftOf } from '../capture/CaptureDialog';
import type { Draft } from '../capture/form';
import { CapturesPage } from '../capture/CapturesPage';
import { captures } from '../capture/client';
import { idOf } from '../capture/store';
import { cgroups, hosts, labelNames, series, status } from '../query/client';
import { useQuery } from '../query/useQuery';
import { Cgroups } from '../tables/Cgroups';
import { Collector } from '../tables/Collector';
import { Hosts } from '../tables/Hosts';
import * as format from '../text/format';
import { TimePicker } from '../time/TimePicker';
import { chartOf } from '../time/series';
import { type Range, absoluteSpec, resolve, toMs } from '../time/range';
import { Alarm } from './Alarm';
import { ComparePage } from './ComparePage';
import { Filters } from './Filters';
import { Answer, CopyButton, Icon, Popover, TroubleBox, say } from './parts';
import { ProfilePage } from './ProfilePage';
import { QueryBar } from './QueryBar';
import { QualityLine } from './QualityLine';
import { type PageProps, keyOf } from './page';
import type { State, View } from './state';
import { type SetState, linkTo, useAddress } from './store';
import { type Theme, useTheme } from './theme';

/** Time between questions in live mode: the length of a window. Unit: milliseconds. */
export const LIVE_MS = 10_000;

/** Time between looks at which hosts are blind. Unit: milliseconds. */
const ALARM_MS = 15_000;

/** A clock that differs from the collector's by more is corrected. Unit: milliseconds. */
const SKEW_FROM_MS = 2000;

/** Labels offered first where they exist, in this order. */
const FIRST_LABELS = [
  'host',
  'unit',
  'container_name',
  'container',
  'pod',
  'image',
  'comm',
  'slice',
  'cgroup',
  'thread',
  'context',
];

const VIEWS: readonly (readonly [View, string])[] = [
  ['profile', 'Profile'],
  ['compare', 'Compare'],
  ['cgroups', 'Containers'],
  ['hosts', 'Hosts'],
  ['captures', 'Captures'],
  ['collector', 'Collector'],
];

export function App() {
  const [state, setState] = useAddress();
  const [theme, flipTheme] = useTheme();
  const [turn, setTurn] = useState(0);
  // Selection of the capture that is being asked for.
  const [capturing, setCapturing] = useState<Draft>();
  const [tick, setTick] = useState(0);
  const about = useQuery(`status\n${tick}`, async (signal) => ({ status: await status(signal), at: Date.now() }));
  const skewed = useRef(0);
  const skew = useMemo(() => {
    const by = about.data && about.data.status.nowUnixNs > 0n ? toMs(about.data.status.nowUnixNs) - about.data.at : 0;
    // As it was while it is about the same: each change asks everything again.
    if (Math.abs(by - skewed.current) > SKEW_FROM_MS) skewed.current = Math.abs(by) > SKEW_FROM_MS ? by : 0;
    return skewed.current;
  }, [about.data]);
  const now = () => Date.now() + skew;
  useLive(state.live, () => setTurn((value) => value + 1), LIVE_MS);
  // Whether hosts can be believed is asked whatever else stands still.
  useLive(true, () => setTick((value) => value + 1), ALARM_MS);
  useShortcut('r', () => setTurn((value) => value + 1));
  useEffect(() => {
    const view = VIEWS.find(([one]) => one === state.view)?.[1] ?? '';
    document.title = [state.query && say(state.query), view, 'Fleetprof'].filter(Boolean).join(' · ');
  }, [state.view, state.query]);
  // Relative ranges stand still until something asks again.
  const resolved = useMemo(
    () => resolve({ from: state.from, to: state.to }, now()),
    [state.from, state.to, turn, skew],
  );
  const range = typeof resolved === 'string' ? undefined : resolved;
  const names = useQuery(range && `labels\n${Math.floor(range.from / 60_000)}`, (signal) =>
    labelNames(range ?? { from: 0, to: 1 }, signal),
  );
  const labels = useMemo(() => ordered(names.data ?? FIRST_LABELS.slice(0, 5)), [names.data]);
  const selection = range && { range, query: state.query, filters: state.filters };
  const openCapture = (query: string, change?: Partial<Draft>) => setCapturing({ ...draftOf(query), ...change });
  const page: PageProps | undefined = range &&
    selection && {
      state,
      setState,
      theme,
      range,
      selection,
      selectionKey: keyOf(selection, turn),
      labels,
      now,
      openCapture,
    };
  return (
    <>
      {/* biome-ignore lint/a11y/useValidAnchor: it leads into the page; the hash is the view's */}
      <a class="skip" href="#main" onClick={(event) => skip(event)}>
        To the content
      </a>
      <Head
        state={state}
        setState={setState}
        range={range}
        now={now}
        theme={theme}
        onTheme={flipTheme}
        onRefresh={() => setTurn(turn + 1)}
      />
      {about.data && <Alarm status={about.data.status} now={now()} state={state} />}
      <main id="main" tabIndex={-1} class={`view-${state.view}`}>
        {skew !== 0 && (
          <p class="notice">
            This browser’s clock differs from the collector’s by {format.duration(Math.abs(skew) * 1e6)}; ranges follow
            the collector’s.
          </p>
        )}
        {(state.view === 'profile' || state.view === 'cgroups') && (
          <QueryBar label="Selector" query={state.query} range={range} onChange={(query) => setState({ query })}>
            <button
              type="button"
              class="capture-button"
              title="Sample what is selected again, on its hosts, with any event and rate"
              onClick={() => openCapture(state.query)}
            >
              Capture …
            </button>
          </QueryBar>
        )}
        {typeof resolved === 'string' && (
          <TroubleBox
            trouble={{
              title: 'The time range is not valid',
              detail: '',
              advice: `${resolved}.`,
              retry: false,
              code: 'range',
            }}
          />
        )}
        {page && <Page {...page} />}
      </main>
      {capturing !== undefined && (
        <CaptureDialog
          captures={captures}
          draft={capturing}
          range={range}
          onClose={() => setCapturing(undefined)}
          onDone={(session) => {
            setCapturing(undefined);
            setState({
              view: 'captures',
              capture: idOf(session),
              search: '',
              regex: false,
              focus: '',
              fn: '',
              root: '',
            });
          }}
        />
      )}
    </>
  );
}

interface HeadProps {
  state: State;
  setState: SetState;
  range: Range | undefined;
  now: () => number;
  theme: Theme;
  onTheme: () => void;
  onRefresh: () => void;
}

function Head({ state, setState, range, now, theme, onTheme, onRefresh }: HeadProps) {
  return (
    <header class="head">
      <h1>
        <a
          href={linkTo(state, { view: 'profile', query: '', zoom: '', focus: '', fn: '', search: '', filters: [] })}
          title="Everything"
        >
          <Mark /> Fleetprof
        </a>
      </h1>
      <nav aria-label="Pages">
        {VIEWS.map(([view, title]) => (
          <a key={view} href={linkTo(state, { view })} aria-current={state.view === view ? 'page' : undefined}>
            {title}
          </a>
        ))}
      </nav>
      <TimePicker
        spec={{ from: state.from, to: state.to }}
        range={range}
        live={state.live}
        now={now}
        onRange={(spec) => setState(spec)}
        onLive={(live) => setState(live && state.to !== 'now' ? { live, from: 'now-15m', to: 'now' } : { live })}
        onRefresh={onRefresh}
      />
      <div class="head-end">
        <Popover
          title="Copy a link to this page"
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
                text={() => `${location.href.split('#')[0]}${linkTo(state, range ? absoluteSpec(range) : {})}`}
              >
                <b>Copy link (fixed times)</b> <span class="soft">for others to see the same</span>
              </CopyButton>
              <CopyButton title="Copy the address as it is" text={() => location.href}>
                <b>Copy link {state.to.startsWith('now') ? '(relative times)' : 'as it is'}</b>{' '}
                <span class="soft">{state.to.startsWith('now') ? 'moves with the clock' : 'the times are fixed'}</span>
              </CopyButton>
            </div>
          )}
        </Popover>
        <button
          type="button"
          class="square"
          title={theme === 'dark' ? 'Light' : 'Dark'}
          aria-label={theme === 'dark' ? 'Light theme' : 'Dark theme'}
          onClick={onTheme}
        >
          <Icon of="theme" />
        </button>
      </div>
    </header>
  );
}

function Page(props: PageProps) {
  switch (props.state.view) {
    case 'profile':
      return <ProfilePage {...props} />;
    case 'compare':
      return <ComparePage {...props} />;
    case 'cgroups':
      return <CgroupsView {...props} />;
    case 'hosts':
      return <HostsView {...props} />;
    case 'captures':
      return <CapturesPage {...props} />;
    case 'collector':
      return <CollectorView {...props} />;
  }
}

function CgroupsView(props: PageProps) {
  const query = useQuery(`cgroups\n${props.selectionKey}`, (signal) => cgroups(props.selection, signal));
  // For how long there are windows: rates are of that time.
  const time = useQuery(`series \n${props.selectionKey}`, (signal) => series(props.selection, '', signal));
  const coveredNs = useMemo(
    () =>
      time.data
        ? Math.min(chartOf(time.data, '', props.now()).coveredNs, (props.range.to - props.range.from) * 1e6)
        : 0,
    [time.data],
  );
  return (
    <>
      <Filters state={props.state} setState={props.setState} note="coverage needs all stacks, so it is left out" />
      <QualityLine quality={query.data?.quality} />
      <Answer query={query} what="the cgroups">
        {(answer) => (
          <Cgroups
            answer={answer}
            range={props.range}
            coveredNs={coveredNs}
            state={props.state}
            setState={props.setState}
          />
        )}
      </Answer>
    </>
  );
}

function HostsView(props: PageProps) {
  const query = useQuery(`hosts\n${props.selectionKey}`, (signal) => hosts(props.range, signal));
  return (
    <Answer query={query} what="the hosts">
      {(answer) => (
        <Hosts
          answer={answer}
          range={props.range}
          now={props.now()}
          state={props.state}
          setState={props.setState}
          onCapture={props.openCapture}
        />
      )}
    </Answer>
  );
}

function CollectorView(props: PageProps) {
  const query = useQuery(`status\n${props.selectionKey}`, status);
  return (
    <Answer query={query} what="the status">
      {(answer) => <Collector answer={answer} state={props.state} setState={props.setState} />}
    </Answer>
  );
}

/** Asks again and again, as long as somebody can see the page. */
function useLive(live: boolean, ask: () => void, everyMs: number): void {
  const latest = useRef(ask);
  latest.current = ask;
  useEffect(() => {
    if (!live) return;
    const timer = setInterval(() => {
      if (!document.hidden) latest.current();
    }, everyMs);
    // Who comes back sees what is now, not what was when the page was left.
    const back = () => {
      if (!document.hidden) latest.current();
    };
    document.addEventListener('visibilitychange', back);
    return () => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', back);
    };
  }, [live]);
}

function useShortcut(key: string, act: () => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (
        event.key !== key ||
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)
      )
        return;
      latest.current();
    };
    addEventListener('keydown', listen);
    return () => removeEventListener('keydown', listen);
  }, [key]);
}

function skip(event: Event): void {
  // The hash is the state of the page: an anchor would overwrite it.
  event.preventDefault();
  document.getElementById('main')?.focus();
}

function ordered(names: readonly string[]): string[] {
  const first = FIRST_LABELS.filter((label) => names.includes(label));
  return [...first, ...names.filter((name) => !first.includes(name))];
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
