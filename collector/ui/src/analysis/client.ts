// The page's side of the worker that holds profiles: requests and their answers, one worker for the
// page.

import type { FleetCaptureInfo, FleetCaptureRequest } from '../gen/fleetprof/collector/v1/control_pb';
import type { Layout } from '../flame/layout';
import type { LineRow } from '../flame/lines';
import type { NameTable } from '../flame/names';
import type { Neighbours } from '../flame/sandwich';
import { NOT_HELD, type Trouble, TroubleError } from '../query/errors';
import type { Selection } from '../query/selection';
import { pageBase } from '../query/base';
import { BUILD } from './build';
import { unpackNames } from './names';
import type {
  CaptureNews,
  Change,
  FromWorker,
  FunctionColumns,
  GraphRequest,
  LoadedProfile,
  Operation,
  Operations,
  PackedShape,
  Request,
  ToWorker,
} from './protocol';

/** A graph as it is drawn. */
export interface Shape {
  layout: Layout;
  change: Change | undefined;
}

/** The graph of all stacks, and the functions in it. */
export interface Graph extends Shape {
  /** What it is of, which may be what was asked for before. */
  request: GraphRequest;
  unit: string;
  functions: FunctionColumns | undefined;
}

/** Callers and callees of a function, and what it has itself and in all, by column. */
export interface SandwichGraphs {
  callers: Shape;
  callees: Shape;
  own: [number, number];
  total: [number, number];
}

/** The worker, or what stands for it in tests. */
export interface Port {
  onmessage: ((event: { data: FromWorker }) => void) | null;
  onerror: ((event: unknown) => void) | null;
  onmessageerror: ((event: unknown) => void) | null;
  postMessage(message: ToWorker): void;
  terminate(): void;
}

interface Pending {
  operation: Operation;
  resolve: (answer: never) => void;
  reject: (error: unknown) => void;
  /** Profiles that it is about. */
  of: readonly number[];
  told: { progress?: ((value: number) => void) | undefined; news?: ((news: CaptureNews) => void) | undefined };
  /** Nobody waits for it any more. */
  left: boolean;
}

const FAILED: Trouble = {
  title: 'The page cannot process profiles',
  detail: 'the worker failed to start, or ended',
  advice: 'Reload the page. If the error stays, the profile may be too large for this browser: narrow the selection.',
  retry: true,
  code: 'worker',
};

/**
 * Least time between two times that profiles are loaded again because the worker ended. Unit: ms.
 * A profile that is too large for the browser ends the next worker too: then it waits for a click.
 */
const RELOAD_MS = 300_000;

/**
 * Time between two pings while something is asked for, and pings without a word of the worker from
 * which on it hangs: 20 s, where the longest stage of the largest profile takes 2. Unit: ms. Pings
 * are counted, not time: a browser that slept has sent none.
 */
export const PING_MS = 2000;
export const PINGS_UNANSWERED = 10;

/** What answers with a profile that the worker holds from then on. */
const LOADS: ReadonlySet<Operation> = new Set(['load', 'kept', 'pin', 'evidence']);

const givenUp = () => new DOMException('not wanted any more', 'AbortError');

export class Analysis {
  private port: Port | undefined;
  private readonly pending = new Map<number, Pending>();
  private next = 1;
  /** Profiles that the page knows and has not released, and that are not being loaded again. */
  private readonly known = new Set<number>();
  /** Workers that ended. */
  private ended = 0;
  private reloadedMs = Number.NEGATIVE_INFINITY;
  private readonly reloadListeners = new Set<() => void>();
  private readonly lossListeners = new Set<() => void>();
  private readonly silenceListeners = new Set<() => void>();
  private pings: ReturnType<typeof setInterval> | undefined;
  private unanswered = 0;
  /** The worker says nothing, while something is asked for. */
  isSilent = false;
  /** How many times all profiles were to be loaded again. */
  reloads = 0;

  constructor(
    private readonly start: () => Port,
    private readonly baseUrl: () => string,
    private readonly build = BUILD,
  ) {}

  /**
   * Starts the worker if it does not run. The page does so as it starts, so that the worker is read
   * while the page is drawn. Undefined: it cannot be started, which what is asked for is told.
   */
  open(): Port | undefined {
    if (this.port) return this.port;
    try {
      const port = this.start();
      port.onmessage = ({ data }) => this.take(data);
      port.onerror = () => this.fail();
      // An answer that cannot be read would be waited for without end.
      port.onmessageerror = () => this.fail();
      this.port = port;
      port.postMessage({ build: this.build });
    } catch {
      this.fail();
    }
    return this.port;
  }

