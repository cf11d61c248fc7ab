// The comparison, the baseline of the page, and the zone of its times: as somebody uses them.

import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { DEPLOYED_MS, LOSSY, YOUNG_MS } from '../mock/fleet';
import { SEEDED, drawn, param, settled, useSite } from './browser';

const site = useSite();
const MINUTE = 60_000;
const iso = (ms: number) => new Date(ms).toISOString();
const of = (selector: string) => `query=${encodeURIComponent(selector)}`;
const sides = (from: number, to: number, bfrom: number, bto: number) =>
  `view=compare&from=${iso(from)}&to=${iso(to)}&bfrom=${iso(bfrom)}&bto=${iso(bto)}`;

/** Before and after the new version came. */
const DEPLOY = sides(
  DEPLOYED_MS + 10 * MINUTE,
  DEPLOYED_MS + 20 * MINUTE,
  DEPLOYED_MS - 12 * MINUTE,
  DEPLOYED_MS - 2 * MINUTE,
);

const strip = (page: Page, tone: 'before' | 'after') => page.locator(`.strip.${tone} .strip-plot`);
const rows = (page: Page) => page.locator('.compare-table tbody tr');

async function drag(page: Page, tone: 'before' | 'after', from: number, to: number): Promise<void> {
  const box = await strip(page, tone).boundingBox();
  if (!box) throw new Error('no strip');
  await page.mouse.move(box.x + box.width * from, box.y + 20);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width * to, box.y + 20, { steps: 4 });
  await page.mouse.up();
}

