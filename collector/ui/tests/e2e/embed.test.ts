// One panel in a frame of another page: it shows what the page shows, and changes nothing.

import type { FrameLocator, Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { SEEDED, drawn, settled, useSite } from './browser';

const site = useSite();
const PHONE = { width: 390, height: 844 };

/** The page with one panel. */
async function panel(part: string, hash: string, options = {}): Promise<Page> {
  const page = await site.open('', options);
  await page.goto(`${site.url}/?embed=${part}#${hash}`);
  return page;
}

describe.skipIf(!SEEDED)('an embedded panel', () => {
  test.each([
    ['chart', 'view=profile&by=host', '.u-over'],
    ['flame', 'view=profile', '.flame-box canvas'],
    ['table', 'view=profile', '.top tbody tr'],
  ])('shows the %s alone, light, dark and on a phone', async (part, hash, ready) => {
    for (const [name, options] of [
      ['light', {}],
      ['dark', { colorScheme: 'dark' }],
      ['phone', { viewport: PHONE }],
    ] as const) {
      const page = await panel(part, hash, options);
      await page.locator(ready).first().waitFor();
      expect(await page.locator('header.head, nav, .capture-button').count()).toBe(0);
      expect(await page.locator('.flame-box').count()).toBe(part === 'flame' ? 1 : 0);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth)).toBeLessThanOrEqual(0);
      await site.shot(page, `embed-${part}-${name}`);
    }
  });

  test('asks the collector for nothing but to read', async () => {
    const page = await site.open();
    // What the page itself asks for is another matter.
    await page.goto('about:blank');
    const asked: string[] = [];
    page.on('request', (request) => {
      const path = new URL(request.url()).pathname;
      if (path.startsWith('/fleetprof.') || path.startsWith('/api/')) asked.push(path);
    });
    for (const part of ['chart', 'flame', 'table']) {
      await page.goto(`${site.url}/?embed=${part}#view=profile&live=1`);
      await page.locator(part === 'chart' ? '.u-over' : '.flame-panel').waitFor();
      // Whatever can be clicked or has a key.
      await page.locator('main button').evaluateAll((all) => {
        for (const button of all) (button as HTMLButtonElement).click();
      });
      await settled(page);
      for (const key of ['r', 's', 'Escape']) await page.keyboard.press(key);
    }
    const calls = [...new Set(asked.map((path) => path.split('.').at(-1)))].sort();
    const reads = /^v1\.|^(QueryService\/(Profile|Series|Hosts)|(Pin|Annotation|Alert)Service\/List)$/;
    expect(calls.filter((call) => !reads.test(call ?? ''))).toEqual([]);
    expect(calls).toContain('QueryService/Profile');
  });

  test('leads to the page in a window of its own, with the same selection', async () => {
    const page = await panel('flame', 'view=profile&query=comm%3D%22api-server%22');
    await drawn(page);
    const link = page.getByRole('link', { name: 'Open in Fleetprof' });
    const [href, target] = [await link.getAttribute('href'), await link.getAttribute('target')];
    expect(target).toBe('_blank');
    expect(href?.startsWith(`${site.url}/#`)).toBe(true);
    expect(new URLSearchParams(new URL(href ?? '').hash.slice(1)).get('query')).toBe('comm="api-server"');
  });

  test('is drawn in a frame of a site that may, and the page itself is not', async () => {
    const page = await site.open();
    const outer = `<iframe id="panel" src="/?embed=flame#view=profile" width="800" height="500"></iframe>
      <iframe id="page" src="/#view=profile" width="800" height="500"></iframe>`;
    await page.route(`${site.url}/outer`, (route) => route.fulfill({ contentType: 'text/html', body: outer }));
    if (site.mock) site.mock.ancestors = "'self'";
    try {
      await page.goto(`${site.url}/outer`);
      const inside: FrameLocator = page.frameLocator('#panel');
      await inside.locator('.flame-box canvas[data-drawn]').waitFor();
      expect(await page.frameLocator('#page').locator('#app').count()).toBe(0);
    } finally {
      if (site.mock) site.mock.ancestors = '';
    }
  });
});
