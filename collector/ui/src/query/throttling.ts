// How CPU limits held cgroups back, in words.

import type { Throttling } from '../gen/fleetprof/agent/v1/agent_pb';

export const THROTTLED_HINT =
  'Part of the CPU time that the cgroup wanted and its own CPU limit withheld. –: not known, from older agents or where the limit cannot be read';

/** From here on an overview names the cgroup. */
export const THROTTLED_MUCH = 0.05;

/** The part of the CPU time that a cgroup wanted and did not get; `undefined`: not known. */
export function throttledShare(of: Throttling | undefined): number | undefined {
  if (!of) return undefined;
  const [withheld, used] = [Number(of.throttledNs), Number(of.usedNs)];
  return withheld + used > 0 ? withheld / (withheld + used) : undefined;
}

/** The limit of what was held back; `undefined`: nothing to say. */
export function limitOf(of: Throttling | undefined): string | undefined {
  return of && of.limitMillicores > 0n ? `Limit: ${limitCores(Number(of.limitMillicores) / 1000)}` : undefined;
}

/** `0.2 cores`. */
export function limitCores(cores: number): string {
  return `${Number(cores.toPrecision(3)).toLocaleString('en')} ${cores === 1 ? 'core' : 'cores'}`;
}
