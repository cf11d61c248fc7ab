// One flame graph on the page: its canvas, breadcrumbs, the strip with all of it, what is under the
// pointer, and the keys.

import { useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { Module, Name, say } from '../app/parts';
import { Graph, neighbour, nextMatch } from './graph';
import type { Look } from './graph';
import type { Layout } from './layout';
import { levelCount, nodeIn, pathTo } from './layout';
import { MINIMAP_HEIGHT, Minimap, isPart, placeIn } from './minimap';
import type { Scene } from './paint';
import { readPath, writePath } from './path';
import type { Found } from './search';
import { useFound } from './SearchScope';

export interface FlameGraphProps {
  label: string;
  layout: Layout;
  look: Look;
  /** Root at the bottom. */
  inverted: boolean;
  zoom: string;
  pan: string;
  onView: (view: { zoom: string; pan: string }, how?: { replace?: boolean }) => void;
  /** A frame was chosen: undefined, none is. */
  onSelect: (node: number | undefined) => void;
  /** What is said of a frame, beside its name. */
  describe: (node: number) => string;
  /** What can be done with a frame is asked for, at a place of the window. */
  onMenu: (node: number, x: number, y: number) => void;
  /** Below the graph while the pointer is on no frame. */
  idle?: preact.ComponentChildren;
  /** Changes when nothing is to be chosen any more. */
  closed?: number;
  /** Keys that the graph leaves to the page; true: taken. */
  onKey?: (key: string, node: number | undefined) => boolean;
  /** Height by the number of levels, where it is not the room there is. */
  fitted?: boolean;
}

/** The graph on its canvas, which follows the properties, and what it has told. */
function useGraph(props: FlameGraphProps, found: Found | undefined) {
  const { layout, look, inverted, zoom, pan } = props;
  const box = useRef<HTMLDivElement>(null);
  const canvas = useRef<HTMLCanvasElement>(null);
  const spacer = useRef<HTMLDivElement>(null);
  const graph = useRef<Graph | undefined>(undefined);
  const latest = useRef(props);
  latest.current = props;
  const strip = useRef<HTMLCanvasElement>(null);
  const minimap = useRef<Minimap | undefined>(undefined);
  const scene = useRef<Scene | undefined>(undefined);
  const [partly, setPartly] = useState(false);
  const [hover, setHover] = useState<number>();
  const [selected, setSelected] = useState<number>();
  const zoomed = useMemo(() => readPath(layout, zoom), [layout, zoom]);
  const part = useMemo(() => readPan(pan), [pan]);

  const choose = (node: number | undefined) => {
    setSelected(node);
    latest.current.onSelect(node);
  };
  const zoomTo = (node: number) => latest.current.onView({ zoom: writePath(latest.current.layout, node), pan: '' });

  // Before the page is painted: the strip above it takes room.
  useLayoutEffect(() => {
    if (!box.current || !canvas.current || !spacer.current) return;
    const made = new Graph(box.current, canvas.current, spacer.current, layout, look, {
      zoom: zoomTo,
      pan: (from, to) =>
        latest.current.onView({ zoom: latest.current.zoom, pan: writePan(from, to) }, { replace: true }),
      select: choose,
      hover: setHover,
      menu: (node, x, y) => latest.current.onMenu(node, x, y),
      drawn: (drawn) => {
        scene.current = drawn;
        setPartly(isPart(drawn));
        minimap.current?.show(drawn);
      },
    });
    graph.current = made;
    return () => made.destroy();
  }, []);
  const shown = useRef(layout);
  // Before the next key is read, which would be lost with what it chose.
  useLayoutEffect(() => {
    // In newer data the chosen frame stays chosen, as long as it is there; the root always is.
    const path =
      selected !== undefined && selected < shown.current.name.length ? writePath(shown.current, selected) : undefined;
    const again = path ? readPath(layout, path) : 0;
    const same = path !== undefined && writePath(layout, again) === path;
    shown.current = layout;
    graph.current?.setLayout(layout, inverted);
    graph.current?.setFound(found);
    graph.current?.setView(zoomed, part);
    graph.current?.setSelected(same ? again : undefined);
    setHover(undefined);
    choose(same ? again : undefined);
  }, [layout, inverted]);
  useEffect(() => {
    minimap.current = strip.current ? new Minimap(strip.current) : undefined;
    if (scene.current) minimap.current?.show(scene.current);
  }, [partly]);
  useEffect(() => graph.current?.setLook(look), [look]);
  useEffect(() => graph.current?.setFound(found), [found]);
  useEffect(() => graph.current?.setView(zoomed, part), [zoomed, part]);
  useEffect(() => graph.current?.setSelected(selected), [selected]);
  useEffect(() => {
    if (props.closed) setSelected(undefined);
  }, [props.closed]);
  const moveTo = (event: PointerEvent) => {
    if (!scene.current || !strip.current) return;
    const { x, y } = placeIn(scene.current, strip.current, event);
    graph.current?.moveTo(x, y);
  };
  return { box, canvas, spacer, strip, graph, hover, selected, zoomed, part, partly, choose, zoomTo, moveTo };
}

export function FlameGraph(props: FlameGraphProps) {
  const { layout, inverted } = props;
  const found = useFound(layout);
  const { box, canvas, spacer, strip, graph, zoomed, part, choose, zoomTo, moveTo, ...now } = useGraph(props, found);
  const selected = nodeIn(layout, now.selected);
  const hover = nodeIn(layout, now.hover);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = selected ?? zoomed;
    const go = (node: number | undefined) => {
      if (node === undefined) return;
      choose(node);
      // What is chosen is to be seen: out to the nearest frame that has both.
      let around = zoomed;
      while (around !== 0 && !overlaps(layout, around, node)) around = layout.parent[around];
      if (around !== zoomed) zoomTo(around);
      else if (
        part &&
        (layout.x[node] >= part[1] * layout.whole || layout.x[node] + layout.width[node] <= part[0] * layout.whole)
      )
        zoomTo(zoomed);
      graph.current?.reveal(node);
    };
    if (
      handleKey(event, { layout, found, inverted, at, selected, zoomed, go, zoomTo }) ||
      props.onKey?.(event.key, selected)
    ) {
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const about = selected === undefined ? undefined : props.describe(selected);
  const rows = Math.min(14, Math.max(3, levelCount(layout)));
  return (
    <div class={`flame${props.fitted ? ' fitted' : ''}`}>
      <Crumbs layout={layout} zoomed={zoomed} onZoom={zoomTo} />
      {now.partly && !props.fitted && (
        <canvas
          ref={strip}
          class="minimap"
          style={{ height: `${MINIMAP_HEIGHT}px` }}
          aria-hidden="true"
          onPointerDown={(event) => {
            event.currentTarget.setPointerCapture(event.pointerId);
            moveTo(event);
          }}
          onPointerMove={(event) => event.buttons & 1 && moveTo(event)}
        />
      )}
      <div
        class="flame-box"
        style={props.fitted ? { height: `${rows * 18 + 4}px` } : undefined}
        ref={box}
        tabIndex={0}
        role="application"
        aria-label={`${props.label}. Arrow keys move between frames, Enter zooms, Escape zooms out, n goes to the next match, e goes to the details, the menu key has what can be done. The table of functions has the same numbers.`}
        onKeyDown={onKeyDown}
      >
        <canvas ref={canvas} aria-hidden="true" data-nodes={layout.name.length} data-zoomed={zoomed} />
        <div class="spacer" ref={spacer} />
      </div>
      <p class="hidden" aria-live="polite">
        {about && selected !== undefined ? `${say(layout.tree.names.text[layout.name[selected]])}: ${about}` : ''}
      </p>
      <div class="hover-line">
        {hover === undefined ? (
          props.idle
        ) : (
          <span class="hovered">
            <Name text={layout.tree.names.text[layout.name[hover]]} max={200} />
            <Module path={layout.tree.names.module[layout.name[hover]]} />{' '}
            <span class="soft">{props.describe(hover)}</span>
          </span>
        )}
      </div>
    </div>
  );
}

/** True when a node is above or below another. */
function overlaps(layout: Layout, one: number, other: number): boolean {
  return layout.x[other] < layout.x[one] + layout.width[one] && layout.x[other] + layout.width[other] > layout.x[one];
}

interface KeyContext {
  layout: Layout;
  found: Found | undefined;
  inverted: boolean;
  at: number;
  selected: number | undefined;
  zoomed: number;
  go: (node: number | undefined) => void;
  zoomTo: (node: number) => void;
}

/** True when the key means something here. */
function handleKey(event: KeyboardEvent, context: KeyContext): boolean {
  const { layout, found, inverted, at, selected, zoomed, go, zoomTo } = context;
  switch (event.key) {
    case 'ArrowUp':
      go(selected === undefined ? zoomed : neighbour(layout, at, inverted ? 'child' : 'parent'));
      return true;
    case 'ArrowDown':
      go(selected === undefined ? zoomed : neighbour(layout, at, inverted ? 'parent' : 'child'));
      return true;
    case 'ArrowLeft':
      go(neighbour(layout, at, 'left'));
      return true;
    case 'ArrowRight':
      go(neighbour(layout, at, 'right'));
      return true;
    case 'Enter':
      zoomTo(at);
      return true;
    case 'Backspace':
      zoomTo(layout.parent[zoomed]);
      return true;
    case 'Home':
    case '0':
      zoomTo(0);
      return true;
    case 'n':
    case 'N':
      go(found ? nextMatch(layout, found, selected ?? 0, event.key === 'N') : undefined);
      return found !== undefined;
    default:
      return false;
  }
}

/** Most frames of a path that are written out; those between are a number. */
const CRUMBS_MAX = 8;

function Crumbs({ layout, zoomed, onZoom }: { layout: Layout; zoomed: number; onZoom: (node: number) => void }) {
  if (zoomed === 0) return null;
  const path = pathTo(layout, zoomed);
  const { names } = layout.tree;
  const tooMany = path.length > CRUMBS_MAX + 1;
  const shown = tooMany ? [path[0], ...path.slice(-CRUMBS_MAX)] : path;
  return (
    <nav class="crumbs" aria-label="Path to the zoomed frame">
      {shown.map((node, at) => (
        <span key={node}>
          {at > 0 && <i aria-hidden="true">›</i>}
          {tooMany && at === 1 && <span class="soft">{path.length - shown.length} frames ›</span>}
          <button
            type="button"
            class="plain"
            aria-current={node === zoomed ? 'location' : undefined}
            onClick={() => onZoom(node)}
          >
            <Name text={names.text[layout.name[node]]} max={60} />
          </button>
        </span>
      ))}
    </nav>
  );
}

/** A box beside the pointer, kept inside of the window. */
export function Tip({ x, y, children }: { x: number; y: number; children: preact.ComponentChildren }) {
  const width = Math.min(460, innerWidth - 16);
  const left = Math.max(8, Math.min(x + 14, innerWidth - width - 8));
  const style =
    y > innerHeight * 0.6
      ? { left: `${left}px`, bottom: `${innerHeight - y + 14}px`, maxWidth: `${width}px` }
      : { left: `${left}px`, top: `${y + 16}px`, maxWidth: `${width}px` };
  return (
    <div class="tip floating-tip" role="tooltip" style={style}>
      {children}
    </div>
  );
}

function readPan(text: string): [number, number] | undefined {
  const found = /^(0(?:\.\d+)?|1|\d(?:\.\d+)?e-\d+)-(0(?:\.\d+)?|1)$/.exec(text);
  if (!found) return undefined;
  const [from, to] = [Number(found[1]), Number(found[2])];
  return from < to && to <= 1 ? [from, to] : undefined;
}

function writePan(from: number, to: number): string {
  if (from <= 0 && to >= 1) return '';
  return `${Math.max(0, from).toFixed(9)}-${Math.min(1, to).toFixed(9)}`.replace(/\.?0+(?=-|$)/g, '');
}
