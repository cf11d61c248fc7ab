// A comparison in one sentence: how much more or less, since when, what explains it, and whether it
// is certain.

import { Name } from '../app/parts';
import type { OverviewRow } from '../gen/fleetprof/collector/v1/query_pb';
import { cores, error, relative, signed, when } from '../overview/overview';
import { setState } from '../state/store';
import { escapeRegex } from '../flame/search';
import type { Changes } from '../tables/changes';
import { comings, explain } from '../tables/explain';
import * as format from '../text/format';

interface Props {
  /** Both sides in cores, or events a second; undefined: not known. */
  rates: readonly [number, number] | undefined;
  unit: string;
  /** Both as a whole, judged as the overview judges; undefined: not known. */
  fleet: OverviewRow | undefined;
  /** By function; undefined: not known yet. */
  changes: Changes | undefined;
  /** A class where they are of the sides before. */
  stale: string;
}

/** A smaller change of the whole needs no explanation. */
const EXPLAINED_FROM = 0.03;

export function Verdict({ rates, unit, fleet, changes, stale }: Props) {
  const change = fleet?.change;
  const delta = rates ? rates[1] - rates[0] : Number.NaN;
  const known = rates !== undefined && Number.isFinite(delta);
  // Where all of the range differs alike, the error is that of the whole.
  const isWhole = change?.significant === true && change.sinceUnixNs === 0n && change.untilUnixNs === 0n;
  const what = format.rateUnit(unit);
  const value = (rate: number) => (unit === 'bytes' ? format.bytes(rate) : cores(rate));
  const tone = change?.significant ? (delta < 0 ? 'tone-less' : 'tone-more') : 'soft';
  return (
    <section class={`verdict compare-verdict${stale}`} aria-label="Verdict" aria-live="polite">
      <p class="verdict-line">
        {known ? (
          <>
            <b class={tone}>
              {unit === 'bytes' ? format.signed(delta, unit) : signed(delta)}
              {change && isWhole && <span class="verdict-error"> {error(change.error)}</span>}
              {unit === 'bytes' ? '/s' : ` ${what}`}
            </b>
            {relative(delta, rates[0]) !== '' && <span class={tone}> ({relative(delta, rates[0])})</span>}
            <span class="soft">
              {' '}
              · {value(rates[0])} → {value(rates[1])}
            </span>
          </>
        ) : (
          <span class="soft">{format.rateUnknown(unit)}.</span>
        )}
        {change && !isWhole && (
          <span class="verdict-sure">
            {' '}
            {change.significant ? (
              <>
                {when(change)}
                <small class="soft"> ({`${signed(change.cores)} ${error(change.error)} then`})</small>
              </>
            ) : (
              'within normal variation'
            )}
          </span>
        )}
      </p>
      {changes && (
        <Explained changes={changes} rates={known ? rates : undefined} sure={change?.significant !== false} />
      )}
    </section>
  );
}

function Explained(props: { changes: Changes; rates: readonly [number, number] | undefined; sure: boolean }) {
  const { changes, rates } = props;
  const { came, went } = comings(changes);
  const found = rates && explain(changes, rates);
  const large = rates && Math.abs(rates[1] - rates[0]) >= EXPLAINED_FROM * Math.max(...rates);
  const certain = changes.rows.filter((row) => row.significant).length;
  const parts: string[] = [];
  if (came) parts.push(`${format.plural(came, 'function')} ${came === 1 ? 'is' : 'are'} new.`);
  if (went) parts.push(`${format.plural(went, 'function')} ${went === 1 ? 'is' : 'are'} gone.`);
  return (
    <p class="verdict-why">
      {found && large && props.sure && found.rows.length > 0 && !found.spread && (
        <>
          {format.plural(found.rows.length, 'function')} {found.rows.length === 1 ? 'explains' : 'explain'}{' '}
          {found.part > 1.02
            ? `more than all of it (${Math.round(found.part * 100)} %: others changed the other way)`
            : `${Math.round(Math.min(1, found.part) * 100)} % of it`}
          :{' '}
          {found.rows.map((row, at) => (
            <span key={`${row.module} ${row.name}`}>
              {at > 0 && ', '}
              <button
                type="button"
                class="plain link"
                title="Highlight in the graph"
                onClick={() => setState({ search: `^${escapeRegex(row.name)}$`, regex: true })}
              >
                <Name text={row.name} max={50} />
              </button>
            </span>
          ))}
          .{' '}
        </>
      )}
      {found && large && props.sure && found.spread && (
        <>It is spread over many functions, as when there is more or less of the same work. </>
      )}
      {parts.join(' ')}{' '}
      {certain === 0
        ? 'No function changed its share significantly.'
        : `${format.plural(certain, 'function')} changed ${certain === 1 ? 'its' : 'their'} share significantly.`}
    </p>
  );
}
