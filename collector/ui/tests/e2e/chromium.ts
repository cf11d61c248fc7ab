// Which Chromium tests run, first the one without a window, which takes half as long, and where
// their pictures go.

import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

export const CHROMIUM = [
  process.env.CHROMIUM,
  '/usr/bin/chromium-headless-shell',
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
].find((path) => path && existsSync(path));
export const OUT = fileURLToPath(new URL('./out', import.meta.url));
