// The answers of the fleet that is not there.

import { create } from '@bufbuild/protobuf';
import {
  CgroupsResponseSchema,
  DataQualitySchema,
  DiffResponseSchema,
  HostsResponseSchema,
  type ProfileResponse,
  ProfileResponseSchema,
  type Selection,
  SeriesResponseSchema,
  StatusResponseSchema,
  TopResponseSchema,
} from '../../src/gen/fleetprof/collector/v1/query_pb';
import { parse } from '../../src/query/selector';
import {
  DEPLOYED_MS,
  type Entity,
  FLEET,
  GAP_HOST,
  HOSTILE,
  HOSTS,
  LOSSY,
  YOUNG_MS,
  coresAt,
  gaps,
  hashed,
  noise,
  windowsOf,
} from './fleet';
import { type Size, huge } from './huge';
import { type Stack, hostileStacks, stacksOf } from './stacks';
import { Tables } from './tables';
import { timed } from './timed';

const WINDOW_MS = 10_000;
const DAY_MS = 86_400_000;
const PERIOD_NS = 1e9 / 99;
const ns = (ms: number) => BigInt(Math.round(ms)) * 1_000_000n;

export interface Asked {
  from: number;
  to: number;
  /** As it was asked for: series are widened to their own steps. */
  fromMs: number;
  toMs: number;
  entities: Entity[];
  /** Hosts that the matchers of hosts take; other matchers say nothing of them. */
  hosts: string[];
  /** No matcher is of anything but hosts: what was lost is in the selection. */
  ofHosts: boolean;
  /** The kernel's accounts have the labels of the matchers; only in the scenario `accounts`. */
  accountable: boolean;
  scenario: string;
  /** Of CPU time, or of the profile type of other senders that was asked for. */
  unit: string;
  drop: RegExp[];
  keep: RegExp[];
}

/** What a selection selects. */
export function asked(selection: Selection | undefined): Asked {
  const now = Date.now();
  const at = (value: bigint | undefined, otherwise: number) => (value ? Number(value / 1_000_000n) : otherwise);
  const to = Math.min(
    Math.ceil(at(selection?.range?.endUnixNs, now) / WINDOW_MS) * WINDOW_MS,
    Math.floor(now / WINDOW_MS) * WINDOW_MS,
  );
  const from = Math.max(
    Math.floor(at(selection?.range?.startUnixNs, now - 3_600_000) / WINDOW_MS) * WINDOW_MS,
    Math.floor(now / WINDOW_MS) * WINDOW_MS - 40 * DAY_MS,
  );
  const matchers = parse(selection?.selector ?? '');
  const scenario = matchers.find((one) => one.label === 'scenario')?.value ?? '';
  const others = matchers.filter((one) => one.label !== 'scenario');
  const holdsOne = ({ label, op, value }: (typeof others)[number], entity: Entity) => {
    const has = entity.labels[label] ?? '';
    switch (op) {
      case '=':
        return has === value;
      case '!=':
        return has !== value;
      case '=~':
        return new RegExp(`^(?:${value})$`, 'u').test(has);
      case '!~':
        return !new RegExp(`^(?:${value})$`, 'u').test(has);
      case '^=':
        return has === value || has.startsWith(value === '/' ? '/' : `${value}/`);
    }
  };
  const holds = (entity: Entity) => others.every((one) => holdsOne(one, entity));
  const filters = (op: number) =>
    (selection?.frameFilters ?? []).filter((one) => one.op === op).map((one) => new RegExp(one.regex, 'u'));
  const isHosts = (label: string) => label === 'host' || label === 'region';
  const hosts =
    scenario === 'empty'
      ? []
      : HOSTS.filter((host) =>
          others
            .filter((one) => isHosts(one.label))
            .every((one) => FLEET.some((entity) => entity.labels.host === host && holdsOne(one, entity))),
        );
  const fromMs = at(selection?.range?.startUnixNs, now - 3_600_000);
  const toMs = at(selection?.range?.endUnixNs, now);
  return {
    from: scenario === 'young' ? Math.max(from, YOUNG_MS) : from,
    to,
    fromMs,
    toMs,
    hosts,
    ofHosts: others.every((one) => isHosts(one.label)),
    accountable: scenario === 'accounts' && !others.some((one) => SAMPLE_LABELS.includes(one.label)),
    scenario,
    unit: selection?.profileType.split(':')[2] || 'nanoseconds',
    entities: scenario === 'empty' ? [] : FLEET.filter(holds),
    keep: filters(1),
    drop: filters(2),
  };
}

