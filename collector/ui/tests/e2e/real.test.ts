// Against the collector's own binary, with the data of collector/tests/server/page.rs: three hosts, an
// hour of windows, and a function that was replaced by another 25 minutes ago.

import { describe, expect, test } from 'vitest';
import { BASE_URL, SEEDED, drawn, levelPoint, param, settled, useSite } from './browser';

const site = useSite();
const HOSTILE = `query=${encodeURIComponent('host="db-1"')}`;
const matched = /[\d.]+ % in [\d,]+ frames?/;

describe.skipIf(SEEDED)('a real collector', () => {
  test('shows its hosts, their stacks and their containers', async () => {
    const page = await site.open();
    await drawn(page);
    await settled(page);
    expect(await page.locator('.legend tbody tr').count()).toBe(3);
    for (const name of ['handle', 'parse', 'xxhash']) expect(await page.locator('.top tbody .cell-name', { hasText: name }).count()).toBeGreaterThan(0);
    await site.shot(page, 'real');
    const hosts = await site.open('view=hosts');
    await hosts.waitForSelector('.page tbody tr');
    expect(await hosts.locator('.page tbody tr').count()).toBe(3);
    const cgroups = await site.open('view=cgroups');
    await cgroups.getByText('web.service').first().waitFor();
  });

  test('search: a text, a pattern, and a pattern that takes for ever', async () => {
    const page = await site.open();
    await drawn(page);
    const output = (what: RegExp) => page.waitForFunction((source) => new RegExp(source).test(document.querySelector('.search output')?.textContent ?? ''), what.source);
    await page.getByLabel('Search functions and modules').fill('XXHASH');
    await output(matched);
    await page.evaluate(() => (location.hash = 'regex=1&search=^pars.$'));
    await output(matched);
    await page.evaluate((text) => (location.hash = `regex=1&search=${encodeURIComponent(text)}`), '((.+)+)+!');
    await output(/takes too long/);
    await page.evaluate(() => (location.hash = 'search=handle'));
    await output(matched);
  });

  test('zoom, and a link that shows the same', async () => {
    const page = await site.open();
    await drawn(page);
    const point = await levelPoint(page, 2, 0.2);
    await page.mouse.click(point.x, point.y);
    await page.waitForSelector('.crumbs');
    expect(param(page, 'zoom')).toBeTruthy();
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await drawn(other);
    await other.waitForSelector('.crumbs');
    expect(await other.locator('.crumbs').textContent()).toBe(await page.locator('.crumbs').textContent());
  });

  test('a brush over the chart zooms into the time', async () => {
    const page = await site.open();
    await drawn(page);
    const box = await page.locator('.u-over').boundingBox();
    if (!box) throw new Error('no chart');
    await page.mouse.move(box.x + box.width * 0.4, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.6, box.y + 50, { steps: 5 });
    await page.mouse.up();
    await page.waitForFunction(() => /from=20/.test(location.hash));
    await settled(page);
    await drawn(page);
  });

  test('a comparison shows what vanished and what is new', async () => {
    const page = await site.open('view=compare&from=now-20m&to=now-2m&bfrom=now-50m&bto=now-30m');
    await drawn(page);
    await page.waitForSelector('.top tbody tr');
    const badge = (name: string) => page.locator('.top tbody tr', { hasText: name }).locator('.badge').textContent();
    expect(await badge('crc32')).toBe('vanished');
    expect(await badge('xxhash')).toBe('new');
    await site.shot(page, 'real-compare');
  });

  test('hostile names are text', async () => {
    const page = await site.open(HOSTILE);
    await drawn(page);
    const seen = (await page.locator('.top tbody .cell-name').allTextContents()).join('\n');
    expect(seen).toContain('<script>window.__pwned = 1</script>');
    expect(seen).toContain('\\x1b[31mred');
    expect(seen).toContain('\\u{202e}');
    expect(seen).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u202e]/);
    const cgroups = await site.open(`view=cgroups&${HOSTILE}`);
    await cgroups.waitForSelector('.tree tbody tr');
    expect(await cgroups.locator('.tree').textContent()).toContain('<img src=x onerror=window.__pwned=1>');
    for (const one of [page, cgroups]) expect(await one.evaluate(() => (window as never as { __pwned?: number }).__pwned)).toBeUndefined();
    await site.shot(page, 'real-hostile');
  });

  test('frame filters reach containers and files', async () => {
    const page = await site.open(`view=cgroups&frame=${encodeURIComponent('keep:^xxhash$')}`);
    await page.waitForSelector('.tree tbody tr');
    expect(await page.locator('.tree').textContent()).not.toContain('evil');
    const filtered = await page.request.get(`${BASE_URL}/api/profile.folded?frame=${encodeURIComponent('keep:^xxhash$')}`);
    expect(filtered.status()).toBe(200);
    expect(await filtered.text()).toMatch(/^main;handle;xxhash \d+\n$/);
  });

  test('there is one page, and nothing below it', async () => {
    const page = await site.open();
    for (const path of ['/a/app.js', '/hosts', '/deep/link/']) expect((await page.request.get(`${BASE_URL}${path}`)).status()).toBe(404);
  });
});
