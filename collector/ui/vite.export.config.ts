// Builds the viewer of files that stand alone into one page, which the crate `profile` carries and
// fills with a profile (`profile/src/formats/html`).

import { fileURLToPath } from 'node:url';
import { defineConfig } from 'vite';
import { onePage } from './scripts/one-page.ts';

const place = (path: string) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  plugins: [onePage(place('src/export/page.html'))],
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  publicDir: false,
  build: {
    outDir: place('../../profile/src/formats/html'),
    // Files of the crate are in the same folder.
    emptyOutDir: false,
    target: 'es2022',
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      input: place('src/export/main.tsx'),
      output: { format: 'iife', entryFileNames: 'viewer.js', assetFileNames: 'viewer[extname]', codeSplitting: false },
    },
  },
});
