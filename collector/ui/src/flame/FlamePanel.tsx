// A profile as a graph with its tools: search, colours, focus, callers and callees, and the table
// of its functions.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useState } from 'preact/hooks';
import { type Graph, type Shape, analysis } from '../analysis/client';
import { Answer, Empty, Icon, Name } from '../app/parts';
import { KIND } from '../query/outcome';
import { untilReplaced, useQuery } from '../query/useQuery';
import { getState, setState, useDisplayState, useViewState } from '../state/store';
import { useTheme } from '../state/theme';
import * as format from '../text/format';
import { DIFF_STEPS, diffColour, nameColours } from './colour';
import { About, type Describing, Numbers, sentence } from './describe';
import { FlameGraph } from './FlameGraph';
import { Narrowed, Tools } from './FlameTools';
import { Detail } from './FrameDetail';
import type { Look } from './graph';
import { type Layout, nodeIn } from './layout';
import { PALETTES } from './paint';
import { SearchScope } from './SearchScope';

export interface FlamePanelProps {
  graph: Graph;
  /** Tools of the page beside those of the graph. */
  tools?: ComponentChildren;
  /** Labels that stacks can stand under. */
  labels: readonly string[];
  table: ComponentChildren;
  /** It came once and is nowhere kept: there is no collector to leave stacks out. */
  once?: boolean;
  /** What weights are; absent: CPU time. */
  weighs?: string;
  /** What of the page is of all stacks, whatever the graph leaves out; absent: the chart. */
  untouched?: string;
  /** It is in a file, without lines and without anybody who could record some. */
  alone?: boolean;
  /** Keys of what is around, for the list of shortcuts. */
  keys?: readonly (readonly [string, string])[];
  /** Some frame has a source line, or it was recorded with them. */
  hasLines?: boolean;
  /** Opens the dialog that records with source lines. */
  onRecord?: (text: string) => void;
}

export function FlamePanel(props: FlamePanelProps) {
  const { graph } = props;
  const { panel, fn } = useViewState('panel', 'fn');
  return (
    <section class="flame-panel" aria-label="Profile">
      <SearchScope layout={graph.layout}>
        <Tools diff={graph.request.diff !== undefined} labels={props.labels} weighs={props.weighs ?? 'CPU time'}>
          {props.tools}
        </Tools>
        <Narrowed once={props.once} untouched={props.untouched ?? (props.once ? 'heat map' : 'chart')} />
        <div class={`split panel-${panel}`}>
          {panel !== 'table' && (
            <div class="split-main">{fn === '' ? <Whole {...props} /> : <Sandwiched graph={graph} fn={fn} />}</div>
          )}
          {panel !== 'flame' && <div class="split-side">{props.table}</div>}
        </div>
      </SearchScope>
    </section>
  );
}

/** Colours and hatching of a layout's nodes. */
function useLook({ layout, change }: Shape): Look {
  const { colours } = useDisplayState('colours');
  const theme = useTheme();
  return useMemo(() => {
    const { names } = layout.tree;
    const palette = PALETTES[theme];
    if (!change) {
      const ofNames = nameColours(names, colours, theme);
      return {
        palette,
        colour: (node) => ofNames[layout.name[node]],
        hatched: (node) => node > 0 && names.kind[layout.name[node]] === KIND.synthetic,
      };
    }
    const scaleColours = Array.from({ length: 2 * DIFF_STEPS + 1 }, (_, at) => diffColour(at - DIFF_STEPS, theme));
    return {
      palette,
      colour: (node) => scaleColours[change.steps[node] + DIFF_STEPS],
      hatched: (node) => change.vanished[node] === 1,
    };
  }, [layout, change, theme, colours]);
}

/**
 * What frames are described by: as the graph was made, which may be before the last change of the
 * display.
 */
function describing(layout: Layout, { request, unit }: Graph): Describing {
  return { layout, unit, samples: request.options.measure === 'count', compare: request.diff?.compare };
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

function Whole(props: FlamePanelProps) {
  const { graph } = props;
  const { layout } = graph;
  const { focus, zoom, pan } = useViewState('focus', 'zoom', 'pan');
  const { flame } = useDisplayState('flame');
  const look = useLook(graph);
  const of = describing(layout, graph);
  const [selected, setSelected] = useState<number>();
  if (!(layout.whole > 0)) {
    return (
      <Empty title="No stacks">
        <p>{focus !== '' ? 'No stack has the focused function.' : 'This selection has no samples.'}</p>
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
        label={graph.request.diff ? 'Difference of two profiles' : 'Flame graph'}
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
        node={nodeIn(layout, selected)}
        source={graph.request.diff || props.alone ? undefined : graph.request.of}
        chance={graph.request.diff?.chance}
        keys={props.keys}
        once={props.once}
        hasLines={props.hasLines}
        onRecord={props.onRecord}
      />
    </>
  );
}

function Sandwiched({ graph, fn }: { graph: Graph; fn: string }) {
  const query = untilReplaced(
    useQuery(`callers ${JSON.stringify(fn)}\n${JSON.stringify(graph.request)}`, (signal) =>
      analysis.sandwich(graph, fn, signal),
    ),
  );
  const { samples } = describing(graph.layout, graph);
  const column = graph.request.diff ? 1 : 0;
  const whole = graph.layout.tree.total[column][0];
  const shown = (value: number) => (samples ? format.plural(value, 'sample') : format.weight(value, graph.unit));
  return (
    <Answer query={query} what="callers and callees">
      {({ callers, callees, own, total }) => (
        <div class="sandwich">
          <header class="sandwich-head">
            <div>
              Callers and callees of <Name text={fn} max={120} />
              <div class="soft">
                self {shown(own[column])} ({format.share(own[column], whole)}), total {shown(total[column])} (
                {format.share(total[column], whole)})
              </div>
            </div>
            <button type="button" onClick={() => setState({ fn: '' })}>
              <Icon of="close" /> Back to all stacks
            </button>
          </header>
          {callers.layout.whole > 0 ? (
            <>
              <Half title="Callers" graph={graph} half={callers} inverted />
              <Half title="Callees" graph={graph} half={callees} inverted={false} />
            </>
          ) : (
            <Empty title="Not in this selection">
              <p>No stack has a function with this name.</p>
            </Empty>
          )}
        </div>
      )}
    </Answer>
  );
}

function Half(props: { title: string; graph: Graph; half: Shape; inverted: boolean }) {
  const { layout } = props.half;
  const look = useLook(props.half);
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
  const of = describing(layout, props.graph);
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
