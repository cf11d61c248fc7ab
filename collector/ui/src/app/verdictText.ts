// What is said of a selection and of the time before, in words.

import * as format from '../text/format';
import type { Range } from '../time/range';

const HOUR_MS = 3_600_000;

/** What a selection is compared with, and its words: an hour before, or as much time before. */
export function earlier(range: Range): { range: Range; words: string } {
  const length = range.to - range.from;
  const by = Math.max(HOUR_MS, length);
  return {
    range: { from: Math.max(0, range.from - by), to: Math.max(1, range.to - by) },
    words: by === HOUR_MS ? 'an hour before' : `the ${format.duration(length * 1e6)} before`,
  };
}

/** The change in words; empty where nothing can be said. */
export function changeText(now: number, was: number): string {
  if (!Number.isFinite(now) || !Number.isFinite(was)) return '';
  if (was < 0.0005) return now < 0.0005 ? '' : 'nothing';
  const percent = ((now - was) / was) * 100;
  if (Math.abs(percent) < 0.5) return 'about as much as';
  const size = Math.abs(percent);
  return `${percent < 0 ? '−' : '+'}${size < 10 ? size.toFixed(1) : Math.round(size).toLocaleString('en')} %`;
}
