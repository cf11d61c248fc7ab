// What a piece of evidence is of: its selection, its time, its size.

import { Name } from '../app/parts';
import type { IncidentEvidence } from '../gen/fleetprof/collector/v1/incidents_pb';
import * as format from '../text/format';
import { toMs } from '../time/range';

export function EvidenceFacts({ of }: { of: IncidentEvidence }) {
  const time = (range: IncidentEvidence['range']) =>
    range ? format.span(toMs(range.startUnixNs), toMs(range.endUnixNs)) : 'an unknown time';
  return (
    <>
      <Name text={of.title} max={200} empty="complete fleet" />{' '}
      <span class="soft">
        {time(of.range)}
        {of.baseline && ` against ${time(of.baseline)}`} · {format.plural(Number(of.samples), 'sample')} ·{' '}
        {format.bytes(Number(of.bytes))}
      </span>
    </>
  );
}
