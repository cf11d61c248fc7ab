// From stacks to the tree that a flame graph draws: equal names under equal parents are one node.
//
// All in typed arrays; a node's parent has a smaller id, so sums run without recursion. A tree has
// two columns of values: the second is used where two profiles are compared.

import { END_LOST, KIND, TRUNCATED, isTruncated, isWaitState, isWaker } from '../query/outcome';
import type { Profile } from '../query/profile';
import { type NameTable, type Names, namesWithText } from './names';
import { type FrameChanges, GONE, KIND_START, type Transform, baseName, frameChanges, isStart } from './transforms';

/** How stacks become paths. */
export interface Options {
  /** Width is samples or weight. */
  measure: 'count' | 'weight';
  /** A run of the same function is one node. */
  collapse: boolean;
  /** What is done to stacks, in this order. */
  transforms: readonly Transform[];
  /** Frames before the program's own are one node. */
  fold?: boolean;
  /** A label whose values stand between root and stacks; empty: none. */
  root: string;
  /** Without what was lost. */
  sampled?: boolean;
  /** From the leaf up: callers stand below what they called. */
  bottomUp?: boolean;
}

/** What is told of a node: nodes by id, node 0 is the root. */
export interface TreeValues {
  names: NameTable;
  /** Ending here. */
  own: [Float64Array, Float64Array];
  /** Here and below. */
  total: [Float64Array, Float64Array];
  /**
   * What the roots of two profiles are in cores, or events a second; absent where it is not known.
   */
  rates?: readonly [number, number];
}

/** A tree with its edges. */
export interface Tree extends TreeValues {
  parent: Uint32Array;
  name: Uint32Array;
}

/** Builds a tree from paths. */
export class TreeBuilder {
  private size = 1;
  private parent = new Uint32Array(1024);
  private name = new Uint32Array(1024);
  private own: [Float64Array, Float64Array] = [new Float64Array(1024), new Float64Array(1024)];
  // Open addressing: node id + 1 of the child with (parent, name); 0 is free.
  private table = new Uint32Array(4096);

  constructor(readonly names: NameTable) {}

  /** The child of a node with this name. */
  child(parent: number, name: number): number {
    const mask = this.table.length - 1;
    let slot = (Math.imul(parent, 0x9e3779b1) ^ Math.imul(name + 1, 0x85ebca6b)) >>> 0;
    slot = (slot ^ (slot >>> 15)) & mask;
    for (;;) {
      const found = this.table[slot];
      if (found === 0) break;
      if (this.parent[found - 1] === parent && this.name[found - 1] === name) return found - 1;
      slot = (slot + 1) & mask;
    }
    const id = this.size++;
    if (id === this.parent.length) this.grow();
    this.parent[id] = parent;
    this.name[id] = name;
    if (this.size * 2 > this.table.length) this.rehash();
    else this.table[slot] = id + 1;
    return id;
  }

  /** Adds to what ends at a node. */
  add(node: number, column: 0 | 1, value: number): void {
    this.own[column][node] += value;
  }

  /** What a node is called. */
  nameOf(node: number): number {
    return this.name[node];
  }

  /** The node above; that of the root is the root. */
  parentOf(node: number): number {
    return this.parent[node];
  }

  /** Nodes so far. */
  get length(): number {
    return this.size;
  }

  private grow(): void {
    const length = this.parent.length * 2;
    const copy = <T extends Uint32Array | Float64Array>(from: T, to: T): T => {
      to.set(from as never);
      return to;
    };
    this.parent = copy(this.parent, new Uint32Array(length));
    this.name = copy(this.name, new Uint32Array(length));
    this.own = [copy(this.own[0], new Float64Array(length)), copy(this.own[1], new Float64Array(length))];
  }

  private rehash(): void {
    const table = new Uint32Array(this.table.length * 2);
    const mask = table.length - 1;
    for (let id = 1; id < this.size; id++) {
      let slot = (Math.imul(this.parent[id], 0x9e3779b1) ^ Math.imul(this.name[id] + 1, 0x85ebca6b)) >>> 0;
      slot = (slot ^ (slot >>> 15)) & mask;
      while (table[slot] !== 0) slot = (slot + 1) & mask;
      table[slot] = id + 1;
    }
    this.table = table;
  }

  /** The tree with its sums. */
  finish(): Tree {
    const { size } = this;
    const own: [Float64Array, Float64Array] = [this.own[0].slice(0, size), this.own[1].slice(0, size)];
    const total: [Float64Array, Float64Array] = [own[0].slice(), own[1].slice()];
    const parent = this.parent.slice(0, size);
    for (let id = size - 1; id > 0; id--) {
      total[0][parent[id]] += total[0][id];
      total[1][parent[id]] += total[1][id];
    }
    return { names: this.names, parent, name: this.name.slice(0, size), own, total };
  }
}

