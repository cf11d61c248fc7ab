// Every page against the rules of axe-core, those for the size of targets included: light, dark,
// and on a phone.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import type axe from 'axe-core';
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { SEEDED, drawn, settled, useSite } from './browser';

const site = useSite();
const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Pages, each with what is there once it is drawn. */
const PAGES: readonly (readonly [name: string, address: string, ready: string])[] = [
  ['overview', 'view=overview&services=comm', '.overview-table tbody tr'],
  ['explore', 'view=profile&query=comm%3D%22api-server%22', '.flame-box canvas[data-drawn]'],
  ['explore, callers', 'view=profile&fn=main', '.flame-box canvas[data-drawn]'],
  ['explore, hostile', `view=profile&query=${encodeURIComponent('scenario="hostile"')}`, '.flame-panel'],
  ['compare', 'view=compare&from=now-30m', '.changes tbody tr, .compare-table tbody tr'],
  ['containers', 'view=cgroups', 'tbody tr'],
  ['hosts', 'view=hosts', 'tbody tr'],
  ['captures', 'view=captures', '.view-captures .page-head'],
  ['pins', 'view=pins', 'tbody tr'],
  ['one pin', 'view=pins&pin=12', '.flame-box canvas[data-drawn]'],
  ['alerts', 'view=alerts', 'tbody tr'],
  ['incidents', 'view=incidents', 'tbody tr'],
  ['one incident', 'view=incidents&incident=1', '.timeline li'],
  ['evidence', 'view=incidents&incident=1&evidence=7', '.flame-box canvas[data-drawn]'],
  ['evidence, compared', 'view=incidents&incident=1&evidence=8', '.flame-box canvas[data-drawn]'],
  ['saved views', 'view=views', 'tbody tr'],
  ['collector', 'view=collector', '.view-collector h2'],
];

/** What axe finds: rule, and where. `only`: rules; none: all. */
async function found(page: Page, only: readonly string[] = []): Promise<string[]> {
  // The policy of the page forbids scripts from elsewhere; the debugger is nobody's page.
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(
    (only) =>
      (window as never as { axe: typeof axe }).axe.run(document, {
        runOnly: only.length
          ? { type: 'rule', values: [...only] }
          : { type: 'tag', values: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] },
        // What passes is not described; violations are all that is read.
        resultTypes: ['violations'],
        rules: only.length ? {} : { 'target-size': { enabled: true } },
      }),
    only,
  );
  return violations.flatMap(({ id, nodes }) => nodes.map((node) => `${id}: ${node.target.join(' ')}`));
}

describe.skipIf(!SEEDED)('axe finds nothing', () => {
  test.each(PAGES)('on the page %s, light, dark and on a phone', async (_name, address, ready) => {
    if (site.mock) site.mock.alerts.views = [{ id: 1n, name: 'api', address: '#view=profile', by: 'anna' }];
    const page = await site.open(address);
    await page.locator(ready).first().waitFor();
    await settled(page);
    expect(await found(page)).toEqual([]);
    // Colours are all that is otherwise in the dark.
    await page.emulateMedia({ colorScheme: 'dark' });
    await page.waitForFunction(() => matchMedia('(prefers-color-scheme: dark)').matches);
    expect(await found(page, ['color-contrast'])).toEqual([]);
    await page.emulateMedia({ colorScheme: 'light' });
    await page.setViewportSize({ width: 390, height: 844 });
    await settled(page);
    expect(await found(page)).toEqual([]);
  });

  test.each([
    ['Keep …', 'view=profile'],
    ['Link', 'view=profile'],
    ['Capture …', 'view=profile'],
    ['Data quality', 'view=profile'],
  ])('in what the button %s opens', async (name, address) => {
    const page = await site.open(address);
    await drawn(page);
    await page.getByRole('button', { name }).first().click();
    await page.getByRole('dialog').first().waitFor();
    await settled(page);
    expect(await found(page)).toEqual([]);
  });

  test.each(['chart', 'flame', 'table'])('in the embedded %s', async (part) => {
    const page = await site.open('view=profile');
    await page.goto(`${site.url}/?embed=${part}#view=profile`);
    await page
      .locator(part === 'chart' ? '.u-over' : '.flame-panel')
      .first()
      .waitFor();
    await settled(page);
    expect(await found(page)).toEqual([]);
  });
});
