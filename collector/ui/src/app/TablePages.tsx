// The pages that are one table: containers, hosts, the collector.

import { useMemo } from 'preact/hooks';
import { cgroups, hosts, series, status } from '../query/client';
import { useQuery } from '../query/useQuery';
import { Cgroups } from '../tables/Cgroups';
import { Collector } from '../tables/Collector';
import { Hosts } from '../tables/Hosts';
import { chartOf } from '../time/series';
import { NoCoverage } from './Filters';
import { Answer } from './parts';
import { QualityLine } from './QualityLine';
import type { PageProps } from './page';

export function CgroupsPage(props: PageProps) {
  const query = useQuery(`cgroups\n${props.selectionKey}`, (signal) => cgroups(props.selection, signal));
  // For how long there are windows: rates are of that time.
  const time = useQuery(`series \n${props.selectionKey}`, (signal) => series(props.selection, '', signal));
  const coveredNs = useMemo(
    () =>
      time.data
        ? Math.min(chartOf(time.data, '', props.now()).coveredNs, (props.range.to - props.range.from) * 1e6)
        : 0,
    [time.data],
  );
  return (
    <>
      <NoCoverage />
      <QualityLine quality={query.data?.quality} />
      <Answer query={query} what="the cgroups">
        {(answer) => <Cgroups answer={answer} range={props.range} coveredNs={coveredNs} />}
      </Answer>
    </>
  );
}

export function HostsPage(props: PageProps) {
  const query = useQuery(`hosts\n${props.selectionKey}`, (signal) => hosts(props.range, signal));
  return (
    <Answer query={query} what="the hosts">
      {(answer) => <Hosts answer={answer} range={props.range} now={props.now()} onCapture={props.openCapture} />}
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
