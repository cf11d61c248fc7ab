// A profile as a graph with its tools: search, colours, focus, callers and callees, and the table of
// functions beside it.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import type { State } from '../app/state';
import type { SetState } from '../app/store';
import type { Theme } from '../app/theme';
import { FilterChips } from '../app/Filters';
import { Choice, CopyButton, Empty, Icon, Name, Popover, Toggle } from '../app/parts';
import { KIND } from '../query/outcome';
import type { Profile } from '../query/profile';
import * as format from '../text/format';
import { About, type Describing, Numbers, sentence } from './describe';
import { KIND_LEGEND, diffColour, diffStep, kindColour, nameColours } from './colour';
import { DIFF_STEPS } from './colour';
import { changeOf, measure } from './diff';
import { FlameGraph } from './FlameGraph';
import { FrameLines } from './FrameLines';
import type { Look } from './graph';
import { type Layout, layOut, single } from './layout';
import { PALETTES } from './paint';
import { sandwich } from './sandwich';
import { escapeRegex, findNodes } from './search';
import type { Tree } from './tree';
import { useMask } from './useMask';

export interface FlamePanelProps {
  tree: Tree;
  unit: string;
  state: State;
  setState: SetState;
  theme: Theme;
  /** The tree has a second column. */
  diff: boolean;
  /** Tools of the page beside those of the graph. */
  tools?: ComponentChildren;
  /** Labels that stacks can stand under. */
  labels: readonly string[];
  table: ComponentChildren;
  /** It came once and is nowhere kept: there is no collector to leave stacks out. */
  once?: boolean;
  /** What the tree is of, for source lines. */
  profile?: Profile;
  /** It was recorded with source lines. */
  withLines?: boolean;
  /** Opens the dialog that records with source lines. */
  onRecord?: (text: string) => void;
}

export function FlamePanel(props: FlamePanelProps) {
  const { tree, state, setState } = props;
  const { mask, problem, waiting } = useMask(tree.names, { text: state.search, regex: state.regex });
  const width = useMemo(
    () => (props.diff ? measure(tree, state.compare, state.width) : single),
    [tree, props.diff, state.compare, state.width],
  );
  const main = useMemo(() => layOut(tree, width), [tree, width]);
  const halves = useMemo(() => (state.fn === '' ? undefined : sandwich(tree, state.fn)), [tree, state.fn]);
  const found = useMemo(() => (mask ? findNodes(main, mask) : undefined), [main, mask]);
  const graph = (
    <>
      {halves ? (
        <Sandwiched {...props} halves={halves} mask={mask} width={width} />
      ) : (
        <Whole {...props} layout={main} found={found} />
      )}
    </>
  );
  return (
    <section class="flame-panel" aria-label="Profile">
      <Tools
        {...props}
        problem={problem}
        waiting={waiting}
        matched={found && main.whole > 0 ? { share: found.width / main.whole, nodes: found.nodes } : undefined}
      />
      <Narrowed state={state} setState={setState} once={props.once} />
      <div class={`split panel-${state.panel}`}>
        {state.panel !== 'table' && <div class="split-main">{graph}</div>}
        {state.panel !== 'flame' && <div class="split-side">{props.table}</div>}
      </div>
    </section>
  );
}

/** Colours and hatching of a layout's nodes. */
function useLook(layout: Layout, props: FlamePanelProps): Look {
  const { state, theme, diff } = props;
  return useMemo(() => {
    const { tree } = layout;
    const { names } = tree;
    const palette = PALETTES[theme];
    if (!diff) {
      const colours = nameColours(names, state.colours, theme);
      return {
        palette,
        colour: (node) => colours[layout.name[node]],
        hatched: (node) => node > 0 && names.kind[layout.name[node]] === KIND.synthetic,
      };
    }
    const scaleColours = Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, at) => diffColour(at - DIFF_STEPS, theme));
    const steps = new Int8Array(layout.node.length);
    const vanished = new Uint8Array(layout.node.length);
    layout.node.forEach((node, at) => {
      const change = changeOf(tree, node, state.compare);
      steps[at] = diffStep(change);
      vanished[at] = change.vanished ? 1 : 0;
    });
    return {
      palette,
      colour: (node) => scaleColours[steps[node] + DIFF_STEPS],
      hatched: (node) => vanished[node] === 1,
    };
  }, [layout, theme, diff, state.colours, state.compare]);
}

