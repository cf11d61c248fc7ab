// What is selected: each filter as a chip that can be changed and taken away, and all of them as
// text for who asks for it. It stands outside of the answer, so that a filter that is not valid can
// always be taken back.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { SelectorInput } from '../query/SelectorInput';
import {
  type Matcher,
  OP_WORDS,
  type Op,
  parse,
  problem,
  withOp,
  withoutMatcher,
  write,
  writeAll,
} from '../query/selector';
import { escapeRegex, problemOf } from '../flame/search';
import { getState, setState, useSelectionState } from '../state/store';
import type { FrameFilter } from '../state/selection';
import type { Range } from '../time/range';
import { Icon, Name, say } from './parts';

interface Props {
  query: string;
  range: Range | undefined;
  /** Id of the profile type that is selected; absent: agents. */
  type?: string | undefined;
  label: string;
  onChange: (query: string) => void;
  /** Stacks are filtered here too: by a function. */
  frames?: boolean;
  /** What can be done with the selection. */
  children?: ComponentChildren;
}

/** What is filtered by a function, which is no label of samples. */
const FUNCTION = 'function';

export function QueryBar({ query, range, type, label, onChange, frames, children }: Props) {
  const [asText, setAsText] = useState(false);
  const [editing, setEditing] = useState<number>();
  const wrong = problem(query);
  const matchers = wrong ? [] : parse(query);
  // What cannot be read has no chips.
  const text = asText || wrong !== undefined;
  const replace = (at: number, next: string) => {
    const added = split(next, frames);
    const list = [...matchers.slice(0, at), ...added.matchers, ...matchers.slice(at + 1)];
    if (added.filters.length) setState({ filters: [...getState().filters, ...added.filters] });
    onChange(writeAll(list));
  };
  return (
    <div class="query-bar">
      {text ? (
        <SelectorInput value={query} range={range} type={type} label={label} onChange={onChange} />
      ) : (
        <div class="filter-bar">
          {matchers.length > 0 && (
            <ul class="chips" aria-label="Matchers">
              {matchers.map((matcher, at) =>
                editing === at ? (
                  <li class="chip editing" key={`${at}`}>
                    <SelectorInput
                      value={write(matcher)}
                      range={range}
                      type={type}
                      label={`Change the filter of ${matcher.label.slice(0, 40)}`}
                      beside={writeAll(matchers.filter((_, other) => other !== at))}
                      onChange={(next) => replace(at, next)}
                      onLeave={() => setEditing(undefined)}
                    />
                  </li>
                ) : (
                  <MatcherChip
                    key={`${at}`}
                    matcher={matcher}
                    onEdit={() => setEditing(at)}
                    onOp={(op) => replace(at, write(withOp(matcher, op)))}
                    onRemove={() => onChange(withoutMatcher(query, at))}
                  />
                ),
              )}
            </ul>
          )}
          {frames && <FrameFilterChips />}
          <SelectorInput
            value=""
            range={range}
            type={type}
            label={label}
            placeholder={
              matchers.length
                ? '+ Filter'
                : type
                  ? '+ Filter, e.g. service_name="shop". None = all'
                  : '+ Filter, e.g. unit="nginx.service". None = all hosts'
            }
            beside={query}
            extra={frames ? [FUNCTION] : undefined}
            onChange={(next) => replace(matchers.length, next)}
          />
        </div>
      )}
      <span class="query-tools">
        {!wrong && (
          <button
            type="button"
            class="plain soft as-text"
            aria-pressed={asText}
            title={asText ? 'Show filters as chips' : 'Write all filters as one text'}
            onClick={() => setAsText(!asText)}
          >
            {asText ? 'Chips' : 'Text'}
          </button>
        )}
        {children}
      </span>
    </div>
  );
}

/** What was written: matchers of labels, and filters of functions. */
function split(text: string, frames: boolean | undefined): { matchers: Matcher[]; filters: FrameFilter[] } {
  const all = parse(text);
  const isFunction = (one: Matcher) => frames === true && one.label === FUNCTION;
  return {
    matchers: all.filter((one) => !isFunction(one)),
    filters: all.filter(isFunction).map(({ op, value }) => ({
      op: op === '!=' || op === '!~' ? 'drop' : 'keep',
      regex: op === '=' || op === '!=' ? `^${escapeRegex(value)}$` : op === '^=' ? `^${escapeRegex(value)}` : value,
    })),
  };
}

