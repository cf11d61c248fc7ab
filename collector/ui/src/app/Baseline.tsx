// The baseline of the page: one choice, in its head and in the address, for all charts and tables.

import { createContext } from 'preact';
import { useContext } from 'preact/hooks';
import { deploysUpTo } from '../events/client';
import { lastDeploy } from '../events/deploys';
import type { Selection } from '../query/selection';
import { useQuery } from '../query/useQuery';
import { setState, useSelectionState } from '../state/store';
import { BASELINES, baselineOf, wordsOf } from '../time/baseline';
import { type Range, toMs } from '../time/range';
import { keyOf } from './page';

/** What the selection is held against. */
export interface Was {
  /** The same selection at another time. */
  selection: Selection;
  /** Changes when it is to be queried again. */
  key: string;
  /** What it is called within a sentence. */
  words: string;
}

/** The baseline, and why there is none where one was chosen. */
export interface BaselineState {
  was: Was | undefined;
  /** When what is selected was deployed last; undefined: it is not known. Unit: milliseconds. */
  deployMs: number | undefined;
  /** Said where the choice cannot be followed; empty: it can. */
  lacks: string;
}

const Context = createContext<BaselineState>({ was: undefined, deployMs: undefined, lacks: '' });

export const BaselineProvider = Context.Provider;

export const useWas = () => useContext(Context);

/** The baseline of a selection. `turn`: as of {@link keyOf}. */
export function useBaseline(range: Range | undefined, selection: Selection | undefined, turn: number): BaselineState {
  const { baseline } = useSelectionState('baseline');
  const asked = baseline === 'deploy' && range && selection;
  const deploys = useQuery(asked ? `deploys\n${selection.query}\n${range.to}` : undefined, async (signal) => {
    const to = range?.to ?? 0;
    return { last: lastDeploy(await deploysUpTo(to, signal), selection?.query ?? '', to) };
  });
  const last = deploys.data?.last;
  const deployMs = last && toMs(last.startUnixNs);
  if (!range || !selection) return { was: undefined, deployMs, lacks: '' };
  const found = baselineOf(range, baseline, deployMs);
  let lacks = '';
  if (asked && !found && !deploys.waiting) lacks = deploys.trouble ? 'deploys are not known' : 'no deploy in 30 days';
  if (!found) return { was: undefined, deployMs, lacks };
  const of = { ...selection, range: found };
  return { was: { selection: of, key: keyOf(of, turn), words: wordsOf(baseline, deployMs) }, deployMs, lacks };
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
        onChange={(event) => setState({ baseline: event.currentTarget.value as typeof baseline })}
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
