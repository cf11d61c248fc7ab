// What changed on the fleet that is not there: new code came half an hour before the start. The
// mock knows what it changed, so it judges nothing.

import { create } from '@bufbuild/protobuf';
import { type OverviewResponse, OverviewResponseSchema, Resource } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { type Asked, series } from './answers';
import { DEPLOYED_MS, type Entity, HOSTILE, coresAt, gaps, GAP_HOST } from './fleet';

/** A host that sends nothing at a time. */
const isAway = (host: string, ms: number) => host === GAP_HOST && gaps(ms, ms + 1).length > 0;

const STEPS = 60;
const ns = (ms: number) => BigInt(Math.round(ms)) * 1_000_000n;

interface Side {
  from: number;
  stepMs: number;
}

/** Cores by step; −1 where nobody sent anything. */
function line(of: readonly Entity[], { from, stepMs }: Side, young: number): number[] {
  return Array.from({ length: STEPS }, (_, step) => {
    const at = from + (step + 0.5) * stepMs;
    if (at < young || (of.length > 0 && of.every((one) => isAway(one.labels.host, at)))) return -1;
    return of.reduce((sum, one) => sum + coresAt(one, at), 0);
  });
}

const mean = (steps: readonly number[]) => {
  const known = steps.filter((value) => value >= 0);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : 0;
};

/**
 * Services that their limits hold back, and a host with too little CPU: nothing of it when calm or
 * young.
 */
function waiting(now: Asked, label: string) {
  const hosts = [...new Set(now.entities.map((one) => one.labels.host))];
  const busy = now.entities.filter((one) => one.labels.cgroup !== '/').slice(0, 9);
  if (now.scenario === 'young') return {};
  if (now.scenario === 'calm') return { throttlingKnown: true, pressureHosts: hosts.length };
  const since = ns(now.fromMs + (now.toMs - now.fromMs) / 3);
  return {
    throttled: busy.map((one, at) => ({
      host: one.labels.host,
      cgroup: now.scenario === 'hostile' ? HOSTILE.script : one.labels.cgroup,
      service: one.labels[label] ?? '',
      container: now.scenario === 'hostile' ? HOSTILE.newline : (one.labels.container_name ?? ''),
      share: 0.9 / (at + 1),
      baselineShare: at === 1 ? undefined : at === 3 ? 0.2 : 0,
      cores: 1.8 / (at + 1),
      limitCores: at === 2 ? 0 : 0.2 * (at + 1),
      sinceUnixNs: at === 1 ? 0n : since,
      untilUnixNs: 0n,
      inBaseline: at === 3,
    })),
    throttledLeftOut: 2n,
    throttlingKnown: true,
    pressed: hosts.slice(0, 3).map((host, at) => ({
      host,
      resource: [Resource.CPU, Resource.MEMORY, Resource.IO][at] ?? Resource.CPU,
      share: 0.71 / (at + 1),
      baselineShare: 0.1,
      sinceUnixNs: since,
      untilUnixNs: 0n,
      inBaseline: false,
    })),
    pressureHosts: hosts.length,
  };
}

function group(all: readonly Entity[], name: (one: Entity) => string): Map<string, Entity[]> {
  const groups = new Map<string, Entity[]>();
  for (const one of all) groups.set(name(one), [...(groups.get(name(one)) ?? []), one]);
  return groups;
}

/** The answer to a question of both sides; `functions`: whether those are asked for. */
export function overview(now: Asked, was: Asked, label: string, limit: number, functions: boolean): OverviewResponse {
  const side = (of: Asked): Side => ({ from: of.fromMs, stepMs: Math.max(1, (of.toMs - of.fromMs) / STEPS) });
  const [after, before] = [side(now), side(was)];
  const young = now.scenario === 'young' ? now.fromMs + (now.toMs - now.fromMs) / 2 : 0;
  const calm = now.scenario === 'calm';
  const step = Math.round((DEPLOYED_MS - after.from) / after.stepMs);
  const row = (name: string, entities: readonly Entity[], earlier = entities) => {
    const [steps, baselineSteps] = [line(entities, after, young), line(earlier, before, young)];
    const rust = entities.filter((one) => one.app === 'rust' && one.cores > 0.1);
    // The range has the new code, and the baseline has some of the old.
    const changed = !calm && rust.length > 0 && step < STEPS && was.fromMs < DEPLOYED_MS - 60_000;
    const level = mean(steps.slice(Math.max(step, 0)));
    return {
      name,
      cores: mean(steps),
      baselineCores: mean(baselineSteps),
      change: {
        cores: changed ? level - mean(baselineSteps) : 0.01,
        error: 0.06,
        significant: changed,
        sinceUnixNs: changed && step > 0 ? ns(DEPLOYED_MS) : 0n,
        untilUnixNs: 0n,
        appeared: false,
        vanished: false,
      },
      steps,
      baselineSteps,
      hosts: new Set(entities.map((one) => one.labels.host)).size,
      changedHosts: changed ? [...new Set(rust.map((one) => one.labels.host))] : [],
      hostsChanged: changed ? new Set(rust.map((one) => one.labels.host)).size : 0,
    };
  };
  const by = (name: (one: Entity) => string) => {
    const [groups, earlier] = [group(now.entities, name), group(was.entities, name)];
    const names = new Set([...groups.keys(), ...earlier.keys()]);
    const rows = [...names].map((value) => row(value, groups.get(value) ?? [], earlier.get(value) ?? []));
    const size = (one: (typeof rows)[number]) => (one.change.significant ? 1000 : 0) + one.cores;
    return rows.sort((one, other) => size(other) - size(one));
  };
  const services = by((one) => (now.scenario === 'hostile' ? HOSTILE.script : (one.labels[label] ?? '')));
  const hosts = by((one) => one.labels.host).map((one) => ({ ...one, hosts: 0, changedHosts: [], hostsChanged: 0 }));
  const quality = (of: Asked) => series(of, [], 1).quality;
  const changed = services.filter((one) => one.change.significant);
  return create(OverviewResponseSchema, {
    now: quality(now),
    baseline: quality(was),
    startUnixNs: ns(after.from),
    baselineStartUnixNs: ns(before.from),
    stepNs: ns(after.stepMs),
    fleet: now.entities.length ? row('', now.entities, was.entities) : undefined,
    services: services.slice(0, limit),
    servicesLeftOut: BigInt(Math.max(0, services.length - limit)),
    hosts: hosts.slice(0, limit),
    functions: functions
      ? changed.slice(0, 1).map((one) => ({
          service: one.name,
          name: 'serde_json::de::visit_map',
          module: '/usr/bin/api-server',
          kind: 0,
          cores: 1.9,
          baselineCores: 0.6,
          error: 0.1,
          significant: true,
        }))
      : [],
    outliers: gaps(now.fromMs, now.toMs).length
      ? [{ host: GAP_HOST, service: 'nginx.service', cores: 0.2, medianCores: 0.9, deviations: -6, hosts: 6 }]
      : [],
    ...waiting(now, label),
    accounted: now.scenario !== 'lossy',
  });
}
