// The profile as a file, in every format the collector writes.

import { Popover } from './parts';
import type { Selection } from '../query/selection';
import { toNs } from '../time/range';

/** Every format that the collector writes. */
const FORMATS: readonly (readonly [extension: string, name: string, about: string])[] = [
  ['pprof', 'pprof', 'go tool pprof, and most viewers'],
  ['folded', 'Folded stacks', 'one line a stack, for scripts'],
  ['speedscope.json', 'Speedscope', 'for speedscope.app'],
  ['svg', 'SVG', 'a picture'],
  ['html', 'HTML', 'one page with a graph, works offline'],
  ['json', 'JSON', 'everything, including data quality'],
  ['parquet', 'Parquet', 'a table for notebooks'],
  ['firefox.json', 'Firefox Profiler', 'for profiler.firefox.com'],
  ['perf.txt', 'perf script', 'text in the format of `perf script`'],
  ['bundle.html', 'Bundle', 'one page with all facts, works offline'],
];

/**
 * Where the collector serves a format of a selection. Times are nanoseconds since the Unix epoch.
 */
export function downloadUrl(selection: Selection, extension: string): string {
  const params = new URLSearchParams({
    selector: selection.query,
    from: String(toNs(selection.range.from)),
    to: String(toNs(selection.range.to)),
  });
  if (selection.type) params.set('type', selection.type);
  for (const filter of selection.filters) params.append('frame', `${filter.op}:${filter.regex}`);
  return `api/profile.${extension}?${params}`;
}

export function Download({ selection, note }: { selection: Selection; note?: string | undefined }) {
  return <FormatMenu url={(extension) => downloadUrl(selection, extension)} note={note} />;
}

/** Every format of a profile, each a link. */
export function FormatMenu({ url, note }: { url: (extension: string) => string; note?: string | undefined }) {
  return (
    <Popover title="Download the profile" align="right" label="Download">
      {(close) => <FormatList url={url} note={note} close={close} />}
    </Popover>
  );
}

/** The links of a menu. */
export function FormatList(props: {
  url: (extension: string) => string;
  note?: string | undefined;
  close: () => void;
}) {
  return (
    <ul class="menu">
      {FORMATS.map(([extension, name, about]) => (
        <li key={extension}>
          <a href={props.url(extension)} download onClick={() => props.close()}>
            <b>{name}</b> <span class="soft">{about}</span>
          </a>
        </li>
      ))}
      {props.note && <li class="soft">{props.note}</li>}
    </ul>
  );
}
