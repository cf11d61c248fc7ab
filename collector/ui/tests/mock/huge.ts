// Profiles of 100,000 frames and more: as deep and as uneven as real ones.

import { random } from './fleet';

export interface HugeProfile {
  functions: string[];
  parents: number[];
  frames: number[];
  weights: number[];
}

/**
 * Nodes and functions of the huge profile, and of the largest that a collector answers with by
 * default.
 */
export const SIZES = {
  huge: { nodes: 100_000, functions: 6000 },
  largest: { nodes: 200_000, functions: 60_000 },
} as const;

export type Size = keyof typeof SIZES;

/** Many nodes under few functions, each node with a weight of its own. */
export function huge(size: Size): HugeProfile {
  const { nodes, functions: names } = SIZES[size];
  const next = random(42);
  const functions = Array.from({ length: names }, (_, at) => `service_${at % 37}::module_${at % 211}::function_${at}`);
  const parents: number[] = [];
  const frames: number[] = [];
  const weights: number[] = [];
  const depth = [0];
  const taken = new Set<number>();
  while (parents.length < nodes) {
    const made = parents.length;
    // Often on top of what is new (depth), sometimes anywhere (breadth).
    const parent =
      made === 0
        ? 0
        : next() < 0.55
          ? made - Math.floor(next() ** 3 * Math.min(made, 50))
          : 1 + Math.floor(next() ** 2 * made);
    const frame = Math.floor(next() ** 2 * functions.length);
    const key = parent * 65_536 + frame;
    if (taken.has(key) || depth[parent] > 120) continue;
    taken.add(key);
    parents.push(parent);
    frames.push(frame);
    depth.push(depth[parent] + 1);
    weights.push(Math.floor(1e7 * next() ** 6) + 1e5);
  }
  return { functions, parents, frames, weights };
}
