// Where the time went: functions of the graph beside it, or modules and labels as the collector adds
// them up.

import { useMemo } from 'preact/hooks';
import type { State } from '../app/state';
import type { SetState } from '../app/store';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { Answer, Bar, Empty, Icon, Module, Name } from '../app/parts';
import { type Selection, top } from '../query/client';
import { KIND_NONE, KIND_WORDS } from '../query/outcome';
import type { Profile } from '../query/profile';
import { withMatcher } from '../query/selector';
import { useQuery } from '../query/useQuery';
import { escapeRegex } from '../flame/search';
import { type Tree, functionRows } from '../flame/tree';
import * as format from '../text/format';
import { sumsByLabel, sumsByModule } from './sums';

interface TopRow {
  key: string;
  name: string;
  module: string;
  kind: number;
  own: number;
  total: number;
  /** Of waits: who ended the most of them. */
  waker?: { name: string; value: number };
}

/** A selection of the collector, or a profile that only this page has. */
export type Source = { selection: Selection; selectionKey: string } | { profile: Profile };

interface Props {
  tree: Tree;
  unit: string;
  state: State;
  setState: SetState;
  /** Where the samples came from: who can be asked for exact sums, or what has them all. */
  source: Source;
  labels: readonly string[];
  /** Part of the weight that the tree has not where it belongs. */
  pruned: number;
}

/** Rows that are no label's values. */
const BUILT_IN = ['function', 'exact', 'module'];

export function TopTable(props: Props) {
  const { state, setState } = props;
  return (
    <section class="top" aria-label="Table">
      <div class="tools">
        <label class="inline">
          Top
          <select value={state.rows} onChange={(event) => setState({ rows: event.currentTarget.value, sort: '' })}>
            <option value="function">functions</option>
            {'selection' in props.source && <option value="exact">functions (exact)</option>}
            <option value="module">modules</option>
            {[...new Set([...props.labels, ...(BUILT_IN.includes(state.rows) ? [] : [state.rows])])].map((label) => (
              <option key={label} value={label}>
                {label.slice(0, 40)}
              </option>
            ))}
          </select>
        </label>
        <input
          type="search"
          class="filter"
          placeholder="Filter rows"
          aria-label="Filter rows of the table"
          value={state.filter}
          onInput={(event) => setState({ filter: event.currentTarget.value }, { replace: true })}
        />
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="Rows of the table">
        <Body {...props} />
      </div>
    </section>
  );
}

function Body(props: Props) {
  const { state, source } = props;
  if ('profile' in source)
    return state.rows === 'function' || state.rows === 'exact' ? (
      <Functions {...props} />
    ) : (
      <Local {...props} profile={source.profile} />
    );
  return state.rows === 'function' ? <Functions {...props} /> : <Others {...props} {...source} />;
}

function Local(props: Props & { profile: Profile }) {
  const { profile, state } = props;
  const rows = useMemo(() => {
    const values = state.samples ? profile.count : profile.weight;
    const sums = state.rows === 'module' ? sumsByModule(profile, values) : sumsByLabel(profile, values, state.rows);
    return sums.map((sum) => ({ ...sum, key: sum.name, module: '', kind: KIND_NONE }));
  }, [profile, state.rows, state.samples]);
  return (
    <Rows
      {...props}
      rows={rows}
      whole={(state.samples ? profile.count : profile.weight).reduce((sum, value) => sum + value, 0)}
      samples={state.samples}
    />
  );
}

function Functions(props: Props) {
  const { tree, state, setState } = props;
  const rows = useMemo(() => {
    const { names } = tree;
    // The heavier of two without time of their own stands first.
    const sums = functionRows(tree).sort((left, right) => right.total - left.total);
    return sums.map((row) => ({
      key: String(row.name),
      name: names.text[row.name],
      module: names.module[row.name],
      kind: names.kind[row.name],
      own: row.own,
      total: row.total,
      waker: row.waker && { name: names.text[row.waker.name], value: row.waker.value },
    }));
  }, [tree]);
  return (
    <>
      <Rows {...props} rows={rows} whole={tree.total[0][0]} samples={state.samples} />
      {props.pruned > 0 && (
        <p class="more">
          {format.percent(props.pruned)} of CPU time sits in frames too small to draw; it is counted in their callers.{' '}
          <button type="button" class="plain link" onClick={() => setState({ rows: 'exact' })}>
            Show exact totals
          </button>
        </p>
      )}
    </>
  );
}

