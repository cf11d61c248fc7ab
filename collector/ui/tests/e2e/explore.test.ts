// Looking for the cause: filters as chips, the panel and the menu of a frame, transforms, and what
// is said where nothing is found.

import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { SEEDED, drawn, levelPoint, param, settled, useSite } from './browser';

const site = useSite();

const of = (query: string) => `view=profile&query=${encodeURIComponent(query)}`;
const nodes = (page: Page) => page.locator('.flame-box canvas').getAttribute('data-nodes').then(Number);
const selector = (page: Page) => page.getByRole('combobox', { name: 'Selector', exact: true });

/** Chooses a frame in the graph by keys. */
async function choose(page: Page, ...keys: string[]): Promise<string> {
  await page.locator('.flame-box').first().focus();
  for (const key of ['ArrowDown', ...keys]) await page.keyboard.press(key);
  await page.waitForSelector('.frame-panel');
  return (await page.locator('.frame-panel').getAttribute('data-selected')) ?? '';
}

describe.skipIf(!SEEDED)('filters', () => {
  test('are chips, whose operator changes and keeps the value', async () => {
    const page = await site.open(of('host="web-1"'));
    await drawn(page);
    await page.getByLabel('Operator of host').selectOption('=~');
    await expect.poll(() => param(page, 'query')).toBe('host=~"web-1"');
    await page.getByLabel('Operator of host').selectOption('!=');
    await expect.poll(() => param(page, 'query')).toBe('host!="web-1"');
    await page.getByRole('button', { name: 'Remove the matcher of host' }).click();
    await expect.poll(() => param(page, 'query')).toBeNull();
  });

  test('are changed in place by the keyboard', async () => {
    const page = await site.open(of('host="web-1"'));
    await drawn(page);
    await page.getByRole('button', { name: /^Change the value of host/ }).press('Enter');
    const field = page.getByRole('combobox', { name: 'Change the filter of host' });
    await field.fill('host="web-2"');
    await page.getByText('Enter to apply').waitFor();
    expect(param(page, 'query')).toBe('host="web-1"');
    await field.press('Enter');
    await expect.poll(() => param(page, 'query')).toBe('host="web-2"');
  });

  test('of a function are added like those of a label', async () => {
    const page = await site.open();
    await drawn(page);
    const all = await nodes(page);
    await selector(page).fill('function!="malloc"');
    await selector(page).press('Enter');
    await expect.poll(() => param(page, 'frame')).toBe('drop:^malloc$');
    await expect.poll(() => nodes(page)).toBeLessThan(all);
    expect(param(page, 'query')).toBeNull();
  });

  test('are all written as one text on demand', async () => {
    const page = await site.open(of('host="web-1"'));
    await drawn(page);
    await page.getByRole('button', { name: 'Text', exact: true }).click();
    await expect.poll(() => selector(page).inputValue()).toBe('host="web-1"');
    await selector(page).fill('host="web-2", unit="nginx.service"');
    await selector(page).press('Enter');
    await page.getByRole('button', { name: 'Chips' }).click();
    await expect.poll(() => page.locator('.chip.matcher').count()).toBe(2);
  });

  test('that are not valid stay, and can be removed where that is said', async () => {
    const page = await site.open(`view=profile&frame=${encodeURIComponent('keep:([x&')}`);
    await page.locator('.trouble').waitFor();
    expect(await page.locator('.chip.bad').textContent()).toContain('([x&');
    await page.locator('.bad-filters').getByRole('button', { name: 'Remove this filter' }).click();
    await drawn(page);
    expect(param(page, 'frame')).toBeNull();
  });

  test('of a pattern that is not valid, too', async () => {
    const page = await site.open(of('unit=~"post(.*"'));
    await page.locator('.bad-filters', { hasText: 'unit=~"post(.*"' }).waitFor();
    await page.locator('.bad-filters').getByRole('button', { name: 'Remove this filter' }).click();
    await drawn(page);
  });
});

describe.skipIf(!SEEDED)('where nothing is found', () => {
  test('a label that is not there is named, with those that are', async () => {
    const page = await site.open(of('hots="web-1"'));
    await page.getByText('There is no label').waitFor();
    const text = await page.locator('.empty').textContent();
    for (const label of ['hots', 'host', 'unit', 'cgroup']) expect(text).toContain(label);
    expect(await page.locator('[data-cause]').getAttribute('data-cause')).toBe('labels');
    await page.getByRole('button', { name: 'Use host' }).click();
    await drawn(page);
    expect(param(page, 'query')).toBe('host="web-1"');
  });

  test('the nearest value is offered', async () => {
    const page = await site.open(of('unit="ngnix.service"'));
    await page.getByRole('button', { name: 'Use nginx.service' }).click();
    await drawn(page);
    expect(param(page, 'query')).toBe('unit="nginx.service"');
  });

  test('functions are told from labels', async () => {
    const page = await site.open(`${of('host="web-1"')}&frame=${encodeURIComponent('keep:^nothing_has_this$')}`);
    await page.locator('[data-cause="functions"]').waitFor();
    await page.getByRole('button', { name: 'Remove the filters of functions' }).click();
    await drawn(page);
    expect(param(page, 'query')).toBe('host="web-1"');
  });

  test('filters that exclude each other are told from those that match nothing', async () => {
    const page = await site.open(of('host="web-1", host="web-2"'));
    await page.getByText('nothing matches all of them').waitFor();
  });
});

