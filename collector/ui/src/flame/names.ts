// Names of frames. A frame of the graph is a function of a module, of one kind; files and lines are
// shown with it, but do not make separate frames.

import { KIND, LOST, OTHER, TRUNCATED } from '../query/outcome';
import type { Profile } from '../query/profile';

/** Most spellings of a runtime kept for one name: overloads, tiers of a compiler. */
export const SPELLINGS_MAX = 8;

/** Names as dense ids. Name 0 is the root of all. */
export interface NameTable {
  readonly length: number;
  readonly text: readonly string[];
  readonly module: readonly string[];
  readonly file: readonly string[];
  readonly line: ArrayLike<number>;
  readonly kind: ArrayLike<number>;
  readonly unnamed: ArrayLike<number>;
  /** How runtimes spell a name, where they do otherwise: a line each, the first that were met. */
  readonly spelled: readonly string[];
}

/** Names that are still being given. */
export class Names implements NameTable {
  readonly text: string[] = [];
  readonly module: string[] = [];
  readonly file: string[] = [];
  readonly line: number[] = [];
  readonly kind: number[] = [];
  readonly unnamed: number[] = [];
  readonly spelled: string[] = [];
  private readonly ids = new Map<string, number>();

  constructor() {
    this.intern('all', '', KIND.synthetic);
  }

  get length(): number {
    return this.text.length;
  }

  /** The id of a name; file and line stay those that were given first. */
  intern(text: string, module: string, kind: number, unnamed = 0, file = '', line = 0): number {
    const key = `${kind}\0${module.length}\0${module}${text}`;
    const known = this.ids.get(key);
    if (known !== undefined) {
      if (this.file[known] === '' && file !== '') {
        this.file[known] = file;
        this.line[known] = line;
      }
      return known;
    }
    const id = this.text.length;
    this.ids.set(key, id);
    this.text.push(text);
    this.module.push(module);
    this.kind.push(kind);
    this.unnamed.push(unnamed);
    this.file.push(file);
    this.line.push(line);
    this.spelled.push('');
    return id;
  }

  /** Adds how a runtime spells a name. */
  spell(id: number, text: string): void {
    const known = this.spelled[id] === '' ? [] : this.spelled[id].split('\n');
    const line = text.replaceAll('\n', ' ');
    if (line === '' || known.length >= SPELLINGS_MAX || known.includes(line)) return;
    this.spelled[id] = [...known, line].join('\n');
  }

  /** Name ids by frame id of a profile. */
  ofFrames(profile: Profile): Uint32Array {
    const { strings } = profile;
    return profile.fn.map((fn, frame) => {
      const text = strings[fn] || '[unknown]';
      const [module, file] = [strings[profile.module[frame]], strings[profile.file[frame]]];
      const id = this.intern(text, module, profile.kind[frame], profile.unnamed[frame], file, profile.line[frame]);
      if (profile.systemName[frame] !== 0) this.spell(id, strings[profile.systemName[frame]]);
      return id;
    });
  }
}

/** Ids of all names with this text, whatever module and kind. */
export function namesWithText(names: NameTable, text: string): Set<number> {
  const found = new Set<number>();
  names.text.forEach((one, id) => {
    if (one === text) found.add(id);
  });
  return found;
}

/**
 * Position of each name in the order in which neighbours are drawn: by text, what is no code last.
 */
export function ranksOf(names: NameTable): Uint32Array {
  const { text, module, kind } = names;
  const last = (id: number) => (kind[id] === KIND.synthetic ? 1 + [OTHER, TRUNCATED, LOST].indexOf(text[id]) : 0);
  const order = text.map((_, id) => id);
  const compare = (left: string, right: string) => (left < right ? -1 : left > right ? 1 : 0);
  order.sort(
    (left, right) =>
      last(left) - last(right) ||
      compare(text[left], text[right]) ||
      compare(module[left], module[right]) ||
      kind[left] - kind[right],
  );
  const ranks = new Uint32Array(order.length);
  order.forEach((id, rank) => {
    ranks[id] = rank;
  });
  return ranks;
}
