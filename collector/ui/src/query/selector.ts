// The text form of selectors, as the collector reads it: `unit="nginx.service",comm=~"ja.*"`.
//
// Parsed here to tell a mistake while it is typed, to complete names and values, and to add and
// remove matchers by click. The collector parses the text again; patterns are judged there alone.

import { type LabelMatcher, MatchOp } from '../gen/fleetprof/agent/v1/agent_pb';

/** `^=` is the cgroup path itself and everything below it. */
export type Op = '=' | '!=' | '=~' | '!~' | '^=';

export interface Matcher {
  label: string;
  op: Op;
  value: string;
}

/** A matcher and where it stands in the text. */
export interface Placed extends Matcher {
  start: number;
  end: number;
}

/** What stands in the way, and where. */
export class SelectorError extends Error {
  constructor(
    readonly at: number,
    message: string,
  ) {
    super(message);
  }
}

/** Longest selector the collector reads. Unit: bytes; characters are never fewer bytes. */
export const SELECTOR_LEN_MAX = 64 << 10;

// Longest first, because `=` starts `=~`.
const OPS: readonly Op[] = ['!=', '=~', '!~', '^=', '='];

/** Operators as they are offered, and what they say. */
export const OP_WORDS: readonly (readonly [op: Op, words: string])[] = [
  ['=', 'is'],
  ['!=', 'is not'],
  ['=~', 'matches a regular expression'],
  ['!~', 'does not match'],
  ['^=', 'is this path or below it'],
];
const LABEL_START = /[A-Za-z_]/;
const LABEL_PART = /[A-Za-z0-9_./-]/;
const BARE_END = /[\s,{}"'`]/;

/** What the caret stands in. */
export interface Place {
  kind: 'label' | 'operator' | 'value';
  /** The label whose value or operator it is; empty for a label. */
  label: string;
  op: Op;
  /** What is written of it, escapes taken back. */
  prefix: string;
  /** The part of the text that a completion replaces. */
  start: number;
  end: number;
}

class Parser {
  at = 0;
  readonly matchers: Placed[] = [];

  constructor(readonly text: string) {}

  peek(): string {
    return this.text.charAt(this.at);
  }

  skipSpace(): void {
    while (/\s/.test(this.peek())) this.at++;
  }

  unexpected(expected: string): SelectorError {
    const found = this.peek();
    return new SelectorError(this.at, `expected ${expected}, found ${found === '' ? 'the end' : `\`${found}\``}`);
  }

  label(): string {
    if (/["'`]/.test(this.peek()) && this.peek() !== '') return this.quoted();
    if (!LABEL_START.test(this.peek())) throw this.unexpected('a label');
    return this.run((found) => LABEL_PART.test(found));
  }

  operator(): Op {
    const op = OPS.find((one) => this.text.startsWith(one, this.at));
    if (!op) throw this.unexpected('one of `=`, `!=`, `=~`, `!~`, `^=`');
    this.at += op.length;
    return op;
  }

  value(): string {
    if (/["'`]/.test(this.peek()) && this.peek() !== '') return this.quoted();
    const bare = this.run((found) => !BARE_END.test(found));
    if (bare === '') throw this.unexpected('a value');
    return bare;
  }

  run(belongs: (found: string) => boolean): string {
    const start = this.at;
    while (this.at < this.text.length && belongs(this.peek())) this.at++;
    return this.text.slice(start, this.at);
  }

  quoted(): string {
    const quote = this.peek();
    this.at++;
    let value = '';
    for (;;) {
      const found = this.peek();
      if (found === '') throw this.unexpected('the closing quote');
      if (found === '\\' && quote !== '`') {
        value += this.escape();
        continue;
      }
      this.at++;
      if (found === quote) return value;
      value += found;
    }
  }

  escape(): string {
    const rest = this.text.slice(this.at + 1, this.at + 12);
    const plain: Record<string, string> = { n: '\n', r: '\r', t: '\t', '\\': '\\', '"': '"', "'": "'", '`': '`' };
    const first = rest.charAt(0);
    if (first in plain) {
      this.at += 2;
      return plain[first];
    }
    const code = /^x([0-7][0-9a-fA-F])|^u\{([0-9a-fA-F]{1,6})\}/.exec(rest);
    const point = code ? parseInt(code[1] ?? code[2], 16) : NaN;
    if (!code || !(point <= 0x10ffff) || (point >= 0xd800 && point < 0xe000)) {
      throw new SelectorError(
        this.at,
        `unknown escape \`\\${first}\`: write \`\\\\\` for a backslash, or put the value in back quotes`,
      );
    }
    this.at += 1 + code[0].length;
    return String.fromCodePoint(point);
  }

  matcher(): void {
    const start = this.at;
    const label = this.label();
    this.skipSpace();
    const op = this.operator();
    this.skipSpace();
    const value = this.value();
    if (op === '^=' && value === '') throw new SelectorError(start, 'a subtree needs a path: `/` for all');
    this.matchers.push({ label, op, value, start, end: this.at });
  }

  all(): void {
    this.skipSpace();
    const braced = this.peek() === '{';
    if (braced) this.at++;
    for (;;) {
      this.skipSpace();
      if (braced && this.peek() === '}') {
        this.at++;
        this.skipSpace();
        if (this.peek() !== '') throw this.unexpected('the end after `}`');
        return;
      }
      if (!braced && this.peek() === '') return;
      this.matcher();
      this.skipSpace();
      if (this.peek() === ',') this.at++;
      else if (braced ? this.peek() !== '}' : this.peek() !== '') {
        throw this.unexpected(braced ? '`,` or `}`' : '`,` or the end');
      }
    }
  }
}

/**
 * The matchers of a text.
 * @throws SelectorError
 */
export function parse(text: string): Placed[] {
  if (text.length > SELECTOR_LEN_MAX)
    throw new SelectorError(0, `the selector has ${text.length} characters, at most ${SELECTOR_LEN_MAX} are allowed`);
  const parser = new Parser(text);
  parser.all();
  return parser.matchers;
}

/** What is wrong with a text; undefined when nothing is. */
export function problem(text: string): SelectorError | undefined {
  try {
    parse(text);
    return undefined;
  } catch (error) {
    return error as SelectorError;
  }
}

// What would not survive being read, or being looked at, is written as a code.
const CODED = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/gu;

/** A value in double quotes. */
export function quote(value: string): string {
  const escaped = value.replace(/["\\]/g, '\\$&').replace(CODED, (found) => {
    const plain: Record<string, string> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };
    return plain[found] ?? `\\u{${found.codePointAt(0)?.toString(16)}}`;
  });
  return `"${escaped}"`;
}