/** Not reached yet, in a table of nodes by stack. */
const NONE = 0xffffffff;

/** Puts a profile's samples into a column of a tree. */
function addProfile(builder: TreeBuilder, names: Names, profile: Profile, column: 0 | 1, options: Options): void {
  const nameOf = names.ofFrames(profile);
  const unknown = names.intern('[unknown]', '', KIND.synthetic);
  const values = options.measure === 'count' ? profile.count : profile.weight;
  const holds = heldStacks(profile, names, nameOf, options.transforms);
  const paths = new Paths(builder, names, profile, nameOf, frameChanges(names, options.transforms), options);
  const rootOf = rootOfSamples(builder, names, profile, options.root);
  const roots = profile.stack.map((_, sample) => rootOf(sample));
  // Root by root, so that one table from stack to node serves all and each stack is walked once a
  // root.
  const order = roots.map((_, sample) => sample).sort((left, right) => roots[left] - roots[right]);
  let current = NONE;
  for (const sample of order) {
    const stack = profile.stack[sample];
    if (holds && !holds[stack]) continue;
    if (options.sampled && profile.end[sample] === END_LOST) continue;
    if (roots[sample] !== current) {
      current = roots[sample];
      paths.startAt(current);
    }
    const node = stack === 0 ? builder.child(current, unknown) : paths.nodeOf(stack);
    builder.add(node, column, values[sample]);
  }
}

/** Nodes by stack, under one root at a time. */
class Paths {
  private readonly nodes: Uint32Array;
  /** By stack: how many of its frames from the root on only start the program; 0: others follow. */
  private readonly starts: Uint32Array | undefined;
  private readonly isStart: Uint8Array | undefined;
  private readonly path: number[] = [];

  constructor(
    private readonly builder: TreeBuilder,
    private readonly names: Names,
    private readonly profile: Profile,
    private readonly nameOf: Uint32Array,
    private readonly changes: FrameChanges,
    private readonly options: Options,
  ) {
    this.nodes = new Uint32Array(profile.parent.length);
    if (!options.fold) return;
    this.isStart = Uint8Array.from(names.text, (text, id) => (isStart(text, names.kind[id]) ? 1 : 0));
    // A stack stands after its caller's.
    this.starts = new Uint32Array(profile.parent.length);
    for (let stack = 1; stack < this.starts.length; stack++) {
      const above = profile.parent[stack];
      if (this.isStart[nameOf[profile.frame[stack]]] && (above === 0 || this.starts[above] > 0))
        this.starts[stack] = this.starts[above] + 1;
    }
  }

  /** Stacks that are asked for next stand under this node. */
  startAt(root: number): void {
    this.nodes.fill(NONE);
    this.nodes[0] = root;
  }

  /** The node of a stack, its callers first. */
  nodeOf(stack: number): number {
    const { nodes, path, profile } = this;
    path.length = 0;
    let at = stack;
    while (nodes[at] === NONE) {
      path.push(at);
      at = profile.parent[at];
    }
    for (let step = path.length - 1; step >= 0; step--) nodes[path[step]] = this.next(path[step]);
    return nodes[stack];
  }

  /** The node of a stack whose caller has one. */
  private next(stack: number): number {
    const { profile, starts, changes } = this;
    const above = profile.parent[stack];
    // Before a frame of the program's own the run is complete; a run's last frame stays a frame,
    // because time was spent in it.
    const under = starts && starts[above] > 1 ? this.folded(above) : this.nodes[above];
    const name = this.nameOf[profile.frame[stack]];
    const shown = changes.shown ? changes.shown[name] : name;
    return shown === GONE ? under : this.place(under, shown);
  }

  private place(under: number, name: number): number {
    const { builder, changes } = this;
    if ((this.options.collapse || changes.run?.[name]) && builder.nameOf(under) === name) return under;
    if (changes.recursion?.[name]) {
      for (let at = under; at !== 0; at = builder.parentOf(at)) if (builder.nameOf(at) === name) return at;
    }
    return builder.child(under, name);
  }

