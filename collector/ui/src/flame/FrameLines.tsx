// The source lines of the chosen frame, or the way to have them recorded.

import { useMemo } from 'preact/hooks';
import { Name } from '../app/parts';
import type { Profile } from '../query/profile';
import * as format from '../text/format';
import { canHaveLines, hasLines, linesOf } from './lines';

/** Most lines written out: those with most samples. */
const LINES_SHOWN = 12;

interface Props {
  profile: Profile;
  /** The function. */
  text: string;
  kind: number;
  unit: string;
  samples: boolean;
  /** It was recorded with lines, whether there are any or not. */
  withLines: boolean | undefined;
  /** Opens the dialog that records with lines. */
  onRecord: ((text: string) => void) | undefined;
}

export function FrameLines({ profile, text, kind, unit, samples, withLines, onRecord }: Props) {
  const rows = useMemo(
    () => (canHaveLines(kind) ? linesOf(profile, text, samples ? profile.count : profile.weight) : []),
    [profile, text, kind, samples],
  );
  const known = useMemo(() => withLines || hasLines(profile), [withLines, profile]);
  if (!canHaveLines(kind)) return null;
  if (rows.length === 0) {
    return (
      <p class="detail-lines soft">
        {known
          ? 'This was recorded with source lines, and has none of this function: no debug information where it runs, or over captures.lines_mib or the time limit.'
          : 'No source lines: they are recorded on demand.'}
        {!known && onRecord && (
          <button
            type="button"
            title="A capture of what is selected, with source lines and inlined functions"
            onClick={() => onRecord(text)}
          >
            Record 10 s with lines
          </button>
        )}
      </p>
    );
  }
  const whole = rows.reduce((most, row) => Math.max(most, row.total), 0);
  const shown = (value: number) => (samples ? format.count(value) : format.weight(value, unit));
  return (
    <div class="detail-lines">
      <table aria-label="Samples by source line">
        <caption class="soft">This function in the complete profile shown, not this frame alone</caption>
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
