// What the worker does with messages of the page: starts what they ask for, cancels, answers.

import { type CallOptions, createClient } from '@connectrpc/connect';
import { captureTrouble } from '../capture/trouble';
import {
  CaptureService,
  type FleetCaptureRequest,
  type FleetCaptureResponse,
} from '../gen/fleetprof/collector/v1/control_pb';
import { type ProfileResponse, QueryService } from '../gen/fleetprof/collector/v1/query_pb';
import { type Trouble, TroubleError, troubleOf } from '../query/errors';
import { Assembler, ProfileError } from '../query/profile';
import { messageOf } from '../query/selection';
import { transportTo } from '../query/transport';
import { BUILD } from './build';
import { captureNews } from './captureNews';
import { Engine } from './engine';
import type { FromWorker, LoadedProfile, Operation, Operations, Request, ToWorker } from './protocol';
import { Turns } from './turns';

/** What the collector is asked for here: what is large. */
export interface Collector {
  profile(request: object, options: CallOptions): AsyncIterable<ProfileResponse>;
  capture(request: FleetCaptureRequest, options: CallOptions): AsyncIterable<FleetCaptureResponse>;
}

/** The collector at an address. */
export function collectorAt(baseUrl: string): Collector {
  const transport = transportTo(baseUrl);
  const [queries, captures] = [createClient(QueryService, transport), createClient(CaptureService, transport)];
  return {
    profile: (request, options) => queries.profile(request, options),
    capture: (request, options) => captures.capture(request, options),
  };
}

const OTHER_BUILD: Trouble = {
  title: 'The collector was upgraded since this page was loaded',
  detail: '',
  advice: 'Load the page again.',
  retry: false,
  code: 'other_build',
};

export class Service {
  readonly engine = new Engine();
  private readonly turns = new Turns();
  /** The page is of the same build. */
  private same = false;
  private readonly running = new Map<number, AbortController>();

  constructor(
    private readonly send: (message: FromWorker, transfer: ArrayBuffer[]) => void,
    private readonly collector: (baseUrl: string) => Collector = collectorAt,
    private readonly build = BUILD,
  ) {}

  take(message: ToWorker): void {
    if ('build' in message) this.same = message.build === this.build;
    else if ('cancel' in message) this.running.get(message.cancel)?.abort();
    else if ('release' in message) this.engine.release(message.release);
    else void this.serve(message);
  }

  /** Answers a request. Never rejects. */
  private async serve({ number, operation, args }: Request): Promise<void> {
    const control = new AbortController();
    this.running.set(number, control);
    try {
      // A page before there were builds says none.
      if (!this.same) throw new TroubleError(OTHER_BUILD);
      const answer = await this.run(number, operation, args, control.signal);
      this.send({ number, answer }, buffersOf(answer));
    } catch (error) {
      this.send({ number, trouble: operation === 'capture' ? captureTrouble(error) : troubleOf(error) }, []);
    } finally {
      // An answer of which a part cannot be read ends at the collector too, and on the hosts of a
      // capture.
      control.abort();
      this.running.delete(number);
    }
  }

  private run(number: number, operation: Operation, args: unknown, signal: AbortSignal): Promise<unknown> {
    const { engine, turns } = this;
    const of = <O extends Operation>(_: O) => args as Operations[O]['args'];
    switch (operation) {
      case 'load':
        return this.load(number, of(operation), signal);
      case 'capture':
        return this.capture(number, of(operation), signal);
      case 'graph':
        return turns.run(signal, (stage) => engine.graph(of(operation), stage));
      case 'sandwich':
        return turns.run(signal, (stage) => engine.sandwich(of(operation), stage));
      case 'lines':
        return turns.run(signal, () => engine.lines(of(operation)));
      case 'sums':
        return turns.run(signal, () => engine.sums(of(operation)));
      case 'grid':
        return turns.run(signal, () => engine.grid(of(operation)));
      case 'span':
        return turns.run(signal, () => engine.span(of(operation)));
      case 'file':
        return turns.run(signal, () => engine.file(of(operation)));
      default:
        throw new ProfileError(`unknown operation ${JSON.stringify(operation satisfies never)}`);
    }
  }

  /** One merged profile, decoded as it comes. */
  private async load(
    number: number,
    { baseUrl, selection, groupBy }: Operations['load']['args'],
    signal: AbortSignal,
  ): Promise<LoadedProfile> {
    const assembler = new Assembler();
    const answers = this.collector(baseUrl).profile(
      { selection: messageOf(selection), groupBy: groupBy === '' ? [] : [groupBy] },
      { signal },
    );
    for await (const message of answers) {
      assembler.add(message);
      this.send({ number, progress: assembler.stacks }, []);
    }
    signal.throwIfAborted();
    return this.engine.add(assembler.finish());
  }

  private async capture(
    number: number,
    { baseUrl, request, timeoutMs }: Operations['capture']['args'],
    signal: AbortSignal,
  ): Promise<undefined> {
    const answers = this.collector(baseUrl).capture(request, { signal, timeoutMs });
    for await (const news of captureNews(answers, this.engine)) this.send({ number, news }, []);
  }
}

/** Buffers of the columns in an answer: they are transferred, not copied. */
export function buffersOf(answer: unknown, found = new Set<ArrayBuffer>()): ArrayBuffer[] {
  if (ArrayBuffer.isView(answer)) {
    if (answer.buffer instanceof ArrayBuffer) found.add(answer.buffer);
  } else if (Array.isArray(answer)) {
    // Of pairs of columns. Lists of rows have none.
    if (ArrayBuffer.isView(answer[0])) for (const one of answer) buffersOf(one, found);
  } else if (typeof answer === 'object' && answer !== null && !(answer instanceof Blob)) {
    for (const one of Object.values(answer)) buffersOf(one, found);
  }
  return [...found];
}
