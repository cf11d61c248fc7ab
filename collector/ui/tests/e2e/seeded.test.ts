// What needs known data: comparison, hostile names, errors, slowness, the large graph, live mode.

import { describe, expect, test } from 'vitest';
import { DEPLOYED_MS, HOSTILE } from '../mock/fleet';
import { SLOW_MS } from '../mock/server';
import {
  SEEDED,
  drawn,
  endWorker,
  holdWorkers,
  levelPoint,
  param,
  settled,
  silenceWorker,
  useSite,
  withhold,
} from './browser';

const site = useSite();
const iso = (ms: number) => new Date(ms).toISOString();
const scenario = (name: string) => `query=${encodeURIComponent(`scenario="${name}"`)}`;

describe.skipIf(!SEEDED)('comparison', () => {
  const address = `view=compare&from=${iso(DEPLOYED_MS + 10 * 60_000)}&to=${iso(DEPLOYED_MS + 20 * 60_000)}&bfrom=${iso(DEPLOYED_MS - 12 * 60_000)}&bto=${iso(DEPLOYED_MS - 2 * 60_000)}`;

  test('shows what vanished, what is new and what is chance', async () => {
    const page = await site.open(address);
    await drawn(page);
    await page.waitForSelector('.top tbody tr');
    const row = (name: string) => page.locator('.top tbody tr', { hasText: name });
    await page.getByLabel('Filter rows of the table').fill('checksum');
    await page.getByLabel('Filter rows of the table').fill('');
    expect(await row('crc32fast::baseline::update').locator('.badge').textContent()).toBe('gone');
    expect(await row('xxhash_rust::xxh3::xxh3_64_long').locator('.badge').textContent()).toBe('new');
    expect(await row('serde_json::value::de::visit_map').first().locator('.sure').count()).toBe(1);
    await page.getByLabel('Search functions and modules').fill('crc32fast');
    await page.waitForFunction(() => /in 1 frame/.test(document.querySelector('.search output')?.textContent ?? ''));
    await site.shot(page, 'compare');
  });

  test('what vanished has no width where width is after', async () => {
    const page = await site.open(`${address}&width=after&search=crc32fast`);
    await drawn(page);
    await page.waitForFunction(() => /in 0 frames/.test(document.querySelector('.search output')?.textContent ?? ''));
  });

  test('two selections can differ', async () => {
    const page = await site.open(
      `${address}&query=${encodeURIComponent('host="web-1"')}&bquery=${encodeURIComponent('host="web-2"')}`,
    );
    await drawn(page);
    const chips = await page.getByRole('list', { name: 'Matchers' }).allTextContents();
    expect(chips.map((text) => /web-\d/.exec(text)?.[0])).toEqual(['web-2', 'web-1']);
  });
});

describe.skipIf(!SEEDED)('hostile names', () => {
  test('run no script and are seen as what they are', async () => {
    const page = await site.open(scenario('hostile'));
    await drawn(page);
    const texts = await page.locator('.top tbody .cell-name').allTextContents();
    const seen = texts.join('\n');
    expect(seen).toContain('<script>window.__pwned = 1</script>');
    expect(seen).toContain('\\x1b[31mred');
    expect(seen).toContain('\\u{202e}');
    expect(seen).toContain('zero\\u{200b}width');
    expect(seen).toContain('two\\nlines\\tand a tab');
    expect(seen).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u200b\u202e]/);
    expect(Math.max(...texts.map((text) => text.length))).toBeLessThan(700);
    expect(await page.evaluate(() => (window as never as { __pwned?: number }).__pwned)).toBeUndefined();
    await site.shot(page, 'hostile');
  });

  test('survive search, focus, callers, tooltips and the address', async () => {
    for (const name of Object.values(HOSTILE)) {
      const page = await site.open(`${scenario('hostile')}&focus=${encodeURIComponent(name)}`);
      await drawn(page);
      const point = await levelPoint(page, 2, 0.5);
      await page.mouse.move(point.x, point.y);
      await page.waitForSelector('.hover-line .hovered');
      await page.evaluate((fn) => (location.hash = `${location.hash}&fn=${encodeURIComponent(fn)}`), name);
      await page.waitForSelector('.sandwich');
      expect(await page.locator('.half').count()).toBe(2);
      expect(param(page, 'focus') ?? param(page, 'do')).toBe(name);
      expect(
        await page.evaluate(() => [
          (window as never as { __pwned?: number }).__pwned,
          document.documentElement.scrollWidth <= innerWidth,
        ]),
      ).toEqual([undefined, true]);
      await page.close();
    }
  });

  test('cgroups with them have rows', async () => {
    const page = await site.open(`view=cgroups&${scenario('hostile')}`);
    await page.waitForSelector('.tree tbody tr');
    expect(await page.locator('.tree').textContent()).toContain('\\u{202e}');
    expect(await page.evaluate(() => (window as never as { __pwned?: number }).__pwned)).toBeUndefined();
  });
});