function Others(props: Props & { selection: Selection; selectionKey: string }) {
  const { state, selection } = props;
  const byTotal = state.sort.endsWith('total');
  const query = useQuery(`top-${state.rows}\n${props.selectionKey}\n${byTotal}`, (signal) =>
    top(selection, state.rows === 'exact' ? 'function' : state.rows, byTotal, signal),
  );
  return (
    <Answer query={query} what="the table">
      {(answer) => (
        <Rows
          {...props}
          rows={answer.rows.map((row, at) => ({
            key: String(at),
            name: row.name,
            module: row.module,
            kind: row.kind,
            own: Number(state.samples ? row.selfCount : row.selfWeight),
            total: Number(state.samples ? row.totalCount : row.totalWeight),
          }))}
          whole={Number((state.samples ? answer.quality?.totalCount : answer.quality?.totalWeight) ?? 0n)}
          samples={state.samples}
          leftOut={Number(answer.rowsLeftOut)}
        />
      )}
    </Answer>
  );
}

function Rows(props: Props & { rows: readonly TopRow[]; whole: number; samples: boolean; leftOut?: number }) {
  const { rows, whole, state, setState } = props;
  const wanted = state.filter.toLowerCase();
  const kept = useMemo(
    () =>
      wanted === ''
        ? rows
        : rows.filter((row) => row.name.toLowerCase().includes(wanted) || row.module.toLowerCase().includes(wanted)),
    [rows, wanted],
  );
  const amount = (value: number) => (props.samples ? format.count(value) : format.weight(value, props.unit));
  const isFunction = state.rows === 'function' || state.rows === 'exact';
  const waits = rows.some((row) => row.waker !== undefined);
  const wokenBy: ColumnOf<TopRow>[] = !waits
    ? []
    : [
        {
          key: 'woken',
          title: 'Woken by',
          hint: 'Who ended the most of these waits, and the part of them that is',
          by: (row) => row.waker?.name ?? '\uffff',
          cell: (row) =>
            row.waker && (
              <span class="soft woken">
                <Name text={row.waker.name.replace(/^\[woken by (.*)\]$/, '$1')} max={40} />{' '}
                {format.share(row.waker.value, row.own)}
              </span>
            ),
        },
      ];
  const columns: ColumnOf<TopRow>[] = [
    {
      key: 'own',
      title: waits ? 'Blocked in' : 'Self',
      hint: waits
        ? 'Time that threads waited in the function: the last of their own frames, before those of who woke them'
        : 'Time in the function itself',
      number: true,
      by: (row) => row.own,
      cell: (row) => <Bar fraction={row.own / whole}>{amount(row.own)}</Bar>,
    },
    { key: 'own%', title: '%', number: true, cell: (row) => <span class="soft">{format.share(row.own, whole)}</span> },
    {
      key: 'total',
      title: 'Total',
      hint: 'Time in it and all that it calls; recursion counts once',
      number: true,
      by: (row) => row.total,
      cell: (row) => <Bar fraction={row.total / whole}>{amount(row.total)}</Bar>,
    },
    {
      key: 'total%',
      title: '%',
      number: true,
      cell: (row) => <span class="soft">{format.share(row.total, whole)}</span>,
    },
    {
      key: 'name',
      title: isFunction ? 'Function' : state.rows === 'module' ? 'Module' : state.rows.slice(0, 40),
      by: (row) => row.name,
      cell: (row) => (
        <span class="cell-name">
          {isFunction && row.kind !== KIND_NONE && (
            <span class={`kind kind-${row.kind}`} title={KIND_WORDS[row.kind]} />
          )}
          <button
            type="button"
            class="plain grow"
            title={isFunction || 'profile' in props.source ? 'Search it in the graph' : 'Select only this'}
            onClick={() => choose(row)}
          >
            <Name text={row.name} max={160} empty="(none)" />
          </button>
          {row.module !== '' && <Module path={row.module} />}
          {isFunction && (
            <button
              type="button"
              class="plain square-small"
              title="Callers and callees"
              aria-label="Callers and callees"
              onClick={() => setState({ fn: row.name, panel: state.panel === 'table' ? 'both' : state.panel })}
            >
              ⇅
            </button>
          )}
        </span>
      ),
    },
  ];
  columns.push(...wokenBy);
  const choose = (row: TopRow) => {
    if (isFunction || state.rows === 'module') setState({ search: `^${escapeRegex(row.name)}$`, regex: true });
    else if ('selection' in props.source) filterBy(row.name);
    else setState({ root: state.rows, search: `^${escapeRegex(row.name)}$`, regex: true });
  };
  const filterBy = (value: string) =>
    setState({ query: withMatcher(state.query, { label: state.rows, op: '=', value }) });
  return (
    <SortedTable
      caption={`CPU by ${state.rows}`}
      columns={columns}
      rows={kept}
      sort={state.sort || 'own'}
      onSort={(sort) => setState({ sort })}
      keyOf={(row) => row.key}
      leftOut={props.leftOut}
      empty={
        <Empty title={rows.length ? 'No matching rows' : 'No rows'}>
          {rows.length > 0 && (
            <button type="button" onClick={() => setState({ filter: '' })}>
              <Icon of="close" /> Clear the filter
            </button>
          )}
        </Empty>
      }
    />
  );
}
