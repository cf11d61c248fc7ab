// Chooses the label by which the chart's lines are grouped.

import { setState, useSelectionState } from '../state/store';

export function GroupBy({ labels }: { labels: readonly string[] }) {
  const { by } = useSelectionState('by');
  const all = [...new Set([...labels, ...(by ? [by] : [])])];
  return (
    <label class="inline">
      Group by
      <select value={by} onChange={(event) => setState({ by: event.currentTarget.value })}>
        <option value="">none</option>
        {all.map((label) => (
          <option key={label} value={label}>
            {label.slice(0, 40)}
          </option>
        ))}
      </select>
    </label>
  );
}
