import { create } from '@bufbuild/protobuf';
import { Code, ConnectError } from '@connectrpc/connect';
import { describe, expect, test, vi } from 'vitest';
import { captureUrl, numberOf } from '../../src/capture/address';
import { escapeFolded, folded, json } from '../../src/capture/files';
import { DRAFT, type Draft, GROUP_BY, lengthNs, linesDraft, problemsOf, requestOf } from '../../src/capture/form';
import { HOSTS_HELD_MAX, HOST_NOTICES_MAX, Session, TEXT_LEN_MAX, shownOf, tallyOf } from '../../src/capture/session';
import { Captures, HELD_MAX, idOf } from '../../src/capture/store';
import { captureNews } from '../../src/analysis/captureNews';
import { CollectorService } from '../../src/analysis/collectorService';
import { Engine } from '../../src/analysis/engine';
import type { FromWorker } from '../../src/analysis/protocol';
import {
  FleetCaptureInfoSchema,
  type FleetCaptureProfileResponse,
  FleetCaptureProfileResponseSchema,
  type FleetCaptureResponse,
  FleetCaptureResponseSchema,
  FleetPlanSchema,
  HostProgressSchema,
  HostState,
} from '../../src/gen/fleetprof/collector/v1/control_pb';
import { type ProfileChunk, ProfileChunkSchema } from '../../src/gen/fleetprof/profile/v1/profile_pb';
import { Assembler, type Profile } from '../../src/query/profile';
import { HOSTILE } from '../mock/fleet';
import { timed } from '../mock/timed';

describe('the form', () => {
  const wrong = (change: Partial<Draft>) => Object.keys(problemsOf({ ...DRAFT, ...change }));

  test('is right as it opens', () => {
    expect(problemsOf(DRAFT)).toEqual({});
  });

  test.each([
    [{ query: 'unit=' }, 'query'],
    [{ hosts: '' }, 'hosts'],
    [{ hosts: '0' }, 'hosts'],
    [{ hosts: '1.5' }, 'hosts'],
    [{ hosts: '99999999' }, 'hosts'],
    [{ duration: '' }, 'duration'],
    [{ duration: '30' }, 'duration'],
    [{ duration: '0s' }, 'duration'],
    [{ duration: '61m' }, 'duration'],
    [{ duration: '-5s' }, 'duration'],
    [{ event: ' ' }, 'event'],
    [{ event: 'cpu clock' }, 'event'],
    [{ event: 'tracepoint:sched' }, 'event'],
    [{ event: 'uprobe:/bin/app' }, 'event'],
    [{ rate: '0' }, 'rate'],
    [{ rate: '10000' }, 'rate'],
    [{ rate: '1e3' }, 'rate'],
    [{ unwind: 'magic' }, 'unwind'],
    [{ before: 'yesterday' }, 'before'],
    [{ before: '25h' }, 'before'],
    [{ event: 'off-cpu', minWait: '5' }, 'minWait'],
    [{ reason: 'ü'.repeat(129) }, 'reason'],
  ] as [Partial<Draft>, string][])('%j: the mistake is told beside its field', (change, field) => {
    expect(wrong(change)).toEqual([field]);
  });

  test.each([
    [{ event: 'tracepoint:sched:sched_switch', filter: 'prev_state != 0' }],
    [{ event: 'uprobe:/opt/a b/c:std::vec::Vec<T>::push' }],
    [{ rate: '9999', before: '24h', duration: '1h' }],
    // Asked for another event: what was written for the one before does not stand in the way.
    [{ minWait: 'nonsense' }],
    [{ reason: 'ü'.repeat(128) }],
  ] as [Partial<Draft>][])('%j is taken', (change) => {
    expect(wrong(change)).toEqual([]);
  });

  test('lengths of time', () => {
    const lengths: [string, number | undefined][] = [
      ['30s', 30e9],
      ['1m30s', 90e9],
      ['1.5ms', 1.5e6],
      ['10us', 1e4],
      ['10µs', 1e4],
      [' 5m ', 300e9],
      ['5', undefined],
      ['', undefined],
      ['s', undefined],
      ['5s3', undefined],
      ['1e3s', undefined],
    ];
    for (const [text, ns] of lengths) expect([text, lengthNs(text)]).toEqual([text, ns]);
  });

  test('makes the request, of the event alone', () => {
    const request = requestOf({
      ...DRAFT,
      query: ' host="a" ',
      hosts: '7',
      duration: '1m30s',
      event: 'off-cpu',
      rate: '',
      minWait: '2ms',
      filter: 'x',
      before: '5m',
      who: ' me ',
      reason: 'why',
      unwind: 'stack-copy',
    });
    expect(request).toMatchObject({ selector: 'host="a"', maxHosts: 7, patienceNs: 0n, stays: true });
    expect(request.capture).toMatchObject({
      durationNs: 90_000_000_000n,
      event: 'off-cpu',
      rateHz: 0,
      minWaitNs: 2_000_000n,
      filter: '',
      beforeNs: 300_000_000_000n,
      who: 'me',
      reason: 'why',
      unwind: 'stack-copy',
      groupBy: [...GROUP_BY],
      noTimes: false,
    });
    expect(request.capture?.lines).toBe(false);
    expect(requestOf({ ...DRAFT, ...linesDraft('f'.repeat(1000)) }).capture).toMatchObject({
      lines: true,
      durationNs: 10_000_000_000n,
    });
    const traced = requestOf({ ...DRAFT, event: 'tracepoint:a:b', filter: 'x > 1', minWait: '2ms', rate: '49' });
    expect(traced.capture).toMatchObject({ filter: 'x > 1', minWaitNs: 0n, rateHz: 49 });
  });
});

