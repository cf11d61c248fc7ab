// One fan-out as this page follows it: from the plan over what each host does to the profile and
// the result.
//
// Whoever leaves the stream leaves the capture running: the collector keeps what comes of it. What
// comes is a stranger's: hosts and notices are bounded. Its profiles are put together and held by
// the worker.

import { create } from '@bufbuild/protobuf';
import {
  type FleetCaptureInfo,
  type FleetCaptureRequest,
  FleetCaptureRequestSchema,
  type FleetPlan,
  type HostProgress,
  HostState,
} from '../gen/fleetprof/collector/v1/control_pb';
import type { CaptureNews, LoadedProfile } from '../analysis/protocol';
import { ProfileError } from '../query/columns';
import type { Trouble } from '../query/errors';
import { captureTrouble } from './trouble';

/** Most hosts followed; more are counted. */
export const HOSTS_HELD_MAX = 10_000;

/** Most notices kept of a capture as a whole. */
export const NOTICES_MAX = 200;

/** Most notices kept of a host, and the longest text of one. Unit: UTF-16 units. */
export const HOST_NOTICES_MAX = 32;
export const TEXT_LEN_MAX = 4096;

/**
 * Time from the end of a capture until its profile is here, beyond what the request allows. Unit:
 * ms.
 */
const MERGE_MS = 180_000;

/** What a host has beyond the duration where the request does not say. Unit: ms. */
const PATIENCE_MS = 15_000;

/** Shortest time between two tellings of what is new. Unit: ms. */
const TELL_MS = 100;

/** `asking`: no plan yet. `ending`: it was ended early and what there is comes. */
export type Phase = 'asking' | 'running' | 'ending' | 'done' | 'failed';

export interface CaptureCalls {
  capture(
    request: FleetCaptureRequest,
    options: { signal: AbortSignal; timeoutMs: number },
  ): AsyncIterable<CaptureNews>;
  cancel(request: { id: bigint }): Promise<unknown>;
  /** Nobody looks at a profile any more. */
  release(profile: LoadedProfile): void;
}

/** What is shown of a capture, whoever took it. */
export interface Shown {
  request: FleetCaptureRequest;
  hosts: ReadonlyMap<string, HostProgress>;
  hostsUnheld: number;
  plan: FleetPlan | undefined;
  result: FleetCaptureInfo | undefined;
  profile: LoadedProfile | undefined;
  past: LoadedProfile | undefined;
  trouble: Trouble | undefined;
  runs: boolean;
}

/** A host within bounds; `before`: what was known of it. */
function bounded(host: HostProgress, before: HostProgress | undefined): HostProgress {
  const cut = (text: string) => text.slice(0, TEXT_LEN_MAX);
  return {
    ...host,
    // The last word on a host may be without its numbers.
    progress: host.progress ?? before?.progress,
    hostname: cut(host.hostname || (before?.hostname ?? '')),
    message: cut(host.message),
    notices: host.notices.slice(0, HOST_NOTICES_MAX).map(cut),
  };
}

/** A capture as the collector tells of it. */
export function shownOf(info: FleetCaptureInfo): Omit<Shown, 'profile' | 'past'> {
  const hosts = info.hosts.slice(0, HOSTS_HELD_MAX);
  return {
    request: info.request ?? create(FleetCaptureRequestSchema),
    hosts: new Map(hosts.map((host) => [host.hostId, bounded(host, undefined)])),
    hostsUnheld: info.hosts.length - hosts.length,
    plan: undefined,
    result: { ...info, notices: info.notices.slice(0, NOTICES_MAX) },
    trouble: undefined,
    runs: info.running,
  };
}

/** A capture of this page. */
export class Session implements Shown {
  phase: Phase = 'asking';
  plan: FleetPlan | undefined;
  /** By host id, in the order of the plan. */
  readonly hosts = new Map<string, HostProgress>();
  /** Hosts that found no room in `hosts`. */
  hostsUnheld = 0;
  result: FleetCaptureInfo | undefined;
  profile: LoadedProfile | undefined;
  /** The profile of the time before, from the flight recorders. */
  past: LoadedProfile | undefined;
  /** Why it failed, or what is missing although there is a profile. */
  trouble: Trouble | undefined;
  /** Ending it early failed. */
  endTrouble: Trouble | undefined;
  /** Stacks of the profile that have come. */
  stacks = 0;
  readonly startedMs = Date.now();
  private readonly control = new AbortController();
  private readonly listeners = new Set<() => void>();
  private timer: ReturnType<typeof setTimeout> | undefined;
  private told = 0;

