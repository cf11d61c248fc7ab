// The pages that are one table: containers, hosts, the collector.

import { useMemo } from 'preact/hooks';
import type { SeriesResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { cgroups, hosts, series, status } from '../query/client';
import { useQuery } from '../query/useQuery';
import { Cgroups, coresBefore } from '../tables/Cgroups';
import { Collector } from '../tables/Collector';
import { Hosts } from '../tables/Hosts';
import type { Range } from '../time/range';
import { chartOf } from '../time/series';
import { NoCoverage } from './Filters';
import { Answer } from './parts';
import { QualityLine } from './QualityLine';
import { type Was, useWas } from './was';
import type { PageProps } from './page';

export function CgroupsPage(props: PageProps) {
  const query = useQuery(`cgroups\n${props.selectionKey}`, (signal) => cgroups(props.selection, signal));
  // For how long there are windows: rates are of that time.
  const time = useQuery(`series \n${props.selectionKey}`, (signal) => series(props.selection, '', signal));
  const covered = (answer: SeriesResponse | undefined, range: Range) =>
    answer ? Math.min(chartOf(answer, '', props.now()).coveredNs, (range.to - range.from) * 1e6) : 0;
  const coveredNs = useMemo(() => covered(time.data, props.range), [time.data]);
  const { was } = useWas();
  const before = useQuery(was && `cgroups before\n${was.key}`, async (signal) => {
    const { selection, when } = was as Was;
    const [answer, time] = await Promise.all([cgroups(selection, signal), series(selection, '', signal)]);
    return coresBefore(answer, covered(time, selection.range), when);
  });
  return (
    <>
      <NoCoverage />
      <QualityLine quality={query.data?.quality} />
      <Answer query={query} what="the cgroups" room="table">
        {(answer) => <Cgroups answer={answer} range={props.range} coveredNs={coveredNs} before={was && before.data} />}
      </Answer>
    </>
  );
}

export function HostsPage(props: PageProps) {
  const query = useQuery(`hosts\n${props.selectionKey}`, (signal) => hosts(props.range, signal));
  const { was } = useWas();
  const before = useQuery(was && `hosts before\n${was.key}`, async (signal) => {
    const { selection, when } = was as Was;
    return { answer: await hosts(selection.range, signal), range: selection.range, words: when };
  });
  return (
    <Answer query={query} what="the hosts" room="table">
      {(answer) => (
        <Hosts
          answer={answer}
          range={props.range}
          now={props.now()}
          onCapture={props.openCapture}
          before={was && before.data}
        />
      )}
    </Answer>
  );
}

export function CollectorPage(props: PageProps) {
  const query = useQuery(`status\n${props.selectionKey}`, status);
  return (
    <Answer query={query} what="the status">
      {(answer) => <Collector answer={answer} />}
    </Answer>
  );
}