type Body = FleetCaptureResponse['body'];
const CHUNKS = [...timed({ startMs: 1_700_000_000_000, durationMs: 1000, samples: 50, hosts: ['a'] })].map((one) =>
  create(ProfileChunkSchema, one),
);
const chunk = (value: ProfileChunk): Body => ({ case: 'chunk', value });
const plan = (hosts: number, id = 7n): Body => ({
  case: 'plan',
  value: create(FleetPlanSchema, {
    id,
    hosts: Array.from({ length: hosts }, (_, at) => ({
      hostId: `${at}`,
      hostname: `h${at}`,
      state: HostState.WAITING,
    })),
    selected: hosts,
  }),
});
const host = (id: string, state: HostState, more: object = {}): Body => ({
  case: 'host',
  value: create(HostProgressSchema, { hostId: id, state, ...more }),
});
const result = (more: object = {}): Body => ({
  case: 'result',
  value: create(FleetCaptureInfoSchema, { id: 7n, ...more }),
});

/** A collector that says these things, and then this error. */
function saying(bodies: readonly Body[], error?: unknown) {
  const cancelled: bigint[] = [];
  const engine = new Engine();
  async function* answers(signal: AbortSignal) {
    for (const body of bodies) {
      if (signal.aborted) throw new ConnectError('left', Code.Canceled);
      yield create(FleetCaptureResponseSchema, { body });
    }
    if (error !== undefined) throw error;
  }
  const calls = {
    capture: (_: unknown, options: { signal: AbortSignal }) => captureNews(answers(options.signal), engine),
    cancel: async ({ id }: { id: bigint }) => {
      cancelled.push(id);
    },
    release: ({ id }: { id: number }) => engine.release(id),
  };
  return { calls, cancelled, engine };
}

async function ended(bodies: readonly Body[], error?: unknown): Promise<Session> {
  const session = new Session(requestOf(DRAFT), saying(bodies, error).calls);
  await session.run();
  return session;
}

