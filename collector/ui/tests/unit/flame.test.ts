import { create } from '@bufbuild/protobuf';
import { describe, expect, test } from 'vitest';
import { changeOf, measure } from '../../src/flame/diff';
import { neighbour, nextMatch } from '../../src/flame/graph';
import { firstEndingAfter, layOut, levelCount, nodeAt, pathTo } from '../../src/flame/layout';
import { Names } from '../../src/flame/names';
import { canHaveLines, hasLines, linesOf } from '../../src/flame/lines';
import { readPath, writePath } from '../../src/flame/path';
import { sandwich } from '../../src/flame/sandwich';
import { escapeRegex, findNodes, matchNames, namePattern, nameText, problemOf } from '../../src/flame/search';
import { type Options, type Tree, buildDiffTree, buildTree, functionRows } from '../../src/flame/tree';
import { ProfileResponseSchema } from '../../src/gen/fleetprof/collector/v1/query_pb';
import { Assembler, type Profile, ProfileError } from '../../src/query/profile';
import { random } from '../mock/fleet';

const OPTIONS: Options = { measure: 'weight', collapse: false, transforms: [], root: '' };

/** A profile from lines of `a;b;c weight [end]`. */
function profileOf(...lines: string[]): Profile {
  const strings = [''];
  const frames: { function: number; kind: number }[] = [];
  const [stackParents, stackFrames] = [[] as number[], [] as number[]];
  const nodes = new Map<string, number>();
  const samples = lines.map((line) => {
    const [path, weight, end = '0'] = line.split(' ');
    let node = 0;
    for (const name of path === '' ? [] : path.split(';')) {
      if (!strings.includes(name)) strings.push(name);
      let frame = frames.findIndex((one) => one.function === strings.indexOf(name));
      if (frame < 0) frame = frames.push({ function: strings.indexOf(name), kind: name.startsWith('[') ? 5 : 0 }) - 1;
      const key = `${node} ${frame}`;
      if (!nodes.has(key)) {
        stackParents.push(node);
        stackFrames.push(frame);
        nodes.set(key, stackParents.length);
      }
      node = nodes.get(key) ?? 0;
    }
    return { node, weight: BigInt(weight), end: Number(end) };
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
        sampleEnds: samples.map((one) => one.end),
        sampleCounts: samples.map(() => 1n),
        sampleWeights: samples.map((one) => one.weight),
        last: true,
      },
    }),
  );
  return assembler.finish();
}

/** Nodes as `a;b own/total`, sorted. */
function lines(tree: Tree, column: 0 | 1 = 0): string[] {
  const path = (node: number): string =>
    node === 0 ? '' : `${path(tree.parent[node])}${tree.parent[node] ? ';' : ''}${tree.names.text[tree.name[node]]}`;
  return [...tree.parent.keys()]
    .filter((node) => node > 0)
    .map((node) => `${path(node)} ${tree.own[column][node]}/${tree.total[column][node]}`)
    .sort();
}

const treeOf = (options: Partial<Options>, ...text: string[]) =>
  buildTree(new Names(), profileOf(...text), { ...OPTIONS, ...options });

