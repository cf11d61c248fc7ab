// Chooses what is profiled: CPU time of agents, or a profile type of other senders or of captures
// where there are any in the range.

import { profileTypes } from '../query/client';
import { useQuery } from '../query/useQuery';
import { setState, useSelectionState } from '../state/store';
import { typeWords } from '../text/format';
import type { Range } from '../time/range';

/** Types rarely change: they are asked for again when the range moves by this. Unit: ms. */
const TURN_MS = 60_000;

export function TypeChoice({ range }: { range: Range }) {
  const { type } = useSelectionState('type');
  const turn = [range.from, range.to].map((ms) => Math.floor(ms / TURN_MS)).join();
  const found = useQuery(`types\n${turn}`, (signal) => profileTypes(range, signal));
  const all = [...new Set([...(found.data ?? []), ...(type ? [type] : [])])];
  if (!all.length) return null;
  return (
    <label class="inline">
      Type
      <select value={type} onChange={(event) => setState({ type: event.currentTarget.value })}>
        <option value="">CPU of agents</option>
        {all.map((id) => (
          <option key={id} value={id}>
            {typeWords(id)}
          </option>
        ))}
      </select>
    </label>
  );
}
