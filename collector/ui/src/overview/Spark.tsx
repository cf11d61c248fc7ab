// A line over time with its baseline behind it.

import type { OverviewResponse, OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import type { Band } from '../time/series';
import { toMs } from '../time/range';
import { dark, mostOf, paths, placed, spoken } from './overview';

/**
 * Small: in a row of a table. The grey line is the baseline; grey is time without data, hatched
 * what lines are too low in, because samples were lost.
 */
export function Spark(props: { row: OverviewRow; answer: OverviewResponse; lost: readonly Band[] }) {
  const { row } = props;
  const { startUnixNs, stepNs } = props.answer;
  const most = mostOf(row);
  const steps = Math.max(row.steps.length, 1);
  const was = stretched(row.baselineSteps, steps);
  return (
    <span class="spark-box">
      <Lost bands={props.lost} startUnixNs={startUnixNs} stepNs={stepNs} steps={steps} />
      <svg
        class="spark"
        viewBox={`0 0 ${steps} 1`}
        preserveAspectRatio="none"
        role="img"
        aria-label={spoken(row)}
        focusable="false"
      >
        {dark(row.steps).map(([from, to]) => (
          <rect key={from} class="spark-dark" x={from} y="0" width={to - from} height="1" />
        ))}
        <Missing steps={was} />
        <path class="spark-was" d={paths(was, most)} />
        <path class="spark-is" d={paths(row.steps, most)} />
        {row.change?.significant && (
          <Stretch change={row.change} startUnixNs={startUnixNs} stepNs={stepNs} steps={steps} />
        )}
      </svg>
    </span>
  );
}

/** Where the baseline has no data: its line ends, and is not 0. */
export function Missing({ steps }: { steps: readonly number[] }) {
  const runs = steps.length ? dark(steps) : [];
  if (!runs.length) return null;
  return <path class="spark-missing" d={runs.map(([from, to]) => `M${from} 0.97H${to}`).join('')} />;
}

/** Where samples were lost, hatched. Over a plot, which is positioned. */
export function Lost(props: { bands: readonly Band[]; startUnixNs: bigint; stepNs: bigint; steps: number }) {
  const runs = placed(props.bands, toMs(props.startUnixNs), Number(props.stepNs) / 1e6, props.steps);
  return (
    <>
      {runs.map(([from, to]) => (
        <span
          key={from}
          class="lost-time"
          title="Samples were lost"
          style={{ left: `${(from / props.steps) * 100}%`, width: `${((to - from) / props.steps) * 100}%` }}
        />
      ))}
    </>
  );
}

/** Marks the time that differs. */
function Stretch(props: {
  change: NonNullable<OverviewRow['change']>;
  startUnixNs: bigint;
  stepNs: bigint;
  steps: number;
}) {
  const at = (ns: bigint) => Number(ns - props.startUnixNs) / Number(props.stepNs);
  const from = props.change.sinceUnixNs === 0n ? 0 : at(props.change.sinceUnixNs);
  const to = props.change.untilUnixNs === 0n ? props.steps : at(props.change.untilUnixNs);
  return <rect class="spark-stretch" x={from} y="0.94" width={Math.max(to - from, 0.2)} height="0.06" />;
}

/** A baseline of another length over the same width. */
export function stretched(line: readonly number[], steps: number): number[] {
  if (line.length === steps || line.length === 0) return [...line];
  return Array.from(
    { length: steps },
    (_, at) => line[Math.min(line.length - 1, Math.floor((at * line.length) / steps))],
  );
}
