//! Steps common to all engines before a window is stored: whether it can be accepted, which labels
//! belong to its host, and what the kernel accounts below each cgroup.

use super::{LabelSet, NewWindow};
use profile::key;
use std::collections::HashMap;

/// Longest window. Unit: nanoseconds. What covers the start of a range starts within this time
/// before it.
pub const WINDOW_NS_MAX: u64 = 3_600_000_000_000;

/// Longest host id, what agents take too. Unit: bytes.
pub const HOST_ID_BYTES_MAX: usize = profile::fleet::HOST_ID_BYTES_MAX;

/// Labels that only samples have: no complete host has them, and the kernel's accounting is not
/// known by them.
pub const SAMPLE_LABELS: [&str; 4] = [key::COMM, key::THREAD, key::PID, key::CONTEXT];

/// Which windows an engine takes by their time.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimeBounds {
    /// How far in the future windows may start. Unit: nanoseconds.
    pub future_ns: u64,
    /// Age from which on they are rejected. Unit: nanoseconds.
    pub age_ns: u64,
}

/// Why no engine ever takes the window, for people; `None` when it may be taken.
pub(super) fn rejection(
    window: &NewWindow,
    bounds: TimeBounds,
    now_unix_ns: i64,
) -> Option<String> {
    let (start, end) = (window.range.start_unix_ns, window.range.end_unix_ns);
    let sets = window.label_sets.len();
    let unknown_set = window.rows.iter().any(|row| row.labels as usize >= sets)
        || window.accounts.iter().any(|of| of.labels as usize >= sets);
    let host_id_bytes = window.origin.host.host_id.len();
    let reason = if start > now_unix_ns.saturating_add_unsigned(bounds.future_ns) {
        let ahead = start.saturating_sub(now_unix_ns) / 1_000_000_000;
        return Some(format!(
            "it starts {ahead} s in the future; set the host's clock"
        ));
    } else if start < now_unix_ns.saturating_sub_unsigned(bounds.age_ns) {
        "it is older than the retention"
    } else if end <= start {
        "it ends before it starts"
    } else if end.abs_diff(start) > WINDOW_NS_MAX {
        "it is longer than an hour"
    } else if host_id_bytes == 0 || host_id_bytes > HOST_ID_BYTES_MAX {
        return Some(format!(
            "its host id has {host_id_bytes} bytes; 1 to {HOST_ID_BYTES_MAX} are allowed"
        ));
    } else if unknown_set {
        "a row names a label set that does not exist"
    } else {
        return None;
    };
    Some(reason.to_owned())
}

