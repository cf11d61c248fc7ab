// Notices about a complete capture: what ended it early, and what its reader should know.

import { Name } from '../app/parts';
import * as format from '../text/format';

/** Most notices written out. */
const SHOWN_MAX = 8;

export function Notices({ of }: { of: { endedBy: string; notices: readonly string[] } }) {
  const all = [...(of.endedBy ? [of.endedBy] : []), ...of.notices];
  if (!all.length) return null;
  return (
    <ul class="capture-notices">
      {all.slice(0, SHOWN_MAX).map((notice, at) => (
        <li key={`${at}`} class="warned">
          <Name text={notice} max={300} />
        </li>
      ))}
      {all.length > SHOWN_MAX && <li class="soft">and {format.count(all.length - SHOWN_MAX)} more</li>}
    </ul>
  );
}
