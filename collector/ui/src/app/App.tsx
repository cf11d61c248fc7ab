// The page: its head, the selection, and one of its views. Everything shown follows from the
// address.
//
// This component knows which data are selected and which view is open; it is drawn again when they
// change.

import { useCallback, useEffect, useMemo, useState } from 'preact/hooks';
import { AlertsPage } from '../alerts/AlertsPage';
import { CaptureDialog, draftOf } from '../capture/CaptureDialog';
import { CapturesPage } from '../capture/CapturesPage';
import { captures } from '../capture/client';
import type { Draft } from '../capture/form';
import { idOf } from '../capture/store';
import { PinsPage } from '../events/PinsPage';
import { IncidentsPage } from '../incidents/IncidentsPage';
import { KeepIn } from '../incidents/KeepIn';
import { labelNames } from '../query/client';
import { useQuery } from '../query/useQuery';
import { addressOf, getState, setState, useSelectionState, useViewState } from '../state/store';
import type { View } from '../state/view';
import { useZone } from '../state/zone';
import * as format from '../text/format';
import { BACKWARDS, type Range, absoluteSpec, resolve } from '../time/range';
import { Alarm } from './Alarm';
import { useBaseline } from './Baseline';
import { ComparePage } from '../compare/ComparePage';
import { CompareWith } from './CompareWith';
import { Head, VIEWS } from './Head';
import { LIVE_MS, useLive, useShortcut } from './live';
import { TroubleBox, say } from './parts';
import { OverviewPage } from '../overview/OverviewPage';
import { ProfilePage } from './ProfilePage';
import { QueryBar } from './QueryBar';
import { type PageProps, keyOf } from './page';
import { ViewsPage } from '../views/ViewsPage';
import { Silence } from './Silence';
import { BaselineProvider } from './was';
import { CgroupsPage, CollectorPage, HostsPage } from './TablePages';

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

export function App() {
  const { live, query } = useSelectionState('live', 'query');
  const { view } = useViewState('view');
  const [turn, setTurn] = useState(0);
  const [skewMs, setSkewMs] = useState(0);
  // Selection of the capture that is being asked for.
  const [capturing, setCapturing] = useState<Draft>();
  const now = useCallback(() => Date.now() + skewMs, [skewMs]);
  const refresh = () => setTurn((value) => value + 1);
  useLive(live, refresh, LIVE_MS);
  useShortcut('r', refresh);
  useTitle(view, query);
  const { range, selection, wrong } = useSelected(now, turn);
  const baseline = useBaseline(range, selection, turn);
  format.nameType(selection?.type ?? '');
  // All times are drawn again in the other zone.
  useZone();
  const labels = useLabels(range, selection?.type ?? '');
  const openCapture = useCallback(
    (of: string, change?: Partial<Draft>) => setCapturing({ ...draftOf(of), ...change }),
    [],
  );
  const page: PageProps | undefined = range &&
    selection && { range, selection, selectionKey: keyOf(selection, turn), labels, now, openCapture };
  return (
    <BaselineProvider value={baseline}>
      {/* biome-ignore lint/a11y/useValidAnchor: it leads into the page; the hash is the view's */}
      <a class="skip" href="#main" onClick={(event) => skip(event)}>
        Skip to main content
      </a>
      <Head range={range} now={now} onRefresh={refresh} />
      <Alarm now={now} onSkew={setSkewMs} />
      <main id="main" tabIndex={-1} class={`view-${view}`}>
        <Silence />
        {skewMs !== 0 && (
          <p class="notice">
            This browser’s clock differs from the collector’s by {format.duration(Math.abs(skewMs) * 1e6)}; ranges
            follow the collector’s.
          </p>
        )}
        {(view === 'overview' || view === 'profile' || view === 'cgroups') && (
          <QueryBar
            label="Selector"
            query={query}
            range={range}
            type={selection?.type}
            frames={view !== 'overview'}
            onChange={(next) => setState({ query: next })}
          >
            {view === 'profile' && range && <CompareWith range={range} />}
            {view === 'profile' && selection && !selection.type && (
              <KeepIn
                of="this profile"
                what={() => ({ after: selection })}
                address={() => addressOf({ ...absoluteSpec(selection.range), live: false })}
              />
            )}
            <button
              type="button"
              class="capture-button"
              title="Record a new profile of the selection on its hosts, with any event and rate"
              onClick={() => openCapture(getState().query)}
            >
              Capture …
            </button>
          </QueryBar>
        )}
        {wrong !== undefined && (
          <TroubleBox
            trouble={{
              title: 'Invalid time range',
              detail: '',
              advice: `${wrong}.`,
              retry: false,
              code: 'range',
            }}
          />
        )}
        {wrong === BACKWARDS && (
          <p>
            <button type="button" onClick={() => setState({ from: getState().to, to: getState().from })}>
              ⇄ Swap
            </button>
          </p>
        )}
        {page && <Page {...page} view={view} />}
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
              transforms: [],
              fn: '',
              root: '',
            });
          }}
        />
      )}
    </BaselineProvider>
  );
}

function Page({ view, ...props }: PageProps & { view: View }) {
  switch (view) {
    case 'overview':
      return <OverviewPage {...props} />;
    case 'profile':
      return <ProfilePage {...props} />;
    case 'compare':
      return <ComparePage {...props} />;
    case 'cgroups':
      return <CgroupsPage {...props} />;
    case 'hosts':
      return <HostsPage {...props} />;
    case 'captures':
      return <CapturesPage {...props} />;
    case 'pins':
      return <PinsPage {...props} />;
    case 'alerts':
      return <AlertsPage {...props} />;
    case 'incidents':
      return <IncidentsPage {...props} />;
    case 'views':
      return <ViewsPage {...props} />;
    case 'collector':
      return <CollectorPage {...props} />;
  }
}

/** The selection with its range in times. `turn`: changes when relative ranges are to move. */
function useSelected(now: () => number, turn: number) {
  const { from, to, query, filters, type } = useSelectionState('from', 'to', 'query', 'filters', 'type');
  const { view } = useViewState('view');
  // Relative ranges stand still until something queries again.
  const resolved = useMemo(() => resolve({ from, to }, now()), [from, to, turn, now]);
  if (typeof resolved === 'string') return { wrong: resolved };
  // The other views are of agents alone.
  const typed = type !== '' && (view === 'profile' || view === 'compare') ? { type } : {};
  return { range: resolved, selection: { range: resolved, query, filters, ...typed } };
}

/** Names of labels in the range, those that matter first. */
function useLabels(range: Range | undefined, type: string): string[] {
  const names = useQuery(range && `labels\n${type}\n${Math.floor(range.from / 60_000)}`, (signal) =>
    labelNames(range ?? { from: 0, to: 1 }, signal, type),
  );
  return useMemo(() => ordered(names.data ?? FIRST_LABELS.slice(0, 5)), [names.data]);
}

function ordered(names: readonly string[]): string[] {
  const first = FIRST_LABELS.filter((label) => names.includes(label));
  return [...first, ...names.filter((name) => !first.includes(name))];
}

function useTitle(view: View, query: string): void {
  useEffect(() => {
    const title = view === 'views' ? 'Saved views' : (VIEWS.find(([one]) => one === view)?.[1] ?? '');
    document.title = [query && say(query), title, 'Fleetprof'].filter(Boolean).join(' · ');
  }, [view, query]);
}

function skip(event: Event): void {
  // The hash is the state of the page: an anchor would overwrite it.
  event.preventDefault();
  document.getElementById('main')?.focus();
}
