// Said where a selection has nothing: why that may be, and ways out.

import { Empty } from './parts';
import type { PageProps } from './page';
import { setState } from '../state/store';
import { status } from '../query/client';
import { useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { absoluteSpec, toMs, widened } from '../time/range';
import { LOST_FROM } from '../time/series';

/** `lost`: the part of what its hosts took that was lost. */
export function NoSamples({ selection, range, now, lost }: PageProps & { lost: number }) {
  const query = useQuery('status\n', status);
  const kept = query.data?.kept;
  const [from, to] = kept ? [toMs(kept.startUnixNs), toMs(kept.endUnixNs)] : [0, 0];
  const outside = to > from && (range.to <= from || range.from >= to);
  return (
    <Empty title="No samples in this selection">
      <p>
        {outside
          ? `The collector keeps ${format.span(from, to)}, and the range is outside of it.`
          : lost >= LOST_FROM
            ? `${format.percent(lost)} of the samples of its hosts were lost in this range, and a lost sample does not tell whose it was: what is selected may have run all the same.`
            : selection.query || selection.filters.length
              ? 'No samples match the selector and filters in this range.'
              : 'No host sent data in this range.'}
      </p>
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
        {(selection.query !== '' || selection.filters.length > 0) && (
          <button type="button" onClick={() => setState({ query: '', filters: [] })}>
            Select everything
          </button>
        )}
        {!outside && (
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