describe('a session', () => {
  test('goes from the plan over hosts to profile and result', async () => {
    const session = await ended([
      plan(2),
      host('0', HostState.RUNNING, { progress: { samples: 5n } }),
      host('1', HostState.FAILED, { message: 'no' }),
      host('0', HostState.DONE),
      ...CHUNKS.map(chunk),
      result({ answered: 1, failed: 1 }),
    ]);
    expect(session.phase).toBe('done');
    expect(session.trouble).toBeUndefined();
    expect(session.profile?.timestamps?.count).toBeGreaterThan(40);
    expect(tallyOf(session.hosts.values())).toMatchObject({ all: 2, answered: 1, failed: 1, samples: 5 });
    // The last word on a host had neither name nor numbers.
    expect(session.hosts.get('0')).toMatchObject({ hostname: 'h0', state: HostState.DONE });
  });

  test('keeps the past apart from the capture', async () => {
    const session = await ended([
      plan(1),
      ...CHUNKS.map((value): Body => ({ case: 'past', value })),
      ...CHUNKS.map(chunk),
      result(),
    ]);
    expect(session.past?.rows).toBeGreaterThan(0);
    expect(session.past?.rows).toBe(session.profile?.rows);
    expect(session.past?.id).not.toBe(session.profile?.id);
  });

  test('without a profile is done, with nothing to see', async () => {
    const session = await ended([plan(1), host('0', HostState.LOST), result({ lost: 1 })]);
    expect([session.phase, session.profile]).toEqual(['done', undefined]);
  });

  test.each([
    ['ends before its result', [plan(1), chunk(CHUNKS[0])], undefined, 'bad_answer'],
    [
      'contradicts itself',
      [plan(1), chunk(create(ProfileChunkSchema, { sampleStacks: [9] })), result()],
      undefined,
      'bad_answer',
    ],
    ['goes on after its end', [plan(1), ...[...CHUNKS, CHUNKS[0]].map(chunk), result()], undefined, 'bad_answer'],
    ['breaks off', [plan(1), host('0', HostState.RUNNING)], new ConnectError('gone', Code.Unavailable), 'Unavailable'],
    ['is not known', [], new ConnectError('HTTP 404', Code.Unimplemented), 'Unimplemented'],
    ['is not known to a server of files', [], new ConnectError('HTTP 405', Code.Unknown), 'Unimplemented'],
    ['finds nobody', [], new ConnectError('none', Code.NotFound), 'NotFound'],
  ] as [string, Body[], unknown, string][])('that %s says so', async (_, bodies, error, code) => {
    const session = await ended(bodies, error);
    expect(session.trouble?.code).toBe(code);
    expect(session.runs).toBe(false);
  });

  test('keeps a whole profile when what follows breaks', async () => {
    const session = await ended([plan(1), ...CHUNKS.map(chunk)], new ConnectError('gone', Code.Unavailable));
    expect([session.phase, session.trouble?.code, session.profile !== undefined]).toEqual([
      'done',
      'Unavailable',
      true,
    ]);
  });

  test('with a result but half a profile says that it is half', async () => {
    const session = await ended([plan(1), chunk(CHUNKS[0]), result({ answered: 1 })]);
    expect([session.profile, session.trouble?.code]).toEqual([undefined, 'bad_answer']);
  });

  test('holds no more of what a host says than there is room for', async () => {
    const long = 'x'.repeat(TEXT_LEN_MAX + 1);
    const session = await ended([
      plan(1),
      host('0', HostState.FAILED, { message: long, notices: Array.from({ length: 100 }, () => long) }),
      result(),
    ]);
    const held = session.hosts.get('0');
    expect([held?.message.length, held?.notices.length, held?.notices[0].length]).toEqual([
      TEXT_LEN_MAX,
      HOST_NOTICES_MAX,
      TEXT_LEN_MAX,
    ]);
  });

  test('holds no more hosts than there is room for', async () => {
    const session = await ended([
      plan(HOSTS_HELD_MAX),
      host('new', HostState.RUNNING),
      host('0', HostState.DONE),
      result(),
    ]);
    expect([session.hosts.size, session.hostsUnheld, session.hosts.get('0')?.state]).toEqual([
      HOSTS_HELD_MAX,
      1,
      HostState.DONE,
    ]);
  });

  test('ends with what there is by its number, and is given up before it has one', async () => {
    const { calls, cancelled } = saying([plan(1), result()]);
    const session = new Session(requestOf(DRAFT), calls);
    session.plan = create(FleetPlanSchema, { id: 7n });
    session.phase = 'running';
    session.end();
    session.end();
    expect([session.phase, cancelled]).toEqual(['ending', [7n]]);
    const young = new Session(requestOf(DRAFT), saying([plan(1), result()]).calls);
    young.end();
    await young.run();
    expect(young.trouble?.code).toBe('given_up');
  });

  test('that could not be ended runs on, and says why', async () => {
    const session = new Session(requestOf(DRAFT), {
      ...saying([]).calls,
      cancel: () => Promise.reject(new ConnectError('busy', Code.Unavailable)),
    });
    session.plan = create(FleetPlanSchema, { id: 7n });
    session.phase = 'running';
    session.end();
    await new Promise((resolve) => setTimeout(resolve));
    expect([session.phase, session.endTrouble?.code]).toEqual(['running', 'Unavailable']);
  });
});

