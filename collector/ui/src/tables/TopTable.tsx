// Where the time went: the functions of the graph next to it, or modules or labels, as the caller
// adds them up.

import { useMemo } from 'preact/hooks';
import { type Graph, analysis } from '../analysis/client';
import type { ProfileSource } from '../analysis/protocol';
import { FilterInput } from '../app/FilterInput';
import { type Was, useWas } from '../app/was';
import { getState, setState, useDisplayState, useViewState } from '../state/store';
import { useTheme } from '../state/theme';
import { type ColumnOf, SortedTable, sorted } from '../app/sorting';
import { Answer, Bar, Empty, Icon, Module, Name } from '../app/parts';
import { KIND_NONE, KIND_WORDS } from '../query/outcome';
import type { Selection } from '../query/selection';
import { untilReplaced, useQuery } from '../query/useQuery';
import { moduleColour } from '../flame/colour';
import { readPath } from '../flame/path';
import { escapeRegex } from '../flame/search';
import * as format from '../text/format';

export interface TopRow {
  key: string;
  name: string;
  module: string;
  kind: number;
  own: number;
  total: number;
  /** Who ended most of the waits in it. */
  waker?: { name: string; value: number };
}

/** Rows from elsewhere, and what they are parts of, by samples or by weight. */
export interface TopAnswer {
  rows: (samples: boolean) => TopRow[];
  whole: (samples: boolean) => number;
  leftOut: number;
}

/** Somebody who has exact sums, as of `key`. */
export interface AskedTable {
  key: string;
  top: (by: string, byTotal: boolean, signal: AbortSignal) => Promise<TopAnswer>;
  /** The same of another selection: that of the baseline. */
  before: (of: Selection, by: string, byTotal: boolean, signal: AbortSignal) => Promise<TopAnswer>;
  /** Selects what has a value of a label. */
  select: (label: string, value: string) => void;
}

/** Who can be asked, or a profile that only this page has. */
export type Source = AskedTable | { profile: ProfileSource };

interface Props {
  graph: Graph;
  /** Where the samples came from: who can be asked for exact sums, or what has them all. */
  source: Source;
  labels: readonly string[];
  /** Part of the weight that the tree has not where it belongs. */
  pruned: number;
}

/** Rows that are no label's values. */
const BUILT_IN = ['function', 'exact', 'module'];

export function TopTable(props: Props) {
  const { rows } = useViewState('rows');
  return (
    <section class="top" aria-label="Table">
      <div class="tools">
        <label class="inline">
          Top
          <select value={rows} onChange={(event) => setState({ rows: event.currentTarget.value, sort: '' })}>
            <option value="function">functions</option>
            {'top' in props.source && <option value="exact">functions (exact)</option>}
            <option value="module">modules</option>
            {[...new Set([...props.labels, ...(BUILT_IN.includes(rows) ? [] : [rows])])].map((label) => (
              <option key={label} value={label}>
                {label.slice(0, 40)}
              </option>
            ))}
          </select>
        </label>
        <FilterInput label="Filter rows of the table" placeholder="Filter rows" />
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="Rows of the table">
        <Body {...props} />
      </div>
    </section>
  );
}

function Body(props: Props) {
  const { source } = props;
  const { rows } = useViewState('rows');
  if ('profile' in source)
    return rows === 'function' || rows === 'exact' ? (
      <Functions {...props} />
    ) : (
      <Local {...props} profile={source.profile} />
    );
  return rows === 'function' ? <Functions {...props} /> : <Others {...props} asked={source} />;
}

/** By module or label, of a profile that only this page has. */
function Local(props: Props & { profile: ProfileSource }) {
  const { rows: by } = useViewState('rows');
  const { samples } = useDisplayState('samples');
  const args = { of: props.profile, by, samples };
  const query = useQuery(`sums ${by}\n${JSON.stringify(args)}`, async (signal) => {
    const { rows, whole } = await analysis.sums(args, signal);
    return { rows: rows.map((sum) => ({ ...sum, key: sum.name, module: '', kind: KIND_NONE })), whole, samples };
  });
  return (
    <Answer query={query} what="the table">
      {(answer) => <Rows {...props} {...answer} />}
    </Answer>
  );
}

