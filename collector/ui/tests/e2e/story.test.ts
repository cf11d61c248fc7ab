// The night that the page is for, against a real collector with the data of tests/tests/story.rs: a
// new version makes a function slower on a third of the hosts of a service. Without typing: the
// service, since when, on which hosts, after which deploy, and the function. Prints how many clicks
// and seconds that took, and takes a picture of every step.

import { mkdirSync } from 'node:fs';
import type { Page } from 'playwright-core';
import { describe, expect, test } from 'vitest';
import { param, settled, useSite } from './browser';

interface Story {
  service: string;
  function: string;
  /** The first digits of the new build id. */
  build: string;
  deployedMs: number;
  /** The hosts that got it. */
  slower: string[];
  hosts: number;
  /** Where pictures go. */
  shots: string;
}

const story: Story | undefined = process.env.STORY ? JSON.parse(process.env.STORY) : undefined;
const site = useSite();

const WINDOWS = {
  light: { viewport: { width: 1600, height: 1000 } },
  dark: { viewport: { width: 1280, height: 800 }, colorScheme: 'dark' },
  phone: { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true },
} as const;

/** A minute at which a change was said to begin, from `since 14:22:00`. */
function sinceMs(text: string, near: number): number {
  const clock = /since (\d\d):(\d\d):(\d\d)/.exec(text);
  if (!clock) throw new Error(`no time in: ${text}`);
  const at = new Date(near);
  at.setUTCHours(Number(clock[1]), Number(clock[2]), Number(clock[3]), 0);
  const day = 86_400_000;
  // The clock names no day: the one next to what is expected.
  return at.getTime() + Math.round((near - at.getTime()) / day) * day;
}

/** Whoever looks at the page: what was clicked, and when it began. */
class Reader {
  clicks = 0;
  private step = 0;

  constructor(
    readonly page: Page,
    readonly look: string,
    readonly of: Story,
    /** When the page was asked for. */
    readonly began: number,
  ) {}

  async see(what: string): Promise<void> {
    mkdirSync(this.of.shots, { recursive: true });
    this.step++;
    await this.page.screenshot({ path: `${this.of.shots}/${this.look}-${this.step}-${what}.png`, fullPage: true });
  }

  seconds(): string {
    return ((Date.now() - this.began) / 1000).toFixed(1);
  }
}

describe.skipIf(story === undefined)('a slower version on a third of the hosts', () => {
  for (const [look, options] of Object.entries(WINDOWS)) {
    test(`is found out without typing: ${look}`, async () => {
      const of = story as Story;
      const began = Date.now();
      const page = await site.open('view=overview', options);
      const reader = new Reader(page, look, of, began);
      const sentence = page.locator('.verdict li', { hasText: of.service });
      await sentence.waitFor();
      const text = (await sentence.textContent()) ?? '';
      const seen = reader.seconds();
      // Since when.
      expect(Math.abs(sinceMs(text, of.deployedMs) - of.deployedMs)).toBeLessThanOrEqual(3 * 60_000);
      // Where: these hosts and no other.
      expect(text).toMatch(new RegExp(`on ${of.slower.length} of \\d+ hosts`));
      for (const host of of.slower) expect(text).toContain(host);
      for (let at = 0; at < of.hosts; at++) {
        const host = `web-${String(at).padStart(2, '0')}`;
        if (!of.slower.includes(host)) expect(text).not.toContain(host);
      }
      // After which deploy.
      await sentence.locator('.verdict-deploy').waitFor();
      expect(await sentence.locator('.verdict-deploy').textContent()).toContain(of.build);
      // And on the chart.
      const flag = page.locator('.fleet-plot .flag.deploy button').first();
      expect(await flag.getAttribute('aria-label')).toContain(of.build);
      // Which function.
      const link = page.getByRole('region', { name: 'What changed' }).getByRole('link', { name: of.function });
      await link.first().waitFor();
      const known = reader.seconds();
      await settled(page);
      await reader.see('overview');
      await flag.focus();
      await reader.see('deploy');
      if (look === 'phone')
        expect(await page.evaluate(() => document.documentElement.scrollWidth)).toBeLessThanOrEqual(390);
      reader.clicks++;
      await link.first().click();
      await page.waitForSelector('main.view-compare');
      await settled(page);
      expect(param(page, 'search')).toBe(of.function);
      expect(param(page, 'query')).toContain(of.service);
      // Its row in the table says how much more it needs.
      const row = page.locator('main tr', { hasText: of.function }).first();
      await row.waitFor();
      expect(await row.textContent()).toContain('+');
      const shown = reader.seconds();
      await reader.see('function');
      console.log(
        `story, ${look}: service, time, hosts and deploy after ${seen} s, the function after ${known} s, both without ` +
          `a click; it is shown in its stacks after ${reader.clicks} click and ${shown} s; pictures in ${of.shots}`,
      );
    });
  }
});
