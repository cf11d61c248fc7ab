// A line over time with its baseline behind it.

import type { OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import { dark, mostOf, paths, spoken } from './overview';

/** Small: in a row of a table. The grey line is the baseline; hatched is time without data. */
export function Spark({ row, startUnixNs, stepNs }: { row: OverviewRow; startUnixNs: bigint; stepNs: bigint }) {
  const most = mostOf(row);
  const steps = Math.max(row.steps.length, 1);
  return (
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
      <path class="spark-was" d={paths(stretched(row.baselineSteps, steps), most)} />
      <path class="spark-is" d={paths(row.steps, most)} />
      {row.change?.significant && (
        <Stretch change={row.change} startUnixNs={startUnixNs} stepNs={stepNs} steps={steps} />
      )}
    </svg>
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
