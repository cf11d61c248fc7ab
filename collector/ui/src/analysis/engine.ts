// Holds profiles, and makes of them what the page shows: trees, layouts, tables, cells, files. Runs
// in the worker; knows nothing of messages.
//
// What takes long goes in stages: after each the caller may do something else, such as hear that
// the result is not wanted any more.

import { diffStep } from '../flame/colour';
import { changesBetween } from '../flame/changes';
import { changeOf, isChance, measure, scale } from '../flame/diff';
import { type Layout, layOut, single } from '../flame/layout';
import { hasLines, linesOf } from '../flame/lines';
import { Names } from '../flame/names';
import { around, sandwich } from '../flame/sandwich';
import { type Tree, bottomUp, buildDiffTree, buildTree, functionRows } from '../flame/tree';
import { gridOf } from '../heat/grid';
import { END_LOST } from '../query/outcome';
import { NotHeldError } from '../query/errors';
import { type Profile, ProfileError } from '../query/profile';
import { between, sumOf } from '../query/timestamps';
import { labelsOf, sumsByLabel, sumsByModule, valuesWith } from '../tables/sums';
import { packNames } from './names';
import type {
  Change,
  FunctionColumns,
  GraphRequest,
  LoadedProfile,
  Operations,
  PackedShape,
  ProfileSource,
} from './protocol';

/**
 * Most profiles held: a page shows two, holds two that are superseded until their successors are
 * shown, and captures hold three with their pasts. Beyond it the one that was used longest ago is
 * forgotten, so that a page which fails to release profiles cannot fill the memory.
 */
export const PROFILES_MAX = 16;

/**
 * Most trees kept, for the callers and callees of their functions: that of each page that can be
 * shown at once, and the one before it. The largest has 2,000,000 nodes of 40 bytes.
 */
export const TREES_MAX = 2;

/** Between two stages: rejects when the result is not wanted any more. */
export type Stage = () => Promise<void>;

type Args<O extends keyof Operations> = Operations[O]['args'];
type Answer<O extends keyof Operations> = Operations[O]['answer'];

export class Engine {
  /** The one that was used last stands last. */
  private readonly profiles = new Map<number, Profile>();
  // A worker that is started again gives no number that the page has of the one before.
  private next = Date.now();
  /** By request, the newest last. */
  private readonly trees = new Map<string, { tree: Tree; ids: readonly number[] }>();
  private part: { key: string; id: number; profile: Profile } | undefined;

  /** Takes a profile. */
  add(profile: Profile): LoadedProfile {
    for (const oldest of this.profiles.keys()) {
      if (this.profiles.size < PROFILES_MAX) break;
      this.release(oldest);
    }
    const id = this.next++;
    this.profiles.set(id, profile);
    const { unit, quality, about, timestamps } = profile;
    return {
      id,
      unit,
      quality,
      about,
      rows: profile.stack.length,
      taken: profile.count.reduce((sum, count, row) => sum + (profile.end[row] === END_LOST ? 0 : count), 0),
      labels: labelsOf(profile),
      hasLines: hasLines(profile),
      timestamps: timestamps && {
        startUnixNs: timestamps.startUnixNs,
        durationNs: timestamps.durationNs,
        count: timestamps.cells?.count.reduce((sum, count) => sum + count, 0) ?? timestamps.at.length,
        dropped: timestamps.dropped,
        columnNs: timestamps.cells?.columnNs,
      },
    };
  }

  /** Forgets a profile and what was made of it. */
  release(id: number): void {
    this.profiles.delete(id);
    if (this.part?.id === id) this.part = undefined;
    for (const [key, { ids }] of this.trees) if (ids.includes(id)) this.trees.delete(key);
  }

  /** Profiles that are held. */
  get size(): number {
    return this.profiles.size;
  }

  async graph(request: Args<'graph'>, stage: Stage): Promise<Answer<'graph'>> {
    const tree = await this.treeOf(request, stage);
    const counts = await this.countsOf(request, stage);
    const turn = (of: Tree) => (request.options.bottomUp ? bottomUp(of) : of);
    const shape = shapeOf(turn(tree), request, counts && turn(counts));
    await stage();
    const functions = request.diff ? undefined : functionsOf(tree);
    return { ...shape, names: packNames(tree.names), functions, unit: this.profileOf(request.of).unit };
  }

  async sandwich({ request, fn }: Args<'sandwich'>, stage: Stage): Promise<Answer<'sandwich'>> {
    const tree = await this.treeOf(request, stage);
    const { callers, callees, own, total } = sandwich(tree, fn);
    const counts = await this.countsOf(request, stage);
    const ofCounts = counts && sandwich(counts, fn);
    await stage();
    return {
      callers: shapeOf(callers, request, ofCounts?.callers, tree),
      callees: shapeOf(callees, request, ofCounts?.callees, tree),
      own,
      total,
    };
  }

  async functions({ request, node }: Args<'functions'>, stage: Stage): Promise<Answer<'functions'>> {
    const tree = await this.treeOf(request, stage);
    if (!(node < tree.parent.length)) throw new ProfileError(`node ${node} of ${tree.parent.length}`);
    return functionsOf(tree, node);
  }

  async around({ request, fn }: Args<'around'>, stage: Stage): Promise<Answer<'around'>> {
    return around(await this.treeOf(request, stage), fn, request.diff ? 1 : 0);
  }

  lines({ of, fn, samples }: Args<'lines'>): Answer<'lines'> {
    const profile = this.profileOf(of);
    return linesOf(profile, fn, samples ? profile.count : profile.weight);
  }

