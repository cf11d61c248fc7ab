// What is kept as evidence, in the page's own graph: one profile with its table and heat map, or
// two profiles compared. It is there after the samples it was copied from have expired.

import { useMemo } from 'preact/hooks';
import { analysis } from '../analysis/client';
import type { LoadedProfile } from '../analysis/protocol';
import { useDiffGraph, useGraph } from '../analysis/useGraph';
import { useReloads } from '../analysis/useReloads';
import { FormatMenu } from '../app/Download';
import { FunctionParts } from '../app/FunctionTrend';
import { Answer, Choice, Empty } from '../app/parts';
import { FlamePanel } from '../flame/FlamePanel';
import { WidthChoice } from '../flame/WidthChoice';
import { type IncidentEvidence, IncidentEntryKind } from '../gen/fleetprof/collector/v1/incidents_pb';
import { HeatPanel, Timed } from '../heat/HeatPanel';
import { lossOf, samplingNotes } from '../query/quality';
import { readPick, writePick } from '../query/timestamps';
import { useQuery } from '../query/useQuery';
import { setState, useDisplayState, useSelectionState, useViewState } from '../state/store';
import { DiffTable } from '../tables/DiffTable';
import { TopTable } from '../tables/TopTable';
import * as format from '../text/format';

/** Where the collector serves a format of it; `baseline`: of its second profile. */
export function evidenceUrl(of: IncidentEvidence, extension: string, baseline: boolean): string {
  return `api/evidence.${extension}?id=${of.id}${baseline ? '&baseline=1' : ''}`;
}

export function EvidenceProfile({ of }: { of: IncidentEvidence }) {
  return of.kind === IncidentEntryKind.DIFF && of.hasBaseline ? <Compared of={of} /> : <Single of={of} />;
}

function Single({ of }: { of: IncidentEvidence }) {
  const { part } = useViewState('part');
  const captured = part === 'captured' && of.hasBaseline;
  const reloads = useReloads();
  const query = useQuery(
    `evidence ${of.id} ${captured}\n${reloads}`,
    (signal, progress) => analysis.evidence(String(of.id), captured, signal, progress),
    { dispose: (data) => analysis.release(data) },
  );
  return (
    <>
      {of.hasBaseline && (
        <Choice
          label="Part of the pin"
          value={captured ? 'captured' : ''}
          of={[
            ['', 'Minutes', 'The recorder’s minutes around the trigger'],
            ['captured', 'Captured', 'The trigger’s capture'],
          ]}
          onChange={(next) => setState({ part: next, pick: '' })}
        />
      )}
      <Answer query={query} what="the evidence" unit="stacks" room="graph">
        {(profile) => <Stacks of={of} captured={captured} profile={profile} />}
      </Answer>
    </>
  );
}

function Stacks({ of, captured, profile }: { of: IncidentEvidence; captured: boolean; profile: LoadedProfile }) {
  const { timestamps, about } = profile;
  const { pick: picked } = useSelectionState('pick');
  const pick = useMemo(() => timestamps && readPick(timestamps, picked), [timestamps, picked]);
  const source = { id: profile.id, pick };
  const query = useGraph(source);
  const loss = lossOf(about.sampling, `of ${format.duration(Number(about.durationNs))}`);
  return (
    <Timed onEscape={pick && (() => setState({ pick: '' }))}>
      <p class="soft">
        {format.plural(profile.taken, 'sample')}
        {samplingNotes(about).map((note) => ` · ${note.text}`)}
      </p>
      {loss && <strong class={loss.bad ? 'wrong' : 'warned'}>{loss.text}</strong>}
      {timestamps && (
        <HeatPanel
          profile={profile}
          timestamps={timestamps}
          pick={pick}
          onPick={(next) => setState({ pick: writePick(timestamps, next) })}
        />
      )}
      <Answer query={query} what="the graph" room="graph">
        {(graph) => (
          <FlamePanel
            graph={graph}
            labels={profile.labels}
            hasLines={profile.hasLines}
            once
            about={(fn) => <FunctionParts fn={fn} of={source} labels={profile.labels} />}
            tools={
              <FormatMenu
                url={(extension) => evidenceUrl(of, extension, captured)}
                note={pick ? 'all of it, not the picked part' : undefined}
              />
            }
            table={<TopTable graph={graph} source={{ profile: source }} labels={profile.labels} pruned={0} />}
          />
        )}
      </Answer>
    </Timed>
  );
}

interface Pair {
  before: LoadedProfile;
  after: LoadedProfile;
}

function Compared({ of }: { of: IncidentEvidence }) {
  const reloads = useReloads();
  const query = useQuery(
    `evidence pair ${of.id}\n${reloads}`,
    async (signal, progress): Promise<Pair> => {
      const after = await analysis.evidence(String(of.id), false, signal, progress);
      try {
        return { after, before: await analysis.evidence(String(of.id), true, signal, progress) };
      } catch (error) {
        analysis.release(after);
        throw error;
      }
    },
    {
      dispose: ({ before, after }) => {
        analysis.release(before);
        analysis.release(after);
      },
    },
  );
  return (
    <Answer query={query} what="both profiles" unit="stacks" room="graph">
      {(pair) =>
        pair.before.rows === 0 || pair.after.rows === 0 ? (
          <Empty title={`No samples ${pair.before.rows === 0 ? 'in the baseline' : 'after'}`} />
        ) : (
          <Difference {...pair} of={of} />
        )
      }
    </Answer>
  );
}

function Difference({ before, after, of }: Pair & { of: IncidentEvidence }) {
  const { samples } = useDisplayState('samples');
  const sides = { of: { id: after.id }, before: { id: before.id } };
  // How many cores each side had is kept nowhere: both are compared in shares.
  const query = useDiffGraph(sides.before, sides.of, undefined, { compare: 'share', chance: true });
  const args = { ...sides, samples };
  const table = useQuery(`changes\n${JSON.stringify(args)}`, (signal) => analysis.changes(args, signal));
  return (
    <Answer query={query} what="the graph" room="graph">
      {(graph) => (
        <FlamePanel
          graph={graph}
          labels={[]}
          once
          untouched=""
          tools={
            <>
              <WidthChoice />
              <FormatMenu url={(extension) => evidenceUrl(of, extension, false)} note="the side after" />
            </>
          }
          table={
            <Answer query={table} what="the table of changes">
              {(changes) => <DiffTable changes={changes} by="function" rates={undefined} unit={after.unit} />}
            </Answer>
          }
        />
      )}
    </Answer>
  );
}
