// A fleet that is not there: hosts, services and stacks, the same on every run, changing with time.

export interface Entity {
  labels: Record<string, string>;
  /** Cores in use on average. */
  cores: number;
  /** What its stacks look like. */
  app: string;
}

/** What a text adds to a hash (FNV-1a); texts one after the other hash as the text of all. */
export function hashed(text: string, begin = 2166136261): number {
  let value = begin;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619);
  return value;
}

/** A number of 0 … 1 for a text; `begin`: the hash of what stands before it. */
export function noise(text: string, begin?: number): number {
  let value = hashed(text, begin);
  value ^= value >>> 13;
  value = Math.imul(value, 0x5bd1e995);
  value ^= value >>> 15;
  return (value >>> 0) / 2 ** 32;
}

/** A generator of numbers of 0 … 1. */
export function random(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Names that a page must survive. */
export const HOSTILE = {
  script: '<script>window.__pwned = 1</script><img src=x onerror="window.__pwned=1">',
  newline: 'two\nlines\tand a tab',
  escape: '\u001b[31mred\u001b[0m',
  bidi: 'abc\u202egnirts\u202c',
  zero: 'zero\u200bwidth\u2060joined',
  long: `long::${'x'.repeat(5000)}::end`,
  hebrew: 'שלום::עולם',
  emoji: '🔥::hot(👩‍👩‍👧)',
  quote: `it's "quoted" \\ and {braced}, =~ !`,
} as const;

export const HOSTS: readonly string[] = [
  ...[1, 2, 3, 4, 5, 6].map((n) => `web-${n}`),
  'db-1',
  'db-2',
  'batch-1',
  'batch-2',
  'cache-1',
];

/** The host that was away for a while. */
export const GAP_HOST = 'web-3';

function entity(host: string, cores: number, app: string, more: Record<string, string>): Entity {
  return { cores, app, labels: { host, region: host.startsWith('batch') ? 'eu-west' : 'eu-central', ...more } };
}

function service(host: string, unit: string, comm: string, app: string, cores: number): Entity {
  return entity(host, cores, app, {
    cgroup: `/system.slice/${unit}`,
    slice: 'system.slice',
    unit,
    comm,
    thread: comm,
    context: 'task',
  });
}

function container(
  host: string,
  name: string,
  comm: string,
  app: string,
  cores: number,
  more: Record<string, string> = {},
): Entity {
  const id = [...Array(64)].map((_, at) => Math.floor(noise(`${host}${name}${at}`) * 16).toString(16)).join('');
  const pod = `${id.slice(0, 8)}-${id.slice(8, 12)}-4${id.slice(13, 16)}-a${id.slice(17, 20)}-${id.slice(20, 32)}`;
  const slice = `kubepods-burstable-pod${pod.replaceAll('-', '_')}.slice`;
  return entity(host, cores, app, {
    cgroup: `/kubepods.slice/kubepods-burstable.slice/${slice}/cri-containerd-${id}.scope`,
    slice,
    container: id,
    runtime: 'containerd',
    pod_uid: pod,
    comm,
    thread: comm,
    context: 'task',
    ...more,
  });
}

function fleet(): Entity[] {
  const all: Entity[] = [];
  for (const host of HOSTS) {
    const shade = 0.7 + 0.6 * noise(host);
    if (host.startsWith('web')) {
      all.push(service(host, 'nginx.service', 'nginx', 'nginx', 0.9 * shade));
      // A third of the hosts have the next version.
      const version = host === 'web-5' || host === 'web-6' ? '42' : '41';
      all.push(container(host, 'api', 'api-server', 'rust', 2.4 * shade, { version }));
      all.push(container(host, 'render', 'node', 'node', 1.3 * shade));
    } else if (host.startsWith('db')) {
      all.push(service(host, 'postgresql.service', 'postgres', 'postgres', 3.1 * shade));
    } else if (host.startsWith('batch')) {
      all.push(container(host, 'spark', 'java', 'java', 5.5 * shade));
      all.push(service(host, 'cron.service', 'python3', 'python', 0.6 * shade));
    } else all.push(service(host, 'redis.service', 'redis-server', 'redis', 0.8 * shade));
    all.push(service(host, 'fleetprofd.service', 'fp-sampler', 'rust', 0.01));
    all.push(service(host, 'sshd.service', 'sshd', 'nginx', 0.008 * shade));
    all.push(
      entity(host, 0.12 * shade, 'kernel', {
        cgroup: '/',
        comm: 'ksoftirqd/0',
        thread: 'ksoftirqd/0',
        context: 'softirq',
      }),
    );
  }
  return all;
}

export const FLEET: readonly Entity[] = fleet();

/**
 * When new code came: stacks differ before and after. Whole minutes, half an hour before the start.
 */
export const DEPLOYED_MS = Math.floor(Date.now() / 60_000) * 60_000 - 30 * 60_000;

/** Hash of what names an entity, and its noise: every answer asks for them thousands of times. */
const named = new WeakMap<Entity, { hash: number; phase: number }>();

function namedOf(one: Entity): { hash: number; phase: number } {
  const known = named.get(one);
  if (known) return known;
  const key = one.labels.host + one.labels.comm;
  const made = { hash: hashed(key), phase: noise(key) };
  named.set(one, made);
  return made;
}

/** Cores of an entity in the ten seconds from a time on. */
export function coresAt(one: Entity, ms: number): number {
  const window = Math.floor(ms / 10_000);
  if (inGap(one.labels.host, ms)) return 0;
  const { hash, phase } = namedOf(one);
  const day = Math.sin((ms / 86_400_000) * 2 * Math.PI + 1);
  const wave = Math.sin(ms / 240_000 + 6 * phase);
  const burst = one.app === 'java' && Math.floor(ms / 300_000) % 3 === 0 ? 1.1 : 0;
  const grown = one.app === 'rust' && ms >= DEPLOYED_MS ? 0.35 : 0;
  return Math.max(
    0,
    one.cores * (1 + 0.15 * day + 0.12 * wave + 0.25 * (noise(`${window}`, hash) - 0.5) + burst + grown),
  );
}

/** Times without data of the host that was away. */
export function gaps(fromMs: number, toMs: number): { from: number; to: number; cause: string }[] {
  const known = [
    { from: DEPLOYED_MS + 5 * 60_000, to: DEPLOYED_MS + 9 * 60_000, cause: 'absent' },
    { from: DEPLOYED_MS - 15 * 60_000, to: DEPLOYED_MS - 13.5 * 60_000, cause: 'disk_full' },
  ];
  return known
    .map((gap) => ({ ...gap, from: Math.max(gap.from, fromMs), to: Math.min(gap.to, toMs) }))
    .filter((gap) => gap.to > gap.from);
}

/** When every sample was lost, in the scenario `lossy`. */
export const LOSSY = { from: DEPLOYED_MS + 10 * 60_000, to: DEPLOYED_MS + 22 * 60_000 } as const;

/** When the first window came, in the scenario `young`. */
export const YOUNG_MS = DEPLOYED_MS - 16 * 60_000;

/**
 * Windows of a host that start in a time and have come by now. As of real agents they are ten
 * seconds long and start whenever the agent was started, another part of ten seconds on each host.
 */
export function windowsOf(host: string, fromMs: number, toMs: number, firstMs: number): number {
  const length = 10_000;
  const offset = Math.floor(noise(`begin ${host}`) * length);
  const until = Math.min(toMs, Date.now() - length);
  const begins = (before: number) => Math.ceil((before - offset) / length);
  const all = Math.max(0, begins(until) - begins(Math.max(fromMs, firstMs)));
  if (host !== GAP_HOST || all === 0) return all;
  const away = gaps(fromMs, until).reduce((sum, gap) => sum + Math.max(0, begins(gap.to) - begins(gap.from)), 0);
  return Math.max(0, all - away);
}

function inGap(host: string, ms: number): boolean {
  return host === GAP_HOST && gaps(ms, ms + 1).length > 0;
}
