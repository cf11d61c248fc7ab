// Queries the collector. What is large, profiles and captures, is queried where it is decoded: in
// the worker (`src/analysis`).

import { createClient } from '@connectrpc/connect';
import type {
  CgroupsResponse,
  DiffResponse,
  HostsResponse,
  LabelValuesResponse,
  OverviewResponse,
  SeriesResponse,
  StatusResponse,
  TopResponse,
} from '../gen/fleetprof/collector/v1/query_pb';
import { QueryService } from '../gen/fleetprof/collector/v1/query_pb';
import type { Range } from '../time/range';
import { escapeRegex } from '../flame/search';
import { type Selection, messageOf, timeRangeOf } from './selection';
import { pageBase } from './base';
import { worded } from './collectorErrors';
import { transportTo } from './transport';
import { rebaseCgroups, rebaseDiff, rebaseHosts, rebaseSeries, rebaseTop } from './unit';

/** Most lines of a chart. More than this nobody tells apart; the rest is one line. */
export const LINES_MAX = 15;

/** Most rows of a table that the collector is asked for. */
export const ROWS_MAX = 1000;

/** gRPC-Web to the collector. */
export const transport = transportTo(pageBase());

const client = createClient(QueryService, transport);

/** Ids of the profile types of other senders and of captures. */
export async function profileTypes(range: Range, signal: AbortSignal): Promise<string[]> {
  return (await worded(client.profileTypes({ range: timeRangeOf(range) }, { signal }))).ids;
}

/** CPU over time. Frame filters do not reach it: series have no stacks. */
export async function series(
  selection: Selection,
  by: string,
  signal: AbortSignal,
  limit = LINES_MAX,
): Promise<SeriesResponse> {
  return rebaseSeries(
    await worded(
      client.series(
        {
          selection: messageOf(selection, false),
          groupBy: by === '' ? [] : [by],
          limit,
          accounted: true,
        },
        { signal },
      ),
    ),
  );
}

/** CPU over time of one function, by a label: it is computed from stacks, in few steps. */
export async function functionSeries(
  selection: Selection,
  fn: string,
  by: string,
  limit: number,
  signal: AbortSignal,
): Promise<SeriesResponse> {
  const filters = [...selection.filters, { op: 'keep', regex: `^${escapeRegex(fn)}$` } as const];
  const request = { selection: messageOf({ ...selection, filters }), groupBy: [by], limit };
  return rebaseSeries(await worded(client.series(request, { signal })));
}

/** A table by function, module or label, from the collector's own sums. */
export async function top(
  selection: Selection,
  by: string,
  byTotal: boolean,
  signal: AbortSignal,
): Promise<TopResponse> {
  return rebaseTop(
    await worded(
      client.top({ selection: messageOf(selection), by, sortByTotal: byTotal, limit: ROWS_MAX }, { signal }),
    ),
  );
}

/** Two selections against each other, with the statistical error. */
export async function diff(
  before: Selection,
  after: Selection,
  by: 'function' | 'module',
  signal: AbortSignal,
): Promise<DiffResponse> {
  return rebaseDiff(
    await worded(client.diff({ before: messageOf(before), after: messageOf(after), limit: ROWS_MAX, by }, { signal })),
  );
}

/** Most rows of each table of an overview. */
const OVERVIEW_ROWS = 50;

/** A range against a baseline. Functions take most of the time, so they can be left out. */
export function overview(
  selection: Selection,
  baseline: Range,
  serviceLabel: string,
  withFunctions: boolean,
  signal: AbortSignal,
): Promise<OverviewResponse> {
  return worded(
    client.overview(
      {
        selection: messageOf(selection, false),
        baseline: timeRangeOf(baseline),
        serviceLabel,
        limit: OVERVIEW_ROWS,
        withoutFunctions: !withFunctions,
      },
      { signal },
    ),
  );
}

/** Most rows of a comparison by label: as many as the collector gives. */
const COMPARED_ROWS = 200;

/** Two selections against each other by the values of a label, and as a whole; by hosts, too. */
export function compared(
  before: Selection,
  after: Selection,
  label: string,
  signal: AbortSignal,
): Promise<OverviewResponse> {
  return worded(
    client.overview(
      {
        selection: messageOf(after, false),
        baseline: timeRangeOf(before.range),
        baselineSelection: before.query === after.query ? undefined : { selector: before.query },
        serviceLabel: label,
        limit: COMPARED_ROWS,
        withoutFunctions: true,
      },
      { signal },
    ),
  );
}

/** Every host heard of. */
export async function hosts(range: Range, signal: AbortSignal): Promise<HostsResponse> {
  return rebaseHosts(await worded(client.hosts({ range: timeRangeOf(range) }, { signal })));
}

/** CPU by cgroup, with frame filters from stacks. */
export async function cgroups(selection: Selection, signal: AbortSignal): Promise<CgroupsResponse> {
  return rebaseCgroups(await worded(client.cgroups({ selection: messageOf(selection) }, { signal })));
}

/** What this collector is. */
export function status(signal: AbortSignal): Promise<StatusResponse> {
  return worded(client.status({}, { signal }));
}

/** Names of labels, of agents or of a profile type. */
export async function labelNames(range: Range, signal: AbortSignal, profileType = ''): Promise<string[]> {
  const selection = { range: timeRangeOf(range), profileType };
  const answer = await worded(client.labelNames({ selection }, { signal }));
  return answer.names;
}

/** Values of a label among what the other matchers select. */
export function labelValues(
  of: Omit<Selection, 'filters'>,
  name: string,
  prefix: string,
  signal: AbortSignal,
  limit = 50,
): Promise<LabelValuesResponse> {
  const selection = messageOf({ ...of, filters: [] });
  return worded(client.labelValues({ selection, name, prefix, limit }, { signal }));
}
