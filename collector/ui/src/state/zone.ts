// Times of the reader's clock, or UTC, as people in two zones agree on. Kept by the browser, not by
// the link: a link has times that mean the same everywhere.

import { useEffect, useState } from 'preact/hooks';
import { inUtc, showUtc } from '../text/format';

const KEY = 'fleetprof-zone';

const listeners = new Set<(utc: boolean) => void>();

/** Takes the zone that was chosen: before anything is drawn. */
export function followZone(): void {
  try {
    showUtc(localStorage.getItem(KEY) === 'utc');
  } catch {
    // Storage is forbidden: times are local until somebody chooses.
  }
}

/** Shows times in the other zone. */
export function flipZone(): void {
  const next = !inUtc();
  try {
    localStorage.setItem(KEY, next ? 'utc' : 'local');
  } catch {
    // As above.
  }
  showUtc(next);
  for (const listener of [...listeners]) listener(next);
}

/** Draws the component again when the zone changes. True: UTC. */
export function useZone(): boolean {
  const [utc, setUtc] = useState(inUtc());
  useEffect(() => {
    // It may have changed since it was drawn.
    setUtc(inUtc());
    listeners.add(setUtc);
    return () => {
      listeners.delete(setUtc);
    };
  }, []);
  return utc;
}
