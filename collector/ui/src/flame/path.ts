// A node of a graph as it stands in an address: hashes of names from the root, which find the same
// node in the same data, and as far as it is still there in newer data.

import { hash } from '../text/hash';
import type { Layout } from './layout';
import { pathTo } from './layout';
import type { NameTable } from './names';

function hashOf(names: NameTable, name: number): string {
  return hash(`${names.kind[name]} ${names.module[name]} ${names.text[name]}`).toString(36);
}

/** The path of a node; empty for the root. */
export function writePath(layout: Layout, node: number): string {
  const { names } = layout.tree;
  return pathTo(layout, node)
    .slice(1)
    .map((one) => hashOf(names, layout.name[one]))
    .join('.');
}

/** The node that a path leads to; where it breaks off, the last that is there. */
export function readPath(layout: Layout, path: string): number {
  const { names } = layout.tree;
  let node = 0;
  for (const wanted of path === '' ? [] : path.split('.')) {
    let found = -1;
    for (let child = layout.firstChild[node]; child < layout.endChild[node]; child++) {
      if (hashOf(names, layout.name[child]) === wanted) {
        found = child;
        break;
      }
    }
    if (found < 0) return node;
    node = found;
  }
  return node;
}
