// Profile types of other senders: they have words, units and completions of their own, and are
// found where agents sent nothing.

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { SEEDED, drawn, param, settled, useSite } from './browser';

const site = useSite();

const HEAP = 'memory:inuse_space:bytes:space:bytes';
const at = (view: string) => `view=${view}&type=${encodeURIComponent(HEAP)}`;

beforeEach(() => {
  if (site.mock) site.mock.types = [HEAP, 'process:goroutines:count::'];
});
afterEach(() => {
  if (site.mock) site.mock.types = [];
});

describe.skipIf(!SEEDED)('a profile type', () => {
  test('is compared in its own words and unit', async () => {
    const page = await site.open(at('compare'));
    await page.locator('.compare-table tbody tr').first().waitFor();
    await drawn(page);
    const change = page.locator('th.col-change button');
    expect(await change.textContent()).toContain('Change, bytes/s');
    expect(await page.locator('th.col-before button').getAttribute('title')).toBe('Bytes/s of self inuse_space before');
    expect(await page.locator('.compare-table tbody .col-change').first().textContent()).toMatch(
      /^[+−][\d.]+ ([KMG]i)?B ± /,
    );
    expect(await page.locator('.compare-verdict .verdict-line').textContent()).toMatch(/[KMG]iB\/s/);
    await page.getByRole('button', { name: '% of inuse_space', exact: true }).waitFor();
    expect(await page.locator('main').textContent()).not.toMatch(/\bcores\b|CPU/i);
    await site.shot(page, 'types-compare');
  });

  test('is compared by the values of its labels, which nobody judges', async () => {
    const page = await site.open(`${at('compare')}&rows=unit`);
    await page.locator('.compare-table tbody tr').first().waitFor();
    const by = page.getByLabel('Changes by');
    expect(await by.inputValue()).toBe('unit');
    expect(await by.locator('option').allTextContents()).toContain('sender');
    expect(await page.locator('.compare-table tbody .col-change').first().textContent()).toMatch(
      /^[+−][\d.]+ ([KMG]i)?B\s*$/,
    );
    expect(await page.locator('th.col-sure').count()).toBe(0);
    expect(await page.getByRole('button', { name: /Significant only/ }).count()).toBe(0);
    await site.shot(page, 'types-compare-by-label');
  });

  test('is not called CPU on the page of its profile', async () => {
    const page = await site.open(at('profile'));
    await drawn(page);
    await settled(page);
    await page.getByRole('region', { name: 'inuse_space over time' }).waitFor();
    await page.getByRole('table', { name: 'inuse_space by function' }).waitFor();
    expect(await page.locator('.legend tbody .number').first().textContent()).toMatch(/^[\d.]+ [KMG]iB$/);
    await site.shot(page, 'types-profile');
    expect(await page.getByText('11 series', { exact: true }).count()).toBe(1);
    // The choice itself offers CPU, and alerts are of agents.
    const text = await page.locator('main').evaluate((main) => {
      for (const other of main.querySelectorAll('select, .flag')) other.remove();
      return main.textContent;
    });
    expect(text).not.toMatch(/\bcores\b|CPU/i);
  });

  test('completes its own labels and values', async () => {
    const page = await site.open(at('profile'));
    await drawn(page);
    const field = page.getByRole('combobox', { name: 'Selector', exact: true });
    await field.fill('se');
    const completions = page.getByRole('listbox', { name: 'Completions' });
    await completions.getByText('service_name').waitFor();
    expect(await completions.getByRole('option').allTextContents()).toEqual(['sender', 'service_name']);
    await field.fill('service_name="s');
    await completions.getByRole('option', { name: 'shop' }).click();
    await expect.poll(() => param(page, 'query')).toBe('service_name="shop"');
  });

  test('is found where agents sent nothing', async () => {
    const page = await site.open(`view=overview&query=${encodeURIComponent('scenario="empty"')}`);
    await page.getByText('Other senders have profiles in this range').waitFor();
    await site.shot(page, 'types-overview');
    await page.getByRole('link', { name: 'inuse_space (memory, bytes)' }).click();
    await page.waitForSelector('main.view-profile');
    expect(param(page, 'type')).toBe(HEAP);
    expect(param(page, 'query')).toBeNull();
    await drawn(page);
  });
});

test.runIf(SEEDED)('nothing is said of other senders where there are none', async () => {
  if (site.mock) site.mock.types = [];
  const page = await site.open(`view=overview&query=${encodeURIComponent('scenario="empty"')}`);
  await page.getByText('No data for this selection').waitFor();
  await settled(page);
  expect(await page.getByText('Other senders').count()).toBe(0);
});
