// Tables whose rows are sorted by a click on a column's head, and of which the first rows are
// drawn.

import type { ComponentChildren } from 'preact';
import { useState } from 'preact/hooks';
import { count } from '../text/format';

export interface ColumnOf<R> {
  key: string;
  title: string;
  /** What the column means. */
  hint?: string;
  number?: boolean;
  /** What it is sorted by; absent: it is not. */
  by?: (row: R) => number | string;
  cell: (row: R) => ComponentChildren;
}

/** Rows drawn at first, and with each click on `more`. */
export const ROWS_DRAWN = 200;

/** `own` or `-own` (smallest first). */
export function sorted<R>(rows: readonly R[], columns: readonly ColumnOf<R>[], sort: string): R[] {
  const column = columns.find((one) => one.key === sort.replace(/^-/, ''));
  const by = column?.by;
  if (!by) return [...rows];
  const way = sort.startsWith('-') ? 1 : -1;
  return rows
    .map((row, at) => ({ row, at, key: by(row) }))
    .sort((left, right) => {
      if (typeof left.key === 'string' || typeof right.key === 'string') {
        // Words from A to Z first, numbers from the largest.
        return (
          (String(left.key) < String(right.key) ? way : String(left.key) > String(right.key) ? -way : 0) ||
          left.at - right.at
        );
      }
      return way * (left.key - right.key) || left.at - right.at;
    })
    .map((one) => one.row);
}

export interface SortedTableProps<R> {
  caption: string;
  columns: readonly ColumnOf<R>[];
  rows: readonly R[];
  sort: string;
  onSort: (sort: string) => void;
  keyOf: (row: R) => string;
  rowClass?: (row: R) => string;
  /** Said when there are no rows. */
  empty: ComponentChildren;
  /** Rows the answer left out. */
  leftOut?: number;
}

export function SortedTable<R>(props: SortedTableProps<R>) {
  const [drawn, setDrawn] = useState(ROWS_DRAWN);
  const rows = sorted(props.rows, props.columns, props.sort);
  const shown = rows.slice(0, drawn);
  if (!rows.length) return <>{props.empty}</>;
  return (
    <>
      <table class="rows">
        <caption class="hidden">{props.caption}</caption>
        <thead>
          <tr>
            {props.columns.map((column) => (
              <Head key={column.key} column={column} sort={props.sort} onSort={props.onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {shown.map((row) => (
            <tr key={props.keyOf(row)} class={props.rowClass?.(row)}>
              {props.columns.map((column) => (
                <td key={column.key} class={`${column.number ? 'number' : ''} col-${column.key}`}>
                  {column.cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > drawn && (
        <p class="more">
          <button type="button" onClick={() => setDrawn(drawn + 5 * ROWS_DRAWN)}>
            Show more
          </button>{' '}
          {count(drawn)} of {count(rows.length)} rows
        </p>
      )}
      {!!props.leftOut && <p class="more">The collector left {count(props.leftOut)} lighter rows out.</p>}
    </>
  );
}

function Head<R>({ column, sort, onSort }: { column: ColumnOf<R>; sort: string; onSort: (sort: string) => void }) {
  const is = sort.replace(/^-/, '') === column.key;
  // Numbers fall and words rise at first.
  const direction = !is ? undefined : sort.startsWith('-') === !!column.number ? 'ascending' : 'descending';
  return (
    <th scope="col" class={`${column.number ? 'number' : ''} col-${column.key}`} aria-sort={direction}>
      {column.by ? (
        <button
          type="button"
          title={column.hint}
          onClick={() => onSort(is && !sort.startsWith('-') ? `-${column.key}` : column.key)}
        >
          {column.title}
          <span class="arrow" aria-hidden="true">
            {direction === 'ascending' ? '▴' : direction === 'descending' ? '▾' : ''}
          </span>
        </button>
      ) : (
        <span title={column.hint}>{column.title}</span>
      )}
    </th>
  );
}
