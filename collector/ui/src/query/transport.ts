// gRPC-Web to the collector, at the address that the page came from: for the page and for its
// workers, which have no document to know the address by (`base.ts`).

import type { Transport } from '@connectrpc/connect';
import { createGrpcWebTransport } from '@connectrpc/connect-web';

/** Longest a query waits. Unit: milliseconds. The collector has a limit of its own below it. */
export const DEADLINE_MS = 60_000;

export function transportTo(baseUrl: string): Transport {
  return createGrpcWebTransport({ baseUrl, defaultTimeoutMs: DEADLINE_MS });
}
