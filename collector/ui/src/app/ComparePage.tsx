// Two ranges or selections against each other: where they are on the time axis, one graph of both,
// and the table of changes with its error.

import type { ComponentChildren } from 'preact';
import { useMemo, useState } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useDiffGraph } from '../analysis/useGraph';
import { useReloads } from '../analysis/useReloads';
import { FlamePanel } from '../flame/FlamePanel';
import { diff, series } from '../query/client';
import { WidthChoice } from '../flame/WidthChoice';
import type { Selection } from '../query/selection';
import type { SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { useQuery } from '../query/useQuery';
import { setState, useDisplayState, useSelectionState } from '../state/store';
import { changesOf } from '../tables/changes';
import { DiffTable } from '../tables/DiffTable';
import * as format from '../text/format';
import { ChartPanel } from '../time/ChartPanel';
import { meanOf } from '../time/series';
import { type Range, absoluteSpec, before as rightBefore, resolve, shifted } from '../time/range';
import { NotFiltered } from './Filters';
import { GroupBy } from './GroupBy';
import { Answer, Choice, Empty, TroubleBox } from './parts';
import { QueryBar } from './QueryBar';
import { LossBox, QualityLine } from './QualityLine';
import { type PageProps, keyOf } from './page';

/** How much more than both ranges the chart shows, so that they can be moved. */
const AROUND = 0.25;

export function ComparePage(props: PageProps) {
  const { range } = props;
  const { bfrom, bto } = useSelectionState('bfrom', 'bto');
  const spec = bfrom !== '' && bto !== '' ? { from: bfrom, to: bto } : undefined;
  const resolved = spec ? resolve(spec, range.to) : rightBefore(range);
  if (typeof resolved === 'string') {
    return (
      <TroubleBox
        trouble={{
          title: 'Invalid baseline range',
          detail: '',
          advice: `${resolved}.`,
          retry: false,
          code: 'range',
        }}
        again={() => setState({ bfrom: '', bto: '' })}
      />
    );
  }
  return <Compared {...props} beforeRange={resolved} />;
}

function Compared(props: PageProps & { beforeRange: Range }) {
  const { selection, selectionKey, beforeRange, labels } = props;
  const { query, bquery, filters, root } = useSelectionState('query', 'bquery', 'filters', 'root');
  const beforeSelection: Selection = { range: beforeRange, query: bquery ?? query, filters };
  const beforeKey = keyOf(beforeSelection, 0);
  const bothKey = `${selectionKey}\n${beforeKey}`;
  const reloads = useReloads();
  const pair = useQuery(
    `pair ${root}\n${bothKey}\n${reloads}`,
    (signal, progress) => loadBoth([beforeSelection, selection], root, signal, progress),
    { dispose: release },
  );
  // Sides of different length are compared by what they took of the CPU on average, over the time
  // they cover.
  const means = useQuery(`means\n${bothKey}`, async (signal) => {
    const [before, after] = await Promise.all([series(beforeSelection, '', signal), series(selection, '', signal)]);
    return { before, after };
  });
  const rates = useMemo(
    () => (means.data && pair.data ? ratesOf(means.data, pair.data, filters.length > 0, props.now()) : undefined),
    [means.data, pair.data],
  );
  const table = useQuery(`diff\n${bothKey}`, async (signal) =>
    changesOf(await diff(beforeSelection, selection, signal)),
  );
  return (
    <>
      <h2 class="hidden">Comparison</h2>
      <Sides {...props} before={pair.data?.before} after={pair.data?.after} />
      <Answer query={pair} what="both profiles" unit="stacks">
        {(data) => (
          <Both
            {...props}
            before={data.before}
            after={data.after}
            rates={rates}
            ratesKnown={means.data !== undefined}
            labels={labels}
            table={
              <Answer query={table} what="the table of changes">
                {(changes) => <DiffTable changes={changes} rates={rates} unit={data.after.unit} />}
              </Answer>
            }
          />
        )}
      </Answer>
    </>
  );
}

interface Pair {
  before: LoadedProfile;
  after: LoadedProfile;
}

function release({ before, after }: Pair): void {
  analysis.release(before);
  analysis.release(after);
}

/** Both profiles, or none: where one cannot be had the other is released. */
async function loadBoth(
  sides: readonly [before: Selection, after: Selection],
  root: string,
  signal: AbortSignal,
  progress: (stacks: number) => void,
): Promise<Pair> {
  const stacks = [0, 0];
  // The first that fails ends the other: nothing is shown of one side.
  const control = new AbortController();
  signal.addEventListener('abort', () => control.abort(), { once: true });
  const loads = sides.map((selection, side) =>
    analysis.load(selection, root, control.signal, (value) => {
      stacks[side] = value;
      progress(stacks[0] + stacks[1]);
    }),
  );
  try {
    const [before, after] = await Promise.all(loads);
    return { before, after };
  } catch (error) {
    control.abort();
    for (const load of loads) load.then((profile) => analysis.release(profile)).catch(() => undefined);
    throw error;
  }
}

/** Means of both sides; undefined where one is not known. */
function ratesOf(
  means: Record<'before' | 'after', SeriesResponse>,
  pair: Pair,
  filtered: boolean,
  nowMs: number,
): [number, number] | undefined {
  const of = (side: 'before' | 'after') => {
    const mean = meanOf(means[side], nowMs);
    // Frame filters do not reach series: what they leave is the part that the profile has of all
    // samples.
    const [all, left] = [Number(means[side].quality?.totalCount ?? 0n), Number(pair[side].quality?.totalCount ?? 0n)];
    return filtered && all > 0 ? mean * Math.min(1, left / all) : mean;
  };
  const rates: [number, number] = [of('before'), of('after')];
  return rates.every(Number.isFinite) ? rates : undefined;
}

type SidesProps = PageProps & {
  beforeRange: Range;
  before: LoadedProfile | undefined;
  after: LoadedProfile | undefined;
};

function Sides(props: SidesProps) {
  const { range, beforeRange, labels } = props;
  const { query, by } = useSelectionState('query', 'by');
  const [brushes, setBrushes] = useState<'before' | 'after'>('before');
  const around = useMemo(() => {
    const [from, to] = [Math.min(range.from, beforeRange.from), Math.max(range.to, beforeRange.to)];
    return {
      from: Math.max(0, Math.round(from - AROUND * (to - from))),
      to: Math.round(Math.max(to, Math.min(props.now(), to + AROUND * (to - from)))),
    };
  }, [range.from, range.to, beforeRange.from, beforeRange.to]);
  const selection: Selection = { range: around, query, filters: [] };
  const chart = useQuery(`series ${by}\n${keyOf(selection, 0)}`, (signal) => series(selection, by, signal));
  const setBefore = (to: Range) => {
    const spec = absoluteSpec(to);
    setState({ bfrom: spec.from, bto: spec.to });
  };
  return (
    <section class="chart-panel compare" aria-label="Comparison">
      <div class="sides">
        <BeforeSide {...props} setBefore={setBefore} />
        <AfterSide {...props} />
      </div>
      <div class="tools">
        <GroupBy labels={labels} />
        <NotFiltered />
        <span class="inline">
          Drag on the chart to set:
          <Choice
            label="Which side dragging sets"
            value={brushes}
            of={[
              ['before', 'Before'],
              ['after', 'After'],
            ]}
            onChange={setBrushes}
          />
        </span>
      </div>
      <Answer query={chart} what="the chart">
        {(answer) => (
          <ChartPanel
            answer={answer}
            now={props.now()}
            range={around}
            marks={[
              { ...beforeRange, tone: 'before' },
              { ...range, tone: 'after' },
            ]}
            brushHint={`Drag to set the range ${brushes}`}
            onBrush={(brushed) => {
              if (brushes === 'before') setBefore(brushed);
              else
                setState({
                  ...absoluteSpec(brushed),
                  bfrom: absoluteSpec(beforeRange).from,
                  bto: absoluteSpec(beforeRange).to,
                });
            }}
          />
        )}
      </Answer>
    </section>
  );
}

function BeforeSide(props: SidesProps & { setBefore: (range: Range) => void }) {
  const { range, beforeRange, setBefore } = props;
  const { query, bquery } = useSelectionState('query', 'bquery');
  return (
    <div class="side before">
      <h3>Before</h3>
      <QueryBar
        label="Selector of the baseline"
        query={bquery ?? query}
        range={beforeRange}
        onChange={(next) => setState({ bquery: next === query ? undefined : next })}
      />
      <div class="side-line">
        <span>{format.span(beforeRange.from, beforeRange.to)}</span>
        <button
          type="button"
          title="The same length right before the other range"
          onClick={() => setState({ bfrom: '', bto: '' })}
        >
          Previous period
        </button>
        {[
          ['1 day', 86_400_000],
          ['1 week', 7 * 86_400_000],
        ].map(([label, back]) => (
          <button
            key={label}
            type="button"
            title={`The same time ${label} earlier`}
            onClick={() => setBefore(shifted(range, -Number(back) / (range.to - range.from), props.now()))}
          >
            −{label}
          </button>
        ))}
        <QualityLine quality={props.before?.quality} />
      </div>
    </div>
  );
}

function AfterSide(props: SidesProps) {
  const { range } = props;
  const { query, bquery } = useSelectionState('query', 'bquery');
  return (
    <div class="side after">
      <h3>After</h3>
      <QueryBar
        label="Selector of the side after"
        query={query}
        range={range}
        onChange={(next) => setState({ query: next, bquery: bquery ?? query })}
      />
      <div class="side-line">
        <span>{format.span(range.from, range.to)}</span>
        <QualityLine quality={props.after?.quality} />
      </div>
    </div>
  );
}

function Both(
  props: PageProps & {
    before: LoadedProfile;
    after: LoadedProfile;
    rates: [number, number] | undefined;
    ratesKnown: boolean;
    table: ComponentChildren;
  },
) {
  const { before, after, rates } = props;
  const { compare } = useDisplayState('compare');
  if (before.rows === 0 || after.rows === 0) {
    return (
      <Empty title={`No data ${before.rows === 0 ? 'in the baseline' : 'after'}`}>
        <p>Choose another range or selector for that side.</p>
      </Empty>
    );
  }
  if (before.unit !== after.unit) {
    return (
      <Empty title="These sides cannot be compared">
        <p>
          Before is in {before.unit}, after in {after.unit}.
        </p>
      </Empty>
    );
  }
  return (
    <>
      {compare === 'sum' && !rates && props.ratesKnown && (
        <p class="notice">
          How many cores a side had is not known: in none of its time are enough samples left. Shares are shown.
        </p>
      )}
      <LossBox sampling={before.quality?.sampling} what="before" />
      <LossBox sampling={after.quality?.sampling} what="after" />
      <Graphs before={before} after={after} rates={rates} labels={props.labels} table={props.table} />
    </>
  );
}

interface GraphsProps extends Pair {
  rates: [number, number] | undefined;
  labels: readonly string[];
  table: ComponentChildren;
}

function Graphs({ before, after, rates, labels, table }: GraphsProps) {
  const query = useDiffGraph({ id: before.id }, { id: after.id }, rates);
  return (
    <Answer query={query} what="the graph">
      {(graph) => (
        <FlamePanel graph={graph} labels={labels} table={table} tools={<Measures unit={after.unit} rates={rates} />} />
      )}
    </Answer>
  );
}

/** What of two profiles is compared, and whose width frames have. */
function Measures({ unit, rates }: { unit: string; rates: readonly [number, number] | undefined }) {
  const { compare } = useDisplayState('compare');
  return (
    <>
      <Choice
        label="Compare"
        value={compare}
        of={[
          ['share', '% of CPU', 'Each side is 100 % of what was sampled'],
          [
            'sum',
            unit === 'nanoseconds' ? 'Cores' : 'Per second',
            rates
              ? `Mean over the time that each side covers: ${format.significant(rates[0])} before, ${format.significant(rates[1])} after`
              : 'Unknown: one side has no reliable data at any time',
          ],
        ]}
        onChange={(next) => setState({ compare: next })}
      />
      <WidthChoice />
    </>
  );
}
