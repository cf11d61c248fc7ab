// A fake CaptureService: it plays fan-outs to hosts that are not there, and samples nothing.
//
// What goes wrong is asked for by selector, as with the other calls: `scenario="partial"`,
// `"hostile"`, `"many"`, `"left-out"`, `"nobody"`, `"gone"`, `"broken-end"`, `"broken-ids"`,
// `"no-times"`, `"none-answers"`, `"error-limit"`, `"error-refused"`; `"not-kept"`: the collector's
// disk is full; `"past-lost"`: of the time
// before every sample was lost; `"waits"`: threads that waited.

import { create } from '@bufbuild/protobuf';
import { Code, ConnectError, type ConnectRouter } from '@connectrpc/connect';
import { CaptureProgressSchema } from '../../src/gen/fleetprof/agent/v1/agent_pb';
import {
  CaptureService,
  type FleetCaptureInfo,
  FleetCaptureInfoSchema,
  FleetCaptureProfileResponseSchema,
  type FleetCaptureRequest,
  type FleetCaptureResponse,
  FleetCaptureResponseSchema,
  type HostProgress,
  HostProgressSchema,
  HostState,
} from '../../src/gen/fleetprof/collector/v1/control_pb';
import { type ProfileChunk, ProfileChunkSchema } from '../../src/gen/fleetprof/profile/v1/profile_pb';
import { parse } from '../../src/query/selector';
import { FLEET, HOSTILE } from './fleet';
import { timed } from './timed';

/** Time between two steps of a capture. Unit: milliseconds. */
const STEP_MS = 50;

interface Run {
  info: FleetCaptureInfo;
  /** Its profiles, as they were sent. */
  own: ProfileChunk[];
  past: ProfileChunk[];
  cancelled: boolean;
}

export interface FakeCaptures {
  /** Those asked for, as they were asked. */
  requests: FleetCaptureRequest[];
  /** Streams that their client left. */
  left: number;
  /** The collector does not know captures. */
  unknown: boolean;
  runs: Run[];
}

const ERRORS: Record<string, [Code, string]> = {
  'error-limit': [Code.ResourceExhausted, '4 captures run, and no more may'],
  'error-refused': [Code.InvalidArgument, 'failed to parse event `sneeze`: <b>unknown</b>'],
  nobody: [Code.NotFound, 'no host of the selection is connected'],
};

/** Answers calls of CaptureService. */
export function captureService(router: ConnectRouter): FakeCaptures {
  const fake: FakeCaptures = { requests: [], left: 0, unknown: false, runs: [] };
  const known = () => {
    if (fake.unknown) throw new ConnectError('HTTP 404', Code.Unimplemented);
  };
  router.service(CaptureService, {
    async *capture(request, context) {
      known();
      fake.requests.push(request);
      if (request.stays) yield* staying(fake, request);
      else yield* fanOut(fake, request, context.signal);
    },
    async cancel(request) {
      known();
      const run = fake.runs.find((one) => one.info.id === request.id && one.info.running);
      if (!run) throw new ConnectError(`no capture ${request.id} runs`, Code.NotFound);
      run.cancelled = true;
      return {};
    },
    async list(request) {
      known();
      const wanted = fake.runs.filter((run) => request.id === 0n || run.info.id === request.id);
      return { captures: wanted.map((run) => run.info), leftOut: 0n };
    },
    async *profile(request) {
      known();
      const run = fake.runs.find((one) => one.info.id === request.id && one.info.kept);
      const chunks = request.past ? run?.past : run?.own;
      if (!run || !chunks?.length) throw new ConnectError(`there is no capture ${request.id}`, Code.NotFound);
      yield create(FleetCaptureProfileResponseSchema, { body: { case: 'info', value: run.info } });
      for (const value of chunks) yield create(FleetCaptureProfileResponseSchema, { body: { case: 'chunk', value } });
    },
    async delete(request) {
      known();
      const run = fake.runs.find((one) => one.info.id === request.id && one.info.kept);
      if (!run) throw new ConnectError(`no capture ${request.id} is kept`, Code.NotFound);
      run.info.kept = false;
      return {};
    },
  });
  return fake;
}

const answer = (body: FleetCaptureResponse['body']) => create(FleetCaptureResponseSchema, { body });

