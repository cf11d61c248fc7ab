// The source lines of the chosen frame, or the way to have them recorded.

import { analysis } from '../analysis/client';
import type { ProfileSource } from '../analysis/protocol';
import { Name, TroubleBox } from '../app/parts';
import { untilReplaced, useQuery } from '../query/useQuery';
import * as format from '../text/format';
import { canHaveLines } from './lines';

/** Most lines written out: those with most samples. */
const LINES_SHOWN = 12;

interface Props {
  source: ProfileSource;
  /** The function. */
  text: string;
  kind: number;
  unit: string;
  samples: boolean;
  /** Some frame has a line, or it was recorded with them, whether there are any or not. */
  hasLines: boolean;
  /** Opens the dialog that records with lines. */
  onRecord: ((text: string) => void) | undefined;
}

export function FrameLines({ source, text, kind, unit, samples, hasLines, onRecord }: Props) {
  const can = canHaveLines(kind);
  const args = { of: source, fn: text, samples };
  // What has no lines anywhere needs no look at all its stacks.
  const query = untilReplaced(
    useQuery(can && hasLines ? `lines ${JSON.stringify(args)}` : undefined, (signal) => analysis.lines(args, signal)),
  );
  if (!can) return null;
  if (query.trouble) {
    return (
      <div class="detail-lines">
        <TroubleBox trouble={query.trouble} again={query.again} />
      </div>
    );
  }
  const rows = hasLines ? query.data : [];
  // They come in a moment.
  if (!rows) return null;
  if (rows.length === 0) {
    return (
      <p class="detail-lines soft">
        {hasLines
          ? 'No source lines for this function: its host has no debug information, or reading it exceeded captures.lines_mib or the time limit.'
          : 'No source lines: record them with a capture.'}
        {!hasLines && onRecord && (
          <button
            type="button"
            title="Capture the selection with source lines and inlined functions"
            onClick={() => onRecord(text)}
          >
            Record 10 s with lines
          </button>
        )}
      </p>
    );
  }
  const whole = rows.reduce((most, row) => Math.max(most, row.total), 0);
  const shown = samples ? format.count : format.weights(whole, unit);
  return (
    <div class="detail-lines">
      <table aria-label="Samples by source line">
        <caption class="soft">This function in the complete profile, not only in this frame</caption>
        <thead>
          <tr>
            <th scope="col">Line</th>
            <th scope="col">Self</th>
            <th scope="col">Total</th>
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, LINES_SHOWN).map((row) => (
            <tr key={`${row.file}:${row.line}`}>
              <td title={row.file.slice(0, 400)}>
                <Name text={`${row.file.slice(row.file.lastIndexOf('/') + 1)}:${row.line}`} max={60} />
              </td>
              <td>{row.own > 0 ? shown(row.own) : ''}</td>
              <td>
                <span class="line-bar" style={{ width: `${Math.round((row.total / whole) * 60)}px` }} />{' '}
                {shown(row.total)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > LINES_SHOWN && (
        <p class="soft">and {format.plural(rows.length - LINES_SHOWN, 'line')} with less</p>
      )}
    </div>
  );
}
