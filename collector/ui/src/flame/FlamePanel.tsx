// A profile as a graph with its tools: search, colours, focus, callers and callees, and the table of
// functions beside it.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { Empty, Icon, Name } from '../app/parts';
import { KIND } from '../query/outcome';
import type { Profile } from '../query/profile';
import { getState, setState, useDisplayState, useViewState } from '../state/store';
import { useTheme } from '../state/theme';
import * as format from '../text/format';
import { DIFF_STEPS, diffColour, diffStep, nameColours } from './colour';
import { About, type Describing, Numbers, sentence } from './describe';
import { changeOf, measure } from './diff';
import { FlameGraph } from './FlameGraph';
import { Narrowed, Tools } from './FlameTools';
import { Detail } from './FrameDetail';
import type { Look } from './graph';
import { type Layout, layOut, single } from './layout';
import { PALETTES } from './paint';
import { type Sandwich, sandwich } from './sandwich';
import { SearchScope } from './SearchScope';
import type { Tree } from './tree';

export interface FlamePanelProps {
  tree: Tree;
  unit: string;
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
  const { tree, diff } = props;
  const { panel, fn } = useViewState('panel', 'fn');
  const { compare, width } = useDisplayState('compare', 'width');
  const wide = useMemo(() => (diff ? measure(tree, compare, width) : single), [tree, diff, compare, width]);
  const main = useMemo(() => layOut(tree, wide), [tree, wide]);
  const halves = useMemo(() => (fn === '' ? undefined : sandwich(tree, fn)), [tree, fn]);
  return (
    <section class="flame-panel" aria-label="Profile">
      <SearchScope layout={main}>
        <Tools diff={diff} labels={props.labels}>
          {props.tools}
        </Tools>
        <Narrowed once={props.once} />
        <div class={`split panel-${panel}`}>
          {panel !== 'table' && (
            <div class="split-main">
              {halves ? <Sandwiched {...props} halves={halves} width={wide} /> : <Whole {...props} layout={main} />}
            </div>
          )}
          {panel !== 'flame' && <div class="split-side">{props.table}</div>}
        </div>
      </SearchScope>
    </section>
  );
}

/** Colours and hatching of a layout's nodes. */
function useLook(layout: Layout, diff: boolean): Look {
  const { colours, compare } = useDisplayState('colours', 'compare');
  const theme = useTheme();
  return useMemo(() => {
    const { tree } = layout;
    const { names } = tree;
    const palette = PALETTES[theme];
    if (!diff) {
      const ofNames = nameColours(names, colours, theme);
      return {
        palette,
        colour: (node) => ofNames[layout.name[node]],
        hatched: (node) => node > 0 && names.kind[layout.name[node]] === KIND.synthetic,
      };
    }
    const scaleColours = Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, at) => diffColour(at - DIFF_STEPS, theme));
    const steps = new Int8Array(layout.node.length);
    const vanished = new Uint8Array(layout.node.length);
    layout.node.forEach((node, at) => {
      const change = changeOf(tree, node, compare);
      steps[at] = diffStep(change);
      vanished[at] = change.vanished ? 1 : 0;
    });
    return {
      palette,
      colour: (node) => scaleColours[steps[node] + DIFF_STEPS],
      hatched: (node) => vanished[node] === 1,
    };
  }, [layout, theme, diff, colours, compare]);
}

/** What frames are described by. */
function useDescribing(layout: Layout, { unit, diff }: FlamePanelProps): Describing {
  const { samples, compare } = useDisplayState('samples', 'compare');
  return { layout, unit, samples, compare: diff ? compare : undefined };
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

function Whole(props: FlamePanelProps & { layout: Layout }) {
  const { layout } = props;
  const { focus, zoom, pan } = useViewState('focus', 'zoom', 'pan');
  const { flame } = useDisplayState('flame');
  const look = useLook(layout, props.diff);
  const of = useDescribing(layout, props);
  const [selected, setSelected] = useState<number>();
  if (!(layout.whole > 0)) {
    return (
      <Empty title="No stacks">
        <p>{focus !== '' ? 'No stack has the function that is focused.' : 'Nothing was sampled in this selection.'}</p>
      </Empty>
    );
  }
  const onKey = (key: string, node: number | undefined): boolean => {
    const name = node === undefined ? '' : layout.tree.names.text[layout.name[node]];
    if (key === 'Escape') {
      const state = getState();
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
        inverted={flame}
        zoom={zoom}
        pan={pan}
        onView={(view, how) => setState(view, how)}
        onSelect={setSelected}
        describe={tipOf(of)}
        onKey={onKey}
      />
      <Detail
        of={of}
        node={selected !== undefined && selected < layout.name.length ? selected : undefined}
        diff={props.diff}
        once={props.once}
        profile={props.profile}
        withLines={props.withLines}
        onRecord={props.onRecord}
      />
    </>
  );
}

function Sandwiched(
  props: FlamePanelProps & {
    halves: Sandwich;
    width: ReturnType<typeof measure>;
  },
) {
  const { halves, width, tree } = props;
  const { fn } = useViewState('fn');
  const { samples } = useDisplayState('samples');
  const callers = useMemo(() => layOut(halves.callers, width), [halves, width]);
  const callees = useMemo(() => layOut(halves.callees, width), [halves, width]);
  const column = props.diff ? 1 : 0;
  const whole = tree.total[column][0];
  const shown = (value: number) => (samples ? format.plural(value, 'sample') : format.weight(value, props.unit));
  return (
    <div class="sandwich">
      <header class="sandwich-head">
        <div>
          Callers and callees of <Name text={fn} max={120} />
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
          <Half {...props} title="Callers" layout={callers} inverted />
          <Half {...props} title="Callees" layout={callees} inverted={false} />
        </>
      ) : (
        <Empty title="Not in this selection">
          <p>No stack has a function of this name.</p>
        </Empty>
      )}
    </div>
  );
}

function Half(props: FlamePanelProps & { title: string; layout: Layout; inverted: boolean }) {
  const { layout } = props;
  const look = useLook(layout, props.diff);
  // Two graphs, one address: the frames that fill them are in it, parts of the width are not.
  const field = props.inverted ? 'callers' : 'zoom';
  const [pan, setPan] = useState('');
  const state = useViewState(field, 'fn');
  const zoom = state[field];
  useEffect(() => setPan(''), [state.fn, zoom]);
  const setView = (view: { zoom: string; pan: string }) => {
    setPan(view.pan);
    if (view.zoom !== zoom) setState({ [field]: view.zoom });
  };
  const of = useDescribing(layout, props);
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