function describing(layout: Layout, props: FlamePanelProps): Describing {
  return {
    layout,
    unit: props.unit,
    samples: props.state.samples,
    compare: props.diff ? props.state.compare : undefined,
  };
}

function tipOf(of: Describing) {
  return (node: number) => ({
    text: sentence(node, of),
    tip: (
      <>
        <About node={node} of={of} />
        <Numbers node={node} of={of} />
      </>
    ),
  });
}

function Whole(props: FlamePanelProps & { layout: Layout; found: ReturnType<typeof findNodes> | undefined }) {
  const { layout, found, state, setState } = props;
  const look = useLook(layout, props);
  const of = describing(layout, props);
  const [selected, setSelected] = useState<number>();
  if (!(layout.whole > 0)) {
    return (
      <Empty title="No stacks">
        <p>
          {state.focus !== '' ? 'No stack has the function that is focused.' : 'Nothing was sampled in this selection.'}
        </p>
      </Empty>
    );
  }
  const onKey = (key: string, node: number | undefined): boolean => {
    const name = node === undefined ? '' : layout.tree.names.text[layout.name[node]];
    if (key === 'Escape') {
      if (state.search !== '') setState({ search: '' });
      else if (state.zoom !== '' || state.pan !== '') setState({ zoom: '', pan: '' });
      else return false;
      return true;
    }
    if (node === undefined || node === 0) return false;
    if (key === 's') setState({ fn: name });
    else if (key === 'f') setState({ focus: name });
    else return false;
    return true;
  };
  return (
    <>
      <FlameGraph
        label={props.diff ? 'Difference of two profiles' : 'Flame graph'}
        layout={layout}
        look={look}
        found={found}
        inverted={state.flame}
        zoom={state.zoom}
        pan={state.pan}
        onView={(view, how) => setState(view, how)}
        onSelect={setSelected}
        describe={tipOf(of)}
        onKey={onKey}
      />
      <Detail
        of={of}
        node={selected !== undefined && selected < layout.name.length ? selected : undefined}
        setState={setState}
        diff={props.diff}
        once={props.once}
        state={state}
        theme={props.theme}
        profile={props.profile}
        withLines={props.withLines}
        onRecord={props.onRecord}
      />
    </>
  );
}

const KEYS: readonly (readonly [string, string])[] = [
  ['click, Enter', 'zoom into a frame'],
  ['Esc', 'end the search, then zoom out'],
  ['Backspace', 'zoom out to the caller'],
  ['arrows', 'caller, callee, neighbours'],
  ['Home, 0', 'the full width'],
  ['Ctrl + wheel', 'zoom around the pointer'],
  ['drag, Shift + wheel', 'move sideways'],
  ['/', 'search'],
  ['n, N', 'next match, the one before'],
  ['s', 'callers and callees of the chosen frame'],
  ['f', 'focus on the chosen frame'],
  ['r', 'refresh'],
];

/** The chosen frame and what can be done with it; without one, what colours mean. */
function Detail(
  props: {
    of: Describing;
    node: number | undefined;
    setState: SetState;
    diff: boolean;
    once?: boolean;
    state: State;
    theme: Theme;
  } & Pick<FlamePanelProps, 'profile' | 'withLines' | 'onRecord'>,
) {
  const { of, node, setState } = props;
  if (node === undefined) {
    return (
      <div class="detail">
        <Legend diff={props.diff} state={props.state} theme={props.theme} />
        <Popover title="Shortcuts" class="plain soft keys" align="right" above label="Shortcuts">
          {() => (
            <dl class="keys-list">
              {KEYS.map(([key, what]) => (
                <>
                  <dt>{key}</dt>
                  <dd>{what}</dd>
                </>
              ))}
            </dl>
          )}
        </Popover>
      </div>
    );
  }
  const name = of.layout.tree.names.text[of.layout.name[node]];
  return (
    <div class="detail" data-selected={name.slice(0, 100)}>
      <div class="detail-name">
        <Name text={name} max={160} /> <span class="soft">{sentence(node, of)}</span>
      </div>
      {node > 0 && (
        <div class="detail-tools">
          <button
            type="button"
            title="Highlight all frames of this function"
            onClick={() => setState({ search: `^${escapeRegex(name)}$`, regex: true })}
          >
            Highlight all
          </button>
          <button type="button" title="Who calls it and what it calls (s)" onClick={() => setState({ fn: name })}>
            Callers &amp; callees
          </button>
          <button type="button" title="Only stacks with this function (f)" onClick={() => setState({ focus: name })}>
            Focus
          </button>
          {!props.once && (
            <button
              type="button"
              title="Exclude stacks with this function"
              onClick={() =>
                setState({ filters: [...props.state.filters, { op: 'drop', regex: `^${escapeRegex(name)}$` }] })
              }
            >
              Exclude
            </button>
          )}
          <CopyButton title="Copy the name as it is" text={() => name}>
            Copy
          </CopyButton>
        </div>
      )}
      {node > 0 && props.profile && (
        <FrameLines
          profile={props.profile}
          text={name}
          kind={of.layout.tree.names.kind[of.layout.name[node]]}
          unit={of.unit}
          samples={props.state.samples}
          withLines={props.withLines}
          onRecord={props.onRecord}
        />
      )}
    </div>
  );
}

