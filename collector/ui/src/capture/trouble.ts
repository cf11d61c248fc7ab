// What goes wrong with captures, as sentences.

import { Code, ConnectError } from '@connectrpc/connect';
import { collectorTrouble, isUnknownCall } from '../query/collectorErrors';
import type { Trouble } from '../query/errors';

const SENTENCES: Partial<Record<Code, [title: string, advice: string, retry: boolean]>> = {
  [Code.Unimplemented]: [
    'This collector cannot capture',
    'It is older than this page: upgrade it. On a host itself, `agent-ctl capture` does the same for that host.',
    false,
  ],
  [Code.NotFound]: [
    'There is no host to capture on',
    'A host takes part when it had samples of the selection in the last ten minutes and its agent is connected to this collector for captures: see the Hosts page, and `captures.remote` in the agents’ config.',
    true,
  ],
  [Code.InvalidArgument]: ['The capture was refused', 'Change what is said here, and start again.', false],
  [Code.FailedPrecondition]: ['This cannot be captured', 'Change what is said here, and start again.', false],
  [Code.ResourceExhausted]: [
    'A limit on captures is reached',
    'See the list of captures: end one, or wait until it ends.',
    true,
  ],
  [Code.DeadlineExceeded]: [
    'It took too long',
    'Hosts or the collector were too slow. Try a shorter duration or fewer hosts.',
    true,
  ],
  [Code.PermissionDenied]: ['You may not capture here', 'Ask the operator of this collector for the right to.', false],
};

/** What went wrong with a capture. */
export function captureTrouble(error: unknown): Trouble {
  const found = collectorTrouble(error);
  if (!found)
    return {
      title: 'The capture was given up',
      detail: '',
      advice: 'If it had begun, it goes on: see the list of captures.',
      retry: true,
      code: 'given_up',
    };
  const code = error instanceof ConnectError ? (isUnknownCall(error) ? Code.Unimplemented : error.code) : undefined;
  const own = code === undefined ? undefined : SENTENCES[code];
  return own
    ? { title: own[0], detail: found.detail, advice: own[1], retry: own[2], code: Code[code ?? Code.Unknown] }
    : found;
}

/** What went wrong with a capture that the collector keeps. */
export function keptTrouble(error: unknown): Trouble | undefined {
  const found = collectorTrouble(error);
  if (!found || !(error instanceof ConnectError) || (error.code !== Code.NotFound && error.code !== Code.DataLoss))
    return found;
  return {
    ...found,
    title: error.code === Code.NotFound ? 'This capture is not kept' : 'The file of this capture is damaged',
    advice:
      error.code === Code.NotFound
        ? 'It was removed, its age or its room is over (`captures` in the collector’s config), or it is not yours to see.'
        : 'The collector’s log names the file.',
    retry: false,
  };
}
