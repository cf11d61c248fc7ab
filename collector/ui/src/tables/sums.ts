// Sums of a profile that only this page has: by module, or by the values of a label.

import type { Profile } from '../query/profile';

/** Sums of one module or value. */
export interface Sum {
  name: string;
  own: number;
  total: number;
}

/** By module: its own where the leaf is in it, total wherever a stack goes through it. */
export function sumsByModule(profile: Profile, values: Float64Array): Sum[] {
  const size = profile.parent.length;
  const own = new Float64Array(size);
  for (let sample = 0; sample < values.length; sample++) own[profile.stack[sample]] += values[sample];
  const sums = new Map<string, Sum>();
  const seen = new Set<string>();
  for (let stack = 1; stack < size; stack++) {
    if (!(own[stack] > 0)) continue;
    seen.clear();
    for (let at = stack; at !== 0; at = profile.parent[at]) {
      const name = profile.strings[profile.module[profile.frame[at]]] ?? '';
      if (seen.has(name)) continue;
      seen.add(name);
      const sum = sums.get(name) ?? { name, own: 0, total: 0 };
      sums.set(name, sum);
      sum.total += own[stack];
      if (at === stack) sum.own += own[stack];
    }
  }
  return [...sums.values()];
}

/** By the values of a label. */
export function sumsByLabel(profile: Profile, values: Float64Array, label: string): Sum[] {
  const nameOf = profile.labelSets.map((pairs) => {
    for (let at = 0; at < pairs.length; at += 2)
      if (profile.strings[pairs[at]] === label) return profile.strings[pairs[at + 1]];
    return '';
  });
  const sums = new Map<string, Sum>();
  for (let sample = 0; sample < values.length; sample++) {
    const name = nameOf[profile.labels[sample]];
    const sum = sums.get(name) ?? { name, own: 0, total: 0 };
    sums.set(name, sum);
    sum.own += values[sample];
    sum.total += values[sample];
  }
  return [...sums.values()];
}

/** Values of the samples whose stacks have a function, and 0 for the others. */
export function valuesWith(profile: Profile, values: Float64Array, fn: string): Float64Array {
  const wanted = Uint8Array.from(profile.fn, (id) => (profile.strings[id] === fn ? 1 : 0));
  const holds = new Uint8Array(profile.parent.length);
  for (let stack = 1; stack < holds.length; stack++)
    holds[stack] = holds[profile.parent[stack]] || wanted[profile.frame[stack]];
  return values.map((value, sample) => (holds[profile.stack[sample]] ? value : 0));
}

/** Names of the labels that a profile has. */
export function labelsOf(profile: Profile): string[] {
  const names = new Set<number>();
  for (const pairs of profile.labelSets) for (let at = 0; at < pairs.length; at += 2) names.add(pairs[at]);
  return [...names].map((id) => profile.strings[id]).sort();
}
