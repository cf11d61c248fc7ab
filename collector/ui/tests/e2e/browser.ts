// A headless Chromium on the page, and what every test of it watches for.

import { mkdirSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { type Browser, type BrowserContext, type Page, chromium } from 'playwright-core';
import { afterAll, afterEach, beforeAll, expect } from 'vitest';
import { type Mock, startMock } from '../mock/server';
import { CHROMIUM, OUT } from './chromium';

/** A collector that runs elsewhere: tests of seeded data are reported as skipped then. */
export const BASE_URL = process.env.E2E_BASE_URL?.replace(/\/$/, '') || undefined;
export const SEEDED = BASE_URL === undefined;

const DIST = process.env.DIST ?? fileURLToPath(new URL('../../node_modules/.cache/e2e-dist', import.meta.url));

/**
 * How long a test waits for a state of the page. Unit: milliseconds. A loaded machine is slow, not
 * wrong.
 */
const WAIT_MS = 120_000;

export interface Site {
  url: string;
  mock: Mock | undefined;
  open: (address?: string, options?: Parameters<Browser['newContext']>[0]) => Promise<Page>;
  shot: (page: Page, name: string) => Promise<void>;
}

/**
 * Prepares a browser for a file of tests. No page may ask elsewhere, log an error, or be refused by
 * the policy.
 *
 * Tests that want the same kind of window share one, and what it has read of the site: a page opens
 * in half the time. Pages and what they store are of one test. `dist`: which build of the page.
 */
export function useSite(dist = DIST): Site {
  let browser: Browser;
  const contexts = new Map<string, BrowserContext>();
  let faults: string[] = [];
  const site: Site = {
    url: '',
    mock: undefined,
    open: async (address = '', options = {}) => {
      const kind = JSON.stringify(options);
      const context =
        contexts.get(kind) ??
        (await browser.newContext({
          viewport: { width: 1280, height: 800 },
          timezoneId: 'UTC',
          locale: 'en',
          // What moves while the page waits is drawn sixty times a second.
          reducedMotion: 'reduce',
          ...options,
        }));
      contexts.set(kind, context);
      context.setDefaultTimeout(WAIT_MS);
      const page = await context.newPage();
      page.on('pageerror', (error) => faults.push(`error: ${error.message}`));
      page.on(
        'console',
        (message) =>
          message.type() === 'error' &&
          !/Failed to load resource|^Framing '/.test(message.text()) &&
          faults.push(`console: ${message.text()}`),
      );
      page.on(
        'request',
        (request) =>
          !request.url().startsWith(site.url) &&
          !request.url().startsWith('data:') &&
          faults.push(`asked elsewhere: ${request.url()}`),
      );
      await page.goto(`${site.url}/#${address || 'view=profile'}`);
      return page;
    },
    shot: async (page, name) => {
      mkdirSync(OUT, { recursive: true });
      await page.screenshot({ path: `${OUT}/${name}.png` });
    },
  };
  beforeAll(async () => {
    if (!CHROMIUM)
      throw new Error('failed to find Chromium: install the package `chromium-headless-shell`, or name it in CHROMIUM');
    browser = await chromium.launch({ executablePath: CHROMIUM, args: ['--no-sandbox'] });
    if (SEEDED) site.mock = await startMock(dist);
    site.url = BASE_URL ?? site.mock?.url ?? '';
  });
  afterEach(async () => {
    for (const page of [...contexts.values()].flatMap((context) => context.pages())) {
      await page.evaluate(() => localStorage.clear());
      await page.close();
    }
    const found = faults;
    faults = [];
    expect(found).toEqual([]);
  });
  afterAll(async () => {
    await browser?.close();
    await site.mock?.close();
  });
  return site;
}

/** Waits until the graph has data and has drawn it. */
export async function drawn(page: Page): Promise<void> {
  await page.waitForFunction(() => {
    const canvas = document.querySelector<HTMLCanvasElement>('.flame-box canvas');
    return canvas !== null && Number(canvas.dataset.nodes) > 1 && Number(canvas.dataset.drawn) > 0;
  });
}

/** Waits until nothing is asked any more. */
export async function settled(page: Page): Promise<void> {
  await page.waitForFunction(() => document.querySelector('[aria-busy="true"]') === null);
}

/** A parameter of the page's address. */
export function param(page: Page, name: string): string | null {
  return new URLSearchParams(new URL(page.url()).hash.slice(1)).get(name);
}

/** Where the middle of a level of the first graph is, in the window. */
export async function levelPoint(page: Page, level: number, part = 0.5): Promise<{ x: number; y: number }> {
  const box = await page.locator('.flame-box').first().boundingBox();
  if (!box) throw new Error('no graph');
  return { x: box.x + box.width * part, y: box.y + level * 18 + 9 };
}

interface Kept extends Window {
  __workers: Worker[];
  /** Requests of this operation do not reach the worker. */
  __withheld: string | undefined;
  __waiting: (() => void)[];
  /** Codes of the troubles that workers told. */
  __refused: string[];
}

/** Loads the page again with its workers in the test's hands. */
export async function holdWorkers(page: Page): Promise<void> {
  await page.addInitScript(() => {
    const kept = window as never as Kept;
    [kept.__workers, kept.__waiting, kept.__refused] = [[], [], []];
    const post = Worker.prototype.postMessage;
    Worker.prototype.postMessage = function (this: Worker, message: { operation?: string }) {
      if (!kept.__workers.includes(this)) {
        kept.__workers.push(this);
        this.addEventListener('message', ({ data }) => data.trouble && kept.__refused.push(data.trouble.code));
      }
      const send = () => post.call(this, message);
      if (message.operation && message.operation === kept.__withheld) kept.__waiting.push(send);
      else send();
    };
  });
  await page.reload();
}

/** Ends the worker that started last, as a browser does that has no memory for it. */
export async function endWorker(page: Page): Promise<void> {
  await page.evaluate(() => {
    const worker = (window as never as Kept).__workers.at(-1);
    worker?.terminate();
    worker?.dispatchEvent(new Event('error'));
  });
}

/** Ends the worker that started last without a word: for the page it hangs. */
export async function silenceWorker(page: Page): Promise<void> {
  await page.evaluate(() => (window as never as Kept).__workers.at(-1)?.terminate());
}

/** Keeps requests of an operation from the worker; undefined: sends what was kept. */
export async function withhold(page: Page, operation: string | undefined): Promise<void> {
  await page.evaluate((withheld) => {
    const kept = window as never as Kept;
    kept.__withheld = withheld;
    for (const send of withheld ? [] : kept.__waiting.splice(0)) send();
  }, operation);
}