/** Part of a time in which every sample was lost. */
function lostPart(of: Asked, from: number, to: number): number {
  if ((of.scenario !== 'lossy' && of.scenario !== 'accounts') || to <= from) return 0;
  return Math.max(0, Math.min(to, LOSSY.to) - Math.max(from, LOSSY.from)) / (to - from);
}

function windows(of: Asked): number {
  return Math.max(0, Math.round((of.to - of.from) / WINDOW_MS));
}

/** CPU time of an entity in a part of time, from at most 60 windows of it. Unit: nanoseconds. */
function weightOf(entity: Entity, from: number, to: number): number {
  if (to <= from) return 0;
  const step = Math.max(WINDOW_MS, Math.ceil((to - from) / 60 / WINDOW_MS) * WINDOW_MS);
  let sum = 0;
  for (let at = from; at < to; at += step) sum += coresAt(entity, at) * Math.min(step, to - at) * 1e6;
  return sum;
}

export function quality(of: Asked, weight: number, more: { prunedWeight?: bigint } = {}) {
  const hosts = new Set(of.entities.map((entity) => entity.labels.host));
  const missing = hosts.has(GAP_HOST) ? gaps(of.from, of.to) : [];
  const part = lostPart(of, of.from, of.to);
  const taken = Math.round((weight / PERIOD_NS) * (1 - part));
  return create(DataQualitySchema, {
    covered: { startUnixNs: ns(of.from), endUnixNs: ns(of.to) },
    resolutionNs:
      of.to - of.from > DAY_MS ? 600_000_000_000n : of.to - of.from > DAY_MS / 8 ? 60_000_000_000n : 10_000_000_000n,
    hosts: BigInt(hosts.size),
    hostsAlive: BigInt(hosts.size + (hosts.size === HOSTS.length ? 1 : 0)),
    windows: BigInt(windows(of) * hosts.size),
    gaps: missing.map((gap) => ({
      hostId: `id-${GAP_HOST}`,
      hostname: GAP_HOST,
      startUnixNs: ns(gap.from),
      endUnixNs: ns(gap.to),
      cause: gap.cause,
    })),
    gapsTotal: BigInt(missing.length),
    gapNsTotal: missing.reduce((sum, gap) => sum + ns(gap.to - gap.from), 0n),
    sampling: {
      taken: BigInt(taken),
      idle: BigInt(taken * 3),
      lostSamples: BigInt(Math.round(taken * 0.006 + (weight / PERIOD_NS) * part)),
      lost: 12n,
      truncated: BigInt(Math.round(taken * 0.052)),
      unnamed: BigInt(Math.round(taken * 0.021)),
      folded: BigInt(Math.round(taken * 0.002)),
    },
    coverage: {
      expectedNs: BigInt(Math.round(weight * 1.003)),
      takenNs: BigInt(Math.round(weight * 0.994 * (1 - part))),
      windows: BigInt(windows(of)),
    },
    totalCount: BigInt(taken),
    totalWeight: BigInt(Math.round(weight)),
    unit: of.unit,
    ...more,
  });
}

/** Lengths a step is chosen from, as the collector does. Unit: seconds. */
const STEPS_S = [
  10, 20, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
];

/** Part of what an entity runs whose stacks filters take, before the deployment and after it. */
function takenPart(of: Asked, entity: Entity, atMs: number): number {
  if (!of.keep.length && !of.drop.length) return 1;
  const now = stacksOf(entity.app).filter((stack) => !stack.when || (stack.when === 'after') === atMs >= DEPLOYED_MS);
  const sum = (all: readonly Stack[]) => all.reduce((total, stack) => total + stack.share, 0);
  const taken = now.filter((one) => of.keep.every((p) => hasFrame(one, p)) && !of.drop.some((p) => hasFrame(one, p)));
  return sum(now) > 0 ? sum(taken) / sum(now) : 0;
}

/** Steps of a series that is computed from stacks. */
const FILTERED_STEPS = 47;

/** Labels of samples, which the kernel's accounts do not have. */
const SAMPLE_LABELS = ['comm', 'thread', 'pid', 'context'];

