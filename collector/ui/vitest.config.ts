// Tests of what needs no browser.

import { defineConfig } from 'vitest/config';

export default defineConfig({
  // A loaded machine is slow, not wrong.
  test: { include: ['tests/unit/**/*.test.ts'], environment: 'node', testTimeout: 60_000 },
});
