// CPU over time, and below it the profile of the same selection.

import { useMemo } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useGraph } from '../analysis/useGraph';
import { useReloads } from '../analysis/useReloads';
import { linesDraft } from '../capture/form';
import { FlamePanel } from '../flame/FlamePanel';
import { HeatPanel, Timed } from '../heat/HeatPanel';
import { series } from '../query/client';
import { readPick, writePick } from '../query/timestamps';
import type { SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { escapeRegex } from '../flame/search';
import { withMatcher } from '../query/selector';
import { useQuery } from '../query/useQuery';
import { getState, setState, useSelectionState, useViewState } from '../state/store';
import { collectorTop } from '../tables/collectorTop';
import { TopTable } from '../tables/TopTable';
import { ChartPanel } from '../time/ChartPanel';
import * as format from '../text/format';
import { REST_ID, chartOf, hostsLost } from '../time/series';
import { absoluteSpec } from '../time/range';
import { BadFilters } from './BadFilters';
import { Download } from './Download';
import { NotFiltered } from './Filters';
import { FunctionParts, FunctionTrend } from './FunctionTrend';
import { GroupBy } from './GroupBy';
import { NoSamples } from './NoSamples';
import { Answer, Name, isStale } from './parts';
import { LossBox, QualityLine } from './QualityLine';
import type { PageProps } from './page';
import { TypeChoice } from './TypeChoice';
import { Verdict } from './Verdict';
import { type Was, useWas } from './was';

export function ProfilePage(props: PageProps) {
  const { selection, selectionKey, labels } = props;
  const { by, root } = useSelectionState('by', 'root');
  const chart = useQuery(`series ${by}\n${selectionKey}`, (signal) => series(selection, by, signal));
  const { was } = useWas();
  // For the line above the chart, and behind it.
  const before = useQuery(was && `before ${by} ${was.key}`, (signal) => series((was as Was).selection, by, signal));
  const reloads = useReloads();
  const stacks = useQuery(
    `profile ${root}\n${selectionKey}\n${reloads}`,
    (signal, progress) => analysis.load(selection, root, signal, progress),
    { dispose: (data) => analysis.release(data) },
  );
  // A problem of both is shown once.
  const told =
    chart.trouble !== undefined &&
    chart.trouble.code === stacks.trouble?.code &&
    chart.trouble.detail === stacks.trouble.detail;
  const quality = stacks.data?.quality ?? chart.data?.quality;
  const drawn = useMemo(() => chart.data && chartOf(chart.data, by, props.now()), [chart.data, by]);
  const coveredNs = drawn && drawn.coveredNs > 0 ? drawn.coveredNs : undefined;
  const stale = isStale(chart) || isStale(stacks);
  return (
    <>
      <h2 class="hidden">Profile</h2>
      <Verdict
        {...props}
        chart={drawn}
        before={before.trouble ? undefined : before.data}
        quality={quality}
        stale={stale}
      />
      <section class="chart-panel" aria-label={`${format.measure()} over time`}>
        <div class="tools">
          <TypeChoice range={props.range} />
          <GroupBy labels={labels} />
          <NotFiltered />
          <QualityLine quality={quality} stale={stale} />
        </div>
        <Answer query={chart} told={told} what="the chart" room="chart">
          {(answer) => (
            <ChartPanel
              answer={answer}
              before={before}
              now={props.now()}
              range={props.range}
              brushHint="Drag to zoom into a time range"
              onBrush={(range) => setState(absoluteSpec(range))}
            />
          )}
        </Answer>
      </section>
      <BadFilters trouble={stacks.trouble ?? chart.trouble} />
      <Answer query={stacks} what="the profile" unit="stacks" room="graph">
        {(data) =>
          data.rows === 0 ? (
            <NoSamples {...props} lost={hostsLost(chart.data)} chart={chart.data} />
          ) : (
            <>
              <LossBox sampling={data.quality?.sampling} what="of this selection" />
              <Lines answer={chart.data} />
              <Stacks {...props} profile={data} coveredNs={coveredNs} />
            </>
          )
        }
      </Answer>
    </>
  );
}

/** Most values that a selection is made of by a click. */
const VALUES_MAX = 20;

/** Said where the chart shows some of its lines: the graph and the table are of all. */
function Lines({ answer }: { answer: SeriesResponse | undefined }) {
  const { by } = useSelectionState('by');
  const { hidden } = useViewState('hidden');
  if (!answer || !hidden.length) return null;
  const lines = answer.lines.map((line) => ({
    id: line.rest ? REST_ID : (line.labels[by] ?? ''),
    rest: line.rest,
  }));
  const shown = lines.filter((line) => !hidden.includes(line.id));
  if (shown.length === lines.length) return null;
  const values = shown.map((line) => line.id);
  const can = by !== '' && shown.length > 0 && shown.length <= VALUES_MAX && shown.every((line) => !line.rest);
  const select = () => {
    const matcher =
      values.length === 1
        ? ({ op: '=', value: values[0] } as const)
        : ({ op: '=~', value: values.map(escapeRegex).join('|') } as const);
    setState({ query: withMatcher(getState().query, { label: by, ...matcher }), hidden: [] });
  };
  return (
    <p class="notice lines-note" role="note">
      <span>
        The chart shows {shown.length} of {format.plural(lines.length, 'line')}
        {shown.length === 1 && !shown[0].rest && (
          <>
            {' '}
            (<Name text={values[0]} max={60} empty="(none)" />)
          </>
        )}
        . The graph and the table are of everything that is selected.
      </span>
      {can && (
        <button type="button" onClick={select}>
          Select only what the chart shows
        </button>
      )}
      <button type="button" onClick={() => setState({ hidden: [] })}>
        Show all lines
      </button>
    </p>
  );
}

function prunedPart(profile: LoadedProfile): number {
  const total = Number(profile.quality?.totalWeight ?? 0n);
  return total > 0 ? Number(profile.quality?.prunedWeight ?? 0n) / total : 0;
}

function Stacks(props: PageProps & { profile: LoadedProfile; coveredNs: number | undefined }) {
  const { labels, selection, selectionKey, profile } = props;
  const { timestamps } = profile;
  const { pick: picked } = useSelectionState('pick');
  const pick = useMemo(() => timestamps && readPick(timestamps, picked), [timestamps, picked]);
  const of = { id: profile.id, pick };
  const query = useGraph(of);
  // What the collector sums up is of the complete time.
  const source = pick ? { profile: of } : collectorTop(selection, selectionKey);
  return (
    <Timed onEscape={pick && (() => setState({ pick: '' }))}>
      {timestamps && (
        <HeatPanel
          profile={profile}
          timestamps={timestamps}
          pick={pick}
          onPick={(next) => setState({ pick: writePick(timestamps, next) })}
        />
      )}
      <Answer query={query} what="the graph" room="graph">
        {(graph) => (
          <FlamePanel
            graph={graph}
            labels={labels}
            hasLines={profile.hasLines}
            filtersAbove
            coveredNs={pick ? undefined : props.coveredNs}
            about={(fn) =>
              pick ? (
                <FunctionParts fn={fn} of={of} labels={profile.labels} />
              ) : (
                <FunctionTrend
                  fn={fn}
                  selection={selection}
                  selectionKey={selectionKey}
                  labels={labels}
                  now={props.now}
                />
              )
            }
            onRecord={(text) => props.openCapture(getState().query, linesDraft(text))}
            tools={<Download selection={selection} note={pick ? 'full range, not the picked part' : undefined} />}
            table={
              <TopTable
                graph={graph}
                source={source}
                labels={pick ? profile.labels : labels}
                pruned={pick ? 0 : prunedPart(profile)}
              />
            }
          />
        )}
      </Answer>
    </Timed>
  );
}
