// What is selected: the selector as text, and each of its matchers as a chip that can be taken
// away.

import type { ComponentChildren } from 'preact';
import { Icon, Name } from './parts';
import { SelectorInput } from '../query/SelectorInput';
import { parse, problem, withoutMatcher, write } from '../query/selector';
import type { Range } from '../time/range';

interface Props {
  query: string;
  range: Range | undefined;
  label: string;
  onChange: (query: string) => void;
  /** What can be done with the selection. */
  children?: ComponentChildren;
}

export function QueryBar({ query, range, label, onChange, children }: Props) {
  const matchers = problem(query) ? [] : parse(query);
  return (
    <div class="query-bar">
      <SelectorInput value={query} range={range} label={label} onChange={onChange} />
      {children}
      {matchers.length > 0 && (
        <ul class="chips" aria-label="Matchers">
          {matchers.map((matcher, at) => (
            <li class="chip" key={`${at}`}>
              <Name text={write(matcher)} max={64} />
              <button
                type="button"
                aria-label={`Remove the matcher of ${matcher.label.slice(0, 40)}`}
                onClick={() => onChange(withoutMatcher(query, at))}
              >
                <Icon of="close" />
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}
