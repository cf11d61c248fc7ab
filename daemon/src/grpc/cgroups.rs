//! The tree of cgroups with CPU time, as the flat list of the answer.

use crate::aggregate::recorder::CgroupUsage;
use profile::Value;
use proto::agent;
use std::collections::BTreeMap;

/// Most cgroups of one answer, so that it stays below the 4 MiB that clients take; of more, those
/// with the least CPU time are left out. A parent has never less than its children, so the tree stays
/// whole.
const CGROUPS_MAX: usize = 8000;

/// Every cgroup with samples and all its parents, ordered by path, with totals over what is below.
///
/// Samples whose cgroup is not known come as an entry with an empty path, outside the tree.
pub(super) fn tree(usages: Vec<CgroupUsage>) -> Vec<agent::Cgroup> {
    let mut tree: BTreeMap<String, agent::Cgroup> = BTreeMap::new();
    for usage in usages {
        for path in ancestors(&usage.path) {
            let parent = tree.entry(path.to_owned()).or_default();
            add_total(parent, usage.own);
        }
        let own = tree.entry(usage.path.clone()).or_default();
        own.self_count = usage.own.count;
        own.self_weight = usage.own.weight;
        add_total(own, usage.own);
        own.slice = usage.slice;
        own.unit = usage.unit;
        own.container = usage.container;
        own.runtime = usage.runtime;
        own.pod_uid = usage.pod_uid;
    }
    let mut list: Vec<agent::Cgroup> = tree
        .into_iter()
        .map(|(path, cgroup)| agent::Cgroup { path, ..cgroup })
        .collect();
    if list.len() > CGROUPS_MAX {
        // Stable: of equal totals the parent, which has the smaller path, stays before the child.
        list.sort_by_key(|cgroup| std::cmp::Reverse((cgroup.total_weight, cgroup.total_count)));
        list.truncate(CGROUPS_MAX);
        list.sort_by(|a, b| a.path.cmp(&b.path));
    }
    list
}

fn add_total(cgroup: &mut agent::Cgroup, value: Value) {
    cgroup.total_count = cgroup.total_count.saturating_add(value.count);
    cgroup.total_weight = cgroup.total_weight.saturating_add(value.weight);
}

/// Every path above `path`, from its parent to `/`.
fn ancestors(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        let slash = rest.rfind('/')?;
        if rest == "/" {
            return None;
        }
        rest = if slash == 0 { "/" } else { &rest[..slash] };
        Some(rest)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(path: &str, count: u64) -> CgroupUsage {
        let own = Value {
            count,
            weight: count * 10,
        };
        CgroupUsage {
            path: path.to_owned(),
            own,
            ..CgroupUsage::default()
        }
    }

    #[test]
    fn parents_are_there_with_totals() {
        let list = tree(vec![
            usage("", 1),
            usage("/", 2),
            usage("/a/b", 3),
            usage("/a/c", 4),
        ]);
        let found: Vec<_> = list
            .iter()
            .map(|c| (c.path.as_str(), c.self_count, c.total_count, c.total_weight))
            .collect();
        let expected = [
            ("", 1, 1, 10),
            ("/", 2, 9, 90),
            ("/a", 0, 7, 70),
            ("/a/b", 3, 3, 30),
            ("/a/c", 4, 4, 40),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn too_many_keep_the_heaviest_and_their_parents() {
        let mut usages: Vec<_> = (0..2 * CGROUPS_MAX)
            .map(|n| usage(&format!("/a/{n}"), 1))
            .collect();
        usages.push(usage("/heavy/child", 100));
        let list = tree(usages);
        assert_eq!(list.len(), CGROUPS_MAX);
        for path in ["/", "/a", "/heavy", "/heavy/child"] {
            assert!(list.iter().any(|cgroup| cgroup.path == path), "{path}");
        }
    }
}
