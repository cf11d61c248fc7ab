import { create } from '@bufbuild/protobuf';
import { expect, test } from 'vitest';
import { ThrottlingSchema } from '../../src/gen/fleetprof/agent/v1/agent_pb';
import { limitCores, limitOf, throttledShare } from '../../src/query/throttling';

const of = (throttledNs: bigint, usedNs: bigint, limitMillicores = 0n) =>
  create(ThrottlingSchema, { throttledNs, usedNs, limitMillicores });

test('the share is of what was wanted, and unknown is not zero', () => {
  expect(throttledShare(of(90n, 10n))).toBeCloseTo(0.9);
  expect(throttledShare(of(0n, 10n))).toBe(0);
  expect(throttledShare(of(0n, 0n))).toBeUndefined();
  expect(throttledShare(undefined)).toBeUndefined();
});

test('a limit is in cores where it is known', () => {
  expect(limitOf(of(1n, 1n, 200n))).toBe('Limit: 0.2 cores');
  expect(limitOf(of(1n, 1n))).toBeUndefined();
  expect(limitOf(undefined)).toBeUndefined();
  expect(limitCores(1)).toBe('1 core');
});