describe.skipIf(!SEEDED)('the two sides', () => {
  test('stand on each other, a day apart, and are seen', async () => {
    const page = await site.open(
      sides(Date.now() - 60_000, Date.now(), Date.now() - 86_460_000, Date.now() - 86_400_000),
    );
    await rows(page).first().waitFor();
    await settled(page);
    for (const tone of ['before', 'after'] as const) {
      const [plot, range] = await Promise.all([
        strip(page, tone).boundingBox(),
        page.locator(`.strip.${tone} .strip-range`).boundingBox(),
      ]);
      // A minute of each, with a quarter of it around.
      expect((range?.width ?? 0) / (plot?.width ?? 1)).toBeCloseTo(2 / 3, 1);
    }
    expect(await page.locator('.strip-axis .start').textContent()).toBe('0:00');
    await site.shot(page, 'compare-day');
  });

  test('are set by keys on either end, once Enter says so, and the other stays', async () => {
    const page = await site.open(DEPLOY);
    await rows(page).first().waitFor();
    await settled(page);
    const [from, bfrom] = [param(page, 'from'), param(page, 'bfrom')];
    const start = page.getByRole('slider', { name: 'Start of A, the baseline' });
    await start.focus();
    const was = await start.getAttribute('aria-valuetext');
    for (let times = 0; times < 8; times++) await page.keyboard.press('ArrowRight');
    expect(await start.getAttribute('aria-valuetext')).not.toBe(was);
    await site.shot(page, 'compare-keys');
    expect(param(page, 'bfrom')).toBe(bfrom);
    await page.keyboard.press('Escape');
    expect(await start.getAttribute('aria-valuetext')).toBe(was);
    // Both ends, one after the other.
    await page.keyboard.press('Shift+ArrowRight');
    await page.keyboard.press('Tab');
    await page.keyboard.press('ArrowLeft');
    await page.keyboard.press('Enter');
    await page.waitForFunction((old) => new URLSearchParams(location.hash.slice(1)).get('bfrom') !== old, bfrom);
    expect(Date.parse(param(page, 'bfrom') ?? '')).toBeGreaterThan(Date.parse(bfrom ?? ''));
    expect(param(page, 'from')).toBe(from);
  });

  test('are set by a drag on either, and the other stays', async () => {
    const page = await site.open(DEPLOY);
    await rows(page).first().waitFor();
    await settled(page);
    const [from, bfrom] = [param(page, 'from'), param(page, 'bfrom')];
    await drag(page, 'before', 0.4, 0.6);
    await page.waitForFunction((old) => new URLSearchParams(location.hash.slice(1)).get('bfrom') !== old, bfrom);
    expect(param(page, 'from')).toBe(from);
    // Shorter by what was left out: the axis is that of the longer side, which did not change.
    const length = Date.parse(param(page, 'bto') ?? '') - Date.parse(param(page, 'bfrom') ?? '');
    expect(length / MINUTE).toBeCloseTo(3, 0);
    await settled(page);
    const moved = param(page, 'bfrom');
    await drag(page, 'after', 0.4, 0.6);
    await page.waitForFunction((old) => new URLSearchParams(location.hash.slice(1)).get('from') !== old, from);
    expect(param(page, 'bfrom')).toBe(moved);
  });

  test('are chosen by one click, and each click says which it was', async () => {
    const page = await site.open('view=compare&from=now-20m');
    await rows(page).first().waitFor();
    const preset = (name: string) => page.getByRole('button', { name, exact: true });
    expect(await preset('Previous period').getAttribute('aria-pressed')).toBe('true');
    await preset('Last week').click();
    await page.waitForFunction(() => location.hash.includes('baseline=week'));
    expect(await preset('Last week').getAttribute('aria-pressed')).toBe('true');
    await preset('Since the last deploy').click();
    await page.waitForFunction(() => location.hash.includes('baseline=deploy'));
    // The deploy is where B starts and A ends.
    const start = Date.parse(param(page, 'from') ?? '');
    expect(Math.abs(start - DEPLOYED_MS)).toBeLessThan(3 * MINUTE);
    await page.locator('.strip.before svg').waitFor();
    expect(await page.getByLabel('Baseline', { exact: true }).inputValue()).toBe('deploy');
  });

  test('change places by a click, selectors too', async () => {
    const page = await site.open(`${DEPLOY}&${of('host="web-1"')}&bquery=${encodeURIComponent('host="web-2"')}`);
    await rows(page).first().waitFor();
    const before = new URL(page.url()).hash;
    await page.getByRole('button', { name: 'Swap' }).click();
    await page.waitForFunction((old) => location.hash !== old, before);
    expect([param(page, 'query'), param(page, 'bquery')]).toEqual(['host="web-2"', 'host="web-1"']);
    expect(Date.parse(param(page, 'from') ?? '')).toBeLessThan(Date.parse(param(page, 'bfrom') ?? ''));
    await settled(page);
    await page.getByRole('button', { name: 'Swap' }).click();
    await page.waitForFunction(() => location.hash.includes('bquery=host%3D%22web-2%22'));
    expect(Date.parse(param(page, 'from') ?? '')).toBeGreaterThan(Date.parse(param(page, 'bfrom') ?? ''));
  });

  test('are two versions of a service, without typing', async () => {
    const page = await site.open(`view=compare&from=now-20m&${of('comm="api-server"')}`);
    await rows(page).first().waitFor();
    await page.getByRole('button', { name: 'Versions …' }).click();
    const panel = page.getByRole('dialog', { name: 'Compare two versions' });
    await panel.getByLabel('Version A').waitFor();
    expect(await panel.getByLabel('Label').inputValue()).toBe('version');
    await panel.getByLabel('Version A').selectOption('41');
    await panel.getByLabel('Version B').selectOption('42');
    await panel.getByRole('button', { name: 'Compare', exact: true }).click();
    await page.waitForFunction(() => location.hash.includes('bquery='));
    expect(param(page, 'query')).toBe('comm="api-server", version="42"');
    expect(param(page, 'bquery')).toBe('comm="api-server", version="41"');
    await rows(page).first().waitFor();
    await settled(page);
    await site.shot(page, 'compare-versions');
  });

  test('draw time without data, and with lost samples, as such', async () => {
    const young = await site.open(
      `${sides(YOUNG_MS - 5 * MINUTE, YOUNG_MS + 5 * MINUTE, YOUNG_MS - 20 * MINUTE, YOUNG_MS - 10 * MINUTE)}&${of('scenario="young"')}`,
    );
    await young.locator('.strip.after .none-time').first().waitFor();
    expect(Number(await strip(young, 'before').getAttribute('data-none'))).toBeGreaterThan(10);
    expect(await young.locator('.strip.before .none-time').textContent()).toBe('no data');
    await young.getByText('No data in the baseline').waitFor();
    const lossy = await site.open(
      `${sides(LOSSY.from - 5 * MINUTE, LOSSY.from + 5 * MINUTE, LOSSY.from - 20 * MINUTE, LOSSY.from - 10 * MINUTE)}&${of('unit="redis.service",scenario="lossy"')}`,
    );
    await lossy.locator('.strip.after .lost-time').first().waitFor();
    const box = await strip(lossy, 'after').boundingBox();
    if (!box) throw new Error('no strip');
    await lossy.mouse.move(box.x + box.width * 0.7, box.y + 20);
    const told = lossy.locator('.strip.after .strip-tip');
    await told.waitFor();
    expect(await told.textContent()).toMatch(/not known, 100\.0 % of samples lost/);
    expect(await told.textContent()).not.toContain('0 cores');
    await site.shot(lossy, 'compare-lost');
  });
});

