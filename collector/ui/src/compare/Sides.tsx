// Which two sides are compared: their selectors and ranges, ways to choose them, and both over
// time.

import { useMemo } from 'preact/hooks';
import { useLastDeploy } from '../app/Baseline';
import { Answer } from '../app/parts';
import { QualityLine } from '../app/QualityLine';
import { QueryBar } from '../app/QueryBar';
import { NotFiltered } from '../app/Filters';
import { type PageProps, keyOf } from '../app/page';
import type { DataQuality } from '../gen/fleetprof/collector/v1/query_pb';
import { series } from '../query/client';
import type { Selection } from '../query/selection';
import { useQuery } from '../query/useQuery';
import { setState, useSelectionState } from '../state/store';
import type { Changes } from '../tables/changes';
import * as format from '../text/format';
import { BASELINES } from '../time/baseline';
import { type Range, type Spec, absoluteSpec, toMs } from '../time/range';
import { Strips } from '../time/Strips';
import { chartOf } from '../time/series';
import { axisOf, shownOf } from '../time/strip';
import { RangePopover } from '../time/TimePicker';
import { specOf, swapped } from './sides';
import { Versions } from './Versions';

/** Less that was lost is told where the data quality is. */
const LOST_TOLD = 0.01;

interface Props extends PageProps {
  before: Selection;
  after: Selection;
  quality: Record<'before' | 'after', DataQuality | undefined>;
  rates: readonly [number, number] | undefined;
  changes: Changes | undefined;
  unit: string;
  /** A class where rates and changes are of the sides before. */
  stale: string;
}

export function Sides(props: Props) {
  const { before, after } = props;
  const axis = useMemo(
    () => axisOf([before.range, after.range]),
    [before.range.from, before.range.to, after.range.from, after.range.to],
  );
  const setBefore = (to: Range) => {
    const spec = absoluteSpec(to);
    setState({ bfrom: spec.from, bto: spec.to });
  };
  const setAfter = (to: Range) => {
    // The baseline stays where it is, also one that followed the range.
    const was = absoluteSpec(before.range);
    setState({ ...absoluteSpec(to), bfrom: was.from, bto: was.to, live: false });
  };
  return (
    <section class="chart-panel compare" aria-label="Comparison">
      <Presets {...props} />
      <div class="sides">
        <BeforeSide {...props} />
        <AfterSide {...props} onRange={setAfter} />
      </div>
      <Over {...props} axis={axis} setBefore={setBefore} setAfter={setAfter} />
    </section>
  );
}

/** Both sides over time. */
function Over(props: Props & { axis: Range; setBefore: (range: Range) => void; setAfter: (range: Range) => void }) {
  const { before, after, axis } = props;
  const [was, is] = [useShown(before, axis, props.now), useShown(after, axis, props.now)];
  const now = props.now();
  // Either may fail alone; what is known of the other is shown.
  const query = was.query.trouble ? was.query : is.query;
  return (
    <Answer query={{ ...query, data: true as const }} what="both sides over time" room="strips">
      {() => (
        <Strips
          axis={axis}
          now={now}
          strips={[
            {
              name: 'A, the baseline',
              tone: 'before',
              range: before.range,
              chart: was.chart,
              onRange: props.setBefore,
            },
            { name: 'B', tone: 'after', range: after.range, chart: is.chart, onRange: props.setAfter },
          ]}
        />
      )}
    </Answer>
  );
}

/** What is known of a side in the time that its strip shows. */
function useShown(side: Selection, axis: Range, now: () => number) {
  // As of when the side was chosen: with each drawing it would be another question.
  const range = useMemo(() => shownOf(side.range, axis, now()), [side.range.from, side.range.to, axis.from, axis.to]);
  const selection: Selection = { ...side, range, filters: [] };
  const query = useQuery(`strip\n${keyOf(selection, 0)}`, (signal) => series(selection, '', signal));
  const chart = useMemo(() => query.data && chartOf(query.data, '', now()), [query.data]);
  return { query, chart };
}