describe.skipIf(!SEEDED)('when it goes wrong', () => {
  for (const [name, says] of [
    ['error-invalid', 'Invalid query'],
    ['error-exhausted', 'Narrow the time range'],
    ['error-busy', 'The collector is busy'],
    ['error-deadline', 'Timeout'],
    ['error-unavailable', 'The collector cannot answer now: its disk is full'],
    ['error-internal', 'The collector failed'],
    ['broken-end', 'The answer cannot be read'],
    ['broken-ids', 'The answer cannot be read'],
  ]) {
    test(`${name}: a sentence and what to do`, async () => {
      const page = await site.open(scenario(name));
      await page.waitForSelector('.trouble');
      expect((await page.locator('.trouble').allTextContents()).join('\n')).toContain(says);
      expect(await page.evaluate(() => (window as never as { __pwned?: number }).__pwned)).toBeUndefined();
      await site.shot(page, name);
    });
  }

  test('nothing in the selection: says so and offers a way out', async () => {
    const page = await site.open(scenario('empty'));
    await page.getByText('No samples in this selection').waitFor();
    await page.getByRole('button', { name: 'Select everything' }).click();
    await drawn(page);
  });

  test('a range that is no range', async () => {
    const page = await site.open('from=now&to=now-1h');
    await page.waitForSelector('.trouble');
    expect(await page.locator('.trouble').textContent()).toContain('The range ends before it starts');
    await page.getByRole('button', { name: 'Swap' }).click();
    await drawn(page);
    expect([param(page, 'from'), param(page, 'to')]).toEqual([null, null]);
  });

  test('a slow answer shows that it is waited for; a newer question cancels it', async () => {
    const page = await site.open(scenario('slow'));
    await page.waitForSelector('.waiting', { timeout: SLOW_MS });
    await page.waitForSelector('.skeleton');
    await site.shot(page, 'waiting');
    await page.evaluate(() => (location.hash = 'from=now-15m'));
    await drawn(page);
    await expect.poll(() => site.mock?.cancelled.get('profile') ?? 0).toBeGreaterThan(0);
  });

  test('who has logged in sees as whom, and logs out', async () => {
    if (!site.mock) return;
    site.mock.session = { name: 'oidc:anna<b>\u202e', role: 'viewer' };
    const page = await site.open();
    await page.getByTitle('Logged in as oidc:anna<b>').click();
    expect(await page.locator('.menu').textContent()).toContain('viewer');
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.waitForURL((url) => url.pathname === '/login');
    expect(site.mock.session).toBeUndefined();
    const other = await site.open();
    await drawn(other);
    expect(await other.getByTitle('Logged in as').count()).toBe(0);
  });

  test('a clock that is wrong is told of, and ranges follow the collector', async () => {
    if (site.mock) site.mock.skewMs = 90_000;
    const page = await site.open();
    await page.getByText(/clock differs from the collector/).waitFor();
    if (site.mock) site.mock.skewMs = 0;
  });
});

describe.skipIf(!SEEDED)('live', () => {
  test('asks again with every window, and stops', async () => {
    const page = await site.open('from=now-15m');
    await drawn(page);
    await settled(page);
    await page.clock.install();
    const calls = () => site.mock?.calls.get('profile') ?? 0;
    await page.getByRole('button', { name: 'Live' }).click();
    const before = calls();
    await page.clock.runFor(10_500);
    await expect.poll(calls).toBe(before + 1);
    await page.getByRole('button', { name: 'Live' }).click();
    await page.clock.runFor(30_000);
    expect(calls()).toBe(before + 1);
    expect(param(page, 'live')).toBeNull();
  });
});

