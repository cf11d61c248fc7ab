// The worker that holds profiles: binds the service to the page's messages.

import { CollectorService } from './collectorService';
import type { FromWorker, ToWorker } from './protocol';

const scope = self as unknown as {
  onmessage: (event: MessageEvent<ToWorker>) => void;
  onmessageerror: () => void;
  postMessage: (message: FromWorker, transfer: Transferable[]) => void;
};

const service = new CollectorService((message, transfer) => scope.postMessage(message, transfer));

scope.onmessage = ({ data }) => service.take(data);
// `onerror` informs the page, because otherwise nobody would answer the request.
scope.onmessageerror = () => {
  throw new Error('failed to read a message of the page');
};
