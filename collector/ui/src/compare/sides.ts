// The two sides of a comparison as the address has them: A is the baseline, B what is held against
// it.

import type { State } from '../state/address';
import type { Selection } from '../query/selection';
import type { SelectionState } from '../state/selection';
import { baselineOf } from '../time/baseline';
import { type Range, type Spec, absoluteSpec, before, resolve } from '../time/range';

/** The range of the baseline, or what is wrong with the one that is written. */
export function baselineRange(
  of: Pick<SelectionState, 'bfrom' | 'bto' | 'baseline'>,
  range: Range,
  deployMs: number | undefined,
): Range | string {
  if (of.bfrom !== '' && of.bto !== '') return resolve({ from: of.bfrom, to: of.bto }, range.to);
  // A comparison has another side, whatever charts are drawn with.
  return baselineOf(range, of.baseline, deployMs) ?? before(range);
}

/** Both sides, each in the other's place. */
export function swapped(a: Selection, b: Selection): Partial<State> {
  const [from, was] = [absoluteSpec(a.range), absoluteSpec(b.range)];
  return {
    ...from,
    bfrom: was.from,
    bto: was.to,
    query: a.query,
    bquery: a.query === b.query ? undefined : b.query,
    live: false,
  };
}

/** What the button of a range says: a baseline that was not written is shown in exact times. */
export function specOf(written: Spec, range: Range): Spec {
  return written.from !== '' && written.to !== '' ? written : absoluteSpec(range);
}

/** Labels that tell versions of a service apart, those that are surest first. */
const VERSION_LABELS = ['version', 'image_tag', 'image', 'build', 'release', 'revision', 'commit', 'tag'];

/** Those of the labels that are there. */
export function versionLabels(labels: readonly string[]): string[] {
  const named = VERSION_LABELS.filter((label) => labels.includes(label));
  return [...named, ...labels.filter((label) => !named.includes(label) && /version|image|build/.test(label))];
}