describe('source lines', () => {
  test('stand with what they are of, once a sample', () => {
    const strings = ['', 'main', 'hot', '/src/a.c'];
    const frame = (fn: number, line: number, kind = 0) => ({ function: fn, file: line ? 3 : 0, line, kind });
    const assembler = new Assembler();
    // main;hot:7, main;hot:7;main:3 (below itself), main;hot:9;hot:7, main
    const frames = [frame(1, 3), frame(2, 7, 4), frame(2, 9, 4)];
    const [stackParents, stackFrames] = [
      [0, 1, 2, 1, 4],
      [0, 1, 0, 2, 1],
    ];
    const weights = [1n, 10n, 100n, 1000n];
    const [counts, sets, ends] = [
      [1n, 1n, 1n, 1n],
      [0, 0, 0, 0],
      [0, 0, 0, 0],
    ];
    const chunk = {
      info: { unit: 'nanoseconds' },
      strings,
      frames,
      stackParents,
      stackFrames,
      sampleLabelSets: sets,
      sampleStacks: [1, 2, 3, 5],
      sampleEnds: ends,
      sampleCounts: counts,
      sampleWeights: weights,
      last: true,
    };
    assembler.add(create(ProfileResponseSchema, { chunk }));
    const profile = assembler.finish();
    expect(hasLines(profile)).toBe(true);
    expect(linesOf(profile, 'hot', profile.weight)).toEqual([
      { file: '/src/a.c', line: 7, own: 1010, total: 1110 },
      { file: '/src/a.c', line: 9, own: 0, total: 1000 },
    ]);
    expect(linesOf(profile, 'main', profile.count)).toEqual([{ file: '/src/a.c', line: 3, own: 2, total: 4 }]);
    expect(linesOf(profile, 'other', profile.weight)).toEqual([]);
  });

  test('are told of native code alone, and not of what has none', () => {
    expect([0, 1, 2, 3, 4, 5].filter(canHaveLines)).toEqual([0, 4]);
    expect(hasLines(profileOf('a;b 1'))).toBe(false);
  });
});

describe('assembling', () => {
  const refuse = (chunk: object) => {
    const assembler = new Assembler();
    expect(() => {
      assembler.add(
        create(ProfileResponseSchema, {
          chunk: { strings: ['', 'f'], frames: [{ function: 1 }], last: true, ...chunk },
        }),
      );
      assembler.finish();
    }).toThrow(ProfileError);
  };
  test('what contradicts itself is refused', () => {
    refuse({ frames: [{ function: 7 }] });
    refuse({ stackParents: [1], stackFrames: [0] });
    refuse({ stackParents: [0], stackFrames: [9] });
    refuse({ stackParents: [0], stackFrames: [] });
    refuse({ sampleStacks: [1] });
    refuse({ labelSets: [{ keyValues: [1] }] });
    refuse({ sampleStacks: [0], sampleEnds: [0], sampleCounts: [1n], sampleWeights: [1n], sampleLabelSets: [3] });
    refuse({ last: false });
  });
  test('chunks count their ids over all before', () => {
    const assembler = new Assembler();
    assembler.add(
      create(ProfileResponseSchema, {
        chunk: { strings: ['', 'f'], frames: [{ function: 1 }], stackParents: [0], stackFrames: [0] },
      }),
    );
    assembler.add(
      create(ProfileResponseSchema, {
        chunk: {
          strings: ['g'],
          frames: [{ function: 2 }],
          stackParents: [1],
          stackFrames: [1],
          sampleStacks: [2],
          sampleEnds: [0],
          sampleCounts: [1n],
          sampleWeights: [5n],
          sampleLabelSets: [0],
          last: true,
        },
      }),
    );
    expect(lines(buildTree(new Names(), assembler.finish(), OPTIONS))).toEqual(['f 0/5', 'f;g 5/5']);
  });
});

