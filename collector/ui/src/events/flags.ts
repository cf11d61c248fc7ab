// What is marked on a chart: pins, deploys and notes as flags, those that would cover each other as
// one.

import { amount, labelsOf } from '../alerts/words';
import { collectorTrouble, isUnknownCall } from '../query/collectorErrors';
import * as format from '../text/format';
import { type Range, toMs } from '../time/range';
import type { Events } from './client';

/** Something that happened. */
export interface Happening {
  key: string;
  kind: 'pin' | 'alert' | 'deploy' | 'note';
  /** Unit: milliseconds. */
  at: number;
  /** Where it has a length. */
  until: number | undefined;
  text: string;
  /** More of it, in words. */
  about: string;
  /** Number of the pin; empty: none. */
  pin: string;
  /** A page elsewhere; empty: none. */
  url: string;
}

/** Those of a place on a chart. */
export interface Flag {
  /** Part of the width. */
  at: number;
  of: readonly Happening[];
}

/** Only what leads to a page may be a link: the collector checks, and so does the page. */
export function webUrl(text: string): string {
  try {
    const url = new URL(text);
    return url.protocol === 'https:' || url.protocol === 'http:' ? url.href : '';
  } catch {
    return '';
  }
}

/** All of them, the oldest first. */
export function happenings({
  pins,
  annotations,
  alerts = [],
}: Pick<Events, 'pins' | 'annotations'> & Partial<Pick<Events, 'alerts'>>): Happening[] {
  const all: Happening[] = [];
  for (const one of pins) {
    const { pin } = one;
    if (!pin) continue;
    all.push({
      key: `pin-${one.id}`,
      kind: 'pin',
      at: toMs(pin.firedUnixNs),
      until: undefined,
      text: pin.trigger || 'a trigger fired',
      about: [one.hostname || one.hostId, pin.cause].filter(Boolean).join(': '),
      pin: String(one.id),
      url: '',
    });
  }
  for (const one of annotations) {
    const by = one.by === 'collector' ? 'found by the collector' : `by ${one.by}`;
    const hosts = one.hosts > 0n ? `on ${format.plural(Number(one.hosts), 'host')}` : '';
    all.push({
      key: `event-${one.id}`,
      kind: one.kind === 'deploy' ? 'deploy' : 'note',
      at: toMs(one.startUnixNs),
      until: one.endUnixNs > one.startUnixNs ? toMs(one.endUnixNs) : undefined,
      text: one.text,
      about: [hosts, by].filter(Boolean).join(', '),
      pin: '',
      url: webUrl(one.url),
    });
  }
  for (const one of alerts) {
    // Only what fired is of a time that charts can mark.
    if (one.firedUnixNs === 0n) continue;
    all.push({
      key: `alert-${one.id}`,
      kind: 'alert',
      at: toMs(one.firedUnixNs),
      until: one.resolvedUnixNs ? toMs(one.resolvedUnixNs) : undefined,
      text: one.rule,
      about: [labelsOf(one), amount(one.value, one.unit)].filter(Boolean).join(', '),
      pin: '',
      url: '',
    });
  }
  return all.sort((left, right) => left.at - right.at);
}

/** Flags of a range that is drawn over so many pixels: each needs `room` of them. */
export function flags(all: readonly Happening[], range: Range, width: number, room: number): Flag[] {
  const made: { at: number; of: Happening[] }[] = [];
  const length = Math.max(range.to - range.from, 1);
  for (const one of all) {
    // What started before the range and lasts stands at its edge.
    const at = Math.max(0, (one.at - range.from) / length);
    if (at > 1 || (one.at < range.from && (one.until ?? 0) < range.from)) continue;
    const last = made.at(-1);
    if (last && (at - last.at) * width < room) last.of.push(one);
    else made.push({ at, of: [one] });
  }
  return made;
}

/** What of an answer is not marked, if anything. */
export function missingOf(answer: PromiseSettledResult<{ leftOut: bigint }>, what: string): string[] {
  if (answer.status === 'fulfilled') {
    const { leftOut } = answer.value;
    return leftOut > 0n
      ? [`${format.count(Number(leftOut))} older ${what} are not marked: choose a shorter range`]
      : [];
  }
  // An older collector has none.
  if (isUnknownCall(answer.reason)) return [];
  const trouble = collectorTrouble(answer.reason);
  const said = trouble ? trouble.detail || trouble.title : 'cancelled';
  return [`No ${what} are marked: ${said}`];
}
