// What went wrong, as a sentence, and what can be done about it.

import { Code, ConnectError } from '@connectrpc/connect';
import { ProfileError } from './profile';

export interface Trouble {
  /** What happened. */
  title: string;
  /** What the collector said; text from outside. */
  detail: string;
  /** What to do. */
  advice: string;
  /** Asking again may help. */
  retry: boolean;
  /** Word of the gRPC code. */
  code: string;
}

/** Code of a profile that the page's worker does not hold. */
export const NOT_HELD = 'not_held';

/** A profile that the page's worker was asked for is not there. */
export class NotHeldError extends Error {
  override name = 'NotHeldError';
}

/** Something whose trouble was told where it happened, in another thread. */
export class TroubleError extends Error {
  override name = 'TroubleError';
  constructor(readonly trouble: Trouble) {
    super(trouble.title);
  }
}

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
export function troubleOf(error: unknown): Trouble | undefined {
  if (error instanceof DOMException && error.name === 'AbortError') return undefined;
  if (error instanceof TroubleError) return error.trouble;
  if (error instanceof NotHeldError) {
    return {
      title: 'The profile is not in memory any more',
      detail: '',
      advice: 'The page loads it again. A capture cannot be loaded again: start a new one.',
      retry: false,
      code: NOT_HELD,
    };
  }
  if (error instanceof ProfileError) {
    return {
      title: 'The answer cannot be read',
      detail: error.message,
      advice: 'Load the page again; if it stays, the page and the collector are of different versions.',
      retry: true,
      code: 'bad_answer',
    };
  }
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
  const [title, advice, retry] = SENTENCES[code] ?? [
    'Something went wrong',
    'Try again; if it stays, report it with what is said here.',
    true,
  ];
  return { title, detail: connect.rawMessage, advice, retry, code: Code[code] };
}
