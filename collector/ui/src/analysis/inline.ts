// Stands for the worker in the page's own thread, for `?worker=off`: Chromium's virtual time, on
// which `--screenshot` and `--dump-dom` run, waits for no worker.

import type { Port } from './client';
import { Service } from './service';

export function inlinePort(): Port {
  const service = new Service((data) => setTimeout(() => port.onmessage?.({ data })));
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
