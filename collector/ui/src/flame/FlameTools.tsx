// Above the graph: search, what is shown and how, and which stacks are left out.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef } from 'preact/hooks';
import { FilterChips } from '../app/Filters';
import { Choice, Icon, Name, Popover, Toggle } from '../app/parts';
import type { Colours } from '../state/display';
import { setState, useDisplayState, useSelectionState, useViewState } from '../state/store';
import * as format from '../text/format';
import { useSearched } from './SearchScope';
import { TRANSFORM_WORDS, baseName } from './transforms';

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
      <output class="matched" aria-live="polite" aria-busy={waiting}>
        {problem ? (
          <span class="wrong tip">{problem}</span>
        ) : waiting ? (
          'searching …'
        ) : (
          matched && `${format.percent(matched.share)} in ${format.plural(matched.nodes, 'frame')}`
        )}
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
      <option value="kind">Colour: type</option>
      <option value="module">Colour: module</option>
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
  const { flame, collapse, samples, start, bottomUp } = useDisplayState(
    'flame',
    'collapse',
    'samples',
    'start',
    'bottomUp',
  );
  const changed = [flame, collapse, samples, start].filter(Boolean).length;
  return (
    <>
      <Choice
        label="Direction"
        value={bottomUp ? 'up' : 'down'}
        of={[
          ['down', 'Top down', 'Callers first: what a function calls stands on it'],
          ['up', 'Bottom up', 'Functions where time was spent first: their callers stand on them'],
        ]}
        onChange={(next) => setState({ bottomUp: next === 'up' })}
      />
      <Popover
        title="How the graph is drawn"
        label={
          <>
            Options{changed > 0 && ` (${changed})`} <Icon of="down" />
          </>
        }
      >
        {() => (
          <div class="option-list" role="group" aria-label="Shape">
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
              pressed={start}
              title="Show the frames that start a program or a thread, such as _start and main, instead of one for all"
              onChange={(next) => setState({ start: next })}
            >
              Show start frames
            </Toggle>
            <Toggle
              pressed={samples}
              title={`Width is the number of samples, not ${weighs}`}
              onChange={(next) => setState({ samples: next })}
            >
              Count samples
            </Toggle>
          </div>
        )}
      </Popover>
    </>
  );
}

function Reset() {
  const { filters } = useSelectionState('filters');
  const view = useViewState('zoom', 'pan', 'search', 'transforms', 'fn', 'callers');
  const { zoom, pan, search, transforms, fn, callers } = view;
  return (
    <button
      type="button"
      title="Reset zoom, search, stack filters and transforms"
      disabled={!zoom && !pan && !search && !transforms.length && !fn && !callers && !filters.length}
      onClick={() => setState({ zoom: '', pan: '', search: '', transforms: [], fn: '', callers: '', filters: [] })}
    >
      Reset
    </button>
  );
}

/**
 * What is done to stacks, each with a way to take it back. `once`: frame filters are shown
 * elsewhere, or there are none. `untouched`: what of the page is of all stacks all the same.
 */
export function Narrowed({ once, untouched }: { once: boolean | undefined; untouched: string }) {
  const { transforms } = useViewState('transforms');
  const { filters } = useSelectionState('filters');
  if (!transforms.length && (once || !filters.length)) return null;
  return (
    <ul class="chips" aria-label="Stack filters">
      {!once && <FilterChips />}
      {transforms.map(({ op, name }, at) => (
        <li class="chip" key={`${op}:${name}`}>
          <span class="soft">{TRANSFORM_WORDS[op]}</span>{' '}
          <Name text={op === 'library' ? baseName(name) : name} max={80} />
          <button
            type="button"
            aria-label={`Take back: ${TRANSFORM_WORDS[op]} ${name.slice(0, 60)}`}
            title="Take this back"
            onClick={() => setState({ transforms: transforms.filter((_, other) => other !== at) })}
          >
            <Icon of="close" />
          </button>
        </li>
      ))}
      {untouched !== '' && <li class="soft">not applied to the {untouched}</li>}
    </ul>
  );
}
