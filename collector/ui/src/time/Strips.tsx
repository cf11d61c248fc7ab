// Both sides of a comparison over time, one above the other on the same axis: the starts of their
// ranges stand on each other. Dragging over a side chooses its range; keys move its ends.

import { useRef, useState } from 'preact/hooks';
import * as format from '../text/format';
import type { Range } from './range';
import { type Chart, bandsOf, sumAt } from './series';
import { type Edge, draggedOf, movedEdge, relativeTime, ticksOf } from './strip';

export interface Strip {
  /** What it is called, and how it is drawn. */
  name: string;
  tone: 'before' | 'after';
  range: Range;
  /** What is known of the time that is shown; undefined: not yet. */
  chart: Chart | undefined;
  onRange: (range: Range) => void;
}

interface Props {
  strips: readonly Strip[];
  /** Unit: milliseconds from the start of each range. */
  axis: Range;
  now: number;
}

/** Times nearer to an edge would be cut. Part of the width. */
const EDGE = 0.025;

/** Height of a strip in its drawing; its width is the length of the axis. */
const HIGH = 100;

export function Strips({ strips, axis, now }: Props) {
  const [under, setUnder] = useState<number>();
  const most = Math.max(...strips.map(({ chart }) => (chart ? mostOf(chart) : 0)), 0) * 1.08;
  const length = axis.to - axis.from;
  return (
    <div class="strips" onPointerLeave={() => setUnder(undefined)}>
      {strips.map((strip) => (
        <One key={strip.tone} strip={strip} axis={axis} most={most} now={now} under={under} onUnder={setUnder} />
      ))}
      <div class="strip-axis" aria-hidden="true">
        {ticksOf(axis)
          .filter((tick) => Math.min(tick - axis.from, axis.to - tick) > EDGE * length)
          .map((tick) => (
            <span
              key={tick}
              class={tick === 0 ? 'start' : ''}
              style={{ left: `${((tick - axis.from) / length) * 100}%` }}
            >
              {relativeTime(tick)}
            </span>
          ))}
      </div>
    </div>
  );
}

function mostOf(chart: Chart): number {
  return chart.states.reduce((most, _, step) => {
    const sum = sumAt(chart.lines, step);
    return Number.isNaN(sum) ? most : Math.max(most, sum);
  }, 0);
}

interface OneProps {
  strip: Strip;
  axis: Range;
  /** Top of the drawing, the same for both. */
  most: number;
  now: number;
  /** Part of the width that is pointed at, on either strip. */
  under: number | undefined;
  onUnder: (part: number | undefined) => void;
}

function One({ strip, axis, most, now, under, onUnder }: OneProps) {
  const { range, chart, tone } = strip;
  const box = useRef<HTMLDivElement>(null);
  const [drag, setDrag] = useState<[number, number]>();
  const length = axis.to - axis.from;
  // Unit of x: seconds, so that numbers stay short.
  const x = (ms: number) => Math.max(0, Math.min(length, ms - range.from - axis.from)) / 1000;
  const place = (event: PointerEvent) => {
    const rect = box.current?.getBoundingClientRect();
    return rect ? Math.max(0, Math.min(1, (event.clientX - rect.left) / Math.max(rect.width, 1))) : 0;
  };
  const end = (event: PointerEvent) => {
    if (!drag) return;
    setDrag(undefined);
    const to = draggedOf(range, axis, [drag[0], place(event)], now);
    if (to) strip.onRange(to);
  };
  const keys = useEdgeKeys(strip, axis, now);
  const bands = chart ? bandsOf(chart) : [];
  const chosen = keys.pending ?? range;
  const [from, to] = [x(chosen.from), x(chosen.to)];
  const percent = (seconds: number) => `${(seconds / (length / 1000)) * 100}%`;
  return (
    <div class={`strip ${tone}`}>
      <div
        class="strip-plot"
        ref={box}
        title={under === undefined ? `Drag to set the range of ${strip.name}` : undefined}
        data-none={chart?.states.filter((state) => state === 'none').length}
        data-lost={chart?.states.filter((state) => state === 'lost').length}
        onPointerDown={(event) => {
          if (event.button !== 0) return;
          box.current?.setPointerCapture(event.pointerId);
          setDrag([place(event), place(event)]);
        }}
        onPointerMove={(event) => {
          onUnder(place(event));
          setDrag((was) => was && [was[0], place(event)]);
        }}
        onPointerUp={end}
        onPointerCancel={() => setDrag(undefined)}
      >
        <svg
          viewBox={`0 0 ${length / 1000} ${HIGH}`}
          preserveAspectRatio="none"
          role="img"
          aria-label={`${strip.name}: ${format.measure()} over time, ${format.span(range.from, range.to)}`}
          focusable="false"
        >
          {chart && <path class="strip-area" d={area(chart, x, most)} />}
          {chart && <path class="strip-line" d={outline(chart, x, most)} />}
        </svg>
        {bands.map((band) => (
          <span
            key={`${band.state} ${band.fromMs}`}
            class={band.state === 'none' ? 'none-time' : 'lost-time'}
            style={{ left: percent(x(band.fromMs)), width: percent(x(band.toMs) - x(band.fromMs)) }}
          >
            {x(band.toMs) - x(band.fromMs) > length / 8000 && (
              <i>{band.state === 'none' ? 'no data' : 'samples lost'}</i>
            )}
          </span>
        ))}
        {/* What is around the range, and what has not come yet. */}
        <span class="strip-around" style={{ left: 0, width: percent(from) }} />
        <span class="strip-around" style={{ left: percent(to), right: 0 }} />
        <span class="strip-range" style={{ left: percent(from), width: percent(to - from) }} />
        {(['from', 'to'] as const).map((edge) => (
          <span
            key={edge}
            class="strip-edge"
            role="slider"
            tabIndex={0}
            style={{ left: percent(edge === 'from' ? from : to) }}
            aria-label={`${edge === 'from' ? 'Start' : 'End'} of ${strip.name}`}
            aria-description="Arrow keys move it, with Shift further; Enter sets the range"
            aria-valuemin={Math.round(axis.from / 1000)}
            aria-valuemax={Math.round(axis.to / 1000)}
            aria-valuenow={Math.round((chosen[edge] - range.from) / 1000)}
            aria-valuetext={format.stamp(chosen[edge])}
            onKeyDown={(event) => keys.onKeyDown(edge, event)}
            onBlur={(event) => {
              if (!box.current?.contains(event.relatedTarget as Node | null)) keys.leave();
            }}
          />
        ))}
        {drag && (
          <span
            class="strip-drag"
            style={{ left: `${Math.min(...drag) * 100}%`, width: `${Math.abs(drag[1] - drag[0]) * 100}%` }}
          />
        )}
        {under !== undefined && !drag && (
          <>
            <span class="strip-cursor" style={{ left: `${under * 100}%` }} />
            <span class={`strip-tip ${under > 0.6 ? 'left' : ''}`} style={{ left: `${under * 100}%` }}>
              {told(strip, axis, under)}
            </span>
          </>
        )}
      </div>
    </div>
  );
}