describe.skipIf(!SEEDED)('the worker that holds profiles', () => {
  test('leaves the page awake, whatever is made of the largest answer, for the record', async () => {
    const page = await site.open('view=collector', { viewport: { width: 1920, height: 1080 } });
    await page.waitForSelector('.facts');
    await page.evaluate(() => {
      const store = window as never as { __tasks: number[] };
      store.__tasks = [];
      new PerformanceObserver((list) => store.__tasks.push(...list.getEntries().map((one) => one.duration))).observe({
        type: 'longtask',
      });
    });
    const longest = async (what: string, act: () => Promise<unknown>) => {
      await page.evaluate(() => ((window as never as { __tasks: number[] }).__tasks = []));
      await act();
      await settled(page);
      const tasks = await page.evaluate(
        () =>
          new Promise<number[]>((resolve) =>
            setTimeout(() => resolve((window as never as { __tasks: number[] }).__tasks), 300),
          ),
      );
      console.log(`200,000 stacks, ${what}: longest task of the page ${Math.max(0, ...tasks)} ms (0: below 50)`);
    };
    await longest('opened', async () => {
      await page.evaluate((hash) => (location.hash = hash), scenario('largest'));
      await drawn(page);
    });
    expect(page.workers().some((one) => one.url().endsWith('/analysis.js'))).toBe(true);
    const nodes = await page.locator('.flame-box canvas').getAttribute('data-nodes').then(Number);
    expect(nodes).toBeGreaterThan(199_000);
    await page.getByTitle('How the graph is drawn').click();
    await longest('counted in samples', () => page.getByRole('button', { name: 'Count samples' }).click());
    await longest('callers and callees', async () => {
      await page.getByRole('button', { name: 'Callers and callees' }).first().click();
      await page.waitForSelector('.sandwich');
    });
    await longest('compared', async () => {
      await page.evaluate((hash) => (location.hash = hash), `view=compare&${scenario('largest')}`);
      await drawn(page);
    });
  });

  test('can be left out, for tools that do not wait for workers', async () => {
    const page = await site.open('view=collector');
    await page.goto(`${site.url}/?worker=off#${scenario('timestamps')}`);
    await drawn(page);
    await page.waitForSelector('.heat-box canvas');
    expect(page.workers()).toEqual([]);
    await page.getByLabel('Search functions and modules').fill('a');
    expect(new URL(page.url()).search).toBe('?worker=off');
  });

  test('that cannot start is told of; what needs none is shown, and it is tried again', async () => {
    const page = await site.open('view=collector');
    await page.waitForSelector('.facts');
    await page.route('**/analysis.js', (route) => route.abort());
    await page.evaluate(() => (location.hash = 'view=profile'));
    await page.reload();
    await page.locator('.trouble', { hasText: 'The page cannot process profiles' }).waitFor();
    await page.waitForSelector('.u-over');
    await page.unroute('**/analysis.js');
    await page.getByRole('button', { name: 'Try again' }).click();
    await drawn(page);
    expect(await page.locator('.trouble').count()).toBe(0);
  });

  test.each([
    ['profile', scenario('timestamps')],
    ['comparison', 'view=compare'],
  ])('that ends has the %s loaded again, which then answers as before', async (_, address) => {
    const page = await site.open(address);
    await holdWorkers(page);
    await drawn(page);
    const calls = () => site.mock?.calls.get('profile') ?? 0;
    const before = calls();
    await endWorker(page);
    await expect.poll(calls).toBeGreaterThan(before);
    await settled(page);
    await page.getByTitle('How the graph is drawn').click();
    await page.getByRole('button', { name: 'Count samples' }).click();
    await settled(page);
    await page.locator('.flame-box').focus();
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown', 's']) await page.keyboard.press(key);
    await page.waitForSelector('.sandwich');
    expect(await page.locator('.trouble').count()).toBe(0);
  });

  test('that hangs is told of, and restarted by a click', async () => {
    const page = await site.open();
    await holdWorkers(page);
    await drawn(page);
    await settled(page);
    await silenceWorker(page);
    // Nothing is asked of it, so nobody misses it.
    expect(await page.locator('.trouble').count()).toBe(0);
    await page.getByTitle('How the graph is drawn').click();
    await page.getByRole('button', { name: 'Count samples' }).click();
    await page.locator('.trouble', { hasText: 'The analysis does not answer' }).waitFor();
    await site.shot(page, 'silent');
    await page.getByRole('button', { name: 'Restart it' }).click();
    await settled(page);
    await page.waitForSelector('.trouble', { state: 'detached' });
    await drawn(page);
    await page.locator('.flame-box').focus();
    for (const key of ['ArrowDown', 'ArrowDown', 'ArrowDown', 's']) await page.keyboard.press(key);
    await page.waitForSelector('.sandwich');
  });

  test('that ends again and again is not started without end; a click starts it', async () => {
    const page = await site.open();
    await holdWorkers(page);
    await drawn(page);
    const calls = () => site.mock?.calls.get('profile') ?? 0;
    const first = calls();
    await endWorker(page);
    await expect.poll(calls).toBe(first + 1);
    await settled(page);
    await endWorker(page);
    await settled(page);
    expect(calls()).toBe(first + 1);
    await page.getByTitle('How the graph is drawn').click();
    await page.getByRole('button', { name: 'Count samples' }).click();
    // The new worker does not have it, so it is loaded again.
    await expect.poll(calls).toBe(first + 2);
    await settled(page);
    await page.waitForFunction(() => document.querySelector('.trouble') === null);
    await drawn(page);
  });

  test('has released the profile whose graph is still shown: callers and callees wait for the new graph', async () => {
    const page = await site.open();
    await holdWorkers(page);
    await drawn(page);
    await settled(page);
    await withhold(page, 'graph');
    await page.keyboard.press('r');
    await page.evaluate(() => {
      const store = window as never as { __troubles: number };
      store.__troubles = 0;
      new MutationObserver(() => (store.__troubles += document.querySelectorAll('.trouble').length)).observe(
        document.body,
        { childList: true, subtree: true },
      );
    });
    await page.waitForFunction(() => (window as never as { __waiting: unknown[] }).__waiting.length > 0);
    await page.getByRole('button', { name: 'Callers and callees' }).first().click();
    await page.waitForFunction(() => (window as never as { __refused: string[] }).__refused.includes('not_held'));
    await page.waitForFunction(() => document.querySelector('.split-main [aria-busy="true"]') !== null);
    expect(await page.locator('.sandwich').count()).toBe(0);
    await withhold(page, undefined);
    await page.waitForSelector('.sandwich');
    expect(await page.evaluate(() => (window as never as { __troubles: number }).__troubles)).toBe(0);
  });

  test('that cannot be constructed is told of, and the page is drawn', async () => {
    const page = await site.open('view=collector');
    await page.addInitScript(() => {
      (window as never as { Worker: unknown }).Worker = class {
        constructor() {
          throw new Error('no workers here');
        }
      };
    });
    await page.evaluate(() => (location.hash = 'view=profile'));
    await page.reload();
    await page.locator('.trouble', { hasText: 'The page cannot process profiles' }).waitFor();
    await page.waitForSelector('.u-over');
  });
});

