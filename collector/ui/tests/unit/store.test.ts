import { expect, test } from 'vitest';
import { DEFAULTS, type State, read, write } from '../../src/state/address';
import { DISPLAY_DEFAULTS } from '../../src/state/display';
import { SELECTION_DEFAULTS } from '../../src/state/selection';
import { type Slices, Store } from '../../src/state/store';
import { VIEW_DEFAULTS } from '../../src/state/view';

const NAMES = ['selection', 'view', 'display'] as const;

/** Names of the slices whose listeners are called by a change. */
function heard(before: Partial<State>, change: Partial<State>): (keyof Slices)[] {
  const store = new Store({ ...DEFAULTS, ...before });
  const calls: (keyof Slices)[] = [];
  for (const name of NAMES) store.subscribe(name, () => calls.push(name));
  store.set({ ...store.state, ...change });
  return calls;
}

test('each field is in one slice', () => {
  const keys = [SELECTION_DEFAULTS, VIEW_DEFAULTS, DISPLAY_DEFAULTS].flatMap(Object.keys).sort();
  expect(keys).toEqual(Object.keys(DEFAULTS).sort());
  expect(new Set(keys).size).toBe(keys.length);
});

test('listeners of a slice hear of its fields alone', () => {
  expect(heard({}, { search: 'a' })).toEqual(['view']);
  expect(heard({}, { samples: true })).toEqual(['display']);
  expect(heard({}, { query: 'host="a"', zoom: 'a.b' })).toEqual(['selection', 'view']);
  expect(heard({ zoom: 'a' }, { zoom: 'a' })).toEqual([]);
});

test('who has ended listening hears nothing', () => {
  const store = new Store();
  let calls = 0;
  const end = store.subscribe('view', () => calls++);
  end();
  store.set({ ...DEFAULTS, search: 'a' });
  expect(calls).toBe(0);
});

test('what is equal stays the same object, whoever read it', () => {
  const state: State = { ...DEFAULTS, hidden: ['a'], filters: [{ op: 'keep', regex: 'x' }] };
  const store = new Store(state);
  const [selection, view] = [store.slice('selection'), store.slice('view')];
  store.set({ ...read(write(state)), search: 's' });
  expect(store.slice('selection')).toBe(selection);
  expect(store.slice('view')).not.toBe(view);
  expect(store.slice('view').hidden).toBe(view.hidden);
  expect(store.state.filters).toBe(state.filters);
});

test('all slices together are the state', () => {
  const state: State = { ...DEFAULTS, query: 'host="a"', view: 'hosts', flame: true };
  expect(new Store(state).state).toEqual(state);
});
