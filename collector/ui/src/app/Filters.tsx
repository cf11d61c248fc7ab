// Frame filters: what the collector leaves out of stacks, each with a way to take it back.

import { Icon, Name } from './parts';
import { getState, setState, useSelectionState } from '../state/store';

/** Items of a list of chips. */
export function FilterChips() {
  const { filters } = useSelectionState('filters');
  return (
    <>
      {filters.map((filter, at) => (
        <li class="chip" key={`${at}`}>
          {filter.op === 'drop' ? 'without' : 'only with'} <Name text={filter.regex} max={80} />
          <button
            type="button"
            aria-label="Remove this filter"
            onClick={() => setState({ filters: getState().filters.filter((_, other) => other !== at) })}
          >
            <Icon of="close" />
          </button>
        </li>
      ))}
    </>
  );
}

/** The filters of a view that has them applied. */
export function Filters({ note }: { note: string }) {
  const { filters } = useSelectionState('filters');
  if (!filters.length) return null;
  return (
    <ul class="chips" aria-label="Stack filters">
      <FilterChips />
      <li class="soft">{note}</li>
    </ul>
  );
}

/** Where filters leave no coverage. */
export function NoCoverage() {
  const { filters } = useSelectionState('filters');
  if (!filters.length) return null;
  return <p class="soft">With a filter of functions there is no coverage: it needs all stacks.</p>;
}

/** Where filters cannot be applied: series have no stacks. */
export function NotFiltered() {
  const { filters } = useSelectionState('filters');
  if (!filters.length) return null;
  return (
    <span class="not-filtered" title="The chart over time does not use stacks">
      frame {filters.length === 1 ? 'filter' : 'filters'} not applied to the chart
    </span>
  );
}
