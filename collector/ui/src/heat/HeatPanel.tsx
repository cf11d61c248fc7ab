// A profile whose samples have times: the heat map, and which part of it is looked at.

import type { ComponentChildren } from 'preact';
import { useMemo } from 'preact/hooks';
import { Empty } from '../app/parts';
import { type Pick, between } from '../query/timestamps';
import type { Profile } from '../query/profile';
import { HeatMap, type HeatMapProps } from './HeatMap';

/** The part of a profile that is picked; the whole where nothing is. */
export function usePart(profile: Profile, pick: Pick | undefined): Profile {
  const { timestamps } = profile;
  return useMemo(
    () => (timestamps && pick ? between(profile, timestamps, pick) : profile),
    [profile, pick?.from, pick?.until],
  );
}

/** Around a heat map and what is below it: Escape, where nothing else wants it, shows all of the time again. */
export function Timed({ children, onEscape }: { children: ComponentChildren; onEscape: (() => void) | undefined }) {
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === 'Escape' && !/^(INPUT|TEXTAREA|SELECT)$/.test((event.target as HTMLElement).tagName))
      onEscape?.();
  };
  return (
    <div class="timed" onKeyDown={onKeyDown}>
      {children}
    </div>
  );
}

export function HeatPanel(props: HeatMapProps & { tools?: ComponentChildren }) {
  return (
    <section class="heat-panel" aria-label="Heat map">
      <header>
        <h3>Samples over time</h3>
        <span class="soft">one column per second, top to bottom is the time within it</span>
        {props.tools}
      </header>
      {props.timestamps.at.length === 0 && (
        <Empty title="Nothing was sampled in this time">
          <p>Times were kept, and no sample fell into them.</p>
        </Empty>
      )}
      {props.timestamps.at.length > 0 && <HeatMap {...props} />}
    </section>
  );
}
