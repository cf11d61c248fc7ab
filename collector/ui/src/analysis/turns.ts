// One computation at a time, in the order of arrival; between its stages messages are heard, so
// that one that is cancelled ends early, and one that waits never starts.

import { ProfileError } from '../query/columns';
import type { Stage } from './engine';

/**
 * Most computations that wait. Each part of a page has one at a time, so more is a mistake of the
 * page.
 */
export const WAITING_MAX = 64;

/** Lets the thread take what has come. */
const pause = () => new Promise<void>((resolve) => setTimeout(resolve));

export class Turns {
  private busy = false;
  private readonly waiting: (() => void)[] = [];

  /** Runs a job when it is its turn. Rejects when it is aborted before its last stage. */
  async run<T>(signal: AbortSignal, job: (stage: Stage) => Promise<T> | T): Promise<T> {
    signal.throwIfAborted();
    if (this.waiting.length >= WAITING_MAX) throw new ProfileError(`more than ${WAITING_MAX} computations at once`);
    if (this.busy) await this.turn(signal);
    this.busy = true;
    try {
      const stage = async () => {
        await pause();
        signal.throwIfAborted();
      };
      await stage();
      return await job(stage);
    } finally {
      const next = this.waiting.shift();
      if (next) next();
      else this.busy = false;
    }
  }

  /** Waits for its turn. One that is aborted leaves at once, and takes no place in the queue. */
  private turn(signal: AbortSignal): Promise<void> {
    return new Promise((resolve, reject) => {
      const start = () => {
        signal.removeEventListener('abort', leave);
        resolve();
      };
      const leave = () => {
        this.waiting.splice(this.waiting.indexOf(start), 1);
        reject(signal.reason);
      };
      signal.addEventListener('abort', leave, { once: true });
      this.waiting.push(start);
    });
  }
}