/** Ways to choose the baseline, and to put the sides in each other's place. */
function Presets({ before, after, range, labels }: Props) {
  const { bfrom, baseline, bquery, query } = useSelectionState('bfrom', 'baseline', 'bquery', 'query');
  const { deploy, waiting, trouble } = useLastDeploy(query, range.to, true);
  const deployMs = deploy && toMs(deploy.startUnixNs);
  const isFree = bfrom !== '' || bquery !== undefined;
  const sinceDeploy = (ms: number) =>
    setState({ ...absoluteSpec({ from: ms, to: range.to }), bfrom: '', bto: '', baseline: 'deploy', live: false });
  return (
    <div class="tools presets">
      <span class="group" role="group" aria-label="Baseline of the comparison">
        {BASELINES.filter(([one]) => one !== 'none' && one !== 'deploy').map(([one, text, title]) => (
          <button
            key={one}
            type="button"
            title={title}
            aria-pressed={!isFree && (baseline === one || (one === 'previous' && baseline === 'none'))}
            onClick={() => setState({ baseline: one, bfrom: '', bto: '', bquery: undefined })}
          >
            {text}
          </button>
        ))}
        <button
          type="button"
          aria-pressed={!isFree && baseline === 'deploy'}
          disabled={deployMs === undefined || deployMs >= range.to}
          title={
            deployMs === undefined
              ? waiting
                ? 'Looking for the last deploy'
                : trouble
                  ? `Deploys are not known: ${trouble.title}`
                  : 'No deploy of what is selected in the last 30 days'
              : `The time since ${format.stamp(deployMs)} with as much before it: ${(deploy?.text ?? '').slice(0, 100)}`
          }
          onClick={() => deployMs !== undefined && sinceDeploy(deployMs)}
        >
          Since the last deploy
        </button>
      </span>
      <Versions labels={labels} query={query} range={range} type={after.type} />
      <button type="button" title="Put each side in the other's place" onClick={() => setState(swapped(before, after))}>
        ⇄ Swap
      </button>
      <NotFiltered />
    </div>
  );
}

function BeforeSide(props: Props) {
  const { before } = props;
  const { query, bquery, bfrom, bto } = useSelectionState('query', 'bquery', 'bfrom', 'bto');
  return (
    <div class="side before">
      <h3>A, baseline</h3>
      <QueryBar
        label="Selector of the baseline"
        query={bquery ?? query}
        range={before.range}
        type={before.type}
        onChange={(next) => setState({ bquery: next === query ? undefined : next })}
      />
      <Line
        {...props}
        of="before"
        spec={specOf({ from: bfrom, to: bto }, before.range)}
        at={before.range}
        title="Choose the range of the baseline"
        onRange={(spec) => setState({ bfrom: spec.from, bto: spec.to })}
      />
    </div>
  );
}

function AfterSide(props: Props & { onRange: (range: Range) => void }) {
  const { range } = props;
  const { query, bquery, from, to } = useSelectionState('query', 'bquery', 'from', 'to');
  return (
    <div class="side after">
      <h3>B</h3>
      <QueryBar
        label="Selector of the side after"
        query={query}
        range={range}
        type={props.after.type}
        onChange={(next) => setState({ query: next, bquery: bquery ?? query })}
      />
      <Line
        {...props}
        of="after"
        spec={{ from, to }}
        at={range}
        title="Choose the range of B"
        onRange={(spec) => setState(spec)}
      />
    </div>
  );
}

/** The range of a side, and what it had. */
function Line(
  props: Props & {
    of: 'before' | 'after';
    spec: Spec;
    at: Range;
    title: string;
    onRange: (spec: Spec) => void;
  },
) {
  const { of, rates, changes } = props;
  const rate = rates?.[of === 'before' ? 0 : 1];
  const side = changes?.[of];
  return (
    <div class="side-line">
      <RangePopover
        spec={props.spec}
        range={props.at}
        now={props.now}
        onRange={props.onRange}
        title={props.title}
        align="left"
      />
      <span class={`side-sum${props.stale}`}>
        {rate === undefined ? '' : `${format.rate(rate, props.unit)} · `}
        {side ? `${format.compact(side.samples)} samples` : ''}
        {side && side.lost >= LOST_TOLD && ` · lost ${format.percent(side.lost)}`}
      </span>
      <QualityLine quality={props.quality[of]} stale={props.stale !== ''} />
    </div>
  );
}
