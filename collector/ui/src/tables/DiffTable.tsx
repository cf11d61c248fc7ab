// What changed, by function, with the error of the measurement.

import { useMemo } from 'preact/hooks';
import { FilterInput } from '../app/FilterInput';
import { setState, useDisplayState, useViewState } from '../state/store';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { Empty, Module, Name } from '../app/parts';
import { escapeRegex } from '../flame/search';
import { KIND } from '../query/outcome';
import * as format from '../text/format';
import { type ChangeRow, type Changes, error95 } from './changes';

const SPREAD =
  'The error shows how much the share varies between parts of each range, and is never below the sampling error. It does not include differences between hosts.';
const SAMPLING =
  'The error covers only sampling, as if all samples were independent. The real spread between hosts and minutes is larger.';

interface Props {
  changes: Changes;
  /** Both sides in cores, or events a second; undefined: not known. */
  rates: readonly [number, number] | undefined;
  unit: string;
}

/** Fewer samples than this on a side are told: changes of some points are chance then. */
const FEW_SAMPLES = 1000;

/**
 * What is said of a side with few samples: from which change on a function of a tenth of it can be
 * told.
 */
export function fewText(side: string, samples: number): string {
  const points = error95(Math.sqrt((0.1 * 0.9) / Math.max(1, samples))) * 100;
  return `${side}: ${format.plural(samples, 'sample')}, too few for changes under ${Math.ceil(points)} pp`;
}

/** Rows that are no code: what was cut, folded, or has no name. */
const isCode = (row: ChangeRow) => row.kind !== KIND.synthetic;

export function DiffTable({ changes, rates, unit }: Props) {
  const { filter, sort } = useViewState('filter', 'sort');
  const { compare } = useDisplayState('compare');
  const wanted = filter.toLowerCase();
  const rows = useMemo(
    () =>
      changes.rows.filter(
        (row) =>
          isCode(row) &&
          (wanted === '' || row.name.toLowerCase().includes(wanted) || row.module.toLowerCase().includes(wanted)),
      ),
    [changes, wanted],
  );
  const apart = useMemo(() => changes.rows.filter((row) => !isCode(row)), [changes]);
  const { before, after } = changes;
  const sure = Math.min(before.parts, after.parts) >= 2;
  const cores = compare === 'sum' && rates !== undefined;
  const [was, is] = cores ? rates : [1, 1];
  const share = (row: ChangeRow) =>
    [
      before.weight > 0 ? (row.before / before.weight) * was : 0,
      after.weight > 0 ? (row.after / after.weight) * is : 0,
    ] as const;
  const change = (row: ChangeRow) => share(row)[1] - share(row)[0];
  const of = cores
    ? `${unit === 'nanoseconds' ? 'Cores' : 'Events a second'} of self time`
    : 'Share of self time in all samples';
  const shown = (value: number) => (cores ? format.significant(value) : format.percent(value));
  const columns: ColumnOf<ChangeRow>[] = [
    {
      key: 'before',
      title: 'Before',
      hint: `${of} before`,
      number: true,
      by: (row) => share(row)[0],
      cell: (row) => shown(share(row)[0]),
    },
    {
      key: 'after',
      title: 'After',
      hint: `${of} after`,
      number: true,
      by: (row) => share(row)[1],
      cell: (row) => shown(share(row)[1]),
    },
    {
      key: 'change',
      title: cores ? (unit === 'nanoseconds' ? 'Change, cores' : 'Change a second') : 'Change',
      hint: cores
        ? 'Change of the mean; the normal variation of the load is not included'
        : `Change and its 95 % error, in percentage points. ${sure ? SPREAD : SAMPLING}`,
      number: true,
      by: (row) => Math.abs(change(row)),
      cell: (row) => (
        <span class={row.significant ? (change(row) > 0 ? 'more-than' : 'less-than') : 'soft'}>
          {cores ? (
            `${change(row) < 0 ? '−' : '+'}${format.significant(Math.abs(change(row)))}`
          ) : (
            <>
              {format.points(change(row))}{' '}
              <small class="soft">± {format.significant(error95(row.shareError) * 100, 2)}</small>
            </>
          )}
        </span>
      ),
    },
    {
      key: 'sure',
      title: !sure ? 'Sampling error only' : cores ? 'Share significant' : 'Significant',
      hint: `${cores ? 'For the share: ' : ''}${sure ? `${SPREAD} At most one in twenty marked rows is chance.` : SAMPLING}`,
      by: (row) => (row.significant ? 'a' : 'b'),
      cell: (row) => (
        <span class={row.significant ? 'sure' : 'soft'}>
          {row.significant ? (sure ? 'yes' : 'beyond error') : sure ? 'within noise' : 'within error'}
        </span>
      ),
    },
    {
      key: 'name',
      title: 'Function',
      by: (row) => row.name,
      cell: (row) => (
        <span class="cell-name">
          <button
            type="button"
            class="plain grow"
            title="Highlight in the graph"
            onClick={() => setState({ search: `^${escapeRegex(row.name)}$`, regex: true })}
          >
            <Name text={row.name} max={160} />
          </button>
          {row.appeared && <span class="badge more-than">new</span>}
          {row.vanished && <span class="badge less-than">gone</span>}
          {row.module !== '' && <Module path={row.module} />}
          <button
            type="button"
            class="plain square-small"
            title="Callers and callees"
            aria-label="Callers and callees"
            onClick={() => setState({ fn: row.name })}
          >
            ⇅
          </button>
        </span>
      ),
    },
  ];
  const notes = (
    [
      ['before', before],
      ['after', after],
    ] as const
  ).flatMap(([side, { samples, lost }]) => {
    return [
      ...(samples > 0 && samples < FEW_SAMPLES ? [fewText(side, samples)] : []),
      ...(lost >= 0.01 ? [`${side}: ${format.percent(lost)} lost, not compared`] : []),
    ];
  });
  return (
    <section class="top" aria-label="Table of changes">
      <div class="tools">
        <FilterInput label="Filter rows of the table" placeholder="Filter rows" />
      </div>
      {notes.length > 0 && (
        <ul class="diff-notes">
          {notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
      <div class="scroll" tabIndex={0} role="region" aria-label="Rows of the table">
        <SortedTable
          caption="Change by function"
          columns={columns}
          rows={rows}
          sort={sort || 'change'}
          onSort={(next) => setState({ sort: next })}
          keyOf={(row) => `${row.kind} ${row.module} ${row.name}`}
          rowClass={(row) => (row.significant ? '' : 'unsure')}
          leftOut={changes.leftOut}
          empty={<Empty title={changes.rows.length ? 'No matching rows' : 'No difference'} />}
        />
        {apart.length > 0 && (
          <ul class="apart" aria-label="Lost, incomplete and other">
            {apart.map((row) => (
              <li key={row.name}>
                <Name text={row.name} max={60} /> <span class="soft">(lost / incomplete / other)</span>{' '}
                {shown(share(row)[0])} → {shown(share(row)[1])}
              </li>
            ))}
          </ul>
        )}
      </div>
    </section>
  );
}
