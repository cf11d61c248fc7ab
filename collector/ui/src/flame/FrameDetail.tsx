// Below the graph: the chosen frame and what can be done with it.

import { CopyButton, Name, Popover } from '../app/parts';
import type { ProfileSource } from '../analysis/protocol';
import { getState, setState, useDisplayState } from '../state/store';
import { useTheme } from '../state/theme';
import { DIFF_STEPS, KIND_LEGEND, diffColour, kindColour } from './colour';
import { type Describing, sentence } from './describe';
import { FrameLines } from './FrameLines';
import { escapeRegex } from './search';

const KEYS: readonly (readonly [string, string])[] = [
  ['click, Enter', 'zoom into a frame'],
  ['Esc', 'clear the search, then zoom out'],
  ['Backspace', 'zoom out to the caller'],
  ['arrows', 'caller, callee, neighbours'],
  ['Home, 0', 'zoom out completely'],
  ['Ctrl + wheel', 'zoom around the pointer'],
  ['drag, Shift + wheel', 'move sideways'],
  ['/', 'search'],
  ['n, N', 'next match, previous match'],
  ['s', 'callers and callees of the selected frame'],
  ['f', 'focus on the selected frame'],
];

/** Where there is somebody to ask again. */
const OF_PAGE: typeof KEYS = [['r', 'refresh']];

/** The chosen frame and what can be done with it; without one, what colours mean. */
export function Detail(props: {
  of: Describing;
  node: number | undefined;
  /** For source lines; undefined: two profiles are compared, or there are none. */
  source: ProfileSource | undefined;
  once?: boolean;
  hasLines?: boolean;
  onRecord?: (text: string) => void;
  /** What differs by chance alone is not coloured. */
  chance?: boolean;
  /** Keys of what is around; absent: those of the page. */
  keys?: typeof KEYS;
}) {
  const { of, node } = props;
  if (node === undefined) {
    return (
      <div class="detail">
        <Legend diff={of.compare !== undefined} chance={props.chance} />
        <Popover title="Shortcuts" class="plain soft keys" align="right" above label="Shortcuts">
          {() => (
            <dl class="keys-list">
              {[...KEYS, ...(props.keys ?? OF_PAGE)].map(([key, what]) => (
                <>
                  <dt>{key}</dt>
                  <dd>{what}</dd>
                </>
              ))}
            </dl>
          )}
        </Popover>
      </div>
    );
  }
  const name = of.layout.tree.names.text[of.layout.name[node]];
  return (
    <div class="detail" data-selected={name.slice(0, 100)}>
      <div class="detail-name">
        <Name text={name} max={160} /> <span class="soft">{sentence(node, of)}</span>
      </div>
      {node > 0 && (
        <div class="detail-tools">
          <button
            type="button"
            title="Highlight all frames of this function"
            onClick={() => setState({ search: `^${escapeRegex(name)}$`, regex: true })}
          >
            Highlight all
          </button>
          <button type="button" title="Callers and callees (s)" onClick={() => setState({ fn: name })}>
            Callers &amp; callees
          </button>
          <button type="button" title="Only stacks with this function (f)" onClick={() => setState({ focus: name })}>
            Focus
          </button>
          {!props.once && (
            <button
              type="button"
              title="Exclude stacks with this function"
              onClick={() =>
                setState({ filters: [...getState().filters, { op: 'drop', regex: `^${escapeRegex(name)}$` }] })
              }
            >
              Exclude
            </button>
          )}
          <CopyButton title="Copy the full name" text={() => name}>
            Copy
          </CopyButton>
        </div>
      )}
      {node > 0 && props.source && (
        <FrameLines
          source={props.source}
          text={name}
          kind={of.layout.tree.names.kind[of.layout.name[node]]}
          unit={of.unit}
          samples={of.samples}
          hasLines={props.hasLines ?? false}
          onRecord={props.onRecord}
        />
      )}
    </div>
  );
}

function Legend({ diff, chance }: { diff: boolean; chance: boolean | undefined }) {
  const { colours } = useDisplayState('colours');
  const theme = useTheme();
  if (diff) {
    return (
      <span class="legend-line">
        <span class="swatch" style={{ background: diffColour(-DIFF_STEPS, theme) }} /> less
        <span class="swatch" style={{ background: diffColour(0, theme) }} /> {chance ? 'within noise' : 'same'}
        <span class="swatch" style={{ background: diffColour(DIFF_STEPS, theme) }} /> more
        <span class="swatch hatch" /> gone
      </span>
    );
  }
  if (colours === 'module') return <span class="legend-line soft">one colour for each module</span>;
  return (
    <span class="legend-line">
      {KIND_LEGEND.map(({ kind, label }) => (
        <span key={kind}>
          <span class="swatch" style={{ background: kindColour(kind, theme) }} /> {label}
        </span>
      ))}
      <span>
        <span class="swatch hatch" /> lost / incomplete / other
      </span>
    </span>
  );
}