  /** Loads one merged profile. `progress` is told how many stacks have come. To be released. */
  load(
    selection: Selection,
    groupBy: string,
    signal: AbortSignal,
    progress?: (stacks: number) => void,
  ): Promise<LoadedProfile> {
    return this.call('load', { baseUrl: this.baseUrl(), selection, groupBy }, signal, { progress });
  }

  /** Loads what a pin of this number kept, with its times. To be released. */
  pin(
    pin: string,
    captured: boolean,
    signal: AbortSignal,
    progress?: (stacks: number) => void,
  ): Promise<LoadedProfile> {
    return this.call('pin', { baseUrl: this.baseUrl(), pin, captured }, signal, { progress });
  }

  /** Loads a profile of a piece of evidence; `baseline`: its second. To be released. */
  evidence(
    evidence: string,
    baseline: boolean,
    signal: AbortSignal,
    progress?: (stacks: number) => void,
  ): Promise<LoadedProfile> {
    return this.call('evidence', { baseUrl: this.baseUrl(), evidence, baseline }, signal, { progress });
  }

  /** Calls `listener` when profiles are to be loaded again. Returns how to end that. */
  onReload(listener: () => void): () => void {
    this.reloadListeners.add(listener);
    return () => this.reloadListeners.delete(listener);
  }

  /** Calls `listener` when the worker ended, and with it all profiles that it held. */
  onLoss(listener: () => void): () => void {
    this.lossListeners.add(listener);
    return () => this.lossListeners.delete(listener);
  }

  /** Calls `listener` when the worker hangs, and when it does no more. */
  onSilence(listener: () => void): () => void {
    this.silenceListeners.add(listener);
    return () => this.silenceListeners.delete(listener);
  }

  /** Ends a worker that hangs, and starts another: what it held is loaded again. */
  restart(): void {
    this.reloadedMs = Number.NEGATIVE_INFINITY;
    this.fail();
  }

  /** Forgets a profile. */
  release(profile: LoadedProfile): void {
    this.known.delete(profile.id);
    this.port?.postMessage({ release: profile.id });
  }

  async graph(request: GraphRequest, signal: AbortSignal): Promise<Graph> {
    const { names, functions, unit, ...shape } = await this.call('graph', request, signal);
    return { request, unit, functions, ...shapeOf(shape, unpackNames(names), request.diff?.rates) };
  }

  async sandwich(graph: Graph, fn: string, signal: AbortSignal): Promise<SandwichGraphs> {
    const { names } = graph.layout.tree;
    const { callers, callees, own, total } = await this.call('sandwich', { request: graph.request, fn }, signal);
    return { callers: shapeOf(callers, names), callees: shapeOf(callees, names), own, total };
  }

  functions(request: GraphRequest, node: number, signal: AbortSignal): Promise<FunctionColumns> {
    return this.call('functions', { request, node }, signal);
  }

  around(request: GraphRequest, fn: string, signal: AbortSignal): Promise<Neighbours> {
    return this.call('around', { request, fn }, signal);
  }

  lines(args: Operations['lines']['args'], signal: AbortSignal): Promise<LineRow[]> {
    return this.call('lines', args, signal);
  }

  sums(args: Operations['sums']['args'], signal: AbortSignal): Promise<Operations['sums']['answer']> {
    return this.call('sums', args, signal);
  }

  changes(args: Operations['changes']['args'], signal: AbortSignal): Promise<Operations['changes']['answer']> {
    return this.call('changes', args, signal);
  }

  grid(id: number, signal: AbortSignal): Promise<Operations['grid']['answer']> {
    return this.call('grid', { id }, signal);
  }

  span(args: Operations['span']['args'], signal: AbortSignal): Promise<Operations['span']['answer']> {
    return this.call('span', args, signal);
  }

  file(args: Operations['file']['args'], signal: AbortSignal): Promise<Blob> {
    return this.call('file', args, signal);
  }

  /** A profile of a capture that the collector keeps, and what came of that. To be released. */
  async kept(
    capture: bigint,
    past: boolean,
    signal: AbortSignal,
    progress?: (stacks: number) => void,
  ): Promise<{ info: FleetCaptureInfo | undefined; profile: LoadedProfile }> {
    let info: FleetCaptureInfo | undefined;
    const news = (one: CaptureNews) => {
      if (one.case === 'result') info = one.value;
    };
    const profile = await this.call('kept', { baseUrl: this.baseUrl(), capture, past }, signal, { progress, news });
    return { info, profile };
  }