describe('trees', () => {
  test('equal paths are one node and sums hold', () => {
    expect(treeOf({}, 'a;b 1', 'a;c 2', 'a 3').parent.length).toBe(4);
    expect(lines(treeOf({}, 'a;b 1', 'a;c 2', 'a 3'))).toEqual(['a 3/6', 'a;b 1/1', 'a;c 2/2']);
  });
  test('cut stacks stand under [truncated]; those that may be whole do not', () => {
    expect(lines(treeOf({}, 'a 1 0', 'a 2 5', 'a 4 8', 'a 8 13'))).toEqual([
      '[truncated] 0/2',
      '[truncated];a 2/2',
      'a 13/13',
    ]);
  });
  test('a stack without frames is unknown', () => {
    expect(lines(treeOf({}, ' 7'))).toEqual(['[unknown] 7/7']);
  });
  test('recursion folds into one frame', () => {
    expect(lines(treeOf({ collapse: true }, 'a;a;b;b;a 1'))).toEqual(['a 0/1', 'a;b 0/1', 'a;b;a 1/1']);
  });
  test('focus keeps stacks with the function', () => {
    expect(lines(treeOf({ transforms: [{ op: 'focus', name: 'b' }] }, 'a;b;c 1', 'a;c 2'))).toEqual([
      'a 0/1',
      'a;b 0/1',
      'a;b;c 1/1',
    ]);
  });
  test('a function counts once, however often it is in a stack', () => {
    const tree = treeOf({}, 'a;b;a;b 2', 'b 1');
    const rows = functionRows(tree).map((row) => [tree.names.text[row.name], row.own, row.total]);
    expect(rows.sort()).toEqual([
      ['a', 0, 2],
      ['b', 3, 3],
    ]);
  });
  test('callers and callees are as wide as the function', () => {
    const halves = sandwich(treeOf({}, 'a;f;x 1', 'b;f;y;f;z 2', 'c 4'), 'f');
    expect(halves.total[0]).toBe(3);
    expect(lines(halves.callers)).toEqual(['a 1/1', 'b 2/2']);
    expect(lines(halves.callees)).toEqual(['x 1/1', 'y 0/2', 'y;f 0/2', 'y;f;z 2/2']);
  });
});

describe('layout', () => {
  const random_ = random(7);
  const text = Array.from(
    { length: 400 },
    () =>
      `${Array.from({ length: 1 + Math.floor(random_() * 12) }, () => `f${Math.floor(random_() * 6)}`).join(';')} ${1 + Math.floor(random_() * 50)}`,
  );
  const layout = layOut(treeOf({}, ...text));

  test('children lie inside their parents, levels are sorted and do not overlap', () => {
    for (let level = 0; level < levelCount(layout); level++) {
      for (let node = layout.levels[level]; node < layout.levels[level + 1]; node++) {
        const parent = layout.parent[node];
        expect(layout.x[node]).toBeGreaterThanOrEqual(layout.x[parent]);
        expect(layout.x[node] + layout.width[node]).toBeLessThanOrEqual(layout.x[parent] + layout.width[parent] + 1e-9);
        if (node > layout.levels[level])
          expect(layout.x[node]).toBeGreaterThanOrEqual(layout.x[node - 1] + layout.width[node - 1] - 1e-9);
        expect(layout.depth[node]).toBe(level);
      }
    }
    expect(layout.levels[levelCount(layout)]).toBe(layout.name.length);
  });
  test('a point finds its node', () => {
    for (let node = 0; node < layout.name.length; node += 3)
      expect(nodeAt(layout, layout.depth[node], layout.x[node] + layout.width[node] / 2)).toBe(node);
    expect(nodeAt(layout, 99, 0)).toBeUndefined();
    expect(nodeAt(layout, 0, layout.whole + 1)).toBeUndefined();
    expect(firstEndingAfter(layout, 0, 1, layout.whole)).toBe(1);
  });
  test('a path in an address finds its node, or as far as it goes', () => {
    for (let node = 0; node < layout.name.length; node += 5)
      expect(readPath(layout, writePath(layout, node))).toBe(node);
    const deep = layout.name.length - 1;
    expect(readPath(layout, `${writePath(layout, deep)}.zzz`)).toBe(deep);
    expect(readPath(layout, 'nonsense')).toBe(0);
    expect(pathTo(layout, 0)).toEqual([0]);
  });
  test('arrows go to neighbours and stop at the edge', () => {
    expect(neighbour(layout, 0, 'parent')).toBeUndefined();
    const child = neighbour(layout, 0, 'child') ?? -1;
    expect(layout.parent[child]).toBe(0);
    expect(neighbour(layout, layout.levels[1], 'left')).toBeUndefined();
    expect(neighbour(layout, layout.levels[2] - 1, 'right')).toBeUndefined();
  });
  test('an empty profile has a layout', () => {
    const empty = layOut(treeOf({}));
    expect([empty.whole, empty.name.length, levelCount(empty)]).toEqual([0, 1, 1]);
  });
});

