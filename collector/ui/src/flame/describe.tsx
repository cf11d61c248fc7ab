// What is said of a frame: under the pointer, below the graph, and to those who hear the page.

import { Module, Name } from '../app/parts';
import { KIND_WORDS, syntheticMeaning, unnamedReason } from '../query/outcome';
import * as format from '../text/format';
import { shown } from '../text/printable';
import type { Compare } from './diff';
import { changeOf, rateOf } from './diff';
import type { Layout } from './layout';
import { KIND_LABEL } from './tree';

export interface Describing {
  layout: Layout;
  unit: string;
  samples: boolean;
  /** Set where two profiles are compared. */
  compare?: Compare;
}

/** A node of one side of a comparison. */
function sided(id: number, side: 0 | 1, of: Describing): string {
  const { tree } = of.layout;
  const rate = of.compare === 'sum' && !of.samples ? rateOf(tree, id, side) : undefined;
  return rate === undefined ? amount(tree.total[side][id], of) : rateText(rate, of);
}

const rateText = (rate: number, of: Describing) =>
  `${format.significant(rate)} ${of.unit === 'nanoseconds' ? 'cores' : `${of.unit || 'samples'}/s`}`;

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
  return `self ${amount(own, of)} (${format.share(own, whole)}), total ${amount(total, of)} (${format.share(total, whole)})`;
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
  const { names } = of.layout.tree;
  const id = of.layout.name[node];
  const kind = names.kind[id];
  const meaning = syntheticMeaning(names.text[id]);
  const spelled = names.spelled[id] === '' ? [] : names.spelled[id].split('\n');
  return (
    <>
      <div class="tip-name">{shown(names.text[id])}</div>
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

/** The numbers of a frame as a small table. */
export function Numbers({ node, of }: { node: number; of: Describing }) {
  const { tree } = of.layout;
  const id = of.layout.node[node];
  if (of.compare) return <DiffNumbers id={id} of={of} />;
  const [own, total, whole] = [tree.own[0][id], tree.total[0][id], tree.total[0][0]];
  const parent = tree.total[0][of.layout.node[of.layout.parent[node]]];
  return (
    <table class="tip-numbers">
      <tbody>
        <tr>
          <th scope="row">self</th>
          <td>{amount(own, of)}</td>
          <td>{format.share(own, whole)}</td>
        </tr>
        <tr>
          <th scope="row">total</th>
          <td>{amount(total, of)}</td>
          <td>{format.share(total, whole)}</td>
          <td class="soft">{node > 0 ? `${format.share(total, parent)} of its caller` : ''}</td>
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
