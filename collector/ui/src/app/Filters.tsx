// Frame filters: what the collector leaves out of stacks, each with a way to take it back.

import { Icon, Name } from './parts';
import type { State } from './state';
import type { SetState } from './store';

interface Props {
  state: State;
  setState: SetState;
}

/** Items of a list of chips. */
export function FilterChips({ state, setState }: Props) {
  return (
    <>
      {state.filters.map((filter, at) => (
        <li class="chip" key={`${at}`}>
          {filter.op === 'drop' ? 'without' : 'only with'} <Name text={filter.regex} max={80} />
          <button
            type="button"
            aria-label="Remove this filter"
            onClick={() => setState({ filters: state.filters.filter((_, other) => other !== at) })}
          >
            <Icon of="close" />
          </button>
        </li>
      ))}
    </>
  );
}

/** The filters of a view that has them applied. */
export function Filters({ state, setState, note }: Props & { note: string }) {
  if (!state.filters.length) return null;
  return (
    <ul class="chips" aria-label="Which stacks">
      <FilterChips state={state} setState={setState} />
      <li class="soft">{note}</li>
    </ul>
  );
}

/** Where filters cannot be applied: series have no stacks. */
export function NotFiltered({ state }: { state: State }) {
  if (!state.filters.length) return null;
  return (
    <span class="not-filtered" title="CPU over time is summed up without looking at stacks">
      frame {state.filters.length === 1 ? 'filter' : 'filters'} not applied to the chart
    </span>
  );
}
