import { downloadUrl } from '../../src/app/Download';
import { keyOf } from '../../src/app/page';
import { messageOf } from '../../src/query/selection';
import { expect, test } from 'vitest';
import { DEFAULTS, FIELD_LEN_MAX, LIST_MAX, type State, changed, read, write } from '../../src/state/address';

test('an address that says nothing is the overview, one that says something a profile', () => {
  expect(read('')).toEqual({ ...DEFAULTS, view: 'overview' });
  expect(write({ ...DEFAULTS, view: 'overview' })).toBe('');
  expect(write(DEFAULTS)).toBe('view=profile');
  expect(read('query=x')).toEqual({ ...DEFAULTS, query: 'x' });
});

test('a profile type is asked for only where it is chosen', () => {
  const selection = { range: { from: 0, to: 1 }, query: '', filters: [] };
  expect(messageOf(selection).profileType).toBe('');
  const heap = { ...selection, type: 'memory:inuse_space:bytes:space:bytes' };
  expect(messageOf(heap).profileType).toBe(heap.type);
  expect(keyOf(heap, 0)).not.toBe(keyOf(selection, 0));
  expect(downloadUrl(heap, 'svg')).toContain('type=memory%3Ainuse_space');
});

test('what is written is read back', () => {
  const state: State = {
    view: 'compare',
    from: '2026-11-21T10:00:00Z',
    to: 'now',
    live: true,
    query: 'host=~"a|b", comm="x & y = z #%"',
    type: 'memory:inuse_space:bytes:space:bytes',
    filters: [
      { op: 'drop', regex: '^a:b$' },
      { op: 'keep', regex: 'new\nline' },
    ],
    by: '',
    hidden: ['a,b', '\u0000rest', ''],
    root: 'unit',
    incident: '17',
    evidence: '7',
    saved: '',
    pin: '',
    part: '',
    pinTimes: 'range',
    panel: 'table',
    colours: 'module',
    flame: true,
    collapse: true,
    samples: true,
    start: true,
    bottomUp: true,
    search: '<script>\u202e',
    regex: true,
    zoom: '1a.2b',
    pan: '0.1-0.2',
    transforms: [
      { op: 'focus', name: 'f(x)' },
      { op: 'library', name: '/usr/lib/libc.so.6' },
    ],
    fn: 'g',
    callers: '3c',
    rows: 'module',
    sort: '-own',
    filter: 'ü',
    bfrom: 'now-2h',
    bto: 'now-1h',
    bquery: '',
    baseline: 'deploy',
    services: 'image',
    compare: 'share',
    width: 'after',
    pick: '1-2',
    capture: '7',
    side: 'before',
    sure: true,
    toggled: ['/a', '/b'],
  };
  expect(read(write(state))).toEqual(state);
});

test('what is unknown or too long is left out', () => {
  expect(read('view=nothing&colours=1&width=&what=ever&live=yes&frame=eat:x&frame=keep:')).toEqual(DEFAULTS);
  expect(read(`search=${'x'.repeat(FIELD_LEN_MAX + 1)}`).search).toBe('');
  expect(read(Array.from({ length: LIST_MAX + 50 }, (_, at) => `hidden=${at}`).join('&')).hidden).toHaveLength(
    LIST_MAX,
  );
  expect(read('%E0%A4%A&from=%').from).toBe('%');
});

test('another selection forgets what pointed into the old one', () => {
  const zoomed: State = { ...DEFAULTS, zoom: 'a.b', pan: '0.1-0.2', hidden: ['x'] };
  expect(changed(zoomed, { query: 'host="a"' })).toMatchObject({ zoom: '', pan: '', hidden: ['x'] });
  expect(changed(zoomed, { by: 'unit' })).toMatchObject({ zoom: 'a.b', hidden: [] });
  expect(changed(zoomed, { from: 'now-2h' })).toMatchObject({ zoom: 'a.b' });
  const picked: State = { ...DEFAULTS, view: 'captures', pick: '1-2', capture: '7' };
  expect(changed(picked, { zoom: 'c' })).toMatchObject({ pick: '1-2', capture: '7' });
  expect(changed(picked, { to: 'now-1h' })).toMatchObject({ pick: '', capture: '7' });
  expect(changed(picked, { view: 'profile' })).toMatchObject({ pick: '', capture: '' });
  expect(changed({ ...DEFAULTS, live: true }, { from: '2026-01-01T00:00:00Z', to: '2026-01-02T00:00:00Z' }).live).toBe(
    false,
  );
});

test('another capture, or another side of it, is looked at from its start', () => {
  const state: State = { ...DEFAULTS, view: 'captures', capture: '7', side: 'before', pick: '1-2', zoom: 'a' };
  expect(read(write(state))).toEqual(state);
  expect(changed(state, { side: 'during' })).toMatchObject({ capture: '7', pick: '', zoom: '' });
  expect(changed(state, { capture: '8' })).toMatchObject({ side: 'during', pick: '' });
  expect(changed(state, { pick: '3-4' })).toMatchObject({ capture: '7', side: 'before', zoom: 'a' });
});

test('a link from before there were transforms focuses', () => {
  expect(read('focus=f%28x%29').transforms).toEqual([{ op: 'focus', name: 'f(x)' }]);
  expect(read('do=eat:x&do=merge:&do=merge:a:b').transforms).toEqual([{ op: 'merge', name: 'a:b' }]);
});

test('another transform looks at the graph from its root', () => {
  const zoomed: State = { ...DEFAULTS, zoom: 'a.b', pan: '0.1-0.2' };
  expect(changed(zoomed, { transforms: [{ op: 'merge', name: 'f' }] })).toMatchObject({ zoom: '', pan: '' });
  expect(changed(zoomed, { bottomUp: true })).toMatchObject({ zoom: '' });
  expect(changed(zoomed, { transforms: [], search: 'x' })).toMatchObject({ zoom: 'a.b' });
});

test('evidence is of an incident, and what is looked at of it ends with it', () => {
  const state = { ...DEFAULTS, view: 'incidents', incident: '1', evidence: '7', part: 'captured', zoom: '1a' } as const;
  expect(changed(state, { evidence: '' })).toMatchObject({ incident: '1', part: '', zoom: '' });
  expect(changed(state, { evidence: '8' })).toMatchObject({ evidence: '8', part: '', zoom: '' });
  expect(changed(state, { incident: '2' })).toMatchObject({ evidence: '', part: '' });
  expect(changed(state, { view: 'profile' })).toMatchObject({ incident: '', evidence: '', part: '' });
});
