// The profile as a file, in every format the collector writes.

import { Icon, Popover } from './parts';
import type { Subject } from '../query/client';
import { toNs } from '../time/range';

const FORMATS: readonly (readonly [extension: string, name: string, about: string])[] = [
  ['pprof', 'pprof', 'go tool pprof, and most viewers'],
  ['folded', 'Folded stacks', 'one line a stack, for scripts'],
  ['speedscope.json', 'Speedscope', 'for speedscope.app'],
  ['svg', 'SVG', 'a picture'],
  ['html', 'HTML', 'one page with a graph, works offline'],
  ['json', 'JSON', 'everything, with its quality'],
];

/** Where the collector serves a format of a selection. Times are nanoseconds since the Unix epoch. */
export function downloadUrl(subject: Subject, extension: string): string {
  const params = new URLSearchParams({
    selector: subject.query,
    from: String(toNs(subject.range.from)),
    to: String(toNs(subject.range.to)),
  });
  for (const filter of subject.filters) params.append('frame', `${filter.op}:${filter.regex}`);
  return `api/profile.${extension}?${params}`;
}

export function Download({ subject, note }: { subject: Subject; note?: string }) {
  return (
    <Popover
      title="Download the profile"
      align="right"
      label={
        <>
          <Icon of="download" /> Download
        </>
      }
    >
      {(close) => (
        <ul class="menu">
          {FORMATS.map(([extension, name, about]) => (
            <li key={extension}>
              <a href={downloadUrl(subject, extension)} download onClick={() => close()}>
                <b>{name}</b> <span class="soft">{about}</span>
              </a>
            </li>
          ))}
          {note && <li class="soft">{note}</li>}
        </ul>
      )}
    </Popover>
  );
}
