// What changed, as a table: by function or module from samples, by label from the kernel's
// accounts, each with its error.

import { useMemo } from 'preact/hooks';
import { FilterInput } from '../app/FilterInput';
import { setState, useDisplayState, useViewState } from '../state/store';
import { type ColumnOf, SortedTable } from '../app/sorting';
import { Empty, Module, Name, Toggle } from '../app/parts';
import { escapeRegex } from '../flame/search';
import * as format from '../text/format';
import { type ChangeRow, type Changes, type Shown, error95, isCode, partsOf, shownOf } from './changes';

const SPREAD =
  'The error shows how much the share varies between parts of each range, and is never below the sampling error.';
const SAME_HOSTS = 'Differences between hosts are the same on both sides.';
const OTHER_HOSTS = 'The sides have different hosts, so the error also shows how much the share varies between hosts.';
const ONE_HOST =
  'The sides have different hosts, and too few of them to tell what always differs between hosts from a change.';
const SAMPLING =
  'The error covers only sampling, as if all samples were independent. The real spread between hosts and minutes is larger.';
const ACCOUNTS =
  'The change of the part of the range that differs most from the baseline, with its 95 % error from how much the load varies from step to step. At most one in a hundred marked rows is chance.';

const UNJUDGED = 'Means of both sides, without an error.';

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

interface Props {
  changes: Changes;
  /** What the rows are: `function` or `module`. */
  by: string;
  /** Both sides in cores, or events a second; undefined: not known. */
  rates: readonly [number, number] | undefined;
  unit: string;
}

/** By function or module. */
export function DiffTable({ changes, by, rates, unit }: Props) {
  const { compare } = useDisplayState('compare');
  const { before, after } = changes;
  const inCores = compare === 'sum' && rates !== undefined;
  const rows = useMemo(() => shownOf(changes, inCores ? rates : undefined), [changes, inCores, rates]);
  const sure = Math.min(before.parts, after.parts) >= 2;
  const hosts = !changes.hostsDiffer
    ? SAME_HOSTS
    : Math.max(before.hostParts, after.hostParts) >= 2
      ? OTHER_HOSTS
      : ONE_HOST;
  const shown = (value: number) => (inCores ? format.rateValue(value, unit) : format.percent(value));
  return (
    <section class="top" aria-label="Table of changes">
      <Notes changes={changes} />
      <ShownTable
        rows={rows}
        by={by}
        inCores={inCores}
        unit={unit}
        sure={sure}
        what={self()}
        error={`${sure ? `${SPREAD} ${hosts}` : SAMPLING}${inCores ? ' It is that of the share; how much the load as a whole varies is not in it.' : ''}`}
        rate={sure ? 'At most one in twenty marked rows is chance.' : ''}
        leftOut={changes.leftOut}
      />
      <Apart
        rows={changes.rows.filter((row) => !isCode(row))}
        changes={changes}
        rates={inCores ? rates : [1, 1]}
        shown={shown}
      />
    </section>
  );
}

/** By the values of a label. */
export function LabelTable(props: {
  rows: readonly Shown[];
  by: string;
  inCores: boolean;
  /** Of another type, whose means have no known error; absent: of CPU time. */
  unit?: string;
  /** CPU time is from the kernel's accounts; else it is from samples. */
  accounted?: boolean;
  leftOut: number;
  /** Compares only what has a value. */
  onChoose: (value: string) => void;
}) {
  const isCpu = props.unit === undefined;
  return (
    <section class="top" aria-label="Table of changes">
      {isCpu && !props.accounted && (
        <ul class="diff-notes">
          <li>from samples: the kernel’s accounting does not have the labels of these selections</li>
        </ul>
      )}
      <ShownTable
        rows={props.rows}
        by={props.by}
        inCores={props.inCores}
        unit={props.unit ?? 'nanoseconds'}
        sure={isCpu || undefined}
        what={isCpu ? 'CPU time' : format.measure()}
        error={isCpu ? ACCOUNTS : UNJUDGED}
        rate=""
        leftOut={props.leftOut}
        onChoose={props.onChoose}
      />
    </section>
  );
}

