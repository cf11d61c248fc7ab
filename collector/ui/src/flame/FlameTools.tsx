// Above the graph: search, what is shown and how, and which stacks are left out.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { FilterChips } from '../app/Filters';
import { Choice, Icon, Name, Toggle } from '../app/parts';
import type { Colours } from '../state/display';
import { setState, useDisplayState, useSelectionState, useViewState } from '../state/store';
import * as format from '../text/format';
import { useSearched } from './SearchScope';

interface ToolsProps {
  /** Two profiles are compared. */
  diff: boolean;
  /** Labels that stacks can stand under. */
  labels: readonly string[];
  /** What weights are. */
  weighs: string;
  /** Tools of the page beside those of the graph. */
  children?: ComponentChildren;
}

export function Tools({ diff, labels, weighs, children }: ToolsProps) {
  return (
    <div class="tools" role="toolbar" aria-label="Profile tools">
      <SearchBox />
      <PanelChoice />
      {!diff && <ColourChoice />}
      <TopLevel labels={labels} />
      <Shape weighs={weighs} />
      {children}
      <Reset />
    </div>
  );
}

function SearchBox() {
  const { search, regex } = useViewState('search', 'regex');
  const { problem, waiting, matched } = useSearched();
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const slash = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.key !== '/' || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      event.preventDefault();
      field.current?.focus();
      field.current?.select();
    };
    addEventListener('keydown', slash);
    return () => removeEventListener('keydown', slash);
  }, []);
  return (
    <span class={`search${problem ? ' invalid' : ''}`}>
      <input
        ref={field}
        type="search"
        placeholder={regex ? 'Regular expression' : 'Search functions'}
        aria-label="Search functions and modules"
        aria-invalid={!!problem}
        spellcheck={false}
        autocomplete="off"
        value={search}
        onInput={(event) => setState({ search: event.currentTarget.value }, { replace: true })}
        onKeyDown={(event) =>
          event.key === 'Escape' && (search === '' ? field.current?.blur() : setState({ search: '' }))
        }
      />
      <Toggle pressed={regex} title="Search with a regular expression" onChange={(next) => setState({ regex: next })}>
        .*
      </Toggle>
      <output class={problem ? 'wrong' : 'matched'} aria-live="polite" aria-busy={waiting}>
        {problem
          ? problem
          : waiting
            ? 'searching …'
            : matched
              ? `${format.percent(matched.share)} in ${format.plural(matched.nodes, 'frame')}`
              : ''}
      </output>
    </span>
  );
}

function PanelChoice() {
  const { panel } = useViewState('panel');
  return (
    <Choice
      label="View"
      value={panel}
      of={[
        ['flame', 'Graph', 'Only the graph'],
        ['both', 'Both', 'Graph and table'],
        ['table', 'Table', 'Only the table'],
      ]}
      onChange={(next) => setState({ panel: next })}
    />
  );
}

function ColourChoice() {
  const { colours } = useDisplayState('colours');
  return (
    <select
      aria-label="Colours"
      value={colours}
      onChange={(event) => setState({ colours: event.currentTarget.value as Colours })}
    >
      <option value="kind">Colour by: type</option>
      <option value="module">Colour by: module</option>
    </select>
  );
}

function TopLevel({ labels }: { labels: readonly string[] }) {
  const { root } = useSelectionState('root');
  if (!labels.length && !root) return null;
  return (
    <select
      aria-label="Top level"
      value={root}
      title="Group stacks by a label"
      onChange={(event) => setState({ root: event.currentTarget.value })}
    >
      <option value="">Top level: none</option>
      {[...new Set([...labels, ...(root ? [root] : [])])].map((label) => (
        <option key={label} value={label}>
          Top level: {label.slice(0, 40)}
        </option>
      ))}
    </select>
  );
}

function Shape({ weighs }: { weighs: string }) {
  const { flame, collapse, samples } = useDisplayState('flame', 'collapse', 'samples');
  return (
    <span class="group" role="group" aria-label="Shape">
      <Toggle
        pressed={flame}
        title="Draw the root at the bottom (flame graph) instead of the top (icicle)"
        onChange={(next) => setState({ flame: next })}
      >
        Root at bottom
      </Toggle>
      <Toggle
        pressed={collapse}
        title="Show recursion of a function as one frame"
        onChange={(next) => setState({ collapse: next })}
      >
        Fold recursion
      </Toggle>
      <Toggle
        pressed={samples}
        title={`Width is the number of samples, not ${weighs}`}
        onChange={(next) => setState({ samples: next })}
      >
        Count samples
      </Toggle>
    </span>
  );
}

function Reset() {
  const { filters } = useSelectionState('filters');
  const view = useViewState('zoom', 'pan', 'search', 'focus', 'fn', 'callers');
  const { zoom, pan, search, focus, fn, callers } = view;
  return (
    <button
      type="button"
      title="Reset zoom, search, focus and filters"
      disabled={!zoom && !pan && !search && !focus && !fn && !callers && !filters.length}
      onClick={() => setState({ zoom: '', pan: '', search: '', focus: '', fn: '', callers: '', filters: [] })}
    >
      Reset
    </button>
  );
}

/**
 * What stacks are left out, each with a way to take it back. `untouched`: what of the page is of
 * all stacks all the same.
 */
export function Narrowed({ once, untouched }: { once: boolean | undefined; untouched: string }) {
  const { focus } = useViewState('focus');
  const { filters } = useSelectionState('filters');
  if (focus === '' && (once || !filters.length)) return null;
  return (
    <ul class="chips" aria-label="Stack filters">
      {focus !== '' && (
        <li class="chip">
          contains <Name text={focus} max={80} />
          <button type="button" aria-label="Show all stacks again" onClick={() => setState({ focus: '' })}>
            <Icon of="close" />
          </button>
        </li>
      )}
      {!once && <FilterChips />}
      {untouched !== '' && <li class="soft">not applied to the {untouched}</li>}
    </ul>
  );
}
