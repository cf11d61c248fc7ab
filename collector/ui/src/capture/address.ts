// Where a kept capture is: its number in the page's address, and its files at the collector.

/** A capture of which the collector has the profile, and which of its profiles is meant. */
export interface Kept {
  id: string;
  past: boolean;
}

/** The number that a text of the address is; undefined: it is none. */
export function numberOf(text: string): bigint | undefined {
  return /^[1-9]\d{0,18}$/.test(text) ? BigInt(text) : undefined;
}

/** Where the collector serves a format of a kept capture. */
export function captureUrl({ id, past }: Kept, extension: string): string {
  const params = new URLSearchParams({ id });
  if (past) params.set('past', '1');
  return `api/capture.${extension}?${params}`;
}