/** What of a side must be known before its numbers are read. */
function Notes({ changes }: { changes: Changes }) {
  const { before, after } = changes;
  const notes = (
    [
      ['before', before],
      ['after', after],
    ] as const
  ).flatMap(([side, { samples, lost }]) => [
    ...(samples > 0 && samples < FEW_SAMPLES ? [fewText(side, samples)] : []),
    ...(lost >= 0.01 ? [`${side}: ${format.percent(lost)} lost, not compared`] : []),
  ]);
  if (changes.hostsDiffer && Math.max(before.hostParts, after.hostParts) < 2)
    notes.push('different hosts: what always differs between them looks like a change');
  if (!notes.length) return null;
  return (
    <ul class="diff-notes">
      {notes.map((note) => (
        <li key={note}>{note}</li>
      ))}
    </ul>
  );
}

/** Rows that are no code: what was lost, cut or folded is not compared with functions. */
function Apart(props: {
  rows: readonly ChangeRow[];
  changes: Changes;
  rates: readonly [number, number];
  shown: (value: number) => string;
}) {
  if (!props.rows.length) return null;
  return (
    <ul class="apart" aria-label="Not compared: lost, incomplete and other">
      <li class="soft">not compared:</li>
      {props.rows.map((row) => {
        const [was, is] = partsOf(row, props.changes, props.rates);
        return (
          <li key={`${row.module} ${row.name}`}>
            <Name text={row.name} max={60} /> <span class="soft">(lost / incomplete / other)</span> {props.shown(was)} →{' '}
            {props.shown(is)}
          </li>
        );
      })}
    </ul>
  );
}

interface TableProps {
  rows: readonly Shown[];
  by: string;
  inCores: boolean;
  unit: string;
  /** The error is from more than sampling; undefined: it is not known, and no row is judged. */
  sure: boolean | undefined;
  /** What values are of: `self time`. */
  what: string;
  /** What the error means, and how often a marked row is chance. */
  error: string;
  rate: string;
  leftOut: number;
  /** A name was chosen; absent: it is highlighted in the graph. */
  onChoose?: (name: string) => void;
}

function ShownTable(props: TableProps) {
  const { by, inCores, sure } = props;
  const { filter, sort, sure: onlySure } = useViewState('filter', 'sort', 'sure');
  const wanted = filter.toLowerCase();
  const matching = useMemo(
    () =>
      props.rows.filter(
        (row) => wanted === '' || row.name.toLowerCase().includes(wanted) || row.module.toLowerCase().includes(wanted),
      ),
    [props.rows, wanted],
  );
  const noise = matching.filter((row) => !row.significant).length;
  const isJudged = sure !== undefined;
  const rows = onlySure && isJudged ? matching.filter((row) => row.significant) : matching;
  return (
    <>
      <div class="tools">
        {isJudged && (
          <Toggle
            pressed={onlySure}
            title="Hide rows whose change is within the noise"
            onChange={(next) => setState({ sure: next })}
          >
            Significant only{noise > 0 ? ` (${format.count(noise)} within noise${onlySure ? ' hidden' : ''})` : ''}
          </Toggle>
        )}
        <FilterInput label="Filter rows of the table" placeholder="Filter rows" />
      </div>
      <div class="scroll" tabIndex={0} role="region" aria-label="Rows of the table">
        <SortedTable
          caption={`Change by ${by}`}
          columns={columns(props)}
          rows={rows}
          sort={sort || 'change'}
          onSort={(next) => setState({ sort: next })}
          keyOf={(row) => row.key}
          rowClass={(row) => (row.significant || !isJudged ? '' : 'unsure')}
          leftOut={props.leftOut}
          empty={
            <Empty
              title={
                !props.rows.length
                  ? 'No difference'
                  : matching.length
                    ? `No significant change${inCores && sure ? '' : ' of a share'}`
                    : 'No matching rows'
              }
            >
              {matching.length > 0 && isJudged && (
                <button type="button" onClick={() => setState({ sure: false })}>
                  Show {format.plural(matching.length, 'row')} within noise
                </button>
              )}
            </Empty>
          }
        />
      </div>
    </>
  );
}

/** An error with two digits; what is next to nothing is not written out. */
function errorText(error: number, inCores: boolean, unit: string): string {
  if (inCores && unit === 'bytes') return format.bytes(error);
  const shown = error * (inCores ? 1 : 100);
  return shown > 0 && shown < 0.001 ? '<0.001' : format.significant(shown, 2);
}

