// What is said of a frame: below the graph, in its panel, and to those who hear the page.

import type { Graph } from '../analysis/client';
import { Module, Name } from '../app/parts';
import { KIND_WORDS, syntheticMeaning, unnamedReason } from '../query/outcome';
import * as format from '../text/format';
import type { Compare } from './diff';
import { changeOf, rateOf } from './diff';
import type { Layout } from './layout';
import type { Neighbours } from './sandwich';
import { KIND_START } from './transforms';
import { KIND_LABEL } from './tree';

export interface Describing {
  layout: Layout;
  unit: string;
  samples: boolean;
  /** Set where two profiles are compared. */
  compare?: Compare;
  /** Callers stand on what they call: what ends in a frame is not its own. */
  bottomUp?: boolean;
  /** Time that a host's data covers, of which time is a rate, such as cores. Unit: nanoseconds. */
  coveredNs?: number | undefined;
}

/** A node of one side of a comparison. */
function sided(id: number, side: 0 | 1, of: Describing): string {
  const { tree } = of.layout;
  const rate = of.compare === 'sum' && !of.samples ? rateOf(tree, id, side) : undefined;
  return rate === undefined ? amount(tree.total[side][id], of) : rateText(rate, of);
}

const rateText = (rate: number, of: Describing) => format.rate(rate, of.unit);

const amount = (value: number, of: Describing) =>
  of.samples ? format.plural(value, 'sample') : format.weight(value, of.unit);

/** One line of text. */
export function sentence(node: number, of: Describing): string {
  const { tree } = of.layout;
  const id = of.layout.node[node];
  if (of.compare) {
    const change = changeOf(tree, id, of.compare);
    const state = change.appeared ? 'new' : change.vanished ? 'gone' : moved(id, change.delta, of);
    return `before ${sided(id, 0, of)}, after ${sided(id, 1, of)}, ${state}`;
  }
  const [own, total, whole] = [tree.own[0][id], tree.total[0][id], tree.total[0][0]];
  const all = `total ${amount(total, of)} (${format.share(total, whole)})`;
  return of.bottomUp ? all : `self ${amount(own, of)} (${format.share(own, whole)}), ${all}`;
}

/** By how much a node changed. */
function moved(id: number, delta: number, of: Describing): string {
  const { tree } = of.layout;
  if (of.compare === 'total') {
    const grown = tree.total[1][id] - tree.total[0][id];
    return `${grown < 0 ? '−' : '+'}${amount(Math.abs(grown), of)}`;
  }
  const [was, is] = of.compare === 'sum' ? [rateOf(tree, id, 0), rateOf(tree, id, 1)] : [];
  if (was === undefined || is === undefined) return format.points(delta);
  return `${is < was ? '−' : '+'}${rateText(Math.abs(is - was), of)}`;
}

/** Most spellings shown. */
const SPELLINGS_SHOWN = 3;

/** Name, module, file and kind, and how the runtime spells the name. */
export function About({ node, of }: { node: number; of: Describing }) {
  if (of.layout.tree.names.kind[of.layout.name[node]] === KIND_START) return <StartFrames node={node} of={of} />;
  return <AboutFrame node={node} of={of} />;
}

/** The frames that one stands for, the outermost first. */
function StartFrames({ node, of }: { node: number; of: Describing }) {
  const { names } = of.layout.tree;
  // Each is its kind, its module, which may have spaces, and its name.
  const frames = names.spelled[of.layout.name[node]].split('\n').map((line) => line.slice(line.lastIndexOf(' ') + 1));
  return (
    <div class="tip-about soft">
      frames that start a program or a thread: <Name text={frames.join(' › ')} max={300} />
    </div>
  );
}

