// Callers and callees of one function, wherever it stands in the stacks.
//
// Each outermost place of the function counts once, so both trees are as wide as the function's
// total.

import { namesWithText } from './names';
import type { Tree } from './tree';
import { TreeBuilder, outermostNodes } from './tree';

/** Two trees whose root stands for the function. */
export interface Sandwich {
  callers: Tree;
  callees: Tree;
  /** Total of the function, by column. */
  total: [number, number];
  /** What ends in the function itself. */
  own: [number, number];
}

/** The sandwich of all functions with this text as name. */
export function sandwich(tree: Tree, text: string): Sandwich {
  const wanted = namesWithText(tree.names, text);
  const outermost = outermostNodes(tree);
  const isPlace = (node: number) => node > 0 && outermost[node] === 1 && wanted.has(tree.name[node]);
  const callers = new TreeBuilder(tree.names);
  const callees = new TreeBuilder(tree.names);
  const result: Pick<Sandwich, 'total' | 'own'> = { total: [0, 0], own: [0, 0] };
  // The node of the callees' tree for each node at or under a place; 0 is the function, so ids are
  // + 1.
  const under = new Uint32Array(tree.parent.length);
  for (let node = 1; node < tree.parent.length; node++) {
    const inside = under[tree.parent[node]];
    if (inside > 0) {
      under[node] = callees.child(inside - 1, tree.name[node]) + 1;
    } else if (isPlace(node)) {
      under[node] = 1;
      addCallers(callers, tree, node);
      for (const column of [0, 1] as const) result.total[column] += tree.total[column][node];
    }
    if (under[node] > 0) {
      for (const column of [0, 1] as const) {
        callees.add(under[node] - 1, column, tree.own[column][node]);
        if (wanted.has(tree.name[node])) result.own[column] += tree.own[column][node];
      }
    }
  }
  return { callers: named(callers.finish(), wanted), callees: named(callees.finish(), wanted), ...result };
}

function addCallers(callers: TreeBuilder, tree: Tree, place: number): void {
  let to = 0;
  for (let node = tree.parent[place]; node !== 0; node = tree.parent[node]) to = callers.child(to, tree.name[node]);
  for (const column of [0, 1] as const) callers.add(to, column, tree.total[column][place]);
}

function named(tree: Tree, wanted: Set<number>): Tree {
  const [first] = wanted;
  if (first !== undefined) tree.name[0] = first;
  return tree;
}

/** Most callers and callees of a panel. */
const AROUND_MAX = 8;

/** What stands next to a function, wherever it stands: see {@link sandwich}. */
export interface Neighbours {
  own: [number, number];
  total: [number, number];
  callers: { name: number; value: number }[];
  callees: { name: number; value: number }[];
  callersLeftOut: number;
  calleesLeftOut: number;
}

/**
 * The functions that call one and those that it calls, heaviest first, by the values of a column. A
 * call of itself is neither.
 */
export function around(tree: Tree, text: string, column: 0 | 1): Neighbours {
  const wanted = namesWithText(tree.names, text);
  const outermost = outermostNodes(tree);
  const callers = new Map<number, number>();
  const callees = new Map<number, number>();
  const found: Pick<Neighbours, 'own' | 'total'> = { own: [0, 0], total: [0, 0] };
  const add = (to: Map<number, number>, name: number, value: number) => to.set(name, (to.get(name) ?? 0) + value);
  // 1 for the outermost frame of the function and those that it calls itself at once: what others
  // call again below is theirs.
  const first = new Uint8Array(tree.parent.length);
  for (let node = 1; node < tree.parent.length; node++) {
    const above = tree.parent[node];
    const is = wanted.has(tree.name[node]);
    if (is) for (const one of [0, 1] as const) found.own[one] += tree.own[one][node];
    first[node] = is && (outermost[node] === 1 || first[above] === 1) ? 1 : 0;
    if (is && outermost[node]) {
      for (const one of [0, 1] as const) found.total[one] += tree.total[one][node];
      add(callers, tree.name[above], tree.total[column][node]);
    } else if (!is && first[above] === 1) add(callees, tree.name[node], tree.total[column][node]);
  }
  const sorted = (of: Map<number, number>) =>
    [...of]
      .filter(([, value]) => value > 0)
      .sort(([, left], [, right]) => right - left)
      .map(([name, value]) => ({ name, value }));
  const [all, below] = [sorted(callers), sorted(callees)];
  return {
    ...found,
    callers: all.slice(0, AROUND_MAX),
    callees: below.slice(0, AROUND_MAX),
    callersLeftOut: Math.max(0, all.length - AROUND_MAX),
    calleesLeftOut: Math.max(0, below.length - AROUND_MAX),
  };
}
