// Where the nodes of a tree stand: level by level, each level sorted from left to right, so that
// what is visible and what is under the pointer are found by binary search.

import { ranksOf } from './names';
import type { Tree, TreeValues } from './tree';

/** Nodes in order of level and position. Unit of positions: that of the tree's values. */
export interface Layout {
  tree: TreeValues;
  /** First node of each level, and the end. */
  levels: Uint32Array;
  /** Left edge and width. */
  x: Float64Array;
  width: Float64Array;
  /** Layout id of the parent; that of the root is the root. */
  parent: Uint32Array;
  /** Name id. */
  name: Uint32Array;
  /** Tree node. */
  node: Uint32Array;
  /** Layout ids of children: [first, end). */
  firstChild: Uint32Array;
  endChild: Uint32Array;
  depth: Uint16Array;
  /** Width of the root. */
  whole: number;
}

/**
 * What the width of a node is, from its own values; widths of children never exceed that of
 * parents.
 */
export type Measure = (before: number, after: number) => number;

/** Width is the first column. */
export const single: Measure = (value) => value;

/** Deepest level drawn. Stacks end at 127 or 1,024 frames; 65,535 is what `depth` holds. */
export const LEVELS_MAX = 8192;

/** Lays a tree out. Nodes without width are left out. */
export function layOut(tree: Tree, measure: Measure = single): Layout {
  const size = tree.parent.length;
  const wide = new Float64Array(size);
  for (let node = size - 1; node >= 0; node--) {
    wide[node] += measure(tree.own[0][node], tree.own[1][node]);
    if (node > 0) wide[tree.parent[node]] += wide[node];
  }
  const children = childrenInOrder(tree, wide);
  const { names, own, total, rates } = tree;
  const out: Layout = {
    tree: { names, own, total, rates },
    levels: new Uint32Array(),
    x: new Float64Array(size),
    width: new Float64Array(size),
    parent: new Uint32Array(size),
    name: new Uint32Array(size),
    node: new Uint32Array(size),
    firstChild: new Uint32Array(size),
    endChild: new Uint32Array(size),
    depth: new Uint16Array(size),
    whole: wide[0],
  };
  out.width[0] = wide[0];
  out.name[0] = tree.name[0];
  const levels = [0];
  let placed = 1;
  let levelStart = 0;
  for (let depth = 1; levelStart < placed && depth <= LEVELS_MAX; depth++) {
    const levelEnd = placed;
    for (let at = levelStart; at < levelEnd; at++) {
      placed = placeChildren(out, tree.name, children, wide, at, placed, depth);
    }
    levels.push(levelEnd);
    levelStart = levelEnd;
  }
  if (levels[levels.length - 1] !== placed) levels.push(placed);
  out.levels = Uint32Array.from(levels);
  return trimmed(out, placed);
}

function placeChildren(
  out: Layout,
  name: Uint32Array,
  children: Children,
  wide: Float64Array,
  at: number,
  next: number,
  depth: number,
): number {
  const node = out.node[at];
  let left = out.x[at];
  out.firstChild[at] = next;
  for (let slot = children.start[node]; slot < children.start[node + 1]; slot++) {
    const child = children.list[slot];
    if (!(wide[child] > 0)) continue;
    out.x[next] = left;
    out.width[next] = wide[child];
    out.parent[next] = at;
    out.node[next] = child;
    out.name[next] = name[child];
    out.depth[next] = depth;
    left += wide[child];
    next++;
  }
  out.endChild[at] = next;
  return next;
}

interface Children {
  /** First slot of each node in `list`, and the end. */
  start: Uint32Array;
  list: Uint32Array;
}

/**
 * Children of each node by name: an order that stays when values change, so that eyes keep their
 * place.
 */
function childrenInOrder(tree: Tree, wide: Float64Array): Children {
  const size = tree.parent.length;
  const ranks = ranksOf(tree.names);
  const start = new Uint32Array(size + 1);
  for (let node = 1; node < size; node++) if (wide[node] > 0) start[tree.parent[node] + 1]++;
  for (let node = 0; node < size; node++) start[node + 1] += start[node];
  const list = new Uint32Array(start[size]);
  const filled = start.slice(0, size);
  for (let node = 1; node < size; node++) if (wide[node] > 0) list[filled[tree.parent[node]]++] = node;
  for (let node = 0; node < size; node++) {
    if (start[node + 1] - start[node] < 2) continue;
    list.subarray(start[node], start[node + 1]).sort((left, right) => ranks[tree.name[left]] - ranks[tree.name[right]]);
  }
  return { start, list };
}

function trimmed(layout: Layout, size: number): Layout {
  for (const key of ['x', 'width', 'parent', 'name', 'node', 'firstChild', 'endChild', 'depth'] as const) {
    layout[key] = layout[key].subarray(0, size) as never;
  }
  return layout;
}

/** The node, if it is one of this layout: what was chosen may be of the one before. */
export function nodeIn(layout: Layout, node: number | undefined): number | undefined {
  return node !== undefined && node < layout.name.length ? node : undefined;
}

/** Number of levels. */
export function levelCount(layout: Layout): number {
  return layout.levels.length - 1;
}

/** First node in [from, end) that ends right of `x`; `end` when there is none. */
export function firstEndingAfter(layout: Layout, from: number, end: number, x: number): number {
  let [low, high] = [from, end];
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (layout.x[middle] + layout.width[middle] > x) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** The node at a level and position; undefined where there is none. */
export function nodeAt(layout: Layout, level: number, x: number): number | undefined {
  if (level < 0 || level >= levelCount(layout)) return undefined;
  const end = layout.levels[level + 1];
  const found = firstEndingAfter(layout, layout.levels[level], end, x);
  return found < end && layout.x[found] <= x ? found : undefined;
}

/** Nodes from the root to this one. */
export function pathTo(layout: Layout, node: number): number[] {
  const path = [node];
  while (node !== 0) {
    node = layout.parent[node];
    path.push(node);
  }
  return path.reverse();
}