/** `accounted`: the kernel's accounts are asked for, which have what samples lost. */
export function series(of: Asked, groupBy: readonly string[], limit: number, accounted = false) {
  const most = of.keep.length || of.drop.length ? FILTERED_STEPS : 300;
  const isOfAccounts =
    accounted && of.accountable && most === 300 && !groupBy.some((label) => SAMPLE_LABELS.includes(label));
  const stepMs = (STEPS_S.find((step) => (of.toMs - of.fromMs) / (step * 1000) <= most) ?? 604_800) * 1000;
  // The range is widened to whole steps; windows are of the step in which they start.
  const from = Math.floor(of.fromMs / stepMs) * stepMs;
  const steps = Math.max(0, Math.ceil((of.toMs - from) / stepMs));
  const first = of.scenario === 'young' ? YOUNG_MS : 0;
  const covered = new Map(
    of.hosts.map((host) => [
      host,
      Array.from(
        { length: steps },
        (_, step) => windowsOf(host, from + step * stepMs, from + (step + 1) * stepMs, first) * WINDOW_MS,
      ),
    ]),
  );
  const lost = (step: number) => lostPart(of, from + step * stepMs, from + (step + 1) * stepMs);
  const unseen = (step: number) => (isOfAccounts ? 0 : lost(step));
  const weights = new Map<Entity, number[]>();
  const weightIn = (entity: Entity, step: number) => {
    const known =
      weights.get(entity) ??
      (covered.get(entity.labels.host) ?? []).map(
        (ms, at) => coresAt(entity, from + at * stepMs + stepMs / 2) * ms * 1e6,
      );
    weights.set(entity, known);
    return known[step] ?? 0;
  };
  const lines = new Map<string, { labels: Record<string, string>; weights: number[] }>();
  const lineOf = (all: Record<string, string>) => {
    const labels = Object.fromEntries(groupBy.filter((label) => all[label]).map((label) => [label, all[label]]));
    const key = JSON.stringify(labels);
    const line = lines.get(key) ?? { labels, weights: new Array<number>(steps).fill(0) };
    lines.set(key, line);
    return line;
  };
  const made = Array.from({ length: steps }, (_, step) => ({
    coveredNs: 0n,
    hosts: 0n,
    weight: 0,
    lostWeight: 0,
    step,
  }));
  for (const entity of of.entities) {
    const parts = [DEPLOYED_MS - 1, DEPLOYED_MS].map((at) => takenPart(of, entity, at));
    if (parts[0] + parts[1] === 0) continue;
    const line = lineOf(entity.labels);
    for (let step = 0; step < steps; step++) {
      const part = parts[from + step * stepMs >= DEPLOYED_MS ? 1 : 0];
      line.weights[step] += weightIn(entity, step) * part * (1 - unseen(step));
    }
  }
  for (const host of of.hosts) {
    const mine = FLEET.filter((entity) => entity.labels.host === host);
    for (const one of made) {
      const ms = covered.get(host)?.[one.step] ?? 0;
      one.coveredNs += ns(ms);
      // A window that started before may cover the start of the step.
      if (ms > 0 || windowsOf(host, from + one.step * stepMs - WINDOW_MS + 1, from + one.step * stepMs, first) > 0)
        one.hosts++;
      const weight = mine.reduce((sum, entity) => sum + weightIn(entity, one.step), 0);
      one.weight += weight;
      one.lostWeight += weight * lost(one.step);
      // Lost samples have the labels of their host alone.
      if (of.ofHosts && unseen(one.step) > 0) lineOf({ host }).weights[one.step] += weight * lost(one.step);
    }
  }
  const sum = (weights: number[]) => weights.reduce((total, weight) => total + weight, 0);
  const all = [...lines.values()].sort((left, right) => sum(right.weights) - sum(left.weights));
  const rest = all.splice(limit || 20);
  const wire = (line: { labels: Record<string, string>; weights: number[] }, isRest = false) => ({
    labels: line.labels,
    weights: line.weights.map((weight) => BigInt(Math.round(weight))),
    totalWeight: BigInt(Math.round(sum(line.weights))),
    rest: isRest,
  });
  const restLine = rest.length
    ? [
        wire(
          {
            labels: {},
            weights: Array.from({ length: steps }, (_, step) =>
              rest.reduce((total, line) => total + line.weights[step], 0),
            ),
          },
          true,
        ),
      ]
    : [];
  const total = [...all, ...rest].reduce((so, line) => so + sum(line.weights), 0);
  const whole = (value: number) => BigInt(Math.round(value));
  return create(SeriesResponseSchema, {
    startUnixNs: ns(from),
    stepNs: ns(stepMs),
    lines: [...all.map((line) => wire(line)), ...restLine],
    quality: quality(of, total),
    restLines: BigInt(rest.length),
    accounted: isOfAccounts,
    steps: made.map(({ coveredNs, hosts, weight, lostWeight }) => ({
      coveredNs,
      hosts,
      weight: whole(weight),
      lostWeight: whole(lostWeight),
    })),
  });
}

