// Alerts and incidents in words, and as marks on charts.

import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { amount, troubles, verdict } from '../../src/alerts/words';
import { flags, happenings } from '../../src/events/flags';
import {
  AlertReceiverSchema,
  AlertRuleSchema,
  AlertSchema,
  AlertState,
  ListAlertsResponseSchema,
} from '../../src/gen/fleetprof/collector/v1/alerts_pb';
import { labelsFrom, ownAddress } from '../../src/incidents/words';

const alert = (state: AlertState, more: object = {}) =>
  create(AlertSchema, { rule: 'api', state, id: 1n, unit: 'cores', value: 5, ...more });
const answer = (states: AlertState[]) =>
  create(ListAlertsResponseSchema, { alerts: states.map((state) => alert(state)), rules: [{ name: 'api' }] });

describe('the verdict', () => {
  test('says what fires, and what else there is', () => {
    const { FIRING, PENDING, NO_DATA, RESOLVED } = AlertState;
    expect(verdict(answer([FIRING, PENDING]))).toEqual({ text: '1 alert firing, 1 pending', bad: true });
    expect(verdict(answer([NO_DATA, RESOLVED]))).toEqual({
      text: 'Nothing is firing, 1 without data',
      bad: false,
    });
    expect(verdict(create(ListAlertsResponseSchema, {})).text).toBe('No alert rules');
  });
});

test('what keeps alerts from people is a sentence', () => {
  const rules = [create(AlertRuleSchema, { name: 'api', error: 'the query failed' })];
  const receivers = [
    create(AlertReceiverSchema, { name: 'oncall', failures: 2n, waiting: 3n, error: 'it answered 503' }),
  ];
  expect(troubles({ trouble: '', rules, receivers })).toEqual([
    'Alert api has no value: the query failed',
    'Receiver oncall does not accept notifications, 3 wait: it answered 503',
  ]);
  expect(troubles({ trouble: '', rules: [create(AlertRuleSchema, {})], receivers: [] })).toEqual([]);
});

test('values have their unit, and none is invented', () => {
  expect([amount(5.254, 'cores'), amount(12.34, 'percent'), amount(undefined, 'cores')]).toEqual([
    '5.25 cores',
    '12.3 %',
    '–',
  ]);
});

describe('on a chart', () => {
  const fired = (at: bigint, resolved = 0n) =>
    alert(AlertState.FIRING, { firedUnixNs: at * 1_000_000n, resolvedUnixNs: resolved * 1_000_000n });
  test('what fired is marked, what waits is not', () => {
    const all = happenings({ pins: [], annotations: [], alerts: [fired(1500n), alert(AlertState.PENDING)] });
    expect(all.map((one) => [one.kind, one.at, one.until])).toEqual([['alert', 1500, undefined]]);
    expect(flags(all, { from: 1000, to: 2000 }, 500, 24)[0].at).toBe(0.5);
  });
});

describe('incidents', () => {
  test('lead to the page and nowhere else', () => {
    expect(ownAddress('#view=profile')).toBe('#view=profile');
    for (const wrong of ['javascript:alert(1)', 'https://evil.example', '//evil.example', ''])
      expect(ownAddress(wrong)).toBe('');
  });

  test('are about what a selector is certain of', () => {
    const matchers = [
      { label: 'unit', op: '=', value: 'a' },
      { label: 'host', op: '=~', value: 'w.*' },
      { label: 'pod', op: '=', value: '' },
    ];
    expect(labelsFrom(matchers)).toEqual({ unit: 'a' });
  });
});
