// A profile whose samples have times: the heat map, and which part of it is looked at.

import type { ComponentChildren } from 'preact';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { Answer, Empty } from '../app/parts';
import type { Pick } from '../query/timestamps';
import { useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { HeatMap } from './HeatMap';

/**
 * Around a heat map and what is below it: Escape, where nothing else wants it, shows all of the
 * time again.
 */
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

interface Props {
  profile: LoadedProfile;
  timestamps: NonNullable<LoadedProfile['timestamps']>;
  pick: Pick | undefined;
  onPick: (pick: Pick | undefined) => void;
}

/** What a column is, where a file has cut its times otherwise. */
function perColumn({ columnNs }: Props['timestamps']): string {
  return columnNs === undefined || columnNs === 1e9 ? 'second' : format.duration(columnNs);
}

export function HeatPanel(props: Props) {
  return (
    <section class="heat-panel" aria-label="Heat map">
      <header>
        <h3>Samples over time</h3>
        <span class="soft">one column per {perColumn(props.timestamps)}, top to bottom is the time within it</span>
      </header>
      {props.timestamps.count === 0 ? (
        <Empty title="No samples in this time">
          <p>Sample times were recorded, but there are no samples.</p>
        </Empty>
      ) : (
        <Cells {...props} />
      )}
    </section>
  );
}

function Cells({ profile, timestamps, pick, onPick }: Props) {
  const { id, unit } = profile;
  const query = useQuery(`grid\n${id}`, async (signal) => ({ id, ...(await analysis.grid(id, signal)) }));
  return (
    <Answer query={query} what="the heat map">
      {(cells) => (
        <HeatMap
          profile={cells.id}
          timestamps={timestamps}
          grid={cells.grid}
          gridMs={cells.ms}
          unit={unit}
          pick={pick}
          onPick={onPick}
        />
      )}
    </Answer>
  );
}
