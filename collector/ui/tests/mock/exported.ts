// Files that stand alone, as the crate `profile` writes them: the built viewer, its places filled.

import { readFileSync } from 'node:fs';
import type { FileData } from '../../src/export/file';
import { random } from './fleet';
import { type Size, huge } from './huge';

/** A call tree as it is written down: a name, its own samples, and what it calls. */
export type Call = readonly [name: string, samples: number, ...callees: Call[]];

const KINDS = ['native', 'kernel', 'jit', 'interpreted', 'inlined', 'synthetic', 'label'];

/** Weight of a sample. */
export const WEIGHT = 10_000_000;

/** Names in columns; a name is of module `app`, but those in brackets are of none. */
class NameColumns {
  readonly function: string[] = [''];
  readonly module: number[] = [0];
  readonly kind: number[] = [0];
  private readonly ids = new Map<string, number>();

  id(name: string): number {
    const known = this.ids.get(name);
    if (known !== undefined) return known;
    const mark = name.startsWith('[');
    this.ids.set(name, this.function.length);
    this.function.push(name);
    this.module.push(mark ? 0 : 1);
    this.kind.push(mark ? 5 : name.startsWith('sys_') ? 1 : 0);
    return this.function.length - 1;
  }
}

/** The data of a file, depth first. */
export function dataOf(calls: readonly Call[], more: Partial<FileData> = {}): FileData {
  const names = new NameColumns();
  const nodes: FileData['nodes'] = { depth: [0], name: [0], count: [0], weight: [0] };
  const add = ([name, samples, ...callees]: Call, depth: number) => {
    nodes.depth.push(depth);
    nodes.name.push(names.id(name));
    nodes.count.push(samples);
    nodes.weight.push(samples * WEIGHT);
    for (const callee of callees) add(callee, depth + 1);
  };
  for (const call of calls) add(call, 1);
  const { function: functions, module, kind } = names;
  return {
    unit: 'nanoseconds',
    weighs: 'CPU time',
    measure: 0,
    icicle: false,
    kinds: KINDS,
    modules: ['', '/usr/bin/app'],
    names: { function: functions, module, kind },
    nodes,
    about: {
      start_unix_ns: 1_700_000_000_000_000_000,
      duration_ns: 10_000_000_000,
      event: 'cpu-clock',
      period: WEIGHT,
    },
    ...more,
  };
}

/** A service at work, half of whose time before went elsewhere. */
export const SERVICE: readonly Call[] = [
  [
    'main',
    0,
    ['serve', 10, ['parse', 200, ['sys_read', 100]], ['render', 400, ['escape', 150]]],
    ['close_month', 30],
    ['cache_lookup', 0],
  ],
  ['[lost]', 10],
];

/** Own samples of {@link SERVICE} before: no month was closed, and a cache was looked up. */
export const BEFORE = [0, 0, 10, 205, 98, 100, 155, 0, 332, 0];

/** Times of {@link SERVICE}: steady work for 20 s, and the month closed within 300 ms. */
export function timesOf({ nodes }: FileData): NonNullable<FileData['times']> {
  const next = random(7);
  const entries: [cell: number, node: number][] = [];
  nodes.count.forEach((count, node) => {
    for (let sample = 0; sample < count; sample++)
      entries.push([node === 7 ? 12 * 50 + 17 + Math.floor(sample / 2) : Math.floor(next() * 1000), node]);
  });
  entries.sort((left, right) => left[0] - right[0]);
  let before = 0;
  const at = entries.map(([cell]) => {
    const after = cell - before;
    before = cell;
    return after;
  });
  return {
    start_ms: 1_700_000_000_000,
    column_ms: 1000,
    rows: 50,
    columns: 20,
    first: 0,
    last: 999,
    dropped: 3,
    at,
    node: entries.map(([, node]) => node),
    count: entries.map(() => 1),
    weight: entries.map(() => WEIGHT),
  };
}

/** As large as files get: the nodes of a huge profile, depth first. */
export function hugeData(size: Size): FileData {
  const { functions, parents, frames, weights } = huge(size);
  const children: number[][] = Array.from({ length: parents.length + 1 }, () => []);
  parents.forEach((parent, at) => {
    children[parent].push(at + 1);
  });
  const nodes: FileData['nodes'] = { depth: [0], name: [0], count: [0], weight: [0] };
  const open = children[0].map((node): [node: number, depth: number] => [node, 1]);
  for (let top = open.pop(); top; top = open.pop()) {
    const [node, depth] = top;
    nodes.depth.push(depth);
    nodes.name.push(1 + frames[node - 1]);
    nodes.count.push(1 + Math.floor(weights[node - 1] / WEIGHT));
    nodes.weight.push(weights[node - 1]);
    for (const child of children[node]) open.push([child, depth + 1]);
  }
  return {
    ...dataOf([]),
    modules: ['', '/usr/bin/app'],
    names: {
      function: ['', ...functions],
      module: [0, ...functions.map(() => 1)],
      kind: [0, ...functions.map((_, at) => (at % 7 === 0 ? 1 : 0))],
    },
    nodes,
  };
}

const escaped = (text: string) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

/**
 * A file: the viewer of a build with its places filled, by the rules of `profile/src/formats/html`.
 */
export function fileOf(viewer: string, data: FileData | string, text: Record<string, string> = {}): string {
  const json = typeof data === 'string' ? data : JSON.stringify(data);
  const fill: Record<string, string> = {
    title: escaped(text.title ?? 'A file'),
    quality: escaped(text.quality ?? '900 samples of cpu-clock · 2023-11-14 22:13:20 – 22:13:30 UTC'),
    facts: text.facts ?? '',
    data: json.replace(/[<>&\u2028\u2029]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`),
  };
  return readFileSync(viewer, 'utf8')
    .split(/<!--fill:(\w+)-->/)
    .map((part, at) => (at % 2 ? (fill[part] ?? '') : part))
    .join('');
}