function Legend({ diff, state, theme }: { diff: boolean; state: State; theme: Theme }) {
  if (diff) {
    return (
      <span class="legend-line">
        <span class="swatch" style={{ background: diffColour(-DIFF_STEPS, theme) }} /> less
        <span class="swatch" style={{ background: diffColour(0, theme) }} /> same
        <span class="swatch" style={{ background: diffColour(DIFF_STEPS, theme) }} /> more
        <span class="swatch hatch" /> gone
      </span>
    );
  }
  if (state.colours === 'module') return <span class="legend-line soft">a colour for each module</span>;
  return (
    <span class="legend-line">
      {KIND_LEGEND.map(({ kind, label }) => (
        <span key={kind}>
          <span class="swatch" style={{ background: kindColour(kind, theme) }} /> {label}
        </span>
      ))}
      <span>
        <span class="swatch hatch" /> lost / incomplete / other
      </span>
    </span>
  );
}

function Sandwiched(
  props: FlamePanelProps & {
    halves: ReturnType<typeof sandwich>;
    mask: Uint8Array | undefined;
    width: ReturnType<typeof measure>;
  },
) {
  const { halves, mask, width, state, setState, tree } = props;
  const callers = useMemo(() => layOut(halves.callers, width), [halves, width]);
  const callees = useMemo(() => layOut(halves.callees, width), [halves, width]);
  const column = props.diff ? 1 : 0;
  const whole = tree.total[column][0];
  const shown = (value: number) => (state.samples ? format.plural(value, 'sample') : format.weight(value, props.unit));
  return (
    <div class="sandwich">
      <header class="sandwich-head">
        <div>
          Callers and callees of <Name text={state.fn} max={120} />
          <div class="soft">
            self {shown(halves.own[column])} ({format.share(halves.own[column], whole)}), total{' '}
            {shown(halves.total[column])} ({format.share(halves.total[column], whole)})
          </div>
        </div>
        <button type="button" onClick={() => setState({ fn: '' })}>
          <Icon of="close" /> Back to all stacks
        </button>
      </header>
      {callers.whole > 0 ? (
        <>
          <Half {...props} title="Callers" layout={callers} mask={mask} inverted />
          <Half {...props} title="Callees" layout={callees} mask={mask} inverted={false} />
        </>
      ) : (
        <Empty title="Not in this selection">
          <p>No stack has a function of this name.</p>
        </Empty>
      )}
    </div>
  );
}

function Half(
  props: FlamePanelProps & { title: string; layout: Layout; mask: Uint8Array | undefined; inverted: boolean },
) {
  const { layout, mask, setState } = props;
  const look = useLook(layout, props);
  const found = useMemo(() => (mask ? findNodes(layout, mask) : undefined), [layout, mask]);
  // Two graphs, one address: the frames that fill them are in it, parts of the width are not.
  const field = props.inverted ? 'callers' : 'zoom';
  const [pan, setPan] = useState('');
  const zoom = props.state[field];
  useEffect(() => setPan(''), [props.state.fn, zoom]);
  const setView = (view: { zoom: string; pan: string }) => {
    setPan(view.pan);
    if (view.zoom !== zoom) setState({ [field]: view.zoom });
  };
  const of = describing(layout, props);
  const onKey = (key: string, node: number | undefined): boolean => {
    if (key === 'Escape') {
      if (zoom === '' && pan === '') setState({ fn: '' });
      else setView({ zoom: '', pan: '' });
      return true;
    }
    if (key !== 's' || node === undefined || node === 0) return false;
    setState({ fn: layout.tree.names.text[layout.name[node]] });
    return true;
  };
  return (
    <div class="half">
      <h3>{props.title}</h3>
      <FlameGraph
        label={props.title}
        layout={layout}
        look={look}
        found={found}
        inverted={props.inverted}
        zoom={zoom}
        pan={pan}
        onView={setView}
        onSelect={() => undefined}
        describe={tipOf(of)}
        onKey={onKey}
        fitted
      />
    </div>
  );
}

