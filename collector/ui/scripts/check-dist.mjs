// Fails when `dist`, or the viewer of files that the crate `profile` carries, is not what the
// sources build to, or holds what it must not; and when the lock file names where packages are
// downloaded from.

import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, readdirSync, rmSync, statSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

/** Most that the page may weigh. Unit: bytes. It stands in the collector's binary. */
const SIZE_MAX = 832 << 10;

/** Most that the viewer may weigh. Unit: bytes. It stands in every file that is written. */
const VIEWER_SIZE_MAX = 168 << 10;

const root = fileURLToPath(new URL('..', import.meta.url));
const dist = join(root, 'dist');
const viewer = join(root, '../../profile/src/formats/html/viewer.html');
const wrong = [];

const files = (folder) =>
  readdirSync(folder, { recursive: true })
    .filter((name) => statSync(join(folder, name)).isFile())
    .sort();

/** Builds by a configuration into a folder, and looks at what came. */
const build = (config, look) => {
  const built = mkdtempSync(join(tmpdir(), 'fleetprof-ui-'));
  try {
    execFileSync(
      join(root, 'node_modules/.bin/vite'),
      ['build', '--config', config, '--outDir', built, '--emptyOutDir', '--logLevel', 'warn'],
      { cwd: root, stdio: 'inherit' },
    );
    look(built);
  } finally {
    rmSync(built, { recursive: true, force: true });
  }
};

build('vite.config.ts', (built) => {
  const [have, want] = [files(dist), files(built)];
  for (const name of new Set([...have, ...want])) {
    if (!have.includes(name)) wrong.push(`dist lacks \`${name}\``);
    else if (!want.includes(name)) wrong.push(`dist has \`${name}\`, which the sources do not build`);
    else if (!readFileSync(join(dist, name)).equals(readFileSync(join(built, name))))
      wrong.push(`\`dist/${name}\` differs from what the sources build`);
  }
});
build('vite.export.config.ts', (built) => {
  if (!existsSync(viewer) || !readFileSync(viewer).equals(readFileSync(join(built, 'viewer.html'))))
    wrong.push('`profile/src/formats/html/viewer.html` differs from what the sources build');
});

const page = readFileSync(join(dist, 'index.html'), 'utf8');
if (/<style|\sstyle=|<script(?![^>]*\ssrc=)|\son\w+=/i.test(page))
  wrong.push('index.html has script or style in line, which the policy refuses');
if (/(?:src|href)="(?:https?:)?\/\//i.test(page)) wrong.push('index.html asks another address');
const style = readFileSync(join(dist, 'app.css'), 'utf8');
if (/@import|url\(\s*["']?(?!data:)/i.test(style)) wrong.push('app.css asks for more files');
const size = files(dist).reduce((sum, name) => sum + statSync(join(dist, name)).size, 0);
if (size > SIZE_MAX) wrong.push(`dist has ${size} bytes, more than ${SIZE_MAX}`);
const viewerSize = existsSync(viewer) ? statSync(viewer).size : 0;
if (viewerSize > VIEWER_SIZE_MAX) wrong.push(`viewer.html has ${viewerSize} bytes, more than ${VIEWER_SIZE_MAX}`);

const lock = JSON.parse(readFileSync(join(root, 'package-lock.json'), 'utf8'));
for (const [name, one] of Object.entries(lock.packages))
  if (one.resolved) wrong.push(`package-lock.json says where \`${name}\` is downloaded from`);

if (wrong.length) {
  console.error(wrong.map((line) => `check-dist: ${line}`).join('\n'));
  console.error('check-dist: run `npm run build` and commit dist and viewer.html with the sources');
  process.exit(1);
}
console.log(
  `check-dist: dist is what the sources build: ${files(dist).length} files, ${size} bytes; viewer.html: ${viewerSize} bytes`,
);
