// The baseline of the page: one choice, in its head and in the address, for all charts and tables.

import { useMemo } from 'preact/hooks';
import { deploysUpTo } from '../events/client';
import { lastDeploy } from '../events/deploys';
import type { Selection } from '../query/selection';
import { useQuery } from '../query/useQuery';
import { setState, useSelectionState } from '../state/store';
import { BASELINES, baselineOf, wordsOf } from '../time/baseline';
import { type Range, toMs } from '../time/range';
import { keyOf } from './page';
import { type BaselineState, useWas } from './was';

/** The last deploy of a selection up to a time. `asked`: whether anybody wants to know. */
export function useLastDeploy(query: string, endMs: number, asked: boolean) {
  const deploys = useQuery(asked ? `deploys\n${endMs}` : undefined, (signal) => deploysUpTo(endMs, signal));
  const last = useMemo(() => deploys.data && lastDeploy(deploys.data, query, endMs), [deploys.data, query, endMs]);
  return { deploy: last, waiting: deploys.waiting, trouble: deploys.trouble };
}

/** The baseline of a selection. `turn`: as of {@link keyOf}. */
export function useBaseline(range: Range | undefined, selection: Selection | undefined, turn: number): BaselineState {
  const { baseline, from, to } = useSelectionState('baseline', 'from', 'to');
  const asked = baseline === 'deploy' && range !== undefined;
  const { deploy, waiting, trouble } = useLastDeploy(selection?.query ?? '', range?.to ?? 0, asked);
  const deployMs = deploy && toMs(deploy.startUnixNs);
  const found = range && baselineOf(range, baseline, deployMs);
  if (!selection || !found) {
    const lacks = trouble ? 'deploys are not known' : 'no deploy in 30 days';
    return { was: undefined, deployMs, lacks: asked && !waiting ? lacks : '' };
  }
  const of = { ...selection, range: found };
  const words = wordsOf(baseline, deployMs);
  const when = baseline === 'previous' ? `in ${words}` : words;
  const { range: _, ...what } = selection;
  const key = `${JSON.stringify([baseline, from, to, what])}\n${keyOf(of, turn)}`;
  return { was: { selection: of, key, words, when }, deployMs, lacks: '' };
}

/** Chooses it. */
export function BaselineChoice() {
  const { baseline } = useSelectionState('baseline');
  const { lacks } = useWas();
  return (
    <label class="baseline-choice" title="What charts and tables are compared with">
      <span class="soft">vs</span>
      <select
        aria-label="Baseline"
        value={baseline}
        onChange={(event) =>
          // It is the side A of a comparison, too: one that was written would go before it.
          setState({ baseline: event.currentTarget.value as typeof baseline, bfrom: '', bto: '' })
        }
      >
        {BASELINES.map(([one, text, title]) => (
          <option key={one} value={one} title={title}>
            {text}
          </option>
        ))}
      </select>
      {lacks !== '' && <span class="baseline-lacks">{lacks}</span>}
    </label>
  );
}
