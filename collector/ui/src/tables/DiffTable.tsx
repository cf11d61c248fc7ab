// What changed, by function, with the error of the measurement.

import { useMemo } from 'preact/hooks';
import type { State } from '../app/state';
import type { SetState } from '../app/store';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { Empty, Module, Name } from '../app/parts';
import type { DiffResponse, DiffRow } from '../gen/fleetprof/collector/v1/query_pb';
import { escapeRegex } from '../flame/search';
import * as format from '../text/format';

interface Props {
  answer: DiffResponse;
  state: State;
  setState: SetState;
}

export function DiffTable({ answer, state, setState }: Props) {
  const wanted = state.filter.toLowerCase();
  const rows = useMemo(() => answer.rows.filter((row) => wanted === '' || row.name.toLowerCase().includes(wanted) || row.module.toLowerCase().includes(wanted)), [answer, wanted]);
  const before = Number(answer.before?.totalWeight ?? 0n);
  const after = Number(answer.after?.totalWeight ?? 0n);
  const columns: ColumnOf<DiffRow>[] = [
    { key: 'before', title: 'Before', hint: 'Share of self time before', number: true, by: (row) => Number(row.beforeSelfWeight), cell: (row) => format.share(Number(row.beforeSelfWeight), before) },
    { key: 'after', title: 'After', hint: 'Share of self time after', number: true, by: (row) => Number(row.afterSelfWeight), cell: (row) => format.share(Number(row.afterSelfWeight), after) },
    {
      key: 'change',
      title: 'Change',
      hint: 'Change of the share of self time, in percentage points, and its standard error',
      number: true,
      by: (row) => Math.abs(row.shareChange),
      cell: (row) => (
        <span class={row.significant ? (row.shareChange > 0 ? 'more-than' : 'less-than') : 'soft'}>
          {format.points(row.shareChange)} <small class="soft">± {format.significant(row.shareError * 100, 2)}</small>
        </span>
      ),
    },
    {
      key: 'sure',
      title: 'Sure',
      hint: 'Larger than chance would make it in 19 of 20 cases',
      by: (row) => (row.significant ? 'a' : 'b'),
      cell: (row) => <span class={row.significant ? 'sure' : 'soft'}>{row.significant ? 'yes' : 'chance'}</span>,
    },
    {
      key: 'name',
      title: 'Function',
      by: (row) => row.name,
      cell: (row) => (
        <span class="cell-name">
          <button type="button" class="plain grow" title="Search it in the graph" onClick={() => setState({ search: `^${escapeRegex(row.name)}$`, regex: true })}>
            <Name text={row.name} max={160} />
          </button>
          {row.appeared && <span class="badge more-than">new</span>}
          {row.vanished && <span class="badge less-than">vanished</span>}
          {row.module !== '' && <Module path={row.module} />}
          <button type="button" class="plain square-small" title="Callers and callees" aria-label="Callers and callees" onClick={() => setState({ fn: row.name })}>
            ⇅
          </button>
        </span>
      ),
    },
  ];
  return (
    <section class="top" aria-label="Table of changes">
      <div class="tools">
        <input type="search" class="filter" placeholder="Filter rows" aria-label="Filter rows of the table" value={state.filter} onInput={(event) => setState({ filter: event.currentTarget.value }, { replace: true })} />
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="Rows of the table">
        <SortedTable
          caption="Change by function"
          columns={columns}
          rows={rows}
          sort={state.sort || 'change'}
          onSort={(sort) => setState({ sort })}
          keyOf={(row) => `${row.kind} ${row.module} ${row.name}`}
          rowClass={(row) => (row.significant ? '' : 'unsure')}
          leftOut={Number(answer.rowsLeftOut)}
          empty={<Empty title={answer.rows.length ? 'No row has this text' : 'No difference'} />}
        />
      </div>
    </section>
  );
}
