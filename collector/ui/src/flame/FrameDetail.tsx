// The chosen frame: what it is, what it costs, what stands around it, and what can be done with it.
// Without one, what colours mean.

import type { ComponentChildren } from 'preact';
import { useEffect, useMemo, useRef } from 'preact/hooks';
import { type Graph, analysis } from '../analysis/client';
import type { ProfileSource } from '../analysis/protocol';
import { Bar, CopyButton, Icon, Module, Name, Popover } from '../app/parts';
import { untilReplaced, useQuery } from '../query/useQuery';
import { setState, useDisplayState } from '../state/store';
import { useTheme } from '../state/theme';
import * as format from '../text/format';
import { actionsOf } from './actions';
import { DIFF_STEPS, KIND_LEGEND, diffColour, kindColour, moduleColour } from './colour';
import { About, type Describing, Numbers, OfFunction } from './describe';
import { FrameLines } from './FrameLines';
import type { Neighbours } from './sandwich';
import { isGroup } from './tree';

const KEYS: readonly (readonly [string, string])[] = [
  ['click, Enter', 'zoom into a frame'],
  ['right click, menu key', 'what can be done with a frame'],
  ['Esc', 'clear the search, zoom out, then close the frame'],
  ['Backspace', 'zoom out to the caller'],
  ['arrows', 'caller, callee, neighbours'],
  ['Home, 0', 'zoom out completely'],
  ['Ctrl + wheel', 'zoom around the pointer'],
  ['drag, Shift + wheel', 'move sideways'],
  ['/', 'search'],
  ['n, N', 'next match, previous match'],
  ['e', 'go to the details of the selected frame'],
  ['s', 'callers and callees of it'],
  ['f, x', 'focus on it, exclude it'],
  ['u, c, l', 'merge it into its callers, fold its recursion, fold its library'],
];

/** Where there is somebody to ask again. */
const OF_PAGE: readonly (readonly [string, string])[] = [['r', 'refresh']];

export interface FramePanelProps {
  of: Describing;
  node: number;
  /** The graph of all stacks, which knows what stands around. */
  graph: Graph;
  /** For source lines; undefined: two profiles are compared, or there are none. */
  source: ProfileSource | undefined;
  hasLines?: boolean;
  onRecord?: ((text: string) => void) | undefined;
  /** How the function did over time, and where. */
  about?: ((fn: string) => ComponentChildren) | undefined;
  /** Changes when the focus is to come here. */
  called: number;
  onClose: () => void;
}

export function FramePanel(props: FramePanelProps) {
  const { of, node, graph, onClose } = props;
  const { names } = of.layout.tree;
  const id = of.layout.name[node];
  const name = names.text[id];
  const actions = actionsOf(names, id);
  const isFunction = node > 0 && !isGroup(names.kind[id]);
  const query = untilReplaced(
    useQuery(isFunction ? `around\n${JSON.stringify([name, graph.request])}` : undefined, (signal) =>
      analysis.around(graph.request, name, signal),
    ),
  );
  // What is of the frame before stands for no other.
  const found = query.waiting ? undefined : query.data;
  const box = useRef<HTMLElement>(null);
  useEffect(() => {
    if (props.called > 0) box.current?.focus();
  }, [props.called]);
  return (
    <section
      ref={box}
      class="detail frame-panel"
      tabIndex={-1}
      aria-label="Selected frame"
      data-selected={name.slice(0, 100)}
      onKeyDown={(event) => {
        if (event.key !== 'Escape' || event.defaultPrevented) return;
        event.stopPropagation();
        onClose();
      }}
    >
      <header>
        <h3>
          <Name text={name} max={400} />
        </h3>
        <button
          type="button"
          class="square plain-square"
          aria-label="Close the frame (Esc)"
          title="Close (Esc)"
          onClick={onClose}
        >
          <Icon of="close" />
        </button>
      </header>
      <About node={node} of={of} />
      <Numbers node={node} of={of} />
      {isFunction && !of.compare && <OfFunction graph={graph} found={found} of={of} />}
      {actions.length > 0 && (
        <div class="detail-tools" role="group" aria-label="Actions on the frame">
          {actions
            .filter((action) => action.main)
            .map((action) => (
              <button
                key={action.id}
                type="button"
                title={action.keys ? `${action.title} (${action.keys})` : action.title}
                onClick={action.run}
              >
                {action.label}
              </button>
            ))}
          {isFunction && (
            <Popover
              title="More to do with this frame"
              label={
                <>
                  More <Icon of="down" />
                </>
              }
              align="right"
            >
              {(close) => (
                <div class="menu">
                  {actions
                    .filter((action) => !action.main && action.id !== 'copy')
                    .map((action) => (
                      <button
                        key={action.id}
                        type="button"
                        title={action.title}
                        onClick={() => {
                          close();
                          action.run();
                        }}
                      >
                        {action.label}
                      </button>
                    ))}
                </div>
              )}
            </Popover>
          )}
          <CopyButton title="Copy the full name" text={() => name}>
            Copy
          </CopyButton>
        </div>
      )}
      {isFunction && props.about?.(name)}
      {isFunction && found && <Around graph={graph} found={found} of={of} />}
      {node > 0 && props.source && (
        <FrameLines
          source={props.source}
          text={name}
          kind={names.kind[id]}
          unit={of.unit}
          samples={of.samples}
          hasLines={props.hasLines ?? false}
          onRecord={props.onRecord}
        />
      )}
    </section>
  );
}