/** Hashes of an app's stacks on a host, the same in every answer. */
const hashes = new Map<string, Map<Stack, number>>();

function hashesOf(app: string, host: string): ReadonlyMap<Stack, number> {
  const key = `${app} ${host}`;
  const known = hashes.get(key) ?? new Map(stacksOf(app).map((stack) => [stack, hashed(`${host}${stack.share}`)]));
  hashes.set(key, known);
  return known;
}

interface Sample {
  labels: Record<string, string>;
  stack: Stack;
  weight: number;
}

const hasFrame = (stack: Stack, pattern: RegExp) => stack.frames.some((frame) => pattern.test(frame[2]));

/** Every stack of what is selected, with its weight. */
export function samples(of: Asked): Sample[] {
  if (of.scenario === 'hostile')
    return hostileStacks().map((stack) => ({ labels: { host: HOSTILE.bidi }, stack, weight: stack.share * 1e9 }));
  const kept = (stack: Stack) =>
    of.keep.every((pattern) => hasFrame(stack, pattern)) && !of.drop.some((pattern) => hasFrame(stack, pattern));
  const part = lostPart(of, of.from, of.to);
  const lost: Sample[] =
    part > 0 && of.ofHosts
      ? of.hosts.map((host) => ({
          labels: { host },
          stack: { frames: [[5, '', '[lost]']], share: 1, end: 9 },
          weight:
            part *
            FLEET.filter((entity) => entity.labels.host === host).reduce(
              (sum, entity) => sum + weightOf(entity, of.from, of.to),
              0,
            ),
        }))
      : [];
  const taken = of.entities.flatMap((entity) => {
    const middle = Math.min(Math.max(DEPLOYED_MS, of.from), of.to);
    const parts = { before: weightOf(entity, of.from, middle), after: weightOf(entity, middle, of.to) };
    const from = `${of.from}`;
    const all: Sample[] = [];
    for (const [stack, hash] of hashesOf(entity.app, entity.labels.host)) {
      if (!kept(stack)) continue;
      const jitter = 0.9 + 0.2 * noise(from, hash);
      const ofStack = stack.when ? parts[stack.when] : parts.before + parts.after;
      const weight = ofStack * stack.share * jitter * (1 - part);
      if (weight >= 1) all.push({ labels: entity.labels, stack, weight });
    }
    return all;
  });
  return [...taken, ...lost];
}

/** The messages of a profile: its quality, then chunks. */
export function* profile(of: Asked, groupBy: readonly string[]): Generator<ProfileResponse> {
  if (of.scenario === 'huge' || of.scenario === 'largest') {
    yield* hugeProfile(of, of.scenario);
    return;
  }
  if (of.scenario === 'timestamps' || of.scenario === 'million') {
    const million = of.scenario === 'million';
    // Whole seconds, so that a link means the same in any test.
    const startMs = Math.floor(of.from / 1000) * 1000 + 250;
    yield create(ProfileResponseSchema, { quality: quality(of, 1e9) });
    for (const chunk of timed({
      startMs,
      durationMs: million ? 60_000 : 30_000,
      samples: million ? 950_000 : 9000,
      hosts: HOSTS,
    }))
      yield create(ProfileResponseSchema, { chunk });
    return;
  }
  const all = samples(of);
  const table = new Tables();
  const rows = all.map((sample) => ({
    set: table.labels(sample.labels, groupBy),
    stack: table.stack(sample.stack),
    end: sample.stack.end,
    weight: sample.weight,
  }));
  const total = rows.reduce((sum, row) => sum + row.weight, 0);
  yield create(ProfileResponseSchema, {
    quality: quality(of, total, { prunedWeight: BigInt(Math.round(total * 0.004)) }),
  });
  yield create(ProfileResponseSchema, {
    chunk: {
      info: { unit: of.unit, event: 'cpu-clock', period: BigInt(Math.round(PERIOD_NS)) },
      ...table.wire(),
    },
  });
  yield create(ProfileResponseSchema, {
    chunk: {
      sampleLabelSets: rows.map((row) => row.set),
      sampleStacks: rows.map((row) => row.stack),
      sampleEnds: rows.map((row) => row.end),
      sampleCounts: rows.map((row) => BigInt(Math.max(1, Math.round(row.weight / PERIOD_NS)))),
      sampleWeights: rows.map((row) => BigInt(Math.round(row.weight))),
      // An answer that breaks off, and one that contradicts itself.
      last: of.scenario !== 'broken-end',
      ...(of.scenario === 'broken-ids' ? { sampleStacks: rows.map(() => 4_000_000_000) } : {}),
    },
  });
}

