// Ends of a comparison's ranges, moved by keys.

import { expect, test } from 'vitest';
import { movedEdge } from '../../src/time/strip';

const S = 1000;
const range = { from: 100 * S, to: 200 * S };
// Ten seconds around the range.
const around = { axis: { from: -10 * S, to: 110 * S }, start: 100 * S, nowMs: 1000 * S };

test('one end moves, in whole seconds', () => {
  expect(movedEdge(range, around, 'from', 5.4 * S)).toEqual({ from: 105 * S, to: 200 * S });
  expect(movedEdge(range, around, 'to', -5 * S)).toEqual({ from: 100 * S, to: 195 * S });
});

test('no end leaves the axis, now, or the other end', () => {
  expect(movedEdge(range, around, 'from', -99 * S).from).toBe(90 * S);
  expect(movedEdge(range, around, 'from', 1e15).from).toBe(199 * S);
  expect(movedEdge(range, around, 'to', 99 * S).to).toBe(210 * S);
  expect(movedEdge(range, around, 'to', -1e15).to).toBe(101 * S);
  expect(movedEdge(range, { ...around, nowMs: 205 * S }, 'to', 99 * S).to).toBe(205 * S);
});
