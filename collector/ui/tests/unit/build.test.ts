// What the build leaves out.

import { createRequire } from 'node:module';
import { expect, test } from 'vitest';
import { withoutJson } from '../../scripts/without-json';

const load = withoutJson().load as (id: string) => string | undefined;
const package_ = createRequire(import.meta.url)
  .resolve('@bufbuild/protobuf')
  .replace(/dist\/.*/, 'dist/esm');

test('the JSON of messages is left out, from the files that have it, and nothing else', async () => {
  for (const way of ['to', 'from'] as const) {
    const path = `${package_}/${way}-json.js`;
    const names = Object.keys((await import(path)) as object);
    expect(names).toEqual(expect.arrayContaining([`${way}Json`, `${way}JsonString`]));
    expect(load(path)).toContain(`${way}JsonString`);
  }
  expect(load(`${package_}/to-binary.js`)).toBeUndefined();
});