function* hugeProfile(of: Asked, size: Size): Generator<ProfileResponse> {
  const made = huge(size);
  const nodes = made.parents.length;
  const total = made.weights.reduce((sum, weight) => sum + weight, 0);
  yield create(ProfileResponseSchema, { quality: quality(of, total) });
  const step = 10_000;
  for (let at = 0; at < nodes; at += step) {
    const slice = made.weights.slice(at, at + step);
    yield create(ProfileResponseSchema, {
      chunk: {
        ...(at === 0
          ? {
              info: { unit: 'nanoseconds' },
              strings: ['', '/usr/bin/huge', ...made.functions],
              frames: made.functions.map((_, fn) => ({
                kind: fn % 9 === 0 ? 1 : fn % 7 === 0 ? 4 : 0,
                function: fn + 2,
                module: 1,
              })),
            }
          : {}),
        stackParents: made.parents.slice(at, at + step),
        stackFrames: made.frames.slice(at, at + step),
        sampleLabelSets: slice.map(() => 0),
        sampleStacks: slice.map((_, index) => at + index + 1),
        sampleEnds: slice.map(() => 0),
        sampleCounts: slice.map(() => 1n),
        sampleWeights: slice.map((weight) => BigInt(weight)),
        last: at + step >= nodes,
      },
    });
  }
}

interface Sums {
  name: string;
  module: string;
  kind: number;
  own: number;
  total: number;
}

/** What the frames of a stack are summed up by. Stacks of apps are the same in every answer. */
const keys = { function: new WeakMap<Stack, string[]>(), module: new WeakMap<Stack, string[]>() };

function keysOf(stack: Stack, by: 'function' | 'module'): string[] {
  const known = keys[by].get(stack);
  if (known) return known;
  const made = stack.frames.map(([, module, fn]) => (by === 'function' ? `${module}\0${fn}` : module));
  keys[by].set(stack, made);
  return made;
}

function functionSums(all: readonly Sample[], by: 'function' | 'module'): Map<string, Sums> {
  // A stack is of many hosts: its frames are looked at once.
  const weights = new Map<Stack, number>();
  for (const { stack, weight } of all) weights.set(stack, (weights.get(stack) ?? 0) + weight);
  const rows = new Map<string, Sums>();
  for (const [stack, weight] of weights) {
    const mine = keysOf(stack, by);
    const seen = new Set<string>();
    mine.forEach((key, at) => {
      let row = rows.get(key);
      if (!row) {
        const [kind, module, fn] = stack.frames[at];
        row =
          by === 'function'
            ? { name: fn, module, kind, own: 0, total: 0 }
            : { name: module, module: '', kind: 255, own: 0, total: 0 };
        rows.set(key, row);
      }
      if (at === mine.length - 1) row.own += weight;
      if (!seen.has(key)) row.total += weight;
      seen.add(key);
    });
  }
  return rows;
}

function merged(all: readonly ReadonlyMap<string, Sums>[]): Map<string, Sums> {
  const rows = new Map<string, Sums>();
  for (const [key, { own, total, ...name }] of all.flatMap((part) => [...part])) {
    const row = rows.get(key) ?? { ...name, own: 0, total: 0 };
    row.own += own;
    row.total += total;
    rows.set(key, row);
  }
  return rows;
}

const counted = (weight: number) => BigInt(Math.round(weight / PERIOD_NS));

export function top(of: Asked, by: string, byTotal: boolean, limit: number) {
  const all = samples(of);
  let rows: Sums[];
  if (by === 'function' || by === 'module') rows = [...functionSums(all, by).values()];
  else {
    const sums = new Map<string, number>();
    for (const { labels, weight } of all) sums.set(labels[by] ?? '', (sums.get(labels[by] ?? '') ?? 0) + weight);
    rows = [...sums].map(([name, weight]) => ({ name, module: '', kind: 255, own: weight, total: weight }));
  }
  rows.sort((left, right) => (byTotal ? right.total - left.total : right.own - left.own));
  const wire = rows.slice(0, limit || 50).map((row) => ({
    name: row.name,
    module: row.module,
    kind: row.kind,
    selfCount: counted(row.own),
    selfWeight: BigInt(Math.round(row.own)),
    totalCount: counted(row.total),
    totalWeight: BigInt(Math.round(row.total)),
  }));
  return create(TopResponseSchema, {
    rows: wire,
    rowsLeftOut: BigInt(rows.length - wire.length),
    quality: quality(
      of,
      all.reduce((sum, one) => sum + one.weight, 0),
    ),
  });
}

