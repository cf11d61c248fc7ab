// CPU of what is selected, with its baseline behind it and what changed marked on it. Dragging
// chooses a range.

import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { OverviewResponse, OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import { Name } from '../app/parts';
import type { Events } from '../events/client';
import { Flags } from '../events/Flags';
import { happenings } from '../events/flags';
import { setState } from '../state/store';
import * as format from '../text/format';
import { absoluteSpec, toMs } from '../time/range';
import { KEYS_TOLD, useRangeKeys } from '../time/rangeKeys';
import { cores, dark, isSignificant, kindOf, paths, spoken } from './overview';
import type { Band } from '../time/series';
import { Lost, Missing, stretched } from './Spark';

/** Most changes that are marked. */
const MARKS_MAX = 4;

/** A drag of less is a click. Unit: parts of the width. */
const DRAG_MIN = 0.01;

/** Times on the axis. */
const TICKS = 4;

export function FleetChart({
  answer,
  row,
  baseline,
  lost,
  events,
}: {
  answer: OverviewResponse;
  row: OverviewRow;
  /** What the baseline is called. */
  baseline: string;
  /** When samples were lost. */
  lost: readonly Band[];
  /** What happened; undefined while it is not known. */
  events: Events | undefined;
}) {
  const box = useRef<HTMLDivElement>(null);
  const width = useWidth(box);
  const happened = useMemo(() => (events ? happenings(events) : []), [events]);
  const [drag, setDrag] = useState<[number, number]>();
  const [under, setUnder] = useState<number>();
  const steps = row.steps.length;
  const start = toMs(answer.startUnixNs);
  const stepMs = Number(answer.stepNs) / 1e6;
  const zoom = (low: number, high: number) => {
    const at = (part: number) => Math.round(start + part * steps * stepMs);
    setState({ ...absoluteSpec({ from: at(low), to: at(high) }), live: false });
  };
  const { cursor, marked, ...keys } = useRangeKeys(steps, (from, until) => zoom(from / steps, until / steps));
  if (steps === 0) return null;
  const was = stretched(row.baselineSteps, steps);
  const most = [...row.steps, ...was].reduce((one, other) => Math.max(one, other), 0) * 1.08;
  const place = (event: PointerEvent) => {
    const rect = box.current?.getBoundingClientRect();
    return rect ? Math.max(0, Math.min(1, (event.clientX - rect.left) / Math.max(rect.width, 1))) : 0;
  };
  const end = (event: PointerEvent) => {
    const from = drag?.[0];
    setDrag(undefined);
    if (from === undefined) return;
    const [low, high] = [Math.min(from, place(event)), Math.max(from, place(event))];
    if (high - low >= DRAG_MIN) zoom(low, high);
  };
  const shaded = marked?.map((step) => step / steps) ?? drag;
  const pointed = cursor !== undefined ? (cursor + 0.5) / steps : drag ? undefined : under;
  const marks = answer.services.filter((one) => isSignificant(one) && one.change?.sinceUnixNs !== 0n);
  return (
    <div class="fleet-chart">
      <div class="fleet-most" aria-hidden="true">
        {cores(most)} cores
      </div>
      <div
        class="fleet-plot"
        ref={box}
        title="Drag to zoom into a time range"
        {...keys}
        tabIndex={0}
        role="application"
        aria-label={`CPU of the selection over time, ${spoken(row)}. ${KEYS_TOLD}.`}
        onPointerDown={(event) => setDrag([place(event), place(event)])}
        onPointerMove={(event) => {
          const at = place(event);
          setUnder(at);
          setDrag((before) => before && [before[0], at]);
        }}
        onPointerUp={end}
        onPointerLeave={() => {
          setUnder(undefined);
          setDrag(undefined);
        }}
      >
        <svg viewBox={`0 0 ${steps} 1`} preserveAspectRatio="none" aria-hidden="true" focusable="false">
          {dark(row.steps).map(([from, to]) => (
            <rect key={from} class="spark-dark" x={from} y="0" width={to - from} height="1" />
          ))}
          <path class="fleet-area" d={area(row.steps, most)} />
          <Missing steps={was} />
          <path class="spark-was" d={paths(was, most)} />
          <path class="spark-is" d={paths(row.steps, most)} />
          {shaded && (
            <rect
              class="fleet-drag"
              x={Math.min(...shaded) * steps}
              y="0"
              width={Math.abs(shaded[1] - shaded[0]) * steps}
              height="1"
            />
          )}
        </svg>
        <Lost bands={lost} startUnixNs={answer.startUnixNs} stepNs={answer.stepNs} steps={steps} />
        {marks.slice(0, MARKS_MAX).map((one, place) => (
          <Mark key={one.name} row={one} at={fraction(one, answer, steps)} place={place} />
        ))}
        {dark(row.steps).map(([from, to]) => (
          <span key={from} class="fleet-none" style={{ left: `${((from + to) / 2 / steps) * 100}%` }}>
            {to - from > steps / 10 ? 'no data' : ''}
          </span>
        ))}
        <Flags all={happened} range={{ from: start, to: start + steps * stepMs }} left={0} width={width} />
        {pointed !== undefined && (
          <Under
            row={row}
            was={was}
            at={pointed}
            start={start}
            stepMs={stepMs}
            lost={lost}
            accounted={answer.accounted}
          />
        )}
      </div>
      <div class="fleet-axis" aria-hidden="true">
        {Array.from({ length: TICKS + 1 }, (_, at) => start + (at / TICKS) * steps * stepMs).map((ms) => (
          <span key={ms}>{format.clock(ms)}</span>
        ))}
      </div>
      <p class="fleet-key soft">
        <i class="key-is" /> now <i class="key-was" /> {baseline}
        {dark(was).length > 0 && was.length > 0 && (
          <>
            {' '}
            <i class="key-missing" /> no data for the baseline
          </>
        )}
        {lost.length > 0 && (
          <>
            {' '}
            <i class="key-lost" /> samples lost{answer.accounted ? ', CPU is exact' : ''}
          </>
        )}
        <span class="fleet-zone">{format.zone(start)}</span>
      </p>
      {events?.missing.map((text) => (
        <p key={text} class="soft">
          {text}
        </p>
      ))}
    </div>
  );
}

/** The width of an element as it is drawn. Unit: CSS pixels. */
function useWidth(of: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const element = of.current;
    if (!element) return;
    const measure = () => setWidth(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, [of]);
  return width;
}

function fraction(row: OverviewRow, answer: OverviewResponse, steps: number): number {
  const since = row.change?.sinceUnixNs ?? 0n;
  return Number(since - answer.startUnixNs) / Number(answer.stepNs) / steps;
}

/** Where a service changed. Its name stands on the side with more room. */
function Mark({ row, at, place }: { row: OverviewRow; at: number; place: number }) {
  const tone = row.change ? kindOf(row.change) : 'more';
  const side = at > 0.7 ? 'left' : 'right';
  return (
    <span class={`fleet-mark ${tone} ${side}`} style={{ left: `${at * 100}%` }}>
      <span style={{ top: `${place * 16}px` }}>
        <Name text={row.name} empty="(none)" max={40} />
      </span>
    </span>
  );
}

function Under(props: {
  row: OverviewRow;
  was: readonly number[];
  at: number;
  start: number;
  stepMs: number;
  lost: readonly Band[];
  accounted: boolean;
}) {
  const steps = props.row.steps.length;
  const step = Math.min(steps - 1, Math.floor(props.at * steps));
  const value = (line: readonly number[]) =>
    line[step] === undefined || line[step] < 0 ? 'no data' : cores(line[step]);
  const at = props.start + step * props.stepMs;
  const isLost = props.lost.some((band) => band.fromMs < at + props.stepMs && band.toMs > at);
  const side = props.at > 0.5 ? { right: `${(1 - props.at) * 100 + 1}%` } : { left: `${props.at * 100 + 1}%` };
  return (
    <div class="tip under" style={side} aria-live="polite">
      <div class="tip-head">{format.stamp(at)}</div>
      <div class="tip-row sum">
        <span>now</span> <b>{value(props.row.steps)}</b>
      </div>
      <div class="tip-row sum">
        <span>baseline</span> <b>{value(props.was)}</b>
      </div>
      {isLost && (
        <div class="loss-note">samples lost: profiles are incomplete{props.accounted ? ', CPU is exact' : ''}</div>
      )}
    </div>
  );
}

/** The area below a line. */
function area(steps: readonly number[], most: number): string {
  let path = '';
  for (const [at, value] of steps.entries()) {
    if (value < 0 || most <= 0) continue;
    path += `M${at} 1V${Math.round((1 - value / most) * 1000) / 1000}H${at + 1}V1Z`;
  }
  return path;
}
