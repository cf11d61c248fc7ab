// What happens again and again, and what a key of the page does.

import { useEffect, useRef } from 'preact/hooks';

/** Time between queries in live mode: the length of a window. Unit: milliseconds. */
export const LIVE_MS = 10_000;

/** Acts again and again, as long as somebody can see the page. */
export function useLive(live: boolean, act: () => void, everyMs: number): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    if (!live) return;
    const timer = setInterval(() => {
      if (!document.hidden) latest.current();
    }, everyMs);
    // Who comes back sees what is now, not what was when the page was left.
    const back = () => {
      if (!document.hidden) latest.current();
    };
    document.addEventListener('visibilitychange', back);
    return () => {
      clearInterval(timer);
      document.removeEventListener('visibilitychange', back);
    };
  }, [live]);
}

/** Acts on a key that is not written into a field. */
export function useShortcut(key: string, act: () => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (
        event.key !== key ||
        event.ctrlKey ||
        event.metaKey ||
        event.altKey ||
        /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)
      )
        return;
      latest.current();
    };
    addEventListener('keydown', listen);
    return () => removeEventListener('keydown', listen);
  }, [key]);
}