interface SearchProps {
  state: State;
  setState: SetState;
  problem: string | undefined;
  /** A pattern is being tried. */
  waiting: boolean;
  matched: { share: number; nodes: number } | undefined;
}

function SearchBox({ state, setState, problem, waiting, matched }: SearchProps) {
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
        placeholder={state.regex ? 'Regular expression' : 'Search functions'}
        aria-label="Search functions and modules"
        aria-invalid={!!problem}
        spellcheck={false}
        autocomplete="off"
        value={state.search}
        onInput={(event) => setState({ search: event.currentTarget.value }, { replace: true })}
        onKeyDown={(event) =>
          event.key === 'Escape' && (state.search === '' ? field.current?.blur() : setState({ search: '' }))
        }
      />
      <Toggle
        pressed={state.regex}
        title="The search is a regular expression"
        onChange={(regex) => setState({ regex })}
      >
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

function Tools(props: FlamePanelProps & Pick<SearchProps, 'problem' | 'waiting' | 'matched'>) {
  const { state, setState, problem, waiting, matched, diff } = props;
  return (
    <div class="tools" role="toolbar" aria-label="Tools of the profile">
      <SearchBox state={state} setState={setState} problem={problem} waiting={waiting} matched={matched} />
      <Choice
        label="View"
        value={state.panel}
        of={[
          ['flame', 'Graph', 'The graph alone'],
          ['both', 'Both', 'Graph and table'],
          ['table', 'Table', 'The table alone'],
        ]}
        onChange={(panel) => setState({ panel })}
      />
      {!diff && (
        <select
          aria-label="Colours"
          value={state.colours}
          onChange={(event) => setState({ colours: event.currentTarget.value as State['colours'] })}
        >
          <option value="kind">Colour by: type</option>
          <option value="module">Colour by: module</option>
        </select>
      )}
      <select
        aria-label="Top level"
        value={state.root}
        title="Group stacks by the values of a label"
        onChange={(event) => setState({ root: event.currentTarget.value })}
      >
        <option value="">Top level: none</option>
        {[...new Set([...props.labels, ...(state.root ? [state.root] : [])])].map((label) => (
          <option key={label} value={label}>
            Top level: {label.slice(0, 40)}
          </option>
        ))}
      </select>
      <span class="group" role="group" aria-label="Shape">
        <Toggle
          pressed={state.flame}
          title="Draw the root at the bottom (flame graph), not at the top (icicle)"
          onChange={(flame) => setState({ flame })}
        >
          Root at bottom
        </Toggle>
        <Toggle
          pressed={state.collapse}
          title="Show a run of the same function as one frame"
          onChange={(collapse) => setState({ collapse })}
        >
          Fold recursion
        </Toggle>
        <Toggle
          pressed={state.samples}
          title="Width is the number of samples, not CPU time"
          onChange={(samples) => setState({ samples })}
        >
          Count samples
        </Toggle>
      </span>
      {props.tools}
      <button
        type="button"
        title="Full profile, no search, no focus, no filters"
        disabled={
          !state.zoom &&
          !state.pan &&
          !state.search &&
          !state.focus &&
          !state.fn &&
          !state.callers &&
          !state.filters.length
        }
        onClick={() => setState({ zoom: '', pan: '', search: '', focus: '', fn: '', callers: '', filters: [] })}
      >
        Reset
      </button>
    </div>
  );
}

/** What stacks are left out, each with a way to take it back. */
function Narrowed({ state, setState, once }: { state: State; setState: SetState; once?: boolean }) {
  if (state.focus === '' && (once || !state.filters.length)) return null;
  return (
    <ul class="chips" aria-label="Which stacks">
      {state.focus !== '' && (
        <li class="chip">
          contains <Name text={state.focus} max={80} />
          <button type="button" aria-label="Show all stacks again" onClick={() => setState({ focus: '' })}>
            <Icon of="close" />
          </button>
        </li>
      )}
      {!once && <FilterChips state={state} setState={setState} />}
      <li class="soft">not applied to the {once ? 'heat map' : 'chart'}</li>
    </ul>
  );
}
