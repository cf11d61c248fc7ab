// Queries while a page is shown: one at a time for each place; a query that is superseded is
// cancelled.

import { useEffect, useRef, useState } from 'preact/hooks';
import { NOT_HELD, type Trouble, troubleOf } from './errors';

/** How long an answer may take before the page shows that it waits. Unit: milliseconds. */
export const PATIENCE_MS = 300;

/** A query and its answer so far. */
export interface Query<T> {
  /** The newest answer; that of the query before while the new one is under way. */
  data: T | undefined;
  /** What went wrong with the newest query. */
  trouble: Trouble | undefined;
  /** The newest query has no answer yet. */
  waiting: boolean;
  /** It has had none for longer than {@link PATIENCE_MS}. */
  slow: boolean;
  /** What has come so far, in the query's own unit. */
  progress: number;
  /** Sends the same query again. */
  again: () => void;
}

interface Held<T> {
  /** Key of the newest query that was answered; undefined when it is to be sent again. */
  key: string | undefined;
  /** What `data` is of. */
  kind: string | undefined;
  data?: T;
  trouble?: Trouble;
}

interface Options<T> {
  words?: (error: unknown) => Trouble | undefined;
  dispose?: (answer: T) => void;
}

const kindOf = (key: string) => key.split('\n', 1)[0];

/**
 * Queries whenever `key` changes, and never while it is undefined. Answers of another `kind` are
 * not shown while waiting: what a key is of is told by what stands before its first newline.
 * `words` says what went wrong; undefined for what was given up on purpose. `dispose` is given each
 * answer when it is not shown any more, or never was.
 */
export function useQuery<T>(
  key: string | undefined,
  ask: (signal: AbortSignal, progress: (value: number) => void) => Promise<T>,
  { words = troubleOf, dispose }: Options<T> = {},
): Query<T> {
  const [held, setHeld] = useState<Held<T>>({ key: undefined, kind: undefined });
  const [slow, setSlow] = useState(false);
  const [progress, setProgress] = useState(0);
  const [turn, setTurn] = useState(0);
  const asker = useRef(ask);
  asker.current = ask;
  const { keep, disposer } = useKept(dispose);

  useEffect(() => {
    if (key === undefined) return;
    const control = new AbortController();
    setProgress(0);
    const patience = setTimeout(() => setSlow(true), PATIENCE_MS);
    let shown = 0;
    const tell = (value: number) => {
      // Each message of a large answer would draw the page again.
      const now = performance.now();
      if (control.signal.aborted || now - shown < 100) return;
      shown = now;
      setProgress(value);
    };
    const settle = (next: (before: Held<T>) => Held<T>) => {
      if (control.signal.aborted) return;
      clearTimeout(patience);
      setSlow(false);
      setHeld(next);
    };
    asker.current(control.signal, tell).then(
      (data) => {
        if (control.signal.aborted) disposer.current?.(data);
        else {
          keep(data);
          settle(() => ({ key, kind: kindOf(key), data }));
        }
      },
      (error: unknown) => {
        const trouble = words(error);
        if (!trouble || control.signal.aborted) return;
        const kind = kindOf(key);
        settle((before) => {
          const data = before.kind === kind ? before.data : undefined;
          if (data === undefined) keep(undefined);
          return { key, kind, data, trouble };
        });
      },
    );
    return () => {
      clearTimeout(patience);
      setSlow(false);
      control.abort();
    };
  }, [key, turn]);

  const waiting = key !== undefined && held.key !== key;
  return {
    data: key !== undefined && held.kind === kindOf(key) ? held.data : undefined,
    trouble: held.key === key ? held.trouble : undefined,
    waiting,
    slow: slow && waiting,
    progress,
    again: () => {
      setHeld((before) => ({ ...before, key: undefined, trouble: undefined }));
      setTurn((value) => value + 1);
    },
  };
}

/**
 * A query about a profile that may be released while what was made of it is still shown: one that
 * is not held any more is about to be replaced, so the query waits for its successor.
 */
export function untilReplaced<T>(query: Query<T>): Query<T> {
  return query.trouble?.code === NOT_HELD ? { ...query, trouble: undefined, waiting: true } : query;
}

/** Disposes of an answer when another takes its place, or the component is gone. */
function useKept<T>(dispose: ((answer: T) => void) | undefined) {
  const kept = useRef<T | undefined>(undefined);
  const disposer = useRef(dispose);
  disposer.current = dispose;
  const keep = (next: T | undefined) => {
    const before = kept.current;
    kept.current = next;
    if (before !== undefined && before !== next) disposer.current?.(before);
  };
  useEffect(() => () => keep(undefined), []);
  return { keep, disposer };
}
