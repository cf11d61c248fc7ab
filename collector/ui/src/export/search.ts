// Tries patterns of a search in the page's own thread, in slices, because a standalone file has no
// second thread. The caller cancels a search that takes too long over all names. A pattern that
// takes forever on one name stops the page, but only its reader can enter one.

import type { SearchPort } from '../flame/useMask';
import { type Matches, namePattern } from '../flame/search';
import type { SearchRequest } from '../flame/searchWorker';

/** Time of a slice. Unit: milliseconds. A frame of the screen is 16. */
const SLICE_MS = 12;

/** Names between two looks at the clock. */
const NAMES_AT_ONCE = 64;

type Names = Exclude<SearchRequest, { pattern: string }>;

export function inlineSearch(): SearchPort {
  let names: Names = { text: [], module: [], spelled: [] };
  let ended = false;
  const port: SearchPort = {
    onmessage: null,
    onerror: null,
    postMessage: (request) => {
      if (!('pattern' in request)) names = request;
      else slice(names, namePattern(request.pattern), new Uint8Array(names.text.length), 1);
    },
    terminate: () => {
      ended = true;
    },
  };
  const slice = (of: Names, matches: Matches, mask: Uint8Array, from: number) => {
    if (ended) return;
    const until = performance.now() + SLICE_MS;
    let id = from;
    while (id < mask.length && performance.now() < until) {
      const end = Math.min(mask.length, id + NAMES_AT_ONCE);
      for (; id < end; id++) mask[id] = matches(of.text[id], of.module[id], of.spelled[id]) ? 1 : 0;
    }
    setTimeout(() => (id < mask.length ? slice(of, matches, mask, id) : !ended && port.onmessage?.({ data: mask })));
  };
  return port;
}
