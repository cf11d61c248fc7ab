// How much of the page is drawn for what somebody does: components are counted, in a build of the
// same sources that keeps their names and counts each call.

import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Plugin, build } from 'vite';
import { SEEDED, drawn, settled, useSite } from './browser';

const ROOT = fileURLToPath(new URL('../..', import.meta.url));
const dist = mkdtempSync(join(tmpdir(), 'fleetprof-ui-renders-'));

/** Before the page starts: each component that is called is counted by its name. */
const COUNTER = `
import { options } from 'preact';
globalThis.__renders = new Map();
const before = options.__r;
options.__r = (vnode) => {
  const name = vnode.type.name || 'anonymous';
  globalThis.__renders.set(name, (globalThis.__renders.get(name) ?? 0) + 1);
  before?.(vnode);
};
`;

const counting: Plugin = {
  name: 'count-renders',
  enforce: 'pre',
  transform: (code, id) => (/\/src\/main\.tsx$/.test(id) ? COUNTER + code : undefined),
};

beforeAll(async () => {
  await build({
    root: ROOT,
    configFile: join(ROOT, 'vite.config.ts'),
    plugins: [counting],
    build: { outDir: dist, emptyOutDir: true, minify: false },
    logLevel: 'error',
  });
}, 120_000);
afterAll(() => rmSync(dist, { recursive: true, force: true }));

const site = useSite(dist);

/** What is drawn while something is done, by component. */
async function renders(page: Page, act: () => Promise<void>): Promise<Map<string, number>> {
  // Two frames: what was under way is done.
  const rest = () =>
    page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
  await settled(page);
  await rest();
  await page.evaluate(() => (globalThis as never as { __renders: Map<string, number> }).__renders.clear());
  await act();
  await settled(page);
  await rest();
  return new Map(await page.evaluate(() => [...(globalThis as never as { __renders: Map<string, number> }).__renders]));
}

const sum = (counts: Map<string, number>) => [...counts.values()].reduce((total, count) => total + count, 0);

const record = (what: string, counts: Map<string, number>) =>
  console.log(
    `${what}: ${sum(counts)} components drawn: ${[...counts]
      .sort((left, right) => right[1] - left[1])
      .slice(0, 12)
      .map(([name, count]) => `${name} ${count}`)
      .join(', ')}`,
  );

describe.skipIf(!SEEDED)('a key draws what shows it', () => {
  test('in the search of the graph', async () => {
    const page = await site.open();
    await drawn(page);
    const field = page.getByLabel('Search functions and modules');
    await field.pressSequentially('ma');
    const counts = await renders(page, () => field.press('l'));
    record('a key in the search', counts);
    for (const other of ['App', 'Head', 'ProfilePage', 'ChartPanel', 'FlamePanel', 'TopTable', 'SortedTable', 'Name'])
      expect([other, counts.get(other) ?? 0]).toEqual([other, 0]);
    expect(counts.get('SearchBox')).toBeLessThanOrEqual(2);
    expect(sum(counts)).toBeLessThanOrEqual(30);
  });

  test('in the filter of the table', async () => {
    const page = await site.open();
    await drawn(page);
    const field = page.getByLabel('Filter rows of the table');
    await field.pressSequentially('ma');
    const counts = await renders(page, () => field.press('l'));
    record('a key in the filter of the table', counts);
    for (const other of ['App', 'Head', 'ProfilePage', 'ChartPanel', 'FlamePanel', 'FlameGraph', 'TopTable'])
      expect([other, counts.get(other) ?? 0]).toEqual([other, 0]);
  });

  test.each([
    ['hosts', 'Filter hosts', 'web'],
    ['cgroups', 'Filter cgroups', 'ngi'],
    ['collector', 'Filter counters', 'col'],
  ])('in the filter of %s', async (view, label, text) => {
    const page = await site.open(`view=${view}`);
    const field = page.getByLabel(label);
    await field.pressSequentially(text.slice(0, 2));
    const counts = await renders(page, () => field.press(text[2]));
    record(`a key in the filter of ${view}`, counts);
    for (const other of ['App', 'Head', 'TimePicker', 'QueryBar', 'Answer'])
      expect([other, counts.get(other) ?? 0]).toEqual([other, 0]);
  });

  test('in the selector, until it is sent', async () => {
    const page = await site.open();
    await drawn(page);
    const field = page.getByRole('combobox', { name: 'Selector' });
    await field.pressSequentially('ho');
    const counts = await renders(page, () => field.press('s'));
    record('a key in the selector', counts);
    for (const other of ['App', 'ProfilePage', 'QueryBar']) expect([other, counts.get(other) ?? 0]).toEqual([other, 0]);
  });

  test('choosing how frames are coloured draws the marks of the table, and leaves the chart alone', async () => {
    const page = await site.open();
    await drawn(page);
    const counts = await renders(page, async () => {
      await page.getByLabel('Colours').selectOption('module');
    });
    record('another colouring', counts);
    for (const other of ['App', 'ProfilePage', 'ChartPanel'])
      expect([other, counts.get(other) ?? 0]).toEqual([other, 0]);
    expect(counts.get('SortedTable')).toBe(1);
  });
});
