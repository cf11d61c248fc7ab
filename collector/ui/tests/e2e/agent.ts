// A made-up agent that connects to a real collector and says that it captured: it samples nothing.

import { create } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { CaptureState, type CaptureRequest, CaptureResponseSchema } from '../../src/gen/fleetprof/agent/v1/agent_pb';
import {
  type ControlRequest,
  ControlRequestSchema,
  ControlService,
} from '../../src/gen/fleetprof/collector/v1/control_pb';
import { timed } from '../mock/timed';

/** Time between two reports of progress. Unit: milliseconds. */
const STEP_MS = 100;

export interface MadeUpAgent {
  /** Resolves when the collector has welcomed it. */
  welcomed: Promise<void>;
  /** What it was asked to capture. */
  captures: CaptureRequest[];
  leave: () => void;
}

type Body = ControlRequest['body'];

/** Connects as a host; `refuses`: what it answers commands with, in place of a profile. */
export function connect(grpcUrl: string, hostname: string, refuses = ''): MadeUpAgent {
  const control = new AbortController();
  const client = createClient(ControlService, createGrpcTransport({ baseUrl: grpcUrl }));
  const queue: Body[] = [
    {
      case: 'hello',
      value: create(ControlRequestSchema, {
        body: {
          case: 'hello',
          value: {
            hostId: `id-${hostname}`,
            bootId: new Uint8Array(16).fill(1),
            facts: { hostname },
            nowUnixNs: BigInt(Date.now()) * 1_000_000n,
          },
        },
      }).body.value as never,
    },
  ];
  let wake: () => void = () => undefined;
  const say = (body: Body) => {
    queue.push(body);
    wake();
  };
  async function* requests(): AsyncGenerator<ControlRequest> {
    while (!control.signal.aborted) {
      for (let body = queue.shift(); body; body = queue.shift()) yield create(ControlRequestSchema, { body });
      await new Promise<void>((resolve) => {
        wake = resolve;
        setTimeout(resolve, STEP_MS);
      });
    }
  }
  const agent: MadeUpAgent = { welcomed: Promise.resolve(), captures: [], leave: () => control.abort() };
  const cancelled = new Set<bigint>();
  agent.welcomed = new Promise((resolve, reject) => {
    void (async () => {
      for await (const { body } of client.control(requests(), { signal: control.signal, timeoutMs: 0 })) {
        if (body.case === 'welcome') resolve();
        if (body.case === 'ping')
          say({
            case: 'pong',
            value: create(ControlRequestSchema, { body: { case: 'pong', value: {} } }).body.value as never,
          });
        if (body.case !== 'command') continue;
        const { number, what } = body.value;
        if (what.case === 'capture') {
          agent.captures.push(what.value);
          void capture(
            number,
            what.value,
            hostname,
            refuses,
            say,
            () => cancelled.has(number) || control.signal.aborted,
          );
        } else if (what.value !== undefined) cancelled.add(what.value);
      }
    })().catch(reject);
  });
  // It leaves on purpose.
  agent.welcomed.catch(() => undefined);
  return agent;
}

async function capture(
  number: bigint,
  request: CaptureRequest,
  hostname: string,
  refuses: string,
  say: (body: Body) => void,
  ended: () => boolean,
): Promise<void> {
  const report = (what: object) =>
    say(create(ControlRequestSchema, { body: { case: 'report', value: { number, what: what as never } } }).body);
  if (refuses !== '') {
    // FAILED_PRECONDITION
    report({ case: 'refusal', value: { code: 9, message: refuses } });
    return;
  }
  const response = (body: object) =>
    report({ case: 'response', value: create(CaptureResponseSchema, { body: body as never }) });
  const [startMs, durationMs] = [Date.now(), Number(request.durationNs) / 1e6];
  const info = (state: CaptureState) => ({
    id: number,
    state,
    request,
    startedUnixNs: BigInt(startMs) * 1_000_000n,
    elapsedNs: BigInt(Date.now() - startMs) * 1_000_000n,
  });
  response({ case: 'accepted', value: info(CaptureState.RUNNING) });
  while (Date.now() - startMs < durationMs && !ended()) {
    const elapsed = Date.now() - startMs;
    response({
      case: 'progress',
      value: { elapsedNs: BigInt(elapsed) * 1_000_000n, samples: BigInt(elapsed), samplesAll: BigInt(elapsed) },
    });
    await new Promise((resolve) => setTimeout(resolve, STEP_MS));
  }
  const elapsedMs = Math.min(durationMs, Math.max(1, Date.now() - startMs));
  for (const chunk of timed({ startMs, durationMs: elapsedMs, samples: 2000, hosts: [hostname], event: request.event }))
    response({ case: 'chunk', value: chunk });
  response({ case: 'result', value: info(ended() ? CaptureState.CANCELLED : CaptureState.COMPLETE) });
}
