// Pins: their list, one of them as others open it, its files and where it leads; and what happened
// as flags on charts.

import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { SEEDED, drawn, param, settled, useSite } from './browser';

const site = useSite();
const pwned = (page: Page) => page.evaluate(() => (window as never as { __pwned?: number }).__pwned);
const overflow = (page: Page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);

describe.skipIf(!SEEDED)('the list of pins', () => {
  test('tells what fired, where and why, and of what time', async () => {
    const page = await site.open('view=overview');
    await page.getByRole('link', { name: 'Pins' }).click();
    await page.waitForSelector('.view-pins tbody tr');
    const rows = page.locator('.view-pins tbody tr');
    expect(await rows.count()).toBe(2);
    expect(await rows.first().textContent()).toMatch(/web-3.*api-throttled.*throttled 41 %.*7 min/);
    await site.shot(page, 'pins');
    await page.getByText('In the range').click();
    await page.waitForFunction(() => document.querySelectorAll('.view-pins tbody tr').length === 1);
    await page.getByLabel('Filter pins').fill('nothing has this');
    await page.getByText('No matching pins').waitFor();
    expect(await pwned(page)).toBeUndefined();
  });
});

describe.skipIf(!SEEDED)('a pin', () => {
  test('opens by its link with graph, table and heat map, and its capture too', async () => {
    const page = await site.open('view=pins&pin=12');
    await drawn(page);
    await page.waitForSelector('.heat canvas, canvas.heat, .heat-box canvas, [class*=heat] canvas');
    expect(await page.locator('.pin-facts').textContent()).toContain('throttled 41 %');
    await site.shot(page, 'pin');
    await page.getByText('Captured').click();
    await drawn(page);
    expect(param(page, 'part')).toBe('captured');
    await settled(page);
    expect(site.mock?.events.asked.slice(-2)).toEqual([
      [12n, false],
      [12n, true],
    ]);
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await drawn(other);
    expect(site.mock?.events.asked.at(-1)).toEqual([12n, true]);
  });

  test('leads to its time in the profile, to the day before, and to files', async () => {
    const page = await site.open('view=pins&pin=12');
    await drawn(page);
    await page.getByRole('button', { name: 'Download' }).click();
    const link = page.getByRole('link', { name: /pprof/ });
    expect(await link.getAttribute('href')).toBe('api/pin.pprof?id=12');
    await page.keyboard.press('Escape');
    const href = (name: RegExp) => page.getByRole('link', { name }).getAttribute('href');
    const profile = new URLSearchParams((await href(/Open this time/))?.slice(1));
    expect(profile.get('query')).toBe('host="web-3", cgroup^="/system.slice/api.service"');
    const compare = new URLSearchParams((await href(/a day before/))?.slice(1));
    const ms = (name: string) => Date.parse(compare.get(name) ?? '');
    expect([ms('from') - ms('bfrom'), ms('to') - ms('from')]).toEqual([86_400_000, 7 * 60_000]);
    await page.getByRole('link', { name: /Open this time/ }).click();
    await page.waitForSelector('.chart-panel');
    expect(param(page, 'pin')).toBeNull();
  });

  test('that is not there says so', async () => {
    for (const pin of ['99', '<script>', '99999999999999999999999']) {
      const page = await site.open(`view=pins&pin=${encodeURIComponent(pin)}`);
      await page.getByText('Pin not found').waitFor();
    }
  });

  test('has hostile names written out', async () => {
    const page = await site.open('view=pins&pin=11');
    await drawn(page);
    expect(await pwned(page)).toBeUndefined();
    expect(await overflow(page)).toBeLessThanOrEqual(0);
  });
});

describe.skipIf(!SEEDED)('flags', () => {
  test('mark pins, deploys and notes on the chart, and tell of them by pointer and by key', async () => {
    const page = await site.open('view=profile&from=now-1h&to=now');
    await drawn(page);
    await page.waitForSelector('.flags .flag');
    expect(await page.locator('.flags .flag').count(), 'pin, deploy, two notes, and two alerts').toBe(6);
    await page.locator('.flag.pin > button').hover();
    await page.getByText('throttled 41 %').waitFor();
    await site.shot(page, 'flags');
    await page.locator('.flag.deploy > button').focus();
    await page.getByText('image v42 (was v41)').waitFor();
    await page.getByText('on 6 hosts, found by the collector').waitFor();
    const links = page.locator('.flag-tip a[target=_blank]');
    expect(await links.count(), 'a script is no link').toBe(1);
    expect(await links.getAttribute('rel')).toContain('noreferrer');
    expect(await page.locator('.flag-tip').evaluateAll((all) => all.map((one) => one.innerHTML).join())).not.toContain(
      'javascript:',
    );
    await page.locator('.flag.pin > button').focus();
    await page.getByRole('link', { name: 'Open the pin' }).click();
    await drawn(page);
    expect(param(page, 'pin')).toBe('12');
    expect(await pwned(page)).toBeUndefined();
  });

  test('are missing, and nothing else is, where they cannot be had', async () => {
    const { mock } = site;
    if (!mock) return;
    mock.events.broken = true;
    mock.alerts.none = true;
    try {
      const page = await site.open('view=profile&from=now-1h&to=now');
      await drawn(page);
      await settled(page);
      expect(await page.locator('.flag').count()).toBe(0);
      expect(await page.locator('.trouble').count()).toBe(0);
    } finally {
      mock.events.broken = false;
      mock.alerts.none = false;
    }
  });
});

describe.skipIf(!SEEDED)('for everyone', () => {
  test('dark, light and on a phone, with targets that can be hit and names that can be read', async () => {
    for (const [name, options] of [
      ['dark', { colorScheme: 'dark' }],
      ['light', {}],
      ['phone', { viewport: { width: 390, height: 844 } }],
    ] as const) {
      for (const [what, address] of [
        ['pins', 'view=pins'],
        ['pin', 'view=pins&pin=12'],
        ['flags', 'view=profile&from=now-1h&to=now'],
      ]) {
        const page = await site.open(address, options);
        await (what === 'pins' ? page.waitForSelector('.view-pins tbody tr') : drawn(page));
        if (what === 'flags') await page.waitForSelector('.flag');
        await settled(page);
        expect(await overflow(page), `${name} ${what}`).toBeLessThanOrEqual(0);
        const small = await page.locator('.flag > button, .pin-acts a').evaluateAll((all) =>
          all
            .map((one) => one.getBoundingClientRect())
            .filter((box) => box.height > 0 && Math.min(box.width, box.height) < 16)
            .map((box) => `${box.width}×${box.height}`),
        );
        expect(small, `${name} ${what}`).toEqual([]);
        const nameless = await page
          .locator('main button, main a')
          .evaluateAll((all) =>
            all
              .filter(
                (one) => !(one.getAttribute('aria-label') || one.textContent?.trim() || one.getAttribute('title')),
              )
              .map((one) => one.outerHTML.slice(0, 80)),
          );
        expect(nameless, `${name} ${what}`).toEqual([]);
        await site.shot(page, `${what}-${name}`);
      }
    }
  });
});
