// What is done to stacks before they are drawn, and what stands around a function.

import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { nativeColour } from '../../src/flame/colour';
import { layOut } from '../../src/flame/layout';
import { Names } from '../../src/flame/names';
import { readPath, writePath } from '../../src/flame/path';
import { around } from '../../src/flame/sandwich';
import { TRANSFORMS_MAX, type Transform, isStart, withTransform } from '../../src/flame/transforms';
import { type Options, type Tree, bottomUp, buildTree, functionRows } from '../../src/flame/tree';
import { ProfileResponseSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { Assembler, type Profile } from '../../src/query/profile';
import { valuesWith } from '../../src/tables/sums';
import { hash } from '../../src/text/hash';

/** A profile from lines of `a;b@module;c weight`. */
function profileOf(...lines: string[]): Profile {
  const strings = [''];
  const string = (text: string) => {
    if (!strings.includes(text)) strings.push(text);
    return strings.indexOf(text);
  };
  const frames: { function: number; module: number; kind: number }[] = [];
  const [stackParents, stackFrames] = [[] as number[], [] as number[]];
  const nodes = new Map<string, number>();
  const samples = lines.map((line) => {
    const [path, weight] = line.split(' ');
    let node = 0;
    for (const part of path.split(';')) {
      const [name, module = ''] = part.split('@');
      const [fn, of] = [string(name), string(module)];
      let frame = frames.findIndex((one) => one.function === fn && one.module === of);
      if (frame < 0) frame = frames.push({ function: fn, module: of, kind: 0 }) - 1;
      const key = `${node} ${frame}`;
      if (!nodes.has(key)) {
        stackParents.push(node);
        stackFrames.push(frame);
        nodes.set(key, stackParents.length);
      }
      node = nodes.get(key) ?? 0;
    }
    return { node, weight: BigInt(weight) };
  });
  const assembler = new Assembler();
  assembler.add(
    create(ProfileResponseSchema, {
      chunk: {
        info: { unit: 'nanoseconds' },
        strings,
        frames,
        stackParents,
        stackFrames,
        sampleLabelSets: samples.map(() => 0),
        sampleStacks: samples.map((one) => one.node),
        sampleEnds: samples.map(() => 0),
        sampleCounts: samples.map(() => 1n),
        sampleWeights: samples.map((one) => one.weight),
        last: true,
      },
    }),
  );
  return assembler.finish();
}

function treeOf(options: Partial<Options>, ...lines: string[]): Tree {
  const all: Options = { measure: 'weight', collapse: false, transforms: [], root: '', ...options };
  return buildTree(new Names(), profileOf(...lines), all);
}

/** Nodes with weight as `path own/total`, sorted. */
function shown(tree: Tree): string[] {
  const path: string[] = [''];
  const lines: string[] = [];
  for (let node = 1; node < tree.parent.length; node++) {
    const above = path[tree.parent[node]];
    path[node] = above === '' ? tree.names.text[tree.name[node]] : `${above};${tree.names.text[tree.name[node]]}`;
    if (tree.total[0][node] > 0) lines.push(`${path[node]} ${tree.own[0][node]}/${tree.total[0][node]}`);
  }
  return lines.sort();
}

const transformed = (transforms: Transform[], ...lines: string[]) => shown(treeOf({ transforms }, ...lines));

describe('transforms', () => {
  test('a merged function leaves its time and its callees to its caller', () => {
    expect(transformed([{ op: 'merge', name: 'b' }], 'a;b;c 1', 'a;b 2', 'a;c 4')).toEqual(['a 2/7', 'a;c 5/5']);
  });
  test('a merged root leaves its callees at the top', () => {
    expect(transformed([{ op: 'merge', name: 'a' }], 'a;b 1', 'a 2')).toEqual(['b 1/1']);
  });
  test('excluded stacks are gone, whatever else they have', () => {
    expect(transformed([{ op: 'exclude', name: 'b' }], 'a;b;c 1', 'a;c 2')).toEqual(['a 0/2', 'a;c 2/2']);
  });
  test('focus and exclusion add up', () => {
    const both: Transform[] = [
      { op: 'focus', name: 'c' },
      { op: 'exclude', name: 'b' },
    ];
    expect(transformed(both, 'a;b;c 1', 'a;c 2', 'a 4')).toEqual(['a 0/2', 'a;c 2/2']);
  });
  test('what lies between the first and the last frame of a recursion goes', () => {
    expect(transformed([{ op: 'recursion', name: 'f' }], 'a;f;g;f;h 1', 'a;f;g 2')).toEqual([
      'a 0/3',
      'a;f 0/3',
      'a;f;g 2/2',
      'a;f;h 1/1',
    ]);
  });
  test('frames of a library that follow each other are one, apart from those elsewhere', () => {
    expect(transformed([{ op: 'library', name: '/lib/z.so' }], 'a;x@/lib/z.so;y@/lib/z.so;b;x@/lib/z.so 3')).toEqual([
      'a 0/3',
      'a;z.so 0/3',
      'a;z.so;b 0/3',
      'a;z.so;b;z.so 3/3',
    ]);
  });
  test('each is done to what those before it left', () => {
    const folded: Transform = { op: 'library', name: '/lib/z.so' };
    const stack = 'a;x@/lib/z.so;y@/lib/z.so;b 3';
    expect(transformed([folded, { op: 'merge', name: 'z.so' }], stack)).toEqual(['a 0/3', 'a;b 3/3']);
    expect(transformed([{ op: 'merge', name: 'x' }, folded], stack)).toEqual(['a 0/3', 'a;z.so 0/3', 'a;z.so;b 3/3']);
  });
  test('totals stay, but for stacks that are left out', () => {
    const lines = ['a;b;a;c 5', 'a;b@m;d@m 7', 'b 11'];
    for (const transforms of [
      [{ op: 'merge', name: 'b' }],
      [{ op: 'recursion', name: 'a' }],
      [{ op: 'library', name: 'm' }],
    ] as Transform[][])
      expect(treeOf({ transforms }, ...lines).total[0][0]).toBe(23);
  });
  test('the list is bounded and has each once', () => {
    const one: Transform = { op: 'merge', name: 'f' };
    expect(withTransform([one, { op: 'focus', name: 'g' }], one)).toEqual([{ op: 'focus', name: 'g' }, one]);
    const many = Array.from({ length: TRANSFORMS_MAX + 5 }, (_, at): Transform => ({ op: 'merge', name: `${at}` }));
    expect(many.reduce<Transform[]>(withTransform, [])).toHaveLength(TRANSFORMS_MAX);
  });
});

describe('start frames', () => {
  const STACKS = ['_start@libc;__libc_start_main_impl@libc;main@app;run@app;work@app 5', '_start@libc;run@app 2'];

  test('of a run that others follow are one', () => {
    expect(shown(treeOf({ fold: true }, ...STACKS))).toEqual([
      '_start 0/2',
      '_start;run 2/2',
      'app · 3 start frames 0/5',
      'app · 3 start frames;run 0/5',
      'app · 3 start frames;run;work 5/5',
    ]);
  });
  test('the one in which time was spent stays', () => {
    expect(shown(treeOf({ fold: true }, '_start@libc;__libc_start_main@libc;main@app 4'))).toEqual([
      'libc · 2 start frames 0/4',
      'libc · 2 start frames;main 4/4',
    ]);
  });
  test('of two programs stand apart', () => {
    const tree = treeOf({ fold: true }, '_start@libc;main@one;x 1', '_start@libc;main@two;x 1');
    expect(shown(tree).filter((line) => !line.includes(';'))).toEqual([
      'one · 2 start frames 0/1',
      'two · 2 start frames 0/1',
    ]);
  });
  test('a function of that name elsewhere in a stack stays', () => {
    expect(shown(treeOf({ fold: true }, 'a;main;b 1'))).toEqual(['a 0/1', 'a;main 0/1', 'a;main;b 1/1']);
  });
  test('are no functions of the table', () => {
    const tree = treeOf({ fold: true }, ...STACKS);
    expect(functionRows(tree).map((row) => tree.names.text[row.name])).not.toContain('app · 3 start frames');
  });
  test('a link leads to the same frame whether they are folded or not', () => {
    const [folded, open] = [true, false].map((fold) => layOut(treeOf({ fold }, ...STACKS)));
    const name = (layout: typeof open, node: number) => layout.tree.names.text[layout.name[node]];
    const at = open.name.findIndex((_, node) => name(open, node) === 'work');
    const inFolded = readPath(folded, writePath(open, at));
    expect(name(folded, inFolded)).toBe('work');
    expect(writePath(folded, inFolded)).toBe(writePath(open, at));
  });
  test('are known by their names alone', () => {
    for (const name of [
      '_start',
      'main',
      'clone3',
      '__GI___clone3',
      'start_thread',
      'std::rt::lang_start::{{closure}}',
      'runtime.goexit',
    ])
      expect([name, isStart(name, 0)]).toEqual([name, true]);
    for (const name of ['main_loop', 'api::main', 'start', 'cloned', 'runtime.mallocgc'])
      expect([name, isStart(name, 0)]).toEqual([name, false]);
    expect([isStart('main', 2), isStart('ret_from_fork_asm', 1)]).toEqual([false, true]);
  });
});

describe('from the leaf up', () => {
  test('each function with time of its own stands at the top, its callers on it', () => {
    expect(shown(bottomUp(treeOf({}, 'a;b;c 1', 'x;c 2', 'a 4')))).toEqual([
      'a 4/4',
      'c 0/3',
      'c;b 0/1',
      'c;b;a 1/1',
      'c;x 2/2',
    ]);
  });
  test('a bound leaves out callers and no time', () => {
    const lines = Array.from({ length: 50 }, (_, at) => `a${at};b${at};c 1`);
    const tree = bottomUp(treeOf({}, ...lines), 20);
    expect(tree.parent.length).toBeLessThanOrEqual(21);
    expect(tree.total[0][0]).toBe(50);
  });
});

describe('around a function', () => {
  test('are its callers and callees, heaviest first, with parts of its total', () => {
    const tree = treeOf({}, 'a;f;x 1', 'b;f;y 2', 'b;f 3', 'f;x 1');
    const found = around(tree, 'f', 0);
    const named = (rows: typeof found.callers) => rows.map(({ name, value }) => [tree.names.text[name], value]);
    expect([found.own[0], found.total[0]]).toEqual([3, 7]);
    expect(named(found.callers)).toEqual([
      ['b', 5],
      ['a', 1],
      ['all', 1],
    ]);
    expect(named(found.callees)).toEqual([
      ['x', 2],
      ['y', 2],
    ]);
  });
  test('recursion counts once', () => {
    const tree = treeOf({}, 'a;f;g;f;g 4', 'a;f;f;h 1');
    const found = around(tree, 'f', 0);
    const named = found.callees.map(({ name, value }) => [tree.names.text[name], value]);
    expect(named).toEqual([
      ['g', 4],
      ['h', 1],
    ]);
  });
});

test('functions of a part are those under one node, with parts of its total', () => {
  const tree = treeOf({}, 'a;b;c 1', 'a;d 2', 'b;c 4');
  const node = tree.name.findIndex((name, at) => tree.names.text[name] === 'b' && tree.parent[at] !== 0);
  const rows = functionRows(tree, 0, node).map((row) => [tree.names.text[row.name], row.own, row.total]);
  expect(rows.sort()).toEqual([
    ['b', 0, 1],
    ['c', 1, 1],
  ]);
});

test('values of a function are those of stacks that have it anywhere', () => {
  const profile = profileOf('a;b;c 1', 'a;d 2', 'b 4');
  expect([...valuesWith(profile, profile.weight, 'b')]).toEqual([1, 0, 4]);
});

test('texts hash as in the SVG of the collector, so that a module has one colour', () => {
  // `profile/src/formats/palette.rs` has the same numbers.
  expect([hash('libc') % 6, hash('main') % 8]).toEqual([0, 5]);
  for (const module of ['/lib/x86_64-linux-gnu/libc.so.6', '/lib/libc-2.31.so'])
    expect(nativeColour(module, 'light')).toBe(nativeColour('libc', 'light'));
});
