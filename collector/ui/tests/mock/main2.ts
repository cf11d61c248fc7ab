// Runs the mock for somebody who works on the page: `npm run mock`, then `npm run dev`, or the
// address it prints for the built page.

import { fileURLToPath } from 'node:url';
import { startMock } from './server';

const mock = await startMock(fileURLToPath('file:///root/w/me/collector/ui/node_modules/.cache/e2e-dist/'), Number(process.env.PORT ?? 7071));
console.log(`mock collector at ${mock.url}`);
