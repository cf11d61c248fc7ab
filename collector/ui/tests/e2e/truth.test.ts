// What the page must not say: that a blind host is well, that lost or missing time was idle, that
// chance is a change.

import { fromBinary } from '@bufbuild/protobuf';
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { SeriesRequestSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { DEPLOYED_MS, LOSSY } from '../mock/fleet';
import { SEEDED, drawn, settled, useSite } from './browser';

const site = useSite();
const iso = (ms: number) => new Date(ms).toISOString();
const of = (selector: string) => `query=${encodeURIComponent(selector)}`;
const HOUR = `from=${iso(DEPLOYED_MS - 10 * 60_000)}&to=${iso(DEPLOYED_MS + 24 * 60_000)}`;
const LOST = `from=${iso(LOSSY.from + 60_000)}&to=${iso(LOSSY.to - 60_000)}`;

/** Cores of a line, as the legend has them. */
async function cores(page: Page, line: string): Promise<number> {
  const row = page.locator('.legend tbody tr', { hasText: line });
  return Number((await row.locator('td.number').first().textContent()) ?? '');
}

const steps = (page: Page, state: 'lost' | 'none') => page.locator('.plot').getAttribute(`data-${state}`).then(Number);

/** The colours in the middle of the plot at a part of its width. */
async function coloursAt(page: Page, part: number): Promise<Set<string>> {
  return new Set(
    await page.evaluate((at) => {
      const canvas = document.querySelector<HTMLCanvasElement>('.plot canvas');
      const over = document.querySelector('.u-over')?.getBoundingClientRect();
      const box = canvas?.getBoundingClientRect();
      if (!canvas || !over || !box) return [];
      const ratio = canvas.width / box.width;
      const [x, y] = [
        (over.left - box.left + over.width * at) * ratio,
        (over.top - box.top + over.height * 0.6) * ratio,
      ];
      const data = canvas.getContext('2d')?.getImageData(x, y, 24, 1).data ?? [];
      return Array.from({ length: data.length / 4 }, (_, pixel) => data.slice(4 * pixel, 4 * pixel + 4).join(' '));
    }, part),
  );
}

describe.skipIf(!SEEDED)('a host without usable samples', () => {
  test('is told of on every page, with since when, why and what to do', async () => {
    site.mock?.blind.set('web-3', DEPLOYED_MS + 60_000);
    try {
      for (const view of ['overview', 'profile', 'compare', 'cgroups', 'hosts', 'captures', 'pins', 'collector']) {
        const page = await site.open(`view=${view}&from=now-15m`);
        const banner = page.getByRole('alert', { name: 'Hosts without usable samples' });
        await banner.waitFor();
        const text = (await banner.textContent()) ?? '';
        expect(text).toContain(`web-3 sends no usable samples since ${iso(DEPLOYED_MS + 60_000).slice(11, 19)}`);
        expect(text).toContain('ring buffers are full');
        expect(text).toContain('agent-ctl doctor');
        await page.close();
      }
    } finally {
      site.mock?.blind.clear();
    }
  });

  test('is red and first in the table of hosts, with what its agent says', async () => {
    site.mock?.blind.set('web-3', DEPLOYED_MS);
    try {
      const page = await site.open('view=hosts');
      const row = page.locator('tr.blind');
      await row.waitFor();
      expect(await page.locator('tbody tr').first().textContent()).toContain('web-3');
      expect(await row.locator('.col-lost').textContent()).toBe('99.8 %');
      expect(await row.locator('.col-coverage').textContent()).toBe('0.20 %');
      expect(await row.textContent()).toContain('ring buffers are full');
      expect(await page.locator('.page-head').textContent()).toContain('1 without usable samples');
    } finally {
      site.mock?.blind.clear();
    }
  });

  test('ends the banner when it sends again', async () => {
    site.mock?.blind.set('web-3', DEPLOYED_MS);
    const page = await site.open('view=hosts');
    await page.locator('.alarm').waitFor();
    site.mock?.blind.clear();
    await page.locator('.alarm').waitFor({ state: 'detached' });
  });
});

describe.skipIf(!SEEDED)('lost samples', () => {
  test('are hatched, not drawn as nothing, and left out of the mean', async () => {
    const page = await site.open(`${HOUR}&${of('unit="redis.service",scenario="lossy"')}`);
    await drawn(page);
    await settled(page);
    const whole = await site.open(`${HOUR}&${of('unit="redis.service"')}`);
    await drawn(whole);
    await settled(whole);
    // Twelve minutes in steps of ten seconds, and what hosts that start between steps make of it.
    expect(await steps(page, 'lost')).toBeGreaterThanOrEqual(71);
    expect(await steps(whole, 'lost')).toBe(0);
    const [lossy, known] = [await cores(page, 'cache-1'), await cores(whole, 'cache-1')];
    expect(Math.abs(lossy / known - 1)).toBeLessThan(0.1);
    expect(await page.locator('.chart-lacks').textContent()).toContain('samples lost in 12 min');
    expect((await coloursAt(page, 26 / 34)).size).toBeGreaterThan(1);
    await site.shot(page, 'samples-lost');
    const box = await page.locator('.u-over').boundingBox();
    if (!box) throw new Error('no chart');
    await page.mouse.move(box.x + (box.width * 26) / 34, box.y + 40);
    await page.locator('.tip.under', { hasText: '100.0 % of the samples of its hosts lost' }).waitFor();
    expect(await page.locator('.tip.under').textContent()).not.toContain('0 cores');
  });

  test('are as loud as what they mean for the profile', async () => {
    const page = await site.open(`${LOST}&${of('scenario="lossy"')}`);
    await drawn(page);
    const loss = page.locator('.loss.bad');
    await loss.waitFor();
    expect(await loss.textContent()).toMatch(/All [\d,]+ samples of this selection were lost/);
    expect(await page.locator('.quality-button').getAttribute('class')).toContain('bad');
    expect(await page.locator('.quality li.bad').first().textContent()).toMatch(/^lost 9\d|^lost 100/);
  });

  test('of the time before a capture are one statement', async () => {
    const page = await site.open(of('scenario="past-lost"'));
    await page.waitForSelector('.chart-panel');
    await page.getByRole('button', { name: 'Capture …' }).click();
    await page.waitForSelector('dialog[open]');
    await page.locator('dialog [name=duration]').fill('300ms');
    await page.locator('dialog [name=before]').fill('2m');
    await page.locator('dialog button[type=submit]').click();
    await page.waitForSelector('.capture-view');
    await page.getByRole('button', { name: 'Before', exact: true }).click();
    const told = page.locator('.capture-hosts strong.wrong');
    await told.waitFor();
    expect(await told.textContent()).toMatch(/^All [\d,]+ samples of 2 min were lost\.$/);
    const view = await page.locator('.capture-view').textContent();
    expect(view).not.toContain('No samples');
    expect(view).not.toContain('coverage');
  });
});

describe.skipIf(!SEEDED)('time without data', () => {
  test('is grey, and means are of the time that is covered', async () => {
    const day = await site.open(`from=now-24h&${of('scenario="young"')}`);
    await drawn(day);
    await settled(day);
    expect(await steps(day, 'none')).toBeGreaterThan(200);
    expect(await day.locator('.chart-lacks').textContent()).toMatch(/^covered \d+ min of 24 h$/);
    // Grey, and at most a line of the grid.
    expect((await coloursAt(day, 0.4)).size).toBeLessThanOrEqual(2);
    const hour = await site.open(`from=now-30m&${of('scenario="young"')}`);
    await drawn(hour);
    await settled(hour);
    expect(Math.abs((await cores(day, 'web-1')) / (await cores(hour, 'web-1')) - 1)).toBeLessThan(0.3);
    const box = await day.locator('.u-over').boundingBox();
    if (!box) throw new Error('no chart');
    await day.mouse.move(box.x + box.width * 0.3, box.y + 40);
    await day.locator('.tip.under', { hasText: 'no data' }).waitFor();
    expect(await day.locator('.tip.under').textContent()).not.toContain('cores');
    await site.shot(day, 'no-data');
  });

  test('is no fall at either end of a range that moves', async () => {
    const page = await site.open('from=now-5m&by=');
    await drawn(page);
    await settled(page);
    expect(await steps(page, 'none')).toBe(0);
    // The upper half of the first and the last step is drawn: their rates are of the time they
    // cover.
    for (const part of [0.005, 0.97]) expect((await coloursAt(page, part)).size, `at ${part}`).toBeLessThan(4);
    const means = await page.evaluate(() => document.querySelector('.chart-lacks')?.textContent ?? '');
    expect(means).toBe('');
  });
});

describe.skipIf(!SEEDED)('a question that fails', () => {
  test('dims the chart as it dims the graph', async () => {
    const page = await site.open(HOUR);
    await drawn(page);
    await settled(page);
    await page.evaluate((hash) => (location.hash = hash), `${HOUR}&${of('unit=~"post(.*"')}`);
    await page.waitForSelector('.trouble');
    expect(await page.locator('.trouble').count()).toBe(1);
    expect(await page.locator('.answer.stale').count()).toBe(2);
    const faded = await page.locator('.answer.stale .chart').evaluate(async (chart) => {
      await new Promise((resolve) => setTimeout(resolve, 400));
      return Number(getComputedStyle(chart).opacity);
    });
    expect(faded).toBeLessThan(0.7);
    // So are the sentence above them and the notes on their data.
    for (const one of ['.selection-verdict', '.chart-panel .quality'])
      expect(await page.locator(one).getAttribute('class')).toContain('outdated');
    await page.evaluate((hash) => (location.hash = hash), HOUR);
    await page.locator('.selection-verdict.outdated').waitFor({ state: 'detached' });
  });

  test('dims the verdict of a comparison, and what its sides had', async () => {
    const page = await site.open(`view=compare&${HOUR}`);
    await page.locator('.compare-verdict b').waitFor();
    await settled(page);
    expect(await page.locator('.outdated').count()).toBe(0);
    await page.evaluate((hash) => (location.hash = hash), `view=compare&${HOUR}&${of('unit=~"post(.*"')}`);
    await page.locator('.compare-verdict.outdated').waitFor();
    expect(await page.locator('.side-sum.outdated').count()).toBe(2);
  });

  test('about the baseline leaves that of another selection out', async () => {
    const page = await site.open(HOUR);
    await page.locator('.selection-verdict', { hasText: 'compared with' }).waitFor();
    expect(await page.locator('.plot').getAttribute('data-ghost')).not.toBeNull();
    // Of the baseline alone: its range ends where the chosen one starts.
    const from = BigInt(DEPLOYED_MS - 10 * 60_000) * 1_000_000n;
    await page.route('**/Series', (route) => {
      const body = fromBinary(SeriesRequestSchema, route.request().postDataBuffer()?.subarray(5) ?? new Uint8Array());
      const end = body.selection?.range?.endUnixNs ?? 0n;
      return end <= from ? route.fulfill({ status: 503 }) : route.fallback();
    });
    await page.evaluate((hash) => (location.hash = hash), `${HOUR}&${of('unit="redis.service"')}`);
    await page.locator('.chart-was', { hasText: 'not known' }).waitFor();
    expect(await page.locator('.selection-verdict').textContent()).toMatch(/^[\d.]+ cores on/);
    expect(await page.locator('.selection-verdict').textContent()).not.toContain('compared with');
    expect(await page.locator('.plot').getAttribute('data-ghost')).toBeNull();
  });
});

describe.skipIf(!SEEDED)('the comparison', () => {
  const quiet = `view=compare&from=${iso(DEPLOYED_MS - 8 * 60_000)}&to=${iso(DEPLOYED_MS - 5 * 60_000)}&bfrom=${iso(DEPLOYED_MS - 12 * 60_000)}&bto=${iso(DEPLOYED_MS - 9 * 60_000)}`;

  test('of a fleet on which nothing but load came and went marks few rows', async () => {
    // Java works in bursts of five minutes, of which one side may have one.
    const page = await site.open(`${quiet}&${of('comm!="java"')}`);
    await drawn(page);
    await page.waitForSelector('.top tbody tr');
    // With millions of samples, taken as independent, nearly every row would be sure.
    const [rows, sure] = [await page.locator('.top tbody tr').count(), await page.locator('.top .sure').count()];
    expect(rows).toBeGreaterThan(20);
    expect(sure).toBeLessThan(rows / 4);
    await page.locator('.top th', { hasText: 'Significant' }).waitFor();
  });

  test('sets rows apart that are no code', async () => {
    const page = await site.open(`${quiet}&${of('scenario="hostile"')}`);
    await drawn(page);
    await page.waitForSelector('.top tbody tr, .apart');
    const names = await page.locator('.top tbody .cell-name').allTextContents();
    expect(names.some((name) => /^\[(lost|truncated|other)\]/.test(name))).toBe(false);
  });

  test('switches graph and table to cores, of the time that each side covers', async () => {
    // 30 s and 3 minutes of the same load.
    const page = await site.open(
      `view=compare&from=${iso(DEPLOYED_MS - 8 * 60_000)}&to=${iso(DEPLOYED_MS - 5 * 60_000)}&bfrom=${iso(DEPLOYED_MS - 9 * 60_000)}&bto=${iso(DEPLOYED_MS - 8.5 * 60_000)}`,
    );
    await drawn(page);
    await page.waitForSelector('.top tbody tr');
    await page.locator('.top th', { hasText: 'Change, cores' }).waitFor();
    const [before, after] = await page
      .locator('.top tbody tr')
      .filter({ hasText: 'malloc' })
      .first()
      .locator('td.number')
      .allTextContents();
    // The load wanders by some tens of percent; without the time it would be a sixth.
    const ratio = Number(before) / Number(after);
    expect(ratio).toBeGreaterThan(0.5);
    expect(ratio).toBeLessThan(2);
    await page.locator('.flame-box').focus();
    await page.keyboard.press('ArrowDown');
    await page.waitForFunction(() => /cores/.test(document.querySelector('.detail')?.textContent ?? ''));
    await site.shot(page, 'compare-cores');
  });

  test('is of what was sampled, and says what was lost', async () => {
    const page = await site.open(
      `view=compare&from=${iso(LOSSY.from - 5 * 60_000)}&to=${iso(LOSSY.from + 5 * 60_000)}&bfrom=${iso(LOSSY.from - 9 * 60_000)}&bto=${iso(LOSSY.from - 5 * 60_000)}&${of('scenario="lossy"')}`,
    );
    await drawn(page);
    await page.waitForSelector('.top tbody tr');
    expect(await page.locator('.top tbody').textContent()).not.toContain('[lost]');
    expect(await page.locator('.diff-notes').textContent()).toMatch(/after: 50\.\d % lost, not compared/);
    await page.getByLabel('Search functions and modules').fill('[lost]');
    await page.waitForFunction(() => /in 0 frames/.test(document.querySelector('.search output')?.textContent ?? ''));
  });
});

describe.skipIf(!SEEDED)('names and heads', () => {
  test('a cgroup without a path keeps its name, and one that is not known says so', async () => {
    const page = await site.open(`view=cgroups&${of('scenario="lossy"')}`);
    await page.waitForSelector('.tree tbody tr');
    await page.getByRole('button', { name: '[unknown cgroup 139]', exact: true }).waitFor();
    const unknown = page.locator('.tree tbody tr', { hasText: '[unknown cgroup]' });
    expect(await unknown.textContent()).toContain('most of them were lost');
    expect(await page.locator('.tree').textContent()).not.toContain('(empty)');
  });

  test('coverage of hosts and of containers is one number', async () => {
    const containers = await site.open(`view=cgroups&${HOUR}&${of('host="web-1"')}`);
    await containers.waitForSelector('.tree tbody tr');
    const hosts = await site.open(`view=hosts&${HOUR}`);
    await hosts.waitForSelector('tbody tr');
    const number = async (text: Promise<string | null>) => Number(((await text) ?? '').replace(' %', ''));
    const one = await number(hosts.locator('tbody tr', { hasText: 'web-1' }).locator('.col-coverage').textContent());
    const other = await number(containers.locator('.tree tbody tr').first().locator('.col-coverage').textContent());
    expect(Math.abs(one - other)).toBeLessThan(1);
  });

  test('a chart that shows some lines says what graph and table are of, and can select them', async () => {
    const page = await site.open(`${HOUR}&by=unit`);
    await drawn(page);
    await page.locator('.legend .wide button', { hasText: 'postgresql' }).click();
    const note = page.locator('.lines-note');
    await note.waitFor();
    expect(await note.textContent()).toContain('postgresql.service');
    expect(await note.textContent()).toContain('The graph and the table are of everything that is selected');
    await page.getByRole('button', { name: 'Select only what the chart shows' }).click();
    await page.waitForFunction(
      () => new URLSearchParams(location.hash.slice(1)).get('query') === 'unit="postgresql.service"',
    );
    await note.waitFor({ state: 'detached' });
  });

  test('waits have who woke them beside where they were', async () => {
    const page = await site.open(of('scenario="waits"'));
    await page.waitForSelector('.chart-panel');
    await page.getByRole('button', { name: 'Capture …' }).click();
    await page.waitForSelector('dialog[open]');
    await page.locator('dialog [name=duration]').fill('300ms');
    await page.locator('dialog button[type=submit]').click();
    await page.waitForSelector('.capture-view');
    await drawn(page);
    await page.locator('.top th', { hasText: 'Blocked in' }).waitFor();
    const first = page.locator('.top tbody tr').first();
    expect(await first.locator('.cell-name').textContent()).toContain('WaitEventSetWait');
    expect(await first.locator('.woken').textContent()).toMatch(/a hard interrupt/);
    await site.shot(page, 'waits');
  });
});
