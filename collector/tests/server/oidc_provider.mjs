// A certified provider of OpenID Connect for the test of logins: `oidc-provider`, with its own
// pages to log in. Whoever comes is in the groups that stand in their name: `anna+team-a+all`.
// Prints its port when it listens.
//
// node oidc_provider.mjs DIRECTORY REDIRECT-ADDRESS full|short: the third says whether ID tokens
// have all claims, or leave them to the userinfo address.

import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const [directory, redirect, tokens] = process.argv.slice(2);
const entry = `${directory}/node_modules/oidc-provider/lib/index.js`;
const { Provider } = await import(pathToFileURL(entry).href);

const server = createServer();
await new Promise((listening) => server.listen(0, '127.0.0.1', listening));
const { port } = server.address();

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [
    {
      client_id: 'fleetprof',
      client_secret: 'a secret: with / and %',
      redirect_uris: [redirect],
      response_types: ['code'],
      grant_types: ['authorization_code'],
    },
  ],
  claims: { openid: ['sub'], profile: ['preferred_username', 'groups'] },
  conformIdTokenClaims: tokens === 'short',
  cookies: { keys: ['only a test'] },
  features: { devInteractions: { enabled: true } },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, preferred_username: id.split('+')[0], groups: id.split('+').slice(1) }),
  }),
  pkce: { required: () => true },
});
server.on('request', provider.callback());
console.log(port);
