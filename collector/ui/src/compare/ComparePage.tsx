// Two ranges, selections or versions against each other: both over time on one axis, the verdict,
// the table of changes, and the graph of both.

import { useMemo } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useDiffGraph } from '../analysis/useGraph';
import { useReloads } from '../analysis/useReloads';
import { useWas } from '../app/was';
import { Answer, Choice, Empty, TroubleBox, isStale } from '../app/parts';
import { LossBox } from '../app/QualityLine';
import { type PageProps, keyOf } from '../app/page';
import { FlamePanel } from '../flame/FlamePanel';
import { WidthChoice } from '../flame/WidthChoice';
import type { OverviewResponse, SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { KeepIn } from '../incidents/KeepIn';
import { ROWS_MAX, compared, diff, series } from '../query/client';
import type { Selection } from '../query/selection';
import { withMatcher } from '../query/selector';
import { type Query, useQuery } from '../query/useQuery';
import { addressOf, getState, setState, useDisplayState, useSelectionState, useViewState } from '../state/store';
import { type Changes, changesOf, shownMeans, shownRows } from '../tables/changes';
import { DiffTable, LabelTable } from '../tables/DiffTable';
import * as format from '../text/format';
import { type Range, absoluteSpec } from '../time/range';
import { type Chart, chartOf, meanOf } from '../time/series';
import { Sides } from './Sides';
import { baselineRange } from './sides';
import { Verdict } from './Verdict';

/** Rows that are no label's values. */
const OF_STACKS: readonly string[] = ['function', 'module'];

const isOfStacks = (by: string) => OF_STACKS.includes(by);

/** Label by which sides are compared as a whole where rows are functions. */
const ANY_LABEL = 'unit';

export function ComparePage(props: PageProps) {
  const { range } = props;
  const { bfrom, bto, baseline } = useSelectionState('bfrom', 'bto', 'baseline');
  const { deployMs } = useWas();
  const resolved = baselineRange({ bfrom, bto, baseline }, range, deployMs);
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
  const { selection, selectionKey, beforeRange } = props;
  const { query, bquery, filters, root } = useSelectionState('query', 'bquery', 'filters', 'root');
  const before: Selection = { ...selection, range: beforeRange, query: bquery ?? query, filters };
  const bothKey = `${selectionKey}\n${keyOf(before, 0)}`;
  const by = useRowsBy();
  const reloads = useReloads();
  const pair = useQuery(
    `pair ${root}\n${bothKey}\n${reloads}`,
    (signal, progress) => loadBoth([before, selection], root, signal, progress),
    { dispose: release },
  );
  // Sides of different length are compared by their mean over the time they cover.
  const means = useQuery(`means\n${bothKey}`, async (signal) => {
    const [was, is] = await Promise.all([series(before, '', signal), series(selection, '', signal)]);
    return { before: was, after: is };
  });
  const changes = useQuery(`diff\n${bothKey}`, async (signal) =>
    changesOf(await diff(before, selection, 'function', signal)),
  );
  const modules = useQuery(by === 'module' ? `diff by module\n${bothKey}` : undefined, async (signal) =>
    changesOf(await diff(before, selection, 'module', signal)),
  );
  // As a whole and by label, from the kernel's accounts, which frame filters do not reach.
  const label = isOfStacks(by) || by === 'host' ? ANY_LABEL : by;
  const whole = useQuery(filters.length || selection.type ? undefined : `compared ${label}\n${bothKey}`, (signal) =>
    compared(before, selection, label, signal),
  );
  // Other types have no accounts: values of labels are compared by their means.
  const byMeans = selection.type && !filters.length && !isOfStacks(by);
  const lines = useQuery(byMeans ? `lines by ${by}\n${bothKey}` : undefined, async (signal) => {
    const of = async (side: Selection) => chartOf(await series(side, by, signal, ROWS_MAX), by, props.now());
    const [was, is] = await Promise.all([of(before), of(selection)]);
    return { before: was, after: is };
  });
  const rates = useMemo(
    () => means.data && ratesOf(means.data, changes.data, filters.length > 0, props.now()),
    [means.data, changes.data, filters.length],
  );
  // With nothing on a side, no change is known, and none is denied.
  const isOneSided = pair.data !== undefined && (pair.data.before.rows === 0 || pair.data.after.rows === 0);
  const stale = [pair, means, changes, whole].some(isStale) ? ' outdated' : '';
  const unit = means.data?.after.quality?.unit || means.data?.before.quality?.unit || 'nanoseconds';
  return (
    <>
      <h2 class="hidden">Comparison</h2>
      <Sides
        {...props}
        before={before}
        after={selection}
        quality={{ before: pair.data?.before.quality, after: pair.data?.after.quality }}
        rates={rates}
        changes={changes.data}
        unit={unit}
        stale={stale}
      />
      <div class="compare-head">
        <Verdict
          stale={stale}
          rates={rates}
          unit={unit}
          fleet={whole.data?.fleet}
          changes={isOneSided ? undefined : changes.data}
        />
        <Measures unit={unit} rates={rates} />
        {!selection.type && (
          <KeepIn
            of="this comparison"
            what={() => ({ before, after: selection })}
            address={() => {
              const [is, was] = [absoluteSpec(selection.range), absoluteSpec(before.range)];
              return addressOf({ ...is, bfrom: was.from, bto: was.to, live: false });
            }}
          />
        )}
      </div>
      {stale === '' && <Losses pair={pair.data} />}
      <Body
        labels={props.labels}
        pair={pair}
        means={means}
        rates={rates}
        unit={unit}
        table={
          <Table
            by={by}
            changes={changes}
            modules={modules}
            whole={whole}
            lines={lines}
            rates={rates}
            unit={unit}
            {...props}
          />
        }
      />
    </>
  );
}

/** What rows of changes are. */
function useRowsBy(): string {
  const { rows } = useViewState('rows');
  return rows === 'exact' ? 'function' : rows;
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
  changes: Changes | undefined,
  filtered: boolean,
  nowMs: number,
): [number, number] | undefined {
  // Frame filters do not reach series: what they leave is the part that the profile has of all
  // samples.
  if (filtered && !changes) return undefined;
  const of = (side: 'before' | 'after') => {
    const mean = meanOf(means[side], nowMs);
    const all = Number(means[side].quality?.totalCount ?? 0n);
    return filtered && all > 0 ? mean * Math.min(1, (changes?.[side].samples ?? 0) / all) : mean;
  };
  const rates: [number, number] = [of('before'), of('after')];
  return rates.every(Number.isFinite) ? rates : undefined;
}

function Losses({ pair }: { pair: Pair | undefined }) {
  if (!pair) return null;
  return (
    <>
      <LossBox sampling={pair.before.quality?.sampling} what="before" />
      <LossBox sampling={pair.after.quality?.sampling} what="after" />
    </>
  );
}

interface TableProps extends PageProps {
  by: string;
  changes: Query<Changes>;
  modules: Query<Changes>;
  whole: Query<OverviewResponse>;
  lines: Query<Record<'before' | 'after', Chart>>;
  rates: readonly [number, number] | undefined;
  unit: string;
}

/** The changes, by what was chosen. */
function Table(props: TableProps) {
  const { by, rates, unit } = props;
  const { filters } = useSelectionState('filters');
  const { compare } = useDisplayState('compare');
  return (
    <section class="compare-table" aria-label="What changed">
      <ChangesBy labels={props.labels} by={by} />
      {isOfStacks(by) ? (
        <Answer query={by === 'module' ? props.modules : props.changes} what="the table of changes">
          {(changes) => <DiffTable changes={changes} by={by} rates={rates} unit={unit} />}
        </Answer>
      ) : filters.length ? (
        <Empty title="Frame filters do not reach the values of labels">
          <p>Choose functions or modules, or remove the frame filters.</p>
        </Empty>
      ) : props.selection.type ? (
        <Answer query={props.lines} what="the table of changes">
          {(sides) => (
            <LabelTable
              {...shownMeans(sides.before, sides.after, compare === 'share')}
              by={by}
              inCores={compare !== 'share'}
              unit={unit}
              onChoose={(value) => narrow(by, value)}
            />
          )}
        </Answer>
      ) : (
        <Answer query={props.whole} what="the table of changes">
          {(answer) => (
            <LabelTable
              rows={shownRows(
                by === 'host' ? answer.hosts : answer.services,
                compare === 'share' ? [answer.fleet?.baselineCores ?? 0, answer.fleet?.cores ?? 0] : undefined,
              )}
              by={by}
              inCores={compare !== 'share'}
              accounted={answer.accounted}
              leftOut={Number(by === 'host' ? answer.hostsLeftOut : answer.servicesLeftOut)}
              onChoose={(value) => narrow(by, value)}
            />
          )}
        </Answer>
      )}
    </section>
  );
}

/** Compares only what has this value on both sides, by function: the way from where to what. */
function narrow(label: string, value: string): void {
  const { query, bquery } = getState();
  const only = (of: string) => withMatcher(of, { label, op: '=', value });
  setState({
    query: only(query),
    bquery: bquery === undefined ? undefined : only(bquery),
    rows: 'function',
    sort: '',
    filter: '',
  });
}

/** Chooses what the rows are. */
function ChangesBy({ labels, by }: { labels: readonly string[]; by: string }) {
  const all = [...new Set<string>([...OF_STACKS, ...labels, by])];
  return (
    <label class="inline changes-by">
      Changes by
      <select value={by} onChange={(event) => setState({ rows: event.currentTarget.value, sort: '', filter: '' })}>
        {all.map((one) => (
          <option key={one} value={one}>
            {one.slice(0, 40)}
          </option>
        ))}
      </select>
    </label>
  );
}

interface BodyProps {
  labels: readonly string[];
  pair: Query<Pair>;
  means: Query<unknown>;
  rates: [number, number] | undefined;
  unit: string;
  table: preact.ComponentChildren;
}

/** The table, and the graph next to it: each as soon as it is there. */
function Body({ pair, means, rates, unit, table, labels }: BodyProps) {
  const { panel } = useViewState('panel');
  const { compare } = useDisplayState('compare');
  const { data } = pair;
  if (data && (data.before.rows === 0 || data.after.rows === 0)) {
    return (
      <Empty title={`No data ${data.before.rows === 0 ? 'in the baseline' : 'after'}`}>
        <p>Choose another range or selector for that side.</p>
      </Empty>
    );
  }
  if (data && data.before.unit !== data.after.unit) {
    return (
      <Empty title="These sides cannot be compared">
        <p>
          Before is in {data.before.unit}, after in {data.after.unit}.
        </p>
      </Empty>
    );
  }
  return (
    <>
      {compare === 'sum' && !rates && !means.waiting && (
        <p class="notice">{format.rateUnknown(unit)}: in none of its time are enough samples left. Shares are shown.</p>
      )}
      <div class={`compare-body panel-${panel}`}>
        {panel !== 'flame' && table}
        <div class="compare-graph">
          <Answer query={pair} what="both profiles" unit="stacks" room="graph">
            {/* A graph in shares would be thrown away as soon as rates are known. */}
            {(both) =>
              means.waiting && compare === 'sum' ? (
                <div class="quiet-box room-graph" />
              ) : (
                <Graphs {...both} rates={rates} labels={labels} />
              )
            }
          </Answer>
        </div>
      </div>
    </>
  );
}

interface GraphsProps extends Pair {
  rates: [number, number] | undefined;
  labels: readonly string[];
}

function Graphs({ before, after, rates, labels }: GraphsProps) {
  const query = useDiffGraph({ id: before.id }, { id: after.id }, rates);
  return (
    <Answer query={query} what="the graph" room="graph">
      {(graph) => <FlamePanel graph={graph} labels={labels} table={null} tools={<WidthChoice />} />}
    </Answer>
  );
}

/** What of two sides is compared: of verdict, table and graph alike. */
function Measures({ unit, rates }: { unit: string; rates: readonly [number, number] | undefined }) {
  const { compare } = useDisplayState('compare');
  return (
    <Choice
      label="Compare"
      value={compare}
      of={[
        [
          'sum',
          format.rateUnit(unit) === 'cores' ? 'Cores' : 'Per second',
          rates
            ? `Mean over the time that each side covers: ${format.rateValue(rates[0], unit)} before, ${format.rateValue(rates[1], unit)} after`
            : 'Unknown: one side has no reliable data at any time',
        ],
        ['share', `% of ${format.measure()}`, 'Each side is 100 % of what was sampled'],
      ]}
      onChange={(next) => setState({ compare: next })}
    />
  );
}
