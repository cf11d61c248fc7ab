// Against the collector's own binary, with the data of collector/tests/server/page.rs: three hosts,
// an hour of windows, and a function that was replaced by another 25 minutes ago.

import type { Page } from 'playwright-core';
import { beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { connect } from './agent';
import { BASE_URL, SEEDED, drawn, levelPoint, param, settled, useSite } from './browser';

/** gRPC port of the collector. */
const GRPC_URL = process.env.GRPC_URL ?? '';

const site = useSite();
const HOSTILE = `query=${encodeURIComponent('host="db-1"')}`;
const matched = /[\d.]+ % in [\d,]+ frames?/;

describe.skipIf(SEEDED)('a real collector', () => {
  test('shows its hosts, their stacks and their containers', async () => {
    const page = await site.open();
    await drawn(page);
    await settled(page);
    expect(await page.locator('.legend tbody tr').count()).toBe(3);
    for (const name of ['handle', 'parse', 'xxhash'])
      expect(await page.locator('.top tbody .cell-name', { hasText: name }).count()).toBeGreaterThan(0);
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
    const output = (what: RegExp) =>
      page.waitForFunction(
        (source) => new RegExp(source).test(document.querySelector('.search output')?.textContent ?? ''),
        what.source,
      );
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
    expect(await badge('crc32')).toBe('gone');
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
    for (const one of [page, cgroups])
      expect(await one.evaluate(() => (window as never as { __pwned?: number }).__pwned)).toBeUndefined();
    await site.shot(page, 'real-hostile');
  });

  test('frame filters reach containers and files', async () => {
    const page = await site.open(`view=cgroups&frame=${encodeURIComponent('keep:^xxhash$')}`);
    await page.waitForSelector('.tree tbody tr');
    expect(await page.locator('.tree').textContent()).not.toContain('evil');
    const filtered = await page.request.get(
      `${BASE_URL}/api/profile.folded?frame=${encodeURIComponent('keep:^xxhash$')}`,
    );
    expect(filtered.status()).toBe(200);
    expect(await filtered.text()).toMatch(/^main;handle;xxhash \d+\n$/);
  });

  describe('captures', () => {
    let why = '';
    beforeAll(async () => {
      const answer = await fetch(`${BASE_URL}/fleetprof.collector.v1.CaptureService/List`, {
        method: 'POST',
        headers: { 'content-type': 'application/grpc-web+proto' },
        body: new Uint8Array(5),
      });
      why = !GRPC_URL
        ? 'GRPC_URL does not say where the collector takes agents'
        : !answer.ok
          ? 'this collector does not capture'
          : '';
    });
    beforeEach(({ skip }) => skip(why !== '', why));

    const start = async (page: Page, duration: string) => {
      await page.getByRole('button', { name: 'Capture …' }).click();
      await page.locator('dialog [name=duration]').fill(duration);
      await page.locator('dialog [name=reason]').fill('a test of the page');
      await page.locator('dialog button[type=submit]').click();
    };

    test('without agents a sentence says so', async () => {
      const page = await site.open();
      await drawn(page);
      await start(page, '1s');
      await page.locator('dialog .trouble', { hasText: 'No host to capture on' }).waitFor();
      await site.shot(page, 'real-capture-nobody');
    });

    test('reach agents, and come back as a profile with times, in part', async () => {
      const agents = [connect(GRPC_URL, 'web-1'), connect(GRPC_URL, 'web-2', 'this machine has no `cpu-clock`')];
      try {
        for (const agent of agents) await agent.welcomed;
        const page = await site.open();
        await drawn(page);
        await start(page, '2s');
        await page.waitForSelector('.capture-view');
        await drawn(page);
        expect(await page.locator('.capture-hosts strong').textContent()).toContain('1 of 2 hosts answered: 1 failed');
        expect(await page.locator('.capture-hosts').textContent()).toContain(
          '1 host matches and is not connected: db-1',
        );
        expect(await page.locator('.heat-box canvas').getAttribute('data-columns').then(Number)).toBeGreaterThan(1);
        await page.locator('.top tbody .cell-name', { hasText: 'metrics::flush' }).first().waitFor();
        await page.getByRole('button', { name: 'Hosts', exact: true }).click();
        expect(await page.locator('.host-lines').textContent()).toContain('this machine has no `cpu-clock`');
        expect(agents[0].captures[0]).toMatchObject({
          durationNs: 2_000_000_000n,
          event: 'cpu-clock',
          reason: 'a test of the page',
        });
        await site.shot(page, 'real-capture');
        await page.getByRole('link', { name: 'All captures' }).click();
        await page
          .locator('tr', { hasText: 'a test of the page' })
          .first()
          .getByText('1 of 2 hosts: 1 failed')
          .waitFor();
        await site.shot(page, 'real-captures');
      } finally {
        for (const agent of agents) agent.leave();
      }
    });

    test('end when they are told to, with what there is', async () => {
      const agent = connect(GRPC_URL, 'web-1');
      try {
        await agent.welcomed;
        const page = await site.open(`query=${encodeURIComponent('host="web-1"')}`);
        await drawn(page);
        await start(page, '10m');
        await page.waitForFunction(() =>
          /running/.test(document.querySelector('dialog .host-lines tbody')?.textContent ?? ''),
        );
        await page.getByRole('button', { name: 'Stop and keep' }).click();
        await page.waitForSelector('.capture-view');
        await drawn(page);
        expect(await page.locator('.capture-hosts strong').textContent()).toContain('1 of 1 host answered');
      } finally {
        agent.leave();
      }
    });
  });

  test('there is one page, and nothing below it', async () => {
    const page = await site.open();
    for (const path of ['/a/app.js', '/hosts', '/deep/link/'])
      expect((await page.request.get(`${BASE_URL}${path}`)).status()).toBe(404);
  });
});
