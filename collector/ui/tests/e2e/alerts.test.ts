// Alerts and incidents as they are read at night: what fires and where it leads, a timeline, and
// what can be done, by pointer, by key and on a phone.

import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import type { Selection } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { SEEDED, drawn, param, useSite } from './browser';

const site = useSite();
const pwned = (page: Page) => page.evaluate(() => (window as never as { __pwned?: number }).__pwned);
const overflow = (page: Page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
const PHONE = { width: 390, height: 844 };

describe.skipIf(!SEEDED)('alerts', () => {
  test('say what fires, since when, with which value, and what is wrong with them', async () => {
    const page = await site.open('view=alerts');
    await page.getByText('1 alert firing, 1 pending, 1 without data').waitFor();
    const rows = page.locator('.view-alerts tbody tr');
    expect(await rows.first().textContent()).toMatch(
      /firing.*api-cpu.*page.*unit=api.service.*9.80 cores.*2[3-9] min.*6.30/,
    );
    await page.getByText('Receiver oncall does not accept notifications').waitFor();
    await page.getByText('1 of 2 hosts sends nothing').waitFor();
    await site.shot(page, 'alerts');
    expect(await pwned(page)).toBeUndefined();
    expect(await overflow(page)).toBeLessThanOrEqual(0);
  });

  test('lead to the data of their time', async () => {
    const page = await site.open('view=alerts');
    await page.locator('.alert-leads').getByRole('link', { name: 'Open' }).first().click();
    await page.waitForSelector('.view-profile');
    expect(param(page, 'query')).toBe('unit="api.service"');
    expect(param(page, 'view') ?? 'profile').toBe('profile');
  });

  test('are marked on charts', async () => {
    const page = await site.open('view=profile&from=now-1h&to=now');
    await drawn(page);
    await page.locator('.flag.alert > button').first().focus();
    await page.getByRole('link', { name: 'Open the alerts' }).first().click();
    await page.waitForSelector('.view-alerts tbody tr');
  });

  test('tell how to have some where there are none', async () => {
    const { mock } = site;
    if (!mock) return;
    mock.alerts.none = true;
    try {
      const page = await site.open('view=alerts');
      await page.getByText('Rules are in the collector’s configuration').waitFor();
    } finally {
      mock.alerts.none = false;
    }
  });

  test('fit a phone', async () => {
    const page = await site.open('view=alerts', { viewport: PHONE });
    await page.waitForSelector('.view-alerts tbody tr');
    expect(await overflow(page)).toBeLessThanOrEqual(0);
    await site.shot(page, 'alerts-phone');
  });
});

describe.skipIf(!SEEDED)('an incident', () => {
  test('is opened, noted, acknowledged and closed', async () => {
    const page = await site.open('view=incidents&query=unit%3D%22api.service%22');
    await page.getByLabel('Title of a new incident').fill('checkout slow');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: /checkout slow/ }).waitFor();
    expect(param(page, 'incident')).toBe('3');
    expect(site.mock?.alerts.incidents[0].of.labels).toEqual({ unit: 'api.service' });
    await page.getByLabel('Note').fill('rolling back');
    await page.getByRole('button', { name: 'Add note' }).click();
    await page.locator('.timeline').getByText('rolling back').waitFor();
    await page.getByRole('button', { name: 'Acknowledge' }).click();
    await page.locator('.incident-state.acknowledged').waitFor();
    await page.getByRole('button', { name: 'Add current view' }).click();
    await page.locator('.entry.view').getByText('Open the page at this view').waitFor();
    await page.getByRole('button', { name: 'Close' }).click();
    await page.locator('.incident-state.closed').waitFor();
  });

  test('shows its evidence with files, and is one column on a phone', async () => {
    for (const [name, viewport] of [
      ['incident', { width: 1280, height: 800 }],
      ['incident-phone', PHONE],
    ] as const) {
      const page = await site.open('view=incidents&incident=1', { viewport });
      await page.getByText('fired at 9.80 cores').waitFor();
      const view = page.locator('.entry.view');
      await view.getByRole('button', { name: 'Download' }).click();
      expect(await view.getByRole('link', { name: 'HTML' }).getAttribute('href')).toContain('api/evidence.html?id=7');
      await page.keyboard.press('Escape');
      expect(await page.getByRole('link', { name: 'Markdown' }).getAttribute('href')).toContain('incident.md?id=1');
      expect(await overflow(page)).toBeLessThanOrEqual(0);
      await site.shot(page, name);
    }
  });

  test('opens its evidence in the graph of the page, and leads back', async () => {
    const page = await site.open('view=incidents&incident=1');
    await page.getByRole('link', { name: 'Open the profile' }).click();
    await drawn(page);
    expect(param(page, 'evidence')).toBe('7');
    await page.locator('.evidence-view .top tbody tr').first().waitFor();
    await site.shot(page, 'evidence');
    // A link has it, zoomed and searched.
    await page.reload();
    await drawn(page);
    await page.getByRole('link', { name: 'api-cpu unit=api.service' }).click();
    await page.locator('.timeline').waitFor();
    expect(param(page, 'evidence')).toBeNull();
  });

  test('compares both sides of a comparison that it keeps', async () => {
    for (const [name, options] of [
      ['evidence-diff', {}],
      ['evidence-diff-dark', { colorScheme: 'dark' }],
      ['evidence-diff-phone', { viewport: PHONE }],
    ] as const) {
      const page = await site.open('view=incidents&incident=1', options);
      await page.getByRole('link', { name: 'Open the comparison' }).click();
      await drawn(page);
      await page.getByText('it is visit_map').waitFor();
      if (name !== 'evidence-diff-phone')
        await page.getByRole('region', { name: 'Table of changes' }).locator('tbody tr').first().waitFor();
      expect(await overflow(page)).toBeLessThanOrEqual(0);
      await site.shot(page, name);
    }
    expect(site.mock?.alerts.read).toEqual(
      expect.arrayContaining([
        [8n, false],
        [8n, true],
      ]),
    );
  });

  test('says so where a piece of evidence is not there', async () => {
    const page = await site.open('view=incidents&incident=1&evidence=99');
    await page.getByText('Evidence not found').waitFor();
  });

  test('has hostile text written out, and no link out of the page', async () => {
    const page = await site.open('view=incidents&incident=2');
    await page.getByText('# second line').waitFor();
    expect(await page.locator('.entry a').count()).toBe(0);
    expect(await pwned(page)).toBeUndefined();
    expect(await overflow(page)).toBeLessThanOrEqual(0);
  });

  test('that is not there says so', async () => {
    for (const incident of ['99', '<script>']) {
      const page = await site.open(`view=incidents&incident=${encodeURIComponent(incident)}`);
      await page.getByText(incident === '99' ? 'there is no incident 99' : 'Incident not found').waitFor();
    }
  });
});

