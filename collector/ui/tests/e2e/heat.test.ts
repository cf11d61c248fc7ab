// The heat map, on profiles that can be asked for again.

import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { BEAT, BURST } from '../mock/timed';
import { SEEDED, drawn, param, settled, useSite } from './browser';

const site = useSite();
const FROM = Math.floor(Date.now() / 60_000) * 60_000 - 20 * 60_000;
const range = `from=${new Date(FROM).toISOString()}&to=${new Date(FROM + 60_000).toISOString()}`;
const timed = `${range}&query=${encodeURIComponent('scenario="timestamps"')}`;

/**
 * Where a time since the start of the timestamps is, in the window. They start a quarter past a
 * second.
 */
async function place(page: Page, ms: number): Promise<{ x: number; y: number }> {
  const box = await page.locator('.heat-box canvas').boundingBox();
  if (!box) throw new Error('no map');
  const column = Number(await page.locator('.heat-box canvas').getAttribute('data-column'));
  const scrolled = await page.locator('.heat-box').evaluate((one) => one.scrollLeft);
  return {
    x: box.x + (Math.floor((ms + 250) / 1000) + 0.5) * column - scrolled,
    y: box.y + (Math.floor(((ms + 250) % 1000) / 20) + 0.5) * 4,
  };
}

const picked = (page: Page) => page.locator('.heat-box canvas').getAttribute('data-picked');
const cellOf = (ms: number) => Math.floor((ms + 250) / 20);

async function shown(page: Page): Promise<void> {
  await drawn(page);
  await page.waitForFunction(
    () => Number(document.querySelector<HTMLCanvasElement>('.heat-box canvas')?.dataset.drawn) > 0,
  );
  await settled(page);
}

async function drag(page: Page, from: number, to: number): Promise<void> {
  const [begin, end] = [await place(page, from), await place(page, to)];
  await page.mouse.move(begin.x, begin.y);
  await page.mouse.down();
  await page.mouse.move((begin.x + end.x) / 2, (begin.y + end.y) / 2, { steps: 3 });
  await page.mouse.move(end.x, end.y);
  await page.mouse.up();
}

const heaviest = (page: Page) => page.locator('.top tbody .cell-name .name').first().getAttribute('title');

