// The input of a selector, with completion of names and values. Errors are shown at their position.

import { useEffect, useId, useRef, useState } from 'preact/hooks';
import { say } from '../app/parts';
import { clipped } from '../text/printable';
import type { Range } from '../time/range';
import { labelNames, labelValues } from './client';
import { type Suggestion, completed } from './complete';
import { OP_WORDS, type Place, parse, placeAt, problem, writeAll } from './selector';

/** How long after a key the collector is asked. Unit: milliseconds. */
const DEBOUNCE_MS = 120;

interface Props {
  value: string;
  range: Range | undefined;
  /** Id of the profile type whose labels are completed; absent: those of agents. */
  type?: string | undefined;
  label: string;
  onChange: (value: string) => void;
  /** Told of every key, of what is not valid too. */
  onText?: (text: string) => void;
  placeholder?: string;
  /** What else is selected, when it is one filter of several: values are of what that leaves. */
  beside?: string;
  /** Labels that are the page's own, such as `function`. */
  extra?: readonly string[];
  /** It opens to change one filter: it has the focus; Escape or leaving it unchanged closes it. */
  onLeave?: () => void;
}

const NONE: readonly string[] = [];

export function SelectorInput(props: Props) {
  const { text, setText, place, active, input, suggestions, wrong, open, pending, look, commit, choose, onKeyDown } =
    useField(props);
  const id = useId();
  return (
    <div class="selector">
      <input
        ref={input}
        type="text"
        role="combobox"
        aria-label={props.label}
        aria-expanded={open}
        aria-controls={`${id}-list`}
        aria-activedescendant={open && active >= 0 ? `${id}-${active}` : undefined}
        aria-autocomplete="list"
        aria-invalid={!!wrong && !place}
        aria-describedby={`${id}-note`}
        placeholder={props.placeholder ?? 'Filter, e.g. unit="nginx.service". Empty = all hosts'}
        spellcheck={false}
        autocomplete="off"
        dir="ltr"
        value={text}
        onInput={(event) => {
          setText(event.currentTarget.value);
          props.onText?.(event.currentTarget.value);
          look();
        }}
        onClick={look}
        onFocus={look}
        onKeyUp={(event) =>
          (event.key === 'ArrowLeft' || event.key === 'ArrowRight' || event.key === 'Home' || event.key === 'End') &&
          look()
        }
        onKeyDown={onKeyDown}
        onBlur={commit}
      />
      {pending && (
        <span class="pending" aria-live="polite">
          {wrong ? 'not complete yet' : 'Enter to apply'}
        </span>
      )}
      <Completions id={id} open={open} values={suggestions} active={active} onChoose={choose} />
      <p id={`${id}-note`} class={wrong && !place ? 'wrong' : 'hidden'} aria-live="polite">
        {wrong && !place ? `At character ${wrong.at + 1}: ${say(wrong.message)}` : ''}
      </p>
    </div>
  );
}

/** What is written in the field, and what its events do. */
function useField({ value, range, type = '', onChange, onText, beside = '', extra = NONE, onLeave }: Props) {
  const [text, setText] = useState(value);
  const [place, setPlace] = useState<Place>();
  const [active, setActive] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => setText(value), [value]);
  useEffect(() => {
    const left = () => setPlace(undefined);
    addEventListener('popstate', left);
    return () => removeEventListener('popstate', left);
  }, []);
  useEffect(() => {
    if (!onLeave) return;
    input.current?.focus();
    input.current?.select();
  }, []);
  const suggestions = useSuggestions(text, place, range, { type, beside, extra });
  const wrong = problem(text);
  const open = place !== undefined && suggestions.length > 0;

  const look = () => {
    const field = input.current;
    setActive(-1);
    setPlace(field ? placeAt(field.value, field.selectionStart ?? field.value.length) : undefined);
  };
  const pending = text.trim() !== value.trim() && text.trim() !== '';
  const commit = () => {
    setPlace(undefined);
    if (!wrong && text.trim() !== value.trim()) {
      onChange(text.trim());
      // Where filters are added the field is empty again.
      if (value === '') setText('');
    }
  };
  const leave = () => {
    commit();
    onLeave?.();
  };
  const choose = (chosen: Suggestion) => {
    if (!place) return;
    const isValue = chosen.kind === 'value';
    const { text: next, caret } = completed(text, place, chosen);
    setText(next);
    onText?.(next);
    requestAnimationFrame(() => {
      input.current?.setSelectionRange(caret, caret);
      if (isValue) setPlace(undefined);
      else setPlace(placeAt(next, caret));
      setActive(-1);
    });
    if (isValue && !problem(next)) {
      onChange(next);
      onLeave?.();
      if (value === '') setText('');
    }
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'ArrowDown' || event.key === 'ArrowUp') {
      event.preventDefault();
      if (!open) return look();
      const step = event.key === 'ArrowDown' ? 1 : -1;
      setActive((active + step + suggestions.length + (active < 0 && step < 0 ? 1 : 0)) % suggestions.length);
    } else if (event.key === 'Enter') {
      event.preventDefault();
      if (open && active >= 0) choose(suggestions[active]);
      else if (wrong) setPlace(undefined);
      else leave();
    } else if (event.key === 'Tab' && open && active >= 0) {
      event.preventDefault();
      choose(suggestions[active]);
    } else if (event.key === 'Escape') {
      event.stopPropagation();
      // Around it there may be a dialog, which the key would close.
      if (place) event.preventDefault();
      if (place) setPlace(undefined);
      else {
        setText(value);
        onLeave?.();
      }
    }
  };
  return {
    text,
    setText,
    place,
    active,
    input,
    suggestions,
    wrong,
    open,
    pending,
    look,
    commit: leave,
    choose,
    onKeyDown,
  };
}