/** One that goes on when its client leaves. */
async function* staying(fake: FakeCaptures, request: FleetCaptureRequest): AsyncGenerator<FleetCaptureResponse> {
  const waiting: FleetCaptureResponse[] = [];
  let [over, wake] = [false, () => {}];
  let failure: unknown;
  const going = async () => {
    try {
      for await (const one of fanOut(fake, request, new AbortController().signal)) {
        waiting.push(one);
        wake();
      }
    } catch (error) {
      failure = error;
    }
    over = true;
    wake();
  };
  void going();
  try {
    for (;;) {
      const one = waiting.shift();
      if (one) yield one;
      else if (over) break;
      else await new Promise<void>((resolve) => (wake = resolve));
    }
    if (failure) throw failure;
  } finally {
    if (!over) fake.left++;
  }
}

async function* fanOut(
  fake: FakeCaptures,
  request: FleetCaptureRequest,
  signal: AbortSignal,
): AsyncGenerator<FleetCaptureResponse> {
  const matchers = parse(request.selector);
  const scenario = matchers.find((one) => one.label === 'scenario')?.value ?? '';
  const error = ERRORS[scenario];
  if (error) throw new ConnectError(error[1], error[0]);
  const matching = hostsOf(
    scenario,
    matchers.filter((one) => one.label === 'host').map((one) => one.value),
  );
  const hosts = matching.slice(0, request.maxHosts || 50);
  const durationMs = Number(request.capture?.durationNs ?? 0n) / 1e6;
  const startMs = Date.now();
  const info = create(FleetCaptureInfoSchema, {
    id: BigInt(fake.runs.length + 1),
    request,
    peer: '127.0.0.1:52100',
    startedUnixNs: BigInt(startMs) * 1_000_000n,
    running: true,
    asked: hosts.length,
  });
  const run: Run = { info, own: [], past: [], cancelled: false };
  fake.runs.unshift(run);
  try {
    const absent = scenario === 'left-out' ? 2 : 0;
    yield answer({
      case: 'plan',
      value: {
        $typeName: 'fleetprof.collector.v1.FleetPlan',
        id: info.id,
        hosts: hosts.map((one) => ({ ...one, state: HostState.WAITING })),
        selected: matching.length + absent,
        leftOut: matching.length - hosts.length,
        absent,
        absentHosts: ['old-1', HOSTILE.script].slice(0, absent),
      } as never,
    });
    if (absent > 0) info.notices.push(`${absent} hosts match and are not connected: old-1, ${HOSTILE.script}`);
    if (matching.length > hosts.length)
      info.notices.push(`${matching.length - hosts.length} hosts match beyond the limit of ${hosts.length}`);
    yield* running(run, hosts, scenario, durationMs, signal);
    const elapsedMs = run.cancelled ? Math.min(durationMs, Date.now() - startMs) : durationMs;
    yield* finished(run, hosts, scenario, {
      startMs,
      elapsedMs,
      beforeMs: Number(request.capture?.beforeNs ?? 0n) / 1e6,
    });
  } finally {
    info.running = false;
    info.elapsedNs = BigInt(Date.now() - startMs) * 1_000_000n;
    if (signal.aborted) fake.left++;
  }
}

function hostsOf(scenario: string, named: readonly string[]): HostProgress[] {
  const names =
    scenario === 'many'
      ? Array.from({ length: 1200 }, (_, at) => `edge-${at}`)
      : scenario === 'hostile'
        ? Object.values(HOSTILE)
        : [...new Set(FLEET.map((one) => one.labels.host))].filter((host) => !named.length || named.includes(host));
  return names.map((hostname, at) => create(HostProgressSchema, { hostId: `id-${at}`, hostname }));
}

/** State a host ends in. */
function endOf(scenario: string, at: number): [HostState, string, string[]] {
  if (scenario === 'none-answers')
    return [HostState.FAILED, 'failed to open perf event: the kernel has no event `cycles` here', []];
  if (scenario === 'hostile') return [HostState.DONE, Object.values(HOSTILE)[at], Object.values(HOSTILE)];
  if (scenario !== 'partial') return [HostState.DONE, '', []];
  if (at === 1)
    return [HostState.FAILED, 'failed to open perf event on CPU `3`: no hardware counters in this virtual machine', []];
  if (at === 2) return [HostState.LOST, 'did not answer within 15 s after the end', []];
  if (at === 3)
    return [
      HostState.PARTIAL,
      'the target ended',
      ['the kernel throttled sampling 12 times: the rate was lower for 0.4 s'],
    ];
  return [HostState.DONE, '', []];
}

