// What changed by function between two profiles that are both here, and how sure that is: as
// `profile/src/diff.rs` computes it.

import type { Profile } from '../query/profile';
import { type ChangeRow, type Changes, type Side, error95 } from '../tables/changes';
import { Names } from './names';
import { KIND_LABEL } from './tree';

/** One side, by name. */
interface Sums {
  count: Float64Array;
  value: Float64Array;
  /** 1 for names that stand in any stack of it. */
  there: Uint8Array;
}

/** Changes of own values: of weights, or of samples. */
export function changesBetween(before: Profile, after: Profile, samples: boolean): Changes {
  const names = new Names();
  const [ofBefore, ofAfter] = [names.ofFrames(before), names.ofFrames(after)];
  const sides = [sumsOf(before, ofBefore, names.length, samples), sumsOf(after, ofAfter, names.length, samples)];
  const [was, is] = sides;
  const [sideBefore, sideAfter] = [sideOf(before, samples), sideOf(after, samples)];
  const rows: ChangeRow[] = [];
  for (let id = 1; id < names.length; id++) {
    if (names.kind[id] === KIND_LABEL || !(was.there[id] || is.there[id])) continue;
    const delta = part(is.value[id], sideAfter.weight) - part(was.value[id], sideBefore.weight);
    const shareError = Math.sqrt(
      variance(was.count[id], sideBefore.samples) + variance(is.count[id], sideAfter.samples),
    );
    rows.push({
      name: names.text[id],
      module: names.module[id],
      kind: names.kind[id],
      before: was.value[id],
      after: is.value[id],
      shareError,
      significant: Math.abs(delta) > error95(shareError),
      appeared: !was.there[id],
      vanished: !is.there[id],
    });
  }
  return { before: sideBefore, after: sideAfter, rows, leftOut: 0, hostsDiffer: false };
}

const part = (value: number, whole: number) => (whole > 0 ? value / whole : 0);

/** The variance of a share, with one pretended hit and miss: it stays honest for few samples. */
function variance(count: number, all: number): number {
  const share = (count + 1) / (all + 2);
  return (share * (1 - share)) / (all + 2);
}

const total = (values: Float64Array) => values.reduce((sum, value) => sum + value, 0);

function sideOf(profile: Profile, samples: boolean): Side {
  const all = total(profile.count);
  return { samples: all, weight: samples ? all : total(profile.weight), parts: 0, hostParts: 0, lost: 0 };
}

function sumsOf(profile: Profile, nameOf: Uint32Array, names: number, samples: boolean): Sums {
  const sums: Sums = { count: new Float64Array(names), value: new Float64Array(names), there: new Uint8Array(names) };
  const values = samples ? profile.count : profile.weight;
  const used = new Uint8Array(profile.parent.length);
  profile.stack.forEach((stack, sample) => {
    if (stack === 0) return;
    const name = nameOf[profile.frame[stack]];
    sums.count[name] += profile.count[sample];
    sums.value[name] += values[sample];
    used[stack] = 1;
  });
  // A parent has a smaller id.
  for (let stack = used.length - 1; stack > 0; stack--) {
    if (!used[stack]) continue;
    used[profile.parent[stack]] = 1;
    sums.there[nameOf[profile.frame[stack]]] = 1;
  }
  return sums;
}
