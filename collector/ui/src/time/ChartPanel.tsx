// CPU over time: the chart, its legend, what stands under the pointer, and its table for those who
// do not see it.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { useWas } from '../app/was';
import { Icon, Name } from '../app/parts';
import { events } from '../events/client';
import { Flags } from '../events/Flags';
import { type Happening, happenings } from '../events/flags';
import type { SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { type Query, useQuery } from '../query/useQuery';
import { withMatcher } from '../query/selector';
import { getState, setState, useSelectionState, useViewState } from '../state/store';
import { useTheme } from '../state/theme';
import { useZone } from '../state/zone';
import * as format from '../text/format';
import { shown } from '../text/printable';
import { Plot } from './plot';
import type { Range } from './range';
import { KEYS_TOLD, useRangeKeys } from './rangeKeys';
import type { Chart, Gap, Ghost, Line } from './series';
import { causeText, chartOf, colourOf, gapsOf, ghostOf, idOf, missing, REST_ID, sumAt } from './series';

interface Props {
  answer: SeriesResponse;
  /** The same of the baseline. */
  before: Query<SeriesResponse>;
  brushHint: string;
  /** When the answer was asked for. Unit: milliseconds. */
  now: number;
  /** What was asked for. */
  range: Range;
  onBrush: (range: Range) => void;
}

export function ChartPanel(props: Props) {
  const { answer, before } = props;
  const { by } = useSelectionState('by');
  const { hidden } = useViewState('hidden');
  const chart = useMemo(() => chartOf(answer, by, props.now), [answer, by]);
  const { was } = useWas();
  const ghost = useMemo(
    () =>
      was && before.data && !before.trouble
        ? ghostOf(
            chart,
            chartOf(before.data, by, props.now),
            { now: props.range.from, was: was.selection.range.from },
            hidden,
          )
        : undefined,
    [chart, before.data, before.trouble, hidden, was?.key],
  );
  const gaps = useMemo(() => gapsOf(answer.quality), [answer]);
  const lines = useMemo(() => chart.lines.filter((line) => !hidden.includes(idOf(line))), [chart, hidden]);
  // As the axis has it: steps may start before the range.
  const drawn = { from: (chart.times[0] ?? 0) * 1000, to: (chart.times.at(-1) ?? 0) * 1000 };
  const happened = useQuery(drawn.to > drawn.from ? `events\n${drawn.from}\n${drawn.to}` : undefined, (signal) =>
    events(drawn, signal),
  ).data;
  const flags = useMemo(() => (happened ? happenings(happened) : []), [happened]);
  if (!chart.lines.length) return <p class="soft">This selection has no {format.measured()}.</p>;
  const lacks = missing(chart, (props.range.to - props.range.from) * 1e6);
  return (
    <div class="chart">
      <Drawing
        {...props}
        chart={chart}
        lines={lines}
        gaps={gaps}
        flags={flags}
        drawn={drawn}
        ghost={ghost}
        words={was?.words ?? ''}
      />
      <div class="legend-side">
        <Legend chart={chart} by={by} hidden={hidden} ghost={ghost} words={was?.words ?? ''} />
        {/* Below the lines, which stay where they are when these come. */}
        {lacks !== '' && (
          <p
            class={`chart-lacks ${chart.lostNs > 0 ? 'lossy' : ''}`}
            title={`Mean over the time with data${chart.accounted ? '' : ', without steps in which samples were lost'}`}
          >
            {lacks}
          </p>
        )}
        {happened?.missing.map((text) => (
          <p key={text} class="chart-lacks">
            {shown(text, 200)}
          </p>
        ))}
        {was && <BaselineNote query={before} ghost={ghost} words={was.words} unit={chart.unit} />}
      </div>
    </div>
  );
}

/** What the grey line is, and its mean. */
function BaselineNote(props: { query: Query<unknown>; ghost: Ghost | undefined; words: string; unit: string }) {
  const { query, ghost, words } = props;
  return (
    <p class="chart-was">
      <i /> {words}:{' '}
      {query.trouble
        ? `not known: ${query.trouble.title}`
        : ghost
          ? Number.isFinite(ghost.mean)
            ? format.rate(ghost.mean, props.unit)
            : 'no data'
          : '…'}
    </p>
  );
}

interface DrawingProps extends Props {
  chart: Chart;
  lines: readonly Line[];
  gaps: readonly Gap[];
  flags: readonly Happening[];
  /** From the first step to behind the last. */
  drawn: Range;
  /** The baseline, where it is known, and what it is called. */
  ghost: Ghost | undefined;
  words: string;
}

function Drawing(props: DrawingProps) {
  const { chart, lines, gaps, ghost, flags, drawn } = props;
  const dark = useTheme() === 'dark';
  const utc = useZone();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<Plot | undefined>(undefined);
  const brush = useRef(props.onBrush);
  brush.current = props.onBrush;
  const [point, setPoint] = useState<{ step: number; x: number }>();
  const [place, setPlace] = useState<{ left: number; width: number }>();
  useEffect(() => {
    if (!box.current) return;
    const made = new Plot(box.current, {
      brush: (range) => brush.current(range),
      point: (step, x) => setPoint(step === undefined ? undefined : { step, x }),
      placed: (left, width) =>
        setPlace((was) => (was && was.left === left && was.width === width ? was : { left, width })),
    });
    plot.current = made;
    return () => made.destroy();
  }, []);
  const unit = format.rateUnit(chart.unit);
  useEffect(() => {
    if (chart.times.length > 1) plot.current?.show(chart, lines, gaps, ghost, { dark, axis: unit, utc });
  }, [chart, lines, gaps, dark, ghost, utc]);
  const { cursor, marked, ...events } = useRangeKeys(chart.times.length - 1, (from, until) =>
    brush.current({ from: chart.times[from] * 1000, to: chart.times[until] * 1000 }),
  );
  useEffect(() => plot.current?.showKeys(cursor, marked), [cursor, marked?.[0], marked?.[1]]);
  const under = point && point.step >= 0 && point.step < chart.times.length - 1 ? point : undefined;
  return (
    <div class="plot-area">
      <span class="axis-name">{unit}</span>
      <div
        class="plot"
        ref={box}
        {...events}
        tabIndex={0}
        role="application"
        aria-label={`${format.measure()} over time in ${unit}, ${format.plural(lines.length, 'line')}; the legend has the numbers. ${KEYS_TOLD}.`}
        title={under ? undefined : props.brushHint}
        data-lines={lines.length}
        data-gaps={gaps.length}
        data-lost={chart.states.filter((state) => state === 'lost').length}
        data-none={chart.states.filter((state) => state === 'none').length}
        data-ghost={ghost ? ghost.rates.filter((value) => !Number.isNaN(value)).length : undefined}
        data-ghost-none={ghost?.missing.length}
      />
      <p class="hidden" aria-live="polite">
        {cursor !== undefined &&
          `${format.stamp(chart.times[cursor] * 1000)}: ${format.rate(sumAt(lines, cursor), chart.unit)}`}
      </p>
      {place && <Flags all={flags} range={drawn} left={place.left} width={place.width} />}
      {under && (
        <Under
          chart={chart}
          lines={lines}
          gaps={gaps}
          was={ghost?.rates[under.step]}
          words={props.words}
          step={under.step}
          x={under.x}
          width={box.current?.clientWidth ?? 0}
        />
      )}
    </div>
  );
}

/** The mean of a line in the baseline. What is too light there to have its own line is unknown. */
function before(ghost: Ghost, line: Line, unit: string): string {
  const mean = ghost.means.get(idOf(line));
  if (mean !== undefined) return format.rateValue(mean, unit);
  return ghost.means.has(REST_ID) || !Number.isFinite(ghost.mean) ? '–' : '0';
}

/** Most lines told of under the pointer. */
const UNDER_MAX = 8;

function Under(props: {
  chart: Chart;
  lines: readonly Line[];
  gaps: readonly Gap[];
  /** The baseline here; NaN: it has no data, undefined: there is none. */
  was: number | undefined;
  words: string;
  step: number;
  x: number;
  width: number;
}) {
  const { chart, lines, gaps, step } = props;
  const from = chart.times[step] * 1000;
  const rows = lines.map((line) => ({ line, rate: line.rates[step] })).filter((row) => row.rate > 0);
  rows.sort((left, right) => right.rate - left.rate);
  const sum = rows.reduce((total, row) => total + row.rate, 0);
  const gap = gaps.find((one) => one.fromMs < from + chart.stepMs && one.toMs > from);
  const side =
    props.x > props.width / 2
      ? { right: `${Math.round(props.width - props.x + 12)}px` }
      : { left: `${Math.round(props.x + 12)}px` };
  return (
    <div class="tip under" style={side}>
      <div class="tip-head">
        {format.stamp(from)} <span class="soft">+{format.duration(chart.stepMs * 1e6)}</span>
      </div>
      {rows.slice(0, UNDER_MAX).map(({ line, rate }) => (
        <div class="tip-row" key={idOf(line)}>
          <Swatch line={line} /> <LineName line={line} restLines={chart.restLines} />{' '}
          <b>{format.rateValue(rate, chart.unit)}</b>
        </div>
      ))}
      {rows.length > UNDER_MAX && <div class="soft">and {rows.length - UNDER_MAX} more</div>}
      {chart.states[step] === 'none' || lines.every((line) => Number.isNaN(line.rates[step])) ? (
        chart.states[step] === 'none' && <div class="soft">no data: no host sent data</div>
      ) : (
        <div class="tip-row sum">
          <span>sum</span> <b>{format.rate(sum, chart.unit)}</b>
        </div>
      )}
      {props.was !== undefined && (
        <div class="tip-row sum soft">
          <span>{props.words}</span>{' '}
          <span>{Number.isNaN(props.was) ? 'no data' : format.rateValue(props.was, chart.unit)}</span>
        </div>
      )}
      {chart.states[step] === 'lost' && (
        <div class="loss-note">
          <Icon of="warn" /> {format.percent(chart.lost[step])} of the samples of its hosts lost:{' '}
          {chart.accounted ? 'profiles are incomplete, CPU is exact' : 'the chart is too low here'}
        </div>
      )}
      {gap && (
        <div class="gap-note">
          <Icon of="warn" /> no data of{' '}
          {gap.hosts.length > 3
            ? format.plural(gap.hosts.length, 'host')
            : gap.hosts.map((host) => <Name key={host} text={host} max={40} />)}
          : {gap.causes.map(causeText).join('; ')}
        </div>
      )}
    </div>
  );
}

function Swatch({ line }: { line: Line }) {
  return <span class="swatch" style={{ background: colourOf(line) }} />;
}

function LineName({ line, restLines }: { line: Line; restLines: number }) {
  if (line.rest)
    return <span class="name none">rest{restLines > 0 ? ` (${format.plural(restLines, 'line')})` : ''}</span>;
  return <Name text={line.name} empty="(none)" max={80} />;
}

interface LegendProps {
  chart: Chart;
  by: string;
  hidden: readonly string[];
  ghost: Ghost | undefined;
  words: string;
}

function Legend({ chart, by, hidden, ghost, words }: LegendProps) {
  const shown = (line: Line) => !hidden.includes(idOf(line));
  const alone = (line: Line) => shown(line) && chart.lines.every((one) => one === line || !shown(one));
  const toggle = (line: Line) =>
    setState({ hidden: shown(line) ? [...hidden, idOf(line)] : hidden.filter((id) => id !== idOf(line)) });
  const isolate = (line: Line) =>
    setState({ hidden: alone(line) ? [] : chart.lines.filter((one) => one !== line).map(idOf) });
  const select = (line: Line) =>
    setState({ query: withMatcher(getState().query, { label: by, op: '=', value: line.name }) });
  return (
    <div class="legend" role="group" aria-label="Lines of the chart" tabIndex={-1}>
      <table>
        <colgroup>
          <col class="col-swatch" />
          <col />
          <col class="col-rate" />
          {words !== '' && <col class="col-was" />}
          <col class="col-share" />
          <col class="col-add" />
        </colgroup>
        <thead>
          <tr>
            <th scope="col">
              <span class="hidden">Shown</span>
            </th>
            <th scope="col">
              {(by || 'all').slice(0, 40)}
              {chart.lines.length > 1 && ` (${chart.lines.length})`}
            </th>
            <th
              scope="col"
              class="number"
              title={
                chart.accounted
                  ? 'Mean over the time with data, as the kernel accounts it'
                  : 'Mean over the time with data, without steps in which samples were lost'
              }
            >
              {format.rateUnit(chart.unit)}
            </th>
            {words !== '' && (
              <th scope="col" class="number" title={`Mean of the baseline: ${words}`}>
                before
              </th>
            )}
            <th scope="col" class="number">
              share
            </th>
            <th scope="col">
              <span class="hidden">Select</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {chart.lines.map((line) => (
            <tr key={idOf(line)} class={shown(line) ? '' : 'off'}>
              <td>
                <button
                  type="button"
                  class="swatch-button"
                  aria-pressed={shown(line)}
                  aria-label={`Show ${line.rest ? 'the rest' : line.name || 'lines without a value'}`}
                  title="Show or hide"
                  onClick={() => toggle(line)}
                >
                  <Swatch line={line} />
                </button>
              </td>
              <td class="wide">
                <button
                  type="button"
                  class="plain"
                  title="Show only this line; click again to show all"
                  onClick={() => isolate(line)}
                >
                  {by === '' ? <span class="name">all</span> : <LineName line={line} restLines={chart.restLines} />}
                </button>
              </td>
              <td class="number">{format.rateValue(line.mean, chart.unit)}</td>
              {words !== '' && <td class="number soft">{ghost ? before(ghost, line, chart.unit) : ''}</td>}
              <td class="number soft">{format.share(line.total, chart.total)}</td>
              <td>
                {!line.rest && by !== '' && (
                  <button
                    type="button"
                    class="plain square-small"
                    title="Select only this"
                    aria-label={`Select only ${line.name || 'what has no value'}`}
                    onClick={() => select(line)}
                  >
                    <Icon of="plus" />
                  </button>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