  /** The one frame that stands for those of a run up to this stack. */
  private folded(stack: number): number {
    const { profile, names, builder } = this;
    const of: number[] = [];
    for (let at = stack; at !== 0; at = profile.parent[at]) of.push(this.nameOf[profile.frame[at]]);
    const last = of[0];
    const module = names.module[last];
    const text = `${module === '' ? '' : `${baseName(module)} · `}${of.length} start frames`;
    const id = names.intern(text, module, KIND_START);
    if (names.spelled[id] === '')
      for (const one of of.reverse()) names.spell(id, `${names.kind[one]} ${names.module[one]} ${names.text[one]}`);
    return builder.child(this.nodes[0], id);
  }
}

/** Stacks that transforms leave; undefined: all of them. */
function heldStacks(
  profile: Profile,
  names: Names,
  nameOf: Uint32Array,
  transforms: readonly Transform[],
): Uint8Array | undefined {
  let held: Uint8Array | undefined;
  for (const { op, name } of transforms) {
    if (op !== 'focus' && op !== 'exclude') continue;
    const has = stacksWith(profile, nameOf, namesWithText(names, name));
    held ??= new Uint8Array(has.length).fill(1);
    for (let stack = 0; stack < has.length; stack++) if ((has[stack] === 1) !== (op === 'focus')) held[stack] = 0;
  }
  return held;
}

/** Stacks that have one of the names anywhere. */
function stacksWith(profile: Profile, nameOf: Uint32Array, wanted: Set<number>): Uint8Array {
  const holds = new Uint8Array(profile.parent.length);
  for (let stack = 1; stack < holds.length; stack++) {
    holds[stack] = holds[profile.parent[stack]] || wanted.has(nameOf[profile.frame[stack]]) ? 1 : 0;
  }
  return holds;
}

/** The node that a sample's stack starts at: the root, its label, and the mark of a cut stack. */
function rootOfSamples(
  builder: TreeBuilder,
  names: Names,
  profile: Profile,
  label: string,
): (sample: number) => number {
  const truncated = names.intern(TRUNCATED, '', KIND.synthetic);
  const ofSet = new Map<number, number>();
  const labelNode = (set: number): number => {
    if (label === '') return 0;
    const known = ofSet.get(set);
    if (known !== undefined) return known;
    const value = labelOf(profile, set, label);
    const node = builder.child(0, names.intern(value === '' ? `[no ${label}]` : value, '', KIND_LABEL));
    ofSet.set(set, node);
    return node;
  };
  return (sample) => {
    const node = labelNode(profile.labels[sample]);
    return isTruncated(profile.end[sample]) ? builder.child(node, truncated) : node;
  };
}

/** Kind of nodes that are values of a label. */
export const KIND_LABEL = 254;

/** True for nodes that are no functions: values of a label, folded start frames. */
export const isGroup = (kind: number) => kind === KIND_LABEL || kind === KIND_START;

function labelOf(profile: Profile, set: number, label: string): string {
  const pairs = profile.labelSets[set];
  for (let at = 0; at < pairs.length; at += 2) {
    if (profile.strings[pairs[at]] === label) return profile.strings[pairs[at + 1]];
  }
  return '';
}

/** The tree of one profile. */
export function buildTree(names: Names, profile: Profile, options: Options): Tree {
  const builder = new TreeBuilder(names);
  addProfile(builder, names, profile, 0, options);
  return builder.finish();
}

/**
 * The tree of two profiles: column 0 is before, column 1 is after. It shows sampled time only: lost
 * samples would make the widest frame, and nobody knows what they were.
 */
export function buildDiffTree(
  names: Names,
  before: Profile,
  after: Profile,
  options: Options,
  rates?: readonly [number, number],
): Tree {
  const builder = new TreeBuilder(names);
  addProfile(builder, names, before, 0, { ...options, sampled: true });
  addProfile(builder, names, after, 1, { ...options, sampled: true });
  return { ...builder.finish(), rates };
}

/**
 * Most nodes of a tree from the leaf up: each stack has a path of its own there. Beyond it callers
 * of the lightest stacks are left out.
 */
export const BOTTOM_UP_MAX = 400_000;

/** The tree from the leaf up: under each function where time was spent stand its callers. */
export function bottomUp(tree: Tree, most = BOTTOM_UP_MAX): Tree {
  const builder = new TreeBuilder(tree.names);
  const { own, parent, name } = tree;
  const ends: number[] = [];
  for (let node = 1; node < parent.length; node++) if (own[0][node] > 0 || own[1][node] > 0) ends.push(node);
  ends.sort((left, right) => own[0][right] + own[1][right] - own[0][left] - own[1][left]);
  for (const end of ends) {
    let to = 0;
    for (let node = end; node !== 0; node = parent[node]) {
      if (to !== 0 && builder.length >= most) break;
      to = builder.child(to, name[node]);
    }
    for (const column of [0, 1] as const) builder.add(to, column, own[column][end]);
  }
  // What ends at the root itself is in no function.
  for (const column of [0, 1] as const) builder.add(0, column, own[column][0]);
  return { ...builder.finish(), rates: tree.rates };
}

