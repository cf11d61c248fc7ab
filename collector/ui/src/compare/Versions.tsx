// Chooses two values of a label, such as two versions of a service, as the sides of a comparison.

import { useState } from 'preact/hooks';
import { Answer, Popover } from '../app/parts';
import { series } from '../query/client';
import { withMatcher } from '../query/selector';
import { useQuery } from '../query/useQuery';
import { setState } from '../state/store';
import { say } from '../app/parts';
import * as format from '../text/format';
import { type Range, absoluteSpec } from '../time/range';
import { rangeOfVersion, seenOf } from '../time/strip';
import { versionLabels } from './sides';

/** How far back versions are looked for. Unit: milliseconds. */
const BACK_MS = 24 * 3_600_000;

/** Most values that are offered. */
const VERSIONS_MAX = 100;

interface Props {
  /** Labels that there are. */
  labels: readonly string[];
  query: string;
  /** Range of the side B. */
  range: Range;
  /** Id of the profile type that is compared; absent: CPU of agents. */
  type: string | undefined;
}

export function Versions(props: Props) {
  return (
    <Popover title="Compare two versions" label={<>Versions …</>}>
      {(close) => <Panel {...props} close={close} />}
    </Popover>
  );
}

function Panel({ labels, query, range, type = '', close }: Props & { close: () => void }) {
  const known = versionLabels(labels);
  const [label, setLabel] = useState(known[0] ?? labels[0] ?? '');
  const looked = { from: Math.max(0, Math.min(range.from, range.to - BACK_MS)), to: range.to };
  const found = useQuery(
    label === '' ? undefined : `versions ${label}\n${type}\n${query}\n${looked.to}`,
    async (signal) =>
      seenOf(await series({ range: looked, query, filters: [], type }, label, signal, VERSIONS_MAX), label),
  );
  return (
    <div class="versions-panel">
      <label>
        Label
        <select value={label} onChange={(event) => setLabel(event.currentTarget.value)}>
          {[...known, ...labels.filter((one) => !known.includes(one))].map((one) => (
            <option key={one} value={one}>
              {say(one).slice(0, 40)}
            </option>
          ))}
        </select>
      </label>
      <Answer query={found} what="the versions">
        {(seen) => <Pair key={label} seen={seen} label={label} query={query} range={range} close={close} />}
      </Answer>
    </div>
  );
}

interface PairProps {
  seen: ReadonlyMap<string, Range>;
  label: string;
  query: string;
  range: Range;
  close: () => void;
}

function Pair({ seen, label, query, range, close }: PairProps) {
  // The older first: what was seen earlier, and of those that started together, what ended earlier.
  const values = [...seen].sort(([, one], [, other]) => one.from - other.from || one.to - other.to);
  const [a, setA] = useState(values.at(-2)?.[0] ?? '');
  const [b, setB] = useState(values.at(-1)?.[0] ?? '');
  if (values.length < 2)
    return (
      <p class="soft">{values.length ? 'Only one value ran in the last day.' : 'No value ran in the last day.'}</p>
    );
  const apply = () => {
    const [was, is] = [seen.get(a), seen.get(b)].map((one) => one && rangeOfVersion(one, range));
    if (!was || !is) return;
    const spec = absoluteSpec(was);
    setState({
      ...absoluteSpec(is),
      bfrom: spec.from,
      bto: spec.to,
      query: withMatcher(query, { label, op: '=', value: b }),
      bquery: withMatcher(query, { label, op: '=', value: a }),
      live: false,
    });
    close();
  };
  const choice = (name: string, value: string, onChange: (value: string) => void) => (
    <label>
      {name}
      <select aria-label={`Version ${name}`} value={value} onChange={(event) => onChange(event.currentTarget.value)}>
        {values.map(([one, times]) => (
          <option key={one} value={one}>
            {say(one).slice(0, 60)} ({format.span(times.from, times.to)})
          </option>
        ))}
      </select>
    </label>
  );
  return (
    <>
      {choice('A', a, setA)}
      {choice('B', b, setB)}
      <button type="button" class="primary" disabled={a === b} onClick={apply}>
        Compare
      </button>
    </>
  );
}
