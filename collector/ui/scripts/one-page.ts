// Puts a build into one page: script and style stand in it, and its policy names both by their
// hash, so that nothing else in the page can run or be asked for.

import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import type { Plugin } from 'vite';
import { carried } from './licences.ts';

/** What the page is called. */
export const PAGE = 'viewer.html';

const hashOf = (text: string) => createHash('sha256').update(text).digest('base64');

/**
 * A script as it may stand in a page. Characters beyond ASCII are escaped, since some of them are
 * hostile when they are printed; what would end the script, or start a comment, must not be in it.
 */
function inPage(script: string): string {
  const ascii = script.replace(/[^\n -~]/g, (unit) => `\\u${(unit.codePointAt(0) ?? 0).toString(16).padStart(4, '0')}`);
  if (/<\/?script|<!--/i.test(ascii)) throw new Error('the script has markup that a page would act on');
  return ascii;
}

/** Replaces the files of a build by the page. */
export function onePage(template: string): Plugin {
  return {
    name: 'one-page',
    enforce: 'post',
    generateBundle: {
      order: 'post',
      handler(_, bundle) {
        const licences = carried(bundle);
        let [script, style] = ['', ''];
        for (const [name, part] of Object.entries(bundle)) {
          if (part.type === 'chunk') script += inPage(part.code);
          else style += part.source;
          delete bundle[name];
        }
        if (/[^\n -~]|<\//.test(style)) throw new Error('the style has what cannot stand in a page');
        if (licences.includes('--')) throw new Error('a licence has what ends a comment');
        const built: Record<string, string> = {
          script,
          style,
          'script-hash': hashOf(script),
          'style-hash': hashOf(style),
          licences: `<!--\nThis page carries code of:\n\n${licences}-->\n`,
        };
        const source = readFileSync(template, 'utf8').replace(/<!--build:([a-z-]+)-->/g, (_, name) => {
          if (built[name] === undefined) throw new Error(`the page asks for \`${name}\``);
          return built[name];
        });
        this.emitFile({ type: 'asset', fileName: PAGE, source });
      },
    },
  };
}
