// Asks a collector for the flame graph of its last hour, has `@grafana/flamegraph` draw it in
// Chromium, and leaves a picture. `COLLECTOR` is its page, `SHOT` the picture.
//
//     npm install && COLLECTOR=http://127.0.0.1:7610 SHOT=flame.png npm run try
import { build } from 'esbuild';
import { chromium } from 'playwright-core';
import { fileURLToPath } from 'node:url';

const collector = process.env.COLLECTOR ?? 'http://127.0.0.1:7610';
const shot = process.env.SHOT ?? 'flame.png';
const end = Date.now();
const asked = {
  profile_typeID: 'process_cpu:cpu:nanoseconds:cpu:nanoseconds',
  label_selector: process.env.SELECTOR ?? '{}',
  start: end - 3_600_000,
  end,
  max_nodes: 16_384,
};
const path = '/querier.v1.QuerierService/SelectMergeStacktraces';
const response = await fetch(collector + path, {
  method: 'POST',
  headers: { 'content-type': 'application/json' },
  body: JSON.stringify(asked),
});
if (!response.ok) throw new Error(`the collector answers ${response.status}: ${await response.text()}`);
const answer = await response.json();

const bundle = await build({
  entryPoints: [fileURLToPath(new URL('draw.jsx', import.meta.url))],
  bundle: true,
  write: false,
  jsx: 'automatic',
  define: { 'process.env.NODE_ENV': '"production"', global: 'window' },
  loader: { '.svg': 'dataurl', '.ttf': 'dataurl', '.woff2': 'dataurl' },
  // A button of Grafana's that a flame graph does without.
  alias: { '@grafana/assistant': fileURLToPath(new URL('assistant.mjs', import.meta.url)) },
  outdir: 'out',
  logLevel: 'error',
});
const script = bundle.outputFiles.find((file) => file.path.endsWith('.js')).text;

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
const page = await browser.newPage({ viewport: { width: 1280, height: 800 } });
const errors = [];
page.on('pageerror', (error) => errors.push(String(error)));
// Icons are files of Grafana's, which is not here.
const icons = /Failed to load resource/;
page.on('console', (message) => {
  if (message.type() === 'error' && !icons.test(message.text())) errors.push(message.text());
});
// A page with an origin: the library looks for settings of its user.
const body = '<!doctype html><body style="background:#111217"><div id="root"></div></body>';
await page.route('http://flame.invalid/', (route) => route.fulfill({ contentType: 'text/html', body }));
await page.goto('http://flame.invalid/');
await page.evaluate((given) => { window.answer = given; }, answer);
await page.addScriptTag({ content: script });
await page.waitForSelector('canvas').catch((error) => {
  throw new Error([...errors, error].join('\n'));
});
await page.waitForTimeout(500);
await page.screenshot({ path: shot });
const bars = await page.evaluate(() => window.bars);
await browser.close();
console.log(`${bars} bars drawn, picture in ${shot}`);
if (errors.length > 0 || bars < 2) throw new Error(errors.join('\n') || 'nothing to draw');