describe.skipIf(!SEEDED)('what is on the screen', () => {
  interface Sides {
    before: Selection;
    after: Selection;
  }

  /** What was kept last. */
  const last = () => site.mock?.alerts.kept.at(-1);

  test('of the profile is kept in an open incident, with its note and its exact time', async () => {
    const page = await site.open('view=profile&from=now-1h&query=comm%3D%22api-server%22');
    await drawn(page);
    await page.getByRole('button', { name: 'Keep …' }).click();
    await page.getByRole('combobox', { name: 'Keep in' }).selectOption('1');
    await page.locator('.keep-in').getByLabel('Note').fill('before the rollback');
    await site.shot(page, 'keep-profile');
    await page.getByRole('button', { name: 'Keep', exact: true }).click();
    await page.getByRole('link', { name: 'incident 1' }).waitFor();
    const kept = last();
    expect([kept?.incident, kept?.text, kept?.evidence.case]).toEqual([1n, 'before the rollback', 'view']);
    expect(kept?.evidence.value).toMatchObject({ selector: 'comm="api-server"' });
    const times = new URLSearchParams(kept?.address.slice(1));
    expect(Date.parse(times.get('from') ?? '')).toBeGreaterThan(0);
    await page.getByRole('link', { name: 'incident 1' }).click();
    await page.locator('.timeline').getByText('before the rollback').waitFor();
  });

  test('of a comparison is kept with both sides, in a new incident', async () => {
    const page = await site.open('view=compare&from=now-30m&query=comm%3D%22api-server%22');
    await drawn(page);
    await page.getByRole('button', { name: 'Keep …' }).click();
    await page.getByRole('combobox', { name: 'Keep in' }).selectOption('New incident');
    await page.getByLabel('Title').fill('api slower');
    await page.keyboard.press('Enter');
    await page.getByRole('link', { name: /^incident \d+$/ }).waitFor();
    const kept = last();
    expect(kept?.evidence.case).toBe('diff');
    const sides = kept?.evidence.value as Sides | undefined;
    expect(sides?.before.range?.endUnixNs).toBeLessThanOrEqual(sides?.after.range?.startUnixNs ?? 0n);
    expect(site.mock?.alerts.incidents[0].of).toMatchObject({ title: 'api slower', labels: { comm: 'api-server' } });
  });

  test('of a finding of the overview is kept as the comparison that it leads to', async () => {
    const page = await site.open('view=overview&services=comm');
    const finding = page.locator('.verdict li').first();
    const name = (await finding.getByRole('link').first().textContent()) ?? '';
    await finding.getByRole('button', { name: 'Keep …' }).click();
    await page.getByRole('button', { name: 'Keep', exact: true }).click();
    await finding.getByRole('status').waitFor();
    const sides = last()?.evidence.value as Sides | undefined;
    expect(sides?.after.selector).toContain(name);
    expect(sides?.after.range?.startUnixNs).toBeGreaterThan(0n);
    expect(last()?.address).toContain('view=compare');
    await site.shot(page, 'keep-finding');
  });

  test('that cannot be kept is said, and tried again in the incident that was opened', async () => {
    const page = await site.open('view=profile&from=now-1h', { viewport: PHONE });
    await drawn(page);
    const had = site.mock?.alerts.incidents.length ?? 0;
    await page.getByRole('button', { name: 'Keep …' }).click();
    await page.getByRole('combobox', { name: 'Keep in' }).selectOption('New incident');
    await page.getByLabel('Title').fill('full');
    await page.locator('.keep-in').getByLabel('Note').fill('refuse');
    await page.getByRole('button', { name: 'Keep', exact: true }).click();
    await page.getByText('There is no room for it').waitFor();
    await page.getByText('the incident is full').waitFor();
    expect(await overflow(page)).toBeLessThanOrEqual(0);
    await site.shot(page, 'keep-phone');
    await page.locator('.keep-in').getByLabel('Note').fill('again');
    await page.getByRole('button', { name: 'Keep', exact: true }).click();
    await page.getByRole('link', { name: /^incident \d+$/ }).waitFor();
    expect(site.mock?.alerts.incidents.length).toBe(had + 1);
  });
});

