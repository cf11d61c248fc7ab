// What happened, as flags of a chart; and the address of a pin.

import { Code, ConnectError } from '@connectrpc/connect';
import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { flags, happenings, missingOf, webUrl } from '../../src/events/flags';
import { AnnotationSchema } from '../../src/gen/fleetprof/collector/v1/annotations_pb';
import { HostPinSchema } from '../../src/gen/fleetprof/collector/v1/pins_pb';
import { DEFAULTS, changed, read, write } from '../../src/state/address';

const ns = (ms: number) => BigInt(ms) * 1_000_000n;

const annotation = (id: bigint, atMs: number, more: object = {}) =>
  create(AnnotationSchema, { id, startUnixNs: ns(atMs), text: `event ${id}`, kind: 'note', by: 'ci', ...more });

describe('what happened', () => {
  test('is told oldest first, with who told it and where it was', () => {
    const pin = create(HostPinSchema, {
      id: 7n,
      hostname: 'web-3',
      pin: { trigger: 'psi', cause: 'PSI 31 %', firedUnixNs: ns(1500) },
    });
    const found = annotation(1n, 2000, { kind: 'deploy', by: 'collector', hosts: 6n, url: 'https://ci/7' });
    const all = happenings({ pins: [pin], annotations: [found, annotation(2n, 1000)] });
    expect(all.map((one) => [one.kind, one.text, one.about, one.pin])).toEqual([
      ['note', 'event 2', 'by ci', ''],
      ['pin', 'psi', 'web-3: PSI 31 %', '7'],
      ['deploy', 'event 1', 'on 6 hosts, found by the collector', ''],
    ]);
    expect(all[2].url).toBe('https://ci/7');
  });

  test('links to pages and to nothing else', () => {
    expect(webUrl('https://ci.example.net/a?b#c')).toBe('https://ci.example.net/a?b#c');
    for (const url of ['javascript:alert(1)', 'data:text/html,x', '//x', '/x', '', 'java\nscript:x', ' ftp://x'])
      expect(webUrl(url), url).toBe('');
  });

  test('shares a flag where flags would cover each other', () => {
    const annotations = [0, 10, 500, 1000].map((at, id) => annotation(BigInt(id), 1000 + at));
    const all = happenings({ pins: [], annotations });
    const drawn = flags(all, { from: 1000, to: 2000 }, 1000, 24);
    expect(drawn.map((flag) => [flag.at, flag.of.length])).toEqual([
      [0, 2],
      [0.5, 1],
      [1, 1],
    ]);
  });

  test('stands at the edge where it began before the range and lasts', () => {
    const annotations = [annotation(1n, 100), annotation(2n, 200, { endUnixNs: ns(1500) }), annotation(3n, 9000)];
    const drawn = flags(happenings({ pins: [], annotations }), { from: 1000, to: 2000 }, 500, 24);
    expect(drawn.map((flag) => [flag.at, flag.of[0].text])).toEqual([[0, 'event 2']]);
  });
});

describe('the address of a pin', () => {
  test('is one that others can open', () => {
    expect(read('view=pins&pin=12')).toEqual({ ...DEFAULTS, view: 'pins', pin: '12' });
    expect(write({ ...DEFAULTS, view: 'pins', pin: '12', part: 'captured' })).toBe('view=pins&pin=12&part=captured');
    expect(read('view=pins&pin=12&part=x').part).toBe('');
  });

  test('is left with its view, and what was looked at in it with the pin', () => {
    const at = { ...DEFAULTS, view: 'pins' as const, pin: '12', part: 'captured' as const, pick: 'p', zoom: '1' };
    expect(changed(at, { view: 'profile' })).toMatchObject({ pin: '', part: '', pick: '', zoom: '' });
    expect(changed(at, { pin: '13' })).toMatchObject({ pin: '13', part: '', pick: '', zoom: '' });
    expect(changed(at, { part: '' })).toMatchObject({ pin: '12', part: '', pick: '' });
  });
});

describe('what a chart does not mark', () => {
  const of = (reason: unknown) => missingOf({ status: 'rejected', reason }, 'pins');

  test('is said with its cause', () => {
    expect(of(new ConnectError('the file is damaged', Code.Unavailable))).toEqual([
      'No pins are marked: the file is damaged',
    ]);
    expect(missingOf({ status: 'fulfilled', value: { leftOut: 1200n } }, 'pins')).toEqual([
      '1,200 older pins are not marked: choose a shorter range',
    ]);
  });

  test('is nothing where all is marked, or the collector has none', () => {
    expect(missingOf({ status: 'fulfilled', value: { leftOut: 0n } }, 'pins')).toEqual([]);
    expect(of(new ConnectError('', Code.Unimplemented))).toEqual([]);
    expect(of(new ConnectError('HTTP 404', Code.Unknown))).toEqual([]);
  });
});