describe('a capture that the collector keeps', () => {
  const info = (more: object = {}) =>
    create(FleetCaptureInfoSchema, { id: 7n, kept: true, hosts: [{ hostId: '0', hostname: 'h0' }], ...more });
  const kept = (bodies: readonly FleetCaptureProfileResponse['body'][], error?: unknown) => {
    const told: FromWorker[] = [];
    const asked: object[] = [];
    const service = new CollectorService(
      (message) => told.push(message),
      () => ({
        async *profile() {},
        async *capture() {},
        async *kept(request) {
          asked.push(request);
          for (const body of bodies) yield create(FleetCaptureProfileResponseSchema, { body });
          if (error) throw error;
        },
        async *pin() {},
        async *evidence() {},
      }),
      'b',
    );
    service.take({ build: 'b' });
    service.take({ number: 1, operation: 'kept', args: { baseUrl: '', capture: 7n, past: true } });
    const end = () => told.find((one) => 'answer' in one || 'trouble' in one);
    return vi.waitUntil(end).then((answer) => ({ told, asked, answer }));
  };

  test('comes with all labels and times, and with what came of it', async () => {
    const chunks = CHUNKS.map((value) => ({ case: 'chunk', value }) as const);
    const { told, asked, answer } = await kept([{ case: 'info', value: info() }, ...chunks]);
    expect(asked).toEqual([{ id: 7n, past: true, groupBy: ['*'], times: true }]);
    expect(told[0]).toMatchObject({ news: { case: 'result', value: { id: 7n } } });
    expect(answer).toMatchObject({ answer: { rows: expect.any(Number), timestamps: { dropped: 0 } } });
  });

  test.each([
    [Code.NotFound, 'This capture is not kept'],
    [Code.DataLoss, 'The file of this capture is damaged'],
  ])('that cannot be had says why: %s', async (code, title) => {
    const { answer } = await kept([], new ConnectError('no', code));
    expect(answer).toMatchObject({ trouble: { title, retry: false } });
  });

  test('of which the profile ends early cannot be read', async () => {
    const { answer } = await kept([
      { case: 'info', value: info() },
      { case: 'chunk', value: CHUNKS[0] },
    ]);
    expect(answer).toMatchObject({ trouble: { code: 'bad_answer' } });
  });

  test('is shown within bounds', () => {
    const long = 'x'.repeat(TEXT_LEN_MAX + 1);
    const hosts = Array.from({ length: HOSTS_HELD_MAX + 1 }, (_, at) => ({ hostId: `${at}`, message: long }));
    const shown = shownOf(info({ hosts, running: true }));
    expect([shown.hosts.size, shown.hostsUnheld, shown.runs]).toEqual([HOSTS_HELD_MAX, 1, true]);
    expect(shown.hosts.get('0')?.message.length).toBe(TEXT_LEN_MAX);
  });

  test('has a link to each of its files, and a number that is one', () => {
    expect(captureUrl({ id: '7', past: false }, 'pprof')).toBe('api/capture.pprof?id=7');
    expect(captureUrl({ id: '7', past: true }, 'svg')).toBe('api/capture.svg?id=7&past=1');
    for (const text of ['', '0', '-1', '1.5', 'x', '07', '9'.repeat(20)]) expect(numberOf(text)).toBeUndefined();
    expect(numberOf('12')).toBe(12n);
  });
});

test('the page holds the last profiles', async () => {
  const { calls, engine } = saying([plan(1), ...CHUNKS.map(chunk), result()]);
  const captures = new Captures(calls);
  for (let turn = 0; turn < HELD_MAX + 2; turn++) {
    const session = captures.start(requestOf(DRAFT));
    await new Promise<void>((resolve) => captures.subscribe(() => resolve()));
    expect(captures.held[0]).toBe(session);
  }
  expect(captures.held).toHaveLength(HELD_MAX);
  expect(engine.size).toBe(HELD_MAX);
  expect(captures.find('7')).toBe(captures.held[0]);
  expect(idOf(captures.held[0])).toBe('7');
  captures.lose();
  expect([captures.held, captures.find('7')]).toEqual([[], undefined]);
  expect(captures.current?.profile).toBeUndefined();
  captures.leave();
  expect(captures.current).toBeUndefined();
});