/// Labels of the complete host: those shared by all label sets, except those of cgroups and
/// samples.
pub(super) fn host_labels(window: &NewWindow) -> LabelSet {
    let sets = &window.label_sets;
    let shared = sets.first().into_iter().flat_map(LabelSet::iter);
    let shared = shared.filter(|&(name, value)| {
        is_host_label(name) && sets.iter().all(|set| set.get(name) == value)
    });
    LabelSet::new(shared.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

/// True for a label that a complete host may have.
pub fn is_host_label(name: &str) -> bool {
    !key::is_of_cgroup(name) && !SAMPLE_LABELS.contains(&name)
}

/// The part of a cgroup's account that belongs to the nearest accounted cgroups below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Below {
    /// Unit: nanoseconds.
    pub ns: i128,
    /// The part that was not measured. Unit: nanoseconds.
    pub estimated_ns: i128,
}

/// By account, in the order of the window: what is accounted below it. An account less this is what
/// its cgroup has alone, and those add up over a host.
pub(super) fn accounted_below(window: &NewWindow) -> Vec<Below> {
    let path = |labels: u32| {
        let set = window.label_sets.get(labels as usize);
        set.map_or("", |labels| labels.get(key::CGROUP))
    };
    let mut by_path: HashMap<&str, usize> = HashMap::new();
    for (at, account) in window.accounts.iter().enumerate() {
        if account.ns > 0 {
            by_path.entry(path(account.labels)).or_insert(at);
        }
    }
    let mut below = vec![Below::default(); window.accounts.len()];
    for account in &window.accounts {
        let mut above = profile::ancestors(path(account.labels));
        if let Some(&above) = above.find_map(|path| by_path.get(path)) {
            below[above].ns += i128::from(account.ns);
            below[above].estimated_ns += i128::from(account.estimated_ns);
        }
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{HostKey, Origin, TimeRange, WindowAccount};

    const SECOND: i64 = 1_000_000_000;
    const NOW: i64 = 1_000_000 * SECOND;

    fn window(start_s: i64, end_s: i64) -> NewWindow {
        NewWindow {
            origin: Origin {
                host: HostKey {
                    host_id: "a".to_owned(),
                    boot_id: [0; 16],
                },
                sequence: 1,
            },
            range: TimeRange {
                start_unix_ns: NOW + start_s * SECOND,
                end_unix_ns: NOW + end_s * SECOND,
            },
            event: String::new(),
            unit: String::new(),
            period: 0,
            quality: Default::default(),
            label_sets: Vec::new(),
            rows: Vec::new(),
            accounts: Vec::new(),
            pressure: None,
            dropped_before: None,
            stream: None,
        }
    }

    fn set(pairs: &[(&str, &str)]) -> LabelSet {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        LabelSet::new(pairs.iter().map(owned))
    }

    #[test]
    fn what_makes_no_sense_is_rejected_and_nothing_else() {
        let bounds = TimeBounds {
            future_ns: 600 * SECOND as u64,
            age_ns: 10_000 * SECOND as u64,
        };
        let check = |window: NewWindow, expected: Option<&str>| {
            let found = rejection(&window, bounds, NOW);
            assert_eq!(found.is_some(), expected.is_some(), "{found:?}");
            let text = found.unwrap_or_default();
            assert!(text.contains(expected.unwrap_or_default()), "{text}");
        };
        check(window(0, 10), None);
        check(window(600, 610), None);
        check(window(601, 610), Some("601 s in the future"));
        check(window(-10_000, -9_990), None);
        check(window(-10_001, -9_990), Some("older"));
        check(window(0, 0), Some("ends before"));
        check(window(0, 3600), None);
        check(window(0, 3601), Some("longer than an hour"));
        for bytes in [0, HOST_ID_BYTES_MAX + 1] {
            let mut odd = window(0, 10);
            odd.origin.host.host_id = "a".repeat(bytes);
            check(odd, Some(&format!("{bytes} bytes")));
        }
        let mut odd = window(0, 10);
        odd.accounts = vec![WindowAccount {
            labels: 0,
            ns: 1,
            estimated_ns: 0,
            throttled_ns: None,
            limit_millicores: 0,
        }];
        check(odd, Some("label set"));
    }

    #[test]
    fn labels_of_a_host_are_those_that_all_sets_share() {
        let mut of = window(0, 10);
        of.label_sets = vec![
            set(&[("host", "a"), ("comm", "x"), ("cgroup", "/"), ("zone", "1")]),
            set(&[("host", "a"), ("comm", "x"), ("cgroup", "/"), ("zone", "2")]),
        ];
        assert_eq!(host_labels(&of), set(&[("host", "a")]));
    }

    #[test]
    fn an_account_is_below_the_nearest_one_above_it() {
        let mut of = window(0, 10);
        let paths = ["/", "/a", "/a/b", "/a/b/c", "/a/d"];
        of.label_sets = paths.map(|path| set(&[("cgroup", path)])).to_vec();
        let accounts = [100, 60, 0, 20, 30];
        of.accounts = (0..)
            .zip(accounts)
            .map(|(labels, ns)| WindowAccount {
                labels,
                ns,
                estimated_ns: ns / 10,
                throttled_ns: None,
                limit_millicores: 0,
            })
            .collect();
        let below = accounted_below(&of);
        let ns: Vec<i128> = below.iter().map(|below| below.ns).collect();
        assert_eq!(ns, [60, 50, 0, 0, 0]);
        let estimated: Vec<i128> = below.iter().map(|below| below.estimated_ns).collect();
        assert_eq!(estimated, [6, 5, 0, 0, 0]);
    }
}
