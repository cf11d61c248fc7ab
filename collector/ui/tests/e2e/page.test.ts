// The page as somebody uses it.

import { describe, expect, test } from 'vitest';
import { SEEDED, drawn, levelPoint, param, settled, useSite } from './browser';

const site = useSite();

describe('the profile', () => {
  test('shows chart, graph and table, and asks nobody else', async () => {
    const page = await site.open();
    await drawn(page);
    expect(await page.locator('.legend tbody tr').count()).toBeGreaterThan(0);
    expect(await page.locator('.top tbody tr').count()).toBeGreaterThan(1);
    expect(await page.locator('.u-over').count()).toBe(1);
    await site.shot(page, 'profile');
  });

  test('a search marks frames and tells their share', async () => {
    const page = await site.open();
    await drawn(page);
    const name = await page.locator('.top tbody .cell-name .name').first().getAttribute('title');
    await page.getByLabel('Search functions and modules').fill((name ?? '').slice(0, 12));
    await page.waitForFunction(() =>
      /[\d.]+ % in [\d,]+ frames?/.test(document.querySelector('.search output')?.textContent ?? ''),
    );
    expect(param(page, 'search')).toBe((name ?? '').slice(0, 12));
  });

  test('a search that is no pattern says so below its field, and moves nothing', async () => {
    const page = await site.open();
    await drawn(page);
    const place = () => page.getByRole('button', { name: 'Bottom up' }).boundingBox();
    const before = await place();
    await page.evaluate(() => (location.hash = 'view=profile&search=([a&regex=1'));
    const told = page.locator('.search .wrong', { hasText: 'not a regular expression: unterminated' });
    await told.waitFor();
    expect(await place()).toEqual(before);
    expect(await told.evaluate((one) => one.scrollWidth <= one.clientWidth + 1)).toBe(true);
  });

  test('a pattern marks frames', async () => {
    const page = await site.open();
    await drawn(page);
    const name = (await page.locator('.top tbody .cell-name .name').first().getAttribute('title')) ?? '';
    await page.evaluate(
      (text) => (location.hash = `regex=1&search=${encodeURIComponent(text)}`),
      `^${name.slice(0, 4).replace(/\W/g, '.')}.*`,
    );
    await page.waitForFunction(() =>
      /[\d.]+ % in [\d,]+ frames?/.test(document.querySelector('.search output')?.textContent ?? ''),
    );
  });

  test('a pattern that takes for ever is given up, and the page stays awake', async () => {
    const page = await site.open(`regex=1&search=${encodeURIComponent('((.+)+)+!')}`);
    await drawn(page);
    // Awake while it is tried: each frame of the page comes soon after the one before.
    const longest = await page.evaluate(async () => {
      let [last, most] = [performance.now(), 0];
      for (let turn = 0; turn < 60; turn++) {
        await new Promise(requestAnimationFrame);
        most = Math.max(most, performance.now() - last);
        last = performance.now();
      }
      return most;
    });
    console.log(`longest frame beside a pattern that takes for ever: ${Math.round(longest)} ms`);
    await page.getByText('takes too long on these names').waitFor();
    await page.getByLabel('Search functions and modules').fill('.');
    await page.waitForFunction(() =>
      /[\d.]+ % in [\d,]+ frames?/.test(document.querySelector('.search output')?.textContent ?? ''),
    );
  });

  test('frame filters are told where they do not apply, and follow to the containers', async () => {
    const page = await site.open(`frame=${encodeURIComponent('drop:^nothing_has_this$')}`);
    await drawn(page);
    expect(await page.locator('.chart-panel').textContent()).toContain('frame filter not applied to the chart');
    await page.getByRole('link', { name: 'Containers' }).click();
    await page.waitForSelector('.tree tbody tr');
    await page.getByLabel('Operator of the stack filter').waitFor();
    expect(await page.getByLabel('Operator of the stack filter').inputValue()).toBe('drop');
    expect(param(page, 'frame')).toBe('drop:^nothing_has_this$');
    await page.getByRole('button', { name: 'Remove this filter' }).click();
    await page.waitForFunction(() => !location.hash.includes('frame='));
    await settled(page);
    await page.waitForSelector('.tree tbody tr');
  });

  test('a click zooms, breadcrumbs and Escape lead back', async () => {
    const page = await site.open();
    await drawn(page);
    const point = await levelPoint(page, 2, 0.1);
    await page.mouse.click(point.x, point.y);
    await page.waitForSelector('.crumbs');
    expect(param(page, 'zoom')).toBeTruthy();
    expect(await page.locator('.detail').getAttribute('data-selected')).toBeTruthy();
    await page.locator('.flame-box').focus();
    await page.keyboard.press('Escape');
    await page.waitForSelector('.crumbs', { state: 'detached' });
    expect(param(page, 'zoom')).toBeNull();
  });

  test('the keyboard reaches every frame', async () => {
    const page = await site.open();
    await drawn(page);
    await page.locator('.flame-box').focus();
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown']) await page.keyboard.press(key);
    const first = await page.locator('.detail').getAttribute('data-selected');
    expect(first).toBeTruthy();
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Enter');
    await page.waitForSelector('.crumbs');
    await page.keyboard.press('/');
    expect(await page.evaluate(() => document.activeElement?.getAttribute('type'))).toBe('search');
  });

  test('what the keyboard chose stays chosen when other data comes, the root too', async () => {
    const page = await site.open();
    await drawn(page);
    await page.locator('.flame-box').focus();
    const chosen = () => page.locator('.flame [aria-live]').first().textContent();
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown']) {
      await page.locator('.flame-box').focus();
      await page.keyboard.press(key);
      const name = (await chosen())?.split(':')[0];
      expect(name).toBeTruthy();
      await page.getByTitle('How the graph is drawn').click();
      const samples = page.getByRole('button', { name: 'Count samples' });
      const unit = (await samples.getAttribute('aria-pressed')) === 'true' ? / s\b/ : / samples/;
      await samples.click();
      await expect.poll(chosen).toMatch(unit);
      expect((await chosen())?.split(':')[0]).toBe(name);
    }
  });

  test('focus keeps only stacks with a function, and Reset brings all back', async () => {
    const page = await site.open();
    await drawn(page);
    const nodes = () => page.locator('.flame-box canvas').getAttribute('data-nodes').then(Number);
    const all = await nodes();
    await page.locator('.flame-box').focus();
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown', 'f']) await page.keyboard.press(key);
    await page.waitForFunction(
      (before) => Number(document.querySelector<HTMLCanvasElement>('.flame-box canvas')?.dataset.nodes) < before,
      all,
    );
    expect(param(page, 'do')).toMatch(/^focus:./);
    await page.getByRole('button', { name: 'Reset' }).click();
    await page.waitForFunction(
      (before) => Number(document.querySelector<HTMLCanvasElement>('.flame-box canvas')?.dataset.nodes) === before,
      all,
    );
  });

  test('callers and callees of a function', async () => {
    const page = await site.open();
    await drawn(page);
    await page.getByRole('button', { name: 'Callers and callees' }).first().click();
    await page.waitForSelector('.sandwich');
    expect(await page.locator('.half').count()).toBe(2);
    expect(param(page, 'fn')).toBeTruthy();
    await site.shot(page, 'sandwich');
    const box = await page.locator('.half .flame-box').first().boundingBox();
    if (!box) throw new Error('no callers');
    await page.mouse.click(box.x + box.width / 2, box.y + box.height - 4 - 27);
    await page.waitForSelector('.half .crumbs');
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await other.waitForSelector('.half .crumbs');
    expect(await other.locator('.half .crumbs').textContent()).toBe(await page.locator('.half .crumbs').textContent());
    await page.getByRole('button', { name: 'Back to all stacks' }).click();
    await page.waitForSelector('.sandwich', { state: 'detached' });
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
    const [from, to] = [Date.parse(param(page, 'from') ?? ''), Date.parse(param(page, 'to') ?? '')];
    expect(to - from).toBeGreaterThan(8 * 60_000);
    expect(to - from).toBeLessThan(16 * 60_000);
    await page.goBack();
    await page.waitForFunction(() => !/from=20/.test(location.hash));
  });

  test('the keyboard walks along the chart, and zooms into a range of it', async () => {
    const page = await site.open();
    await drawn(page);
    await settled(page);
    await page.locator('.plot').focus();
    await page.keyboard.press('Home');
    const told = page.locator('.plot-area > [aria-live]');
    await expect.poll(() => told.textContent()).toMatch(/: [\d.]+ cores$/);
    const [first, tip] = [await told.textContent(), page.locator('.tip.under .tip-head')];
    expect(await tip.textContent()).toContain(first?.slice(0, 19));
    await page.keyboard.press('ArrowRight');
    await expect.poll(() => told.textContent()).not.toBe(first);
    await page.keyboard.press('Enter');
    for (let turn = 0; turn < 2; turn++) await page.keyboard.press('PageDown');
    expect(Number((await page.locator('.u-select').boundingBox())?.width)).toBeGreaterThan(20);
    await page.keyboard.press('Escape');
    expect(param(page, 'from')).toBeNull();
    for (const key of ['Home', 'ArrowRight', 'Enter', 'PageDown', 'Enter']) await page.keyboard.press(key);
    await page.waitForFunction(() => /from=20/.test(location.hash));
    const [from, to] = [Date.parse(param(page, 'from') ?? ''), Date.parse(param(page, 'to') ?? '')];
    // From the second step to the eleventh after it.
    const start = Date.parse(`${first?.slice(0, 19).replace(' ', 'T')}Z`);
    expect([(from - start) % 10_000, to - from > 10 * (from - start)]).toEqual([0, true]);
  });

  test('times at the end of the axis are not cut', async () => {
    const page = await site.open('from=2026-11-21T20:45:00Z&to=2026-11-21T20:49:30Z');
    await page.waitForSelector('.plot canvas');
    await settled(page);
    const inked = await page.evaluate(() => {
      const canvas = document.querySelector<HTMLCanvasElement>('.plot canvas');
      if (!canvas) return -1;
      const data = canvas.getContext('2d')?.getImageData(canvas.width - 2, 0, 2, canvas.height).data ?? [];
      return data.filter((value, at) => at % 4 === 3 && value > 0).length;
    });
    expect(inked).toBe(0);
  });

  test('a line of the legend is selected by the keyboard, whatever the pointer is on', async () => {
    const page = await site.open('by=host');
    await drawn(page);
    const select = page
      .locator('.legend')
      .getByRole('button', { name: /^Select only/ })
      .first();
    expect(await select.isVisible()).toBe(true);
    await page.locator('.legend .wide button').first().focus();
    await page.keyboard.press('Tab');
    expect(await page.evaluate(() => document.activeElement?.getAttribute('aria-label'))).toMatch(/^Select only/);
    await page.keyboard.press('Enter');
    await expect.poll(() => param(page, 'query')).toMatch(/^host="/);
  });

  test('what is open closes when another page is gone back to', async () => {
    const page = await site.open();
    await drawn(page);
    await page.getByRole('link', { name: 'Containers' }).click();
    await page.waitForSelector('.tree tbody tr');
    await page.getByTitle('Links to this page, and saved views').click();
    await page.getByRole('dialog').waitFor();
    await page.goBack();
    await page.waitForSelector('.plot');
    expect(await page.getByRole('dialog').count()).toBe(0);
    await page.goForward();
    await page.waitForSelector('.tree tbody tr');
    await page.getByRole('combobox', { name: 'Selector', exact: true }).fill('h');
    await page.locator('.suggestions li').first().waitFor();
    await page.goBack();
    await page.waitForSelector('.plot');
    expect(await page.locator('.suggestions li').count()).toBe(0);
  });

  test('weights of a column have one unit and the same decimals', async () => {
    const page = await site.open();
    await drawn(page);
    const self = await page.locator('.top .col-own').allTextContents();
    const shapes = new Set(
      self.slice(1).map((text) => text.replace(/^<?[\d,]+(?:\.(\d+))?/, (_, decimals = '') => `${decimals.length}`)),
    );
    expect(self.length).toBeGreaterThan(20);
    expect([...shapes].filter((shape) => !shape.startsWith('0'))).toHaveLength(1);
  });

  test('colours of modules are the same in graph, table and legend, which names them', async () => {
    const page = await site.open('colours=module');
    await drawn(page);
    const legend = page.locator('.legend-row .legend-line > span');
    const named = await legend.evaluateAll((all) =>
      all.map((one) => [
        one.querySelector('.name')?.textContent,
        getComputedStyle(one.querySelector('.swatch') as Element).backgroundColor,
      ]),
    );
    expect(named.length).toBeGreaterThan(3);
    const rows = await page
      .locator('.top tbody .cell-name')
      .evaluateAll((all) =>
        all.map((one) => [
          one.querySelector('.module')?.textContent,
          getComputedStyle(one.querySelector('.kind') as Element).backgroundColor,
        ]),
      );
    const colour = new Map(named as [string, string][]);
    const known = rows.filter(([module]) => colour.has(module ?? ''));
    expect(known.length).toBeGreaterThan(10);
    for (const [module, dot] of known) expect(dot).toBe(colour.get(module ?? ''));
  });

  test('the legend hides and isolates lines', async () => {
    const page = await site.open();
    await drawn(page);
    const lines = () => page.locator('.plot').getAttribute('data-lines').then(Number);
    const all = await lines();
    await page.locator('.swatch-button').first().click();
    await page.waitForFunction(
      (before) => Number(document.querySelector<HTMLElement>('.plot')?.dataset.lines) === before - 1,
      all,
    );
    await page.locator('.legend .wide button').first().click();
    await page.waitForFunction(() => Number(document.querySelector<HTMLElement>('.plot')?.dataset.lines) === 1);
  });

  test('a link shows the same page', async () => {
    const page = await site.open();
    await drawn(page);
    const point = await levelPoint(page, 2, 0.3);
    await page.mouse.click(point.x, point.y);
    await page.waitForSelector('.crumbs');
    await page.getByLabel('Search functions and modules').fill('a');
    await page.getByLabel('Colours').selectOption('module');
    await page.getByTitle('How the graph is drawn').click();
    await page.getByRole('button', { name: 'Root at bottom', exact: true }).click();
    await page.waitForFunction(
      () => /flame=1/.test(location.hash) && /colours=module/.test(location.hash) && /search=a/.test(location.hash),
    );
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await drawn(other);
    await settled(other);
    for (const seen of ['.crumbs', '.search output'])
      expect(await other.locator(seen).textContent()).toBe(await page.locator(seen).textContent());
    await other.getByTitle('How the graph is drawn').click();
    expect(await other.getByRole('button', { name: 'Root at bottom', exact: true }).getAttribute('aria-pressed')).toBe(
      'true',
    );
    expect(await other.locator('.flame-box canvas').getAttribute('data-zoomed')).toBe(
      await page.locator('.flame-box canvas').getAttribute('data-zoomed'),
    );
  });

  test('a range can be written, chosen and moved', async () => {
    const page = await site.open();
    await drawn(page);
    const choose = page.getByTitle('Choose the time range');
    await choose.click();
    await page.getByLabel('From', { exact: true }).fill('now-2h');
    await page.getByLabel('To', { exact: true }).fill('nonsense');
    expect(await page.locator('.range-panel .wrong').textContent()).toContain('"To" is not a valid time');
    await page.getByLabel('To', { exact: true }).fill('now-1h');
    await page.getByRole('button', { name: 'Apply' }).click();
    await page.waitForFunction(() => /from=now-2h&to=now-1h/.test(location.hash));
    await choose.click();
    await page.getByRole('button', { name: 'Last 15 minutes' }).click();
    await page.waitForFunction(() => location.hash === '#from=now-15m');
    await page.getByRole('button', { name: 'Earlier' }).click();
    await page.waitForFunction(() => /from=20.*Z&to=20.*Z/.test(location.hash));
    await settled(page);
  });

  test('the selector completes names and values, and tells a mistake', async () => {
    const page = await site.open();
    await drawn(page);
    const field = page.getByRole('combobox', { name: 'Selector' });
    await field.click();
    await field.pressSequentially('ho');
    await page.locator('.suggestions [role=option]', { hasText: 'host' }).first().click();
    const written = (text: string) =>
      page.waitForFunction(
        (wanted) => (document.querySelector<HTMLInputElement>('.selector input')?.value ?? '') === wanted,
        text,
      );
    await written('host');
    await page.locator('.suggestions [role=option]', { hasText: 'is not' }).click();
    await written('host!="');
    await page.locator('.suggestions [role=option]').first().click();
    await page.waitForFunction(() => /query=host/.test(location.hash));
    expect(param(page, 'query')).toMatch(/^host!="/);
    expect(await page.locator('.chips .chip').count()).toBe(1);
    await written('');
    await field.fill('host=');
    await field.press('Escape');
    await field.press('Enter');
    await page.waitForSelector('.selector .wrong');
    expect(await page.locator('.selector .wrong').textContent()).toContain('expected a value');
  });

  test('downloads are links with the selection', async () => {
    const page = await site.open('query=host%3D"web-1"&from=2026-11-21T10:00:00Z&to=2026-11-21T11:00:00Z');
    await page.waitForSelector('.chart-panel');
    await settled(page);
    const button = page.getByRole('button', { name: 'Download' });
    if ((await button.count()) === 0) return; // Nothing in the range of a real collector.
    await button.click();
    const links = await page.locator('.menu a').evaluateAll((all) => all.map((one) => one.getAttribute('href') ?? ''));
    expect(links.map((link) => link.split('?')[0])).toEqual(
      'pprof folded speedscope.json svg html json parquet firefox.json perf.txt bundle.html'
        .split(' ')
        .map((format) => `api/profile.${format}`),
    );
    const params = new URLSearchParams(links[0].split('?')[1]);
    expect(params.get('selector')).toBe('host="web-1"');
    expect(params.get('from')).toBe(String(BigInt(Date.UTC(2026, 10, 21, 10)) * 1_000_000n));
  });
});

describe('other pages', () => {
  test('hosts, containers and the collector have tables', async () => {
    for (const [view, label] of [
      ['hosts', 'Hosts'],
      ['cgroups', 'Containers and services'],
      ['collector', 'Collector'],
    ]) {
      const page = await site.open(`view=${view}`);
      await page
        .getByRole('region', { name: /Table of/ })
        .or(page.getByText('No counters'))
        .first()
        .waitFor();
      expect(await page.getByRole('heading', { name: label, exact: true }).count()).toBe(1);
      await site.shot(page, view);
    }
  });

  test.skipIf(!SEEDED)('a host leads to its profile', async () => {
    const page = await site.open('view=hosts');
    await page.getByRole('button', { name: 'web-2', exact: true }).click();
    await drawn(page);
    expect(param(page, 'query')).toBe('host="web-2"');
  });

  test.skipIf(!SEEDED)('rows of the cgroup tree open and close, and the link knows', async () => {
    const page = await site.open('view=cgroups');
    await page.getByRole('button', { name: /Close system.slice/ }).click();
    await page.waitForFunction(() => !document.body.textContent?.includes('nginx.service'));
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await other.getByRole('button', { name: /Open system.slice/ }).waitFor();
  });

  test('dark and light', async () => {
    const page = await site.open('', { colorScheme: 'dark' });
    await drawn(page);
    expect(await page.evaluate(() => document.documentElement.dataset.theme)).toBe('dark');
    await settled(page);
    await site.shot(page, 'dark-profile');
    for (const view of ['compare', 'cgroups', 'hosts', 'collector']) {
      await page.evaluate((hash) => (location.hash = hash), `view=${view}&frame=drop:^x$`);
      await page.waitForSelector(`main.view-${view} > *`);
      await settled(page);
      await site.shot(page, `dark-${view}`);
    }
    await page.evaluate(() => (location.hash = 'view=profile'));
    await drawn(page);
    await page.getByRole('button', { name: 'Light theme' }).click();
    await page.reload();
    await drawn(page);
    expect(await page.evaluate(() => document.documentElement.dataset.theme)).toBe('light');
  });

  test('fits a phone', async () => {
    for (const view of ['profile', 'compare', 'hosts', 'cgroups']) {
      const page = await site.open(`view=${view}`, { viewport: { width: 390, height: 844 } });
      await page.waitForSelector('main > *');
      await settled(page);
      expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
      await site.shot(page, `phone-${view}`);
    }
  });
});
