// Carries the state between the address bar and the page.

import { useEffect, useState } from 'preact/hooks';
import type { State } from './state';
import { changed, read, write } from './state';

/** Sets parts of the state. `replace`: no step of the browser's history, for what changes while typing. */
export type SetState = (change: Partial<State>, how?: { replace?: boolean }) => void;

const current = () => read(location.hash.slice(1));

/** The state of the address, and how to change it. */
export function useAddress(): [State, SetState] {
  const [state, setLocal] = useState(current);
  useEffect(() => {
    const follow = () => setLocal(current());
    addEventListener('popstate', follow);
    addEventListener('hashchange', follow);
    return () => {
      removeEventListener('popstate', follow);
      removeEventListener('hashchange', follow);
    };
  }, []);
  return [state, set];

  function set(change: Partial<State>, how: { replace?: boolean } = {}): void {
    // From the address, not from what this render saw: two changes in one event both hold.
    const next = changed(current(), change);
    const address = write(next);
    if (address !== location.hash.slice(1)) {
      const url = `${location.pathname}${location.search}${address === '' ? '' : `#${address}`}`;
      history[how.replace ? 'replaceState' : 'pushState'](null, '', url);
    }
    setLocal(next);
  }
}

/** The address that a change would lead to: for links that can be opened in another tab. */
export function linkTo(state: State, change: Partial<State>): string {
  return `#${write(changed(state, change))}`;
}