describe.skipIf(!SEEDED)('the verdict', () => {
  test('says by how much, since when, and which functions that is', async () => {
    const page = await site.open(`${DEPLOY}&${of('comm="api-server"')}`);
    const verdict = page.getByRole('region', { name: 'Verdict' });
    await verdict.locator('.verdict-why').waitFor();
    await settled(page);
    const text = (await verdict.textContent()) ?? '';
    // All of the range differs: the error is that of the whole.
    expect(text).toMatch(/\+\d+\.\d+ ± [\d.]+ cores \(\+\d+ %\)/);
    expect(text).toMatch(/\d functions? explains? \d+ % of it: .*visit_map/);
    expect(text).toMatch(/1 function is new\. 1 function is gone\./);
    await verdict.getByRole('button', { name: /visit_map/ }).click();
    await page.waitForFunction(() => location.hash.includes('search='));
    await site.shot(page, 'compare-verdict');
  });

  test('says since when, where a part of the range differs', async () => {
    const page = await site.open(
      `${sides(DEPLOYED_MS - 10 * MINUTE, DEPLOYED_MS + 10 * MINUTE, DEPLOYED_MS - 30 * MINUTE, DEPLOYED_MS - 10 * MINUTE)}&${of('comm="api-server"')}`,
    );
    const told = page.locator('.verdict-sure');
    await told.waitFor();
    expect(await told.textContent()).toContain(`since ${iso(DEPLOYED_MS).slice(11, 19)} UTC`);
  });

  test('of two alike times is calm', async () => {
    const page = await site.open(
      `${sides(DEPLOYED_MS - 8 * MINUTE, DEPLOYED_MS - 5 * MINUTE, DEPLOYED_MS - 12 * MINUTE, DEPLOYED_MS - 9 * MINUTE)}&${of('unit="redis.service"')}`,
    );
    const verdict = page.getByRole('region', { name: 'Verdict' });
    await verdict.locator('.verdict-sure').waitFor();
    await settled(page);
    expect(await verdict.textContent()).toContain('within normal variation');
    expect(await verdict.textContent()).not.toContain('explain');
  });

  test('says when there are too few samples', async () => {
    const page = await site.open(
      `${sides(DEPLOYED_MS + 5 * MINUTE, DEPLOYED_MS + 6 * MINUTE, DEPLOYED_MS - 6 * MINUTE, DEPLOYED_MS - 5 * MINUTE)}&${of('unit="sshd.service",host="web-1"')}`,
    );
    const notes = page.locator('.diff-notes');
    await notes.waitFor();
    expect(await notes.textContent()).toMatch(/before: \d+ samples, too few for changes under \d+ pp/);
  });

  test('says when what always differs between hosts looks like a change', async () => {
    const address = (b: string, a: string) => `${DEPLOY}&${of(b)}&bquery=${encodeURIComponent(a)}`;
    const two = await site.open(address('host="web-1"', 'host="web-2"'));
    await two.locator('.diff-notes', { hasText: 'different hosts' }).waitFor();
    // Of several hosts it is known by how much they differ.
    const some = await site.open(address('host=~"web-[123]"', 'host=~"web-[456]"'));
    await rows(some).first().waitFor();
    await settled(some);
    expect(await some.locator('.diff-notes').count()).toBe(0);
    expect(await some.locator('th.col-change button').getAttribute('title')).toContain('varies between hosts');
  });
});