describe.skipIf(!SEEDED)('the heat map', () => {
  test('a burst is seen, and a drag over it shows what it was', async () => {
    const page = await site.open(timed);
    await shown(page);
    expect(await heaviest(page)).not.toBe(BURST.fn);
    await site.shot(page, 'heat');
    await drag(page, BURST.at, BURST.at + BURST.long - 20);
    await page.waitForFunction(
      (fn) => document.querySelector('.top tbody .cell-name .name')?.getAttribute('title') === fn,
      BURST.fn,
    );
    expect(await picked(page)).toBe(`${cellOf(BURST.at)}-${cellOf(BURST.at + BURST.long - 20) + 1}`);
    expect(await page.locator('.heat-picked').textContent()).toMatch(/07\.640 – .*07\.940 UTC 300 ms, [\d,]+ samples/);
    expect(param(page, 'pick')).toMatch(/^\d{16}-\d{16}$/);
    await site.shot(page, 'heat-picked');
  });

  test('a drag goes in order of time across columns, whichever way the hand goes', async () => {
    const page = await site.open(timed);
    await shown(page);
    await drag(page, 12_100, 4_300);
    await page.waitForSelector('.heat-picked');
    expect(await picked(page)).toBe(`${cellOf(4_300)}-${cellOf(12_100) + 1}`);
    expect(await page.locator('.heat-picked').textContent()).toContain('7.82 s');
    await site.shot(page, 'heat-columns');
  });

  test('Escape and the button show all again; the history goes back', async () => {
    const page = await site.open(timed);
    await shown(page);
    const nodes = () => page.locator('.flame-box canvas').getAttribute('data-nodes').then(Number);
    const all = await nodes();
    await drag(page, BURST.at, BURST.at + 100);
    await expect.poll(nodes).toBeLessThan(all);
    await page.locator('.heat-box').focus();
    await page.keyboard.press('Escape');
    await page.waitForSelector('.heat-picked', { state: 'detached' });
    await expect.poll(nodes).toBe(all);
    expect(param(page, 'pick')).toBeNull();
    await page.goBack();
    await page.getByRole('button', { name: 'All of the time' }).click();
    await expect.poll(nodes).toBe(all);
  });

  test('a link shows the same part', async () => {
    const page = await site.open(timed);
    await shown(page);
    await drag(page, BURST.at, BURST.at + 200);
    await page.waitForSelector('.heat-picked');
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await shown(other);
    await other.waitForSelector('.heat-picked');
    expect(await other.locator('.heat-picked').textContent()).toBe(await page.locator('.heat-picked').textContent());
    expect(await heaviest(other)).toBe(BURST.fn);
    // What the collector sums up is of the whole time: the table of a part is the page's own.
    const calls = site.mock?.calls.get('top') ?? 0;
    await other.locator('.top select').selectOption('host');
    await other.locator('.top tbody .cell-name', { hasText: 'web-1' }).waitFor();
    expect(site.mock?.calls.get('top') ?? 0).toBe(calls);
  });

  test('the keyboard moves, tells and picks', async () => {
    const page = await site.open(timed);
    await shown(page);
    await page.locator('.heat-box').focus();
    await page.keyboard.press('Home');
    for (let step = 0; step < 3; step++) await page.keyboard.press('ArrowRight');
    await page.keyboard.press('ArrowDown');
    expect(await page.locator('.heat p[aria-live].hidden').textContent()).toMatch(/:03\.260: [\d,]+ samples?, /);
    await page.waitForSelector('.floating-tip');
    await page.keyboard.press('Enter');
    expect(await picked(page)).toBe(`${cellOf(3_010)}-${cellOf(3_010) + 1}`);
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Enter');
    expect(await picked(page)).toBe(`${cellOf(3_010)}-${cellOf(4_010) + 1}`);
    for (const key of ['Shift+ArrowDown', 'Shift+ArrowDown']) await page.keyboard.press(key);
    expect(await picked(page)).toBe(`${cellOf(4_010)}-${cellOf(4_050) + 1}`);
    await page.waitForFunction(() => /pick=/.test(location.hash));
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => !/pick=/.test(location.hash));
  });

  test('a click picks a cell, Shift goes on from it; the tooltip tells time and count', async () => {
    const page = await site.open(timed);
    await shown(page);
    const [one, other] = [await place(page, 900 - 250), await place(page, 2_650)];
    await page.mouse.move(one.x, one.y);
    const tip = await page.locator('.floating-tip').textContent();
    expect(tip).toMatch(/^\d\d:\d\d:00\.900 UTC \+20\.0 ms[\d,]+ samples?, /);
    await page.mouse.click(one.x, one.y);
    expect(await picked(page)).toBe('45-46');
    await page.waitForFunction((fn) => document.querySelector('.top tbody')?.textContent?.includes(fn), BEAT);
    await page.keyboard.down('Shift');
    await page.mouse.click(other.x, other.y);
    await page.keyboard.up('Shift');
    expect(await picked(page)).toBe('45-146');
  });

  test('fingers touch the begin and the end, and scroll; it fits a phone', async () => {
    const page = await site.open(`${timed}&panel=flame`, {
      viewport: { width: 390, height: 844 },
      hasTouch: true,
      isMobile: true,
    });
    await shown(page);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
    await page.locator('.heat-box').scrollIntoViewIfNeeded();
    const [one, other] = [await place(page, BURST.at), await place(page, BURST.at + BURST.long - 20)];
    await page.touchscreen.tap(one.x, one.y);
    await expect.poll(() => picked(page)).toBe(`${cellOf(BURST.at)}-${cellOf(BURST.at) + 1}`);
    await page.getByText('tap its end').waitFor();
    await page.touchscreen.tap(other.x, other.y);
    await expect.poll(() => picked(page)).toBe(`${cellOf(BURST.at)}-${cellOf(BURST.at + BURST.long - 20) + 1}`);
    await site.shot(page, 'phone-heat');
  });

  test('dark', async () => {
    const page = await site.open(timed, { colorScheme: 'dark' });
    await shown(page);
    await drag(page, 5_100, 9_300);
    await page.waitForSelector('.heat-picked');
    await site.shot(page, 'dark-heat');
  });

  test('another selection forgets the pick, and a pick that is none is none', async () => {
    const page = await site.open(`${timed}&pick=1-2`);
    await shown(page);
    expect(await page.locator('.heat-picked').count()).toBe(0);
    await drag(page, BURST.at, BURST.at + 100);
    await page.waitForFunction(() => /pick=\d{4}/.test(location.hash));
    await page.getByRole('link', { name: 'Hosts', exact: true }).click();
    await page.waitForFunction(() => !/pick=/.test(location.hash));
  });

  test('1 million timestamps: times of cells, drawing and picking, for the record', async ({ skip }) => {
    skip(!process.env.E2E_TIMES, 'a measurement: npm run times');
    const page = await site.open(`${range}&query=${encodeURIComponent('scenario="million"')}`, {
      viewport: { width: 1920, height: 1080 },
    });
    await shown(page);
    const cells = await page.locator('.heat').getAttribute('data-grid-ms');
    await page.evaluate(() => {
      const store = window as never as { __draws: number[] };
      store.__draws = [];
      const canvas = document.querySelector<HTMLCanvasElement>('.heat-box canvas');
      if (canvas)
        new MutationObserver(() => store.__draws.push(Number(canvas.dataset.drawMs))).observe(canvas, {
          attributeFilter: ['data-draw-ms'],
        });
    });
    const [begin, end] = [await place(page, 5_000), await place(page, 40_000)];
    await page.mouse.move(begin.x, begin.y);
    await page.mouse.down();
    for (let step = 0; step < 60; step++)
      await page.mouse.move(begin.x + ((end.x - begin.x) * step) / 59, begin.y + (step % 40));
    const draws = await page.evaluate(() =>
      (window as never as { __draws: number[] }).__draws.slice().sort((left, right) => left - right),
    );
    // From the release of the button to the frame that shows table and graph of the part. Heard
    // before the button is released.
    await page.evaluate(() => {
      const store = window as never as { __released: Promise<number> };
      store.__released = new Promise((resolve) =>
        document.addEventListener('pointerup', () => resolve(performance.now()), { once: true, capture: true }),
      );
    });
    const before = await page.locator('.flame-box canvas').getAttribute('data-drawn');
    await page.mouse.up();
    const picking = await page.evaluate(async (old) => {
      const begun = await (window as never as { __released: Promise<number> }).__released;
      while (
        document.querySelector<HTMLCanvasElement>('.flame-box canvas')?.dataset.drawn === old ||
        !document.querySelector('.heat-picked')
      )
        await new Promise(requestAnimationFrame);
      return performance.now() - begun;
    }, before);
    const at = (part: number) => (draws[Math.min(draws.length - 1, Math.floor(part * draws.length))] ?? NaN).toFixed(1);
    console.log(
      `1 million timestamps: cells ${cells} ms; ${draws.length} draws of a drag, median ${at(0.5)} ms, most ${at(1)} ms; graph and table of 58 % of them ${picking.toFixed(0)} ms after the drag`,
    );
    expect(draws.length).toBeGreaterThan(0);
    await site.shot(page, 'heat-million');
  });
});
