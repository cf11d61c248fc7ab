// Where rows of a table are filtered by a text.

import { setState, useViewState } from '../state/store';

export function FilterInput({ label, placeholder }: { label: string; placeholder: string }) {
  const { filter } = useViewState('filter');
  return (
    <input
      type="search"
      class="filter"
      placeholder={placeholder}
      aria-label={label}
      value={filter}
      onInput={(event) => setState({ filter: event.currentTarget.value }, { replace: true })}
    />
  );
}
