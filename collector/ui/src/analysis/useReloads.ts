// Loads profiles again when the worker that held them is gone.

import { useEffect, useState } from 'preact/hooks';
import { analysis } from './client';

/** Part of the key of each query that loads profiles: changes when they are to be loaded again. */
export function useReloads(): number {
  const [reloads, setReloads] = useState(analysis.reloads);
  useEffect(() => {
    const follow = () => setReloads(analysis.reloads);
    follow();
    return analysis.onReload(follow);
  }, []);
  return reloads;
}