const SPECIAL = /[\\^$.*+?()[\]{}|/]/g;

/**
 * The matcher with another operator, which selects the same value as far as that is possible: a
 * value becomes a pattern of itself, and a pattern without anything special a value.
 */
export function withOp(matcher: Matcher, op: Op): Matcher {
  const isPattern = (one: Op) => one === '=~' || one === '!~';
  const { label, value } = matcher;
  if (isPattern(op) === isPattern(matcher.op)) return { label, op, value };
  if (isPattern(op)) return { label, op, value: value.replace(SPECIAL, '\\$&') };
  const plain = value.replace(/\\([\\^$.*+?()[\]{}|/])/g, '$1');
  return { label, op, value: plain.replace(SPECIAL, '\\$&') === value ? plain : value };
}

/** The text of one matcher. */
export function write(matcher: Matcher): string {
  const plain = /^[A-Za-z_][A-Za-z0-9_.]*$/.test(matcher.label);
  return `${plain ? matcher.label : quote(matcher.label)}${matcher.op}${quote(matcher.value)}`;
}

const SENT: Record<MatchOp, Op> = {
  [MatchOp.UNSPECIFIED]: '=',
  [MatchOp.EQUAL]: '=',
  [MatchOp.NOT_EQUAL]: '!=',
  [MatchOp.REGEX]: '=~',
  [MatchOp.NOT_REGEX]: '!~',
  [MatchOp.SUBTREE]: '^=',
};

