// Graphs of profiles, as the state says that they are made.

import type { Compare } from '../flame/diff';
import { type Query, useQuery } from '../query/useQuery';
import { canBeStart } from '../flame/transforms';
import { useDisplayState, useSelectionState, useViewState } from '../state/store';
import { type Graph, analysis } from './client';
import type { GraphRequest, ProfileSource } from './protocol';

/** The graph of a profile. While another is made, the one before is shown. */
export function useGraph(of: ProfileSource): Query<Graph> {
  return useRequest({ of, options: useOptions() });
}

/** The graph of two profiles. `how`: other than the state says. */
export function useDiffGraph(
  before: ProfileSource,
  after: ProfileSource,
  rates: readonly [number, number] | undefined,
  how: { compare?: Compare; chance?: boolean } = {},
): Query<Graph> {
  const { compare, width } = useDisplayState('compare', 'width');
  return useRequest({ of: after, options: useOptions(), diff: { before, rates, compare, width, ...how } });
}

function useRequest(request: GraphRequest): Query<Graph> {
  return useQuery(`graph\n${JSON.stringify(request)}`, (signal) => analysis.graph(request, signal));
}

function useOptions(): GraphRequest['options'] {
  const { samples, collapse, start, bottomUp } = useDisplayState('samples', 'collapse', 'start', 'bottomUp');
  const { transforms, fn } = useViewState('transforms', 'fn');
  const { root } = useSelectionState('root');
  // Who asks for the callers of `main` is not told that it is folded away.
  const named = fn === '' ? transforms.map(({ name }) => name) : [fn, ...transforms.map(({ name }) => name)];
  const fold = !start && !named.some(canBeStart);
  return { measure: samples ? 'count' : 'weight', collapse, transforms, root, fold, bottomUp };
}
