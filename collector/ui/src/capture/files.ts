// A profile that only this page has, as files: folded stacks, and the project's own JSON with the
// times of samples. Other formats are written by `agent-ctl import` from the JSON.
//
// Text is escaped as the writers of the other programs do it, so that what one wrote the other
// reads.

import { END_WORDS, KIND_WORDS, TRUNCATED, UNNAMED_WORDS, isTruncated } from '../query/outcome';
import { type Timestamps, type Pick, firstAt } from '../query/timestamps';
import type { Profile } from '../query/profile';

/** Value of the key `schema`. */
export const SCHEMA = 'fleetprof.profile/1';

// Control characters, separators of lines, bidirectional controls, the byte order mark,
// non-characters.
const HOSTILE =
  /[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufdd0-\ufdef]|[\ufffe\uffff]|\p{Cs}/u;
const NON_CHARACTER = (point: number) => (point & 0xfffe) === 0xfffe;
const isHostile = (found: string) => HOSTILE.test(found) || NON_CHARACTER(found.codePointAt(0) ?? 0);

const PLAIN_CODES: Record<string, string> = { '\\': '\\\\', ';': '\\:', '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/** The text of one frame as it stands in folded stacks. */
export function escapeFolded(text: string): string {
  // A name must not read as a count, as a comment, or as a frame of another kind.
  const number = /\s[\d.]*$/u.test(text) && text.includes(' ') ? text.lastIndexOf(' ') : -1;
  const isNumber = number >= 0 && /^[\d.]*$/.test(text.slice(number + 1));
  const annotation = /_\[[^\]]\]$/u.test(text) ? text.lastIndexOf('_[') + 1 : -1;
  let [out, at] = ['', 0];
  for (const found of text) {
    const border = at === 0 || at + found.length === text.length;
    const space = /\s/u.test(found) && (border || (isNumber && at === number));
    const mark = (found === '#' && at === 0 && text.startsWith('# ')) || at === annotation;
    if (PLAIN_CODES[found] !== undefined) out += PLAIN_CODES[found];
    else if (space || mark || isHostile(found)) out += codeOf(found);
    else out += found;
    at += found.length;
  }
  return out;
}

function codeOf(found: string): string {
  const point = found.codePointAt(0) ?? 0;
  // Half of a pair is no character: what readers of UTF-8 make of it anyway.
  if (point >= 0xd800 && point < 0xe000) return '\ufffd';
  return point < 0x80 ? `\\x${point.toString(16).padStart(2, '0')}` : `\\u{${point.toString(16)}}`;
}

/**
 * Folded stacks: `root;…;leaf count`, sorted. Cut stacks stand under `[truncated]`, as in the
 * graph.
 */
export function folded(profile: Profile, values: Float64Array): string[] {
  const escaped = new Map<number, string>();
  const nameOf = (frame: number) => {
    const id = profile.fn[frame];
    const known = escaped.get(id) ?? (escapeFolded(profile.strings[id] ?? '') || '[unknown]');
    escaped.set(id, known);
    return known;
  };
  const sums = new Map<string, number>();
  for (let sample = 0; sample < values.length; sample++) {
    const path = pathOf(profile, profile.stack[sample]).map(nameOf);
    if (path.length === 0) path.push('[unknown]');
    if (isTruncated(profile.end[sample])) path.unshift(TRUNCATED);
    const key = path.join(';');
    sums.set(key, (sums.get(key) ?? 0) + values[sample]);
  }
  return [...sums.entries()]
    .sort(([left], [right]) => (left < right ? -1 : 1))
    .map(([key, value]) => `${key} ${whole(value)}\n`);
}

/** Frames of a stack, root first. */
function pathOf(profile: Profile, stack: number): number[] {
  const path: number[] = [];
  for (let at = stack; at !== 0; at = profile.parent[at]) path.push(profile.frame[at]);
  return path.reverse();
}

const whole = (value: number | bigint) => BigInt(typeof value === 'bigint' ? value : Math.round(value)).toString();

/** Text as JSON, safe to print and inside of HTML too. */
function text(value: string): string {
  return JSON.stringify(value).replace(/[<>&]|[^\u0020-\u007e]/gu, (found) => {
    if (!isHostile(found) && !/[<>&]/.test(found)) return found;
    return Array.from(
      { length: found.length },
      (_, at) => `\\u${found.charCodeAt(at).toString(16).padStart(4, '0')}`,
    ).join('');
  });
}

/**
 * JSON of a profile, in pieces. `timed`: the timestamps it has, and the part of them that it is of.
 */
