// A fake collector, without a store: QueryService and CaptureService over gRPC-Web, the page, and
// the downloads.
//
// What goes wrong is asked for by selector: `scenario="slow"`, `scenario="error-unavailable"`, …,
// so that a link has it too.

import { createReadStream, existsSync, statSync } from 'node:fs';
import { type IncomingMessage, type ServerResponse, createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname, join, normalize } from 'node:path';
import { Code, ConnectError, type ConnectRouter } from '@connectrpc/connect';
import { connectNodeAdapter } from '@connectrpc/connect-node';
import { QueryService, type Selection } from '../../src/gen/fleetprof/collector/v1/query_pb';
import * as answers from './answers';
import { overview } from './overview';
import { type FakeCaptures, captureService } from './captures';
import { type FakeAlerts, alertServices } from './alerts';
import { type FakeEvents, eventServices } from './events';

/** As the collector sends it. */
export const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data: blob:; font-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const TYPES: Record<string, string> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.css': 'text/css; charset=utf-8',
  '.svg': 'image/svg+xml',
  '.txt': 'text/plain; charset=utf-8',
};

/** How long a slow answer takes. Unit: milliseconds. */
export const SLOW_MS = 1200;

export interface Mock {
  url: string;
  /** Calls so far, by method. */
  calls: Map<string, number>;
  /** Calls that their client gave up. */
  cancelled: Map<string, number>;
  /** Hosts without usable samples, and since when. Unit: milliseconds. */
  blind: Map<string, number>;
  /** Profile types of other senders. */
  types: string[];
  /** By how much its clock is ahead. Unit: milliseconds. */
  skewMs: number;
  captures: FakeCaptures;
  events: FakeEvents;
  alerts: FakeAlerts;
  /** Sites that may show a panel in a frame, as the policy names them; empty: none. */
  ancestors: string;
  /** Who has logged in; nobody where the collector asks for no login. */
  session: { name: string; role: string } | undefined;
  close: () => Promise<void>;
}

const ERRORS: Record<string, [Code, string, Record<string, string>?]> = {
  'error-busy': [Code.ResourceExhausted, '16 answers are already being sent', { 'retry-after': '5' }],
  'error-invalid': [Code.InvalidArgument, 'failed to compile pattern `(`: unclosed group'],
  'error-exhausted': [Code.ResourceExhausted, 'the answer has more than 200000 stacks: narrow the range'],
  'error-deadline': [Code.DeadlineExceeded, 'the query took longer than 30 s'],
  'error-unavailable': [Code.Unavailable, 'the store is unavailable: the disk is full'],
  'error-internal': [Code.Internal, 'failed to read partition `2026-11-21T12`: <script>window.__pwned = 1</script>'],
};

