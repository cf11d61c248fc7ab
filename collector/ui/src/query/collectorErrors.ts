// What went wrong between the page and a collector, as sentences.

import { Code, ConnectError } from '@connectrpc/connect';
import { ProfileError } from './columns';
import { NotHeldError, type Trouble, TroubleError, UNKNOWN_ADVICE, troubleOf } from './errors';

const BUSY = 'The collector is busy';

const SENTENCES: Partial<Record<Code, [title: string, advice: string, retry: boolean]>> = {
  [Code.InvalidArgument]: ['Invalid query', 'Fix the filter, pattern or time range.', false],
  [Code.ResourceExhausted]: [
    'The answer is too large',
    'Narrow the time range, or select fewer hosts or units.',
    false,
  ],
  [Code.DeadlineExceeded]: [
    'Timeout',
    'Narrow the time range or the selection, or try again when the collector is less busy.',
    true,
  ],
  [Code.Unavailable]: [
    'The collector cannot answer now',
    'See its message below. Try again; if the error stays, see Health on the Collector page.',
    true,
  ],
  [Code.Unauthenticated]: ['You are not signed in', 'Sign in, then reload the page.', false],
  [Code.PermissionDenied]: ['You may not see this', 'Ask an administrator of this collector for access.', false],
  [Code.Unimplemented]: [
    'This collector does not support the query',
    'The page and the collector have different versions: reload the page, or upgrade the collector.',
    false,
  ],
  [Code.NotFound]: ['Not found', 'It may have expired: see Data from–to on the Collector page.', false],
  [Code.FailedPrecondition]: ['The collector cannot answer this query', 'See Health on the Collector page.', true],
  [Code.DataLoss]: [
    'Stored data is damaged',
    'See the Collector page for damaged partitions; ranges without them still work.',
    false,
  ],
  [Code.Internal]: [
    'The collector failed',
    'See its log. Try again; if the error stays, report it with this message.',
    true,
  ],
  [Code.Aborted]: ['The query was cancelled', 'Try again.', true],
};

/** Undefined for what was given up on purpose. */
export function collectorTrouble(error: unknown): Trouble | undefined {
  if (error instanceof DOMException && error.name === 'AbortError') return undefined;
  if (error instanceof TroubleError || error instanceof NotHeldError || error instanceof ProfileError)
    return troubleOf(error);
  const connect = ConnectError.from(error);
  if (connect.code === Code.Canceled) return undefined;
  // A request that no server took: the browser says only that it failed.
  const code =
    connect.code === Code.Unknown && /fetch|network|load failed/i.test(connect.rawMessage)
      ? Code.Unavailable
      : connect.code;
  if (connect.metadata.has('retry-after'))
    return {
      title: BUSY,
      detail: connect.rawMessage,
      advice: 'It is sending other large answers. Try again in a moment.',
      retry: true,
      code: Code[code],
    };
  // A proxy in front of it says the same for a collector that is not there.
  if (code === Code.Unavailable && (code !== connect.code || /^HTTP \d{3}/.test(connect.rawMessage))) {
    return {
      title: 'The collector does not answer',
      detail: connect.rawMessage,
      advice: 'Check that it runs and is reachable from here, then try again.',
      retry: true,
      code: Code[code],
    };
  }
  if (code === Code.Unavailable && /disk is full|no space left/i.test(connect.rawMessage)) {
    return {
      title: 'The collector cannot answer now: its disk is full',
      detail: connect.rawMessage,
      advice: 'Free disk space on the collector, or lower the limit of its store, then try again.',
      retry: true,
      code: Code[code],
    };
  }
  const [title, advice, retry] = SENTENCES[code] ?? ['Something went wrong', UNKNOWN_ADVICE, true];
  return { title, detail: connect.rawMessage, advice, retry, code: Code[code] };
}

/**
 * The collector is too old to know the call. A server that only serves files answers an unknown
 * call with an HTTP status.
 */
export function isUnknownCall(error: unknown): boolean {
  if (!(error instanceof ConnectError)) return false;
  return (
    error.code === Code.Unimplemented || (error.code === Code.Unknown && /^HTTP (404|405)$/.test(error.rawMessage))
  );
}

/** An answer of the collector; what goes wrong with it rejects with its trouble. */
export async function worded<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    const trouble = collectorTrouble(error);
    throw trouble ? new TroubleError(trouble) : new DOMException('cancelled', 'AbortError');
  }
}

/** What a refused change is called; its message says what to do. */
const REFUSED: Partial<Record<string, string>> = {
  [Code[Code.InvalidArgument]]: 'The collector does not accept this',
  [Code[Code.ResourceExhausted]]: 'There is no room for it',
  [Code[Code.FailedPrecondition]]: 'The collector cannot keep this',
  [Code[Code.PermissionDenied]]: 'You may not do this',
};

/** As {@link worded}, of a change that somebody asked for: it is no query that was too large. */
export async function changed<T>(answer: Promise<T>): Promise<T> {
  try {
    return await worded(answer);
  } catch (error) {
    const title = error instanceof TroubleError ? REFUSED[error.trouble.code] : undefined;
    if (!(error instanceof TroubleError) || title === undefined || error.trouble.title === BUSY) throw error;
    throw new TroubleError({ ...error.trouble, title, advice: '' });
  }
}