function Completions(props: {
  id: string;
  open: boolean;
  values: readonly Suggestion[];
  active: number;
  onChoose: (value: Suggestion) => void;
}) {
  const { id, open, values, active } = props;
  return (
    <ul
      id={`${id}-list`}
      class={open ? 'panel floating suggestions' : 'hidden'}
      role="listbox"
      aria-label="Completions"
    >
      {values.map((one, at) => (
        // The focus stays in the field, which commits when it loses it.
        <li
          key={`${one.kind}${one.text}`}
          id={`${id}-${at}`}
          role="option"
          aria-selected={at === active}
          class={at === active ? 'active' : ''}
          onPointerDown={(event) => event.preventDefault()}
          onClick={() => props.onChoose(one)}
        >
          <bdi dir="ltr">{clipped(one.text, 120)}</bdi>
          {one.words && <span class="soft"> {one.words}</span>}
        </li>
      ))}
    </ul>
  );
}

/** Suggestions for what is being written; what is not known yet is an empty list. */
function useSuggestions(text: string, place: Place | undefined, range: Range | undefined, of: Around): Suggestion[] {
  const [found, setFound] = useState<{ key: string; values: Suggestion[] }>({ key: '', values: [] });
  const key = place && range ? JSON.stringify([place.kind, place.label, place.op, place.prefix]) : '';
  useEffect(() => {
    if (!place || !range || key === '') return;
    const control = new AbortController();
    const timer = setTimeout(() => {
      suggest(text, place, range, of, control.signal).then(
        (values) => !control.signal.aborted && setFound({ key, values }),
        // Completion is a help: without an answer there is none, and the question itself will say
        // why.
        () => !control.signal.aborted && setFound({ key, values: [] }),
      );
    }, DEBOUNCE_MS);
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [key]);
  return found.key === key ? found.values : [];
}

/** The profile type, what else is selected, and labels that the collector does not know. */
interface Around {
  type: string;
  beside: string;
  extra: readonly string[];
}

const operators = (prefix: string): Suggestion[] =>
  OP_WORDS.filter(([op]) => op.startsWith(prefix)).map(([text, words]) => ({ kind: 'operator', text, words }));

async function suggest(
  text: string,
  place: Place,
  range: Range,
  { type, beside, extra }: Around,
  signal: AbortSignal,
): Promise<Suggestion[]> {
  if (place.kind === 'operator') return operators(place.prefix);
  if (place.kind === 'label') {
    const names = [...(await labelNames(range, signal, type)), ...extra];
    const matching = names.filter((name) => name.startsWith(place.prefix));
    const isWhole = matching.includes(place.prefix);
    const longer = matching
      .filter((name) => name !== place.prefix)
      .map((name) => ({ kind: 'label', text: name }) as const);
    return isWhole ? [...operators(''), ...longer] : longer;
  }
  if (extra.includes(place.label)) return [];
  // A pattern is not a prefix beyond its first special character.
  const prefix =
    place.op === '=~' || place.op === '!~' ? (/^[^\\.^$*+?()[\]{}|]*/.exec(place.prefix)?.[0] ?? '') : place.prefix;
  const rest = [beside, others(text, place)].filter((one) => one !== '').join(', ');
  const answer = await labelValues({ range, query: rest, type }, place.label, prefix, signal);
  if (answer.values.length === 1 && answer.values[0] === place.prefix) return [];
  return answer.values.map((value) => ({ kind: 'value', text: value }));
}

/** The matchers beside the one that is being written; none where the text cannot be read. */
function others(text: string, place: Place): string {
  for (const attempt of [text, `${text.slice(0, place.start)}""${text.slice(place.end)}`]) {
    try {
      return writeAll(parse(attempt).filter((one) => !(one.start <= place.start && one.end >= place.start)));
    } catch {
      // Cut further back.
    }
  }
  return '';
}
