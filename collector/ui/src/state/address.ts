// The state as it stands in the address: everything that a link must carry, and nothing else. Links
// that were written stay valid: a parameter never changes its name or its meaning.
//
// The address is a stranger's text: what is unknown or too long is left out, and every field has a
// default.

import { DISPLAY_DEFAULTS, type DisplayState } from './display';
import { type FrameFilter, SELECTION_DEFAULTS, type SelectionState } from './selection';
import { TRANSFORMS_MAX, type Transform, readTransform, writeTransform } from '../flame/transforms';
import { VIEW_DEFAULTS, type View, type ViewState } from './view';

/** All slices together: what an address says. Names of fields are those of its parameters. */
export interface State extends SelectionState, ViewState, DisplayState {}

export const DEFAULTS: State = { ...SELECTION_DEFAULTS, ...VIEW_DEFAULTS, ...DISPLAY_DEFAULTS };

/** The view for an empty address. An address with state but no view opens the profile. */
let landing: View = 'overview';

/** Takes other defaults, those of a file that stands alone: before any address is read. */
export function adoptDefaults(of: Partial<State>): void {
  Object.assign(DEFAULTS, of);
  landing = DEFAULTS.view;
}

/**
 * Longest text of one field. Unit: UTF-16 units. A link longer than this is not one that this page
 * wrote.
 */
export const FIELD_LEN_MAX = 64 << 10;

/** Most entries of a list in the address. */
export const LIST_MAX = 200;

const CHOICES = {
  view: [
    'overview',
    'profile',
    'compare',
    'cgroups',
    'hosts',
    'captures',
    'pins',
    'alerts',
    'incidents',
    'views',
    'collector',
  ],
  part: ['', 'captured'],
  pinTimes: ['all', 'range'],
  colours: ['kind', 'module'],
  panel: ['flame', 'both', 'table'],
  compare: ['share', 'sum'],
  width: ['both', 'after', 'before'],
  baseline: ['none', 'previous', 'hour', 'day', 'week', 'deploy'],
  side: ['during', 'before'],
} as const;

const FLAGS = ['live', 'flame', 'collapse', 'samples', 'regex', 'start', 'bottomUp', 'sure'] as const;
const TEXTS = [
  'from',
  'to',
  'query',
  'type',
  'by',
  'root',
  'search',
  'zoom',
  'pan',
  'fn',
  'callers',
  'rows',
  'sort',
  'filter',
  'bfrom',
  'bto',
  'services',
  'pick',
  'capture',
  'pin',
  'incident',
  'evidence',
  'saved',
] as const;
const LISTS = ['hidden', 'toggled'] as const;

/** The state that an address (without `#`) has. */
export function read(address: string): State {
  const params = new URLSearchParams(address);
  const state: State = structuredClone(DEFAULTS);
  const text = (key: string) => {
    const value = params.get(key);
    return value === null || value.length > FIELD_LEN_MAX ? undefined : value;
  };
  for (const [key, values] of Object.entries(CHOICES)) {
    const value = text(key);
    if (value !== undefined && (values as readonly string[]).includes(value))
      (state as unknown as Record<string, string>)[key] = value;
  }
  for (const key of FLAGS) if (params.has(key)) state[key] = params.get(key) === '1';
  for (const key of TEXTS) state[key] = text(key) ?? state[key];
  for (const key of LISTS)
    state[key] = params
      .getAll(key)
      .filter((one) => one.length <= FIELD_LEN_MAX)
      .slice(0, LIST_MAX);
  if (address === '') state.view = landing;
  state.bquery = text('bquery');
  state.transforms = readTransforms(params);
  state.filters = params.getAll('frame').slice(0, LIST_MAX).flatMap(readFilter);
  return state;
}

/** `focus` stood alone before there were others. */
function readTransforms(params: URLSearchParams): Transform[] {
  const focus = params.get('focus') ?? '';
  return [...(focus === '' ? [] : [`focus:${focus}`]), ...params.getAll('do')]
    .filter((one) => one.length <= FIELD_LEN_MAX)
    .slice(0, TRANSFORMS_MAX)
    .flatMap(readTransform);
}