/** The text of matchers as they are sent. */
export function writeSent(matchers: readonly LabelMatcher[]): string {
  return writeAll(matchers.map(({ label, op, value }) => ({ label, op: SENT[op], value })));
}

/** The text of matchers. */
export function writeAll(matchers: readonly Matcher[]): string {
  return matchers.map(write).join(', ');
}

/**
 * The text with one more matcher. Equality takes the place of what was said of the same label by
 * equality, so that a click on another host goes there; the rest stays as written.
 */
export function withMatcher(text: string, added: Matcher): string {
  let matchers: Matcher[];
  try {
    matchers = parse(text);
  } catch {
    // What cannot be read cannot be added to: the click wins.
    return write(added);
  }
  const replaces = (old: Matcher) =>
    old.label === added.label && old.op === added.op && added.op !== '!=' && added.op !== '!~';
  const rest = matchers.filter(
    (old) => !replaces(old) && !(old.label === added.label && old.op === added.op && old.value === added.value),
  );
  return writeAll([...rest, added]);
}

/** The text without the matcher at this place of the list. */
export function withoutMatcher(text: string, index: number): string {
  return writeAll(parse(text).filter((_, at) => at !== index));
}

/** What could be completed at the caret; undefined where nothing can. */
export function placeAt(text: string, caret: number): Place | undefined {
  const parser = new Parser(text.slice(0, caret));
  parser.skipSpace();
  if (parser.peek() === '{') parser.at++;
  for (;;) {
    parser.skipSpace();
    const start = parser.at;
    let label = '';
    try {
      label = parser.label();
      const afterLabel = parser.at;
      if (afterLabel === caret)
        return { kind: 'label', label: '', op: '=', prefix: label, start, end: labelEnd(text, caret) };
      parser.skipSpace();
      const opStart = parser.at;
      const written = text.slice(opStart, caret);
      if (written === '' || written === '!' || written === '^')
        return { kind: 'operator', label, op: '=', prefix: written, start: opStart, end: caret };
      const op = parser.operator();
      parser.skipSpace();
      const valueStart = parser.at;
      const opened = /["'`]/.test(text.charAt(valueStart)) ? text.charAt(valueStart) : '';
      let value: string;
      try {
        value = parser.value();
      } catch {
        const raw = text.slice(valueStart + opened.length, caret);
        return {
          kind: 'value',
          label,
          op,
          prefix: unescaped(raw, opened),
          start: valueStart,
          end: valueEnd(text, valueStart, opened, caret),
        };
      }
      const closed = opened !== '' && text.charAt(parser.at - 1) === opened;
      if (parser.at === caret && !closed) {
        return {
          kind: 'value',
          label,
          op,
          prefix: value,
          start: valueStart,
          end: valueEnd(text, valueStart, opened, caret),
        };
      }
      parser.skipSpace();
      if (parser.peek() !== ',') return undefined;
      parser.at++;
    } catch {
      if (parser.at < caret || label !== '') return undefined;
      return { kind: 'label', label: '', op: '=', prefix: '', start, end: labelEnd(text, caret) };
    }
  }
}

function labelEnd(text: string, caret: number): number {
  let end = caret;
  while (end < text.length && LABEL_PART.test(text.charAt(end))) end++;
  return end;
}

function valueEnd(text: string, start: number, opened: string, caret: number): number {
  if (opened === '') {
    let end = caret;
    while (end < text.length && !BARE_END.test(text.charAt(end))) end++;
    return end;
  }
  const whole = new Parser(text);
  whole.at = start;
  try {
    whole.quoted();
    return whole.at;
  } catch {
    return text.length;
  }
}

function unescaped(raw: string, opened: string): string {
  const parser = new Parser(`${opened || '"'}${raw}${opened || '"'}`);
  try {
    return parser.quoted();
  } catch {
    return raw;
  }
}
