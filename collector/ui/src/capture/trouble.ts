// What goes wrong with captures, as sentences.

import { Code, ConnectError } from '@connectrpc/connect';
import { collectorTrouble, isUnknownCall } from '../query/collectorErrors';
import type { Trouble } from '../query/errors';

const SENTENCES: Partial<Record<Code, [title: string, advice: string, retry: boolean]>> = {
  [Code.Unimplemented]: [
    'This collector cannot capture',
    'The collector is older than this page: upgrade it. For a single host, use `agent-ctl capture` on that host.',
    false,
  ],
  [Code.NotFound]: [
    'No host to capture on',
    'A host takes part if it had samples of the selection in the last 10 minutes and its agent is connected to this collector for captures. Check the Hosts page, and `captures.remote` in the agents’ config.',
    true,
  ],
  [Code.InvalidArgument]: ['The capture was refused', 'Change the settings, then start again.', false],
  [Code.FailedPrecondition]: ['This cannot be captured', 'Change the settings, then start again.', false],
  [Code.ResourceExhausted]: [
    'Too many captures',
    'End a capture in the list of captures, or wait until one ends.',
    true,
  ],
  [Code.DeadlineExceeded]: [
    'Timeout',
    'The hosts or the collector were too slow. Use a shorter duration or fewer hosts.',
    true,
  ],
  [Code.PermissionDenied]: ['You may not capture here', 'Ask an administrator of this collector for access.', false],
};

/** What went wrong with a capture. */
export function captureTrouble(error: unknown): Trouble {
  const found = collectorTrouble(error);
  if (!found)
    return {
      title: 'The capture was cancelled',
      detail: '',
      advice: 'If it has started, it continues: see the list of captures.',
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
        ? 'It was deleted, removed because of its age or size (`captures` in the collector’s config), or you may not see it.'
        : 'See the collector’s log for the file.',
    retry: false,
  };
}
