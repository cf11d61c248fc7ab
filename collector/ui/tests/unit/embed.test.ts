// What an embedded panel is, and that nothing in it can change anything.

import { existsSync, readFileSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

const SRC = fileURLToPath(new URL('../../src', import.meta.url));

/** Files of the page that a file needs, itself included: those that are only types do not count. */
function needed(file: string, seen = new Set<string>()): Set<string> {
  if (seen.has(file)) return seen;
  seen.add(file);
  const text = readFileSync(file, 'utf8');
  for (const [, names, from] of text.matchAll(/^(?:import|export) (?!type )([^;]*?from )?'(\.[^']+)'/gm)) {
    if (names && /^\{(\s*type [^,}]+,?)+\s*\} from $/.test(names)) continue;
    const path = resolve(dirname(file), from);
    const found = [path, `${path}.ts`, `${path}.tsx`].find((one) => /\.tsx?$/.test(one) && existsSync(one));
    if (found) needed(found, seen);
  }
  return seen;
}

describe('an embedded panel', () => {
  const files = [...needed(join(SRC, 'embed/Embedded.tsx'))].map((file) => file.slice(SRC.length + 1));

  test('needs the graph, and the list is not empty by mistake', () => {
    expect(files).toContain('flame/FlamePanel.tsx');
    expect(files).toContain('query/client.ts');
  });

  test('has no part of the page that changes something at the collector', () => {
    const changing = files.filter((file) => /^(capture\/(client|CaptureDialog|session)|incidents|views)/.test(file));
    expect(changing).toEqual([]);
  });
});
