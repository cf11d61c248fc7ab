// Cgroups as a tree of rows, of which some are open.

import type { Cgroup } from '../gen/fleetprof/agent/v1/agent_pb';

export interface CgroupRow {
  cgroup: Cgroup;
  /** Last part of the path. */
  name: string;
  depth: number;
  children: CgroupRow[];
}

/** Rows below this part of the whole are closed at first. */
const OPEN_FROM = 0.05;

/** Levels that are open at first. */
const OPEN_DEPTH = 3;

/** Roots of the tree. Parents that are missing are skipped; children stand heaviest first. */
export function treeOf(cgroups: readonly Cgroup[]): CgroupRow[] {
  const rows = new Map<string, CgroupRow>();
  for (const cgroup of cgroups) rows.set(cgroup.path, { cgroup, name: cgroup.path, depth: 0, children: [] });
  const roots: CgroupRow[] = [];
  for (const row of [...rows.values()].sort((left, right) => left.cgroup.path.length - right.cgroup.path.length)) {
    const parent = parentOf(row.cgroup.path, rows);
    if (parent) {
      row.depth = parent.depth + 1;
      row.name = row.cgroup.path.slice(parent.cgroup.path === '/' ? 1 : parent.cgroup.path.length + 1);
      parent.children.push(row);
    } else roots.push(row);
  }
  const byWeight = (left: CgroupRow, right: CgroupRow) => {
    const by = right.cgroup.totalWeight - left.cgroup.totalWeight;
    return by > 0n ? 1 : by < 0n ? -1 : left.name < right.name ? -1 : 1;
  };
  for (const row of rows.values()) row.children.sort(byWeight);
  return roots.sort(byWeight);
}

function parentOf(path: string, rows: Map<string, CgroupRow>): CgroupRow | undefined {
  // What has no path, such as `[unknown cgroup 139]`, stands in no other.
  if (!path.startsWith('/')) return undefined;
  let at = path;
  while (at !== '/' && at !== '') {
    at = at.slice(0, at.lastIndexOf('/')) || '/';
    const found = rows.get(at);
    if (found && found.cgroup.path !== path) return found;
  }
  return undefined;
}

/** True when a row shows its children, by default or by hand. */
export function isOpen(row: CgroupRow, whole: number, toggled: ReadonlySet<string>): boolean {
  const open = row.depth < OPEN_DEPTH && Number(row.cgroup.totalWeight) >= OPEN_FROM * whole;
  return open !== toggled.has(row.cgroup.path);
}

/**
 * The rows that are seen, from top to bottom. With a filter: all that match, and what they stand
 * in.
 */
export function visible(
  roots: readonly CgroupRow[],
  whole: number,
  toggled: ReadonlySet<string>,
  filter: string,
): CgroupRow[] {
  const wanted = filter.toLowerCase();
  const seen: CgroupRow[] = [];
  const matches = (row: CgroupRow) =>
    [row.cgroup.path, row.cgroup.unit, row.cgroup.container, row.cgroup.podUid].some((text) =>
      text.toLowerCase().includes(wanted),
    );
  const visit = (row: CgroupRow): boolean => {
    const at = seen.push(row);
    if (wanted === '') {
      if (isOpen(row, whole, toggled)) row.children.forEach(visit);
      return true;
    }
    const below = row.children.map(visit).some(Boolean);
    if (!below && !matches(row)) seen.length = at - 1;
    return below || matches(row);
  };
  roots.forEach(visit);
  return seen;
}
