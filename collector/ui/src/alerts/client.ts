// Asks the collector for its alerts.

import { createClient } from '@connectrpc/connect';
import { AlertService, type ListAlertsResponse } from '../gen/fleetprof/collector/v1/alerts_pb';
import { transport } from '../query/client';
import { worded } from '../query/collectorErrors';
import { timeRangeOf } from '../query/selection';
import type { Range } from '../time/range';

const client = createClient(AlertService, transport);

/** What is pending and firing now, and with a range what fired in it. */
export function listAlerts(range: Range | undefined, signal: AbortSignal, limit = 1000): Promise<ListAlertsResponse> {
  return worded(client.list({ limit, ...(range && { range: timeRangeOf(range) }) }, { signal }));
}
