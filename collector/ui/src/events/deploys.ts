// The last deploy of what is selected.

import type { Annotation } from '../gen/fleetprof/collector/v1/annotations_pb';
import { parse, problem } from '../query/selector';
import { toMs } from '../time/range';

/** How far back a deploy is looked for. Unit: milliseconds. */
export const DEPLOYS_BACK_MS = 30 * 86_400_000;

/**
 * The newest deploy up to a time that concerns a selection: one whose labels say nothing else than
 * the selector does. Undefined: there is none.
 */
export function lastDeploy(annotations: readonly Annotation[], query: string, atMs: number): Annotation | undefined {
  const matchers = problem(query) ? [] : parse(query);
  const concerns = ({ labels }: Annotation) =>
    matchers.every(({ label, op, value }) => {
      const has = labels[label];
      if (has === undefined) return true;
      if (op === '=') return has === value;
      if (op === '!=') return has !== value;
      if (op === '^=') return has === value || has.startsWith(value === '/' ? '/' : `${value}/`);
      // The collector checks patterns in its own way: what this page cannot read concerns all.
      try {
        return new RegExp(`^(?:${value})$`, 'u').test(has) === (op === '=~');
      } catch {
        return true;
      }
    });
  return annotations
    .filter((one) => one.kind === 'deploy' && toMs(one.startUnixNs) <= atMs && concerns(one))
    .reduce<Annotation | undefined>(
      (last, one) => (last && last.startUnixNs >= one.startUnixNs ? last : one),
      undefined,
    );
}
