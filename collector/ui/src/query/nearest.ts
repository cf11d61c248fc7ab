// The value that somebody may have meant.

/** Longest text that is compared: the cost is its square. */
const LENGTH_MAX = 120;

/** The nearest of `candidates`, as long as it is near enough to be meant. */
export function nearest(wanted: string, candidates: readonly string[]): string | undefined {
  const asked = wanted.toLowerCase().slice(0, LENGTH_MAX);
  if (asked === '') return undefined;
  let best: { text: string; cost: number } | undefined;
  for (const text of candidates) {
    const other = text.toLowerCase().slice(0, LENGTH_MAX);
    // Part of a name is what is written most: `nginx` of `nginx.service`.
    const part = other.startsWith(asked) ? 0.5 : other.includes(asked) ? 1 : Number.POSITIVE_INFINITY;
    const cost = Math.min(part, distance(asked, other));
    if (!best || cost < best.cost) best = { text, cost };
  }
  return best && best.cost <= Math.max(1, Math.ceil(asked.length / 3)) ? best.text : undefined;
}

/** Letters to insert, remove, replace or swap between two texts. */
export function distance(one: string, other: string): number {
  const [left, right] = [[...one], [...other]];
  let [last, row] = [[] as number[], Array.from({ length: right.length + 1 }, (_, at) => at)];
  for (let at = 1; at <= left.length; at++) {
    const next = [at];
    for (let to = 1; to <= right.length; to++) {
      const same = left[at - 1] === right[to - 1] ? 0 : 1;
      next[to] = Math.min(row[to] + 1, next[to - 1] + 1, row[to - 1] + same);
      const swapped = at > 1 && to > 1 && left[at - 1] === right[to - 2] && left[at - 2] === right[to - 1];
      if (swapped) next[to] = Math.min(next[to], last[to - 2] + 1);
    }
    [last, row] = [row, next];
  }
  return row[right.length];
}