/** Values of one function. */
export interface Row {
  name: number;
  own: number;
  total: number;
  /** Who ended most of the waits in the function, and how much that is. */
  waker?: { name: number; value: number };
}

/**
 * Functions by name id with their own and total values, of all or under one node (and in it);
 * recursion counts once.
 */
export function functionRows(tree: Tree, column: 0 | 1 = 0, top = 0): Row[] {
  const { names, parent, name } = tree;
  const own = new Float64Array(names.length);
  const total = new Float64Array(names.length);
  const outermost = outermostNodes(tree, top);
  const inside = new Uint8Array(parent.length);
  inside[top] = 1;
  const waits = waitsOf(tree);
  const wakers = new Map<number, Map<number, number>>();
  for (let node = Math.max(1, top); node < parent.length; node++) {
    if (node !== top && !inside[parent[node]]) continue;
    inside[node] = 1;
    const value = tree.own[column][node];
    const wait = waits?.[node] ?? 0;
    if (wait === 0) own[name[node]] += value;
    else if (value > 0) {
      // What its waker ran is no place where time went.
      const at = blockedIn(tree, wait);
      own[name[at]] += value;
      const of = wakers.get(name[at]) ?? new Map<number, number>();
      wakers.set(name[at], of);
      of.set(name[wait], (of.get(name[wait]) ?? 0) + value);
    }
    if (outermost[node]) total[name[node]] += tree.total[column][node];
  }
  const rows: Row[] = [];
  for (let id = 1; id < names.length; id++) {
    if (total[id] > 0 && !isGroup(names.kind[id]))
      rows.push({ name: id, own: own[id], total: total[id], ...heaviest(wakers.get(id)) });
  }
  return rows;
}

function heaviest(of: Map<number, number> | undefined): Pick<Row, 'waker'> {
  let waker: Row['waker'];
  for (const [name, value] of of ?? []) if (!waker || value > waker.value) waker = { name, value };
  return waker ? { waker } : {};
}

/**
 * By node: the frame at which its stack goes on beyond a thread that waits, or 0; undefined: nobody
 * waits.
 */
function waitsOf(tree: Tree): Uint32Array | undefined {
  const { names, parent, name } = tree;
  const marks = names.text.map((text, id) => names.kind[id] === KIND.synthetic && isWaker(text));
  if (!marks.includes(true)) return undefined;
  const waits = new Uint32Array(parent.length);
  for (let node = 1; node < parent.length; node++) waits[node] = waits[parent[node]] || (marks[name[node]] ? node : 0);
  return waits;
}

/**
 * The frame in which a thread waits, by the frame of its waker: the last of its program, since
 * within the kernel nearly all waits end in the scheduler. A thread of the kernel has none.
 */
function blockedIn(tree: Tree, wait: number): number {
  const { names, parent, name } = tree;
  let at = parent[wait];
  while (at !== 0 && names.kind[name[at]] === KIND.synthetic && isWaitState(names.text[name[at]])) at = parent[at];
  let user = at;
  while (names.kind[name[user]] === KIND.kernel) user = parent[user];
  if (user !== 0 && !isGroup(names.kind[name[user]]) && names.kind[name[user]] !== KIND.synthetic) return user;
  return at === 0 ? wait : at;
}

/** 1 for nodes without a node of the same name above them, up to `top`. Others than its are 1. */
export function outermostNodes(tree: Tree, top = 0): Uint8Array {
  const { parent, name } = tree;
  const size = parent.length;
  const outermost = new Uint8Array(size).fill(1);
  // Depth first over the tree with a count of open nodes by name: linear, where walking up from
  // each node would take as long as stacks are deep.
  const first = new Uint32Array(size).fill(NONE);
  const next = new Uint32Array(size).fill(NONE);
  for (let node = size - 1; node > 0; node--) {
    next[node] = first[parent[node]];
    first[parent[node]] = node;
  }
  const open = new Uint32Array(tree.names.length);
  let node = top;
  for (;;) {
    outermost[node] = open[name[node]] === 0 ? 1 : 0;
    open[name[node]]++;
    if (first[node] !== NONE) {
      node = first[node];
      continue;
    }
    for (;;) {
      open[name[node]]--;
      if (node === top) return outermost;
      if (next[node] !== NONE) {
        node = next[node];
        break;
      }
      node = parent[node];
    }
  }
}