  constructor(
    readonly request: FleetCaptureRequest,
    private readonly calls: CaptureCalls,
  ) {}

  /** Asks; resolves when nothing more comes. Never rejects. */
  async run(): Promise<void> {
    try {
      const durationMs = Number(this.request.capture?.durationNs ?? 0n) / 1e6;
      const patienceMs = Number(this.request.patienceNs) / 1e6 || PATIENCE_MS;
      const answers = this.calls.capture(this.request, {
        signal: this.control.signal,
        timeoutMs: durationMs + patienceMs + MERGE_MS,
      });
      for await (const news of answers) {
        this.take(news);
        this.tell();
      }
      if (!this.result) this.trouble = captureTrouble(new ProfileError('the answer has no result'));
    } catch (error) {
      this.trouble = captureTrouble(error);
      // What was to come is not wanted here any more.
      this.control.abort();
    }
    // A profile that is complete is worth seeing, whatever came after it.
    this.phase = this.result || this.profile ? 'done' : 'failed';
    this.tell(true);
  }

  private take(news: CaptureNews): void {
    switch (news.case) {
      case 'plan':
        this.plan = news.value;
        if (this.phase === 'asking') this.phase = 'running';
        for (const host of news.value.hosts) this.follow(host);
        break;
      case 'host':
        this.follow(news.value);
        break;
      case 'stacks':
        this.stacks = news.value;
        break;
      case 'profile':
        this.profile = news.value;
        break;
      case 'past':
        this.past = news.value;
        break;
      case 'result':
        this.result = { ...news.value, notices: news.value.notices.slice(0, NOTICES_MAX) };
        for (const host of news.value.hosts) this.follow(host);
        break;
    }
  }

  private follow(host: HostProgress): void {
    const before = this.hosts.get(host.hostId);
    if (!before && this.hosts.size >= HOSTS_HELD_MAX) {
      this.hostsUnheld++;
      return;
    }
    this.hosts.set(host.hostId, bounded(host, before));
  }

  /** True while something may still come. */
  get runs(): boolean {
    return this.phase !== 'done' && this.phase !== 'failed';
  }

  /** Ends it now, with what there is. */
  end(): void {
    if (!this.runs || this.phase === 'ending') return;
    if (!this.plan) {
      this.giveUp();
      return;
    }
    this.phase = 'ending';
    this.endTrouble = undefined;
    this.tell(true);
    this.calls.cancel({ id: this.plan.id }).catch((error: unknown) => {
      if (!this.runs) return;
      this.phase = 'running';
      this.endTrouble = captureTrouble(error);
      this.tell(true);
    });
  }

  /** Nobody looks at it any more: its profiles go. */
  release(): void {
    for (const profile of [this.profile, this.past]) if (profile) this.calls.release(profile);
    this.profile = undefined;
    this.past = undefined;
  }

  /** Its profiles are gone: the worker that held them ended. */
  lose(): void {
    this.profile = undefined;
    this.past = undefined;
  }

  /** Follows it no further: the collector goes on with it, once it has told its number. */
  giveUp(): void {
    this.control.abort();
  }

  /** Calls `listener` when something is new, a few times a second at most. */
  subscribe(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  private tell(atOnce = false): void {
    const now = Date.now();
    const due = this.told + TELL_MS - now;
    if (!atOnce && due > 0) {
      this.timer ??= setTimeout(() => this.tell(true), due);
      return;
    }
    clearTimeout(this.timer);
    this.timer = undefined;
    this.told = now;
    for (const listener of [...this.listeners]) listener();
  }
}

/** How many hosts are how far. */
export interface Tally {
  all: number;
  waiting: number;
  running: number;
  answered: number;
  partial: number;
  failed: number;
  lost: number;
  samples: number;
  lostSamples: number;
}

export function tallyOf(hosts: Iterable<HostProgress>): Tally {
  const tally: Tally = {
    all: 0,
    waiting: 0,
    running: 0,
    answered: 0,
    partial: 0,
    failed: 0,
    lost: 0,
    samples: 0,
    lostSamples: 0,
  };
  for (const { state, progress } of hosts) {
    tally.all++;
    tally.samples += Number(progress?.samples ?? 0n);
    tally.lostSamples += Number(progress?.lostSamples ?? 0n);
    if (state === HostState.RUNNING) tally.running++;
    else if (state === HostState.DONE) tally.answered++;
    else if (state === HostState.PARTIAL) {
      tally.answered++;
      tally.partial++;
    } else if (state === HostState.FAILED) tally.failed++;
    else if (state === HostState.LOST) tally.lost++;
    else tally.waiting++;
  }
  return tally;
}
