// What went wrong between the page and a collector, as sentences.

import { Code, ConnectError } from '@connectrpc/connect';
import { ProfileError } from './columns';
import { NotHeldError, type Trouble, TroubleError, UNKNOWN_ADVICE, troubleOf } from './errors';

const SENTENCES: Partial<Record<Code, [title: string, advice: string, retry: boolean]>> = {
  [Code.InvalidArgument]: ['Invalid query', 'Fix the selector, pattern or time range.', false],
  [Code.ResourceExhausted]: [
    'The answer would be too large',
    'Narrow the time range, or select fewer hosts or units.',
    false,
  ],
  [Code.DeadlineExceeded]: [
    'It took too long',
    'Narrow the time range or the selection, or try again when the collector is less busy.',
    true,
  ],
  [Code.Unavailable]: [
    'The collector cannot answer now',
    'What it says is below. Try again; if it stays, see Health on the Collector page.',
    true,
  ],
  [Code.Unauthenticated]: [
    'You are not signed in',
    'Sign in as this collector’s operator has set it up, then load the page again.',
    false,
  ],
  [Code.PermissionDenied]: ['You may not see this', 'Ask the operator of this collector for the right to.', false],
  [Code.Unimplemented]: [
    'This collector does not know the question',
    'The page and the collector are of different versions: load the page again, or upgrade the collector.',
    false,
  ],
  [Code.NotFound]: ['Not found', 'It may have expired: see Data from–to on the Collector page.', false],
  [Code.FailedPrecondition]: ['The collector cannot answer this as it is', 'See Health on the Collector page.', true],
  [Code.DataLoss]: [
    'Stored data is damaged',
    'See the Collector page for partitions that were set aside; a range without them still answers.',
    false,
  ],
  [Code.Internal]: [
    'The collector failed',
    'Its log has the cause. Try again; if it stays, report it with what is said here.',
    true,
  ],
  [Code.Aborted]: ['The question was given up', 'Try again.', true],
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
      title: 'The collector is busy',
      detail: connect.rawMessage,
      advice: 'Others are reading large answers: try again in a moment.',
      retry: true,
      code: Code[code],
    };
  // A proxy in front of it says the same for a collector that is not there.
  if (code === Code.Unavailable && (code !== connect.code || /^HTTP \d{3}/.test(connect.rawMessage))) {
    return {
      title: 'The collector does not answer',
      detail: connect.rawMessage,
      advice: 'See whether it runs and can be reached from here; then try again.',
      retry: true,
      code: Code[code],
    };
  }
  if (code === Code.Unavailable && /disk is full|no space left/i.test(connect.rawMessage)) {
    return {
      title: 'The collector cannot answer now: its disk is full',
      detail: connect.rawMessage,
      advice: 'Make room on the disk of the collector, or lower the limit of its store; then try again.',
      retry: true,
      code: Code[code],
    };
  }
  const [title, advice, retry] = SENTENCES[code] ?? ['Something went wrong', UNKNOWN_ADVICE, true];
  return { title, detail: connect.rawMessage, advice, retry, code: Code[code] };
}

/** The collector is older than the call; a server of files answers one that it does not know with HTTP. */
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
    throw trouble ? new TroubleError(trouble) : new DOMException('given up', 'AbortError');
  }
}
