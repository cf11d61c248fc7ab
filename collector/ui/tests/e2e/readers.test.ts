// Files that agent-ctl writes, opened as people open them, without a network: SVG, pages and bundle
// in the browser, and what speedscope reads in speedscope. Run by `agent-ctl/tests/readers.rs`,
// which makes the files and says in `expected.json` what has to be seen.

import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { drawn } from './browser';
import { useFiles } from './files';

const DIR = process.env.READERS_DIR ?? '';
const SPEEDSCOPE = fileURLToPath(new URL('../../node_modules/speedscope/dist/release/index.html', import.meta.url));

interface Expected {
  samples: number;
  nanoseconds: number;
  /** Own and total samples. */
  functions: Record<string, [number, number]>;
  burst: { function: string; first: number; last: number; samples: number };
  title: string;
  comm: string;
  hostile: string[];
}

const expected = (): Expected => JSON.parse(readFileSync(`${DIR}/expected.json`, 'utf8'));
/** A name as it is shown. */
const shown = (name: string) => name.replace('\u202e', '\\u{202e}');

const share = (part: number) => `${((100 * part) / expected().samples).toFixed(1)} %`;

describe.skipIf(DIR === '')('files of agent-ctl', () => {
  const { open, shot } = useFiles('readers');

  /**
   * Own and total by function, as the table of speedscope says them: `4.60s (100%)`, or numbers
   * without a unit.
   */
  async function table(page: Page): Promise<Map<string, [number, number]>> {
    await page.locator('table tr td:visible').first().waitFor();
    const rows = await page
      .locator('table tr')
      .evaluateAll((rows) => rows.map((row) => [...row.querySelectorAll('td')].map((cell) => cell.textContent ?? '')));
    const units: Record<string, number> = { ns: 1, µs: 1e3, ms: 1e6, s: 1e9, '': 1 };
    const number = (text: string) => {
      const [, digits, unit] = /^([\d.,]+)(ns|µs|ms|s|) \(/.exec(text) ?? [];
      return Number(digits?.replaceAll(',', '')) * units[unit ?? ''];
    };
    return new Map(
      rows
        .filter((row) => row.length === 3)
        .map(([total, own, name]) => [name ?? '', [number(own ?? ''), number(total ?? '')]]),
    );
  }

  async function speedscope(file: string): Promise<Page> {
    const page = await open(SPEEDSCOPE);
    await page.locator('#file').setInputFiles(`${DIR}/${file}`);
    await page.getByText('Sandwich').click();
    return page;
  }

  /**
   * Names as files have them: pprof as they were sampled, text without what its readers might act
   * on.
   */
  const written: Record<string, (name: string) => string> = {
    'profile.speedscope.json': shown,
    'profile.pb.gz': (name) => name,
    'profile.folded': shown,
  };

  test.each(Object.entries(written))('speedscope shows the functions and sums of %s', async (file, name) => {
    const page = await speedscope(file);
    const found = await table(page);
    await shot(page, `speedscope-${file}`);
    const { samples, nanoseconds, functions } = expected();
    const one = file === 'profile.folded' ? 1 : nanoseconds / samples;
    for (const [of, counts] of Object.entries(functions)) {
      const row = found.get(name(of));
      expect(row, `${of} in ${[...found.keys()].join(' | ')}`).toBeDefined();
      // It shows three digits.
      for (const [at, count] of counts.entries())
        expect(Math.abs((row?.[at] ?? NaN) - count * one), of).toBeLessThanOrEqual(count * one * 0.005);
    }
    // Folded stacks start with the process.
    const processes = file === 'profile.folded' ? 2 : 0;
    expect(found.size).toBe(Object.keys(functions).length + processes);
  });

  test('speedscope shows the processes and functions of text of perf script', async () => {
    const page = await speedscope('profile.perf.txt');
    const names = [...(await table(page)).keys()];
    await page.getByText('app tid: 7 (1/2)').waitFor();
    await page.keyboard.press('n');
    await page.getByText(`${expected().comm} tid: 7 (2/2)`).waitFor();
    names.push(...(await table(page)).keys());
    await shot(page, 'speedscope-profile.perf.txt');
    for (const name of Object.keys(expected().functions)) expect(names).toContain(shown(name));
  });

  test('the flame graph as SVG is drawn, zooms and searches', async () => {
    let asked = 0;
    const page = await open(`${DIR}/profile.svg`, {}, (dialog) => {
      asked++;
      return dialog.accept(expected().burst.function);
    });
    const bars = () => page.locator('#frames g').count();
    expect(await bars()).toBeGreaterThan(10);
    const burst = page.locator('#frames g', { hasText: `${expected().burst.function} (` });
    expect(await burst.locator('title').textContent()).toBe(
      `${expected().burst.function} (30 samples, ${((100 * 30) / expected().samples).toFixed(2)}%)`,
    );
    const wide = () => burst.locator('rect').evaluate((rect) => rect.getBoundingClientRect().width);
    const before = await wide();
    await shot(page, 'svg');
    await burst.click();
    await expect.poll(wide).toBeGreaterThan(before * 5);
    await page.locator('#unzoom').click();
    await expect.poll(wide).toBe(before);
    await page.locator('#search').click();
    expect(asked).toBe(1);
    expect(await page.locator('#matched').textContent()).toMatch(/^Matched: \d/);
    await shot(page, 'svg-searched');
    const names = (await page.locator('#frames title').allTextContents()).join('\n');
    for (const name of expected().hostile) expect(names).toContain(name);
  });

  /** What every page of ours has: title, table, search, zoom by click and back by keys. */
  async function looks(page: Page): Promise<void> {
    const { title, burst, functions, hostile } = expected();
    await drawn(page);
    expect(await page.title()).toBe(title);
    expect(await page.locator('h1').textContent()).toBe(title);
    const row = (name: string) => page.locator('.top .rows tbody tr', { hasText: name }).first();
    expect(await row(burst.function).locator('.col-total\\%').textContent()).toBe(share(functions[burst.function][1]));
    const rows = (await page.locator('.top .rows .col-name').allTextContents()).join('\n');
    for (const name of hostile) expect(rows).toContain(name);
    const field = page.getByLabel('Search functions and modules');
    await field.fill('close_');
    await page.waitForFunction(() => /%/.test(document.querySelector('.search .matched')?.textContent ?? ''));
    expect(await page.locator('.search .matched').textContent()).toContain(`${share(burst.samples)} in `);
    await field.press('Escape');
    await field.press('Escape');
    // The widest bar above the root, which is at the bottom, is the first process.
    const box = await page.locator('.flame-box').boundingBox();
    if (!box) throw new Error('no graph');
    await page.mouse.click(box.x + 40, box.y + box.height - 18 * 1.5 - 4);
    await page.locator('.crumbs button', { hasText: /^(app|<\/title><b>)$/ }).waitFor();
    await page.keyboard.press('Escape');
    await expect.poll(() => page.locator('.crumbs button').count()).toBe(0);
  }

  test('the page is drawn, zooms and searches', async () => {
    const page = await open(`${DIR}/profile.html`);
    await looks(page);
    await shot(page, 'html');
  });

  /** Where a cell of the heat map is, in the window. */
  async function cell(page: Page, number: number): Promise<[number, number]> {
    const canvas = page.locator('.heat-box canvas');
    const box = await canvas.boundingBox();
    if (!box) throw new Error('no heat map');
    const column = Number(await canvas.getAttribute('data-column'));
    return [box.x + (Math.floor(number / 50) + 0.5) * column, box.y + ((number % 50) + 0.5) * 4];
  }

  for (const file of ['heat.html', 'profile.bundle.html']) {
    test(`what is picked in the heat map of ${file} has the flame graph of the burst`, async () => {
      const { burst } = expected();
      const page = await open(`${DIR}/${file}`);
      await looks(page);
      await shot(page, file);
      await page.mouse.move(...(await cell(page, burst.first)));
      await page.mouse.down();
      await page.mouse.move(...(await cell(page, burst.last)), { steps: 3 });
      await page.mouse.up();
      await page.locator('.heat-picked').waitFor();
      expect(await page.locator('.heat-picked').textContent()).toMatch(
        /22:13:32\.340 – 22:13:32\.660 UTC 320 ms, \d\d samples/,
      );
      const first = page.locator('.top .rows tbody tr').first();
      await expect.poll(() => first.textContent()).toContain(burst.function);
      await shot(page, `${file}-picked`);
      await page.keyboard.press('Escape');
      await page.waitForSelector('.heat-picked', { state: 'detached' });
    });
  }

  test('the bundle says its title, its quality and its facts without the script', async () => {
    const page = await open(`${DIR}/profile.bundle.html`, { javaScriptEnabled: false });
    await page.locator('#facts summary').click();
    expect(await page.locator('h1').textContent()).toBe(expected().title);
    expect(await page.locator('#quality').textContent()).toContain(`${expected().samples} samples of cpu-clock`);
    const facts = await page.locator('#facts').textContent();
    for (const part of ['Query', 'file is', 'perf script', 'Ledger', 'samples']) expect(facts).toContain(part);
    await shot(page, 'facts');
  });

  test('the heat map as SVG is drawn', async () => {
    const page = await open(`${DIR}/heat.svg`);
    expect(await page.locator('text', { hasText: 'samples with their times' }).count()).toBe(1);
    expect(await page.locator('text').first().textContent()).toBe(expected().title);
    expect(await page.locator('path[fill="#960014"]').count()).toBe(1);
    await shot(page, 'heat-svg');
  });
});