describe.skipIf(!SEEDED)('a frame', () => {
  test('has a panel with its trend, hosts, callers, and the keyboard in it', async () => {
    const page = await site.open();
    await drawn(page);
    await choose(page, 'ArrowDown', 'ArrowDown');
    const panel = page.locator('.frame-panel');
    await panel.getByText(/cores on average/).waitFor();
    expect(await panel.locator('.trend-chart path').getAttribute('d')).toMatch(/^M0 /);
    await panel.getByText('Callers', { exact: true }).waitFor();
    expect(await panel.locator('.trend .around li').count()).toBeGreaterThan(1);
    await panel.getByLabel('Split the function by').selectOption('unit');
    await panel.getByText('By unit').waitFor();
    await settled(page);
    await page.locator('.flame-box').focus();
    await page.keyboard.press('e');
    expect(await page.evaluate(() => document.activeElement?.classList.contains('frame-panel'))).toBe(true);
    await site.shot(page, 'frame-panel');
    await page.keyboard.press('Escape');
    await page.waitForSelector('.frame-panel', { state: 'detached' });
    expect(await page.evaluate(() => document.activeElement?.classList.contains('flame-box'))).toBe(true);
  });

  test('has a menu at the pointer, whose keys go around it', async () => {
    const page = await site.open();
    await drawn(page);
    const all = await nodes(page);
    const point = await levelPoint(page, 3, 0.3);
    await page.mouse.click(point.x, point.y, { button: 'right' });
    const menu = page.getByRole('menu');
    await menu.waitFor();
    expect(param(page, 'zoom')).toBeNull();
    await page.keyboard.press('End');
    expect(await page.evaluate(() => document.activeElement?.textContent)).toContain('Copy name');
    await page.keyboard.press('Escape');
    await menu.waitFor({ state: 'detached' });
    await page.mouse.click(point.x, point.y, { button: 'right' });
    await menu.getByRole('menuitem', { name: /^Exclude/ }).click();
    await expect.poll(() => nodes(page)).toBeLessThan(all);
    expect(param(page, 'do')).toMatch(/^exclude:/);
  });

  test('is acted on by keys, and each transform is taken back alone', async () => {
    const page = await site.open();
    await drawn(page);
    const all = await nodes(page);
    const name = await choose(page, 'ArrowDown', 'ArrowDown', 'ArrowDown');
    await page.keyboard.press('u');
    await expect.poll(() => param(page, 'do')).toBe(`merge:${name}`);
    await expect.poll(() => nodes(page)).toBeLessThan(all);
    const link = new URL(page.url()).hash.slice(1);
    const merged = await nodes(page);
    await page.getByRole('button', { name: /^Take back: merged/ }).click();
    await expect.poll(() => nodes(page)).toBe(all);
    const other = await site.open(link);
    await drawn(other);
    expect(await nodes(other)).toBe(merged);
  });
});

describe.skipIf(!SEEDED)('the graph', () => {
  test('folds the frames that start programs, and shows them on demand', async () => {
    const page = await site.open();
    await drawn(page);
    const folded = await nodes(page);
    await page.getByTitle('How the graph is drawn').click();
    await page.getByRole('button', { name: 'Show start frames' }).click();
    await expect.poll(() => nodes(page)).toBeGreaterThan(folded);
    expect(param(page, 'start')).toBe('1');
  });

  test('stands on the functions where time was spent, bottom up', async () => {
    const page = await site.open();
    await drawn(page);
    await page.getByRole('button', { name: 'Bottom up' }).click();
    await page.waitForFunction(() => /bottomUp=1/.test(location.hash));
    await settled(page);
    const heaviest = await page.locator('.top tbody .cell-name .name').first().getAttribute('title');
    await page.getByLabel('Search functions and modules').fill(`^${heaviest}$`);
    await page.getByRole('button', { name: '.*' }).click();
    await page.waitForFunction(() =>
      / in [\d,]+ frames?/.test(document.querySelector('.search output')?.textContent ?? ''),
    );
    await site.shot(page, 'bottom-up');
  });

  test('has a strip with all of it where a part is seen, and the table is of that part', async () => {
    const page = await site.open();
    await drawn(page);
    const first = await page.locator('.top tbody tr').count();
    const point = await levelPoint(page, 2, 0.6);
    await page.mouse.click(point.x, point.y);
    await page.waitForSelector('.crumbs');
    await page.waitForSelector('.minimap');
    await page.getByRole('button', { name: 'Table', exact: true }).last().click();
    await page.getByText('the zoomed frame').waitFor();
    expect(await page.locator('.top tbody tr').count()).toBeLessThanOrEqual(first);
    const strip = await page.locator('.minimap').boundingBox();
    if (!strip) throw new Error('no strip');
    await page.mouse.click(strip.x + strip.width * 0.1, strip.y + 4);
    await page.waitForFunction(() => /pan=/.test(location.hash));
    await site.shot(page, 'minimap');
  });
});

test('a selection has a verdict, and is compared with another time from there', async () => {
  const page = await site.open();
  await drawn(page);
  await expect.poll(() => page.locator('.selection-verdict').textContent()).toMatch(/^[\d.]+ cores on [\d,]+ hosts? ·/);
  await page.getByRole('button', { name: /^Compare with/ }).click();
  await page.getByRole('button', { name: 'Yesterday' }).click();
  await page.waitForFunction(() => /view=compare/.test(location.hash));
  const [from, before] = [Date.parse(param(page, 'from') ?? ''), Date.parse(param(page, 'bfrom') ?? '')];
  expect(from - before).toBe(24 * 3_600_000);
  await settled(page);
});
