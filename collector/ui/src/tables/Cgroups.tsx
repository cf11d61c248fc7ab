// CPU by slice, service and container: the tree of cgroups, added up over the hosts that are
// selected.

import { useMemo, useState } from 'preact/hooks';
import { Bar, Empty, Icon, Name } from '../app/parts';
import { ROWS_DRAWN } from '../app/sorting';
import { FilterInput } from '../app/FilterInput';
import { getState, setState, useViewState } from '../state/store';
import type { CgroupsResponse } from '../gen/fleetprof/collector/v1/query_pb';
import { withMatcher } from '../query/selector';
import * as format from '../text/format';
import type { Range } from '../time/range';
import { COVERAGE_HINT, COVERAGE_LOW, coverageOf } from '../query/quality';
import { limitOf, THROTTLED_HINT, THROTTLED_MUCH, throttledShare } from '../query/throttling';
import { type CgroupRow, isOpen, treeOf, visible } from './cgroupTree';

interface Props {
  answer: CgroupsResponse;
  range: Range;
  /** Time of the range that has data. Unit: nanoseconds. */
  coveredNs: number;
  /** The baseline; absent: there is none, or it is not known yet. */
  before?: Before;
}

/** Cores by path in the baseline. */
interface Before {
  cores: ReadonlyMap<string, number>;
  /** What of it is not listed may have been there. */
  leftOut: boolean;
  /** No host sent anything. */
  none: boolean;
  words: string;
}

/** The cores of an answer, by path. `coveredNs`: time of its range that has data. */
export function coresBefore(answer: CgroupsResponse, coveredNs: number, words: string): Before {
  const by = (answer.quality?.unit ?? 'nanoseconds') === 'nanoseconds' ? 1 : 1e9;
  return {
    cores: new Map(answer.cgroups.map((one) => [one.path, (Number(one.totalWeight) / coveredNs) * by])),
    leftOut: answer.rowsLeftOut > 0n,
    none: coveredNs === 0,
    words,
  };
}

function beforeText(before: Before, path: string): string {
  if (before.none) return 'no data';
  const cores = before.cores.get(path);
  return cores === undefined ? (before.leftOut ? '–' : '0') : format.significant(cores);
}

export function Cgroups({ answer, range, coveredNs, before }: Props) {
  const { filter, toggled: paths } = useViewState('filter', 'toggled');
  const roots = useMemo(() => treeOf(answer.cgroups), [answer]);
  const whole =
    Number(answer.quality?.totalWeight ?? 0n) || roots.reduce((sum, row) => sum + Number(row.cgroup.totalWeight), 0);
  const toggled = useMemo(() => new Set(paths), [paths]);
  const rows = useMemo(() => visible(roots, whole, toggled, filter), [roots, whole, toggled, filter]);
  const [drawn, setDrawn] = useState(ROWS_DRAWN);
  const toggle = (path: string) =>
    setState({ toggled: toggled.has(path) ? paths.filter((one) => one !== path) : [...paths, path] });
  const rangeNs = coveredNs > 0 ? coveredNs : (range.to - range.from) * 1e6;
  const alone = roots.length === 1;
  const unit = answer.quality?.unit ?? 'nanoseconds';
  const amount = format.weights(whole, unit);
  return (
    <section class="page" aria-label="Containers and services">
      <header class="page-head">
        <h2>Containers and services</h2>
        <span class="soft">{format.plural(answer.cgroups.length, 'cgroup')}, summed over hosts</span>
        <FilterInput label="Filter cgroups" placeholder="Filter by path, unit, container or pod" />
      </header>
      {!rows.length ? (
        <Empty title={answer.cgroups.length ? 'No matching cgroups' : 'No samples in this selection'} />
      ) : (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of cgroups">
          <table class="rows tree">
            <caption class="hidden">CPU by cgroup</caption>
            <thead>
              <tr>
                <th scope="col" class="col-name">
                  Cgroup
                </th>
                <th scope="col" class="number" title="In the cgroup and all below it">
                  Total
                </th>
                <th scope="col" class="number">
                  Share
                </th>
                <th scope="col" class="number">
                  {unit === 'nanoseconds' ? 'Cores' : 'Per second'}
                </th>
                {before && (
                  <th scope="col" class="number" title={`The same, ${before.words}`}>
                    Before
                  </th>
                )}
                <th scope="col" class="number" title="Only in this cgroup">
                  Self
                </th>
                <th scope="col" class="number" title="Estimated samples lost before their stack was read">
                  Lost
                </th>
                <th scope="col" class="number" title={COVERAGE_HINT}>
                  Coverage
                </th>
                <th scope="col" class="number" title={THROTTLED_HINT}>
                  Throttled
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.slice(0, drawn).map((row) => (
                <Row
                  key={row.cgroup.path}
                  row={row}
                  alone={alone}
                  whole={whole}
                  amount={amount}
                  rangeNs={rangeNs}
                  unit={unit}
                  before={before && beforeText(before, row.cgroup.path)}
                  open={isOpen(row, whole, toggled)}
                  filtered={filter !== ''}
                  onToggle={() => toggle(row.cgroup.path)}
                  onOpen={() =>
                    setState({
                      view: 'profile',
                      query: withMatcher(getState().query, { label: 'cgroup', op: '^=', value: row.cgroup.path }),
                    })
                  }
                />
              ))}
            </tbody>
          </table>
          {rows.length > drawn && (
            <p class="more">
              <button type="button" onClick={() => setDrawn(drawn * 4)}>
                Show more
              </button>{' '}
              {format.count(drawn)} of {format.count(rows.length)} rows
            </p>
          )}
          {answer.rowsLeftOut > 0n && (
            <p class="more">The collector left {format.count(Number(answer.rowsLeftOut))} lighter cgroups out.</p>
          )}
        </div>
      )}
    </section>
  );
}

