// What the worker does with messages of the page: starts what they ask for, cancels, answers. It
// asks nobody: what a collector is asked for is in `collectorService.ts`.

import { type Trouble, TroubleError, troubleOf } from '../query/errors';
import { ProfileError } from '../query/columns';
import { BUILD } from './build';
import { Engine } from './engine';
import type { FromWorker, Operation, Operations, Request, ToWorker } from './protocol';
import { Turns } from './turns';

const OTHER_BUILD: Trouble = {
  title: 'The collector was upgraded after this page was loaded',
  detail: '',
  advice: 'Reload the page.',
  retry: false,
  code: 'other_build',
};

export class Service {
  protected readonly turns = new Turns();
  /** The page is of the same build. */
  private same = false;
  private readonly running = new Map<number, AbortController>();

  constructor(
    protected readonly send: (message: FromWorker, transfer: ArrayBuffer[]) => void,
    private readonly build = BUILD,
    readonly engine = new Engine(),
  ) {}

  take(message: ToWorker): void {
    if ('build' in message) this.same = message.build === this.build;
    else if ('cancel' in message) this.running.get(message.cancel)?.abort();
    else if ('release' in message) this.engine.release(message.release);
    else if ('ping' in message) this.send({ number: message.ping, pong: true }, []);
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
      this.send({ number, trouble: this.troubleOf(operation, error) }, []);
    } finally {
      // An answer of which a part cannot be read ends at the collector too, and on the hosts of a
      // capture.
      control.abort();
      this.running.delete(number);
    }
  }

  /** What went wrong with an operation, in words; undefined: it was given up on purpose. */
  protected troubleOf(_: Operation, error: unknown): Trouble | undefined {
    return troubleOf(error);
  }

  protected run(_: number, operation: Operation, args: unknown, signal: AbortSignal): Promise<unknown> {
    const { engine, turns } = this;
    const of = <O extends Operation>(_: O) => args as Operations[O]['args'];
    switch (operation) {
      case 'graph':
        return turns.run(signal, (stage) => engine.graph(of(operation), stage));
      case 'sandwich':
        return turns.run(signal, (stage) => engine.sandwich(of(operation), stage));
      case 'functions':
        return turns.run(signal, (stage) => engine.functions(of(operation), stage));
      case 'around':
        return turns.run(signal, (stage) => engine.around(of(operation), stage));
      case 'lines':
        return turns.run(signal, () => engine.lines(of(operation)));
      case 'changes':
        return turns.run(signal, () => engine.changes(of(operation)));
      case 'sums':
        return turns.run(signal, () => engine.sums(of(operation)));
      case 'grid':
        return turns.run(signal, () => engine.grid(of(operation)));
      case 'span':
        return turns.run(signal, () => engine.span(of(operation)));
      default:
        throw new ProfileError(`unknown operation ${JSON.stringify(operation)}`);
    }
  }
}

/** Buffers of the columns in an answer: they are transferred, not copied. */
export function buffersOf(answer: unknown, found = new Set<ArrayBuffer>()): ArrayBuffer[] {
  if (ArrayBuffer.isView(answer)) {
    if (answer.buffer instanceof ArrayBuffer) found.add(answer.buffer);
  } else if (Array.isArray(answer)) {
    // Pairs of columns have buffers; lists of rows have none.
    if (ArrayBuffer.isView(answer[0])) for (const one of answer) buffersOf(one, found);
  } else if (typeof answer === 'object' && answer !== null && !(answer instanceof Blob)) {
    for (const one of Object.values(answer)) buffersOf(one, found);
  }
  return [...found];
}
