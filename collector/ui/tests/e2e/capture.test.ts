// Captures: the dialog, the hosts as they come, the profile as a view, and the list. Against a fake
// server, which samples nothing: what agents do is tested elsewhere.

import { readFileSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { BURST } from '../mock/timed';
import { SEEDED, drawn, endWorker, holdWorkers, param, settled, useSite } from './browser';

const site = useSite();
const scenario = (name: string) => `query=${encodeURIComponent(`scenario="${name}"`)}`;

async function dialog(page: Page, fields: Record<string, string> = {}): Promise<void> {
  await page.getByRole('button', { name: 'Capture …' }).click();
  await page.waitForSelector('dialog[open]');
  for (const [name, value] of Object.entries(fields)) await page.locator(`dialog [name=${name}]`).fill(value);
}

const start = (page: Page) => page.locator('dialog button[type=submit]').click();

/** Captures what the address selects, until its profile is there. */
async function captured(
  address: string,
  fields: Record<string, string> = {},
  options = {},
  prepare?: (page: Page) => Promise<void>,
): Promise<Page> {
  const page = await site.open(address, options);
  await prepare?.(page);
  await page.waitForSelector('.chart-panel');
  await dialog(page, { duration: '300ms', ...fields });
  await start(page);
  await page.waitForSelector('.capture-view');
  await page.waitForSelector('dialog', { state: 'detached' });
  await drawn(page);
  return page;
}

const overflow = (page: Page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
const pwned = (page: Page) => page.evaluate(() => (window as never as { __pwned?: number }).__pwned);

describe.skipIf(!SEEDED)('the dialog', () => {
  test('opens with the selection, and asks for what it says', async () => {
    const page = await site.open(`query=${encodeURIComponent('host="web-1"')}`);
    await drawn(page);
    await dialog(page, {
      duration: '200ms',
      event: 'off-cpu',
      rate: '997',
      hosts: '3',
      before: '5m',
      reason: 'slow checkout',
      who: 'ada',
    });
    expect(await page.locator('dialog .selector input').inputValue()).toBe('host="web-1"');
    await page.locator('dialog [name=minWait]').fill('1ms');
    await page.locator('dialog [name=unwind]').selectOption('stack-copy');
    await site.shot(page, 'capture-form');
    await start(page);
    await page.waitForSelector('.capture-view');
    const request = site.mock?.captures.requests.at(-1);
    expect(request).toMatchObject({ selector: 'host="web-1"', maxHosts: 3 });
    expect(request?.capture).toMatchObject({
      durationNs: 200_000_000n,
      event: 'off-cpu',
      rateHz: 997,
      unwind: 'stack-copy',
      beforeNs: 300_000_000_000n,
      minWaitNs: 1_000_000n,
      reason: 'slow checkout',
      who: 'ada',
    });
    // Who asks is known the next time.
    await page.getByRole('button', { name: 'New capture' }).click();
    expect(await page.locator('dialog [name=who]').inputValue()).toBe('ada');
    expect(await page.locator('dialog .selector input').inputValue()).toBe('host="web-1"');
  });

  test('tells a mistake beside its field, and does not start', async () => {
    const page = await site.open();
    await drawn(page);
    await dialog(page, { duration: '2h', rate: '10000', event: 'tracepoint:x' });
    await page.locator('dialog .selector input').fill('unit=');
    const asked = site.mock?.captures.requests.length;
    await start(page);
    const said = async (name: string) => page.locator(`#capture-${name}-note`).textContent();
    expect(await said('duration')).toBe('at most 1 h');
    expect(await said('rate')).toBe('expected an integer from 1 to 9,999');
    expect(await said('event')).toBe('write `tracepoint:CATEGORY:NAME`');
    expect(await page.locator('dialog .field .wrong').first().textContent()).toContain('at character 6');
    expect(await page.evaluate(() => document.activeElement?.closest('.selector') !== null)).toBe(true);
    expect(site.mock?.captures.requests.length).toBe(asked);
    await site.shot(page, 'capture-mistakes');
    await page.locator('dialog .selector input').fill('');
    await page.locator('dialog [name=rate]').fill('99');
    expect(await said('rate')).toContain('Hz per CPU');
  });

  test('the selector completes, and Escape closes the completions before the dialog', async () => {
    const page = await site.open();
    await drawn(page);
    await dialog(page);
    const field = page.locator('dialog .selector input');
    await field.click();
    await field.pressSequentially('ho');
    await page.locator('dialog .suggestions [role=option]', { hasText: 'host' }).first().waitFor();
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog .suggestions', { state: 'detached' });
    expect(await page.locator('dialog[open]').count()).toBe(1);
    await page.keyboard.press('Escape');
    await page.waitForSelector('dialog', { state: 'detached' });
    expect(await page.evaluate(() => document.activeElement?.textContent)).toBe('Capture …');
  });

  test('hosts go on line by line, and the profile of what there is opens', async () => {
    const page = await site.open();
    await drawn(page);
    await dialog(page, { duration: '10m' });
    await start(page);
    await page.waitForFunction(() =>
      /running/.test(document.querySelector('dialog .host-lines tbody')?.textContent ?? ''),
    );
    expect(await page.locator('dialog .host-lines tbody tr').count()).toBe(11);
    await page.waitForFunction(() => Number(document.querySelector<HTMLProgressElement>('dialog progress')?.value) > 0);
    await site.shot(page, 'capture-running');
    await page.getByRole('button', { name: 'Stop and keep' }).click();
    await page.waitForSelector('.capture-view');
    expect(param(page, 'view')).toBe('captures');
    expect(await page.locator('.capture-hosts strong').textContent()).toContain('11 of 11 hosts answered');
    await drawn(page);
    await page.waitForSelector('.heat-box canvas');
    await site.shot(page, 'capture-view');
  });

  test('ending it keeps what there is', async () => {
    const page = await site.open();
    await drawn(page);
    await dialog(page, { duration: '10m' });
    await start(page);
    await page.waitForFunction(() =>
      /running/.test(document.querySelector('dialog .host-lines tbody')?.textContent ?? ''),
    );
    await page.getByRole('button', { name: 'Stop and keep' }).click();
    await page.waitForSelector('.capture-view');
    await drawn(page);
    expect(await page.locator('.capture-hosts').textContent()).toContain('11 ended early');
    expect(await page.locator('.capture-notices').textContent()).toContain('cancelled by page');
  });

  test('closing asks while it runs: go on, or leave it to the collector, where it is followed', async () => {
    const page = await site.open();
    await drawn(page);
    await dialog(page, { duration: '10m' });
    await start(page);
    await page.waitForFunction(() =>
      /running/.test(document.querySelector('dialog .host-lines tbody')?.textContent ?? ''),
    );
    await page.keyboard.press('Escape');
    await page.getByText('The capture continues on the collector.').waitFor();
    await site.shot(page, 'capture-asking');
    await page.getByRole('button', { name: 'Continue' }).click();
    expect(await page.locator('dialog .host-lines').count()).toBe(1);
    const left = site.mock?.captures.left ?? 0;
    await page.getByRole('button', { name: 'Close', exact: true }).first().click();
    await page.getByRole('button', { name: 'Leave it running' }).click();
    await page.waitForSelector('dialog', { state: 'detached' });
    await expect.poll(() => site.mock?.captures.left ?? 0).toBe(left + 1);
    const run = site.mock?.captures.runs[0];
    expect(run?.info.running).toBe(true);
    // Its link, elsewhere: how far it is, and its profile once it has ended.
    const other = await site.open(`view=captures&capture=${run?.info.id}`);
    await other.getByText('its profile opens here when it has ended').waitFor();
    expect(await other.locator('.host-lines tbody tr').count()).toBe(11);
    await site.shot(other, 'capture-elsewhere');
    await other.getByRole('button', { name: 'Stop and keep' }).click();
    await other.waitForSelector('.capture-view');
    await drawn(other);
  });

  test('a host of the list of hosts can be captured', async () => {
    const page = await site.open('view=hosts');
    await page.getByRole('button', { name: 'Capture on web-2' }).click();
    await page.waitForSelector('dialog[open]');
    expect(await page.locator('dialog .selector input').inputValue()).toBe('host="web-2"');
  });
});

test.runIf(SEEDED)('what the CPU does not show is a click away: a capture of waits of what is selected', async () => {
  const page = await site.open(`query=${encodeURIComponent('unit="redis.service"')}`);
  await page.locator('.selection-verdict').getByRole('button', { name: 'Capture waits …' }).click();
  expect(await page.locator('dialog [name=event]').inputValue()).toBe('off-cpu');
  const targets = (of: Page) => of.getByRole('combobox', { name: 'Selector of the capture' }).inputValue();
  expect(await targets(page)).toBe('unit="redis.service"');
  // A host that waits for its disk is asked alone, from where that is said.
  const overview = await site.open('view=overview');
  const pressed = overview.locator('.outliers li', { hasText: 'wait for I/O' });
  const host = await pressed.getByRole('link').textContent();
  await pressed.getByRole('button', { name: 'Capture waits …' }).click();
  expect(await targets(overview)).toBe(`host="${host}"`);
});

describe.skipIf(!SEEDED)('a capture that ended', () => {
  test('in part says which hosts are missing, and why', async () => {
    const page = await captured(scenario('partial'));
    expect(await page.locator('.capture-hosts strong').textContent()).toContain(
      '9 of 11 hosts answered: 1 failed, 1 lost, 1 ended early',
    );
    await page.getByRole('button', { name: 'Hosts', exact: true }).click();
    const lines = await page.locator('.host-lines tbody tr').allTextContents();
    expect(lines[0]).toContain('no hardware counters in this virtual machine');
    expect(lines[1]).toContain('did not answer within 15 s');
    expect(lines[2]).toContain('throttled sampling 12 times');
    await site.shot(page, 'capture-partial');
  });

  test('a part of its heat map is what graph, table and files show', async () => {
    const page = await captured('', { duration: '8s' });
    const box = await page.locator('.heat-box canvas').boundingBox();
    const column = Number(await page.locator('.heat-box canvas').getAttribute('data-column'));
    if (!box) throw new Error('no map');
    // Where the burst is follows from when the capture began: its darkest column is looked for by
    // keys.
    await page.locator('.heat-box').focus();
    let best = { count: 0, text: '' };
    // It is 15 rows high: every tenth cell is looked at. PageUp leads to the first one, ten columns
    // back.
    for (let row = 0; row < 50; row += 10) {
      await page.keyboard.press('PageUp');
      for (let down = 0; down < row; down++) await page.keyboard.press('ArrowDown');
      for (let across = 0; across < 9; across++) {
        const text = (await page.locator('.heat > p.hidden').textContent()) ?? '';
        const count = Number(/: ([\d,]+) sample/.exec(text)?.[1].replace(',', '') ?? 0);
        if (count > best.count) best = { count, text };
        await page.keyboard.press('ArrowRight');
      }
    }
    expect(best.count).toBeGreaterThan(30 * 0.2);
    expect(column).toBeGreaterThan(4);
    await page.mouse.move(box.x + 7.3 * column, box.y + 10);
    await page.mouse.down();
    await page.mouse.move(box.x + 8.9 * column, box.y + 190, { steps: 4 });
    await page.mouse.up();
    await page.waitForFunction(
      (fn) => document.querySelector('.top tbody .cell-name .name')?.getAttribute('title') === fn,
      BURST.fn,
    );
    expect(param(page, 'pick')).toMatch(/^\d+-\d+$/);
    await page.getByRole('button', { name: 'Download' }).click();
    const [download] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: /^JSON of the picked part/ }).click(),
    ]);
    expect(download.suggestedFilename()).toMatch(/^fleetprof-capture-\d+-part\.json$/);
    const file = JSON.parse(readFileSync(await download.path(), 'utf8')) as {
      total: { count: number };
      timestamps: { sample: number[] };
    };
    expect(file.timestamps.sample.length).toBe(file.total.count);
    await page.getByRole('button', { name: 'Download' }).click();
    const [lines] = await Promise.all([
      page.waitForEvent('download'),
      page.getByRole('button', { name: /^Folded/ }).click(),
    ]);
    expect(readFileSync(await lines.path(), 'utf8')).toMatch(new RegExp(`^main;billing::run;${BURST.fn} \\d+$`, 'm'));
    // The link has the part, wherever it is opened.
    const first = () => document.querySelector('.top tbody .cell-name .name')?.getAttribute('title');
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await other.waitForSelector('.heat-picked');
    await other.waitForFunction(
      (fn) => document.querySelector('.top tbody .cell-name .name')?.getAttribute('title') === fn,
      BURST.fn,
    );
    expect(await other.evaluate(first)).toBe(BURST.fn);
    // Escape, wherever the focus is in the view.
    await page.locator('.flame-box').focus();
    await page.keyboard.press('Escape');
    await page.waitForSelector('.heat-picked', { state: 'detached' });
  });

  test('has the time before, where it was asked for', async () => {
    const page = await captured('', { before: '20s' });
    const columns = () => page.locator('.heat-box canvas').getAttribute('data-columns').then(Number);
    expect(await columns()).toBeLessThan(4);
    await page.getByRole('button', { name: 'Before', exact: true }).click();
    await expect.poll(columns).toBeGreaterThan(19);
    expect(param(page, 'side')).toBe('before');
    const other = await site.open(new URL(page.url()).hash.slice(1));
    await drawn(other);
    await expect
      .poll(() => other.locator('.heat-box canvas').getAttribute('data-columns').then(Number))
      .toBeGreaterThan(19);
    await other.getByRole('button', { name: 'During', exact: true }).click();
    await expect
      .poll(() => other.locator('.heat-box canvas').getAttribute('data-columns').then(Number))
      .toBeLessThan(4);
  });

  test('is served in every format that the collector writes', async () => {
    const page = await captured('', { before: '20s' });
    await page.getByRole('button', { name: 'Download' }).click();
    const links = await page.locator('.menu a').evaluateAll((all) => all.map((one) => one.getAttribute('href')));
    const id = param(page, 'capture');
    expect(links).toEqual(
      'pprof folded speedscope.json svg html json parquet firefox.json perf.txt bundle.html'
        .split(' ')
        .map((format) => `api/capture.${format}?id=${id}`),
    );
    await site.shot(page, 'capture-download');
  });

  test('that the collector could not keep says so, and is saved from the page', async () => {
    const page = await captured(scenario('not-kept'));
    await page.getByText('the collector does not keep the profile of this capture, so save it').waitFor();
    await page.getByRole('button', { name: 'Download' }).click();
    expect(await page.locator('.menu a').count()).toBe(0);
    await page.reload();
    await page.getByText('The collector has no profile of this capture').waitFor();
  });

  test('can be split and summed by label without the collector', async () => {
    const page = await captured('');
    const calls = site.mock?.calls.get('top') ?? 0;
    await page.locator('.top select').selectOption('host');
    await page.locator('.top tbody .cell-name', { hasText: 'batch-1' }).waitFor();
    await page.locator('.top select').selectOption('module');
    await page.locator('.top tbody .cell-name', { hasText: 'nginx' }).first().waitFor();
    await page.getByLabel('Top level').selectOption('host');
    await page.waitForFunction(() => location.hash.includes('root=host'));
    expect(site.mock?.calls.get('top') ?? 0).toBe(calls);
  });

  test('without times has no heat map, and says so', async () => {
    const page = await captured(scenario('no-times'));
    await page.getByText('The samples have no times').waitFor();
    expect(await page.locator('.heat-box').count()).toBe(0);
  });

  test('tells hosts that were left out', async () => {
    const page = await site.open(scenario('left-out'));
    await page.waitForSelector('.chart-panel');
    await dialog(page, { duration: '10m', hosts: '5' });
    await start(page);
    await page
      .getByText(
        '13 hosts match; 6 left out, because at most 5 hosts were asked for; 2 not asked, because their agents are not connected for captures: old-1, <script>',
      )
      .waitFor();
    await page.getByRole('button', { name: 'Stop and keep' }).click();
    await page.waitForSelector('.capture-view');
    expect(await page.locator('.capture-notices').textContent()).toContain('6 hosts match beyond the limit of 5');
    expect(await pwned(page)).toBeUndefined();
  });

  test('is there when the page is loaded again, and in any browser, until it is deleted', async () => {
    const page = await captured('', { reason: 'to be deleted' });
    await page.reload();
    await page.waitForSelector('.capture-view');
    await drawn(page);
    expect(await page.locator('.capture-hosts strong').textContent()).toContain('11 of 11 hosts answered');
    const address = new URL(page.url()).hash.slice(1);
    const other = await site.open(address);
    await drawn(other);
    await other.waitForSelector('.heat-box canvas');
    await other.getByRole('link', { name: 'All captures' }).click();
    const row = other.locator('tr', { hasText: 'to be deleted' }).first();
    await row.getByRole('button', { name: 'Delete' }).click();
    await row.getByRole('button', { name: /^Delete capture/ }).click();
    await row.getByRole('link', { name: 'Open' }).waitFor({ state: 'detached' });
    await page.reload();
    await page.getByText('The collector has no profile of this capture').waitFor();
  });

  test('is loaded again when the worker that held it has ended', async () => {
    const page = await captured('', {}, {}, holdWorkers);
    await endWorker(page);
    await page.waitForSelector('.capture-view');
    await drawn(page);
  });

  test('that nobody knows says so', async () => {
    const page = await site.open('view=captures&capture=999999');
    await page.getByText('There is no capture 999999').waitFor();
  });

  test('hostile names are text, everywhere', async () => {
    const page = await captured(scenario('hostile'));
    await page.getByRole('button', { name: 'Hosts', exact: true }).click();
    const seen = (await page.locator('.capture-view').textContent()) ?? '';
    expect(seen).toContain('<script>window.__pwned = 1</script>');
    expect(seen).toContain('\\u{202e}');
    expect(seen).not.toMatch(/[\u0000-\u0008\u000b-\u001f\u200b\u202e]/);
    expect([await pwned(page), await overflow(page)]).toEqual([undefined, 0]);
    await site.shot(page, 'capture-hostile');
    await page.getByRole('link', { name: 'All captures' }).click();
    await page.waitForSelector('.page tbody tr');
    expect(await pwned(page)).toBeUndefined();
  });

  test('1,000 hosts: the lines are bounded and the page stays awake', async () => {
    const page = await site.open(scenario('many'));
    await page.waitForSelector('.chart-panel');
    await dialog(page, { duration: '10m', hosts: '1000' });
    await start(page);
    await page.waitForFunction(() =>
      /running/.test(document.querySelector('dialog .host-lines tbody')?.textContent ?? ''),
    );
    const longest = await page.evaluate(async () => {
      let [last, most] = [performance.now(), 0];
      for (let turn = 0; turn < 40; turn++) {
        await new Promise(requestAnimationFrame);
        most = Math.max(most, performance.now() - last);
        last = performance.now();
      }
      return most;
    });
    console.log(`longest frame beside 1,000 hosts that tell their progress: ${Math.round(longest)} ms`);
    expect(await page.locator('dialog .host-lines tbody tr').count()).toBe(100);
    await page.getByRole('button', { name: 'Stop and keep' }).click();
    await page.waitForSelector('.capture-view');
    expect(await page.locator('.capture-hosts strong').textContent()).toContain('1,000 of 1,000 hosts');
  });
});