describe('search', () => {
  test('a match in a match counts once', () => {
    const layout = layOut(treeOf({}, 'a;b;a 3', 'c 1'));
    const matches = nameText('A');
    const found = findNodes(
      layout,
      matchNames(layout.tree.names, (name) => name !== 'all' && matches(name, '')),
    );
    expect([found.nodes, found.width]).toEqual([2, 3]);
    expect(nextMatch(layout, found, 0, false)).toBeDefined();
  });
  test('a name is found by how its runtime spells it', () => {
    const assembler = new Assembler();
    const frames = ['JS:*hot app.js:1:2', 'JS:~hot app.js:1:2'].map((_, at) => ({
      function: 1,
      kind: 2,
      systemName: 2 + at,
    }));
    assembler.add(
      create(ProfileResponseSchema, {
        chunk: { strings: ['', 'hot', 'JS:*hot app.js:1:2', 'JS:~hot app.js:1:2'], frames, last: true },
      }),
    );
    const names = new Names();
    expect([...names.ofFrames(assembler.finish())]).toEqual([1, 1]);
    expect(names.spelled[1].split('\n')).toHaveLength(2);
    for (const matches of [nameText('js:~HOT'), namePattern('^JS:~hot'), namePattern('^hot$')]) {
      expect([...matchNames(names, matches)]).toEqual([0, 1]);
    }
    expect([...matchNames(names, nameText('cold'))]).toEqual([0, 0]);
  });
  test('patterns', () => {
    expect(problemOf({ text: '', regex: true })).toBeUndefined();
    expect(problemOf({ text: '(', regex: true })).toBe('not a regular expression: unterminated group');
    expect(problemOf({ text: '[a: \n', regex: true })).toBe('not a regular expression: unterminated character class');
    expect(problemOf({ text: '(', regex: false })).toBeUndefined();
    expect(problemOf({ text: 'x'.repeat(2000), regex: true })).toContain('not taken');
    for (const name of ['a.b(c)[d]{e}|f^g$h\\i/j*k+l?', 'שלום', 'x-y']) {
      const exact = namePattern(`^${escapeRegex(name)}$`);
      expect(exact(name, '') && !exact(`${name}x`, '')).toBe(true);
    }
  });
});

describe('difference', () => {
  const tree = buildDiffTree(new Names(), profileOf('a;gone 2', 'a;same 2'), profileOf('a;new 2', 'a;same 6'), OPTIONS);
  test('both sides are columns of one tree', () => {
    expect(lines(tree, 0)).toEqual(['a 0/4', 'a;gone 2/2', 'a;new 0/0', 'a;same 2/2']);
    expect(lines(tree, 1)).toEqual(['a 0/8', 'a;gone 0/0', 'a;new 2/2', 'a;same 6/6']);
  });
  test('what vanished keeps its width where both are shown', () => {
    const widths = (width: 'both' | 'after' | 'before') => layOut(tree, measure(tree, 'share', width)).name.length - 1;
    expect([widths('both'), widths('after'), widths('before')]).toEqual([4, 3, 3]);
  });
  test('changes are of shares, or of cores', () => {
    const at = (name: string) => [...tree.name].findIndex((id) => tree.names.text[id] === name);
    expect(changeOf(tree, at('gone'), 'share')).toMatchObject({ vanished: true, delta: -0.5, relative: -1 });
    expect(changeOf(tree, at('new'), 'share')).toMatchObject({ appeared: true, delta: 0.25, relative: 1 });
    expect(changeOf(tree, at('same'), 'share').delta).toBe(0.25);
    // One core before, two after.
    expect(changeOf({ ...tree, rates: [1, 2] }, at('same'), 'sum').delta).toBe(0.5);
  });
});
