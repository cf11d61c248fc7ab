// gRPC-Web to the collector, at the address that the page came from: for the page and for its
// workers, which have no document to know the address by.

import type { Transport } from '@connectrpc/connect';
import { createGrpcWebTransport } from '@connectrpc/connect-web';

/** Longest a query waits. Unit: milliseconds. The collector has a limit of its own below it. */
export const DEADLINE_MS = 60_000;

/** Next to the page, so that it works below a path of a reverse proxy. For the page itself. */
export function pageBase(): string {
  return new URL('.', document.baseURI).href.replace(/\/$/, '');
}

export function transportTo(baseUrl: string): Transport {
  return createGrpcWebTransport({ baseUrl, defaultTimeoutMs: DEADLINE_MS });
}
