// What a capture is asked for with: fields as written, what is wrong with each, and the request.

import { type MessageInitShape, create } from '@bufbuild/protobuf';
import type { CaptureRequestSchema } from '../gen/fleetprof/agent/v1/agent_pb';
import type { FleetCaptureRequest } from '../gen/fleetprof/collector/v1/control_pb';
import { FleetCaptureRequestSchema } from '../gen/fleetprof/collector/v1/control_pb';
import { problem } from '../query/selector';

/** Fields as they are written. */
export interface Draft {
  query: string;
  hosts: string;
  duration: string;
  event: string;
  /** For tracepoints: the kernel's filter. */
  filter: string;
  rate: string;
  unwind: string;
  /** How closely frames are told: by function, or by source line. */
  detail: string;
  before: string;
  minWait: string;
  who: string;
  reason: string;
}

export type Problems = Partial<Record<keyof Draft, string>>;

export const DRAFT: Draft = {
  query: '',
  hosts: '50',
  duration: '30s',
  event: 'cpu-clock',
  filter: '',
  rate: '',
  unwind: '',
  detail: '',
  before: '',
  minWait: '',
  who: '',
  reason: '',
};

/** What a capture of a function's source lines starts with. */
export function linesDraft(text: string): Partial<Draft> {
  return { duration: '10s', detail: 'lines', reason: `lines of ${text}`.slice(0, REASON_CHARS) };
}

/** What a capture of waits starts with. */
export const WAITS_DRAFT: Partial<Draft> = { event: 'off-cpu', duration: '10s', reason: 'where it waits' };

/** Most characters of a reason that the page writes. */
const REASON_CHARS = 60;

/** Most hosts of a capture, as of the collector. */
export const HOSTS_MAX = 1000;

/** Highest rate of agents. Unit: samples a second. */
export const RATE_MAX = 9999;

const HOUR_NS = 3600e9;

/** Longest capture that agents take. Unit: nanoseconds. */
export const DURATION_MAX_NS = HOUR_NS;

/** Farthest that flight recorders can be asked back. Unit: nanoseconds. */
export const BEFORE_MAX_NS = 24 * HOUR_NS;

/** Longest text about who and why. Unit: bytes. */
export const TEXT_BYTES_MAX = 256;

/**
 * Labels that samples keep, so that stacks can be split by them; others are merged away on the
 * hosts.
 */
export const GROUP_BY: readonly string[] = ['host', 'unit', 'container', 'container_name', 'pod', 'comm', 'thread'];

/** Events offered; others can be written. */
export const EVENTS: readonly (readonly [event: string, about: string])[] = [
  ['cpu-clock', 'CPU time, everywhere'],
  ['off-cpu', 'time blocked, with who woke it'],
  ['cycles', 'CPU cycles'],
  ['instructions', 'instructions retired'],
  ['cache-misses', 'misses in the last-level cache'],
  ['cache-references', 'accesses to the last-level cache'],
  ['branch-misses', 'mispredicted branches'],
  ['page-faults', 'page faults'],
  ['context-switches', 'context switches'],
  ['block-io', 'disk requests'],
  ['tracepoint:sched:sched_process_exec', 'any tracepoint: tracepoint:CATEGORY:NAME'],
  ['uprobe:/usr/lib/x86_64-linux-gnu/libc.so.6:malloc', 'any function: uprobe:BINARY:FUNCTION'],
];

const UNIT_NS: Record<string, number> = { ns: 1, us: 1e3, µs: 1e3, ms: 1e6, s: 1e9, m: 60e9, h: HOUR_NS };

/** Nanoseconds of `30s`, `1m30s`, `2.5ms`; undefined for what is no length of time. */
export function lengthNs(text: string): number | undefined {
  const trimmed = text.trim();
  const parts = [...trimmed.matchAll(/(\d{1,12}(?:\.\d{1,9})?)(ns|us|µs|ms|s|m|h)/g)];
  if (!parts.length || parts.map((part) => part[0]).join('') !== trimmed) return undefined;
  return Math.round(parts.reduce((sum, part) => sum + Number(part[1]) * UNIT_NS[part[2]], 0));
}

