// Tries a pattern on names outside the page's thread: a pattern may take forever, and this thread
// can be terminated.

import { namePattern } from './search';

/** The names to search from now on, or a pattern to try on them. */
export type SearchRequest =
  | { text: readonly string[]; module: readonly string[]; spelled: readonly string[] }
  | { pattern: string };

const scope = self as unknown as {
  onmessage: (event: MessageEvent<SearchRequest>) => void;
  postMessage: (mask: Uint8Array, transfer: Transferable[]) => void;
};

let text: readonly string[] = [];
let module: readonly string[] = [];
let spelled: readonly string[] = [];

scope.onmessage = ({ data }) => {
  if (!('pattern' in data)) {
    [text, module, spelled] = [data.text, data.module, data.spelled];
    return;
  }
  const matches = namePattern(data.pattern);
  const mask = new Uint8Array(text.length);
  for (let id = 1; id < text.length; id++) mask[id] = matches(text[id], module[id], spelled[id]) ? 1 : 0;
  scope.postMessage(mask, [mask.buffer]);
};