describe.skipIf(!SEEDED)('the table of changes', () => {
  test('comes first, in cores, and follows the switch', async () => {
    const page = await site.open(DEPLOY);
    await rows(page).first().waitFor();
    const [table, graph] = await Promise.all([
      page.locator('.compare-table').boundingBox(),
      page.locator('.compare-graph').boundingBox(),
    ]);
    expect(table?.x ?? 9e9).toBeLessThan(graph?.x ?? 0);
    await page.locator('th', { hasText: 'Change, cores' }).waitFor();
    await page.getByRole('button', { name: '% of CPU', exact: true }).click();
    await page.waitForFunction(() =>
      /pp/.test(document.querySelector('.compare-table tbody .col-change')?.textContent ?? ''),
    );
    expect(param(page, 'compare')).toBe('share');
  });

  test('is there before the graph', async () => {
    const page = await site.open('view=collector');
    await page.waitForSelector('.facts');
    await page.route('**/fleetprof.collector.v1.QueryService/Profile', (route) => route.abort());
    await page.evaluate((hash) => (location.hash = hash), DEPLOY);
    await rows(page).first().waitFor();
    expect(await page.locator('.compare-graph .trouble').count()).toBe(1);
  });

  test.each([
    ['module', 'api-server'],
    ['unit', 'postgresql.service'],
    ['host', 'web-2'],
    ['version', '41'],
  ])('is by %s', async (by, row) => {
    const page = await site.open(DEPLOY);
    await rows(page).first().waitFor();
    await page.getByLabel('Changes by').selectOption(by);
    await rows(page).filter({ hasText: row }).first().waitFor();
    expect(param(page, 'rows')).toBe(by);
    await settled(page);
    const numbers = await rows(page).filter({ hasText: row }).first().locator('td.number').allTextContents();
    expect(Number(numbers[0])).toBeGreaterThan(0);
    await site.shot(page, `compare-by-${by}`);
  });

  test('leads from a host to its functions by a click', async () => {
    const page = await site.open(`${DEPLOY}&rows=host&bquery=${encodeURIComponent('region="eu-central"')}`);
    await rows(page).filter({ hasText: 'web-2' }).getByRole('button', { name: 'web-2' }).click();
    await page.waitForFunction(() => location.hash.includes('web-2'));
    expect([param(page, 'query'), param(page, 'bquery')]).toEqual([
      'host="web-2"',
      'region="eu-central", host="web-2"',
    ]);
    await rows(page).filter({ hasText: 'visit_map' }).first().waitFor();
  });

  test('says that frame filters do not reach labels', async () => {
    const page = await site.open(`${DEPLOY}&rows=unit&frame=keep:malloc`);
    await page.getByText('Frame filters do not reach the values of labels').waitFor();
  });

  test('hides the noise, counts it, and shows it again', async () => {
    const page = await site.open(DEPLOY);
    await rows(page).first().waitFor();
    const all = await rows(page).count();
    const toggle = page.getByRole('button', { name: /^Significant only/ });
    expect(await toggle.textContent()).toMatch(/\d+ within noise/);
    await toggle.click();
    await page.waitForFunction((count) => document.querySelectorAll('.compare-table tbody tr').length < count, all);
    expect(await page.locator('.compare-table tr.unsure').count()).toBe(0);
    expect(param(page, 'sure')).toBe('1');
  });

  test('keeps what is no code apart, as not compared', async () => {
    const page = await site.open(DEPLOY);
    await page.locator('.apart').waitFor();
    expect(await page.locator('.apart').textContent()).toMatch(/^not compared:.*\[other\]/);
    expect(await page.locator('.compare-table tbody').textContent()).not.toContain('[other]');
  });

  test('fits a phone: sides, verdict and table before the graph', async () => {
    const page = await site.open(DEPLOY, { viewport: { width: 390, height: 844 } });
    await rows(page).first().waitFor();
    await settled(page);
    expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
    const top = async (selector: string) => (await page.locator(selector).first().boundingBox())?.y ?? Number.NaN;
    const places = [
      await top('.strips'),
      await top('.compare-verdict'),
      await top('.compare-table'),
      await top('.compare-graph'),
    ];
    expect([...places].sort((one, other) => one - other)).toEqual(places);
    await site.shot(page, 'compare-phone');
  });
});

