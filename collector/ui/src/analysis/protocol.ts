// What the page asks of the worker that holds profiles, and what comes back.
//
// A profile stays in the worker, under a number; the page has what it shows of it: facts, and
// columns that are transferred. A request that is not wanted any more is cancelled by its number.

import type {
  FleetCaptureInfo,
  FleetCaptureRequest,
  FleetPlan,
  HostProgress,
} from '../gen/fleetprof/collector/v1/control_pb';
import type { DataQuality } from '../gen/fleetprof/collector/v1/query_pb';
import type { Compare, Width } from '../flame/diff';
import type { Layout } from '../flame/layout';
import type { LineRow } from '../flame/lines';
import type { Neighbours } from '../flame/sandwich';
import type { Options } from '../flame/tree';
import type { Grid } from '../heat/grid';
import type { Trouble } from '../query/errors';
import type { About } from '../query/profile';
import type { Selection } from '../query/selection';
import type { Covered, Pick } from '../query/timestamps';
import type { Changes } from '../tables/changes';
import type { Sum } from '../tables/sums';
import type { PackedNames } from './names';

/** What the page knows of a profile that the worker holds. */
export interface LoadedProfile {
  /** By which the worker knows it, until it is released. */
  id: number;
  unit: string;
  quality: DataQuality | undefined;
  about: About;
  /** Rows: stack × labels × end. */
  rows: number;
  /** Samples that were not lost. */
  taken: number;
  /** Names of the labels that it has. */
  labels: string[];
  hasLines: boolean;
  /** Undefined: no times were kept. */
  timestamps: (Covered & { count: number; dropped: number; columnNs?: number | undefined }) | undefined;
}

/** A profile, or a part of its time. */
export interface ProfileSource {
  id: number;
  pick?: Pick | undefined;
}

/** What graph is made of which profile. */
export interface GraphRequest {
  of: ProfileSource;
  options: Options;
  /** Two profiles are compared: `of` is after. */
  diff?: {
    before: ProfileSource;
    /** What the roots are in cores, or events a second; undefined: not known. */
    rates: readonly [number, number] | undefined;
    compare: Compare;
    width: Width;
    /** What differs by chance alone is not coloured. */
    chance?: boolean;
  };
}

/** A layout that is sent: names are sent once for all of a tree. */
export interface PackedShape {
  layout: Omit<Layout, 'tree'>;
  /** By tree node. The second columns are empty when it is one profile, not a comparison. */
  own: [Float64Array, Float64Array];
  total: [Float64Array, Float64Array];
  change: Change | undefined;
}

/** What a comparison shows of each layout node: its step on the colour scale; 1 if it is gone. */
export interface Change {
  steps: Int8Array;
  vanished: Uint8Array;
}

/** Rows of the table of functions in columns, the largest total first. */
export interface FunctionColumns {
  name: Uint32Array;
  own: Float64Array;
  total: Float64Array;
  /**
   * Who ended most of the waits in each function, and how much of them; name 0 is nobody. Both
   * columns are empty when nobody waits.
   */
  waker: Uint32Array;
  woken: Float64Array;
}

/** The graph of all stacks, and the functions in it. */
export interface PackedGraph extends PackedShape {
  unit: string;
  names: PackedNames;
  /** Undefined: two profiles are compared, whose table is the collector's. */
  functions: FunctionColumns | undefined;
}

/** Callers and callees of a function, and what it has itself and in all. */
export interface PackedSandwich {
  callers: PackedShape;
  callees: PackedShape;
  own: [number, number];
  total: [number, number];
}

/** What a capture has told. */
export type CaptureNews =
  | { case: 'plan'; value: FleetPlan }
  | { case: 'host'; value: HostProgress }
  | { case: 'result'; value: FleetCaptureInfo }
  /** Stacks of the profile so far. */
  | { case: 'stacks'; value: number }
  | { case: 'profile'; value: LoadedProfile }
  /** The profile of the time before, from the flight recorders. */
  | { case: 'past'; value: LoadedProfile };

/** Kinds of files that are written from a profile of this page. */
export type FileKind = 'json' | 'folded';

/** What can be asked for: arguments and answer. */
export interface Operations {
  load: { args: { baseUrl: string; selection: Selection; groupBy: string }; answer: LoadedProfile };
  pin: { args: { baseUrl: string; pin: string; captured: boolean }; answer: LoadedProfile };
  /** A profile that an incident keeps; `baseline`: the second. */
  evidence: { args: { baseUrl: string; evidence: string; baseline: boolean }; answer: LoadedProfile };
  capture: { args: { baseUrl: string; request: FleetCaptureRequest; timeoutMs: number }; answer: undefined };
  /** A capture that the collector keeps; what came of it is told as news. */
  kept: { args: { baseUrl: string; capture: bigint; past: boolean }; answer: LoadedProfile };
  graph: { args: GraphRequest; answer: PackedGraph };
  sandwich: { args: { request: GraphRequest; fn: string }; answer: PackedSandwich };
  /** Functions of the graph under one node of its tree, which is not from the leaf up. */
  functions: { args: { request: GraphRequest; node: number }; answer: FunctionColumns };
  /** Where one function is called from and what it calls. */
  around: { args: { request: GraphRequest; fn: string }; answer: Neighbours };
  lines: { args: { of: ProfileSource; fn: string; samples: boolean }; answer: LineRow[] };
  changes: { args: { of: ProfileSource; before: ProfileSource; samples: boolean }; answer: Changes };
  /** `fn`: only of stacks with this function. */
  sums: {
    args: { of: ProfileSource; by: string; samples: boolean; fn?: string };
    answer: { rows: Sum[]; whole: number };
  };
  grid: { args: { id: number }; answer: { grid: Grid; ms: number } };
  span: { args: { id: number; pick: Pick }; answer: { count: number; weight: number } };
  file: { args: { of: ProfileSource; kind: FileKind; samples: boolean }; answer: Blob };
}

export type Operation = keyof Operations;

export interface Request<O extends Operation = Operation> {
  number: number;
  operation: O;
  args: Operations[O]['args'];
}

/** From the page. Its build comes first, and is that of the worker, or nothing is answered. */
export type ToWorker =
  | { build: string }
  | Request
  | { cancel: number }
  | { release: number }
  /** Is answered at once, unless the worker hangs. */
  | { ping: number };

/** From the worker; `number` is that of the request. */
export type FromWorker =
  | { number: number; answer: unknown }
  | { number: number; pong: true }
  /** Undefined: it was cancelled. */
  | { number: number; trouble: Trouble | undefined }
  | { number: number; progress: number }
  | { number: number; news: CaptureNews };
