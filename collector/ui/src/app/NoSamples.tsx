// Said where a selection has nothing: whether the time, the labels or the functions are the cause,
// what is near, and ways out.

import type { SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { labelNames, labelValues, status } from '../query/client';
import { nearest } from '../query/nearest';
import type { Selection } from '../query/selection';
import { type Matcher, parse, problem, withoutMatcher, writeAll } from '../query/selector';
import { useQuery } from '../query/useQuery';
import { getState, setState } from '../state/store';
import * as format from '../text/format';
import { absoluteSpec, toMs, widened } from '../time/range';
import { LOST_FROM } from '../time/series';
import { Empty, Name } from './parts';
import type { PageProps } from './page';

interface Props extends PageProps {
  /** The part of what its hosts took that was lost. */
  lost: number;
  /** CPU over time of the same labels, which knows nothing of functions. */
  chart: SeriesResponse | undefined;
}

/** Most labels that are named, and values that are looked through for what is near. */
const LABELS_SHOWN = 20;
const VALUES_MAX = 1000;

export function NoSamples({ selection, selectionKey, range, now, lost, chart }: Props) {
  const query = useQuery('status\n', status);
  const kept = query.data?.kept;
  const [from, to] = kept ? [toMs(kept.startUnixNs), toMs(kept.endUnixNs)] : [0, 0];
  const outside = to > from && (range.to <= from || range.from >= to);
  // The chart is of the same labels and time, without filters of functions.
  const labelled = (chart?.lines ?? []).some((line) => line.totalWeight > 0n);
  const byFunction = selection.filters.length > 0 && labelled;
  const looks = !outside && !byFunction && selection.query !== '' && lost < LOST_FROM;
  const why = useQuery(looks ? `why\n${selectionKey}` : undefined, (signal) => whyNothing(selection, signal));
  const cause = outside ? 'time' : byFunction ? 'functions' : selection.query !== '' ? 'labels' : 'time';
  return (
    <Empty title="No samples in this selection">
      <p data-cause={cause}>
        {outside
          ? `The time range is outside of what the collector keeps: ${format.span(from, to)}.`
          : lost >= LOST_FROM
            ? `${format.percent(lost)} of the samples of its hosts were lost in this range, and a lost sample does not tell whose it was: what is selected may have run all the same.`
            : byFunction
              ? 'The labels match and there is data, but no stack is left by the filters of functions.'
              : selection.query !== ''
                ? 'No samples match the labels in this range.'
                : selection.type
                  ? 'No profiles of this type in this range.'
                  : 'No host sent data in this range.'}
      </p>
      {looks && why.data && <Why why={why.data} type={selection.type} />}
      <p class="buttons">
        {outside && (
          <button
            type="button"
            class="primary"
            onClick={() => setState(absoluteSpec({ from: Math.max(from, to - 3_600_000), to }))}
          >
            Show the newest hour there is
          </button>
        )}
        {byFunction && (
          <button type="button" class="primary" onClick={() => setState({ filters: [] })}>
            Remove the filters of functions
          </button>
        )}
        {(selection.query !== '' || selection.filters.length > 0) && (
          <button type="button" onClick={() => setState({ query: '', filters: [] })}>
            Select everything
          </button>
        )}
        {!outside && !byFunction && (
          <button type="button" onClick={() => setState(absoluteSpec(widened(range, now())))}>
            Zoom out 2×
          </button>
        )}
        <button type="button" onClick={() => setState({ view: 'hosts' })}>
          See the hosts
        </button>
      </p>
    </Empty>
  );
}

/** Why the labels of a selection match nothing. */
type WhyNothing =
  | { of: 'label'; at: number; matcher: Matcher; near: string | undefined; labels: string[] }
  | { of: 'value'; at: number; matcher: Matcher; near: string | undefined; some: string[] }
  | { of: 'both' }
  | { of: 'time' };

/** Looks at the labels that there are, and at the values that each matcher could have. */
async function whyNothing(selection: Selection, signal: AbortSignal): Promise<WhyNothing> {
  const { range, query, type } = selection;
  const matchers = problem(query) ? [] : parse(query);
  const labels = await labelNames(range, signal, type);
  if (labels.length === 0) return { of: 'time' };
  for (const [at, matcher] of matchers.entries()) {
    if (labels.includes(matcher.label) || matcher.op === '!=' || matcher.op === '!~') continue;
    return { of: 'label', at, matcher, near: nearest(matcher.label, labels), labels };
  }
  for (const [at, matcher] of matchers.entries()) {
    if (matcher.op === '!=' || matcher.op === '!~') continue;
    const alone = await labelValues({ range, type, query: writeAll([matcher]) }, matcher.label, '', signal, 1);
    if (alone.values.length > 0) continue;
    const all = await labelValues({ range, type, query: '' }, matcher.label, '', signal, VALUES_MAX);
    return { of: 'value', at, matcher, near: nearest(matcher.value, all.values), some: all.values };
  }
  return { of: 'both' };
}

function Why({ why, type }: { why: WhyNothing; type: string | undefined }) {
  const set = (at: number, change: Partial<Matcher>) => {
    const list = parse(getState().query);
    setState({ query: writeAll(list.map((one, other) => (other === at ? { ...one, ...change } : one))) });
  };
  if (why.of === 'time')
    return <p>{type ? 'No profiles of this type in this range.' : 'No host sent data in this range.'}</p>;
  if (why.of === 'both') return <p>Each filter matches something in this range, but nothing matches all of them.</p>;
  const { at, matcher, near } = why;
  const list = why.of === 'label' ? why.labels : why.some;
  return (
    <>
      <p>
        {why.of === 'label' ? (
          <>
            There is no label <code>{matcher.label.slice(0, 80)}</code> here. Labels here:{' '}
          </>
        ) : (
          <>
            No <code>{matcher.label.slice(0, 80)}</code> in this range{' '}
            {matcher.op === '=' ? 'is' : matcher.op === '^=' ? 'is or is below' : 'matches'}{' '}
            <Name text={matcher.value} max={80} />. There {list.length === 1 ? 'is' : 'are'}{' '}
          </>
        )}
        {list.slice(0, why.of === 'label' ? LABELS_SHOWN : 5).map((one, place) => (
          <>
            {place > 0 && ', '}
            <Name text={one} max={60} empty="(empty)" />
          </>
        ))}
        {list.length > (why.of === 'label' ? LABELS_SHOWN : 5) && ', …'}
        {list.length === 0 && 'none'}
      </p>
      <p class="buttons">
        {near !== undefined && (
          <button
            type="button"
            class="primary"
            onClick={() => set(at, why.of === 'label' ? { label: near } : { op: '=', value: near })}
          >
            Use <Name text={near} max={60} />
          </button>
        )}
        <button type="button" onClick={() => setState({ query: withoutMatcher(getState().query, at) })}>
          Remove this filter
        </button>
      </p>
    </>
  );
}
