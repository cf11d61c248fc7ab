// A profile as a graph with its tools: search, colours, focus, callers and callees, and the table
// of its functions.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { type Graph, type Shape, analysis } from '../analysis/client';
import { Menu } from '../app/Menu';
import { Answer, Choice, Empty, Icon, Name } from '../app/parts';
import { KIND } from '../query/outcome';
import { untilReplaced, useQuery } from '../query/useQuery';
import { getState, setState, useDisplayState, useViewState } from '../state/store';
import { useTheme } from '../state/theme';
import * as format from '../text/format';
import { actionsOf } from './actions';
import { DIFF_STEPS, diffColour, nameColours } from './colour';
import { type Describing, sentence } from './describe';
import { FlameGraph } from './FlameGraph';
import { Narrowed, Tools } from './FlameTools';
import { FramePanel, Legend } from './FrameDetail';
import type { Look } from './graph';
import type { Layout } from './layout';
import type { NameTable } from './names';
import { PALETTES } from './paint';
import { writePath } from './path';
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
  /** Frame filters stand above it with the rest of the selection. */
  filtersAbove?: boolean;
  /** What weights are; absent: what is measured. */
  weighs?: string;
  /** What of the page is of all stacks, whatever the graph leaves out; absent: the chart. */
  untouched?: string;
  /** It is in a file, without lines and without anybody who could record some. */
  alone?: boolean;
  /** Keys of what is around, for the list of shortcuts. */
  keys?: readonly (readonly [string, string])[];
  /** How a function did over time, and where: for the panel of a frame. */
  about?: (fn: string) => ComponentChildren;
  /** Time that a host's data covers, of which time is a rate, such as cores. Unit: nanoseconds. */
  coveredNs?: number | undefined;
  /** Some frame has a source line, or it was recorded with them. */
  hasLines?: boolean;
  /** Opens the dialog that records with source lines. */
  onRecord?: (text: string) => void;
}

export function FlamePanel(props: FlamePanelProps) {
  const { graph } = props;
  const { panel, fn } = useViewState('panel', 'fn');
  const box = useRef<HTMLElement>(null);
  const [chosen, setChosen] = useState<Chosen>();
  const [menu, setMenu] = useState<{ of: Describing; node: number; x: number; y: number }>();
  const [aside, setAside] = useState<'frame' | 'table'>('frame');
  const [called, setCalled] = useState(0);
  const [closed, setClosed] = useState(0);
  const toGraph = () => box.current?.querySelector<HTMLElement>('.flame-box')?.focus({ preventScroll: true });
  const close = () => {
    setClosed((turn) => turn + 1);
    setChosen(undefined);
    toGraph();
  };
  const part = {
    ...props,
    closed,
    onChoose: (next: Chosen | undefined) => {
      setChosen(next);
      if (!next) setCalled(0);
    },
    onMenu: (next: Chosen, x: number, y: number) => setMenu({ ...next, x, y }),
    onDetails: () => {
      setAside('frame');
      setCalled((turn) => turn + 1);
    },
  };
  const frame = chosen && panel !== 'table' && (
    <FramePanel
      {...chosen}
      graph={graph}
      source={graph.request.diff || props.alone ? undefined : graph.request.of}
      hasLines={props.hasLines}
      onRecord={props.onRecord}
      about={props.about}
      called={called}
      onClose={close}
    />
  );
  return (
    <section class="flame-panel" aria-label="Profile" ref={box}>
      <SearchScope layout={graph.layout}>
        <Tools diff={graph.request.diff !== undefined} labels={props.labels} weighs={props.weighs ?? format.measured()}>
          {props.tools}
        </Tools>
        <Narrowed
          once={props.once || props.filtersAbove}
          untouched={props.untouched ?? (props.once ? 'heat map' : 'chart')}
        />
        <div class={`split panel-${panel}${frame ? ' with-frame' : ''}`}>
          {panel !== 'table' && (
            <div class="split-main">{fn === '' ? <Whole {...part} /> : <Sandwiched {...part} fn={fn} />}</div>
          )}
          {(panel !== 'flame' || frame) && (
            <div class="split-side">
              {frame && panel === 'both' && (
                <Choice
                  label="Beside the graph"
                  value={aside}
                  of={[
                    ['frame', 'Frame', 'The selected frame'],
                    ['table', 'Table', 'Functions of what the graph shows'],
                  ]}
                  onChange={setAside}
                />
              )}
              {frame && (panel === 'flame' || aside === 'frame') ? frame : props.table}
            </div>
          )}
        </div>
      </SearchScope>
      {menu && menu.node < menu.of.layout.name.length && (
        <FrameMenu
          {...menu}
          onClose={() => setMenu(undefined)}
          onZoom={(node) => setState(zoomOf(menu.of, node, fn))}
        />
      )}
    </section>
  );
}

/** Lets a frame fill the width of the graph that it is in. */
function zoomOf(of: Describing, node: number, fn: string) {
  // Of callers and callees only the graph of all stacks is known by its address alone.
  return fn === '' ? { zoom: writePath(of.layout, node), pan: '' } : {};
}

