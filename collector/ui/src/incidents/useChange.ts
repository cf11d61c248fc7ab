// A change at the collector that somebody asked for.

import { useState } from 'preact/hooks';
import { type Trouble, troubleOf } from '../query/errors';

/** A change that is under way, and what went wrong with the last. */
export function useChange() {
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState<Trouble>();
  const run = async (change: () => Promise<void>): Promise<boolean> => {
    setBusy(true);
    setTrouble(undefined);
    try {
      await change();
      return true;
    } catch (error) {
      setTrouble(troubleOf(error));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { busy, trouble, run };
}