/** Parts of the axis that an arrow key moves an end by; with Shift ten times as far. */
const KEY_STEPS = 200;

/** Moves the ends of a range by keys. It is set by Enter: each key would ask the collector. */
function useEdgeKeys({ range, onRange }: Strip, axis: Range, nowMs: number) {
  const [pending, setPending] = useState<Range>();
  const onKeyDown = (edge: Edge, event: KeyboardEvent) => {
    const step = Math.max(1000, (axis.to - axis.from) / KEY_STEPS) * (event.shiftKey ? 10 : 1);
    const by = { ArrowLeft: -step, ArrowDown: -step, ArrowRight: step, ArrowUp: step, Home: -1e15, End: 1e15 }[
      event.key
    ];
    if (by !== undefined) {
      const around = { axis, start: range.from, nowMs };
      setPending(movedEdge(pending ?? range, around, edge, by));
    } else if (event.key === 'Enter' && pending) {
      setPending(undefined);
      onRange(pending);
    } else if (event.key === 'Escape' && pending) setPending(undefined);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  // What was not set is not kept: the drawing says what is compared.
  return { pending, onKeyDown, leave: () => setPending(undefined) };
}

/** What is under the pointer. */
function told({ range, chart }: Strip, axis: Range, part: number): string {
  const offset = axis.from + part * (axis.to - axis.from);
  const at = range.from + offset;
  const step = chart
    ? chart.times.findIndex((start, index) => start * 1000 <= at && at < (chart.times[index + 1] ?? 0) * 1000)
    : -1;
  const when = `${relativeTime(offset)} · ${format.stamp(at)}`;
  if (!chart || step < 0) return when;
  const sum = sumAt(chart.lines, step);
  const lost = chart.states[step] === 'lost' ? `, ${format.percent(chart.lost[step])} of samples lost` : '';
  // Without lines nothing ran, where there are data.
  const rate = Number.isNaN(sum) && chart.states[step] === 'known' && !chart.lines.length ? 0 : sum;
  return `${when} · ${Number.isNaN(rate) ? (lost ? 'not known' : 'no data') : format.rate(rate, chart.unit)}${lost}`;
}

const y = (rate: number, most: number) => Math.round((most > 0 ? 1 - Math.min(1, rate / most) : 1) * HIGH * 100) / 100;

function area(chart: Chart, x: (ms: number) => number, most: number): string {
  return steps(chart, x)
    .map(([from, to, rate]) => `M${from} ${HIGH}V${y(rate, most)}H${to}V${HIGH}Z`)
    .join('');
}

function outline(chart: Chart, x: (ms: number) => number, most: number): string {
  let path = '';
  let last: number | undefined;
  for (const [from, to, rate] of steps(chart, x)) {
    path += `${last === from ? 'L' : 'M'}${from} ${y(rate, most)}H${to}`;
    last = to;
  }
  return path;
}

/** Steps of which something is known: from, to and rate. */
function steps(chart: Chart, x: (ms: number) => number): [number, number, number][] {
  return chart.states.flatMap((state, step): [number, number, number][] => {
    const rate = chart.lines.length || state !== 'known' ? sumAt(chart.lines, step) : 0;
    const [from, to] = [x(chart.times[step] * 1000), x(chart.times[step + 1] * 1000)];
    return Number.isNaN(rate) || to <= from ? [] : [[from, to, rate]];
  });
}
