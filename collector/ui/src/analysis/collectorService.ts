// The service of a page that has a collector: it loads profiles from it, captures with it, and
// writes files of what was captured.

import { type CallOptions, createClient } from '@connectrpc/connect';
import { folded, json } from '../capture/files';
import { captureTrouble, keptTrouble } from '../capture/trouble';
import {
  CaptureService,
  type FleetCaptureProfileResponse,
  type FleetCaptureRequest,
  type FleetCaptureResponse,
} from '../gen/fleetprof/collector/v1/control_pb';
import { type EvidenceProfileResponse, IncidentService } from '../gen/fleetprof/collector/v1/incidents_pb';
import { type PinProfileResponse, PinService } from '../gen/fleetprof/collector/v1/pins_pb';
import { type ProfileResponse, QueryService } from '../gen/fleetprof/collector/v1/query_pb';
import { collectorTrouble } from '../query/collectorErrors';
import type { Trouble } from '../query/errors';
import type { ProfileChunk } from '../gen/fleetprof/profile/v1/profile_pb';
import { Assembler } from '../query/profile';
import { messageOf } from '../query/selection';
import { transportTo } from '../query/transport';
import { captureNews } from './captureNews';
import type { FromWorker, LoadedProfile, Operation, Operations } from './protocol';
import { Service } from './service';

/** What the collector is asked for here: what is large. */
export interface Collector {
  profile(request: object, options: CallOptions): AsyncIterable<ProfileResponse>;
  capture(request: FleetCaptureRequest, options: CallOptions): AsyncIterable<FleetCaptureResponse>;
  kept(request: object, options: CallOptions): AsyncIterable<FleetCaptureProfileResponse>;
  pin(request: object, options: CallOptions): AsyncIterable<PinProfileResponse>;
  evidence(request: object, options: CallOptions): AsyncIterable<EvidenceProfileResponse>;
}

/** The collector at an address. */
export function collectorAt(baseUrl: string): Collector {
  const transport = transportTo(baseUrl);
  const [queries, captures] = [createClient(QueryService, transport), createClient(CaptureService, transport)];
  const [pins, incidents] = [createClient(PinService, transport), createClient(IncidentService, transport)];
  return {
    profile: (request, options) => queries.profile(request, options),
    capture: (request, options) => captures.capture(request, options),
    kept: (request, options) => captures.profile(request, options),
    pin: (request, options) => pins.profile(request, options),
    evidence: (request, options) => incidents.profile(request, options),
  };
}

export class CollectorService extends Service {
  constructor(
    send: (message: FromWorker, transfer: ArrayBuffer[]) => void,
    private readonly collector: (baseUrl: string) => Collector = collectorAt,
    build?: string,
  ) {
    super(send, build);
  }

  protected override troubleOf(operation: Operation, error: unknown): Trouble | undefined {
    return operation === 'kept'
      ? keptTrouble(error)
      : operation === 'capture'
        ? captureTrouble(error)
        : collectorTrouble(error);
  }

  protected override run(number: number, operation: Operation, args: unknown, signal: AbortSignal): Promise<unknown> {
    if (operation === 'load') return this.load(number, args as Operations['load']['args'], signal);
    if (operation === 'kept') return this.kept(number, args as Operations['kept']['args'], signal);
    if (operation === 'pin') return this.pin(number, args as Operations['pin']['args'], signal);
    if (operation === 'evidence') return this.evidence(number, args as Operations['evidence']['args'], signal);
    if (operation === 'capture') return this.capture(number, args as Operations['capture']['args'], signal);
    if (operation === 'file') return this.turns.run(signal, () => this.file(args as Operations['file']['args']));
    return super.run(number, operation, args, signal);
  }

  private file({ of, kind, samples }: Operations['file']['args']): Blob {
    const profile = this.engine.profileOf(of);
    if (kind === 'folded')
      return new Blob(folded(profile, samples ? profile.count : profile.weight), { type: 'text/plain' });
    const { timestamps } = this.engine.profileOf({ id: of.id });
    return new Blob(json(profile, timestamps && { timestamps, pick: of.pick }), { type: 'application/json' });
  }

  /** One merged profile, decoded as it comes. */
  private async load(
    number: number,
    { baseUrl, selection, groupBy }: Operations['load']['args'],
    signal: AbortSignal,
  ): Promise<LoadedProfile> {
    const assembler = new Assembler();
    const answers = this.collector(baseUrl).profile(
      { selection: messageOf(selection), groupBy: groupBy === '' ? [] : [groupBy] },
      { signal },
    );
    for await (const message of answers) {
      assembler.add(message);
      this.send({ number, progress: assembler.stacks }, []);
    }
    signal.throwIfAborted();
    return this.engine.add(assembler.finish());
  }

  /** A kept capture: what came of it is told before its profile is complete. */
  private async kept(
    number: number,
    { baseUrl, capture, past }: Operations['kept']['args'],
    signal: AbortSignal,
  ): Promise<LoadedProfile> {
    const assembler = new Assembler();
    const answers = this.collector(baseUrl).kept({ id: capture, past, groupBy: ['*'], times: true }, { signal });
    for await (const { body } of answers) {
      if (body.case === 'info') this.send({ number, news: { case: 'result', value: body.value } }, []);
      if (body.case !== 'chunk') continue;
      assembler.addChunk(body.value);
      this.send({ number, progress: assembler.stacks }, []);
    }
    signal.throwIfAborted();
    return this.engine.add(assembler.finish());
  }

  /** What a pin kept: all of its labels, and when its samples were taken. */
  private pin(
    number: number,
    { baseUrl, pin, captured }: Operations['pin']['args'],
    signal: AbortSignal,
  ): Promise<LoadedProfile> {
    const asked = { id: BigInt(pin), captured, groupBy: ['*'], times: true };
    return this.chunks(number, this.collector(baseUrl).pin(asked, { signal }), signal);
  }

  private evidence(
    number: number,
    { baseUrl, evidence, baseline }: Operations['evidence']['args'],
    signal: AbortSignal,
  ): Promise<LoadedProfile> {
    const asked = { id: BigInt(evidence), baseline };
    return this.chunks(number, this.collector(baseUrl).evidence(asked, { signal }), signal);
  }

  /** A profile that comes in chunks and nothing else. */
  private async chunks(
    number: number,
    answers: AsyncIterable<{ chunk?: ProfileChunk | undefined }>,
    signal: AbortSignal,
  ): Promise<LoadedProfile> {
    const assembler = new Assembler();
    for await (const message of answers) {
      if (message.chunk) assembler.addChunk(message.chunk);
      this.send({ number, progress: assembler.stacks }, []);
    }
    signal.throwIfAborted();
    return this.engine.add(assembler.finish());
  }

  private async capture(
    number: number,
    { baseUrl, request, timeoutMs }: Operations['capture']['args'],
    signal: AbortSignal,
  ): Promise<undefined> {
    const answers = this.collector(baseUrl).capture(request, { signal, timeoutMs });
    for await (const news of captureNews(answers, this.engine)) this.send({ number, news }, []);
  }
}
