// Two profiles in one graph: how wide a node is, and how much it changed.

import type { Measure } from './layout';
import type { TreeValues } from './tree';

/**
 * Shares of each side are compared, or cores: the mean over the time that each side covers; or the
 * sums of both as they are.
 */
export type Compare = 'share' | 'sum' | 'total';

/**
 * Whose width a node has: `both` is the larger of the two, so that what vanished keeps its place.
 */
export type Width = 'both' | 'after' | 'before';

/**
 * By how much values before are scaled: in shares both profiles are as large, in cores as their
 * means are.
 */
export function scale(tree: TreeValues, compare: Compare): number {
  const [before, after] = [tree.total[0][0], tree.total[1][0]];
  const [was, is] = ratesOf(tree, compare);
  return before > 0 && after > 0 && is > 0 ? (was / is) * (after / before) : 1;
}

/**
 * What the roots are: the same in shares, the mean of each side's own time in cores, their sums.
 */
function ratesOf(tree: TreeValues, compare: Compare): readonly [number, number] {
  if (compare === 'total') return [tree.total[0][0], tree.total[1][0]];
  return compare === 'share' || !tree.rates ? [1, 1] : tree.rates;
}

/** A node in cores (or events a second), of one side; undefined where that is not known. */
export function rateOf(tree: TreeValues, node: number, side: 0 | 1): number | undefined {
  const whole = tree.total[side][0];
  return tree.rates && whole > 0 ? (tree.total[side][node] / whole) * tree.rates[side] : undefined;
}

/** The measure for a layout. */
export function measure(tree: TreeValues, compare: Compare, width: Width): Measure {
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
  /** In parts of the whole; cores: of the larger whole. */
  delta: number;
  /** −1 (all gone) … 1 (all new): by how much it changed, seen from itself. */
  relative: number;
  appeared: boolean;
  vanished: boolean;
}

/** The change of a tree node. */
export function changeOf(tree: TreeValues, node: number, compare: Compare): Change {
  const [before, after] = [tree.total[0][node], tree.total[1][node]];
  const [wholeBefore, wholeAfter] = [tree.total[0][0], tree.total[1][0]];
  const [rateBefore, rateAfter] = ratesOf(tree, compare);
  const largest = Math.max(rateBefore, rateAfter) || 1;
  const [was, is] = [
    wholeBefore ? (before / wholeBefore) * (rateBefore / largest) : 0,
    wholeAfter ? (after / wholeAfter) * (rateAfter / largest) : 0,
  ];
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

/**
 * True when two counts differ by no more than chance alone has them differ: twice the standard
 * error of their difference. `factor`: by how much the one before is scaled.
 */
export function isChance(before: number, after: number, factor: number): boolean {
  return Math.abs(after - before * factor) < 2 * Math.sqrt(before * factor * factor + after);
}
