// Builds the page into few files with stable names, which the collector carries in its binary.

import { defineConfig } from 'vite';
import { buildId } from './scripts/build-id.ts';
import { licences } from './scripts/licences.ts';
import { withoutJson } from './scripts/without-json.ts';

export default defineConfig({
  // Relative, so that the page works below any path.
  base: './',
  define: { __BUILD__: JSON.stringify(buildId()) },
  plugins: [licences(), withoutJson()],
  oxc: { jsx: { runtime: 'automatic', importSource: 'preact' } },
  build: {
    outDir: 'dist',
    emptyOutDir: true,
    target: 'es2022',
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    modulePreload: false,
    reportCompressedSize: false,
    rollupOptions: {
      output: {
        entryFileNames: 'app.js',
        assetFileNames: (asset) => (asset.names.some((name) => name.endsWith('.css')) ? 'app.css' : '[name][extname]'),
        codeSplitting: false,
      },
    },
  },
  worker: {
    format: 'es',
    plugins: () => [withoutJson()],
    // Each worker is one file, named after what it does.
    rollupOptions: {
      output: { entryFileNames: ({ name }) => (name === 'searchWorker' ? 'search.js' : 'analysis.js') },
    },
  },
  server: {
    // The mock, or a collector on its default address.
    proxy: {
      '/fleetprof.collector.v1.QueryService': 'http://127.0.0.1:7071',
      '/fleetprof.collector.v1.CaptureService': 'http://127.0.0.1:7071',
      '/api': 'http://127.0.0.1:7071',
    },
  },
});
