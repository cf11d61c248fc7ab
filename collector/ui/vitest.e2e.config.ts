// Tests of the page in a headless Chromium, against the mock or, with BASE_URL, a real collector.

import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    include: ['tests/e2e/**/*.test.ts'],
    environment: 'node',
    // Each file has a browser and a server of its own, and mostly waits for them.
    maxWorkers: 3,
    // A loaded machine is slow, not wrong.
    testTimeout: 240_000,
    hookTimeout: 60_000,
    // What fails beside others runs once more, and is shown as a retry; see tests/run.
    retry: Number(process.env.E2E_RETRY ?? 0),
    expect: { poll: { timeout: 120_000 } },
    // The runner sets BASE_URL to a path of its own in its workers.
    env: { E2E_BASE_URL: process.env.BASE_URL ?? '' },
  },
});
