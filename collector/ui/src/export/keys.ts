// Keys of a file that stands alone: those of its tools, and those of the graph wherever the focus
// is.

import { useEffect } from 'preact/hooks';
import { getState, setState } from '../state/store';
import { flipTheme } from '../state/theme';

/** As the list of shortcuts says them. */
export const KEYS: readonly (readonly [string, string])[] = [
  ['m', 'samples or their weight'],
  ['i', 'root at the top or at the bottom'],
  ['t', 'with or without the table'],
  ['b', 'width by the baseline'],
  ['d', 'dark or light'],
];

/** Keys that the graph has. */
const OF_GRAPH = /^(Arrow(Up|Down|Left|Right)|Enter|Escape|Backspace|Home|[0nNsfxucle])$/;

/** What a key does to the file; undefined: nothing. */
function act(key: string, { weighs, compares }: { weighs: boolean; compares: boolean }): (() => void) | undefined {
  const { samples, flame, panel, width } = getState();
  switch (key) {
    case 'm':
      return weighs ? () => setState({ samples: !samples }) : undefined;
    case 'i':
      return () => setState({ flame: !flame });
    case 't':
      return () => setState({ panel: panel === 'flame' ? 'both' : 'flame' });
    case 'b':
      return compares ? () => setState({ width: width === 'before' ? 'both' : 'before' }) : undefined;
    case 'd':
      return flipTheme;
    default:
      return undefined;
  }
}

export function useKeys(of: { weighs: boolean; compares: boolean }): void {
  useEffect(() => {
    const listen = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) return;
      const doing = act(event.key, of);
      const graph = document.querySelector<HTMLElement>('.flame-box');
      if (doing) doing();
      else if (target === document.body && graph && OF_GRAPH.test(event.key)) {
        graph.focus({ preventScroll: true });
        graph.dispatchEvent(new KeyboardEvent('keydown', { key: event.key, shiftKey: event.shiftKey, bubbles: true }));
      } else return;
      event.preventDefault();
    };
    addEventListener('keydown', listen);
    return () => removeEventListener('keydown', listen);
  }, [of.weighs, of.compares]);
}
