// The data of a file that stands alone, as `profile/src/formats/html` writes it: a tree of stacks
// in depth-first order as columns, its names, and where the file has them times by cell and the
// values of the profile before. It becomes profiles, which the viewer works on as on any other.

import { KIND_LABEL } from '../flame/tree';
import type { Profile } from '../query/profile';
import type { Timestamps } from '../query/timestamps';
import { baseOf } from '../query/unit';

/** As it stands in the file. Whole numbers beyond 2^53 lose their last digits here, not there. */
export interface FileData {
  unit: string;
  /** What the weight is. */
  weighs: string;
  /** 0: samples, 1: weight, as the file opens. */
  measure: number;
  icicle: boolean;
  kinds: string[];
  modules: string[];
  names: { function: string[]; module: number[]; kind: number[] };
  nodes: { depth: number[]; name: number[]; count: number[]; weight: number[] };
  times?: TimesData;
  before?: { scaled: boolean; count: number[]; weight: number[] };
  about: { start_unix_ns: number; duration_ns: number; event: string; period: number };
}

interface TimesData {
  start_ms: number;
  column_ms: number;
  rows: number;
  columns: number;
  /** First and last cell that is covered. Cells are counted column by column. */
  first: number;
  last: number;
  dropped: number;
  /** Cells since that of the entry before. */
  at: number[];
  node: number[];
  count: number[];
  weight: number[];
}

/** What a file shows. */
export interface Opened {
  profile: Profile;
  /** The other side of a comparison. */
  before: Profile | undefined;
  /** Samples have a weight. */
  weighs: boolean;
}

/** The word of kinds that stand for values of a label; the others are the viewer's own. */
const LABEL = 'label';

export function open(data: FileData): Opened {
  const { unit, by } = baseOf(data.unit);
  const stacks = stacksOf(data);
  const weighed = (weights: readonly number[]) => Float64Array.from(weights, (weight) => weight * by);
  const of = (counts: readonly number[], weights: readonly number[], timestamps?: Timestamps): Profile => {
    const [count, weight] = [Float64Array.from(counts), weighed(weights)];
    const rows = Uint32Array.from(count.keys()).filter((node) => count[node] > 0 || weight[node] > 0);
    return {
      ...stacks,
      labelSets: [new Uint32Array()],
      labels: new Uint32Array(rows.length),
      stack: rows,
      end: new Uint8Array(rows.length),
      count: Float64Array.from(rows, (node) => count[node]),
      weight: Float64Array.from(rows, (node) => weight[node]),
      unit,
      quality: undefined,
      about: {
        startUnixNs: whole(data.about.start_unix_ns),
        durationNs: whole(data.about.duration_ns),
        event: data.about.event,
        period: whole(data.about.period),
        sampling: undefined,
        coverage: undefined,
      },
      timestamps,
    };
  };
  const { nodes, before, times } = data;
  return {
    profile: of(nodes.count, nodes.weight, times && timestampsOf(times, nodes.depth.length, weighed(times.weight))),
    before: before && of(before.count, before.weight),
    weighs: nodes.weight.some((weight) => weight > 0) || (before?.weight.some((weight) => weight > 0) ?? false),
  };
}

const whole = (value: number) => BigInt(Math.round(value));

type Stacks = Pick<
  Profile,
  'strings' | 'kind' | 'unnamed' | 'fn' | 'systemName' | 'module' | 'file' | 'line' | 'parent' | 'frame'
>;

/** Tables of names and stacks: a name is a frame, a node is a stack. */
function stacksOf({ names, modules, nodes, kinds }: FileData): Stacks {
  const size = names.function.length;
  const label = kinds.indexOf(LABEL);
  const parent = new Uint32Array(nodes.depth.length);
  const open: number[] = [];
  nodes.depth.forEach((depth, node) => {
    if (depth > open.length || (depth === 0) !== (node === 0)) throw new Error(`node ${node} has no caller`);
    if (!(nodes.name[node] < size)) throw new Error(`node ${node} has no name`);
    open.length = depth;
    parent[node] = depth === 0 ? 0 : open[depth - 1];
    open.push(node);
  });
  return {
    // The first text is the empty one, which is what the root is called.
    strings: ['', ...names.function, ...modules],
    fn: Uint32Array.from(names.function.keys(), (id) => id + 1),
    module: Uint32Array.from(names.module, (module) => 1 + size + module),
    kind: Uint8Array.from(names.kind, (kind) => (kind === label ? KIND_LABEL : kind)),
    unnamed: new Uint8Array(size),
    systemName: new Uint32Array(size),
    file: new Uint32Array(size),
    line: new Uint32Array(size),
    parent,
    frame: Uint32Array.from(nodes.name),
  };
}

/** Entries of cells as samples in the middle of their cell. */
function timestampsOf(times: TimesData, nodes: number, weight: Float64Array): Timestamps {
  const columnNs = Math.round(times.column_ms * 1e6);
  const rowNs = columnNs / times.rows;
  const origin = BigInt(Math.round(times.start_ms)) * 1_000_000n;
  const end = times.last + 1;
  const lead = Math.round(times.first * rowNs);
  const durationNs = Math.round(end * rowNs) - lead;
  const at = new Float64Array(times.at.length);
  const row = new Uint32Array(at.length);
  const rowOf = new Uint32Array(nodes);
  const stacks: number[] = [];
  let cell = 0;
  times.at.forEach((after, entry) => {
    cell += after;
    at[entry] = (cell + 0.5) * rowNs - lead;
    const node = times.node[entry];
    if (rowOf[node] === 0) rowOf[node] = stacks.push(node);
    row[entry] = rowOf[node] - 1;
  });
  return {
    startUnixNs: origin + BigInt(lead),
    durationNs,
    dropped: times.dropped,
    at,
    weight,
    row,
    keys: {
      labels: new Uint32Array(stacks.length),
      stack: Uint32Array.from(stacks),
      end: new Uint8Array(stacks.length),
    },
    cells: {
      columnNs,
      rows: times.rows,
      columns: times.columns,
      first: times.first,
      end,
      count: Float64Array.from(times.count),
    },
  };
}
