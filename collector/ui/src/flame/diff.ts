// Two profiles in one graph: how wide a node is, and how much it changed.

import type { Measure } from './layout';
import type { Tree } from './tree';

/** Shares are compared, or sums as they are. */
export type Compare = 'share' | 'sum';

/** Whose width a node has: `both` is the larger of the two, so that what vanished keeps its place. */
export type Width = 'both' | 'after' | 'before';

/** By how much values before are scaled: in shares both profiles are as large. */
export function scale(tree: Tree, compare: Compare): number {
  const [before, after] = [tree.total[0][0], tree.total[1][0]];
  return compare === 'share' && before > 0 && after > 0 ? after / before : 1;
}

/** The measure for a layout. */
export function measure(tree: Tree, compare: Compare, width: Width): Measure {
  const factor = scale(tree, compare);
  switch (width) {
    case 'before':
      return (before) => before * factor;
    case 'after':
      return (_, after) => after;
    case 'both':
      return (before, after) => Math.max(before * factor, after);
  }
}

/** What became of a node. */
export interface Change {
  before: number;
  after: number;
  /** In parts of the whole; sums: of the larger whole. */
  delta: number;
  /** −1 (all gone) … 1 (all new): by how much it changed, seen from itself. */
  relative: number;
  appeared: boolean;
  vanished: boolean;
}

/** The change of a tree node. */
export function changeOf(tree: Tree, node: number, compare: Compare): Change {
  const [before, after] = [tree.total[0][node], tree.total[1][node]];
  const [wholeBefore, wholeAfter] = [tree.total[0][0], tree.total[1][0]];
  const largest = Math.max(wholeBefore, wholeAfter) || 1;
  const [was, is] =
    compare === 'share' ? [wholeBefore ? before / wholeBefore : 0, wholeAfter ? after / wholeAfter : 0] : [before / largest, after / largest];
  const sum = was + is;
  return {
    before,
    after,
    delta: is - was,
    relative: sum > 0 ? (is - was) / sum : 0,
    appeared: before === 0 && after > 0,
    vanished: after === 0 && before > 0,
  };
}
