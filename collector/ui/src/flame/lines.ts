// Samples of one function by source line, where the profile has lines: captures with lines do.

import { KIND } from '../query/outcome';
import type { Profile } from '../query/profile';

/** Samples of one line. */
export interface LineRow {
  file: string;
  line: number;
  /** Samples of the line itself. */
  own: number;
  /** With what is called from there; recursion counts once. */
  total: number;
}

/** Kinds of code whose lines captures tell. */
export function canHaveLines(kind: number): boolean {
  return kind === KIND.native || kind === KIND.inlined;
}

/** True when any frame has a source line. */
export function hasLines(profile: Profile): boolean {
  return profile.line.some((line, frame) => line > 0 && canHaveLines(profile.kind[frame]));
}

/** The lines of all functions of this name, those with most samples first. */
export function linesOf(profile: Profile, text: string, values: Float64Array): LineRow[] {
  const { strings, parent, frame } = profile;
  const size = parent.length;
  const wanted = profile.fn.map((fn, at) => (strings[fn] === text && profile.line[at] > 0 ? 1 : 0));
  const own = new Float64Array(size);
  profile.stack.forEach((stack, sample) => {
    own[stack] += values[sample];
  });
  const total = own.slice();
  for (let stack = size - 1; stack > 0; stack--) total[parent[stack]] += total[stack];
  // By stack the nearest frame of the function, itself included; 0: there is none.
  const nearest = new Uint32Array(size);
  const rows = new Map<string, LineRow>();
  for (let stack = 1; stack < size; stack++) {
    const at = frame[stack];
    nearest[stack] = wanted[at] ? stack : nearest[parent[stack]];
    if (!wanted[at]) continue;
    const [file, line] = [profile.file[at], profile.line[at]];
    const key = `${file} ${line}`;
    const row = rows.get(key) ?? { file: strings[file], line, own: 0, total: 0 };
    rows.set(key, row);
    row.own += own[stack];
    let above = nearest[parent[stack]];
    while (above !== 0 && !(profile.file[frame[above]] === file && profile.line[frame[above]] === line))
      above = nearest[parent[above]];
    if (above === 0) row.total += total[stack];
  }
  return [...rows.values()]
    .filter((row) => row.total > 0)
    .sort((left, right) => right.total - left.total || left.line - right.line);
}