describe.skipIf(!SEEDED)('when a capture goes wrong', () => {
  test('an answer that is there before the dialog is drawn again is not missed', async () => {
    const page = await site.open(scenario('nobody'));
    await page.waitForSelector('.chart-panel');
    await settled(page);
    // What waits for a frame to be drawn waits much longer than the answer takes.
    await page.evaluate(() => {
      const [frame, timer] = [requestAnimationFrame, setTimeout];
      window.requestAnimationFrame = (act) => timer(() => frame(act), 700) as never;
      window.setTimeout = ((act: () => void, ms = 0) => timer(act, ms + 700)) as never;
    });
    await page.getByRole('button', { name: 'Capture …' }).click();
    await page.waitForSelector('dialog[open]');
    await page.locator('dialog button[type=submit]').click();
    await page.locator('dialog .trouble').waitFor();
  });

  for (const [name, says] of [
    ['nobody', 'No host to capture on'],
    ['error-limit', 'Too many captures'],
    ['error-refused', 'The capture was refused'],
    ['gone', 'The collector cannot answer now'],
    ['broken-end', 'The answer cannot be read'],
    ['broken-ids', 'The answer cannot be read'],
    ['none-answers', 'No host returned a profile'],
  ]) {
    test(`${name}: a sentence, and the way back to the form`, async () => {
      const page = await site.open(scenario(name));
      await page.waitForSelector('.chart-panel');
      await dialog(page, { duration: '300ms', reason: 'kept' });
      await start(page);
      await page.locator('dialog .trouble').waitFor();
      expect(await page.locator('dialog .trouble').textContent()).toContain(says);
      expect(await pwned(page)).toBeUndefined();
      await site.shot(page, `capture-${name}`);
      await page.getByRole('button', { name: 'Change and start again' }).click();
      expect(await page.locator('dialog [name=reason]').inputValue()).toBe('kept');
    });
  }

  test('a collector that cannot capture is told of, in the dialog and in the list', async () => {
    if (site.mock) site.mock.captures.unknown = true;
    try {
      const page = await site.open();
      await drawn(page);
      await dialog(page);
      await start(page);
      await page.locator('dialog .trouble', { hasText: 'This collector cannot capture' }).waitFor();
      await page.getByRole('button', { name: 'Close', exact: true }).last().click();
      await page.getByRole('link', { name: 'Captures' }).click();
      await page.locator('.trouble', { hasText: 'This collector cannot capture' }).waitFor();
      await site.shot(page, 'capture-unknown');
    } finally {
      if (site.mock) site.mock.captures.unknown = false;
    }
  });
});