function AboutFrame({ node, of }: { node: number; of: Describing }) {
  const { names } = of.layout.tree;
  const id = of.layout.name[node];
  const kind = names.kind[id];
  const meaning = syntheticMeaning(names.text[id]);
  const spelled = names.spelled[id] === '' ? [] : names.spelled[id].split('\n');
  return (
    <>
      <div class="tip-about soft">
        {kind === KIND_LABEL
          ? 'label value'
          : node === 0
            ? 'the complete selection'
            : (KIND_WORDS[kind] ?? `kind ${kind}`)}
        {names.module[id] !== '' && (
          <>
            {' · '}
            <Module path={names.module[id]} />
          </>
        )}
        {names.file[id] !== '' && (
          <>
            {' · '}
            <Name text={names.file[id] + (names.line[id] > 0 ? `:${names.line[id]}` : '')} max={90} />
          </>
        )}
      </div>
      {spelled.slice(0, SPELLINGS_SHOWN).map((text) => (
        <div class="tip-about soft" key={text}>
          spelled <Name text={text} max={90} />
        </div>
      ))}
      {spelled.length > SPELLINGS_SHOWN && <div class="tip-about soft">and more spellings</div>}
      {names.unnamed[id] !== 0 && <div class="tip-about soft">no symbol: {unnamedReason(names.unnamed[id])}</div>}
      {meaning !== '' && kind === 5 && <div class="tip-about soft">{meaning}</div>}
    </>
  );
}

/** As a rate of time, such as cores, where that is known. */
function Rate({ value, of }: { value: number; of: Describing }) {
  if (!of.coveredNs || of.samples || of.unit !== 'nanoseconds') return null;
  return <td>{rateText(value / of.coveredNs, of)}</td>;
}

/** What a function costs wherever it stands. */
export function OfFunction({ graph, found, of }: { graph: Graph; found: Neighbours | undefined; of: Describing }) {
  const whole = graph.layout.tree.total[0][0];
  const row = (title: string, value: number | undefined) => (
    <tr>
      <th scope="row">{title}</th>
      <td>{value === undefined ? '…' : amount(value, of)}</td>
      <td>{value === undefined ? '' : format.share(value, whole)}</td>
      {value !== undefined && <Rate value={value} of={of} />}
    </tr>
  );
  return (
    <table class="tip-numbers">
      <caption>This function, wherever it stands</caption>
      <tbody>
        {row('self', found?.own[0])}
        {row('total', found?.total[0])}
      </tbody>
    </table>
  );
}

/** The numbers of a frame as a small table. */
export function Numbers({ node, of }: { node: number; of: Describing }) {
  const { tree } = of.layout;
  const id = of.layout.node[node];
  if (of.compare) return <DiffNumbers id={id} of={of} />;
  const [own, total, whole] = [tree.own[0][id], tree.total[0][id], tree.total[0][0]];
  const parent = tree.total[0][of.layout.node[of.layout.parent[node]]];
  return (
    <table class="tip-numbers">
      <caption>This frame</caption>
      <tbody>
        {!of.bottomUp && (
          <tr>
            <th scope="row">self</th>
            <td>{amount(own, of)}</td>
            <td>{format.share(own, whole)}</td>
            <Rate value={own} of={of} />
          </tr>
        )}
        <tr>
          <th scope="row">total</th>
          <td>{amount(total, of)}</td>
          <td>{format.share(total, whole)}</td>
          <Rate value={total} of={of} />
          <td class="soft">
            {node > 0 ? `${format.share(total, parent)} of ${of.bottomUp ? 'what it calls' : 'its caller'}` : ''}
          </td>
        </tr>
      </tbody>
    </table>
  );
}

function DiffNumbers({ id, of }: { id: number; of: Describing }) {
  const { tree } = of.layout;
  const change = changeOf(tree, id, of.compare ?? 'share');
  const state = change.appeared ? 'new' : change.vanished ? 'gone' : undefined;
  return (
    <table class="tip-numbers">
      <tbody>
        <tr>
          <th scope="row">before</th>
          <td>{sided(id, 0, of)}</td>
          <td>{format.share(change.before, tree.total[0][0])}</td>
        </tr>
        <tr>
          <th scope="row">after</th>
          <td>{sided(id, 1, of)}</td>
          <td>{format.share(change.after, tree.total[1][0])}</td>
        </tr>
        <tr>
          <th scope="row">change</th>
          <td class={change.delta > 0 ? 'more-than' : 'less-than'}>{state ?? moved(id, change.delta, of)}</td>
        </tr>
      </tbody>
    </table>
  );
}
