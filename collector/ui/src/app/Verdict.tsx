// One line on the selection: how much, where, compared with when, and how complete it is.

import type { DataQuality, SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { CaptureWaits } from '../capture/Waits';
import { lossOf, lostPart } from '../query/quality';
import { useSelectionState } from '../state/store';
import * as format from '../text/format';
import { type Chart, meanOf } from '../time/series';
import type { PageProps } from './page';
import { changeText } from './verdictText';
import { useWas } from './was';

interface Props extends PageProps {
  chart: Chart | undefined;
  /** The baseline, by the same label; undefined: there is none, or it is not known yet. */
  before: SeriesResponse | undefined;
  quality: DataQuality | undefined;
  /** They are of the selection before. */
  stale: boolean;
}

export function Verdict({ chart, before, quality, stale, now, selection, openCapture }: Props) {
  const { filters } = useSelectionState('filters');
  const { was } = useWas();
  const mean = chart
    ? chart.lines.reduce((sum, line) => sum + line.mean, chart.lines.length ? 0 : Number.NaN)
    : Number.NaN;
  const meanBefore = was && before ? meanOf(before, now()) : Number.NaN;
  const hosts = Number(quality?.hosts ?? 0n);
  const [words, when] = [was?.words ?? '', was?.when ?? ''];
  const change = changeText(mean, meanBefore);
  const lost = quality?.sampling && lostPart(quality.sampling);
  return (
    <p class={`selection-verdict${stale ? ' outdated' : ''}`} aria-live="polite">
      {chart && chart.lines.length === 0 ? (
        <span class="soft">No {format.measured()} in this selection</span>
      ) : chart && Number.isFinite(mean) ? (
        <>
          <b>{format.rate(mean, chart.unit)}</b>{' '}
          {hosts > 0 && <>on {selection.type ? `${hosts} series` : format.plural(hosts, 'host')}</>}
          {change === 'nothing' && <> · none {when}</>}
          {change !== '' && change !== 'nothing' && (
            <>
              {' '}
              · <span class="verdict-change">{change}</span> compared with {words}
            </>
          )}
          {was && before && change === '' && mean > 0 && <span class="soft"> · no data {when}</span>}
          {lost !== undefined && (
            <>
              {' '}
              · <span class={lossOf(quality?.sampling, '') ? 'warned' : ''}>lost {format.percent(lost)}</span>
            </>
          )}
          {filters.length > 0 && <span class="soft"> · without the filters of functions</span>}
        </>
      ) : (
        <span class="soft">{chart ? `${format.measure()} not known in this range` : ' '}</span>
      )}
      {/* What takes no CPU may wait for ever. */}
      {chart && !selection.type && (
        <>
          {' '}
          · <CaptureWaits openCapture={openCapture} />
        </>
      )}
    </p>
  );
}
