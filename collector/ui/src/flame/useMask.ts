// Which names a search matches: at once for a text, from another thread for a pattern.

import { useEffect, useMemo, useState } from 'preact/hooks';
import type { NameTable } from './names';
import { type Search, matchNames, nameText, problemOf } from './search';
import type { SearchRequest } from './searchWorker';

/**
 * Time a pattern has for all names. Unit: milliseconds. 100,000 names take most patterns a tenth of
 * it.
 */
export const PATTERN_MS = 3000;

/** What a search came to. */
export interface Matched {
  /** 1 for each name that matches; undefined when there is no search, or no answer yet. */
  mask: Uint8Array | undefined;
  /** Why there is none. */
  problem: string | undefined;
  /** It is being tried. */
  waiting: boolean;
}

interface Job {
  names: NameTable;
  pattern: string;
  /** Told the mask; undefined when the pattern took too long. */
  done: (mask: Uint8Array | undefined) => void;
}

/** The thread that tries patterns, or what stands for it. */
export interface SearchPort {
  onmessage: ((event: { data: Uint8Array }) => void) | null;
  onerror: ((event: unknown) => void) | null;
  postMessage(request: SearchRequest): void;
  terminate(): void;
}

let startPort: () => SearchPort = () => {
  throw new Error('nobody said where patterns are tried');
};

/** Says how the thread is started, or what stands for it: before anything is searched. */
export function searchWith(start: () => SearchPort): void {
  startPort = start;
}

/** One thread for all searches of the page: of those that wait only the newest matters. */
class Finder {
  private worker: SearchPort | undefined;
  private loaded: NameTable | undefined;
  private busy: Job | undefined;
  private next: Job | undefined;
  private timer: ReturnType<typeof setTimeout> | undefined;

  find(job: Job): void {
    if (this.busy) this.next = job;
    else this.start(job);
  }

  private start(job: Job): void {
    this.busy = job;
    if (!this.worker) {
      this.worker = startPort();
      this.worker.onmessage = (event) => this.finish(event.data);
      this.worker.onerror = () => this.giveUp();
    }
    const send = (request: SearchRequest) => this.worker?.postMessage(request);
    if (this.loaded !== job.names) {
      send({ text: job.names.text, module: job.names.module, spelled: job.names.spelled });
      this.loaded = job.names;
    }
    send({ pattern: job.pattern });
    this.timer = setTimeout(() => this.giveUp(), PATTERN_MS);
  }

  private giveUp(): void {
    this.worker?.terminate();
    this.worker = undefined;
    this.loaded = undefined;
    this.finish(undefined);
  }

  private finish(mask: Uint8Array | undefined): void {
    clearTimeout(this.timer);
    const { busy, next } = this;
    this.busy = undefined;
    this.next = undefined;
    busy?.done(mask);
    if (next) this.start(next);
  }
}

const finder = new Finder();

const TOO_SLOW = 'the pattern takes too long on these names: avoid nested repeats';

/** Matches `search` against `names`. */
export function useMask(names: NameTable, search: Search): Matched {
  const { text, regex } = search;
  const problem = useMemo(() => problemOf({ text, regex }), [text, regex]);
  const plain = useMemo(
    () => (text === '' || regex || problem ? undefined : matchNames(names, nameText(text))),
    [names, text, regex, problem],
  );
  const [tried, setTried] = useState<{ names: NameTable; text: string; mask: Uint8Array | undefined }>();
  const pattern = regex && text !== '' && !problem;
  useEffect(() => {
    if (!pattern) return;
    let wanted = true;
    finder.find({ names, pattern: text, done: (mask) => wanted && setTried({ names, text, mask }) });
    return () => {
      wanted = false;
    };
  }, [names, text, pattern]);
  if (!pattern) return { mask: plain, problem, waiting: false };
  const answer = tried?.names === names && tried.text === text ? tried : undefined;
  return { mask: answer?.mask, problem: answer && !answer.mask ? TOO_SLOW : undefined, waiting: !answer };
}