function Functions(props: Props) {
  const { graph } = props;
  const { zoom } = useViewState('zoom');
  const { layout, request } = graph;
  const node = useMemo(() => (request.options.bottomUp || zoom === '' ? 0 : readPath(layout, zoom)), [layout, zoom]);
  const within = untilReplaced(
    useQuery(node === 0 ? undefined : `functions\n${node}\n${JSON.stringify(request)}`, (signal) =>
      analysis.functions(request, layout.node[node], signal),
    ),
  );
  // What was of another graph has other names.
  const part = within.waiting ? undefined : within.data;
  const functions = node === 0 ? graph.functions : (part ?? graph.functions);
  const rows = useMemo(() => rowsOf(functions, layout), [functions, layout]);
  return (
    <>
      {node !== 0 && part && (
        <p class="table-part soft">
          In <Name text={layout.tree.names.text[layout.name[node]]} max={60} />, the zoomed frame{' '}
          <button type="button" class="plain link" onClick={() => setState({ zoom: '', pan: '' })}>
            Show all
          </button>
        </p>
      )}
      <Rows
        {...props}
        rows={rows}
        whole={layout.tree.total[0][node === 0 || !part ? 0 : layout.node[node]]}
        samples={graph.request.options.measure === 'count'}
        bare={node !== 0 || request.options.transforms.length > 0}
      />
      {props.pruned > 0 && (
        <p class="more">
          {format.percent(props.pruned)} of {format.measured()} sits in frames too small to draw; it is counted in their
          callers.{' '}
          <button type="button" class="plain link" onClick={() => setState({ rows: 'exact' })}>
            Show exact totals
          </button>
        </p>
      )}
    </>
  );
}

/** Functions of a graph as rows. */
function rowsOf(functions: Graph['functions'], layout: Graph['layout']): TopRow[] {
  if (!functions) return [];
  const { name, own, total, waker, woken } = functions;
  const { text, module, kind } = layout.tree.names;
  return Array.from(name, (id, at) => ({
    key: String(id),
    name: text[id],
    module: module[id],
    kind: kind[id],
    own: own[at],
    total: total[at],
    waker: waker[at] ? { name: text[waker[at]], value: woken[at] } : undefined,
  }));
}

function Others(props: Props & { asked: AskedTable }) {
  const { asked } = props;
  const { rows: of, sort } = useViewState('rows', 'sort');
  const { samples } = useDisplayState('samples');
  const byTotal = sort.endsWith('total');
  const query = useQuery(`top-${of}\n${asked.key}\n${byTotal}`, (signal) =>
    asked.top(of === 'exact' ? 'function' : of, byTotal, signal),
  );
  return (
    <Answer query={query} what="the table">
      {(answer) => (
        <Rows
          {...props}
          rows={answer.rows(samples)}
          whole={answer.whole(samples)}
          samples={samples}
          leftOut={answer.leftOut}
        />
      )}
    </Answer>
  );
}

/** Shares of the rows in the baseline; undefined: there is none, or it is not known yet. */
function useBefore(source: Source | undefined, samples: boolean): ColumnOf<TopRow>[] {
  const { rows: of, sort } = useViewState('rows', 'sort');
  const { was } = useWas();
  const asked = source && 'top' in source ? source : undefined;
  const byTotal = sort.endsWith('total');
  const by = of === 'exact' ? 'function' : of;
  const query = useQuery(asked && was && `before-${by} ${was.key}\n${byTotal}`, (signal) =>
    (asked as AskedTable).before((was as Was).selection, by, byTotal, signal),
  );
  const shares = useMemo(() => query.data && sharesOf(query.data, samples, byTotal), [query.data, samples, byTotal]);
  const isAsked = asked !== undefined;
  // The same as long as it says the same: rows are sorted by it.
  return useMemo((): ColumnOf<TopRow>[] => {
    if (!isAsked || !was) return [];
    const shareOf = (row: TopRow) => shares?.of(row) ?? Number.NaN;
    return [
      {
        key: 'before',
        title: 'Before',
        hint: `Share of ${byTotal ? 'total' : 'self'} time ${was.when}${query.trouble ? `: not known, ${query.trouble.title}` : ''}`,
        number: true,
        by: (row) => (Number.isNaN(shareOf(row)) ? -1 : shareOf(row)),
        cell: (row) => (
          <span class="soft">
            {!query.data ? (query.trouble ? '–' : '…') : shares?.none ? 'no data' : shareText(shareOf(row))}
          </span>
        ),
      },
    ];
  }, [isAsked, was?.key, was?.when, shares, query.data, query.trouble, byTotal]);
}

const shareText = (share: number) => (Number.isNaN(share) ? '–' : format.percent(share));