describe.skipIf(!SEEDED)('the baseline', () => {
  const ghost = (page: Page) => page.locator('.plot[data-ghost]');
  const choose = (page: Page, value: string) => page.getByLabel('Baseline', { exact: true }).selectOption(value);

  test('is one choice for charts and tables, in the address', async () => {
    const page = await site.open('from=now-30m&by=unit');
    await ghost(page).waitFor();
    expect(await page.locator('.chart-was').textContent()).toMatch(/previous period: \d+\.\d cores/);
    await choose(page, 'week');
    await page.waitForFunction(() => /last week: \d/.test(document.querySelector('.chart-was')?.textContent ?? ''));
    expect(param(page, 'baseline')).toBe('week');
    const row = page.locator('.top tbody tr').first();
    await page.waitForFunction(() => /%/.test(document.querySelector('.top tbody .col-before')?.textContent ?? ''));
    expect(await row.locator('.col-before').textContent()).toMatch(/^\d+\.\d+ %$/);
    for (const [view, cell] of [
      ['hosts', 'td.col-before'],
      ['cgroups', 'th:has-text("Before")'],
      ['overview', 'th:has-text("Before")'],
    ]) {
      await page.evaluate((hash) => (location.hash = hash), `view=${view}&from=now-30m&baseline=week`);
      await page.waitForSelector(`main.view-${view} ${cell}`);
    }
    expect(await page.locator('.fleet-key').textContent()).toContain('last week');
    await page.evaluate((hash) => (location.hash = hash), 'view=profile&from=now-30m&baseline=none');
    await page.waitForSelector('main.view-profile .plot');
    await settled(page);
    expect(await ghost(page).count()).toBe(0);
    expect(await page.locator('.top th.col-before').count()).toBe(0);
  });

  test('that has no data is missing, and not 0', async () => {
    const page = await site.open(`from=${iso(YOUNG_MS)}&to=${iso(YOUNG_MS + 10 * MINUTE)}&${of('scenario="young"')}`);
    await ghost(page).waitFor();
    await settled(page);
    expect(await ghost(page).getAttribute('data-ghost')).toBe('0');
    expect(await page.locator('.chart-was').textContent()).toContain('no data');
    await page.waitForFunction(() => document.querySelector('.top tbody .col-before')?.textContent === 'no data');
    await site.shot(page, 'baseline-missing');
    const overview = await site.open(`view=overview&from=now-20m&baseline=hour&${of('scenario="young"')}`);
    await overview.locator('.fleet-plot .spark-missing').waitFor({ state: 'attached' });
    expect(await overview.locator('.fleet-key').textContent()).toContain('no data for the baseline');
  });

  test('of the last deploy says so where there is none', async () => {
    const was = site.mock?.events.annotations ?? [];
    if (site.mock) site.mock.events.annotations = [];
    try {
      const page = await site.open('from=now-30m&baseline=deploy');
      await page.getByText('no deploy in 30 days').waitFor();
      expect(await ghost(page).count()).toBe(0);
    } finally {
      if (site.mock) site.mock.events.annotations = was;
    }
  });
});

describe.skipIf(!SEEDED)('lost samples where the kernel accounts for CPU', () => {
  test('are hatched over lines that are exact', async () => {
    const page = await site.open(
      `from=${iso(LOSSY.from - 5 * MINUTE)}&to=${iso(LOSSY.to + 2 * MINUTE)}&by=host&${of('scenario="accounts"')}`,
    );
    await page.waitForSelector('.u-over');
    await settled(page);
    expect(Number(await page.locator('.plot').getAttribute('data-lost'))).toBeGreaterThan(60);
    expect(await page.locator('.chart-lacks').first().textContent()).toContain('CPU is exact');
    const box = await page.locator('.u-over').boundingBox();
    if (!box) throw new Error('no chart');
    await page.mouse.move(box.x + box.width * 0.6, box.y + 40);
    const tip = page.locator('.tip.under');
    await tip.waitFor();
    expect(await tip.textContent()).toMatch(/sum \d+\.\d cores/);
    expect(await tip.textContent()).toContain('CPU is exact');
  });

  test('are hatched on the small charts where their lines are too low', async () => {
    const lossy = await site.open(`view=overview&${of('scenario="lossy"')}`);
    await lossy.locator('.fleet-plot .lost-time').waitFor();
    await lossy.locator('.spark-box .lost-time').first().waitFor();
    const exact = await site.open(`view=overview&${of('scenario="accounts"')}`);
    await exact.locator('.fleet-plot .lost-time').waitFor();
    expect(await exact.locator('.spark-box .lost-time').count()).toBe(0);
    expect(await exact.locator('.fleet-key').textContent()).toContain('CPU is exact');
  });
});

