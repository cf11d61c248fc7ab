// Compares what is selected with the same at another time.

import { setState, useSelectionState } from '../state/store';
import { type Range, absoluteSpec } from '../time/range';
import { Icon, Popover } from './parts';

const HOUR_MS = 3_600_000;

/** Ranges to compare with, by what they are called: how much earlier they are. */
function baselines(range: Range): [string, number][] {
  const length = range.to - range.from;
  const all: [string, number][] = [
    ['Previous period', length],
    ['An hour before', HOUR_MS],
    ['Yesterday', 24 * HOUR_MS],
    ['Last week', 7 * 24 * HOUR_MS],
  ];
  // Sides that overlap have less of a difference.
  return all.filter(([, by], at) => at === 0 || (by >= length && by !== length));
}

export function CompareWith({ range }: { range: Range }) {
  const { query } = useSelectionState('query');
  const compare = (by: number) => {
    const was = absoluteSpec({ from: Math.max(0, range.from - by), to: Math.max(1, range.to - by) });
    setState({
      view: 'compare',
      ...absoluteSpec(range),
      bfrom: was.from,
      bto: was.to,
      bquery: undefined,
      query,
    });
  };
  return (
    <Popover
      title="Compare the selection with another time"
      align="right"
      label={
        <>
          Compare with … <Icon of="down" />
        </>
      }
    >
      {(close) => (
        <div class="menu">
          {baselines(range).map(([words, by]) => (
            <button
              key={words}
              type="button"
              onClick={() => {
                close();
                compare(by);
              }}
            >
              {words}
            </button>
          ))}
          <button
            type="button"
            onClick={() => {
              close();
              setState({ view: 'compare' });
            }}
          >
            Other ranges or filters …
          </button>
        </div>
      )}
    </Popover>
  );
}