export const isTracepoint = (event: string) => event.trim().startsWith('tracepoint:');
export const isOffCpu = (event: string) => event.trim() === 'off-cpu';

/** What is wrong with the fields. Empty: nothing; what only agents know they will tell. */
export function problemsOf(draft: Draft): Problems {
  const wrong: Problems = {};
  const put = (field: keyof Draft, text: string | undefined) => {
    if (text !== undefined) wrong[field] = text;
  };
  const selector = problem(draft.query);
  if (selector) put('query', `at character ${selector.at + 1}: ${selector.message}`);
  put('hosts', numberProblem(draft.hosts, HOSTS_MAX));
  put('duration', durationProblem(draft.duration));
  put('event', eventProblem(draft.event.trim()));
  if (draft.rate.trim() !== '') put('rate', numberProblem(draft.rate, RATE_MAX));
  if (!['', 'stack-copy', 'frame-pointer'].includes(draft.unwind)) put('unwind', 'choose one from the list');
  if (!['', 'lines'].includes(draft.detail)) put('detail', 'choose one from the list');
  if (draft.before.trim() !== '') put('before', lengthProblem(draft.before, BEFORE_MAX_NS, '24 h'));
  if (isOffCpu(draft.event) && draft.minWait.trim() !== '')
    put('minWait', lengthProblem(draft.minWait, DURATION_MAX_NS, '1 h'));
  for (const field of ['who', 'reason'] as const) {
    if (new TextEncoder().encode(draft[field]).length > TEXT_BYTES_MAX) put(field, `at most ${TEXT_BYTES_MAX} bytes`);
  }
  return wrong;
}

function numberProblem(text: string, most: number): string | undefined {
  const value = /^\d{1,9}$/.test(text.trim()) ? Number(text) : NaN;
  return value >= 1 && value <= most ? undefined : `expected an integer from 1 to ${most.toLocaleString('en')}`;
}

function lengthProblem(text: string, most: number, mostText: string): string | undefined {
  const length = lengthNs(text);
  if (length === undefined) return 'expected a duration such as `500ms`, `30s` or `5m`';
  return length <= most ? undefined : `at most ${mostText}`;
}

function durationProblem(text: string): string | undefined {
  const length = lengthNs(text);
  return length === 0 ? 'must be longer than 0' : lengthProblem(text, DURATION_MAX_NS, '1 h');
}

function eventProblem(event: string): string | undefined {
  if (event === '') return 'choose or type an event';
  if (event.startsWith('tracepoint:'))
    return /^tracepoint:[^:\s]+:[^:\s]+$/.test(event) ? undefined : 'write `tracepoint:CATEGORY:NAME`';
  if (event.startsWith('uprobe:'))
    return /^uprobe:[^:]+:[^\s].*$/.test(event) ? undefined : 'write `uprobe:BINARY:FUNCTION`';
  return /^[A-Za-z][A-Za-z0-9_-]*$/.test(event)
    ? undefined
    : 'expected an event name, `tracepoint:CATEGORY:NAME` or `uprobe:BINARY:FUNCTION`';
}

/** The request of fields that have no problems. */
export function requestOf(draft: Draft): FleetCaptureRequest {
  const ns = (text: string) => BigInt(lengthNs(text) ?? 0);
  const capture: MessageInitShape<typeof CaptureRequestSchema> = {
    groupBy: [...GROUP_BY],
    durationNs: ns(draft.duration),
    event: draft.event.trim(),
    rateHz: Number(draft.rate.trim() || 0),
    filter: isTracepoint(draft.event) ? draft.filter.trim() : '',
    unwind: draft.unwind,
    lines: draft.detail === 'lines',
    beforeNs: ns(draft.before),
    minWaitNs: isOffCpu(draft.event) ? ns(draft.minWait) : 0n,
    who: draft.who.trim(),
    reason: draft.reason.trim(),
  };
  return create(FleetCaptureRequestSchema, {
    selector: draft.query.trim(),
    maxHosts: Number(draft.hosts),
    capture,
    // The tab may be closed while it runs.
    stays: true,
  });
}
