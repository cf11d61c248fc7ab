// What a file that stands alone holds, as profiles, cells and changes.

import { describe, expect, test } from 'vitest';
import { type FileData, open } from '../../src/export/file';
import { changesBetween } from '../../src/flame/changes';
import { isChance } from '../../src/flame/diff';
import { layOut } from '../../src/flame/layout';
import { Names } from '../../src/flame/names';
import { KIND_LABEL, buildTree, functionRows } from '../../src/flame/tree';
import { cellsOf, gridOf, pickOf, sumOfCells } from '../../src/heat/grid';
import { between, sumOf } from '../../src/query/timestamps';
import { BEFORE, SERVICE, WEIGHT, dataOf, timesOf } from '../mock/exported';

const OPTIONS = { measure: 'count', collapse: false, transforms: [], root: '' } as const;

const treeOf = (data: FileData) => buildTree(new Names(), open(data).profile, OPTIONS);

describe('a file', () => {
  test('has the stacks of its nodes', () => {
    const data = dataOf(SERVICE);
    const tree = treeOf(data);
    expect(tree.total[0][0]).toBe(900);
    const rows = functionRows(tree).map(({ name, own, total }) => [tree.names.text[name], own, total]);
    expect(rows).toContainEqual(['render', 400, 550]);
    expect(rows).toContainEqual(['[lost]', 10, 10]);
    expect(tree.names.module[tree.names.text.indexOf('main')]).toBe('/usr/bin/app');
    // What nobody was sampled in has no width.
    const layout = layOut(tree);
    expect([...layout.name].map((name) => tree.names.text[name])).not.toContain('cache_lookup');
  });

  test('has labels as frames that are no functions', () => {
    const data = dataOf([['web-1', 0, ['main', 3]]]);
    data.names.kind[1] = data.kinds.indexOf('label');
    const { profile } = open(data);
    expect(profile.kind[1]).toBe(KIND_LABEL);
    const tree = treeOf(data);
    expect(functionRows(tree).map(({ name }) => tree.names.text[name])).toEqual(['main']);
  });

  test('is told in the unit that agents weigh in', () => {
    const { profile } = open({ ...dataOf([['main', 2]]), unit: 'microseconds' });
    expect([profile.unit, profile.weight[0]]).toEqual(['nanoseconds', 2 * WEIGHT * 1000]);
  });

  test('whose nodes have no caller or no name is refused', () => {
    for (const [column, value] of [
      ['depth', 9],
      ['depth', 0],
      ['name', 99],
    ] as const) {
      const data = dataOf(SERVICE);
      data.nodes[column][2] = value;
      expect(() => open(data)).toThrow(/has no (caller|name)/);
    }
  });
});

describe('times by cells', () => {
  const data = dataOf(SERVICE);
  const times = timesOf(data);

  test('stand in the cells that the file has', () => {
    const { profile } = open({ ...data, times });
    const { timestamps } = profile;
    if (!timestamps) throw new Error('no times');
    const grid = gridOf(timestamps);
    expect([grid.columns, grid.rows, grid.first, grid.end]).toEqual([20, 50, 0, 1000]);
    const expected = new Map<number, number>();
    let cell = 0;
    for (const after of times.at) {
      cell += after;
      expected.set(cell, (expected.get(cell) ?? 0) + 1);
    }
    for (const [at, count] of grid.count.entries()) expect([at, count]).toEqual([at, expected.get(at) ?? 0]);
  });

  test.each([
    [1000, 50, 17],
    [1000, 3, 0],
    [60_000, 7, 5],
    [3_153_600_000_000, 1000, 999],
    [0.001, 1, 0],
  ])('are picked cell by cell in columns of %d ms with %d rows', (column_ms, rows, first) => {
    const columns = 4;
    const cells = Array.from({ length: columns * rows - first }, (_, at) => first + at);
    const { profile } = open({
      ...data,
      times: {
        start_ms: Math.floor(1_700_000_000_000 / column_ms) * column_ms,
        column_ms,
        rows,
        columns,
        first,
        last: columns * rows - 1,
        dropped: 0,
        at: cells.map((cell, at) => (at === 0 ? cell : 1)),
        node: cells.map(() => 3),
        count: cells.map((cell) => 1 + (cell % 5)),
        weight: cells.map(() => WEIGHT),
      },
    });
    const { timestamps } = profile;
    if (!timestamps) throw new Error('no times');
    const grid = gridOf(timestamps);
    expect([...grid.count].slice(first)).toEqual(cells.map((cell) => 1 + (cell % 5)));
    for (const [one, other] of [
      [first, first],
      [first + 1, Math.min(first + 9, columns * rows - 1)],
      [columns * rows - 1, columns * rows - 1],
    ]) {
      const pick = pickOf(grid, one, other);
      if (!pick) throw new Error('no pick');
      expect(cellsOf(grid, pick)).toEqual([one, other + 1]);
      const sum = sumOf(timestamps, pick);
      expect(sum).toEqual(sumOfCells(grid, pick));
      const part = between(profile, timestamps, pick);
      expect([part.count[0], part.stack[0]]).toEqual([sum.count, 3]);
    }
  });
});

describe('changes', () => {
  const { profile, before } = open(dataOf(SERVICE, { before: { scaled: true, count: BEFORE, weight: BEFORE } }));
  if (!before) throw new Error('no other side');

  test('have the error of their shares', () => {
    const { rows, before: was, after: is } = changesBetween(before, profile, true);
    expect([was.samples, is.samples]).toEqual([900, 900]);
    const row = (name: string) => rows.find((one) => one.name === name);
    expect(row('render')).toMatchObject({ before: 100, after: 400, significant: true });
    expect(row('parse')).toMatchObject({ before: 205, after: 200, significant: false });
    expect(row('close_month')).toMatchObject({ appeared: true, vanished: false });
    expect(row('cache_lookup')).toMatchObject({ appeared: false, vanished: true });
    // By the formula of `profile/src/diff.rs`.
    const [p, q] = [206 / 902, 201 / 902];
    expect(row('parse')?.shareError).toBeCloseTo(Math.sqrt((p * (1 - p) + q * (1 - q)) / 902), 12);
  });

  test('by chance are those that two counts have anyway', () => {
    expect([isChance(100, 120, 1), isChance(100, 140, 1)]).toEqual([true, false]);
    // Ten times as many samples before.
    expect([isChance(1000, 120, 0.1), isChance(1000, 140, 0.1)]).toEqual([true, false]);
    expect([isChance(0, 3, 1), isChance(0, 5, 1)]).toEqual([true, false]);
  });
});
