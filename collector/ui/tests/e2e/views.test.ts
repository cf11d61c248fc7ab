// Saved views and snapshots: a name for an address, and a link that shows the same when its data
// is gone.

import { beforeEach, describe, expect, test } from 'vitest';
import { SEEDED, drawn, param, useSite } from './browser';

const site = useSite();
const PHONE = { width: 390, height: 844 };

describe.skipIf(!SEEDED)('a saved view', () => {
  beforeEach(() => {
    if (site.mock) site.mock.alerts.views = [];
  });

  test('is saved with a name in the menu of links, and leads back to where it was', async () => {
    const page = await site.open('view=profile&query=unit%3D%22api.service%22&panel=table');
    await page.getByRole('button', { name: 'Link' }).click();
    await page.getByLabel('Name of a saved view').fill('api, as a table');
    await page.keyboard.press('Enter');
    await page.getByText('Saved.').waitFor();
    await site.shot(page, 'views-save');
    await page.getByRole('link', { name: 'Saved views' }).click();
    await page.getByRole('link', { name: 'api, as a table' }).click();
    await page.waitForSelector('main.view-profile');
    expect(param(page, 'panel')).toBe('table');
    expect(param(page, 'query')).toBe('unit="api.service"');
  });

  test('is deleted, once that was said twice', async () => {
    const address = '#view=profile';
    site.mock?.alerts.views.push({ id: 1n, name: 'old', address, by: 'anna' });
    const page = await site.open('view=views');
    await page.getByRole('button', { name: 'Delete' }).click();
    await page.getByRole('button', { name: 'Delete view 1' }).click();
    await page.getByText('No saved views').waitFor();
  });

  test('of others leads to the page and nowhere else', async () => {
    site.mock?.alerts.views.push({ id: 1n, name: '<b>x</b>', address: 'javascript:window.__pwned=1', by: '<i>' });
    const page = await site.open('view=views');
    await page.getByText('<b>x</b>').waitFor();
    expect(await page.locator('.view-views tbody a').count()).toBe(0);
  });

  test('whose data is kept is a snapshot, with a link of its own', async () => {
    const page = await site.open('view=profile&from=now-1h&query=comm%3D%22api-server%22');
    await drawn(page);
    await page.getByRole('button', { name: 'Keep …' }).click();
    await page.getByRole('combobox', { name: 'Keep in' }).selectOption('snapshot');
    await page.getByLabel('Name', { exact: true }).fill('api at noon');
    await page.keyboard.press('Enter');
    await page.getByRole('link', { name: 'snapshot 1' }).click();
    await drawn(page);
    expect(param(page, 'saved')).toBe('1');
    expect(site.mock?.alerts.read.at(-1)).toEqual([51n, false]);
    await page.getByText('comm="api-server"').first().waitFor();
    // The link alone opens it, in any theme and on a phone.
    const { hash } = new URL(page.url());
    for (const [name, options] of [
      ['snapshot', {}],
      ['snapshot-dark', { colorScheme: 'dark' }],
      ['snapshot-phone', { viewport: PHONE }],
    ] as const) {
      const other = await site.open(hash.slice(1), options);
      await drawn(other);
      expect(await other.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
      await site.shot(other, name);
    }
  });

  test('of a comparison keeps both sides', async () => {
    const page = await site.open('view=compare&from=now-30m');
    await drawn(page);
    await page.getByRole('button', { name: 'Keep …' }).click();
    await page.getByRole('combobox', { name: 'Keep in' }).selectOption('snapshot');
    await page.getByLabel('Name', { exact: true }).fill('before and after');
    await page.keyboard.press('Enter');
    await page.getByRole('link', { name: 'snapshot 1' }).click();
    await drawn(page);
    await page.getByRole('region', { name: 'Table of changes' }).waitFor();
    expect(site.mock?.alerts.read.slice(-2)).toEqual([
      [51n, false],
      [51n, true],
    ]);
    await page.getByRole('link', { name: 'Saved views' }).click();
    await page.locator('.view-views tbody tr').waitFor();
    await site.shot(page, 'views');
  });

  test('that was deleted says so', async () => {
    const page = await site.open('view=views&saved=9');
    await page.getByText('Snapshot not found').waitFor();
  });
});
