// Names on their way between threads: each text once, and columns of numbers that are transferred.

import type { NameTable } from '../flame/names';

/** Names as the worker sends them: columns of positions in `strings`. */
export interface PackedNames {
  strings: string[];
  text: Uint32Array;
  module: Uint32Array;
  file: Uint32Array;
  spelled: Uint32Array;
  line: Uint32Array;
  kind: Uint8Array;
  unnamed: Uint8Array;
}

export function packNames(names: NameTable): PackedNames {
  const strings: string[] = [];
  const known = new Map<string, number>();
  const place = (text: string): number => {
    const found = known.get(text);
    if (found !== undefined) return found;
    known.set(text, strings.length);
    return strings.push(text) - 1;
  };
  const places = (texts: readonly string[]) => Uint32Array.from(texts, place);
  return {
    text: places(names.text),
    module: places(names.module),
    file: places(names.file),
    spelled: places(names.spelled),
    strings,
    line: Uint32Array.from(names.line),
    kind: Uint8Array.from(names.kind),
    unnamed: Uint8Array.from(names.unnamed),
  };
}

export function unpackNames(packed: PackedNames): NameTable {
  const texts = (places: Uint32Array) => Array.from(places, (place) => packed.strings[place]);
  return {
    length: packed.text.length,
    text: texts(packed.text),
    module: texts(packed.module),
    file: texts(packed.file),
    spelled: texts(packed.spelled),
    line: packed.line,
    kind: packed.kind,
    unnamed: packed.unnamed,
  };
}
