// The pages that are one table: containers, hosts, the collector.

import { cgroups, hosts, series, status } from '../query/client';
import type { Selection } from '../query/selection';
import { useQuery } from '../query/useQuery';
import { Cgroups, coresBefore } from '../tables/Cgroups';
import { Collector } from '../tables/Collector';
import { Hosts } from '../tables/Hosts';
import type { Range } from '../time/range';
import { chartOf } from '../time/series';
import { NoCoverage } from './Filters';
import { Answer, isStale } from './parts';
import { QualityLine } from './QualityLine';
import { type Was, useWas } from './was';
import type { PageProps } from './page';

export function CgroupsPage(props: PageProps) {
  // With for how long there are windows: rates are of that time.
  const ask = async (of: Selection, signal: AbortSignal) => {
    const [answer, time] = await Promise.all([cgroups(of, signal), series(of, '', signal)]);
    const { from, to } = of.range;
    return { answer, coveredNs: Math.min(chartOf(time, '', props.now()).coveredNs, (to - from) * 1e6) };
  };
  const query = useQuery(`cgroups\n${props.selectionKey}`, (signal) => ask(props.selection, signal));
  const { was } = useWas();
  const before = useQuery(was && `cgroups before ${was.key}`, async (signal) => {
    const { selection, when } = was as Was;
    const { answer, coveredNs } = await ask(selection, signal);
    return coresBefore(answer, coveredNs, when);
  });
  return (
    <>
      <NoCoverage />
      <QualityLine quality={query.data?.answer.quality} stale={isStale(query)} />
      <Answer query={query} what="the cgroups" room="table">
        {(data) => <Cgroups {...data} range={props.range} before={was && before.data} />}
      </Answer>
    </>
  );
}

export function HostsPage(props: PageProps) {
  // With the range that it is of: rates are of that time.
  const ask = async (range: Range, signal: AbortSignal) => ({ answer: await hosts(range, signal), range });
  const query = useQuery(`hosts\n${props.selectionKey}`, (signal) => ask(props.range, signal));
  const { was } = useWas();
  const before = useQuery(was && `hosts before ${was.key}`, async (signal) => {
    const { selection, when } = was as Was;
    return { ...(await ask(selection.range, signal)), words: when };
  });
  return (
    <Answer query={query} what="the hosts" room="table">
      {(data) => <Hosts {...data} now={props.now()} onCapture={props.openCapture} before={was && before.data} />}
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
