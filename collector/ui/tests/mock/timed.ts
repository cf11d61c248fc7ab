// Profiles with the time of each sample: steady work, a beat at the same part of every second, and
// one burst.

import { type MessageInitShape, create } from '@bufbuild/protobuf';
import { ProfileChunkSchema } from '../../src/gen/fleetprof/profile/v1/profile_pb';
import { Tables } from './tables';
import { random } from './fleet';
import { type Stack, hostileStacks, stacksOf } from './stacks';

export interface Timed {
  startMs: number;
  durationMs: number;
  /** Samples of the steady work. */
  samples: number;
  hosts: readonly string[];
  event?: string;
  hostile?: boolean;
  dropped?: number;
  /** Every sample was lost: none has a moment. */
  lost?: boolean;
  /** Stacks are those of threads that waited, with who woke them. */
  waits?: boolean;
}

/** When the burst is, since the start, and how long. Unit: milliseconds. */
export const BURST = { at: 7_400, long: 300, fn: 'billing::close_month' } as const;

/** Function of the beat, at 900 ms of each second of the clock. */
export const BEAT = 'metrics::flush';

/** Moments in a message. */
const STEP = 50_000;

const frame = (fn: string) => [0, '/usr/local/bin/api-server', fn] as const;
const K = (fn: string) => [1, '[kernel]', fn] as const;
const mark = (fn: string) => [5, '', fn] as const;

/** Waits of a database: where it waits, then who ended it and what that ran. */
const WAITS: readonly Stack[] = [
  {
    frames: [
      frame('main'),
      frame('WaitEventSetWait'),
      K('schedule'),
      mark('[woken by a hard interrupt]'),
      K('hrtimer_wakeup'),
      K('sysvec_apic_timer_interrupt'),
    ],
    share: 1,
    end: 0,
  },
  {
    frames: [
      frame('main'),
      frame('LWLockAcquire'),
      K('schedule'),
      mark('[woken by postgres]'),
      K('try_to_wake_up'),
      frame('LWLockRelease'),
    ],
    share: 1,
    end: 0,
  },
  {
    frames: [frame('main'), frame('FileRead'), K('io_schedule'), mark('[uninterruptible]'), mark('[waker unseen]')],
    share: 1,
    end: 0,
  },
];

const burst: Stack = { frames: [frame('main'), frame('billing::run'), frame(BURST.fn)], share: 1, end: 0 };
const beat: Stack = { frames: [frame('main'), frame('metrics::tick'), frame(BEAT)], share: 1, end: 0 };

/** A function that is asked once for each of its arguments. */
function once<A>(ask: (argument: A) => number): (argument: A) => number {
  const known = new Map<A, number>();
  return (argument) => {
    const found = known.get(argument) ?? ask(argument);
    known.set(argument, found);
    return found;
  };
}

/** The chunks of such a profile. */
export function* timed(of: Timed): Generator<MessageInitShape<typeof ProfileChunkSchema>> {
  const next = random(of.samples + of.hosts.length);
  const table = new Tables();
  const steady = of.waits
    ? WAITS
    : of.hostile
      ? hostileStacks()
      : [...stacksOf('rust'), ...stacksOf('nginx')].filter((stack) => stack.share > 0.001);
  const list: { at: number; stack: Stack; host: string }[] = [];
  const host = () => of.hosts[Math.floor(next() * of.hosts.length)] ?? '';
  for (let index = 0; index < of.samples; index++) {
    list.push({ at: next() * of.durationMs, stack: steady[Math.floor(next() ** 2 * steady.length)], host: host() });
  }
  const beats = Math.max(1, Math.round(of.samples / 2000));
  for (let ms = 900 - (of.startMs % 1000); ms < of.durationMs - 30; ms += 1000) {
    for (let index = 0; ms > 0 && index < beats; index++)
      list.push({ at: ms + next() * 25, stack: beat, host: host() });
  }
  if (of.durationMs > BURST.at + BURST.long) {
    for (let index = 0; index < of.samples / 20; index++)
      list.push({ at: BURST.at + next() * BURST.long, stack: burst, host: of.hosts[0] });
  }
  if (of.waits) list.splice(0, list.length, ...list.filter((one) => WAITS.includes(one.stack)));
  list.sort((left, right) => left.at - right.at);
  // Each stack and host is looked up once: there may be a million samples.
  const setOf = once((host: string) => table.labels({ host }, ['host']));
  const stackOf = once((stack: Stack) => table.stack(stack));
  const gone: Stack = { frames: [mark('[lost]')], share: 1, end: 9 };
  const rows = list.map((one) => ({
    at: Math.round(one.at * 1e6),
    set: setOf(one.host),
    stack: stackOf(of.lost ? gone : one.stack),
    end: of.lost ? gone.end : one.stack.end,
  }));
  const sums = new Map<number, { set: number; stack: number; end: number; count: bigint }>();
  for (const { set, stack, end } of rows) {
    const key = (stack * 4096 + set) * 256 + end;
    const sum = sums.get(key) ?? { set, stack, end, count: 0n };
    sum.count++;
    sums.set(key, sum);
  }
  const all = [...sums.values()];
  const ns = (ms: number) => BigInt(Math.round(ms)) * 1_000_000n;
  const weight = 1_003_009n;
  yield {
    info: {
      unit: 'nanoseconds',
      event: of.event ?? 'cpu-clock',
      period: weight,
      startUnixNs: ns(of.startMs),
      durationNs: ns(of.durationMs),
      quality: of.lost
        ? { lostSamples: BigInt(rows.length) }
        : { taken: BigInt(rows.length), lostSamples: BigInt(Math.round(rows.length / 300)) },
      times: { startUnixNs: ns(of.startMs), durationNs: ns(of.durationMs), dropped: BigInt(of.dropped ?? 0) },
    },
    ...table.wire(),
    sampleLabelSets: all.map((one) => one.set),
    sampleStacks: all.map((one) => one.stack),
    sampleEnds: all.map((one) => one.end),
    sampleCounts: all.map((one) => one.count),
    sampleWeights: all.map((one) => one.count * weight),
  };
  for (let from = 0; from < (of.lost ? 0 : rows.length); from += STEP) {
    const part = rows.slice(from, from + STEP);
    yield {
      timestampDeltasNs: part.map((one, at) => BigInt(one.at - (rows[from + at - 1]?.at ?? 0))),
      timestampLabelSets: part.map((one) => one.set),
      timestampStacks: part.map((one) => one.stack),
      timestampEnds: part.map((one) => one.end),
      timestampWeights: part.map(() => weight),
    };
  }
  yield create(ProfileChunkSchema, { last: true });
}
