// Holds the state in slices, and informs each component when the fields that it shows change.
//
// A component is drawn again when one of its fields changes, and for nothing else: a key in a
// search field draws the field and what it searches. The address bar follows each change, and leads
// back.

import { useLayoutEffect, useReducer, useRef } from 'preact/hooks';
import { DEFAULTS, type State, changed, read, write } from './address';
import { DISPLAY_DEFAULTS, type DisplayState } from './display';
import { SELECTION_DEFAULTS, type SelectionState } from './selection';
import { VIEW_DEFAULTS, type ViewState } from './view';

/** Each field is in one of them. */
export interface Slices {
  selection: SelectionState;
  view: ViewState;
  display: DisplayState;
}

const KEYS = {
  selection: Object.keys(SELECTION_DEFAULTS),
  view: Object.keys(VIEW_DEFAULTS),
  display: Object.keys(DISPLAY_DEFAULTS),
} as { [S in keyof Slices]: (keyof Slices[S] & keyof State)[] };

const NAMES = Object.keys(KEYS) as (keyof Slices)[];

/** The state, and who listens to which slice of it. */
export class Store {
  private readonly slices: Slices = {
    selection: SELECTION_DEFAULTS,
    view: VIEW_DEFAULTS,
    display: DISPLAY_DEFAULTS,
  };
  private readonly listeners: { [S in keyof Slices]: Set<() => void> } = {
    selection: new Set(),
    view: new Set(),
    display: new Set(),
  };

  constructor(state: State = DEFAULTS) {
    this.set(state);
  }

  /** All of it, for what is made of everything, such as links. */
  get state(): State {
    const { selection, view, display } = this.slices;
    return { ...selection, ...view, ...display };
  }

  slice<S extends keyof Slices>(name: S): Slices[S] {
    return this.slices[name];
  }

  /** Takes a state. Fields with equal values stay the same objects, slices without a change too. */
  set(next: State): void {
    const moved = NAMES.filter((name) => this.setSlice(name, next));
    for (const name of moved) for (const listener of [...this.listeners[name]]) listener();
  }

  /** True when the slice has changed. */
  private setSlice<S extends keyof Slices>(name: S, next: Slices[S]): boolean {
    const before = this.slices[name];
    const keys = (KEYS[name] as (keyof Slices[S])[]).filter((key) => !isEqual(before[key], next[key]));
    if (!keys.length) return false;
    const slice = { ...before };
    for (const key of keys) slice[key] = next[key];
    this.slices[name] = slice;
    return true;
  }

  /** Calls `listener` when a field of the slice has changed. */
  subscribe(name: keyof Slices, listener: () => void): () => void {
    this.listeners[name].add(listener);
    return () => this.listeners[name].delete(listener);
  }
}

/** Values of fields are texts, flags, and lists of texts or of filters. */
function isEqual(one: unknown, other: unknown): boolean {
  if (one === other) return true;
  return Array.isArray(one) && Array.isArray(other) && JSON.stringify(one) === JSON.stringify(other);
}

const store = new Store();

const current = () => read(location.hash.slice(1));

/** Takes the state from the address, now and whenever it leads elsewhere. */
export function followAddress(): void {
  const follow = () => store.set(current());
  addEventListener('popstate', follow);
  addEventListener('hashchange', follow);
  follow();
}

/**
 * Sets fields of the state. `replace`: no step of the browser's history, for what changes while
 * typing.
 */
export function setState(change: Partial<State>, how: { replace?: boolean } = {}): void {
  // From the address, not from what a component was drawn with: two changes in one event both hold.
  const next = changed(current(), change);
  const address = write(next);
  if (address !== location.hash.slice(1)) {
    const url = `${location.pathname}${location.search}${address === '' ? '' : `#${address}`}`;
    history[how.replace ? 'replaceState' : 'pushState'](null, '', url);
  }
  store.set(next);
}

/** The state, for what an event does: who shows it uses the hooks below. */
export function getState(): State {
  return store.state;
}

/** The address that a change would lead to: for links that can be opened in another tab. */
export function addressOf(change: Partial<State>): string {
  return `#${write(changed(store.state, change))}`;
}

/** Draws the component again when `look` sees something else. */
function useStore<T>(names: readonly (keyof Slices)[], look: () => T, same: (one: T, other: T) => boolean): T {
  const [, draw] = useReducer((turn: number) => turn + 1, 0);
  const seen = useRef<T>(undefined as T);
  seen.current = look();
  const latest = useRef({ look, same });
  latest.current = { look, same };
  useLayoutEffect(() => {
    const check = () => {
      if (!latest.current.same(seen.current, latest.current.look())) draw(undefined);
    };
    // Changes between the drawing and now have not been announced to anybody.
    check();
    const ends = names.map((name) => store.subscribe(name, check));
    return () => {
      for (const end of ends) end();
    };
  }, []);
  return seen.current;
}

function useFields<S extends keyof Slices, K extends keyof Slices[S]>(name: S, keys: readonly K[]): Pick<Slices[S], K> {
  return useStore(
    [name],
    () => store.slice(name),
    (one, other) => keys.every((key) => one[key] === other[key]),
  );
}

/** Fields of the selection that the component shows. */
export function useSelectionState<K extends keyof SelectionState>(...keys: K[]): Pick<SelectionState, K> {
  return useFields('selection', keys);
}

/** Fields of the view that the component shows. */
export function useViewState<K extends keyof ViewState>(...keys: K[]): Pick<ViewState, K> {
  return useFields('view', keys);
}

/** Fields of the display that the component shows. */
export function useDisplayState<K extends keyof DisplayState>(...keys: K[]): Pick<DisplayState, K> {
  return useFields('display', keys);
}

/** As {@link addressOf}, kept up to date. */
export function useAddressOf(change: Partial<State>): string {
  return useStore(
    NAMES,
    () => addressOf(change),
    (one, other) => one === other,
  );
}
