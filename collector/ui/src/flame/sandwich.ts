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
