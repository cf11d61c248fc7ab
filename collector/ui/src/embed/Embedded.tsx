// One panel of the profile in a frame of another page (`?embed`): the chart, the graph or the
// table. It shows, and changes nothing: no part of it asks the collector for more than to read.

import { useCallback, useMemo, useState } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useGraph } from '../analysis/useGraph';
import { useReloads } from '../analysis/useReloads';
import { Answer, Empty, Icon, Name, TroubleBox } from '../app/parts';
import { type PageProps, keyOf } from '../app/page';
import { LossBox } from '../app/QualityLine';
import { LIVE_MS, useLive } from '../app/live';
import { FlamePanel } from '../flame/FlamePanel';
import { pageBase } from '../query/base';
import { series } from '../query/client';
import { useQuery } from '../query/useQuery';
import { setState, useAddressOf, useSelectionState } from '../state/store';
import { useZone } from '../state/zone';
import { TopTable } from '../tables/TopTable';
import * as format from '../text/format';
import { ChartPanel } from '../time/ChartPanel';
import { absoluteSpec, resolve } from '../time/range';
import './embed.css';

/** What of the profile is shown. */
export type Part = 'chart' | 'flame' | 'table';

const PARTS: readonly Part[] = ['chart', 'flame', 'table'];

/** What the query of the page's address asks for; undefined: the page itself. */
export function partOf(query: string): Part | undefined {
  const asked = new URLSearchParams(query).get('embed');
  if (asked === null) return undefined;
  return PARTS.find((part) => part === asked) ?? 'flame';
}

type Shown = Pick<PageProps, 'range' | 'selection' | 'selectionKey' | 'now'>;

export function Embedded({ part }: { part: Part }) {
  const { from, to, query, filters, live } = useSelectionState('from', 'to', 'query', 'filters', 'live');
  const [turn, setTurn] = useState(0);
  const now = useCallback(() => Date.now(), []);
  useLive(live, () => setTurn((value) => value + 1), LIVE_MS);
  useZone();
  const range = useMemo(() => resolve({ from, to }, now()), [from, to, turn]);
  if (typeof range === 'string')
    return (
      <TroubleBox
        trouble={{ title: 'Invalid time range', detail: '', advice: `${range}.`, retry: false, code: 'range' }}
      />
    );
  const selection = { range, query, filters };
  const shown: Shown = { range, selection, selectionKey: keyOf(selection, turn), now };
  return (
    <main class={`embed embed-${part}`}>
      <h1 class="hidden">CPU profile</h1>
      <Caption {...shown} />
      {part === 'chart' ? <Chart {...shown} /> : <Profile {...shown} />}
    </main>
  );
}

/** What it is of, and the way to the page, in a window of its own. */
function Caption({ range, selection }: Shown) {
  const address = useAddressOf({ view: 'profile', panel: 'both' });
  return (
    <p class="embed-caption">
      <Name text={selection.query} max={120} empty="All hosts" />{' '}
      <span class="soft">{format.span(range.from, range.to)}</span>{' '}
      <a href={`${pageBase()}/${address}`} target="_blank" rel="noopener noreferrer">
        <Icon of="link" /> Open in Fleetprof
      </a>
    </p>
  );
}

function Chart({ range, selection, selectionKey, now }: Shown) {
  const { by } = useSelectionState('by');
  const query = useQuery(`series ${by}\n${selectionKey}`, (signal) => series(selection, by, signal));
  const none = useQuery<never>(undefined, () => new Promise(() => undefined));
  return (
    <Answer query={query} what="the chart" room="chart">
      {(answer) => (
        <ChartPanel
          answer={answer}
          before={none}
          now={now()}
          range={range}
          brushHint="Drag to zoom into a time range"
          onBrush={(next) => setState(absoluteSpec(next))}
        />
      )}
    </Answer>
  );
}

function Profile({ selection, selectionKey }: Shown) {
  const { root } = useSelectionState('root');
  const reloads = useReloads();
  const query = useQuery(
    `profile ${root}\n${selectionKey}\n${reloads}`,
    (signal, progress) => analysis.load(selection, root, signal, progress),
    { dispose: (data) => analysis.release(data) },
  );
  return (
    <Answer query={query} what="the profile" unit="stacks" room="graph">
      {(profile) =>
        profile.rows === 0 ? (
          <Empty title="No samples of this selection in this range" />
        ) : (
          <>
            <LossBox sampling={profile.quality?.sampling} what="of this selection" />
            <Stacks profile={profile} />
          </>
        )
      }
    </Answer>
  );
}

function Stacks({ profile }: { profile: LoadedProfile }) {
  const of = { id: profile.id };
  const query = useGraph(of);
  return (
    <Answer query={query} what="the graph" room="graph">
      {(graph) => (
        <FlamePanel
          graph={graph}
          labels={[]}
          once
          alone
          untouched=""
          table={<TopTable graph={graph} source={{ profile: of }} labels={profile.labels} pruned={0} />}
        />
      )}
    </Answer>
  );
}
