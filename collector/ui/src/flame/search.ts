// What a search matches: names first, then nodes, and the share of all that stands under a match.
//
// Plain text is searched here. A pattern may come from a link, and some patterns take forever, so
// it is tried in a thread of its own (`searchWorker.ts`), which is terminated if it takes too long
// (`useMask.ts`).

import type { Layout } from './layout';
import type { NameTable } from './names';

/** A search as written. */
export interface Search {
  text: string;
  regex: boolean;
}

/** What was found in a layout. */
export interface Found {
  /** 1 for each layout node whose name matches. */
  mask: Uint8Array;
  /** Matching nodes before each layout id: tells at once whether a run of nodes has one. */
  before: Uint32Array;
  /** Width under the outermost matches: a match inside a match counts once. */
  width: number;
  nodes: number;
}

/** Longest pattern taken: a regular expression can be slow in the square of what it is given. */
export const SEARCH_LEN_MAX = 1024;

/**
 * Longest name a regular expression is tried on; of longer ones the start is. Unit: UTF-16 units.
 */
export const NAME_LEN_MAX = 2048;

/** What is wrong with a search, as a sentence. */
export function problemOf(search: Search): string | undefined {
  if (search.text.length > SEARCH_LEN_MAX) return `a search of more than ${SEARCH_LEN_MAX} characters is not taken`;
  if (!search.regex) return undefined;
  try {
    namePattern(search.text);
    return undefined;
  } catch (error) {
    // The browser's words, without the pattern, which stands in the field.
    return `not a regular expression: ${(error as Error).message.replace(/^.*: /s, '').toLowerCase()}`;
  }
}

/** Whether a name matches, by itself, its module, or how runtimes spell it: a line each. */
export type Matches = (name: string, module: string, spelled?: string) => boolean;

/** Tells which names have a text, in any case. */
export function nameText(text: string): Matches {
  const wanted = text.toLowerCase();
  return (name, module, spelled = '') => [name, module, spelled].some((one) => one.toLowerCase().includes(wanted));
}

/**
 * Tells which names match a pattern, in any case. It may take forever; throws when it is no
 * pattern.
 */
export function namePattern(text: string): Matches {
  const pattern = new RegExp(text, 'iu');
  const fits = (one: string) => pattern.test(one.slice(0, NAME_LEN_MAX));
  return (name, module, spelled = '') =>
    fits(name) || (module !== '' && fits(module)) || (spelled !== '' && spelled.split('\n').some(fits));
}

/** 1 for each name that matches. */
export function matchNames(names: NameTable, matches: Matches): Uint8Array {
  const mask = new Uint8Array(names.length);
  for (let id = 1; id < names.length; id++)
    mask[id] = matches(names.text[id], names.module[id], names.spelled[id]) ? 1 : 0;
  return mask;
}

/** The nodes of a layout whose names are in `nameMask`. */
export function findNodes(layout: Layout, nameMask: Uint8Array): Found {
  const size = layout.name.length;
  const mask = new Uint8Array(size);
  const before = new Uint32Array(size + 1);
  // At or under a match. A parent stands before its children in the layout.
  const inside = new Uint8Array(size);
  let [width, nodes] = [0, 0];
  for (let node = 0; node < size; node++) {
    const found = nameMask[layout.name[node]] === 1;
    const within = inside[layout.parent[node]] === 1;
    if (found) {
      mask[node] = 1;
      nodes++;
      if (!within) width += layout.width[node];
    }
    inside[node] = found || within ? 1 : 0;
    before[node + 1] = before[node] + (found ? 1 : 0);
  }
  return { mask, before, width, nodes };
}

/** A text as a pattern that matches it and nothing else. */
export function escapeRegex(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}
