// The landing page: from what changed to the function, without typing.

import { describe, expect, test } from 'vitest';
import { SEEDED, param, settled, useSite } from './browser';

const site = useSite();

const scenario = (name: string) => `view=overview&query=${encodeURIComponent(`scenario="${name}"`)}`;

describe('the overview', () => {
  test('is what the page opens with, and says what changed', async () => {
    const page = await site.open('view=overview');
    await page.getByRole('region', { name: 'Services' }).waitFor();
    expect(await page.getByRole('link', { name: 'Overview', exact: true }).getAttribute('aria-current')).toBe('page');
    expect(await page.locator('.verdict-line').textContent()).toMatch(/cores on \d+ hosts/);
    await site.shot(page, 'overview');
    // The address of the landing page is empty, and stays so.
    await page.evaluate(() => (location.hash = ''));
    await settled(page);
    await page.getByRole('region', { name: 'Services' }).waitFor();
    expect(new URL(page.url()).hash).toBe('');
  });

  test('its chart is walked along by the keyboard, which zooms into a range of it', async () => {
    const page = await site.open('view=overview');
    await page.locator('.fleet-plot').focus();
    await page.keyboard.press('End');
    await page.locator('.fleet-plot .tip.under').waitFor();
    for (const key of ['Enter', 'ArrowLeft', 'ArrowLeft', 'Enter']) await page.keyboard.press(key);
    await page.waitForFunction(() => /from=20/.test(location.hash));
    expect(param(page, 'to')).toMatch(/^20/);
  });

  test.runIf(SEEDED)('says what fires, the worst first, and leads to its data in one click', async () => {
    const page = await site.open('view=overview');
    const alerts = page.getByRole('region', { name: 'Alerts' });
    await alerts.getByText('1 alert firing, 1 pending, 1 without data').waitFor();
    expect(await alerts.textContent()).toContain('Alert db-cpu has no value: the query failed');
    const first = alerts.getByRole('listitem').first();
    expect(await first.textContent()).toMatch(/api-cpu unit=api.service 9.80 cores \(limit 6.30 cores\) 2\d min/);
    await first.getByRole('link', { name: 'api-cpu' }).click();
    await page.waitForSelector('main.view-profile');
    expect(param(page, 'query')).toBe('unit="api.service"');
  });

  test.runIf(SEEDED)('does not call a fleet calm whose alerts are not known', async () => {
    const page = await site.open('view=overview');
    await page.getByRole('region', { name: 'Services' }).waitFor();
    await page.route('**/*AlertService/List', (route) => route.fulfill({ status: 503 }));
    await page.getByRole('button', { name: 'Refresh' }).click();
    await page.getByText('Whether alerts fire is not known').waitFor();
  });

  test.runIf(SEEDED)('leads to the comparison of what changed in one click', async () => {
    const page = await site.open('view=overview&services=comm');
    const first = page.locator('.verdict li a').first();
    const name = (await first.textContent()) ?? '';
    expect(name).toBe('api-server');
    await first.click();
    await page.waitForSelector('main.view-compare');
    expect(param(page, 'query')).toContain('api-server');
    // The time that differs, against the baseline.
    expect(Date.parse(param(page, 'from') ?? '')).toBeGreaterThan(Date.parse(param(page, 'bto') ?? ''));
    await page.waitForSelector('.changes tbody tr, .diff-table tbody tr, table tbody tr');
  });

  test.runIf(SEEDED)('leads from a function to where it stands in the comparison', async () => {
    const page = await site.open('view=overview&services=comm');
    const row = page.getByRole('link', { name: 'serde_json::de::visit_map' });
    await row.click();
    await page.waitForSelector('main.view-compare');
    expect(param(page, 'search')).toBe('serde_json::de::visit_map');
  });

  test.runIf(SEEDED)('tells of the deploy before a change, and marks what happened on its chart', async () => {
    const page = await site.open('view=overview&services=comm');
    const deploy = page.locator('.verdict li', { hasText: 'api-server' }).locator('.verdict-deploy');
    await deploy.waitFor();
    expect(await deploy.textContent()).toContain('image v42 (was v41)');
    const flags = page.locator('.fleet-plot .flag');
    // Four that pins, deploys and notes have, and two of alerts.
    expect(await flags.count()).toBe(6);
    await page.locator('.fleet-plot .flag.deploy button').focus();
    await page.locator('.fleet-plot .flag-tip', { hasText: 'on 6 hosts, found by the collector' }).waitFor();
  });

  test.runIf(SEEDED)('what a flag tells of fits a phone', async () => {
    const page = await site.open('view=overview&services=comm', { viewport: { width: 390, height: 844 } });
    const buttons = page.locator('.fleet-plot .flag button');
    await buttons.first().waitFor();
    for (const button of await buttons.all()) {
      await button.focus();
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
      const tip = await page.locator('.fleet-plot .flag:focus-within .flag-tip').boundingBox();
      expect(tip?.x).toBeGreaterThanOrEqual(0);
    }
  });

  test.runIf(SEEDED)('asks for another baseline and other services', async () => {
    const page = await site.open('view=overview');
    await page.getByLabel('Baseline', { exact: true }).selectOption('day');
    await page.waitForFunction(() => document.querySelector('.fleet-key')?.textContent?.includes('yesterday'));
    expect(param(page, 'baseline')).toBe('day');
    await page.getByLabel('Services by').selectOption('comm');
    await page.getByRole('link', { name: 'postgres', exact: true }).waitFor();
    expect(param(page, 'services')).toBe('comm');
  });

  test.runIf(SEEDED)('dragging over the chart looks at a part of it', async () => {
    const page = await site.open('view=overview');
    const box = await page.locator('.fleet-plot').boundingBox();
    if (!box) throw new Error('no chart');
    await page.mouse.move(box.x + box.width * 0.25, box.y + 40);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 40, { steps: 5 });
    await page.mouse.up();
    await page.waitForFunction(() => location.hash.includes('from='));
    const length = Date.parse(param(page, 'to') ?? '') - Date.parse(param(page, 'from') ?? '');
    expect(length / 60_000).toBeGreaterThan(13);
    expect(length / 60_000).toBeLessThan(17);
    expect(param(page, 'view')).toBe('overview');
  });

  test.runIf(SEEDED)('names what is throttled and what waits, with the limit and the time', async () => {
    const page = await site.open('view=overview');
    const trouble = page.getByRole('region', { name: 'Outliers and trouble' });
    await trouble.getByRole('heading', { name: 'Throttled by their CPU limits' }).waitFor();
    const lines = await trouble.locator('.outliers li').allTextContents();
    expect(
      lines.some((line) =>
        /got 10.* of the CPU time it wanted since \d.*: its limit of 0\.2 cores withheld/.test(line),
      ),
    ).toBe(true);
    expect(lines.some((line) => /had tasks waiting for a CPU 71.* of the time since \d/.test(line))).toBe(true);
    // What was the same in the baseline is counted, not listed.
    await trouble.getByText('1 more as in the baseline').waitFor();
    await page.locator('.verdict').getByText('8 cgroups throttled, 3 hosts under pressure').waitFor();
    await trouble.scrollIntoViewIfNeeded();
    await site.shot(page, 'overview-waiting');
    await trouble.locator('.outliers').nth(1).getByRole('link').first().click();
    await page.waitForSelector('main.view-profile');
    expect(param(page, 'query')).toContain('cgroup=');
  });

  test.runIf(SEEDED)('what is not known of throttling is not called none', async () => {
    const page = await site.open(scenario('young'));
    await page.getByText('Not known: no agent in this selection reports it.').waitFor();
    await page.getByText('Not known: no host in this selection reports it.').waitFor();
  });

  test.runIf(SEEDED)('time without data is neither zero nor a change', async () => {
    const page = await site.open(scenario('young'));
    await page.locator('.fleet-plot .spark-dark').first().waitFor();
    expect(await page.locator('.fleet-none').first().textContent()).toBe('no data');
    await site.shot(page, 'overview-young');
  });

  test.runIf(SEEDED)('a calm fleet is told to be calm', async () => {
    const page = await site.open(scenario('calm'));
    await page.getByText('No significant change').waitFor();
    expect(await page.locator('.verdict li').count()).toBe(0);
  });

  test.runIf(SEEDED)('hostile names are text', async () => {
    const page = await site.open(scenario('hostile'));
    await page.getByRole('region', { name: 'Services' }).waitFor();
    expect(await page.evaluate(() => (window as unknown as { __pwned?: number }).__pwned)).toBeUndefined();
    expect(await page.locator('.overview-table script').count()).toBe(0);
  });

  test('is usable in the dark and on a phone', async () => {
    const dark = await site.open('view=overview', { colorScheme: 'dark' });
    await dark.getByRole('region', { name: 'Services' }).waitFor();
    await site.shot(dark, 'overview-dark');
    const phone = await site.open('view=overview', { viewport: { width: 390, height: 844 } });
    await phone.getByRole('region', { name: 'Services' }).waitFor();
    expect(await phone.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
    await site.shot(phone, 'overview-phone');
    const wide = await site.open('view=overview', { viewport: { width: 1600, height: 1000 } });
    for (const [name, one] of [
      ['dark', dark],
      ['phone', phone],
      ['wide', wide],
    ] as const) {
      await one.getByRole('heading', { name: 'Throttled by their CPU limits' }).scrollIntoViewIfNeeded();
      await site.shot(one, `overview-waiting-${name}`);
    }
    const tree = await site.open('view=cgroups');
    await tree.getByRole('columnheader', { name: 'Throttled' }).waitFor();
    await site.shot(tree, 'cgroups-throttled');
  });
});