/** Starts on a free port of the loopback, or on the one that is given. */
export async function startMock(dist: string, port = 0): Promise<Mock> {
  const started = Date.now();
  const mock: Mock = {
    url: '',
    calls: new Map(),
    cancelled: new Map(),
    blind: new Map(),
    types: [],
    skewMs: 0,
    captures: { requests: [], left: 0, unknown: false, runs: [] },
    events: { pins: [], annotations: [], asked: [], broken: false },
    alerts: { none: false, incidents: [], kept: [], views: [], read: [] },
    session: undefined,
    ancestors: '',
    close: async () => undefined,
  };
  const routes = (router: ConnectRouter) => {
    service(router, mock, started);
    mock.captures = captureService(router);
    mock.events = eventServices(router, started);
    mock.alerts = alertServices(router, started);
  };
  const rpc = connectNodeAdapter({ routes, connect: false, grpc: false, grpcWeb: true });
  const server = createServer((request, response) => {
    if (request.url?.startsWith('/fleetprof.')) rpc(request, response);
    else if (/^\/api\/(profile|capture|pin|evidence|incident)\./.test(request.url ?? '')) download(request, response);
    else if (request.url === '/api/session') session(mock, response);
    else if (request.url === '/api/logout' && request.method === 'POST') {
      mock.session = undefined;
      response.writeHead(204).end();
    } else file(dist, request, response, mock.ancestors);
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  mock.url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  mock.close = () =>
    new Promise((resolve) => {
      server.closeAllConnections();
      server.close(() => resolve());
    });
  return mock;
}

function service(router: ConnectRouter, mock: Mock, started: number): void {
  const begin = async (method: string, selection: Selection | undefined, signal: AbortSignal) => {
    mock.calls.set(method, (mock.calls.get(method) ?? 0) + 1);
    let of: answers.Asked;
    try {
      of = answers.asked(selection);
    } catch (error) {
      throw new ConnectError((error as Error).message, Code.InvalidArgument);
    }
    if (of.scenario === 'slow' && method !== 'labelNames') {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, SLOW_MS);
        signal.addEventListener('abort', () => {
          clearTimeout(timer);
          mock.cancelled.set(method, (mock.cancelled.get(method) ?? 0) + 1);
          resolve();
        });
      });
    }
    const error = ERRORS[of.scenario];
    if (error) throw new ConnectError(error[1], error[0], error[2]);
    return of;
  };
  router.service(QueryService, {
    profileTypes: () => ({ ids: mock.types }),
    async labelNames(request, context) {
      return { names: answers.labelNames(await begin('labelNames', request.selection, context.signal)) };
    },
    async labelValues(request, context) {
      const of = await begin('labelValues', request.selection, context.signal);
      const values = answers.labelValues(of, request.name).filter((value) => value.startsWith(request.prefix));
      const limit = request.limit || 100;
      return { values: values.slice(0, limit), more: values.length > limit };
    },
    async series(request, context) {
      const of = await begin('series', request.selection, context.signal);
      return answers.series(of, request.groupBy, request.limit, request.accounted);
    },
    async *profile(request, context) {
      yield* answers.profile(await begin('profile', request.selection, context.signal), request.groupBy);
    },
    async top(request, context) {
      return answers.top(
        await begin('top', request.selection, context.signal),
        request.by,
        request.sortByTotal,
        request.limit,
      );
    },
    async diff(request, context) {
      const before = await begin('diff', request.before, context.signal);
      return answers.diff(
        before,
        answers.asked(request.after),
        request.limit,
        request.by === 'module' ? 'module' : 'function',
      );
    },
    async overview(request, context) {
      const now = await begin('overview', request.selection, context.signal);
      const of = request.baselineSelection ?? request.selection;
      const was = answers.asked({ ...of, range: request.baseline } as Selection);
      return overview(now, was, request.serviceLabel || 'unit', request.limit || 20, !request.withoutFunctions);
    },
    async hosts(request, context) {
      const of = await begin('hosts', undefined, context.signal);
      const at = (value: bigint | undefined, otherwise: number) => (value ? Number(value / 1_000_000n) : otherwise);
      return answers.hosts(
        at(request.range?.startUnixNs, of.from),
        at(request.range?.endUnixNs, of.to),
        false,
        mock.blind,
      );
    },
    async cgroups(request, context) {
      return answers.cgroups(await begin('cgroups', request.selection, context.signal));
    },
    async status() {
      mock.calls.set('status', (mock.calls.get('status') ?? 0) + 1);
      return answers.status(started - 7 * 3_600_000, mock.skewMs, mock.blind);
    },
  });
}

function session({ session }: Mock, response: ServerResponse): void {
  const who = session ?? { name: 'local', role: 'admin' };
  response.writeHead(200, { 'Content-Type': 'application/json' });
  response.end(JSON.stringify({ ...who, can_log_out: session !== undefined }));
}

function download(request: IncomingMessage, response: ServerResponse): void {
  const url = new URL(request.url ?? '/', 'http://mock');
  const name = url.pathname.slice('/api/'.length);
  response.setHeader('content-disposition', `attachment; filename="${name}"`);
  response.setHeader('content-type', 'application/octet-stream');
  response.end(JSON.stringify(Object.fromEntries(url.searchParams)));
}

function file(dist: string, request: IncomingMessage, response: ServerResponse, ancestors: string): void {
  const url = new URL(request.url ?? '/', 'http://mock');
  const path = normalize(url.pathname);
  const isPanel = ancestors !== '' && path === '/' && url.searchParams.has('embed');
  const name = join(dist, path === '/' ? 'index.html' : path);
  const policy = isPanel ? CSP.replace("frame-ancestors 'none'", `frame-ancestors ${ancestors}`) : CSP;
  response.setHeader('content-security-policy', policy);
  response.setHeader('x-content-type-options', 'nosniff');
  if (!name.startsWith(dist) || !existsSync(name) || !statSync(name).isFile()) {
    response.statusCode = 404;
    response.end('not found');
    return;
  }
  response.setHeader('content-type', TYPES[extname(name)] ?? 'application/octet-stream');
  createReadStream(name).pipe(response);
}
