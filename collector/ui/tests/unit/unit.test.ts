import { create } from '@bufbuild/protobuf';
import { expect, test } from 'vitest';
import { CgroupSchema } from '../../src/gen/fleetprof/agent/v1/agent_pb';
import {
  CgroupsResponseSchema,
  DiffResponseSchema,
  HostsResponseSchema,
  ProfileResponseSchema,
  SeriesResponseSchema,
  TopResponseSchema,
} from '../../src/gen/fleetprof/collector/v1/query_pb';
import { Assembler } from '../../src/query/profile';
import { coverageOf, notesOf } from '../../src/query/quality';
import { baseOf, rebaseCgroups, rebaseDiff, rebaseHosts, rebaseSeries, rebaseTop } from '../../src/query/unit';
import { chartOf, meanOf } from '../../src/time/series';
import * as format from '../../src/text/format';

const YEAR_S = 365 * 86_400;
/** 16,000 busy CPUs for a year: 27 times what 64 bits of nanoseconds hold. Unit: microseconds. */
const FLEET_US = BigInt(16_000 * YEAR_S) * 1_000_000n;

test('units know what agents weigh in', () => {
  expect(baseOf('microseconds')).toEqual({ unit: 'nanoseconds', by: 1000 });
  expect(baseOf('kilocycles')).toEqual({ unit: 'cycles', by: 1000 });
  expect(baseOf('nanoseconds')).toEqual({ unit: 'nanoseconds', by: 1 });
  expect(baseOf('')).toEqual({ unit: '', by: 1 });
});

test('a chart of a whole fleet over a year has its cores', () => {
  const stepNs = BigInt(YEAR_S) * 1_000_000_000n;
  const quality = { unit: 'microseconds', totalWeight: FLEET_US };
  const steps = [{ coveredNs: stepNs, hosts: 1n, weight: FLEET_US, lostWeight: 0n }];
  const answer = rebaseSeries(
    create(SeriesResponseSchema, { stepNs, lines: [{ weights: [FLEET_US], totalWeight: FLEET_US }], quality, steps }),
  );
  expect(meanOf(answer, 2 * YEAR_S * 1e3)).toBeCloseTo(16_000, 6);
  expect(chartOf(answer, '', 2 * YEAR_S * 1e3).unit).toBe('nanoseconds');
  expect(answer.steps[0].weight).toBe(FLEET_US * 1000n);
});

test('a profile in microseconds is one in nanoseconds', () => {
  const assembler = new Assembler();
  assembler.add(
    create(ProfileResponseSchema, {
      quality: { unit: 'microseconds', totalWeight: FLEET_US, coverage: { expectedNs: FLEET_US } },
    }),
  );
  const info = { unit: 'microseconds', period: 10_101n };
  assembler.add(
    create(ProfileResponseSchema, {
      chunk: {
        info,
        sampleLabelSets: [0],
        sampleStacks: [0],
        sampleEnds: [0],
        sampleCounts: [7n],
        sampleWeights: [FLEET_US],
        last: true,
      },
    }),
  );
  const profile = assembler.finish();
  expect(profile.unit).toBe('nanoseconds');
  expect(profile.weight[0]).toBe(Number(FLEET_US) * 1000);
  expect(profile.about.period).toBe(10_101_000n);
  expect(profile.quality?.totalWeight).toBe(FLEET_US * 1000n);
  expect(format.weight(profile.weight[0], profile.unit)).toBe('5840000 d');
  expect((profile.quality ? notesOf(profile.quality) : []).length).toBeGreaterThan(0);
});

test('tables, hosts and cgroups are in the unit of agents, shares stay', () => {
  const quality = { unit: 'microseconds', totalWeight: 8n, prunedWeight: 1n };
  const top = rebaseTop(create(TopResponseSchema, { quality, rows: [{ selfWeight: 3n, totalWeight: 5n }] }));
  expect([
    top.rows[0].selfWeight,
    top.rows[0].totalWeight,
    top.quality?.totalWeight,
    top.quality?.prunedWeight,
  ]).toEqual([3000n, 5000n, 8000n, 1000n]);
  const host = { unit: 'microseconds', weight: 5n, lostWeight: 1n, coverage: { expectedNs: 5n, takenNs: 4n } };
  const hosts = rebaseHosts(create(HostsResponseSchema, { quality, hosts: [host, { unit: 'cycles', weight: 5n }] }));
  expect(hosts.hosts.map((one) => [one.unit, one.weight])).toEqual([
    ['nanoseconds', 5000n],
    ['cycles', 5n],
  ]);
  expect(hosts.hosts[0].coverage?.takenNs).toBe(4000n);
  const cgroups = rebaseCgroups(
    create(CgroupsResponseSchema, { quality, cgroups: [create(CgroupSchema, { totalWeight: 4n, expectedNs: 5n })] }),
  );
  const { totalWeight, expectedNs, estimatedNs } = cgroups.cgroups[0];
  expect(coverageOf({ takenNs: totalWeight, expectedNs, estimatedNs })).toBe(0.8);
});

test('a side that has no samples has no unit, and the other keeps its own', () => {
  const answer = rebaseDiff(
    create(DiffResponseSchema, {
      before: { unit: '' },
      after: { unit: 'kilocycles' },
      afterSampled: { weight: 2n },
      rows: [{ afterSelfWeight: 2n }],
    }),
  );
  expect([answer.after?.unit, answer.afterSampled?.weight, answer.rows[0].afterSelfWeight]).toEqual([
    'cycles',
    2000n,
    2000n,
  ]);
  expect(answer.before?.unit).toBe('');
});

test('answers in the unit of agents stay as they are', () => {
  const top = create(TopResponseSchema, {
    quality: { unit: 'nanoseconds', totalWeight: 8n },
    rows: [{ selfWeight: 3n }],
  });
  expect(rebaseTop(top).rows[0].selfWeight).toBe(3n);
  expect(top.quality?.totalWeight).toBe(8n);
});
