// Completions of a selector that is being written.

import { type Place, quote } from './selector';

/** What can be written next. */
export interface Suggestion {
  kind: Place['kind'];
  text: string;
  /** What an operator says. */
  words?: string;
}

/** The text with a completion in its place, and where the caret stands then. */
export function completed(text: string, place: Place, chosen: Suggestion): { text: string; caret: number } {
  const put = (start: number, end: number, inserted: string) => ({
    text: text.slice(0, start) + inserted + text.slice(end),
    caret: start + inserted.length,
  });
  if (chosen.kind === 'value') return put(place.start, place.end, quote(chosen.text));
  if (chosen.kind === 'label') {
    const plain = /^[A-Za-z_][A-Za-z0-9_.]*$/.test(chosen.text);
    return put(place.start, place.end, plain ? chosen.text : quote(chosen.text));
  }
  // After a label that is written out, or in place of a part of an operator.
  const start = place.kind === 'label' ? place.end : place.start;
  const opens = /^\s*["'`]/.test(text.slice(place.end)) ? '' : '"';
  return put(start, place.end, `${chosen.text}${opens}`);
}
