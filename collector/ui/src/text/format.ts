// Numbers, times and sizes as people read them. Nothing here knows where they come from.

import { printable } from './printable';

const NS_PER_S = 1e9;

/** An integer with separators of thousands. */
export function count(value: number): string {
  return Math.round(value).toLocaleString('en');
}

/** Three significant digits, without an exponent for what people meet. */
export function significant(value: number, digits = 3): string {
  if (!Number.isFinite(value)) return '–';
  const size = Math.abs(value);
  // Less than six decimals tell is nothing.
  if (size < 5e-7) return '0';
  if (size >= 10 ** digits) return Math.round(value).toLocaleString('en');
  const places = Math.max(0, Math.min(6, digits - 1 - Math.floor(Math.log10(size))));
  return value.toFixed(places);
}

/** A part of a whole, as `12.3 %`; small parts do not become `0`. */
export function share(part: number, whole: number): string {
  if (!(whole > 0) || !Number.isFinite(part)) return '–';
  return percent(part / whole);
}

/** A fraction as `12.3 %`. */
export function percent(fraction: number): string {
  const value = fraction * 100;
  const size = Math.abs(value);
  if (size === 0) return '0 %';
  if (size < 0.01) return value < 0 ? '>−0.01 %' : '<0.01 %';
  const text = size < 1 ? size.toFixed(2) : size.toFixed(1);
  // 99.97 % is not all of it.
  return `${value < 0 ? '−' : ''}${text === '100.0' && size < 100 ? '99.9' : text} %`;
}

/** A change of a rate with its sign, whose unit stands elsewhere: `+1.25`, `+3.66 MiB`. */
export function signed(value: number, unit: string): string {
  const size = rateValue(Math.abs(value), unit);
  return `${size === '0' ? '±' : value < 0 ? '−' : '+'}${size}`;
}

/** A change of a share in percentage points: `+1.2 pp`. */
export function points(fraction: number): string {
  const value = fraction * 100;
  const size = Math.abs(value);
  const text = size >= 10 ? size.toFixed(1) : size.toFixed(2);
  return `${value < 0 ? '−' : '+'}${text} pp`;
}

/**
 * A length of time: `850 µs`, `1.24 s`, `4 min 03 s`, `2 h 05 min`, `3 d 04 h`. Unit: nanoseconds.
 */
export function duration(ns: number): string {
  if (!Number.isFinite(ns)) return '–';
  if (ns < 0) return `−${duration(-ns)}`;
  if (ns === 0) return '0 s';
  if (ns < 1e3) return `${Math.round(ns)} ns`;
  if (ns < 1e6) return `${significant(ns / 1e3)} µs`;
  if (ns < 999.5e6) return `${significant(ns / 1e6)} ms`;
  const seconds = ns / NS_PER_S;
  if (seconds < 59.95) return `${significant(seconds)} s`;
  return longDuration(Math.round(seconds));
}

function longDuration(seconds: number): string {
  const two = (value: number) => String(value).padStart(2, '0');
  const [minutes, hours, days] = [Math.floor(seconds / 60), Math.floor(seconds / 3600), Math.floor(seconds / 86_400)];
  if (minutes < 60) return seconds % 60 ? `${minutes} min ${two(seconds % 60)} s` : `${minutes} min`;
  if (hours < 48) return minutes % 60 ? `${hours} h ${two(minutes % 60)} min` : `${hours} h`;
  return hours % 24 ? `${days} d ${two(hours % 24)} h` : `${days} d`;
}

/** CPU time or events, by the unit the data has. */
export function weight(value: number, unit: string): string {
  if (unit === 'bytes') return bytes(value);
  return unit === 'nanoseconds' ? duration(value) : `${compact(value)} ${unit || 'samples'}`;
}

/** Units of weights in a column: the name, its size, and the weight from which on it is taken. */
type Scale = readonly (readonly [name: string, size: number, from: number])[];

const TIMES: Scale = [
  ['h', 3600e9, 60_000e9],
  ['min', 60e9, 1000e9],
  ['s', 1e9, 1e9],
  ['ms', 1e6, 1e6],
  ['µs', 1e3, 1e3],
  ['ns', 1, 0],
];
const BYTES: Scale = ['TiB', 'GiB', 'MiB', 'KiB', 'B'].map((name, at) => [name, 1024 ** (4 - at), 1024 ** (4 - at)]);
const COUNTS: Scale = ['T', 'G', 'M', 'k', ''].map((name, at) => [name, 1000 ** (4 - at), 1000 ** (4 - at)]);

/**
 * Writes the weights of a column, all in the unit of the largest and with the same decimals, so
 * that they compare by eye.
 */
export function weights(most: number, unit: string): (value: number) => string {
  const scale = unit === 'nanoseconds' ? TIMES : unit === 'bytes' ? BYTES : COUNTS;
  const [name, size] = scale.find(([, , from]) => most >= from) ?? scale[scale.length - 1];
  const places = size === 1 ? 0 : Math.max(0, 3 - Math.floor(Math.log10(most / size)));
  const least = 10 ** -places;
  const word = scale === COUNTS ? `${name} ${unit || 'samples'}`.trim() : name;
  return (value) => {
    const shown = value / size;
    const text =
      shown >= least / 2 ? (places > 0 ? shown.toFixed(places) : count(shown)) : value > 0 ? `<${least}` : '0';
    return `${text} ${word}`;
  };
}