describe.skipIf(!SEEDED)('times', () => {
  test('have their zone, and are in UTC by one click, everywhere', async () => {
    const page = await site.open(`from=${iso(DEPLOYED_MS)}&to=${iso(DEPLOYED_MS + 10 * MINUTE)}`, {
      timezoneId: 'Asia/Kolkata',
    });
    await drawn(page);
    await settled(page);
    const range = page.locator('.head .range');
    expect(await range.textContent()).toContain('UTC+05:30');
    const box = await page.locator('.u-over').boundingBox();
    if (!box) throw new Error('no chart');
    await page.mouse.move(box.x + box.width * 0.5, box.y + 40);
    const head = page.locator('.tip.under .tip-head');
    await head.waitFor();
    expect(await head.textContent()).toContain('UTC+05:30');
    await page.getByRole('button', { name: 'UTC+05:30', exact: true }).click();
    await page.waitForFunction(() => /UTC$/.test(document.querySelector('.head .range')?.textContent?.trim() ?? ''));
    expect(await range.textContent()).toContain(iso(DEPLOYED_MS).slice(11, 16));
    await page.reload();
    await drawn(page);
    expect(await range.textContent()).toContain(iso(DEPLOYED_MS).slice(11, 16));
  });

  test('that are typed are of the zone that is shown', async () => {
    const page = await site.open('from=now-30m', { timezoneId: 'Asia/Kolkata' });
    await page.getByRole('button', { name: 'UTC+05:30', exact: true }).click();
    await page.getByTitle('Choose the time range').click();
    await page.getByRole('textbox', { name: 'From' }).fill('2026-11-21 10:00');
    await page.getByRole('textbox', { name: 'To' }).fill('2026-11-21 11:00');
    await page.getByRole('button', { name: 'Apply' }).click();
    await page.waitForFunction(() => location.hash.includes('from='));
    expect(param(page, 'from')).toBe('2026-11-21T10:00:00Z');
  });
});

describe.skipIf(!SEEDED)('while answers are under way', () => {
  test.each([
    ['profile', '.flame-panel'],
    ['compare', '.compare-head'],
  ])('nothing of the %s jumps when they come', async (view, below) => {
    const page = await site.open('view=collector');
    await page.waitForSelector('.facts');
    await page.evaluate(() => {
      const store = window as never as { __shift: number };
      store.__shift = 0;
      new PerformanceObserver((list) => {
        for (const entry of list.getEntries() as never as {
          value: number;
          hadRecentInput: boolean;
          sources: { node: Element | null; previousRect: DOMRect; currentRect: DOMRect }[];
        }[]) {
          if (entry.hadRecentInput) continue;
          store.__shift += entry.value;
          for (const { node, previousRect, currentRect } of entry.sources)
            console.log(
              `${entry.value.toFixed(3)} ${node?.nodeName} .${node?.className} ${previousRect.y} to ${currentRect.y}`,
            );
        }
      }).observe({ type: 'layout-shift', buffered: false });
    });
    await page.evaluate((hash) => (location.hash = hash), `view=${view}&from=now-30m&${of('scenario="slow"')}`);
    await page.waitForSelector(`main.view-${view}`);
    // Going to another page is no jump: what comes after it is.
    await page.evaluate(async () => {
      await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
      (window as never as { __shift: number }).__shift = 0;
    });
    await page.waitForSelector(below);
    await settled(page);
    const shift = await page.evaluate(() => (window as never as { __shift: number }).__shift);
    console.log(`${view}: cumulative layout shift ${shift.toFixed(3)}`);
    // What browsers call good.
    expect(shift).toBeLessThan(0.1);
  });
});
