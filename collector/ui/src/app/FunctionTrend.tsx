// How one function did over the range, and where: for the panel of a frame.

import { useEffect, useState } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { ProfileSource } from '../analysis/protocol';
import { functionSeries } from '../query/client';
import type { Selection } from '../query/selection';
import { useQuery } from '../query/useQuery';
import { useDisplayState } from '../state/store';
import * as format from '../text/format';
import { type Chart, chartOf } from '../time/series';
import { Bar, Name } from './parts';

/**
 * How long a frame is chosen before the collector is asked about it: keys pass over many. Unit:
 * milliseconds.
 */
const REST_MS = 350;

/** Most values of a label that are shown. */
const VALUES_SHOWN = 6;

interface Props {
  fn: string;
  selection: Selection;
  selectionKey: string;
  labels: readonly string[];
  now: () => number;
}

/** Of a selection, which the collector is asked about. */
export function FunctionTrend({ fn, selection, selectionKey, labels, now }: Props) {
  const [by, setBy] = useState('host');
  const rested = useRested(fn);
  const query = useQuery(rested === fn ? `function ${fn}\n${by}\n${selectionKey}` : undefined, (signal) =>
    functionSeries(selection, fn, by, VALUES_SHOWN, signal),
  );
  const choices = [...new Set(['host', ...labels])];
  const answer = query.data;
  const chart = answer && chartOf(answer, by, now());
  return (
    <section class="trend" aria-label="Over time" aria-busy={query.waiting}>
      <div class="trend-head">
        <h4>This function over the range</h4>
        {chart && <span>{rateText(meanOfAll(chart), chart.unit)} on average</span>}
      </div>
      {query.trouble ? (
        <p class="soft">
          {query.trouble.title}. {query.trouble.advice}{' '}
          {query.trouble.retry && (
            <button type="button" class="plain link" onClick={query.again}>
              Try again
            </button>
          )}
        </p>
      ) : (
        <Sparkline chart={chart} />
      )}
      <div class="trend-head">
        <h4>By {by.slice(0, 40)}</h4>
        <select aria-label="Split the function by" value={by} onChange={(event) => setBy(event.currentTarget.value)}>
          {choices.map((label) => (
            <option key={label} value={label}>
              {label.slice(0, 40)}
            </option>
          ))}
        </select>
      </div>
      {chart && (
        <Parts
          rows={chart.lines.map((line) => ({
            name: line.rest ? format.plural(chart.restLines, 'other') : line.name,
            plain: line.rest,
            value: line.total,
            note: rateText(line.mean, chart.unit),
          }))}
        />
      )}
    </section>
  );
}

/** Of a profile that only this page has. */
export function FunctionParts({ fn, of, labels }: { fn: string; of: ProfileSource; labels: readonly string[] }) {
  const { samples } = useDisplayState('samples');
  const first = labels.includes('host') ? 'host' : (labels[0] ?? '');
  const [chosen, setChosen] = useState('');
  const by = labels.includes(chosen) ? chosen : first;
  const args = { of, by, samples, fn };
  const query = useQuery(by === '' ? undefined : `function-sums ${fn} ${by}\n${JSON.stringify(args)}`, (signal) =>
    analysis.sums(args, signal),
  );
  if (by === '') return null;
  const rows = (query.data?.rows ?? []).filter((row) => row.total > 0);
  rows.sort((left, right) => right.total - left.total);
  const rest = rows.slice(VALUES_SHOWN);
  return (
    <section class="trend" aria-label="Split" aria-busy={query.waiting}>
      <div class="trend-head">
        <h4>By {by.slice(0, 40)}</h4>
        <select
          aria-label="Split the function by"
          value={by}
          onChange={(event) => setChosen(event.currentTarget.value)}
        >
          {labels.map((label) => (
            <option key={label} value={label}>
              {label.slice(0, 40)}
            </option>
          ))}
        </select>
      </div>
      <Parts
        rows={[
          ...rows
            .slice(0, VALUES_SHOWN)
            .map((row) => ({ name: row.name, plain: false, value: row.total, note: undefined })),
          ...(rest.length
            ? [
                {
                  name: format.plural(rest.length, 'other'),
                  plain: true,
                  value: rest.reduce((sum, row) => sum + row.total, 0),
                  note: undefined,
                },
              ]
            : []),
        ]}
      />
    </section>
  );
}