/** A large number with a decimal prefix: `1.2 G`. */
export function compact(value: number): string {
  const size = Math.abs(value);
  for (const [limit, prefix] of [
    [1e15, 'P'],
    [1e12, 'T'],
    [1e9, 'G'],
    [1e6, 'M'],
    [1e4, 'k'],
  ] as const) {
    if (size >= limit) return `${significant(value / (prefix === 'k' ? 1e3 : limit))} ${prefix}`;
  }
  return Number.isInteger(value) ? count(value) : significant(value, 4);
}

/** Bytes with a binary prefix. */
export function bytes(value: number): string {
  if (value < 1024) return `${significant(value)} B`;
  const prefixes = ['KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  const power = Math.min(prefixes.length, Math.floor(Math.log2(value) / 10));
  return `${significant(value / 1024 ** power)} ${prefixes[power - 1]}`;
}

const two = (value: number) => String(value).padStart(2, '0');

/** Times are those of the reader's clock, or UTC. */
let isUtc = false;

/** Shows times in UTC from now on, or by the reader's clock; what is drawn stays as it is. */
export function showUtc(on = true): void {
  isUtc = on;
}

/** True while times are shown, and read, in UTC. */
export const inUtc = () => isUtc;

/** The zone that a time is shown in: `UTC`, `UTC+1`, `UTC−03:30`. */
export function zone(ms: number): string {
  const minutes = isUtc ? 0 : -new Date(ms).getTimezoneOffset();
  if (!Number.isFinite(minutes) || minutes === 0) return 'UTC';
  const [hours, rest] = [Math.floor(Math.abs(minutes) / 60), Math.abs(minutes) % 60];
  return `UTC${minutes < 0 ? '−' : '+'}${rest ? `${two(hours)}:${two(rest)}` : hours}`;
}

/** Date and time to the second, as they are typed: `2026-11-21 22:55:10`. */
export function written(ms: number): string {
  const at = new Date(ms);
  if (Number.isNaN(at.getTime())) return '–';
  if (isUtc) return at.toISOString().slice(0, 19).replace('T', ' ');
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
}

/** Date and time to the second with the zone: `2026-11-21 22:55:10 UTC+1`. */
export function stamp(ms: number): string {
  return `${written(ms)} ${zone(ms)}`;
}

/** Time of day to the second, where the zone stands elsewhere. */
export function clock(ms: number): string {
  return written(ms).slice(-8);
}

/** Time of day to the second with the zone: `22:55:10 UTC+1`. */
export function time(ms: number): string {
  return `${clock(ms)} ${zone(ms)}`;
}

/** Two times and their zone, the second without what it has in common with the first. */
export function span(fromMs: number, toMs: number): string {
  const [from, to] = [written(fromMs), written(toMs)];
  // Where the clocks change in between, each has its own.
  const own = zone(fromMs) === zone(toMs) ? '' : ` ${zone(fromMs)}`;
  const end = from.slice(0, 10) === to.slice(0, 10) ? to.slice(11) : to;
  return `${from}${own} – ${end} ${zone(toMs)}`;
}

/** How long ago: `12 s ago`; in the future: `in 3 s`. */
export function ago(ms: number, nowMs: number): string {
  const passed = nowMs - ms;
  if (Math.abs(passed) < 1000) return 'now';
  const text = duration(Math.round(Math.abs(passed) / 1000) * NS_PER_S);
  return passed < 0 ? `in ${text}` : `${text} ago`;
}

/** `1 host`, `2 hosts`. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${Math.round(value) === 1 ? one : many}`;
}

/** Id of the profile type whose words are used; empty: that of agents. */
let type = '';

/** Names what is measured, and rates of time, from now on for a profile type, by what it counts. */
export function nameType(id: string): void {
  type = id;
}

const counted = () => type.split(':')[1] ?? '';

const isCpu = () => type === '' || counted() === 'cpu';

/** A profile type: its sample type, and the name and the unit of the profile that it is of. */
export function typeWords(id: string): string {
  const [name, sample, unit] = id.split(':');
  return printable(`${sample} (${name}, ${unit})`).slice(0, 80);
}

/** What is measured: `CPU`, or what a profile type counts, such as `inuse_space`. */
export const measure = () => (isCpu() ? 'CPU' : printable(counted()).slice(0, 40));

/** Whether it was sent by others than agents, with series in place of the hosts of captures. */
export const ofSenders = () => type !== '' && !type.startsWith('captured:');

/** The same as what weights are: `CPU time`, `inuse_space`. */
export const measured = () => (isCpu() ? 'CPU time' : measure());

/** What rates of a unit are called: `cores`, `cycles/s`. */
export function rateUnit(unit: string): string {
  if (unit !== 'nanoseconds') return `${unit || 'samples'}/s`;
  return isCpu() ? 'cores' : 's/s';
}

/** A rate with its unit: `1.25 cores`, `3.66 MiB/s`. */
export function rate(value: number, unit: string): string {
  return unit === 'bytes' ? `${bytes(value)}/s` : `${significant(value)} ${rateUnit(unit)}`;
}

/** A rate where its unit stands elsewhere: `1.25`, `3.66 MiB`. */
export function rateValue(value: number, unit: string): string {
  return unit === 'bytes' ? bytes(value) : significant(value);
}

/** A rate that is not known, as the start of a sentence. */
export function rateUnknown(unit: string): string {
  return rateUnit(unit) === 'cores' ? 'How many cores a side had is not known' : 'The rate of a side is not known';
}