/** What share each row of the baseline had; NaN where it may be among those that were left out. */
function sharesOf(answer: TopAnswer, samples: boolean, byTotal: boolean) {
  const whole = answer.whole(samples);
  const sums = new Map<string, number>();
  for (const row of answer.rows(samples)) {
    const key = `${row.name}\0${row.module}`;
    sums.set(key, (sums.get(key) ?? 0) + (byTotal ? row.total : row.own));
  }
  const otherwise = answer.leftOut > 0 ? Number.NaN : 0;
  return {
    none: !(whole > 0),
    of: (row: TopRow) => {
      const sum = sums.get(`${row.name}\0${row.module}`);
      return sum === undefined ? otherwise : sum / whole;
    },
  };
}

function Rows(
  props: Props & { rows: readonly TopRow[]; whole: number; samples: boolean; leftOut?: number; bare?: boolean },
) {
  const { rows, whole } = props;
  const { rows: of, filter, sort } = useViewState('rows', 'filter', 'sort');
  const { colours } = useDisplayState('colours');
  const theme = useTheme();
  const amount = useMemo(() => {
    const most = rows.reduce((max, row) => Math.max(max, row.own, row.total), 0);
    return props.samples ? format.count : format.weights(most, props.graph.unit);
  }, [rows, props.samples, props.graph.unit]);
  const isFunction = of === 'function' || of === 'exact';
  const before = useBefore(props.bare ? undefined : props.source, props.samples);
  const waits = rows.some((row) => row.waker !== undefined);
  const wokenBy: ColumnOf<TopRow>[] = !waits
    ? []
    : [
        {
          key: 'woken',
          title: 'Woken by',
          hint: 'The main waker, and its part of these waits',
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
        ? 'Time that threads waited in the function, the last of their program, or in calls of the kernel from it'
        : 'Time in the function itself',
      number: true,
      by: (row) => row.own,
      cell: (row) => <Bar fraction={row.own / whole}>{amount(row.own)}</Bar>,
    },
    { key: 'own%', title: '%', number: true, cell: (row) => <span class="soft">{format.share(row.own, whole)}</span> },
    {
      key: 'total',
      title: 'Total',
      hint: 'Time in the function and all it calls; recursion counts once',
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
    ...before,
    {
      key: 'name',
      title: isFunction ? 'Function' : of === 'module' ? 'Module' : of.slice(0, 40),
      by: (row) => row.name,
      cell: (row) => (
        <span class="cell-name">
          {isFunction && row.kind !== KIND_NONE && (
            <span
              class={`kind kind-${row.kind}`}
              style={colours === 'module' ? { background: moduleColour(row.module, theme) } : undefined}
              title={KIND_WORDS[row.kind]}
            />
          )}
          <button
            type="button"
            class="plain grow"
            title={isFunction || 'profile' in props.source ? 'Highlight in the graph' : 'Select only this'}
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
              onClick={() => showCallers(row.name)}
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
    if (isFunction || of === 'module') setState({ search: `^${escapeRegex(row.name)}$`, regex: true });
    else if ('top' in props.source) props.source.select(of, row.name);
    else setState({ root: of, search: `^${escapeRegex(row.name)}$`, regex: true });
  };
  const ordered = useMemo(() => sorted(rows, columns, sort || 'own'), [rows, sort, sort.endsWith('before') && before]);
  const kept = useKept(ordered, filter);
  return (
    <SortedTable
      caption={`${format.measure()} by ${of}`}
      columns={columns}
      rows={kept}
      sort={sort || 'own'}
      onSort={(next) => setState({ sort: next })}
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

/**
 * Rows that have a text in their name or module, in any case. There may be 60,000 of them, for each
 * key: they come sorted, which is quick to sort again, and their texts are kept.
 */
function useKept(rows: readonly TopRow[], filter: string): readonly TopRow[] {
  const wanted = filter.toLowerCase();
  const filters = wanted !== '';
  const texts = useMemo(
    () => (filters ? rows.map((row) => `${row.name}\0${row.module}`.toLowerCase()) : []),
    [rows, filters],
  );
  return useMemo(() => (filters ? rows.filter((_, at) => texts[at].includes(wanted)) : rows), [rows, texts, wanted]);
}

/** Callers and callees are graphs: where only the table is shown, they come beside it. */
function showCallers(fn: string): void {
  const { panel } = getState();
  setState({ fn, panel: panel === 'table' ? 'both' : panel });
}