/** Parts of a range whose spread errors are of. */
const PARTS = 10;

/**
 * As the collector does: what was lost is not compared, and errors are from the spread between
 * parts of each range.
 */
export function diff(before: Asked, after: Asked, limit: number, by: 'function' | 'module') {
  const hostsOf = (of: Asked) => new Set(of.entities.map((entity) => entity.labels.host));
  const common = [...hostsOf(before)].filter((host) => hostsOf(after).has(host)).length;
  const differ = common * 2 < Math.max(hostsOf(before).size, hostsOf(after).size);
  const side = (of: Asked) => {
    const sampled = (one: Asked) => samples(one).filter((sample) => sample.stack.end !== 9);
    const length = Math.max(WINDOW_MS, Math.ceil((of.to - of.from) / PARTS / WINDOW_MS) * WINDOW_MS);
    const parts: { rows: Map<string, Sums>; total: number }[] = [];
    const totalOf = (all: readonly Sample[]) => all.reduce((total, one) => total + one.weight, 0);
    for (let from = of.from; from < of.to; from += length) {
      const part = sampled({ ...of, from, to: Math.min(of.to, from + length) });
      if (part.length) parts.push({ rows: functionSums(part, by), total: totalOf(part) });
    }
    // The whole is what its parts are: noise of these samples goes by their range.
    const rows = merged(parts.map((part) => part.rows));
    const total = parts.reduce((sum, part) => sum + part.total, 0);
    const spread = (key: string) => {
      const whole = total || 1;
      const own = (part: { rows: Map<string, Sums> }) => part.rows.get(key)?.own ?? 0;
      const share = parts.reduce((sum, part) => sum + own(part), 0) / whole;
      const squares = parts.reduce((sum, part) => sum + (own(part) - share * part.total) ** 2, 0);
      return parts.length < 2 ? 0 : ((parts.length / (parts.length - 1)) * squares) / whole ** 2;
    };
    return {
      rows,
      total: total || 1,
      parts: parts.length,
      spread,
      sampled: {
        count: counted(total),
        weight: BigInt(Math.round(total)),
        parts: parts.length,
        hostParts: differ ? Math.min(10, hostsOf(of).size) : 0,
      },
    };
  };
  const [was, is] = [side(before), side(after)];
  const rows = [...new Set([...was.rows.keys(), ...is.rows.keys()])].map((key) => {
    const [one, two] = [was.rows.get(key), is.rows.get(key)];
    const name = one ?? two;
    const pretended = (weight: number, total: number) => {
      const n = total / PERIOD_NS + 2;
      const p = (weight / PERIOD_NS + 1) / n;
      return (p * (1 - p)) / n;
    };
    const change = (two?.own ?? 0) / is.total - (one?.own ?? 0) / was.total;
    const sampling = pretended(one?.own ?? 0, was.total) + pretended(two?.own ?? 0, is.total);
    const error = Math.sqrt(Math.max(sampling, was.spread(key) + is.spread(key)));
    const whole = (value: number | undefined) => BigInt(Math.round(value ?? 0));
    // About what is left of Student's t and the false discovery rate.
    return {
      name: name?.name,
      module: name?.module,
      kind: name?.kind,
      beforeSelfWeight: whole(one?.own),
      afterSelfWeight: whole(two?.own),
      beforeTotalWeight: whole(one?.total),
      afterTotalWeight: whole(two?.total),
      shareChange: change,
      shareError: error,
      significant: Math.abs(change) > 3 * error,
      appeared: !one,
      vanished: !two,
    };
  });
  rows.sort((left, right) => Math.abs(right.shareChange) - Math.abs(left.shareChange));
  const all = (of: Asked) => samples(of).reduce((sum, one) => sum + one.weight, 0);
  return create(DiffResponseSchema, {
    rows: rows.slice(0, limit || 100),
    rowsLeftOut: BigInt(Math.max(0, rows.length - (limit || 100))),
    before: quality(before, all(before)),
    after: quality(after, all(after)),
    beforeSampled: was.sampled,
    afterSampled: is.sampled,
    hostsDiffer: differ,
  });
}