  changes({ of, before, samples }: Args<'changes'>): Answer<'changes'> {
    return changesBetween(this.profileOf(before), this.profileOf(of), samples);
  }

  sums({ of, by, samples, fn }: Args<'sums'>): Answer<'sums'> {
    const profile = this.profileOf(of);
    const all = samples ? profile.count : profile.weight;
    const values = fn === undefined ? all : valuesWith(profile, all, fn);
    return {
      rows: by === 'module' ? sumsByModule(profile, values) : sumsByLabel(profile, values, by),
      whole: values.reduce((sum, value) => sum + value, 0),
    };
  }

  grid({ id }: Args<'grid'>): Answer<'grid'> {
    const started = performance.now();
    const grid = gridOf(this.timestampsOf(id));
    return { grid, ms: performance.now() - started };
  }

  span({ id, pick }: Args<'span'>): Answer<'span'> {
    return sumOf(this.timestampsOf(id), pick);
  }

  private timestampsOf(id: number) {
    const { timestamps } = this.profileOf({ id });
    if (!timestamps) throw new ProfileError('the profile has no timestamps');
    return timestamps;
  }

  /** A profile, or the part of it that was asked for last. */
  profileOf({ id, pick }: ProfileSource): Profile {
    const profile = this.profiles.get(id);
    if (!profile) throw new NotHeldError(`profile ${id} is not in memory`);
    this.profiles.delete(id);
    this.profiles.set(id, profile);
    if (!pick || !profile.timestamps) return profile;
    const key = `${id} ${pick.from} ${pick.until}`;
    if (this.part?.key !== key) this.part = { key, id, profile: between(profile, profile.timestamps, pick) };
    return this.part.profile;
  }

  private async treeOf(request: GraphRequest, stage: Stage): Promise<Tree> {
    const { of, options, diff } = request;
    // How it is measured is no matter of the tree.
    const key = JSON.stringify([of, { ...options, bottomUp: false }, diff?.before]);
    const known = this.trees.get(key);
    this.trees.delete(key);
    const tree = known?.tree ?? (await this.build(request, stage));
    const ids = diff ? [of.id, diff.before.id] : [of.id];
    if (ids.every((id) => this.profiles.has(id))) this.trees.set(key, { tree, ids });
    for (const oldest of this.trees.keys()) {
      if (this.trees.size <= TREES_MAX) break;
      this.trees.delete(oldest);
    }
    return diff ? { ...tree, rates: diff.rates } : tree;
  }

  /**
   * The tree of counts, where what differs by chance is to be told: the same nodes under the same
   * numbers, since those do not depend on values.
   */
  private async countsOf(request: GraphRequest, stage: Stage): Promise<Tree | undefined> {
    if (!request.diff?.chance) return undefined;
    return this.treeOf({ ...request, options: { ...request.options, measure: 'count' } }, stage);
  }

  private async build({ of, options, diff }: GraphRequest, stage: Stage): Promise<Tree> {
    const profile = this.profileOf(of);
    await stage();
    const tree = diff
      ? buildDiffTree(new Names(), this.profileOf(diff.before), profile, options)
      : buildTree(new Names(), profile, options);
    await stage();
    return tree;
  }
}

/**
 * `counts`: the same tree of samples, or none. `of`: the tree that a part of it is of, by whose
 * roots widths are scaled.
 */
function shapeOf(tree: Tree, { diff }: GraphRequest, counts?: Tree, of = tree): PackedShape {
  const layout = layOut(tree, diff ? measure(of, diff.compare, diff.width) : single);
  const { tree: _, ...columns } = layout;
  // The tree stays for what is asked of it next: what goes away is copied here, not where it is
  // drawn.
  const sent = ([first, second]: [Float64Array, Float64Array]): [Float64Array, Float64Array] => [
    first.slice(),
    diff ? second.slice() : new Float64Array(),
  ];
  return {
    layout: columns,
    own: sent(tree.own),
    total: sent(tree.total),
    change: diff && changesOf(layout, tree, diff.compare, counts),
  };
}

function changesOf(
  layout: Layout,
  tree: Tree,
  compare: NonNullable<GraphRequest['diff']>['compare'],
  counts: Tree | undefined,
): Change {
  const factor = counts ? scale(counts, compare) : 1;
  const [steps, vanished] = [new Int8Array(layout.node.length), new Uint8Array(layout.node.length)];
  layout.node.forEach((node, at) => {
    const change = changeOf(tree, node, compare);
    const chance = counts && isChance(counts.total[0][node], counts.total[1][node], factor);
    steps[at] = chance ? 0 : diffStep(change);
    vanished[at] = change.vanished ? 1 : 0;
  });
  return { steps, vanished };
}

function functionsOf(tree: Tree, top = 0): FunctionColumns {
  // The heavier of two without time of their own stands first.
  const rows = functionRows(tree, 0, top).sort((left, right) => right.total - left.total);
  const waits = rows.some((row) => row.waker);
  return {
    name: Uint32Array.from(rows, (row) => row.name),
    own: Float64Array.from(rows, (row) => row.own),
    total: Float64Array.from(rows, (row) => row.total),
    waker: waits ? Uint32Array.from(rows, (row) => row.waker?.name ?? 0) : new Uint32Array(),
    woken: waits ? Float64Array.from(rows, (row) => row.waker?.value ?? 0) : new Float64Array(),
  };
}