/** Deepest indent drawn: a path may have more parts than a screen has room. */
const INDENT_MAX = 12;

/** What a row without a path of its own stands for. */
function nameOf(name: string, alone: boolean): string {
  if (name === '') return '[unknown cgroup]';
  return name === '/' && alone ? '/ (all)' : name;
}

function meaningOf(path: string): string {
  if (path === '') return 'samples with unknown cgroup: most of them were lost before they were read';
  return path.startsWith('/') ? '' : 'the cgroup was removed before its path could be read';
}

function Row(props: {
  alone: boolean;
  row: CgroupRow;
  whole: number;
  amount: (weight: number) => string;
  rangeNs: number;
  unit: string;
  before: string | undefined;
  open: boolean;
  filtered: boolean;
  onToggle: () => void;
  onOpen: () => void;
}) {
  const { row, whole, unit } = props;
  const { cgroup } = row;
  const [total, own, lost] = [cgroup.totalWeight, cgroup.selfWeight, cgroup.totalLostWeight].map(Number);
  const coverage = coverageOf({
    takenNs: cgroup.totalWeight - cgroup.totalLostWeight,
    expectedNs: cgroup.expectedNs,
    estimatedNs: cgroup.estimatedNs,
  });
  const throttled = throttledShare(cgroup.throttling);
  const about = [
    meaningOf(cgroup.path),
    cgroup.runtime,
    cgroup.container.slice(0, 12),
    cgroup.podUid && `pod ${cgroup.podUid.slice(0, 13)}`,
  ]
    .filter(Boolean)
    .join(' · ');
  return (
    <tr>
      <td class="col-name">
        <span class={`cell-name indent-${Math.min(INDENT_MAX, row.depth)}`}>
          {row.children.length > 0 ? (
            <button
              type="button"
              class={`plain square-small ${props.open ? 'opened' : ''}`}
              aria-expanded={props.open}
              aria-label={`${props.open ? 'Close' : 'Open'} ${row.name.slice(0, 80)}`}
              disabled={props.filtered}
              onClick={props.onToggle}
            >
              <Icon of="right" />
            </button>
          ) : (
            <span class="square-small" />
          )}
          <button type="button" class="plain grow" title="Show its profile" onClick={props.onOpen}>
            <Name text={nameOf(row.name, props.alone)} max={120} />
          </button>
          {about !== '' && (
            <span class="soft">
              <Name text={about} max={100} />
            </span>
          )}
        </span>
      </td>
      <td class="number">
        <Bar fraction={total / whole}>{props.amount(total)}</Bar>
      </td>
      <td class="number soft">{format.share(total, whole)}</td>
      <td class="number">{format.significant((total / props.rangeNs) * (unit === 'nanoseconds' ? 1 : 1e9))}</td>
      {props.before !== undefined && <td class="number soft">{props.before}</td>}
      <td class="number soft">{own > 0 ? props.amount(own) : '–'}</td>
      <td class={`number ${lost >= 0.5 * total && lost > 0 ? 'wrong' : lost > 0.01 * total ? 'warned' : 'soft'}`}>
        {lost > 0 ? format.share(lost, total) : '–'}
      </td>
      <td
        class={`number col-coverage ${coverage !== undefined && coverage < 0.5 ? 'wrong' : coverage !== undefined && coverage < COVERAGE_LOW ? 'warned' : 'soft'}`}
      >
        {coverage === undefined ? '–' : format.percent(coverage)}
      </td>
      <td
        class={`number ${throttled !== undefined && throttled >= THROTTLED_MUCH ? 'warned' : 'soft'}`}
        title={limitOf(cgroup.throttling)}
      >
        {throttled === undefined ? '–' : format.percent(throttled)}
      </td>
    </tr>
  );
}