const sameTransforms = (one: readonly Transform[], other: readonly Transform[]) =>
  one.map(writeTransform).join('\n') === other.map(writeTransform).join('\n');

function readFilter(text: string): FrameFilter[] {
  const found = /^(keep|drop):([\s\S]+)$/.exec(text);
  return found ? [{ op: found[1] as FrameFilter['op'], regex: found[2] }] : [];
}

/** The address (without `#`) of a state; defaults are left out. */
export function write(state: State): string {
  const params = new URLSearchParams();
  for (const key of ['view', ...TEXTS.slice(0, 2)] as const)
    if (state[key] !== DEFAULTS[key]) params.set(key, state[key]);
  for (const key of FLAGS) if (state[key] !== DEFAULTS[key]) params.set(key, state[key] ? '1' : '0');
  for (const key of TEXTS.slice(2)) if (state[key] !== DEFAULTS[key]) params.set(key, state[key]);
  for (const key of ['colours', 'panel', 'compare', 'width', 'baseline', 'side', 'part', 'pinTimes'] as const)
    if (state[key] !== DEFAULTS[key]) params.set(key, state[key]);
  for (const key of LISTS) for (const one of state[key].slice(0, LIST_MAX)) params.append(key, one);
  if (state.bquery !== undefined) params.set('bquery', state.bquery);
  for (const transform of state.transforms) params.append('do', writeTransform(transform));
  for (const filter of state.filters) params.append('frame', `${filter.op}:${filter.regex}`);
  const text = params.toString().replace(/%2C/g, ',').replace(/%3A/g, ':').replace(/%2F/g, '/');
  // Nothing is the landing page.
  if (text === `view=${landing}`) return '';
  return text === '' && landing !== DEFAULTS.view ? `view=${DEFAULTS.view}` : text;
}

/**
 * A change of the state. What pointed into the old data and means nothing in the new is taken back.
 */
export function changed(state: State, change: Partial<State>): State {
  const next = { ...state, ...change };
  const reshaped = next.transforms !== state.transforms && !sameTransforms(next.transforms, state.transforms);
  const moved =
    reshaped ||
    (
      [
        'query',
        'type',
        'root',
        'collapse',
        'start',
        'bottomUp',
        'fn',
        'view',
        'capture',
        'side',
        'pin',
        'part',
        'evidence',
      ] as const
    ).some((key) => next[key] !== state[key]);
  if (moved && change.zoom === undefined) next.zoom = '';
  if (moved && change.callers === undefined) next.callers = '';
  if ((moved || change.zoom !== undefined) && change.pan === undefined) next.pan = '';
  const elsewhere = (
    ['query', 'type', 'view', 'from', 'to', 'capture', 'side', 'pin', 'part', 'evidence', 'saved'] as const
  ).some((key) => next[key] !== state[key]);
  if (elsewhere && change.pick === undefined) next.pick = '';
  if (next.view !== 'captures') next.capture = '';
  if (next.capture !== state.capture && change.side === undefined) next.side = 'during';
  if (next.view !== 'pins') next.pin = '';
  if (next.view !== 'incidents') next.incident = '';
  if (next.view !== 'views') next.saved = '';
  if (next.incident === '' || (next.incident !== state.incident && change.evidence === undefined)) next.evidence = '';
  const isOther = next.pin !== state.pin || next.evidence !== state.evidence;
  if ((next.pin === '' && next.evidence === '') || (isOther && change.part === undefined)) next.part = '';
  if (next.by !== state.by && change.hidden === undefined) next.hidden = [];
  if (next.view !== state.view) {
    if (change.filter === undefined) next.filter = '';
    if (change.sort === undefined) next.sort = '';
  }
  if (next.to !== 'now' && !next.to.startsWith('now')) next.live = false;
  return next;
}
