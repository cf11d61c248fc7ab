//! Builds the answer of `ListCgroups`: the tree of cgroups with CPU time, as a flat list.

use profile::LedgerRow;
use proto::agent;

/// Most cgroups of one answer, so that it stays below the 4 MiB that clients take; of more, those
/// with the least CPU time are left out.
const CGROUPS_MAX: usize = 8000;

/// Every cgroup with samples and all its parents, ordered by path, with totals over what is below.
///
/// Samples with an unknown cgroup are an entry with an empty path, outside the tree. Lost samples
/// are part of every sum.
pub(super) fn list(rows: Vec<LedgerRow>) -> Vec<agent::Cgroup> {
    proto::cgroups(rows, CGROUPS_MAX).0
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{Dictionary, LedgerBuilder, SampleKey, Selector, StackEnd, StackId, Value, key};

    fn rows(cgroups: &[(&str, u64)]) -> Vec<LedgerRow> {
        let mut dict = Dictionary::default();
        let selector = Selector::default();
        let mut builder = LedgerBuilder::new(&selector);
        for &(path, count) in cgroups {
            let key = SampleKey {
                labels: dict.intern_labels([(key::CGROUP, path)]),
                stack: StackId::EMPTY,
                end: StackEnd::Complete,
            };
            let weight = count * 10;
            builder.add(&dict, key, Value { count, weight });
        }
        builder.finish().rows
    }

    #[test]
    fn parents_are_there_with_totals() {
        let list = list(rows(&[("", 1), ("/", 2), ("/a/b", 3), ("/a/c", 4)]));
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
        let paths: Vec<String> = (0..2 * CGROUPS_MAX).map(|n| format!("/a/{n}")).collect();
        let mut cgroups: Vec<(&str, u64)> = paths.iter().map(|path| (path.as_str(), 1)).collect();
        cgroups.push(("/heavy/child", 100));
        let list = list(rows(&cgroups));
        assert_eq!(list.len(), CGROUPS_MAX);
        for path in ["/", "/a", "/heavy", "/heavy/child"] {
            assert!(list.iter().any(|cgroup| cgroup.path == path), "{path}");
        }
    }
}