/** Why a host is blind, as its agent says it. */
const BLIND = {
  id: 'records_lost',
  message: '99.8 % of the samples of the last minute were lost: the ring buffers are full and nobody reads them',
  remedy: 'agent-ctl doctor',
  severity: 3,
} as const;

export function hosts(from: number, to: number, hostile: boolean, blind: ReadonlyMap<string, number>) {
  const of: Asked = { ...asked(undefined), from, to };
  const names = hostile ? [...HOSTS, ...Object.values(HOSTILE)] : [...HOSTS, 'old-1'];
  const list = names.map((name, at) => {
    const mine = FLEET.filter((entity) => entity.labels.host === name);
    const weight = mine.reduce((sum, entity) => sum + weightOf(entity, from, to), 0);
    const away = name === 'old-1';
    const low = name === 'batch-2';
    const missing = name === GAP_HOST ? gaps(from, to).reduce((sum, gap) => sum + gap.to - gap.from, 0) : 0;
    return {
      hostId: `id-${name}`,
      bootId: '5f2d9c7be8a14f0c9d3b',
      facts: {
        hostname: name,
        kernel: at % 4 ? '6.8.0-45-generic' : '5.15.0-124-generic',
        arch: 'x86_64',
        cpusOnline: name.startsWith('batch') ? 16 : 8,
        memoryBytes: 32n << 30n,
        agentVersion: at % 5 ? '0.4.1' : '0.4.0',
        labels: { region: name.startsWith('batch') ? 'eu-west' : 'eu-central' },
        spool: {
          windows: away ? 400n : name === GAP_HOST ? 24n : 0n,
          bytes: away ? 31_000_000n : name === GAP_HOST ? 1_900_000n : 0n,
          bytesMax: 1n << 28n,
          oldestUnixNs: name === GAP_HOST ? ns(to - 240_000) : 0n,
          droppedWindows: name === GAP_HOST ? 9n : 0n,
        },
      },
      firstSeenUnixNs: ns(from - 30 * DAY_MS),
      lastSeenUnixNs: ns(away ? Date.now() - 5.3 * DAY_MS : Date.now() - 4000),
      connected: !away,
      clockAheadNs: name === 'cache-1' ? 73_000_000_000n : BigInt(Math.round(noise(name) * 8e6 - 4e6)),
      windows: BigInt(Math.round((to - from) / WINDOW_MS)),
      weight: BigInt(Math.round(weight)),
      coverage: {
        expectedNs: BigInt(Math.round(weight * (low ? 1.12 : 1.004))),
        takenNs: BigInt(Math.round(weight * (blind.has(name) ? 0.002 : 1))),
      },
      lostWeight: BigInt(Math.round(weight * (blind.has(name) ? 0.998 : 0.006))),
      blind: blind.has(name),
      degradations: [
        ...(blind.has(name) ? [{ ...BLIND, sinceUnixNs: ns(blind.get(name) ?? 0) }] : []),
        ...(name === 'cache-1'
          ? [
              {
                id: 'clock',
                message: 'the clock is 1 min 13 s ahead: windows are stored by the time of the host',
                severity: 2,
              },
            ]
          : []),
      ],
      gapNs: ns(missing),
      warnings: blind.has(name)
        ? [BLIND.message]
        : name === 'cache-1'
          ? ['the clock is 1 min 13 s ahead: windows are stored by the time of the host']
          : away
            ? ['nothing heard for 5 days']
            : [],
    };
  });
  return create(HostsResponseSchema, { hosts: list, quality: quality(of, 0) });
}

