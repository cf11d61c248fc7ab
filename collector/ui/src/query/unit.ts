// Units of weights. Sums over a complete fleet do not fit in 64 bits of the agents' unit, so the
// collector gives them in a unit a thousand times as large. The page's numbers can hold any sum, so
// answers are converted back to the agents' unit here, where they arrive, and nothing else deals
// with the coarser unit.

import type {
  CgroupsResponse,
  DataQuality,
  DiffResponse,
  HostsResponse,
  SeriesResponse,
  TopResponse,
} from '../gen/fleetprof/collector/v1/query_pb';
import type { Coverage } from '../gen/fleetprof/profile/v1/profile_pb';

const BASES: ReadonlyMap<string, string> = new Map([
  ['microseconds', 'nanoseconds'],
  ['kilocycles', 'cycles'],
]);

/** How many of its base one of a coarser unit is. */
const COARSER_BY = 1000;

/** The unit that agents weigh in, and how many of it one of `unit` is. */
export function baseOf(unit: string): { unit: string; by: number } {
  const base = BASES.get(unit);
  return base === undefined ? { unit, by: 1 } : { unit: base, by: COARSER_BY };
}

/** Multiplies fields of a message. */
function scale<T extends object>(
  of: T,
  by: bigint,
  fields: readonly { [K in keyof T]: T[K] extends bigint ? K : never }[keyof T][],
): void {
  for (const field of fields) (of[field] as bigint) *= by;
}

/** Times that the kernel accounts are in microseconds where weights are. */
function scaleCoverage(of: Coverage | undefined, by: bigint): void {
  if (of) scale(of, by, ['expectedNs', 'estimatedNs', 'takenNs']);
}

/** What an answer's weights are to be multiplied by; its quality is in the base unit afterwards. */
export function rebase(quality: DataQuality | undefined): bigint {
  if (!quality) return 1n;
  const { unit, by } = baseOf(quality.unit);
  if (by === 1) return 1n;
  const isTime = quality.unit === 'microseconds';
  quality.unit = unit;
  scale(quality, BigInt(by), ['totalWeight', 'prunedWeight']);
  if (isTime) scaleCoverage(quality.coverage, BigInt(by));
  return BigInt(by);
}

/** A chart in the base unit. */
export function rebaseSeries(answer: SeriesResponse): SeriesResponse {
  const by = rebase(answer.quality);
  if (by === 1n) return answer;
  for (const line of answer.lines) {
    line.weights = line.weights.map((weight) => weight * by);
    line.totalWeight *= by;
  }
  for (const step of answer.steps) scale(step, by, ['weight', 'lostWeight']);
  return answer;
}

/** A table in the base unit. */
export function rebaseTop(answer: TopResponse): TopResponse {
  const by = rebase(answer.quality);
  if (by !== 1n) for (const row of answer.rows) scale(row, by, ['selfWeight', 'totalWeight']);
  return answer;
}

/** A comparison in the base unit. The collector has put both sides into one. */
export function rebaseDiff(answer: DiffResponse): DiffResponse {
  const [before, after] = [rebase(answer.before), rebase(answer.after)];
  if (before !== 1n) {
    if (answer.beforeSampled) answer.beforeSampled.weight *= before;
    for (const row of answer.rows) scale(row, before, ['beforeSelfWeight', 'beforeTotalWeight']);
  }
  if (after !== 1n) {
    if (answer.afterSampled) answer.afterSampled.weight *= after;
    for (const row of answer.rows) scale(row, after, ['afterSelfWeight', 'afterTotalWeight']);
  }
  return answer;
}

/** Hosts in the base unit of each. */
export function rebaseHosts(answer: HostsResponse): HostsResponse {
  rebase(answer.quality);
  for (const host of answer.hosts) {
    const { unit, by } = baseOf(host.unit);
    if (by === 1) continue;
    if (host.unit === 'microseconds') scaleCoverage(host.coverage, BigInt(by));
    host.unit = unit;
    scale(host, BigInt(by), ['weight', 'lostWeight']);
  }
  return answer;
}

/** Cgroups in the base unit. */
export function rebaseCgroups(answer: CgroupsResponse): CgroupsResponse {
  const isTime = answer.quality?.unit === 'microseconds';
  const by = rebase(answer.quality);
  if (by === 1n) return answer;
  for (const cgroup of answer.cgroups) {
    scale(cgroup, by, ['selfWeight', 'totalWeight', 'totalLostWeight']);
    if (isTime) scale(cgroup, by, ['expectedNs', 'estimatedNs']);
  }
  return answer;
}