function MatcherChip(props: { matcher: Matcher; onEdit: () => void; onOp: (op: Op) => void; onRemove: () => void }) {
  const { matcher } = props;
  const { label, op, value } = matcher;
  const isPattern = op === '=~' || op === '!~';
  const trouble = isPattern ? problemOf({ text: value, regex: true }) : undefined;
  return (
    <li class={`chip matcher${trouble ? ' bad' : ''}`} title={trouble}>
      <button type="button" class="chip-part" title="Change this filter" onClick={props.onEdit}>
        <Name text={label} max={40} />
      </button>
      <select
        aria-label={`Operator of ${label.slice(0, 40)}`}
        value={op}
        onChange={(event) => props.onOp(event.currentTarget.value as Op)}
      >
        {OP_WORDS.map(([one, words]) => (
          <option key={one} value={one} title={words}>
            {one}
          </option>
        ))}
      </select>
      <button
        type="button"
        class="chip-part"
        title="Change this filter"
        aria-label={`Change the value of ${label.slice(0, 40)}: ${say(value)}`}
        onClick={props.onEdit}
      >
        <Name text={value} max={48} empty="(none)" />
      </button>
      <button
        type="button"
        class="chip-close"
        aria-label={`Remove the matcher of ${label.slice(0, 40)}`}
        onClick={props.onRemove}
      >
        <Icon of="close" />
      </button>
    </li>
  );
}

/** Filters of stacks by a function, as the collector applies them. */
function FrameFilterChips() {
  const { filters } = useSelectionState('filters');
  const [editing, setEditing] = useState<number>();
  if (!filters.length) return null;
  const change = (at: number, next: FrameFilter | undefined) =>
    setState({
      filters: getState().filters.flatMap((one, other) => (other === at ? (next ? [next] : []) : [one])),
    });
  return (
    <ul class="chips" aria-label="Stack filters">
      {filters.map((filter, at) => {
        const trouble = problemOf({ text: filter.regex, regex: true });
        return (
          <li class={`chip matcher${trouble ? ' bad' : ''}`} key={`${at}`} title={trouble}>
            <span class="chip-word">{FUNCTION}</span>
            <select
              aria-label="Operator of the stack filter"
              value={filter.op}
              onChange={(event) => change(at, { ...filter, op: event.currentTarget.value as FrameFilter['op'] })}
            >
              <option value="keep">only with</option>
              <option value="drop">without</option>
            </select>
            {editing === at ? (
              <RegexInput
                value={filter.regex}
                onDone={(regex) => {
                  setEditing(undefined);
                  if (regex !== undefined && regex !== filter.regex)
                    change(at, regex ? { ...filter, regex } : undefined);
                }}
              />
            ) : (
              <button
                type="button"
                class="chip-part"
                title="Change this filter"
                aria-label={`Change the pattern: ${say(filter.regex)}`}
                onClick={() => setEditing(at)}
              >
                <Name text={filter.regex} max={60} />
              </button>
            )}
            <button
              type="button"
              class="chip-close"
              aria-label="Remove this filter"
              onClick={() => change(at, undefined)}
            >
              <Icon of="close" />
            </button>
          </li>
        );
      })}
    </ul>
  );
}

function RegexInput({ value, onDone }: { value: string; onDone: (regex: string | undefined) => void }) {
  const [text, setText] = useState(value);
  return (
    <input
      type="text"
      class="chip-input"
      aria-label="Pattern of functions"
      spellcheck={false}
      autocomplete="off"
      ref={(input) => {
        if (input && document.activeElement !== input && text === value) input.focus();
      }}
      value={text}
      onInput={(event) => setText(event.currentTarget.value)}
      onBlur={() => onDone(text)}
      onKeyDown={(event) => {
        if (event.key === 'Enter') onDone(text);
        else if (event.key === 'Escape') onDone(undefined);
        else return;
        event.preventDefault();
        event.stopPropagation();
      }}
    />
  );
}
