// Leaves the JSON of protocol messages out of the page: it speaks gRPC-Web in binary alone. The
// client would use it only if it were told to speak JSON, so nothing else can leave it out.

import type { Plugin } from 'vite';

const MODULE = /@bufbuild\/protobuf\/dist\/esm\/(to|from)-json\.js$/;

export function withoutJson(): Plugin {
  return {
    name: 'without-json',
    enforce: 'pre',
    load(id) {
      const way = MODULE.exec(id)?.[1];
      if (way === undefined) return undefined;
      // What the client imports of it. Whoever calls it after all is told.
      return `const none = () => { throw new Error('the page has no JSON of messages'); };
export { none as ${way}Json, none as ${way}JsonString };`;
    },
  };
}
