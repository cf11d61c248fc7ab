// Writes beside the page whose code it carries, and under which licence.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import type { Plugin } from 'vite';

/** This project's own copy of the licence that most packages only name. */
const APACHE = fileURLToPath(new URL('../../../LICENSE-APACHE', import.meta.url));

/** As a plugin is given it. */
type Bundle = Record<string, { type: 'asset' } | { type: 'chunk'; modules: Record<string, unknown> }>;

/** Adds `licences.txt` to the build. */
export function licences(): Plugin {
  return {
    name: 'licences',
    generateBundle(_, bundle) {
      const source = `This page carries code of:\n\n${carried(bundle)}\nThe Apache License, for those that name it:\n\n${readFileSync(APACHE, 'utf8')}`;
      this.emitFile({ type: 'asset', fileName: 'licences.txt', source });
    },
  };
}

/** What is bundled: each package with its licence. */
export function carried(bundle: Bundle): string {
  const packages = new Map<string, string[]>();
  for (const part of Object.values(bundle)) {
    for (const id of part.type === 'chunk' ? Object.keys(part.modules) : []) {
      const found = /^\0?((.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\/[^?]*)/.exec(id);
      if (found) packages.set(found[2], [...(packages.get(found[2]) ?? []), found[1]]);
    }
  }
  return [...packages]
    .map(([folder, modules]) => describe(folder, modules))
    .sort()
    .join('\n');
}

function describe(folder: string, modules: readonly string[]): string {
  const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
    name: string;
    version: string;
    license?: string;
  };
  const file = readdirSync(folder).find((name) => /^licen[cs]e/i.test(name));
  const text = file ? readFileSync(join(folder, file), 'utf8') : notices(modules);
  const indented = text
    .trim()
    .replace(/^/gm, '    ')
    .replace(/[ \t]+$/gm, '');
  return `${manifest.name} ${manifest.version}, ${manifest.license ?? 'see its page'}\n\n${indented}\n`;
}

/** What packages without a file of their licence say at the head of their sources. */
function notices(modules: readonly string[]): string {
  const heads = modules.flatMap((module) => {
    const head = /^(?:\/\/.*\n|\s*\n)+/.exec(readFileSync(module, 'utf8'))?.[0] ?? '';
    // Paragraphs of several holders stand one after the other.
    return head.split(/\n\s*\n/).map((block) => block.replace(/^\/\/ ?/gm, '').trim());
  });
  return [...new Set(heads.filter((block) => /copyright/i.test(block)))].sort().join('\n\n');
}