describe.skipIf(!SEEDED)('for everyone', () => {
  test('dark, on a wide screen and on a phone, with targets that can be hit and names that can be read', async () => {
    for (const [name, options] of [
      ['dark', { colorScheme: 'dark' }],
      ['wide', { viewport: { width: 1600, height: 900 } }],
      ['phone', { viewport: PHONE }],
    ] as const) {
      for (const [what, address, ready] of [
        ['alerts', 'view=alerts', '.view-alerts tbody tr'],
        ['incidents', 'view=incidents', '.view-incidents tbody tr'],
        ['incident', 'view=incidents&incident=1', '.timeline li'],
      ]) {
        const page = await site.open(address, options);
        await page.waitForSelector(ready);
        expect(await overflow(page), `${name} ${what}`).toBeLessThanOrEqual(0);
        const small = await page
          .locator('.incident-acts a, .incident-acts button, .entry-files a, .alert-leads a')
          .evaluateAll((all) =>
            all
              .map((one) => one.getBoundingClientRect())
              .filter((box) => box.height > 0 && box.height < 24)
              .map((box) => `${box.width}×${box.height}`),
          );
        expect(small, `${name} ${what}`).toEqual([]);
        const nameless = await page
          .locator('main button, main a, main input, main textarea')
          .evaluateAll((all) =>
            all
              .filter(
                (one) => !(one.getAttribute('aria-label') || one.textContent?.trim() || one.getAttribute('title')),
              )
              .map((one) => one.outerHTML.slice(0, 80)),
          );
        expect(nameless, `${name} ${what}`).toEqual([]);
        await site.shot(page, `${what}-${name}`);
      }
    }
  });
});
