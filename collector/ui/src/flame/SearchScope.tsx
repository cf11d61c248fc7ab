// What the search of a panel has found, for those of its parts that show it: a key in the search
// draws them again, and nothing around them.

import { type ComponentChildren, createContext } from 'preact';
import { useContext, useMemo } from 'preact/hooks';
import { useViewState } from '../state/store';
import type { Layout } from './layout';
import { type Found, findNodes } from './search';
import { useMask } from './useMask';

interface Searched {
  /** 1 for each name that matches; undefined when there is no search, or no answer yet. */
  mask: Uint8Array | undefined;
  /** Why there is none. */
  problem: string | undefined;
  /** A pattern is being tried. */
  waiting: boolean;
  /** What it comes to in the graph of all stacks. */
  matched: { share: number; nodes: number } | undefined;
  /** The graph of all stacks, and its nodes that match. */
  layout: Layout | undefined;
  found: Found | undefined;
}

const NOTHING: Searched = {
  mask: undefined,
  problem: undefined,
  waiting: false,
  matched: undefined,
  layout: undefined,
  found: undefined,
};

const Scope = createContext<Searched>(NOTHING);

/** Searches the names of a graph for what stands in the address. */
export function SearchScope({ layout, children }: { layout: Layout; children: ComponentChildren }) {
  const { search, regex } = useViewState('search', 'regex');
  const { mask, problem, waiting } = useMask(layout.tree.names, { text: search, regex });
  const searched = useMemo(() => {
    const found = mask && findNodes(layout, mask);
    const matched = found && layout.whole > 0 ? { share: found.width / layout.whole, nodes: found.nodes } : undefined;
    return { mask, problem, waiting, matched, layout, found };
  }, [layout, mask, problem, waiting]);
  return <Scope.Provider value={searched}>{children}</Scope.Provider>;
}

/** What the search of the panel around has found. */
export function useSearched(): Searched {
  return useContext(Scope);
}

/** What it has found in a layout, which may be of a part of the graph. */
export function useFound(layout: Layout): Found | undefined {
  const searched = useSearched();
  // A part of the graph before this one has other names.
  const mask = searched.layout?.tree.names === layout.tree.names ? searched.mask : undefined;
  return useMemo(
    () => (searched.layout === layout ? searched.found : mask && findNodes(layout, mask)),
    [layout, mask, searched.found],
  );
}
