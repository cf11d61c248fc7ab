//! Cgroups that were created a moment ago: a starting capture may be about some of them.
//!
//! The thread that starts a capture lists the existing cgroups, opens the events, and then has the
//! sampler start. A cgroup created in between is in no list, and its record may be drained before
//! the capture exists.

use host::ids::CgroupId;
use host::time::MonotonicTime;
use std::collections::VecDeque;
use std::time::Duration;

/// How long a capture may take from the list of cgroups to its start: two waits of 5 s for a
/// program, and then the opening of events on all CPUs.
pub(super) const KEPT: Duration = Duration::from_secs(20);

/// Most that are kept: what a host that starts a few hundred containers at once makes.
pub(super) const KEPT_MAX: usize = 1024;

/// Most bytes of their paths together: 1 KiB each, four times what those of containers in pods
/// have.
const PATH_BYTES_MAX: usize = 1 << 20;

struct Made {
    at: MonotonicTime,
    id: CgroupId,
    path: Box<[u8]>,
}

/// See the module.
#[derive(Default)]
pub(super) struct RecentCgroups {
    /// The oldest first.
    list: VecDeque<Made>,
    /// Bytes of the paths.
    bytes: usize,
    /// How many of those that are young enough were dropped because there was no room, and when the
    /// last of them was made.
    forgotten: (u64, MonotonicTime),
}

impl RecentCgroups {
    /// Keeps one for a while.
    pub(super) fn note(&mut self, at: MonotonicTime, id: CgroupId, path: &[u8]) {
        self.expire(at);
        self.bytes += path.len();
        let path = path.into();
        self.list.push_back(Made { at, id, path });
        while self.list.len() > KEPT_MAX || self.bytes > PATH_BYTES_MAX {
            if let Some(made) = self.pop() {
                self.forgotten = (self.forgotten.0 + 1, made.at);
            }
        }
    }

    /// Cgroups created shortly before `now`.
    pub(super) fn of(&mut self, now: MonotonicTime) -> impl Iterator<Item = (CgroupId, &[u8])> {
        self.expire(now);
        self.list.iter().map(|made| (made.id, &made.path[..]))
    }

    /// How many of these had no room.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten.0
    }

    fn expire(&mut self, now: MonotonicTime) {
        let is_old = |at: MonotonicTime| at.plus(KEPT) < now;
        while self.list.front().is_some_and(|made| is_old(made.at)) {
            self.pop();
        }
        if is_old(self.forgotten.1) {
            self.forgotten.0 = 0;
        }
    }

    fn pop(&mut self) -> Option<Made> {
        let made = self.list.pop_front()?;
        self.bytes -= made.path.len();
        Some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: MonotonicTime = MonotonicTime(1_000_000_000);

    fn kept(recent: &mut RecentCgroups, now: MonotonicTime) -> Vec<u64> {
        recent.of(now).map(|(id, _)| id.0).collect()
    }

    #[test]
    fn they_are_kept_for_a_while() {
        let mut recent = RecentCgroups::default();
        recent.note(SOON, CgroupId(1), b"/a");
        let later = SOON.plus(KEPT);
        recent.note(later, CgroupId(2), b"/b");
        assert_eq!(kept(&mut recent, later), [1, 2]);
        assert_eq!(kept(&mut recent, MonotonicTime(later.0 + 1)), [2]);
        assert!(kept(&mut recent, later.plus(2 * KEPT)).is_empty());
        assert_eq!((recent.bytes, recent.forgotten()), (0, 0));
    }

    #[test]
    fn beyond_the_bounds_the_oldest_goes_and_is_counted() {
        let mut recent = RecentCgroups::default();
        for id in 0..KEPT_MAX as u64 + 2 {
            recent.note(SOON, CgroupId(id), b"/a");
        }
        assert_eq!(kept(&mut recent, SOON)[0], 2);
        assert_eq!(recent.forgotten(), 2);
        let long = vec![b'x'; PATH_BYTES_MAX];
        recent.note(SOON, CgroupId(9), &long);
        assert_eq!(kept(&mut recent, SOON), [9]);
        assert_eq!(recent.forgotten(), 2 + KEPT_MAX as u64);
        assert!(kept(&mut recent, SOON.plus(2 * KEPT)).is_empty());
        assert_eq!(recent.forgotten(), 0, "it was long ago");
    }
}