export function json(profile: Profile, timed?: { timestamps: Timestamps; pick: Pick | undefined }): string[] {
  const { about } = profile;
  const order = profile.weight
    .map((_, sample) => sample)
    .sort((left, right) => profile.weight[right] - profile.weight[left] || left - right);
  const frames = new Map<number, number>();
  const samples = Array.from(order, (sample) => {
    const path = pathOf(profile, profile.stack[sample]).map((frame) => {
      const known = frames.get(frame) ?? frames.size;
      frames.set(frame, known);
      return known;
    });
    const end = text(END_WORDS[profile.end[sample]] ?? 'complete');
    return `{"count":${whole(profile.count[sample])},"weight":${whole(profile.weight[sample])},"labels":${labels(profile, profile.labels[sample])},"end":${end},"frames":[${path.join(',')}]}`;
  });
  const sum = (values: Float64Array) => whole(values.reduce((total, value) => total + value, 0));
  const pieces = [
    `{"schema":${text(SCHEMA)},\n"info":{"start_unix_ns":${about.startUnixNs},"duration_ns":${about.durationNs},"event":${text(about.event)},"unit":${text(profile.unit)},"period":${about.period}},\n`,
    `"quality":${numbers(QUALITY, about.sampling)},\n"coverage":${numbers(COVERAGE, about.coverage)},\n`,
    `"total":{"count":${sum(profile.count)},"weight":${sum(profile.weight)}},\n"frames":[\n`,
    ...lines([...frames.keys()].map((frame) => describe(profile, frame))),
    '],\n"samples":[\n',
    ...lines(samples),
    ']',
  ];
  if (timed) pieces.push(...times(profile, order, timed.timestamps, timed.pick));
  pieces.push('}\n');
  return pieces;
}

const lines = (items: readonly string[]) => items.map((item, at) => (at === 0 ? item : `,\n${item}`));

function describe(profile: Profile, frame: number): string {
  const parts = [
    `"function":${text(profile.strings[profile.fn[frame]])}`,
    `"kind":${text(KIND_WORDS[profile.kind[frame]] ?? 'native')}`,
  ];
  for (const [key, id] of [
    ['system_name', profile.systemName[frame]],
    ['module', profile.module[frame]],
    ['file', profile.file[frame]],
  ] as const) {
    if (profile.strings[id]) parts.push(`"${key}":${text(profile.strings[id])}`);
  }
  if (profile.line[frame] > 0) parts.push(`"line":${profile.line[frame]}`);
  const unnamed = UNNAMED_WORDS[profile.unnamed[frame]];
  if (profile.unnamed[frame] > 0 && unnamed) parts.push(`"unnamed":${text(unnamed)}`);
  return `{${parts.join(',')}}`;
}

function labels(profile: Profile, set: number): string {
  const pairs = profile.labelSets[set];
  const parts = new Map<string, string>();
  for (let at = 0; at < pairs.length; at += 2)
    parts.set(text(profile.strings[pairs[at]]), text(profile.strings[pairs[at + 1]]));
  return `{${[...parts]
    .sort(([left], [right]) => (left < right ? -1 : 1))
    .map(([key, value]) => `${key}:${value}`)
    .join(',')}}`;
}

const QUALITY = {
  taken: 'taken',
  idle: 'idle',
  lost: 'lost',
  throttled: 'throttled',
  folded: 'folded',
  truncated: 'truncated',
  depth_limit: 'depthLimit',
  unnamed: 'unnamed',
  malformed: 'malformed',
  lost_samples: 'lostSamples',
  reduced: 'reduced',
  lost_late: 'lostLate',
};
const COVERAGE = {
  expected_ns: 'expectedNs',
  estimated_ns: 'estimatedNs',
  expected_samples: 'expectedSamples',
  taken_ns: 'takenNs',
  windows: 'windows',
  windows_unmeasured: 'windowsUnmeasured',
};

function numbers(keys: Record<string, string>, of: object | undefined): string {
  const values = of as Record<string, bigint> | undefined;
  return `{${Object.entries(keys)
    .map(([key, field]) => `"${key}":${values?.[field] ?? 0n}`)
    .join(',')}}`;
}

/**
 * Timestamps of the samples, by their places in the file; those of samples that are not there are
 * counted.
 */
function times(profile: Profile, order: Float64Array, timestamps: Timestamps, pick: Pick | undefined): string[] {
  const key = (labelSet: number, stack: number, end: number) => `${labelSet} ${stack} ${end}`;
  const places = new Map<string, number>();
  for (const [place, sample] of order.entries())
    places.set(key(profile.labels[sample], profile.stack[sample], profile.end[sample]), place);
  const placeOf = Array.from(timestamps.keys.stack, (stack, row) =>
    places.get(key(timestamps.keys.labels[row], stack, timestamps.keys.end[row])),
  );
  const { from, until } = pick ?? { from: 0, until: timestamps.durationNs };
  const [first, end] = [firstAt(timestamps, from), firstAt(timestamps, until)];
  const columns: [after: string[], sample: number[], weight: string[]] = [[], [], []];
  let [before, dropped] = [from, pick ? 0 : timestamps.dropped];
  for (let index = first; index < end; index++) {
    const place = placeOf[timestamps.row[index]];
    if (place === undefined) {
      dropped++;
      continue;
    }
    columns[0].push(whole(timestamps.at[index] - before));
    columns[1].push(place);
    columns[2].push(whole(timestamps.weight[index]));
    before = timestamps.at[index];
  }
  const start = timestamps.startUnixNs + BigInt(Math.round(from));
  return [
    `,\n"timestamps":{"start_unix_ns":${start},"duration_ns":${whole(until - from)},"dropped":${whole(dropped)},"after_ns":[`,
    columns[0].join(','),
    '],"sample":[',
    columns[1].join(','),
    '],"weight":[',
    columns[2].join(','),
    ']}',
  ];
}
