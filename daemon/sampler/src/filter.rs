//! The sampler's pre-filter: which samples of an event are worth unwinding for a capture.
//!
//! It is cheap, because it uses only what a record and the process table say at once. Labels
//! finally decide which rows belong to a capture, so the filter may let through more than is
//! selected, never less. Each condition that is set must match, and a condition matches if any of
//! its values does.
//!
//! Used on the sampler thread. Allocates there only when a cgroup is created.

use host::ids::{CgroupId, Comm, Pid};

/// Most cgroups of one filter. A host of 1,000 containers has about 10,000; those made beyond the
/// bound are not sampled, and counted.
pub const CGROUPS_MAX: usize = 1 << 16;

/// Which samples a capture uses. Nothing set: all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    pids: Vec<Pid>,
    names: Vec<Comm>,
    cgroups: Option<Cgroups>,
}

/// cgroups, and those below them that come later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Cgroups {
    /// Sorted.
    ids: Vec<CgroupId>,
    /// Paths in the hierarchy; what is made at or below them belongs to them.
    below: Vec<Box<[u8]>>,
}

impl Filter {
    /// Only these processes; an empty list is no condition.
    pub fn pids(mut self, pids: impl IntoIterator<Item = Pid>) -> Filter {
        self.pids = pids.into_iter().collect();
        self.pids.sort_unstable();
        self
    }

    /// Only threads with one of these names, and all threads of processes with one; an empty list
    /// is no condition.
    pub fn names<'a>(mut self, names: impl IntoIterator<Item = &'a [u8]>) -> Filter {
        self.names = names.into_iter().map(Comm::from_bytes).collect();
        self.names.sort_unstable();
        self
    }

    /// Selects these cgroups, and those created at or below one of these paths of their hierarchy
    /// while the capture runs. If there are more than [`CGROUPS_MAX`] ids, all cgroups are
    /// selected.
    pub fn cgroups<'a>(
        mut self,
        ids: impl IntoIterator<Item = CgroupId>,
        below: impl IntoIterator<Item = &'a [u8]>,
    ) -> Filter {
        let mut ids: Vec<CgroupId> = ids.into_iter().collect();
        ids.sort_unstable();
        ids.dedup();
        let below = below.into_iter().map(|path| {
            let end = path.iter().rposition(|&byte| byte != b'/');
            path[..end.map_or(0, |at| at + 1)].into()
        });
        let below = below.collect();
        self.cgroups = (ids.len() <= CGROUPS_MAX).then_some(Cgroups { ids, below });
        self
    }

    /// True when every sample passes.
    pub fn is_empty(&self) -> bool {
        *self == Filter::default()
    }

    /// True when it takes the samples of some cgroups alone.
    pub fn is_of_cgroups(&self) -> bool {
        self.cgroups.is_some()
    }

    /// True when a sample of this process, thread name, process name and cgroup passes.
    pub fn passes(&self, pid: Pid, names: [Comm; 2], cgroup: CgroupId) -> bool {
        (self.pids.is_empty() || self.pids.binary_search(&pid).is_ok())
            && (self.names.is_empty()
                || names
                    .iter()
                    .any(|name| self.names.binary_search(name).is_ok()))
            && self.cgroups.as_ref().is_none_or(|known| {
                // If samples have no ids, only the labels can decide.
                cgroup.0 == 0 || known.ids.binary_search(&cgroup).is_ok()
            })
    }

    /// A cgroup was made. False: it belongs to the capture, and there is no room for it.
    pub fn note_created(&mut self, id: CgroupId, path: &[u8]) -> bool {
        let Some(Cgroups { ids, below }) = &mut self.cgroups else {
            return true;
        };
        let is_below = |top: &[u8]| {
            let rest = path.strip_prefix(top);
            rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
        };
        if !below.iter().any(|top| is_below(top)) {
            return true;
        }
        match ids.binary_search(&id) {
            Err(at) if ids.len() < CGROUPS_MAX => ids.insert(at, id),
            Err(_) => return false,
            Ok(_) => {}
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(filter: &Filter, pid: u32, name: &str, cgroup: u64) -> bool {
        let names = [Comm::from_bytes(name.as_bytes()), Comm::from_bytes(b"main")];
        filter.passes(Pid(pid), names, CgroupId(cgroup))
    }

    #[test]
    fn a_filter_of_nothing_lets_everything_through() {
        let filter = Filter::default();
        assert!(filter.is_empty() && passes(&filter, 1, "x", 9));
    }

    #[test]
    fn conditions_of_different_kinds_must_all_hold() {
        let filter = Filter::default()
            .pids([Pid(7), Pid(3)])
            .names([&b"worker"[..]])
            .cgroups([CgroupId(5)], []);
        assert!(passes(&filter, 3, "worker", 5));
        assert!(!passes(&filter, 4, "worker", 5));
        assert!(!passes(&filter, 3, "other", 5));
        assert!(!passes(&filter, 3, "worker", 6));
    }

    #[test]
    fn the_name_of_the_process_will_do() {
        assert!(passes(
            &Filter::default().names([&b"main"[..]]),
            1,
            "thread-7",
            0
        ));
    }

    #[test]
    fn cgroups_made_below_belong_to_it_and_their_neighbours_do_not() {
        let mut filter = Filter::default().cgroups([CgroupId(5)], [&b"/a/b/"[..]]);
        assert!(filter.note_created(CgroupId(9), b"/a/b/c/d"));
        assert!(filter.note_created(CgroupId(8), b"/a/b"));
        assert!(filter.note_created(CgroupId(10), b"/a/bc"));
        assert!(passes(&filter, 1, "x", 9) && passes(&filter, 1, "x", 8));
        assert!(!passes(&filter, 1, "x", 10));
    }

    #[test]
    fn the_root_has_everything_below_it() {
        let mut filter = Filter::default().cgroups([], [&b"/"[..]]);
        assert!(filter.note_created(CgroupId(9), b"/a"));
        assert!(passes(&filter, 1, "x", 9));
    }

    #[test]
    fn cgroups_beyond_the_bound_are_told() {
        let ids = (1..=CGROUPS_MAX as u64).map(CgroupId);
        let mut filter = Filter::default().cgroups(ids, [&b"/a"[..]]);
        assert!(!filter.note_created(CgroupId(1 << 40), b"/a/b"));
        assert!(filter.note_created(CgroupId(1), b"/a/b"), "known already");
    }

    #[test]
    fn a_cgroup_that_no_sample_tells_is_left_to_the_labels() {
        assert!(passes(
            &Filter::default().cgroups([CgroupId(5)], []),
            1,
            "x",
            0
        ));
    }
}