async function* running(
  run: Run,
  hosts: readonly HostProgress[],
  scenario: string,
  durationMs: number,
  signal: AbortSignal,
): AsyncGenerator<FleetCaptureResponse> {
  const begun = Date.now();
  for (let elapsed = 0; elapsed < durationMs && !run.cancelled; elapsed = Date.now() - begun) {
    if (scenario === 'gone' && elapsed > durationMs / 2)
      throw new ConnectError('the collector is shutting down', Code.Unavailable);
    for (const [at, host] of hosts.entries()) {
      const [end] = endOf(scenario, at);
      // Some have failed before the others are done.
      const state = end === HostState.FAILED && elapsed > durationMs / 4 ? end : HostState.RUNNING;
      if (state === end) Object.assign(host, { message: endOf(scenario, at)[1] });
      Object.assign(host, { state });
      const samples = Math.round(elapsed * (1 + (at % 5)));
      const told = create(HostProgressSchema, {
        ...host,
        progress: create(CaptureProgressSchema, {
          elapsedNs: BigInt(elapsed) * 1_000_000n,
          samples: BigInt(samples),
          samplesAll: BigInt(samples * 3),
          lostSamples: at % 4 === 0 ? BigInt(Math.round(samples / 90)) : 0n,
        }),
      });
      run.info.hosts[at] = told;
      yield answer({ case: 'host', value: told });
    }
    await new Promise((resolve) => setTimeout(resolve, STEP_MS));
    if (signal.aborted) return;
  }
}

async function* finished(
  run: Run,
  hosts: readonly HostProgress[],
  scenario: string,
  time: { startMs: number; elapsedMs: number; beforeMs: number },
): AsyncGenerator<FleetCaptureResponse> {
  const { info } = run;
  for (const [at, host] of hosts.entries()) {
    const [state, message, notices] = endOf(scenario, at);
    Object.assign(host, {
      state: run.cancelled && state === HostState.DONE ? HostState.PARTIAL : state,
      message,
      notices,
    });
    info.answered += host.state === HostState.DONE || host.state === HostState.PARTIAL ? 1 : 0;
    info.failed += host.state === HostState.FAILED ? 1 : 0;
    info.lost += host.state === HostState.LOST ? 1 : 0;
    yield answer({ case: 'host', value: create(HostProgressSchema, host) });
  }
  const names = hosts.map((one) => one.hostname);
  const of = { hosts: names, hostile: scenario === 'hostile', event: info.request?.capture?.event };
  if (time.beforeMs > 0) {
    for (const chunk of timed({
      ...of,
      startMs: time.startMs - time.beforeMs,
      durationMs: time.beforeMs,
      samples: 4000,
      event: 'cpu-clock',
      lost: scenario === 'past-lost',
    })) {
      const made = create(ProfileChunkSchema, chunk);
      run.past.push(made);
      yield answer({ case: 'past', value: made });
    }
  }
  if (info.answered > 0) {
    for (const chunk of timed({
      ...of,
      startMs: time.startMs,
      durationMs: Math.max(1, time.elapsedMs),
      samples: 6000,
      dropped: 3,
      waits: scenario === 'waits',
    })) {
      const made = create(ProfileChunkSchema, chunk);
      if (scenario === 'broken-end' && made.last) return;
      if (scenario === 'broken-ids' && made.timestampStacks.length) made.timestampStacks[0] = 4_000_000_000;
      if (scenario === 'no-times')
        Object.assign(made, {
          timestampDeltasNs: [],
          timestampLabelSets: [],
          timestampStacks: [],
          timestampEnds: [],
          timestampWeights: [],
        });
      if (scenario === 'no-times' && made.info) made.info.times = undefined;
      run.own.push(made);
      yield answer({ case: 'chunk', value: made });
    }
  }
  info.hosts = hosts.map((host) => ({ ...host, progress: undefined }));
  if (scenario === 'hostile') info.notices.push(...Object.values(HOSTILE));
  if (run.cancelled) info.endedBy = 'cancelled by page';
  info.kept = run.own.length > 0 && scenario !== 'not-kept';
  info.hasPast = info.kept && run.past.length > 0;
  info.bytes = info.kept ? 310n << 10n : 0n;
  if (!info.kept && run.own.length > 0)
    info.notices.push('the collector does not keep the profile of this capture, so save it: No space left on device');
  yield answer({ case: 'result', value: info });
}