  /** A capture of the fleet, until it has ended. Its profiles are to be released. */
  async *capture(
    request: FleetCaptureRequest,
    { signal, timeoutMs }: { signal: AbortSignal; timeoutMs: number },
  ): AsyncGenerator<CaptureNews> {
    const waiting: CaptureNews[] = [];
    let wake = () => {};
    const news = (one: CaptureNews) => {
      waiting.push(one);
      wake();
    };
    let ended = false;
    const end = this.call('capture', { baseUrl: this.baseUrl(), request, timeoutMs }, signal, { news }).finally(() => {
      ended = true;
      wake();
    });
    // It is awaited below, after the earlier messages.
    end.catch(() => undefined);
    const worker = this.ended;
    for (;;) {
      // Profiles of a worker that ended are not there any more.
      if (worker !== this.ended) waiting.length = 0;
      const one = waiting.shift();
      if (one) yield one;
      else if (ended) break;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    await end;
  }

  private call<O extends Operation>(
    operation: O,
    args: Operations[O]['args'],
    signal: AbortSignal,
    told: Pending['told'] = {},
  ): Promise<Operations[O]['answer']> {
    return new Promise((resolve, reject) => {
      if (signal.aborted) return reject(givenUp());
      const number = this.next++;
      const pending: Pending = { operation, resolve, reject, of: profilesOf(args), told, left: false };
      this.pending.set(number, pending);
      signal.addEventListener('abort', () => this.leave(number, pending), { once: true });
      this.post({ number, operation, args } as Request);
      this.watch();
    });
  }

  private leave(number: number, pending: Pending): void {
    if (!this.pending.has(number)) return;
    this.post({ cancel: number });
    // What a capture says of its end is still to be heard.
    if (pending.operation === 'capture') return;
    pending.left = true;
    pending.reject(givenUp());
  }

  private post(message: ToWorker): void {
    this.open()?.postMessage(message);
  }

  /** Pings the worker as long as it owes an answer. */
  private watch(): void {
    this.pings ??= setInterval(() => {
      if (this.pending.size === 0) return this.heard(true);
      this.unanswered++;
      this.setSilent(this.unanswered > PINGS_UNANSWERED);
      this.port?.postMessage({ ping: this.unanswered });
    }, PING_MS);
  }

  /** `ended`: nothing is asked for any more. */
  private heard(ended = false): void {
    this.unanswered = 0;
    this.setSilent(false);
    if (!ended) return;
    clearInterval(this.pings);
    this.pings = undefined;
  }

  private setSilent(is: boolean): void {
    if (this.isSilent === is) return;
    this.isSilent = is;
    for (const listener of [...this.silenceListeners]) listener();
  }

  private take(message: FromWorker): void {
    this.heard();
    if ('pong' in message) return;
    const pending = this.pending.get(message.number);
    if (!pending) return;
    if ('progress' in message) {
      if (!pending.left) pending.told.progress?.(message.progress);
    } else if ('news' in message) pending.told.news?.(message.news);
    else {
      this.pending.delete(message.number);
      if ('trouble' in message) {
        if (message.trouble?.code === NOT_HELD && !pending.left && pending.of.some((id) => this.known.has(id)))
          this.reload();
        pending.reject(message.trouble ? new TroubleError(message.trouble) : givenUp());
      } else if (LOADS.has(pending.operation)) {
        const profile = message.answer as LoadedProfile;
        if (pending.left) this.release(profile);
        else this.known.add(profile.id);
        pending.resolve(profile as never);
      } else pending.resolve(message.answer as never);
    }
  }

  /** All that the worker held is gone; the next request starts another. */
  private fail(): void {
    if (this.port) {
      this.port.onmessage = null;
      this.port.terminate();
    }
    this.port = undefined;
    this.heard(true);
    this.ended++;
    const pending = [...this.pending.values()];
    this.pending.clear();
    for (const listener of [...this.lossListeners]) listener();
    for (const one of pending) one.reject(new TroubleError(FAILED));
    const now = performance.now();
    if (now - this.reloadedMs < RELOAD_MS) return;
    this.reloadedMs = now;
    this.reload();
  }

  private reload(): void {
    this.known.clear();
    this.reloads++;
    for (const listener of [...this.reloadListeners]) listener();
  }
}

/** Numbers of the profiles that a request is about. */
function profilesOf(args: Operations[Operation]['args']): number[] {
  if ('request' in args) return 'of' in args.request ? profilesOf(args.request) : [];
  if ('id' in args) return [args.id];
  if (!('of' in args)) return [];
  if ('before' in args) return [args.of.id, args.before.id];
  return 'diff' in args && args.diff ? [args.of.id, args.diff.before.id] : [args.of.id];
}

function shapeOf(packed: PackedShape, names: NameTable, rates?: readonly [number, number]): Shape {
  const { layout, own, total, change } = packed;
  return { layout: { ...layout, tree: { names, own, total, rates } }, change };
}

let startPort: () => Port = () => {
  throw new Error('nobody said where profiles are worked on');
};

/** Says how the worker is started, or what stands for it: before anything is asked for. */
export function analyseWith(start: () => Port): void {
  startPort = start;
}

/** That of the page. */
export const analysis = new Analysis(() => startPort(), pageBase);