/** What calls the function and what it calls, each a way to go there. */
function Around({ graph, found, of }: { graph: Graph; found: Neighbours; of: Describing }) {
  const { names } = graph.layout.tree;
  const column = graph.request.diff ? 1 : 0;
  const { callers, callees, callersLeftOut, calleesLeftOut, total } = found;
  const list = (title: string, rows: typeof callers, leftOut: number, none: string) => (
    <div class="around">
      <h4>{title}</h4>
      {rows.length === 0 && <p class="soft">{none}</p>}
      <ul>
        {rows.map((row) => (
          <li key={row.name}>
            <Bar fraction={row.value / total[column]}>{format.share(row.value, total[column])}</Bar>
            {row.name === 0 || isGroup(names.kind[row.name]) ? (
              <span class="soft">{row.name === 0 ? 'no caller' : names.text[row.name]}</span>
            ) : (
              <button
                type="button"
                class="plain"
                title="Callers and callees of this function"
                onClick={() => setState({ fn: names.text[row.name] })}
              >
                <Name text={names.text[row.name]} max={120} />
              </button>
            )}
          </li>
        ))}
      </ul>
      {leftOut > 0 && <p class="soft">and {format.plural(leftOut, 'other')}</p>}
    </div>
  );
  return (
    <div class="arounds" data-of={of.samples ? 'samples' : 'weight'}>
      {list('Callers', callers, callersLeftOut, 'Nothing calls it here.')}
      {list('Callees', callees, calleesLeftOut, 'It calls nothing.')}
    </div>
  );
}

/** What colours mean, and the keys. */
export function Legend({ graph, keys }: { graph: Graph; keys: readonly (readonly [string, string])[] | undefined }) {
  return (
    <div class="legend-row">
      <Colours graph={graph} />
      <Popover title="Shortcuts" class="plain soft keys" align="right" above label="Shortcuts">
        {() => (
          <dl class="keys-list">
            {[...KEYS, ...(keys ?? OF_PAGE)].map(([key, what]) => (
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

/** Most modules that are named: those with most time in their own code. */
const MODULES_NAMED = 6;

function Modules({ graph: { functions, layout } }: { graph: Graph }) {
  const theme = useTheme();
  const modules = useMemo(() => {
    const { module } = layout.tree.names;
    const own = new Map<string, number>();
    functions?.name.forEach((id, at) => {
      own.set(module[id], (own.get(module[id]) ?? 0) + functions.own[at]);
    });
    own.delete('');
    return [...own].sort((left, right) => right[1] - left[1]).map(([path]) => path);
  }, [functions]);
  return (
    <span class="legend-line">
      {modules.slice(0, MODULES_NAMED).map((path) => (
        <span key={path}>
          <span class="swatch" style={{ background: moduleColour(path, theme) }} /> <Module path={path} />
        </span>
      ))}
      {modules.length > MODULES_NAMED && `and ${format.count(modules.length - MODULES_NAMED)} more`}
    </span>
  );
}

function Colours({ graph }: { graph: Graph }) {
  const { colours } = useDisplayState('colours');
  const theme = useTheme();
  const { diff } = graph.request;
  if (diff) {
    return (
      <span class="legend-line">
        <span class="swatch" style={{ background: diffColour(-DIFF_STEPS, theme) }} /> less
        <span class="swatch" style={{ background: diffColour(0, theme) }} /> {diff.chance ? 'within noise' : 'same'}
        <span class="swatch" style={{ background: diffColour(DIFF_STEPS, theme) }} /> more
        <span class="swatch hatch" /> gone
      </span>
    );
  }
  if (colours === 'module') return <Modules graph={graph} />;
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
      <span>
        <span class="swatch swatch-run" /> too narrow
      </span>
    </span>
  );
}