function FrameMenu(props: {
  of: Describing;
  node: number;
  x: number;
  y: number;
  onZoom: (node: number) => void;
  onClose: () => void;
}) {
  const { of, node } = props;
  const { names } = of.layout.tree;
  const id = of.layout.name[node];
  const zoom = { id: 'zoom', label: 'Zoom in', keys: 'Enter', run: () => props.onZoom(node) };
  return (
    <Menu
      x={props.x}
      y={props.y}
      label="Actions on the frame"
      head={<Name text={names.text[id]} max={60} />}
      items={[zoom, ...actionsOf(names, id)]}
      onClose={props.onClose}
    />
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
function describing(layout: Layout, { request, unit }: Graph, coveredNs: number | undefined): Describing {
  const { measure, bottomUp } = request.options;
  return { layout, unit, samples: measure === 'count', compare: request.diff?.compare, bottomUp, coveredNs };
}

/** What is chosen: a frame of the graph, or of one of callers and callees. */
interface Chosen {
  of: Describing;
  node: number;
}

interface PartProps extends FlamePanelProps {
  onChoose: (chosen: Chosen | undefined) => void;
  onMenu: (chosen: Chosen, x: number, y: number) => void;
  /** The panel is called: the focus goes there. */
  onDetails: () => void;
  /** Changes when nothing is to be chosen any more. */
  closed: number;
}

/** Does what a key says with a frame; true: it says something. */
function act(key: string, names: NameTable, id: number): boolean {
  const action = actionsOf(names, id).find((one) => one.keys === key);
  action?.run();
  return action !== undefined;
}

function Whole(props: PartProps) {
  const { graph } = props;
  const { layout } = graph;
  const { transforms, zoom, pan } = useViewState('transforms', 'zoom', 'pan');
  const { flame } = useDisplayState('flame');
  const look = useLook(graph);
  const of = describing(layout, graph, props.coveredNs);
  if (!(layout.whole > 0)) {
    return (
      <Empty title="No stacks">
        <p>
          {transforms.length
            ? 'The filters above leave no stack: remove one of them.'
            : 'This selection has no samples.'}
        </p>
        {transforms.length > 0 && (
          <button type="button" onClick={() => setState({ transforms: transforms.slice(0, -1) })}>
            <Icon of="close" /> Remove the last one
          </button>
        )}
      </Empty>
    );
  }
  const onKey = (key: string, node: number | undefined): boolean => {
    if (key === 'Escape') {
      const state = getState();
      if (state.search !== '') setState({ search: '' });
      else if (state.zoom !== '' || state.pan !== '') setState({ zoom: '', pan: '' });
      else if (node !== undefined) props.onChoose(undefined);
      else return false;
      return true;
    }
    if (node === undefined) return false;
    if (key === 'e') {
      props.onDetails();
      return true;
    }
    return node !== 0 && act(key, layout.tree.names, layout.name[node]);
  };
  return (
    <FlameGraph
      label={
        graph.request.diff
          ? 'Difference of two profiles'
          : graph.request.options.bottomUp
            ? 'Bottom-up graph'
            : 'Flame graph'
      }
      layout={layout}
      look={look}
      inverted={flame}
      zoom={zoom}
      pan={pan}
      closed={props.closed}
      onView={(view, how) => setState(view, how)}
      onSelect={(node) => props.onChoose(node === undefined ? undefined : { of, node })}
      onMenu={(node, x, y) => props.onMenu({ of, node }, x, y)}
      describe={(node) => sentence(node, of)}
      onKey={onKey}
      idle={<Legend graph={graph} keys={props.keys} />}
    />
  );
}

function Sandwiched(props: PartProps & { fn: string }) {
  const { graph, fn } = props;
  const query = untilReplaced(
    useQuery(`callers ${JSON.stringify(fn)}\n${JSON.stringify(graph.request)}`, (signal) =>
      analysis.sandwich(graph, fn, signal),
    ),
  );
  const { samples } = describing(graph.layout, graph, props.coveredNs);
  const column = graph.request.diff ? 1 : 0;
  const whole = graph.layout.tree.total[column][0];
  const shown = (value: number) => (samples ? format.plural(value, 'sample') : format.weight(value, graph.unit));
  const box = useRef<HTMLDivElement>(null);
  const ready = query.data !== undefined;
  // Whoever came by a key goes on by keys, among what the function calls.
  useEffect(() => {
    const [, callees] = box.current?.querySelectorAll<HTMLElement>('.flame-box') ?? [];
    if (document.activeElement === document.body) callees?.focus({ preventScroll: true });
  }, [fn, ready]);
  return (
    <Answer query={query} what="callers and callees">
      {({ callers, callees, own, total }) => (
        <div
          class="sandwich"
          ref={box}
          onKeyDown={(event) => {
            if (event.key !== 'Escape' || event.defaultPrevented) return;
            event.stopPropagation();
            setState({ fn: '' });
          }}
        >
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
              <Half {...props} title="Callers" half={callers} inverted />
              <Half {...props} title="Callees" half={callees} inverted={false} />
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

function Half(props: PartProps & { title: string; half: Shape; inverted: boolean }) {
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
  const of = describing(layout, props.graph, props.coveredNs);
  const onKey = (key: string, node: number | undefined): boolean => {
    if (key === 'Escape') {
      if (zoom === '' && pan === '') setState({ fn: '' });
      else setView({ zoom: '', pan: '' });
      return true;
    }
    if (node === undefined) return false;
    if (key === 'e') {
      props.onDetails();
      return true;
    }
    return node !== 0 && act(key, layout.tree.names, layout.name[node]);
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
        closed={props.closed}
        onView={setView}
        onSelect={(node) => props.onChoose(node === undefined ? undefined : { of, node })}
        onMenu={(node, x, y) => props.onMenu({ of, node }, x, y)}
        describe={(node) => sentence(node, of)}
        onKey={onKey}
        fitted
      />
    </div>
  );
}