interface Part {
  name: string;
  /** Words of the page, no value of a label. */
  plain: boolean;
  value: number;
  note: string | undefined;
}

function Parts({ rows }: { rows: readonly Part[] }) {
  const whole = rows.reduce((sum, row) => sum + row.value, 0);
  if (!(whole > 0)) return <p class="soft">Nothing in this range.</p>;
  return (
    <ul class="around">
      {rows.map((row) => (
        <li key={row.name} title={row.note}>
          <Bar fraction={row.value / whole}>{format.share(row.value, whole)}</Bar>
          <span class="trend-name">
            {row.plain ? <span class="soft">{row.name}</span> : <Name text={row.name} max={80} empty="(none)" />}{' '}
            {row.note && <span class="soft">{row.note}</span>}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** All lines together, by step; NaN: not known. */
function sumOf(chart: Chart): number[] {
  return chart.states.map((state, at) => {
    if (state === 'none') return Number.NaN;
    return chart.lines.reduce((sum, line) => sum + line.rates[at], 0);
  });
}

function meanOfAll(chart: Chart): number {
  return chart.lines.reduce((sum, line) => sum + line.mean, 0);
}

const rateText = (rate: number, unit: string) => (Number.isFinite(rate) ? format.rate(rate, unit) : 'unknown');

/** A line with the time without data in grey. */
function Sparkline({ chart }: { chart: Chart | undefined }) {
  const rates = chart ? sumOf(chart) : [];
  const known = rates.filter((rate) => Number.isFinite(rate));
  const most = known.reduce((max, rate) => Math.max(max, rate), 0);
  const steps = Math.max(1, rates.length);
  const unit = chart?.unit ?? 'nanoseconds';
  const told = !chart
    ? 'loading'
    : known.length
      ? `between ${rateText(Math.min(...known), unit)} and ${rateText(most, unit)}`
      : 'no data';
  const clock = (seconds: number | undefined) => (seconds === undefined ? ' ' : format.clock(seconds * 1000));
  return (
    <>
      <svg
        class="trend-chart"
        viewBox={`0 0 ${steps} 100`}
        preserveAspectRatio="none"
        role="img"
        aria-label={`${format.measure()} of the function over the range: ${told}`}
      >
        {rates.map((rate, at) =>
          Number.isFinite(rate) ? null : <rect key={`${at}`} x={at} y="0" width="1" height="100" />,
        )}
        <path d={stepsOf(rates, most)} />
      </svg>
      <div class="trend-ends">
        <span>{clock(chart?.times[0])}</span>
        <span>{chart && known.length ? `0 to ${rateText(most, unit)}` : ''}</span>
        <span>{clock(chart?.times.at(-1))}</span>
      </div>
    </>
  );
}

/** SVG path of a line in steps, broken where nothing is known. */
function stepsOf(rates: readonly number[], most: number): string {
  let path = '';
  let open = false;
  rates.forEach((rate, at) => {
    if (!Number.isFinite(rate)) {
      open = false;
      return;
    }
    const y = (most > 0 ? 97 - 92 * Math.min(1, rate / most) : 97).toFixed(1);
    path += `${open ? 'L' : 'M'}${at} ${y}L${at + 1} ${y}`;
    open = true;
  });
  return path;
}

/** The text, once it has not changed for a moment. */
function useRested(text: string): string | undefined {
  const [rested, setRested] = useState<string>();
  useEffect(() => {
    const timer = setTimeout(() => setRested(text), REST_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return rested;
}
