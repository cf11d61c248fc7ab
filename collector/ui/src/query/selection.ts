// What a query is about, and how the protocol says it.

import { create } from '@bufbuild/protobuf';
import { FrameFilterOp, FrameFilterSchema, type TimeRange, TimeRangeSchema } from '../gen/fleetprof/agent/v1/agent_pb';
import { type Selection as SelectionMessage, SelectionSchema } from '../gen/fleetprof/collector/v1/query_pb';
import type { Range } from '../time/range';
import { toNs } from '../time/range';

/** What a query is about: a range, whose samples, and which stacks of them. */
export interface Selection {
  range: Range;
  query: string;
  filters: readonly { op: 'keep' | 'drop'; regex: string }[];
  /** Id of a profile type of other senders or of captures; empty or absent: CPU of agents. */
  type?: string;
}

export function timeRangeOf(range: Range): TimeRange {
  return create(TimeRangeSchema, { startUnixNs: toNs(range.from), endUnixNs: toNs(range.to) });
}

export function messageOf(selection: Selection, withFrames = true): SelectionMessage {
  const OPS = { keep: FrameFilterOp.KEEP, drop: FrameFilterOp.DROP };
  return create(SelectionSchema, {
    range: timeRangeOf(selection.range),
    selector: selection.query,
    frameFilters: withFrames
      ? selection.filters.map((one) => create(FrameFilterSchema, { op: OPS[one.op], regex: one.regex }))
      : [],
    profileType: selection.type ?? '',
  });
}
