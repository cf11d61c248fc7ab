// One line on what the answer is made of; the numbers behind it on a click.

import { Icon, Name, Popover } from './parts';
import type { DataQuality } from '../gen/fleetprof/collector/v1/query_pb';
import { details, lossOf, notesOf } from '../query/quality';
import * as format from '../text/format';
import { toMs } from '../time/range';
import { causeText } from '../time/series';

/** Most gaps written out. */
const GAPS_SHOWN = 40;

/** Loss that must be known before the samples are read. */
export function LossBox({ sampling, what }: { sampling: DataQuality['sampling']; what: string }) {
  const loss = lossOf(sampling, what);
  if (!loss) return null;
  return (
    <p class={`loss ${loss.bad ? 'bad' : ''}`} role={loss.bad ? 'alert' : 'note'}>
      <Icon of="warn" /> {loss.text}
    </p>
  );
}

/** `stale`: it is of the answer before. */
export function QualityLine({ quality, stale }: { quality: DataQuality | undefined; stale?: boolean }) {
  if (!quality) return <div class="quality" />;
  const notes = notesOf(quality);
  const warns = notes.filter((note) => note.warn).length;
  const bad = notes.some((note) => note.bad);
  return (
    <div class={`quality${stale ? ' outdated' : ''}`} role="group" aria-label="Data quality">
      <Popover
        title="The data behind this view, and what is missing"
        class={`plain quality-button ${bad ? 'bad' : warns ? 'warned' : ''}`}
        label={
          <>
            {warns > 0 && <Icon of="warn" />} Data quality <Icon of="down" />
          </>
        }
      >
        {() => <Details quality={quality} />}
      </Popover>
      <ul>
        {notes.map((note) => (
          <li key={note.text} class={note.bad ? 'bad' : note.warn ? 'warned' : ''} title={note.title}>
            {note.text}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Details({ quality }: { quality: DataQuality }) {
  const covered = quality.covered;
  return (
    <div class="quality-details" tabIndex={0} role="region" aria-label="What the answer is made of">
      <h3>What this view is based on</h3>
      {covered && (
        <p>{format.span(toMs(covered.startUnixNs), toMs(covered.endUnixNs))}, the range widened to full steps.</p>
      )}
      <table>
        <tbody>
          {details(quality).map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="number">{value}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {quality.gaps.length > 0 && (
        <>
          <h3>Time without data</h3>
          <ul class="gaps">
            {quality.gaps.slice(0, GAPS_SHOWN).map((gap, at) => (
              <li key={`${at}`}>
                <Name text={gap.hostname || gap.hostId} max={60} />{' '}
                {format.span(toMs(gap.startUnixNs), toMs(gap.endUnixNs))}{' '}
                <span class="soft">({format.duration(Number(gap.endUnixNs - gap.startUnixNs))})</span>
                <div class="soft">
                  <Name text={causeText(gap.cause)} max={160} />
                </div>
              </li>
            ))}
          </ul>
          {quality.gapsTotal > BigInt(Math.min(GAPS_SHOWN, quality.gaps.length)) && (
            <p class="soft">
              and {format.count(Number(quality.gapsTotal) - Math.min(GAPS_SHOWN, quality.gaps.length))} shorter ones
            </p>
          )}
        </>
      )}
      {quality.damaged.length > 0 && (
        <>
          <h3>Missing partitions</h3>
          <ul>
            {quality.damaged.slice(0, GAPS_SHOWN).map((one) => (
              <li key={one}>
                <Name text={one} />
              </li>
            ))}
          </ul>
        </>
      )}
    </div>
  );
}
