// Captures of this page: the one that runs, and the profiles of the last that ended, so that they
// are not loaded again. The collector keeps them for everyone, as long as its disk takes them.

import { useEffect, useState } from 'preact/hooks';
import type { FleetCaptureRequest } from '../gen/fleetprof/collector/v1/control_pb';
import { type CaptureCalls, Session } from './session';

/** Most profiles of captures held. A large one takes 100 MB. */
export const HELD_MAX = 3;

/** What this page knows of captures. */
export class Captures {
  current: Session | undefined;
  /** Those that ended with a profile, newest first. */
  readonly held: Session[] = [];
  private readonly listeners = new Set<() => void>();

  constructor(private readonly calls: CaptureCalls) {}

  /** Starts one. There is one at a time that is followed: the one before goes on alone. */
  start(request: FleetCaptureRequest): Session {
    this.current?.giveUp();
    const session = new Session(request, this.calls);
    this.current = session;
    void session.run().then(() => {
      if (this.current !== session || !session.profile) {
        session.release();
        return;
      }
      this.held.unshift(session);
      for (const oldest of this.held.splice(HELD_MAX)) oldest.release();
      this.tell();
    });
    this.tell();
    return session;
  }

  /** Nobody looks at the one that ran any more; while it runs, the collector goes on with it. */
  leave(): void {
    if (this.current?.runs) this.current.giveUp();
    this.current = undefined;
    this.tell();
  }

  /** The worker ended, and the profiles of all captures with it. */
  lose(): void {
    this.current?.lose();
    if (this.held.length === 0) return;
    for (const one of this.held.splice(0)) one.lose();
    this.tell();
  }

  /** The one of a number was removed at the collector. */
  forget(id: string): void {
    const at = this.held.findIndex((one) => idOf(one) === id);
    for (const gone of at < 0 ? [] : this.held.splice(at, 1)) gone.release();
    this.tell();
  }

  /** The capture of a number, with its profile. */
  find(id: string): Session | undefined {
    return this.held.find((one) => idOf(one) === id);
  }

  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private tell(): void {
    for (const listener of [...this.listeners]) listener();
  }
}

/** The number of a capture, as the collector counts them. */
export function idOf(session: Pick<Session, 'result' | 'plan'>): string {
  return String(session.result?.id ?? session.plan?.id ?? 0n);
}

/** Draws again whenever something is new. */
export function useNews(source: { subscribe: (listener: () => void) => () => void } | undefined): void {
  const [, turn] = useState(0);
  useEffect(() => {
    if (!source) return;
    // Changes since the last drawing have not been announced to anybody.
    turn((value) => value + 1);
    return source.subscribe(() => turn((value) => value + 1));
  }, [source]);
}
