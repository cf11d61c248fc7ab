// Text from strangers, made fit for showing: what cannot be seen, or moves what is seen, is written
// out.
//
// Function names, comms and cgroup paths are chosen by whoever runs code on a machine of the fleet.

/**
 * Longest text put into one element or one line of canvas; the rest is counted. Unit: UTF-16 units.
 */
export const TEXT_LEN_MAX = 600;

// C0, DEL, C1; soft hyphen; Arabic letter mark; Hangul fillers; Mongolian vowel separator;
// zero-width and bidirectional controls; separators; word joiner and invisible operators; BOM;
// annotation characters; tags; variation selectors of the supplement; lone surrogates and
// non-characters.
const HOSTILE =
  /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u115f\u1160\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\ufff9-\ufffb\ufdd0-\ufdef\ufffe\uffff\u{e0000}-\u{e01ef}]|\p{Cs}/gu;

function code(found: string): string {
  switch (found) {
    case '\n':
      return '\\n';
    case '\r':
      return '\\r';
    case '\t':
      return '\\t';
  }
  const point = found.codePointAt(0) ?? 0;
  return point < 0x80 ? `\\x${point.toString(16).padStart(2, '0')}` : `\\u{${point.toString(16)}}`;
}

/** The text with hostile characters written as `\n`, `\xHH` or `\u{H…}`. Not reversible. */
export function printable(text: string): string {
  return text.replace(HOSTILE, code);
}

/** As {@link printable}, cut after `max` characters with a note of how many there are. */
export function shown(text: string, max = TEXT_LEN_MAX): string {
  if (text.length <= max) return printable(text);
  return `${printable(text.slice(0, max))}… (${text.length.toLocaleString('en')} characters)`;
}

/** As {@link printable}, cut hard: for places where the whole is a click away. */
export function clipped(text: string, max = 240): string {
  return text.length <= max ? printable(text) : `${printable(text.slice(0, max))}…`;
}