describe('files', () => {
  const assembled = (chunks: readonly ProfileChunk[]): Profile => {
    const assembler = new Assembler();
    for (const one of chunks) assembler.addChunk(one);
    return assembler.finish();
  };

  // The table of profile/src/text.rs.
  test.each([
    ['plain::name<T>(int) const', 'plain::name<T>(int) const'],
    ['Lfoo;::bar', 'Lfoo\\:::bar'],
    ['a\nb\rc\td', 'a\\nb\\rc\\td'],
    ['back\\slash', 'back\\\\slash'],
    ['\u001b[31m', '\\x1b[31m'],
    ['a\u202eb', 'a\\u{202e}b'],
    [' lead', '\\x20lead'],
    ['frame 12', 'frame\\x2012'],
    ['# note', '\\x23 note'],
    ['name_[k]', 'name_\\x5bk]'],
    ['a\u00a0', 'a\\u{a0}'],
    ['a b c', 'a b c'],
    ['שלום 🔥', 'שלום 🔥'],
  ])('%j is folded as %j', (text, expected) => {
    expect(escapeFolded(text)).toBe(expected);
  });

  const small = () =>
    create(ProfileChunkSchema, {
      info: {
        unit: 'nanoseconds',
        event: 'cpu-clock',
        startUnixNs: 5n,
        durationNs: 100n,
        period: 10n,
        quality: { taken: 4n, lostSamples: 2n },
        coverage: { expectedNs: 2n ** 60n },
        times: { startUnixNs: 5n, durationNs: 100n, dropped: 3n },
      },
      strings: ['', 'main', 'a;b', 'host', '</script>\u2028', 'mod'],
      frames: [
        { function: 1, kind: 0, module: 5 },
        { function: 2, kind: 1, line: 7, unnamed: 1 },
      ],
      stackParents: [0, 1],
      stackFrames: [0, 1],
      labelSets: [{ keyValues: [3, 4] }],
      sampleLabelSets: [1, 0],
      sampleStacks: [2, 1],
      sampleEnds: [5, 0],
      sampleCounts: [3n, 1n],
      sampleWeights: [30n, 10n],
      timestampDeltasNs: [1n, 4n, 5n],
      timestampLabelSets: [1, 0, 1],
      timestampStacks: [2, 1, 2],
      timestampEnds: [5, 0, 5],
      timestampWeights: [10n, 10n, 10n],
      last: true,
    });

  test('folded stacks stand under what cut them', () => {
    const profile = assembled([small()]);
    expect(folded(profile, profile.weight)).toEqual(['[truncated];main;a\\:b 30\n', 'main 10\n']);
  });

  test('JSON has everything, and the times', () => {
    const profile = assembled([small()]);
    const text = json(profile, profile.timestamps && { timestamps: profile.timestamps, pick: undefined }).join('');
    expect(text).not.toMatch(/[<>\u2028]/);
    expect(text).toContain('"expected_ns":1152921504606846976');
    expect(JSON.parse(text)).toMatchObject({
      schema: 'fleetprof.profile/1',
      info: { start_unix_ns: 5, duration_ns: 100, event: 'cpu-clock', unit: 'nanoseconds', period: 10 },
      quality: { taken: 4, lost_samples: 2, lost_late: 0 },
      total: { count: 4, weight: 40 },
      frames: [
        { function: 'main', kind: 'native', module: 'mod' },
        { function: 'a;b', kind: 'kernel', line: 7, unnamed: 'no_symbols' },
      ],
      samples: [
        { count: 3, weight: 30, labels: { host: '</script>\u2028' }, end: 'copy_too_small', frames: [0, 1] },
        { count: 1, weight: 10, labels: {}, end: 'complete', frames: [0] },
      ],
      timestamps: {
        start_unix_ns: 5,
        duration_ns: 100,
        dropped: 3,
        after_ns: [1, 4, 5],
        sample: [0, 1, 0],
        weight: [10, 10, 10],
      },
    });
  });

  test('JSON of a part has its times from its own begin', () => {
    const profile = assembled([small()]);
    if (!profile.timestamps) throw new Error('no timestamps');
    const part = JSON.parse(
      json(profile, { timestamps: profile.timestamps, pick: { from: 4, until: 10 } }).join(''),
    ).timestamps;
    expect(part).toEqual({ start_unix_ns: 9, duration_ns: 6, dropped: 0, after_ns: [1], sample: [1], weight: [10] });
  });

  test('names of strangers survive both', () => {
    const profile = assembled(
      [...timed({ startMs: 0, durationMs: 1000, samples: 200, hosts: Object.values(HOSTILE), hostile: true })].map(
        (one) => create(ProfileChunkSchema, one),
      ),
    );
    const lines = folded(profile, profile.count);
    for (const line of lines) expect(line).toMatch(/^[^\n\u0000-\u001f\u202e]* \d+\n$/);
    const names = new Set(
      (JSON.parse(json(profile).join('')) as { frames: { function: string }[] }).frames.map((one) => one.function),
    );
    for (const name of Object.values(HOSTILE)) expect(names).toContain(name);
  });
});
