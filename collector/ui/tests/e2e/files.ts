// A headless Chromium on files from disk, without a network, and what every test of them watches
// for.

import { mkdirSync } from 'node:fs';
import { type Browser, type BrowserContext, type Dialog, type Page, chromium } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect } from 'vitest';
import { CHROMIUM, OUT } from './chromium';

export interface Files {
  /**
   * Opens a file. No page may ask for what is no file, log an error, run what a name says, or ask
   * the user unasked.
   */
  open: (
    file: string,
    options?: Parameters<Browser['newContext']>[0],
    answer?: (dialog: Dialog) => Promise<void>,
  ) => Promise<Page>;
  shot: (page: Page, name: string) => Promise<void>;
  /** Forgets the faults of a test that are meant. */
  allow: (meant: RegExp) => void;
}

const pwned = (page: Page) => page.evaluate(() => (window as never as { __pwned?: number }).__pwned);

/** Prepares a browser for tests. `prefix`: what the names of their pictures start with. */
export function useFiles(prefix: string): Files {
  let browser: Browser;
  let contexts: BrowserContext[] = [];
  let faults: string[] = [];
  beforeAll(async () => {
    if (!CHROMIUM) throw new Error('failed to find Chromium: install the package `chromium`, or name it in CHROMIUM');
    browser = await chromium.launch({
      executablePath: CHROMIUM,
      args: ['--no-sandbox', '--enable-unsafe-swiftshader'],
    });
  });
  afterEach(async () => {
    for (const context of contexts) {
      for (const page of context.pages())
        if ((await pwned(page)) !== undefined) faults.push(`a name ran: ${await pwned(page)}`);
      await context.close();
    }
    contexts = [];
    const found = faults;
    faults = [];
    expect(found).toEqual([]);
  });
  afterAll(async () => {
    await browser?.close();
  });
  return {
    open: async (file, options = {}, answer) => {
      const context = await browser.newContext({
        viewport: { width: 1280, height: 800 },
        timezoneId: 'UTC',
        locale: 'en',
        offline: true,
        ...options,
      });
      contexts.push(context);
      const page = await context.newPage();
      page.on('pageerror', (error) => faults.push(`error: ${error.message}`));
      page.on('console', (message) => message.type() === 'error' && faults.push(`console: ${message.text()}`));
      page.on(
        'request',
        (request) => /^(file|data|blob):/.test(request.url()) || faults.push(`asked elsewhere: ${request.url()}`),
      );
      page.on('dialog', (dialog) => {
        if (answer) return answer(dialog);
        faults.push(`dialog: ${dialog.message()}`);
        return dialog.dismiss();
      });
      await page.goto(`file://${file}`);
      return page;
    },
    allow: (meant) => {
      faults = faults.filter((fault) => !meant.test(fault));
    },
    shot: async (page, name) => {
      mkdirSync(OUT, { recursive: true });
      await page.screenshot({ path: `${OUT}/${prefix}-${name}.png` });
    },
  };
}
