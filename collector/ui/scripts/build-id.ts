// Names a build by what it is made of, so that the same sources give the same name.

import { createHash } from 'node:crypto';
import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const ROOT = fileURLToPath(new URL('..', import.meta.url));

/** A hash of the page's sources, generated ones too, and of the versions of its packages. */
export function buildId(): string {
  const sources = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
    .filter((name) => /\.tsx?$/.test(name))
    .map((name) => `src/${name}`)
    .sort();
  const hash = createHash('sha256');
  for (const name of [...sources, 'package-lock.json'])
    hash
      .update(`${name}\0`)
      .update(readFileSync(join(ROOT, name)))
      .update('\0');
  return hash.digest('hex').slice(0, 16);
}
