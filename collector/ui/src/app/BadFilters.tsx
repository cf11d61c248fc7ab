// Where a question is not valid: the filters that can be to blame, each with a way to remove it.

import type { Trouble } from '../query/errors';
import { problemOf } from '../flame/search';
import { parse, problem, withoutMatcher, write } from '../query/selector';
import { getState, setState, useSelectionState } from '../state/store';
import { Name } from './parts';

interface Suspect {
  key: string;
  text: string;
  /** It is no pattern here either. */
  bad: boolean;
  remove: () => void;
}

/** Most filters that are offered for removal. */
const SHOWN = 6;

export function BadFilters({ trouble }: { trouble: Trouble | undefined }) {
  const { query, filters } = useSelectionState('query', 'filters');
  if (trouble?.code !== 'InvalidArgument') return null;
  const isBad = (regex: string) => problemOf({ text: regex, regex: true }) !== undefined;
  const suspects: Suspect[] = filters.map((filter, at) => ({
    key: `frame ${at}`,
    text: `function ${filter.op === 'keep' ? '=~' : '!~'} ${filter.regex}`,
    bad: isBad(filter.regex),
    remove: () => setState({ filters: getState().filters.filter((_, other) => other !== at) }),
  }));
  if (!problem(query))
    for (const [at, matcher] of parse(query).entries())
      if (matcher.op === '=~' || matcher.op === '!~')
        suspects.push({
          key: `matcher ${at}`,
          text: write(matcher),
          bad: isBad(matcher.value),
          remove: () => setState({ query: withoutMatcher(getState().query, at) }),
        });
  const known = suspects.filter((one) => one.bad);
  const shown = (known.length ? known : suspects).slice(0, SHOWN);
  if (!shown.length) return null;
  return (
    <ul class="bad-filters" aria-label="Filters that may be the cause">
      {shown.map((one) => (
        <li key={one.key}>
          <Name text={one.text} max={100} /> {one.bad && <span class="soft">is not a valid pattern</span>}
          <button type="button" onClick={one.remove}>
            Remove this filter
          </button>
        </li>
      ))}
    </ul>
  );
}
