// CPU over time, and below it the profile of the same selection.

import { useMemo } from 'preact/hooks';
import { FlamePanel } from '../flame/FlamePanel';
import { Names } from '../flame/names';
import { buildTree } from '../flame/tree';
import { HeatPanel, Timed, usePart } from '../heat/HeatPanel';
import { profile, series } from '../query/client';
import { readPick, writePick } from '../query/moments';
import type { Profile } from '../query/profile';
import { withMatcher } from '../query/selector';
import { useAsked } from '../query/use';
import { type Source, TopTable } from '../tables/TopTable';
import { labelsOf } from '../tables/sums';
import { ChartPanel } from '../time/ChartPanel';
import { absoluteSpec } from '../time/range';
import { Download } from './Download';
import { NotFiltered } from './Filters';
import { GroupBy } from './GroupBy';
import { NoSamples } from './NoSamples';
import { Answer } from './parts';
import { QualityLine } from './QualityLine';
import type { PageProps } from './page';

export function ProfilePage(props: PageProps) {
  const { state, setState, subject, subjectKey, theme, labels } = props;
  const chart = useAsked(`series ${state.by}\n${subjectKey}`, (signal) => series(subject, state.by, signal));
  const stacks = useAsked(`profile ${state.root}\n${subjectKey}`, (signal, progress) => profile(subject, state.root, signal, progress));
  // What is wrong with both is told once.
  const told = chart.trouble !== undefined && chart.trouble.code === stacks.trouble?.code && chart.trouble.detail === stacks.trouble.detail;
  const quality = stacks.data?.quality ?? chart.data?.quality;
  return (
    <>
      <h2 class="hidden">Profile</h2>
      <section class="chart-panel" aria-label="CPU over time">
        <div class="tools">
          <GroupBy value={state.by} labels={labels} onChange={(by) => setState({ by })} />
          <NotFiltered state={state} />
          <QualityLine quality={quality} />
        </div>
        <Answer asked={told ? { ...chart, trouble: undefined } : chart} what="the chart">
          {(answer) => (
            <ChartPanel
              answer={answer}
              by={state.by}
              hidden={state.hidden}
              dark={theme === 'dark'}
              now={props.now()}
              brushHint="Drag to zoom into a part of the time"
              onHidden={(hidden) => setState({ hidden })}
              onBrush={(range) => setState(absoluteSpec(range))}
              onFilter={(value) => setState({ query: withMatcher(state.query, { label: state.by, op: '=', value }) })}
            />
          )}
        </Answer>
      </section>
      <Answer asked={stacks} what="the profile" unit="stacks">
        {(data) => (data.stack.length === 0 ? <NoSamples {...props} /> : <Stacks {...props} profile={data} />)}
      </Answer>
    </>
  );
}

function prunedPart(profile: Profile): number {
  const total = Number(profile.quality?.totalWeight ?? 0n);
  return total > 0 ? Number(profile.quality?.prunedWeight ?? 0n) / total : 0;
}

function Stacks(props: PageProps & { profile: Profile }) {
  const { state, setState, theme, labels, subject, subjectKey } = props;
  const { moments, unit } = props.profile;
  const pick = useMemo(() => moments && readPick(moments, state.pick), [moments, state.pick]);
  const part = usePart(props.profile, pick);
  const tree = useMemo(
    () => buildTree(new Names(), part, { measure: state.samples ? 'count' : 'weight', collapse: state.collapse, focus: state.focus, root: state.root }),
    [part, state.samples, state.collapse, state.focus, state.root],
  );
  // What the collector sums up is of the whole time.
  const source: Source = pick ? { profile: part } : { subject, subjectKey };
  return (
    <Timed onEscape={pick && (() => setState({ pick: '' }))}>
      {moments && <HeatPanel moments={moments} unit={unit} samples={state.samples} theme={theme} pick={pick} onPick={(next) => setState({ pick: writePick(moments, next) })} />}
      <FlamePanel
        tree={tree}
        unit={unit}
        state={state}
        setState={setState}
        theme={theme}
        diff={false}
        labels={labels}
        tools={<Download subject={subject} note={pick ? 'of all of the time, not of what is picked' : undefined} />}
        table={<TopTable tree={tree} unit={unit} state={state} setState={setState} source={source} labels={pick ? labelsOf(part) : labels} pruned={pick ? 0 : prunedPart(props.profile)} />}
      />
    </Timed>
  );
}