export function cgroups(of: Asked) {
  const rows = new Map<
    string,
    {
      path: string;
      slice: string;
      unit: string;
      container: string;
      runtime: string;
      podUid: string;
      own: number;
      total: number;
    }
  >();
  const row = (path: string) => {
    const found = rows.get(path) ?? {
      path,
      slice: '',
      unit: '',
      container: '',
      runtime: '',
      podUid: '',
      own: 0,
      total: 0,
    };
    rows.set(path, found);
    return found;
  };
  row('/');
  if (of.scenario === 'hostile')
    for (const name of Object.values(HOSTILE)) row(`/evil.slice/${name.replaceAll('/', '_')}`).own += 1e9;
  for (const entity of of.scenario === 'hostile' ? [] : of.entities) {
    const { labels } = entity;
    const mine = row(labels.cgroup);
    Object.assign(mine, {
      slice: labels.slice ?? '',
      unit: labels.unit ?? '',
      container: labels.container ?? '',
      runtime: labels.runtime ?? '',
      podUid: labels.pod_uid ?? '',
    });
    // About half of all stacks have what filters ask for.
    mine.own += weightOf(entity, of.from, of.to) * (of.keep.length + of.drop.length > 0 ? 0.5 : 1);
  }
  for (const { path, own } of [...rows.values()]) {
    if (own === 0) continue;
    const parts = path === '/' ? [] : path.slice(1).split('/');
    row('/').total += own;
    for (let at = 1; at <= parts.length; at++) row(`/${parts.slice(0, at).join('/')}`).total += own;
  }
  // Samples whose cgroup was gone, or never known: no path stands above them.
  if (of.scenario === 'lossy')
    for (const path of ['[unknown cgroup 139]', '']) Object.assign(row(path), { own: 4e9, total: 4e9 });
  const whole = (value: number) => BigInt(Math.round(value));
  const list = [...rows.values()]
    .sort((left, right) => (left.path < right.path ? -1 : 1))
    .map((one) => ({
      ...one,
      own: undefined,
      total: undefined,
      selfWeight: whole(one.own),
      selfCount: counted(one.own),
      totalWeight: whole(one.total),
      totalCount: counted(one.total),
      totalLostWeight: whole(one.path === '' ? one.total : one.total * 0.006),
      totalLostCount: counted(one.total * 0.006),
      expectedNs: whole(one.total * (one.path.includes('cron') ? 1.1 : 1.004)),
      // Known of units and containers; one of them is held back, at a limit of half a core.
      throttling:
        one.unit === '' && one.container === ''
          ? undefined
          : {
              throttledNs: whole(one.path.includes('nginx') ? one.total * 0.8 : 0),
              usedNs: whole(one.total),
              limitMillicores: one.path.includes('nginx') ? 500n : 0n,
            },
    }));
  return create(CgroupsResponseSchema, { cgroups: list, quality: quality(of, row('/').total) });
}

export function status(startedMs: number, skewMs: number, blind: ReadonlyMap<string, number>) {
  const now = Date.now();
  return create(StatusResponseSchema, {
    version: '0.4.1',
    store: 'embedded',
    storeVersion: 'SQLite 3.51',
    startedUnixNs: ns(startedMs),
    nowUnixNs: ns(now + skewMs),
    kept: { startUnixNs: ns(now - 40 * DAY_MS), endUnixNs: ns(now) },
    storeBytes: 7_340_000_000n,
    storeBytesMax: 21_474_836_480n,
    streams: BigInt(HOSTS.length),
    blindHosts: [...blind]
      .slice(0, 20)
      .map(([host, since]) => ({ hostId: `id-${host}`, hostname: host, why: { ...BLIND, sinceUnixNs: ns(since) } })),
    hostsBlind: BigInt(blind.size),
    hostsWarned: BigInt(blind.size + 2),
    degradations: [
      {
        id: 'partition_damaged',
        message: 'the partition 2026-11-02T06 was damaged and set aside; six hours do not answer',
        remedy: 'rm -r /var/lib/fleetprof/damaged/2026-11-02T06',
        severity: 2,
      },
    ],
    counters: [
      { name: 'fleetprof_collector_windows_total', labels: 'outcome="stored"', value: 1_284_331n },
      { name: 'fleetprof_collector_windows_total', labels: 'outcome="repeated"', value: 211n },
      { name: 'fleetprof_collector_windows_total', labels: 'outcome="refused"', value: 4n },
      { name: 'fleetprof_collector_ack_latency_p99_us', labels: '', value: 8_120n },
    ],
  });
}

/** Values of a label among what is selected. */
export function labelValues(of: Asked, name: string): string[] {
  if (of.unit !== 'nanoseconds' && name === 'service_name') return ['cart', 'shop'];
  return [...new Set(of.entities.map((entity) => entity.labels[name]).filter((value) => value !== undefined))].sort();
}

/** Labels of agents, or of other senders. */
export function labelNames(of: Asked): string[] {
  if (of.unit !== 'nanoseconds') return ['host', 'sender', 'service_name'];
  return [...new Set(FLEET.flatMap((entity) => Object.keys(entity.labels)))].sort();
}
