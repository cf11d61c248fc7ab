// Ranges of time as people write them, and as the protocol has them.
//
// An end of a range is `now`, `now-1h30m`, a date (`2026-11-21 22:00`, ISO with or without zone),
// or milliseconds since the epoch. What is written stays in the address; it is resolved when it is
// asked.

import { inUtc, written, zone } from '../text/format';

/** Both ends as written. */
export interface Spec {
  from: string;
  to: string;
}

/** Half open. Unit: milliseconds since the epoch. */
export interface Range {
  from: number;
  to: number;
}

/** Nanoseconds of the protocol are 64 bits: times beyond this year do not fit. */
const LATEST_MS = Date.UTC(2262, 0, 1);

const UNIT_MS: Record<string, number> = { s: 1e3, m: 60e3, h: 3600e3, d: 86_400e3, w: 7 * 86_400e3, y: 365 * 86_400e3 };

/** Ranges offered by the picker. */
export const PRESETS: readonly { label: string; from: string }[] = [
  { label: 'Last 5 minutes', from: 'now-5m' },
  { label: 'Last 15 minutes', from: 'now-15m' },
  { label: 'Last 30 minutes', from: 'now-30m' },
  { label: 'Last hour', from: 'now-1h' },
  { label: 'Last 3 hours', from: 'now-3h' },
  { label: 'Last 6 hours', from: 'now-6h' },
  { label: 'Last 24 hours', from: 'now-24h' },
  { label: 'Last 2 days', from: 'now-2d' },
  { label: 'Last 7 days', from: 'now-7d' },
  { label: 'Last 30 days', from: 'now-30d' },
  { label: 'Last year', from: 'now-1y' },
];

/** Milliseconds of `1h30m`, `2d12h`, `1w` or `1y` (of 365 days), or undefined. */
export function lengthMs(text: string): number | undefined {
  const parts = [...text.matchAll(/(\d+(?:\.\d+)?)([smhdwy])/g)];
  if (!parts.length || parts.map((part) => part[0]).join('') !== text) return undefined;
  const sum = parts.reduce((total, part) => total + Number(part[1]) * UNIT_MS[part[2]], 0);
  return Number.isFinite(sum) && sum < LATEST_MS ? sum : undefined;
}

/** The instant that a text means, or undefined. */
export function instant(text: string, nowMs: number): number | undefined {
  const trimmed = text.trim();
  const relative = /^now(?:\s*-\s*(\S+))?$/.exec(trimmed);
  if (relative) {
    const back = relative[1] === undefined ? 0 : lengthMs(relative[1]);
    return back === undefined || back > nowMs ? undefined : nowMs - back;
  }
  if (/^\d{11,14}$/.test(trimmed)) return inBounds(Number(trimmed));
  // A date alone is midnight in the zone that is shown, and so is a time without zone.
  const date = /^(\d{4}-\d{2}-\d{2})(?:[ T](\d{1,2}:\d{2}(?::\d{2}(?:\.\d{1,3})?)?)(Z|[+-]\d{2}:?\d{2})?)?$/.exec(
    trimmed,
  );
  if (!date) return undefined;
  const time = (date[2] ?? '00:00').padStart(5, '0');
  return inBounds(
    Date.parse(
      `${date[1]}T${time.length < 5 ? `0${time}` : time.replace(/^(\d):/, '0$1:')}${date[3] ?? (inUtc() ? 'Z' : '')}`,
    ),
  );
}

function inBounds(ms: number): number | undefined {
  return ms >= 0 && ms < LATEST_MS ? ms : undefined;
}

/** True when the text moves with the clock. */
export function isRelative(text: string): boolean {
  return text.trim().startsWith('now');
}

/** Said of a range whose ends are in each other's place. */
export const BACKWARDS = 'The range ends before it starts';

/** The range, or a sentence that says what is wrong with it. */
export function resolve(spec: Spec, nowMs: number): Range | string {
  const from = instant(spec.from, nowMs);
  const to = instant(spec.to, nowMs);
  const forms = 'Try now-1h or 2026-11-21 22:00';
  if (from === undefined) return `"From" is not a valid time. ${forms}`;
  if (to === undefined) return `"To" is not a valid time. ${forms}`;
  if (from >= to) return BACKWARDS;
  return { from, to };
}

/** An instant as it stands in the address. */
export function absolute(ms: number): string {
  return new Date(ms).toISOString().replace(/\.000Z$/, 'Z');
}

/** A range as it stands in the address. */
export function absoluteSpec(range: Range): Spec {
  return { from: absolute(range.from), to: absolute(range.to) };
}

/** Moves a range by a fraction of its length, not past now. */
export function shifted(range: Range, by: number, nowMs: number): Range {
  const length = range.to - range.from;
  const to = Math.min(range.to + length * by, Math.max(nowMs, range.to));
  return { from: Math.max(0, Math.round(to - length)), to: Math.round(to) };
}

/** Twice the range around the same middle, not past now. */
export function widened(range: Range, nowMs: number): Range {
  const length = range.to - range.from;
  const to = Math.min(range.to + length / 2, Math.max(nowMs, range.to));
  return { from: Math.max(0, Math.round(to - 2 * length)), to: Math.round(to) };
}

/** The range of the same length right before this one. */
export function before(range: Range): Range {
  return { from: Math.max(0, range.from - (range.to - range.from)), to: range.from };
}

/** What the picker's button says. */
export function title(spec: Spec): string {
  const preset = spec.to === 'now' && PRESETS.find((one) => one.from === spec.from);
  if (preset) return preset.label;
  const local = (text: string) => {
    const at = isRelative(text) ? undefined : instant(text, 0);
    if (at === undefined) return text;
    return written(at).replace(/:00$/, '');
  };
  const [from, to] = [local(spec.from), local(spec.to)];
  const sameDay = !isRelative(spec.from) && !isRelative(spec.to) && from.slice(0, 10) === to.slice(0, 10);
  const last = instant(spec.to, 0);
  const name = isRelative(spec.to) || last === undefined ? '' : ` ${zone(last)}`;
  return `${from} – ${sameDay ? to.slice(11) : to}${name}`;
}

/** Nanoseconds of the protocol. */
export function toNs(ms: number): bigint {
  return BigInt(Math.round(ms)) * 1_000_000n;
}

/** Milliseconds of a protocol time. */
export function toMs(ns: bigint): number {
  return Number(ns / 1_000_000n);
}