describe.skipIf(!SEEDED)('the list of captures', () => {
  test('has those that ran and that run; one of another page can be ended', async () => {
    const mine = await captured('', { who: 'ada', reason: 'slow checkout' });
    const other = await site.open();
    await drawn(other);
    await dialog(other, { duration: '10m', who: 'grace' });
    await start(other);
    await other.waitForFunction(() =>
      /running/.test(document.querySelector('dialog .host-lines tbody')?.textContent ?? ''),
    );
    await mine.getByRole('link', { name: 'All captures' }).click();
    await mine.locator('tr', { hasText: 'grace' }).first().getByText('running on 11 hosts').waitFor();
    await mine.locator('tr', { hasText: 'slow checkout' }).first().getByText('11 of 11 hosts').waitFor();
    await site.shot(mine, 'captures');
    await mine.locator('tr', { hasText: 'grace' }).first().getByRole('button', { name: 'End' }).click();
    await other.waitForSelector('.capture-view');
    await mine.locator('tr', { hasText: 'grace' }).first().getByText('11 of 11 hosts').waitFor();
    await mine.locator('tr', { hasText: 'slow checkout' }).first().getByRole('link', { name: 'Open' }).click();
    await mine.waitForSelector('.capture-view');
    await drawn(mine);
    await mine.getByLabel('Search functions and modules').fill('ngx');
    await settled(mine);
  });

  test('fits a phone, dark', async () => {
    const page = await captured(
      scenario('partial'),
      {},
      { viewport: { width: 390, height: 844 }, colorScheme: 'dark' },
    );
    expect(await overflow(page)).toBeLessThanOrEqual(0);
    await page.getByRole('button', { name: 'Hosts', exact: true }).click();
    expect(await overflow(page)).toBeLessThanOrEqual(0);
    await site.shot(page, 'phone-capture');
    await page.getByRole('button', { name: 'New capture' }).click();
    await site.shot(page, 'phone-capture-form');
    expect(await page.locator('dialog').evaluate((one) => one.scrollWidth - one.clientWidth)).toBeLessThanOrEqual(0);
    await page.keyboard.press('Escape');
    await page.getByRole('link', { name: 'All captures' }).click();
    await page.waitForSelector('.page tbody tr');
    expect(await overflow(page)).toBeLessThanOrEqual(0);
    await site.shot(page, 'phone-captures');
  });
});
