// Asks the collector, over gRPC-Web, at the address that the page came from.

import { create } from '@bufbuild/protobuf';
import { createClient } from '@connectrpc/connect';
import { createGrpcWebTransport } from '@connectrpc/connect-web';
import { FrameFilterOp, FrameFilterSchema, TimeRangeSchema } from '../gen/fleetprof/agent/v1/agent_pb';
import type {
  CgroupsResponse,
  DiffResponse,
  HostsResponse,
  LabelValuesResponse,
  Selection as SelectionMessage,
  SeriesResponse,
  StatusResponse,
  TopResponse,
} from '../gen/fleetprof/collector/v1/query_pb';
import { QueryService, SelectionSchema } from '../gen/fleetprof/collector/v1/query_pb';
import type { Range } from '../time/range';
import { toNs } from '../time/range';
import { Assembler, type Profile } from './profile';
import { rebaseCgroups, rebaseDiff, rebaseHosts, rebaseSeries, rebaseTop } from './unit';

/** Longest a question waits. Unit: milliseconds. The collector has a limit of its own below it. */
export const DEADLINE_MS = 60_000;

/** Most lines of a chart. More than this nobody tells apart; the rest is one line. */
export const LINES_MAX = 15;

/** Most rows of a table that the collector is asked for. */
export const ROWS_MAX = 1000;

/** What a query is about: a range, whose samples, and which stacks of them. */
export interface Selection {
  range: Range;
  query: string;
  filters: readonly { op: 'keep' | 'drop'; regex: string }[];
}

/** gRPC-Web to the collector. */
export const transport = createGrpcWebTransport({
  // Beside the page, so that it works below a path of a reverse proxy.
  baseUrl: new URL('.', document.baseURI).href.replace(/\/$/, ''),
  defaultTimeoutMs: DEADLINE_MS,
});

const client = createClient(QueryService, transport);

function timeRange(range: Range) {
  return create(TimeRangeSchema, { startUnixNs: toNs(range.from), endUnixNs: toNs(range.to) });
}

function messageOf(selection: Selection, withFrames = true): SelectionMessage {
  const OPS = { keep: FrameFilterOp.KEEP, drop: FrameFilterOp.DROP };
  return create(SelectionSchema, {
    range: timeRange(selection.range),
    selector: selection.query,
    frameFilters: withFrames
      ? selection.filters.map((one) => create(FrameFilterSchema, { op: OPS[one.op], regex: one.regex }))
      : [],
  });
}

/** CPU over time. Frame filters do not reach it: series have no stacks. */
export async function series(selection: Selection, by: string, signal: AbortSignal): Promise<SeriesResponse> {
  return rebaseSeries(
    await client.series(
      { selection: messageOf(selection, false), groupBy: by === '' ? [] : [by], limit: LINES_MAX },
      { signal },
    ),
  );
}

/** One merged profile. `progress` is told how many stacks have come. */
export async function profile(
  selection: Selection,
  groupBy: string,
  signal: AbortSignal,
  progress: (stacks: number) => void,
): Promise<Profile> {
  const assembler = new Assembler();
  const answers = client.profile(
    { selection: messageOf(selection), groupBy: groupBy === '' ? [] : [groupBy] },
    { signal },
  );
  for await (const message of answers) {
    assembler.add(message);
    progress(assembler.stacks);
  }
  return assembler.finish();
}

/** A table by function, module or label, from the collector's own sums. */
export async function top(
  selection: Selection,
  by: string,
  byTotal: boolean,
  signal: AbortSignal,
): Promise<TopResponse> {
  return rebaseTop(
    await client.top({ selection: messageOf(selection), by, sortByTotal: byTotal, limit: ROWS_MAX }, { signal }),
  );
}

/** Two selections against each other, with the statistical error. */
export async function diff(before: Selection, after: Selection, signal: AbortSignal): Promise<DiffResponse> {
  return rebaseDiff(
    await client.diff({ before: messageOf(before), after: messageOf(after), limit: ROWS_MAX }, { signal }),
  );
}

/** Every host heard of. */
export async function hosts(range: Range, signal: AbortSignal): Promise<HostsResponse> {
  return rebaseHosts(await client.hosts({ range: timeRange(range) }, { signal }));
}

/** CPU by cgroup, with frame filters from stacks. */
export async function cgroups(selection: Selection, signal: AbortSignal): Promise<CgroupsResponse> {
  return rebaseCgroups(await client.cgroups({ selection: messageOf(selection) }, { signal }));
}

/** What this collector is. */
export function status(signal: AbortSignal): Promise<StatusResponse> {
  return client.status({}, { signal });
}

/** Names of labels. */
export async function labelNames(range: Range, signal: AbortSignal): Promise<string[]> {
  const answer = await client.labelNames({ selection: { range: timeRange(range) } }, { signal });
  return answer.names;
}

/** Values of a label among what the other matchers select. */
export function labelValues(
  range: Range,
  query: string,
  name: string,
  prefix: string,
  signal: AbortSignal,
): Promise<LabelValuesResponse> {
  return client.labelValues(
    { selection: { range: timeRange(range), selector: query }, name, prefix, limit: 50 },
    { signal },
  );
}