describe.skipIf(!SEEDED)('the large graph', () => {
  test('100,000 frames: times of pan, zoom and search, for the record', async ({ skip }) => {
    skip(!process.env.E2E_TIMES, 'a measurement: npm run times');
    const begun = Date.now();
    const page = await site.open(`${scenario('huge')}&panel=flame`, { viewport: { width: 1920, height: 1080 } });
    await drawn(page);
    const shown = Date.now() - begun;
    expect(Number(await page.locator('.flame-box canvas').getAttribute('data-nodes'))).toBeGreaterThan(99_000);
    const measure = async (what: string, steps: number, act: (step: number) => Promise<void>) => {
      await page.evaluate(() => {
        const store = window as never as { __draws: number[]; __watch: MutationObserver };
        store.__draws = [];
        const canvas = document.querySelector<HTMLCanvasElement>('.flame-box canvas');
        store.__watch = new MutationObserver(() => store.__draws.push(Number(canvas?.dataset.drawMs)));
        if (canvas) store.__watch.observe(canvas, { attributeFilter: ['data-draw-ms'] });
      });
      for (let step = 0; step < steps; step++) await act(step);
      const draws = await page.evaluate(async () => {
        await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
        const store = window as never as { __draws: number[]; __watch: MutationObserver };
        store.__watch.disconnect();
        return store.__draws;
      });
      draws.sort((left, right) => left - right);
      const at = (part: number) =>
        (draws[Math.min(draws.length - 1, Math.floor(part * draws.length))] ?? NaN).toFixed(1);
      console.log(
        `100,000 frames, ${what}: ${draws.length} draws, median ${at(0.5)} ms, 95 % ${at(0.95)} ms, most ${at(1)} ms`,
      );
      expect(draws.length).toBeGreaterThan(0);
    };
    const middle = await levelPoint(page, 8, 0.3);
    await page.mouse.move(middle.x, middle.y);
    await page.keyboard.down('Control');
    await measure('zoom by wheel', 60, (step) => page.mouse.wheel(0, step < 40 ? -40 : 40));
    await page.keyboard.up('Control');
    await page.mouse.down();
    await measure('pan by drag', 60, (step) => page.mouse.move(middle.x + (step % 2 ? 1 : -1) * step * 6, middle.y));
    await page.mouse.up();
    await measure('pointer moves', 60, (step) => page.mouse.move(200 + step * 25, middle.y + (step % 9) * 18));
    await measure('search while typing', 11, (step) =>
      page.getByLabel('Search functions and modules').fill('function_12'.slice(0, step + 1)),
    );
    console.log(`100,000 frames: shown ${shown} ms after the page was opened`);
    await site.shot(page, 'huge');
  });
});
