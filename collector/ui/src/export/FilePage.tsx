// What a file shows below its title: the heat map where it has times, the graph, and its table.

import { useMemo } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useDiffGraph, useGraph } from '../analysis/useGraph';
import { Answer, Icon } from '../app/parts';
import type { Compare } from '../flame/diff';
import { FlamePanel } from '../flame/FlamePanel';
import { WidthChoice } from '../flame/WidthChoice';
import { HeatPanel, Timed } from '../heat/HeatPanel';
import { readPick, writePick } from '../query/timestamps';
import { useQuery } from '../query/useQuery';
import { setState, useDisplayState, useSelectionState } from '../state/store';
import { flipTheme } from '../state/theme';
import { DiffTable } from '../tables/DiffTable';
import { TopTable } from '../tables/TopTable';
import * as format from '../text/format';
import { KEYS, useKeys } from './keys';

interface Props {
  profile: LoadedProfile;
  /** The other side of a comparison. */
  before: LoadedProfile | undefined;
  /** What of both sides is compared. */
  compare: Compare;
  /** What the weight of samples is; empty: they have none. */
  weighs: string;
  size: { bars: number; functions: number };
}

export function FilePage(props: Props) {
  const { before, size } = props;
  useKeys({ weighs: props.weighs !== '', compares: before !== undefined });
  return (
    <>
      {before ? <Compared {...props} before={before} /> : <Single {...props} />}
      <p class="soft file-size">
        {format.plural(size.bars, 'bar')}, {format.plural(size.functions, 'function')}
      </p>
    </>
  );
}

function ThemeButton() {
  return (
    <button type="button" title="Dark or light (d)" aria-label="Dark or light" onClick={flipTheme}>
      <Icon of="theme" />
    </button>
  );
}

function Single({ profile, weighs }: Props) {
  const { timestamps } = profile;
  const { pick: picked } = useSelectionState('pick');
  const pick = useMemo(() => timestamps && readPick(timestamps, picked), [timestamps, picked]);
  const of = { id: profile.id, pick };
  const query = useGraph(of);
  return (
    <Timed onEscape={pick && (() => setState({ pick: '' }))}>
      {timestamps && (
        <HeatPanel
          profile={profile}
          timestamps={timestamps}
          pick={pick}
          onPick={(next) => setState({ pick: writePick(timestamps, next) })}
        />
      )}
      <Answer query={query} what="the graph">
        {(graph) => (
          <FlamePanel
            graph={graph}
            labels={[]}
            tools={<ThemeButton />}
            keys={KEYS}
            weighs={weighs}
            once
            alone
            untouched={timestamps ? 'heat map' : ''}
            table={<TopTable graph={graph} source={{ profile: of }} labels={[]} pruned={0} />}
          />
        )}
      </Answer>
    </Timed>
  );
}

function Compared({ profile, before, compare, weighs }: Props & { before: LoadedProfile }) {
  const { samples } = useDisplayState('samples');
  const [of, ofBefore] = [{ id: profile.id }, { id: before.id }];
  const query = useDiffGraph(ofBefore, of, undefined, { compare, chance: true });
  const args = { of, before: ofBefore, samples };
  const table = useQuery(`changes\n${JSON.stringify(args)}`, (signal) => analysis.changes(args, signal));
  return (
    <Answer query={query} what="the graph">
      {(graph) => (
        <FlamePanel
          graph={graph}
          labels={[]}
          tools={
            <>
              <WidthChoice />
              <ThemeButton />
            </>
          }
          keys={KEYS}
          weighs={weighs}
          once
          alone
          untouched=""
          table={
            <Answer query={table} what="the table of changes">
              {(changes) => <DiffTable changes={changes} by="function" rates={undefined} unit={profile.unit} />}
            </Answer>
          }
        />
      )}
    </Answer>
  );
}
