// What went wrong, as a sentence, and what can be done about it. What a collector says of it:
// `collectorErrors.ts`.

import { ProfileError } from './columns';

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

/** What to do where nobody knows the cause. */
export const UNKNOWN_ADVICE = 'Try again; if the error stays, report it with this message.';

/** Undefined for what was given up on purpose. */
export function troubleOf(error: unknown): Trouble | undefined {
  if (error instanceof DOMException && error.name === 'AbortError') return undefined;
  if (error instanceof TroubleError) return error.trouble;
  if (error instanceof NotHeldError) {
    return {
      title: 'The profile is no longer in memory',
      detail: '',
      advice: 'The page reloads it. A capture that the collector does not keep is lost: start a new one.',
      retry: false,
      code: NOT_HELD,
    };
  }
  if (error instanceof ProfileError) {
    return {
      title: 'The answer cannot be read',
      detail: error.message,
      advice: 'Reload the page. If the error stays, the page and the collector have different versions.',
      retry: true,
      code: 'bad_answer',
    };
  }
  return {
    title: 'Something went wrong',
    detail: error instanceof Error ? error.message : String(error),
    advice: UNKNOWN_ADVICE,
    retry: true,
    code: 'Unknown',
  };
}
