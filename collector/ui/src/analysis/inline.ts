// Stands for the worker in the page's own thread: for files that stand alone, which have no second
// one, and for `?worker=off`, since Chromium's virtual time, on which `--screenshot` and
// `--dump-dom` run, waits for no worker.

import type { Port } from './client';
import type { FromWorker } from './protocol';
import type { Service } from './service';

/** The port to the service that `make` makes with how it answers. */
export function inlinePort(make: (send: (message: FromWorker) => void) => Service): Port {
  const service = make((data) => setTimeout(() => port.onmessage?.({ data })));
  const port: Port = {
    onmessage: null,
    onerror: null,
    onmessageerror: null,
    postMessage: (message) => {
      setTimeout(() => service.take(message));
    },
    terminate: () => undefined,
  };
  return port;
}
