// A node of a graph as it stands in an address: hashes of names from the root, which find the same
// node in the same data, and as far as it is still there in newer data.

import { hash } from '../text/hash';
import type { Layout } from './layout';
import { pathTo } from './layout';
import type { NameTable } from './names';
import { KIND_START } from './transforms';

function hashOf(names: NameTable, name: number): string {
  return hash(`${names.kind[name]} ${names.module[name]} ${names.text[name]}`).toString(36);
}

/** A folded run is its frames, so that a link leads there whether they are folded or not. */
function hashesOf(names: NameTable, name: number): string[] {
  if (names.kind[name] !== KIND_START) return [hashOf(names, name)];
  return names.spelled[name].split('\n').map((frame) => hash(frame).toString(36));
}

/** The path of a node; empty for the root. */
export function writePath(layout: Layout, node: number): string {
  const { names } = layout.tree;
  return pathTo(layout, node)
    .slice(1)
    .flatMap((one) => hashesOf(names, layout.name[one]))
    .join('.');
}

/** The node that a path leads to; where it breaks off, the last that is there. */
export function readPath(layout: Layout, path: string): number {
  const { names } = layout.tree;
  const wanted = path === '' ? [] : path.split('.');
  let node = 0;
  for (let at = 0; at < wanted.length; ) {
    let [found, taken] = [-1, 0];
    for (let child = layout.firstChild[node]; child < layout.endChild[node]; child++) {
      const hashes = hashesOf(names, layout.name[child]);
      if (hashes.length > taken && hashes.every((one, step) => one === wanted[at + step]))
        [found, taken] = [child, hashes.length];
    }
    if (found < 0) return node;
    node = found;
    at += taken;
  }
  return node;
}