/** What functions have without what they call. */
const self = () => (format.measure() === 'CPU' ? 'self time' : `self ${format.measure()}`);

const capital = (text: string) => text.charAt(0).toUpperCase() + text.slice(1);

/** Signs of a change, for those who do not tell red from blue: one per doubling of its size. */
function arrows(change: number, largest: number): string {
  const size = largest > 0 ? Math.abs(change) / largest : 0;
  return (change < 0 ? '▼' : '▲').repeat(size > 0.5 ? 3 : size > 0.15 ? 2 : 1);
}

function columns(props: TableProps): ColumnOf<Shown>[] {
  const { by, inCores, sure, unit, what } = props;
  const isFunction = by === 'function';
  const rate = format.rateUnit(unit);
  const of = inCores ? `${capital(rate)} of ${what}` : `Share of ${what}`;
  const shown = (value: number) => (inCores ? format.rateValue(value, unit) : format.percent(value));
  const largest = props.rows.reduce((most, row) => Math.max(most, Math.abs(row.change)), 0);
  const choose = (name: string) => setState({ search: `^${escapeRegex(name)}$`, regex: true });
  const since = props.rows.some((row) => row.since !== undefined);
  return [
    {
      key: 'before',
      title: 'Before',
      hint: `${of} before`,
      number: true,
      by: (row) => row.was,
      cell: (row) => shown(row.was),
    },
    {
      key: 'after',
      title: 'After',
      hint: `${of} after`,
      number: true,
      by: (row) => row.is,
      cell: (row) => shown(row.is),
    },
    {
      key: 'change',
      title: inCores ? `Change, ${rate}` : 'Change',
      hint: `Change${sure === undefined ? '' : ' and its 95 % error'}${inCores ? '' : ', in percentage points'}. ${props.error}`,
      number: true,
      by: (row) => Math.abs(row.change),
      cell: (row) => (
        <span class={row.significant ? (row.change > 0 ? 'more-than' : 'less-than') : 'soft'}>
          {inCores ? format.signed(row.change, unit) : format.points(row.change)}{' '}
          {row.error !== undefined && <small class="soft">± {errorText(error95(row.error), inCores, unit)}</small>}
        </span>
      ),
    },
    ...(sure === undefined
      ? []
      : [
          {
            key: 'sure',
            title: !sure ? 'Sampling error only' : inCores && isFunction ? 'Share significant' : 'Significant',
            hint: `${inCores && isFunction ? 'For the share: ' : ''}${props.error} ${props.rate}`,
            by: (row: Shown) => (row.significant ? 'a' : 'b'),
            cell: (row: Shown) => (
              <span class={row.significant ? 'sure' : 'soft'}>
                {row.significant && (
                  <span class={row.change < 0 ? 'less-than' : 'more-than'} aria-hidden="true">
                    {arrows(row.change, largest)}{' '}
                  </span>
                )}
                {row.significant ? (sure ? 'yes' : 'beyond error') : sure ? 'within noise' : 'within error'}
              </span>
            ),
          },
        ]),
    ...(since
      ? [
          {
            key: 'since',
            title: 'Since',
            hint: 'When the part of the range starts that differs most',
            cell: (row: Shown) => <span class="soft">{row.significant ? row.since : ''}</span>,
          },
        ]
      : []),
    {
      key: 'name',
      title: isFunction ? 'Function' : by === 'module' ? 'Module' : by.slice(0, 40),
      by: (row) => row.name,
      cell: (row) => (
        <span class="cell-name">
          <button
            type="button"
            class="plain grow"
            title={props.onChoose ? 'Compare only this, by function' : 'Highlight in the graph'}
            onClick={() => (props.onChoose ?? choose)(row.name)}
          >
            <Name text={row.name} max={160} empty="(none)" />
          </button>
          {row.appeared && <span class="badge more-than">new</span>}
          {row.vanished && <span class="badge less-than">gone</span>}
          {row.module !== '' && <Module path={row.module} />}
          {isFunction && (
            <button
              type="button"
              class="plain square-small"
              title="Callers and callees"
              aria-label="Callers and callees"
              onClick={() => setState({ fn: row.name })}
            >
              ⇅
            </button>
          )}
        </span>
      ),
    },
  ];
}
