// What this collector is, what it keeps, and what is wrong with it.

import { type ColumnOf, SortedTable } from '../app/sorting';
import { Bar, Empty, Name } from '../app/parts';
import { FilterInput } from '../app/FilterInput';
import { setState, useViewState } from '../state/store';
import type { Counter } from '../gen/fleetprof/agent/v1/agent_pb';
import type { StatusResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { shown } from '../text/printable';
import * as format from '../text/format';
import { toMs } from '../time/range';

const SEVERITY = ['', 'note', 'warning', 'error'];

export function Collector({ answer }: { answer: StatusResponse }) {
  const kept = answer.kept;
  const [used, most] = [Number(answer.storeBytes), Number(answer.storeBytesMax)];
  return (
    <section class="page" aria-label="Collector">
      <header class="page-head">
        <h2>Collector</h2>
      </header>
      <dl class="facts">
        <dt>Version</dt>
        <dd>
          <Name text={answer.version} empty="unknown" />
        </dd>
        <dt>Running</dt>
        <dd title={format.stamp(toMs(answer.startedUnixNs))}>
          for {format.duration(Number(answer.nowUnixNs - answer.startedUnixNs))}
        </dd>
        <dt>Store</dt>
        <dd>
          <Name text={[answer.store, answer.storeVersion].filter(Boolean).join(', ')} empty="unknown" />
        </dd>
        {!answer.scoped && (
          <>
            <dt>On disk</dt>
            <dd>
              {most > 0 ? (
                <Bar
                  fraction={used / most}
                  tone={used > 0.95 * most ? 'bad' : ''}
                >{`${format.bytes(used)} of ${format.bytes(most)}`}</Bar>
              ) : (
                format.bytes(used)
              )}
            </dd>
          </>
        )}
        <StoreFacts of={answer.counters} />
        <dt>Data from–to</dt>
        <dd>
          {kept && kept.endUnixNs > kept.startUnixNs
            ? `${format.span(toMs(kept.startUnixNs), toMs(kept.endUnixNs))} (${format.duration(Number(kept.endUnixNs - kept.startUnixNs))})`
            : 'nothing yet'}
        </dd>
        {!answer.scoped && (
          <>
            <dt>Agents connected</dt>
            <dd>{format.count(Number(answer.streams))}</dd>
          </>
        )}
      </dl>
      {answer.scoped ? (
        <p class="soft">Your login has a scope: what is of the complete fleet is not shown.</p>
      ) : (
        <OfAll answer={answer} />
      )}
    </section>
  );
}

/** How near the store is to what its machine carries, and how far behind the archive is. */
function StoreFacts({ of }: { of: readonly Counter[] }) {
  const value = (name: string) => {
    const found = of.find((one) => one.name === name && one.labels === '');
    return found && Number(found.value);
  };
  const maintenance = value('fleetprof_store_maintenance_used_percent');
  const memory = value('fleetprof_store_memory_used_percent') ?? 0;
  const waiting = value('fleetprof_archive_pending_partitions') ?? 0;
  const behind = format.duration((value('fleetprof_archive_behind_seconds') ?? 0) * 1e9);
  return (
    <>
      {maintenance !== undefined && (
        <>
          <dt>Maintenance</dt>
          <dd title="At 100 %, downsampling falls behind: the most that this machine carries">
            <Bar
              fraction={maintenance / 100}
              tone={maintenance >= 75 ? 'bad' : ''}
            >{`${maintenance} % of its time`}</Bar>
          </dd>
          <dt>Memory for windows</dt>
          <dd title="The most of the last hours. At 100 %, agents wait">
            <Bar fraction={memory / 100} tone={memory >= 90 ? 'bad' : ''}>{`${memory} %`}</Bar>
          </dd>
        </>
      )}
      {value('fleetprof_archive_configured') === 1 && (
        <>
          <dt>Archive</dt>
          <dd>
            {format.plural(value('fleetprof_archive_partitions') ?? 0, 'partition')},{' '}
            {format.bytes(value('fleetprof_archive_bytes') ?? 0)}
            {'; '}
            {value('fleetprof_archive_fenced') === 1 ? (
              <b>not written to</b>
            ) : waiting === 0 ? (
              'up to date'
            ) : (
              `${format.plural(waiting, 'partition')} behind, the oldest for ${behind}`
            )}
          </dd>
        </>
      )}
    </>
  );
}

/** What only those are told who see the complete fleet. */
function OfAll({ answer }: { answer: StatusResponse }) {
  return (
    <>
      <h3>Health</h3>
      {!answer.degradations.length ? (
        <p class="soft">OK</p>
      ) : (
        <ul class="degradations">
          {answer.degradations.map((one, at) => (
            <li key={`${at}`} class={`severity-${one.severity}`}>
              <b>{SEVERITY[one.severity] ?? ''}</b> {shown(one.message)}
              {one.remedy !== '' && <code>{shown(one.remedy)}</code>}
            </li>
          ))}
        </ul>
      )}
      <header class="page-head">
        <h3>Counters</h3>
        <FilterInput label="Filter counters" placeholder="Filter counters" />
      </header>
      <Counters of={answer.counters} />
    </>
  );
}

function Counters({ of }: { of: readonly Counter[] }) {
  const { filter, sort } = useViewState('filter', 'sort');
  const wanted = filter.toLowerCase();
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label="Table of counters">
      <SortedTable
        caption="Counters"
        columns={COUNTERS}
        rows={of.filter((one) => `${one.name}${one.labels}`.toLowerCase().includes(wanted))}
        sort={sort || 'name'}
        onSort={(next) => setState({ sort: next })}
        keyOf={(one) => `${one.name}{${one.labels}}`}
        empty={<Empty title="No counters" />}
      />
    </div>
  );
}

const COUNTERS: ColumnOf<Counter>[] = [
  { key: 'name', title: 'Name', by: (one) => one.name, cell: (one) => <Name text={one.name} max={120} /> },
  {
    key: 'labels',
    title: 'Labels',
    by: (one) => one.labels,
    cell: (one) => <Name text={one.labels} max={120} empty="–" />,
  },
  {
    key: 'value',
    title: 'Value',
    number: true,
    by: (one) => Number(one.value),
    cell: (one) => format.count(Number(one.value)),
  },
];
