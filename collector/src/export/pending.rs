//! What is stored and not sent yet: for each host, slices of ten seconds in which windows start.
//!
//! A window is in the slice in which it starts. Slices become due by stretches of the export
//! interval, once windows on their way have come; those of a host that was away come later, and are
//! due at once. Nothing here reads a clock or a disk.

use super::limits::{HOST_SLICES, HOSTS_MAX, PIECES_MAX, RUNS_MAX, SETTLE_NS, SLICE_NS};
use crate::store::TimeRange;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the file.
const VERSION: u32 = 1;

/// Slices from the first up to the second, which is not in it.
pub type Run = (i64, i64);

/// See the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pending {
    version: u32,
    /// Everything before it is either sent or in `hosts`. What is after it is found again in the
    /// store when the collector starts.
    frontier: i64,
    hosts: BTreeMap<String, Host>,
}

/// A host by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Host {
    /// As its machine says.
    id: String,
    /// The newest slice with a window.
    seen: i64,
    /// Ordered, none touches the next.
    waiting: Vec<Run>,
}

/// A stretch of a host that is to be sent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Its slices, first in the order: the oldest are sent first.
    pub run: Run,
    /// Name of the host.
    pub host: String,
    /// Its id.
    pub host_id: String,
}

impl Piece {
    /// Its time.
    pub fn range(&self) -> TimeRange {
        TimeRange {
            start_unix_ns: self.run.0.saturating_mul(SLICE_NS),
            end_unix_ns: self.run.1.saturating_mul(SLICE_NS),
        }
    }

    /// How many slices it has.
    pub fn slices(&self) -> u64 {
        self.run.1.abs_diff(self.run.0)
    }

    /// Both halves; `None` of a single slice.
    pub fn halves(self) -> Option<(Piece, Piece)> {
        let (from, to) = self.run;
        let middle = from + (to - from) / 2;
        let part = |run| Piece {
            run,
            ..self.clone()
        };
        (middle > from).then(|| (part((from, middle)), part((middle, to))))
    }
}

impl Pending {
    /// Nothing waits, and nothing before `now` is wanted.
    pub fn new(now_unix_ns: i64) -> Pending {
        Pending {
            version: VERSION,
            frontier: slice(now_unix_ns),
            hosts: BTreeMap::new(),
        }
    }

    /// Reads the file.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(bytes: &[u8]) -> Result<Pending, String> {
        let read: Pending = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if read.version != VERSION {
            return Err(format!("it has version {}, not {VERSION}", read.version));
        }
        let is_sound = |host: &Host| {
            let mut last = i64::MIN;
            host.waiting.iter().all(|&(from, to)| {
                let sound = from < to && from > last;
                last = to;
                sound
            })
        };
        match read.hosts.values().all(is_sound) {
            true => Ok(read),
            false => Err("its stretches are not in order".to_owned()),
        }
    }

    /// The file.
    pub fn written(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// A window that starts then is stored. False when there is no room for its host.
    pub fn add(&mut self, host: &str, host_id: &str, start_unix_ns: i64) -> bool {
        if !self.hosts.contains_key(host) {
            if self.hosts.len() >= HOSTS_MAX {
                return false;
            }
            self.hosts.insert(host.to_owned(), Host::default());
        }
        let at = slice(start_unix_ns);
        if let Some(known) = self.hosts.get_mut(host) {
            if known.id != host_id && !host_id.is_empty() {
                host_id.clone_into(&mut known.id);
            }
            known.seen = known.seen.max(at);
            known.add((at, at + 1));
        }
        true
    }

    /// Names of the hosts, with their ids.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.hosts.iter();
        all.map(|(name, host)| (name.as_str(), host.id.as_str()))
    }

    /// The first time that is not certainly sent or waiting. Unit: nanoseconds.
    pub fn frontier_unix_ns(&self) -> i64 {
        self.frontier.saturating_mul(SLICE_NS)
    }

    /// Slices that wait.
    pub fn waiting(&self) -> u64 {
        let runs = self.hosts.values().flat_map(|host| &host.waiting);
        runs.map(|&(from, to)| to.abs_diff(from)).sum()
    }

    /// What is due of each host, oldest first, each within one stretch of the interval. The rest of
    /// a long backlog is due when these are done with.
    pub fn due(&mut self, now_unix_ns: i64, interval_ns: i64) -> Vec<Piece> {
        let slices = (interval_ns / SLICE_NS).max(1);
        let settled = slice(now_unix_ns.saturating_sub(SETTLE_NS));
        let end = settled.div_euclid(slices) * slices;
        self.frontier = self.frontier.max(end);
        let most = (PIECES_MAX / self.hosts.len().max(1)).max(1);
        let mut pieces = Vec::new();
        for (name, host) in &self.hosts {
            let own = pieces.len();
            for &(from, to) in &host.waiting {
                let to = to.min(end);
                let mut at = from;
                while at < to && pieces.len() - own < most {
                    let next = to.min((at.div_euclid(slices) + 1) * slices);
                    pieces.push(Piece {
                        run: (at, next),
                        host: name.clone(),
                        host_id: host.id.clone(),
                    });
                    at = next;
                }
            }
        }
        pieces
    }

    /// A piece is done with.
    pub fn remove(&mut self, piece: &Piece) {
        if let Some(host) = self.hosts.get_mut(&piece.host) {
            host.remove(piece.run);
        }
    }

    /// Gives up what is older than this, and the oldest of what is too much; forgets hosts that are
    /// gone. Returns the slices that were given up.
    pub fn prune(&mut self, now_unix_ns: i64, backlog_ns: i64) -> u64 {
        let before = self.waiting();
        let oldest = slice(now_unix_ns.saturating_sub(backlog_ns));
        let now = slice(now_unix_ns);
        for host in self.hosts.values_mut() {
            host.remove((i64::MIN, oldest));
        }
        let runs: usize = self.hosts.values().map(|host| host.waiting.len()).sum();
        if let Some(beyond) = runs.checked_sub(RUNS_MAX).filter(|beyond| *beyond > 0) {
            let all = self.hosts.values().flat_map(|host| &host.waiting);
            let mut ends: Vec<i64> = all.map(|&(_, to)| to).collect();
            let (_, &mut end, _) = ends.select_nth_unstable(beyond - 1);
            for host in self.hosts.values_mut() {
                host.remove((i64::MIN, end));
            }
        }
        self.hosts
            .retain(|_, host| !host.waiting.is_empty() || now - host.seen < HOST_SLICES);
        before - self.waiting()
    }
}

impl Host {
    fn add(&mut self, (from, to): Run) {
        let first = self.waiting.partition_point(|run| run.1 < from);
        let last = self.waiting.partition_point(|run| run.0 <= to);
        let touched = &self.waiting[first..last];
        let from = touched.first().map_or(from, |run| run.0.min(from));
        let to = touched.last().map_or(to, |run| run.1.max(to));
        self.waiting.splice(first..last, [(from, to)]);
    }

    fn remove(&mut self, (from, to): Run) {
        let first = self.waiting.partition_point(|run| run.1 <= from);
        let last = self.waiting.partition_point(|run| run.0 < to);
        if first >= last {
            return;
        }
        let left = (self.waiting[first].0, from);
        let right = (to, self.waiting[last - 1].1);
        let rest = [left, right].into_iter().filter(|run| run.0 < run.1);
        self.waiting.splice(first..last, rest);
    }
}

/// The slice of a time.
fn slice(unix_ns: i64) -> i64 {
    unix_ns.div_euclid(SLICE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const MINUTE: i64 = 60_000_000_000;
    /// A complete minute.
    const NOW: i64 = 28_333_333 * MINUTE;
    const DAY: i64 = 1440 * MINUTE;

    fn of(starts_s: &[i64]) -> Pending {
        let mut pending = Pending::new(NOW);
        for start in starts_s {
            assert!(pending.add("a", "id", NOW + start * 1_000_000_000));
        }
        pending
    }

    fn runs(pieces: &[Piece]) -> Vec<Run> {
        let base = NOW / SLICE_NS;
        let runs = pieces.iter().map(|piece| piece.run);
        runs.map(|(from, to)| (from - base, to - base)).collect()
    }

    #[test]
    fn a_minute_is_due_when_windows_on_their_way_have_come() {
        let mut pending = of(&[3, 13, 23, 33, 43, 53, 63]);
        assert!(pending.due(NOW + MINUTE + SETTLE_NS - 1, MINUTE).is_empty());
        let due = pending.due(NOW + MINUTE + SETTLE_NS, MINUTE);
        assert_eq!(runs(&due), [(0, 6)]);
        for piece in &due {
            pending.remove(piece);
        }
        assert_eq!(pending.waiting(), 1);
    }

    #[test]
    fn a_long_backlog_is_due_in_lots_from_its_oldest() {
        let mut pending = Pending::new(NOW);
        let hosts = PIECES_MAX / 2;
        for host in 0..hosts {
            for minute in 0..3 {
                assert!(pending.add(&host.to_string(), "id", NOW + minute * MINUTE));
            }
        }
        let due = pending.due(NOW + 10 * MINUTE, MINUTE);
        assert_eq!(due.len(), 2 * hosts);
        let newest = runs(&due).into_iter().max();
        assert_eq!(newest, Some((6, 7)), "the third minute is for the next lot");
    }

    #[test]
    fn what_comes_late_is_due_on_its_own_and_by_minutes() {
        let now = NOW + 10 * MINUTE;
        let mut pending = of(&[0, 10, 20, 55, 65]);
        assert_eq!(runs(&pending.due(now, MINUTE)), [(0, 3), (5, 6), (6, 7)]);
    }

    #[test]
    fn what_is_too_old_is_given_up_and_counted() {
        let mut pending = of(&[0, 10, 20]);
        assert_eq!(pending.prune(NOW + DAY, DAY), 0);
        assert_eq!(pending.prune(NOW + DAY + 2 * SLICE_NS, DAY), 2);
        assert_eq!(pending.waiting(), 1);
        assert_eq!(pending.prune(NOW + 30 * DAY, DAY), 1);
        assert_eq!(pending.hosts().count(), 0, "it is gone");
    }

    #[test]
    fn the_file_is_read_as_it_was_written_and_never_half() {
        let pending = of(&[0, 10, 50]);
        assert_eq!(Pending::read(&pending.written()), Ok(pending));
        for wrong in [
            &b""[..],
            b"{}",
            br#"{"version":2,"frontier":0,"hosts":{}}"#,
            br#"{"version":1,"frontier":0,"hosts":{"a":{"id":"","seen":0,"waiting":[[3,2]]}}}"#,
        ] {
            assert!(Pending::read(wrong).is_err());
        }
    }

    proptest! {
        #[test]
        fn runs_are_a_set_of_slices(
            steps in prop::collection::vec((any::<bool>(), 0i64..40, 1i64..10), 0..40),
        ) {
            let (mut host, mut model) = (Host::default(), BTreeSet::new());
            for (adds, from, length) in steps {
                let run = (from, from + length);
                match adds {
                    true => { host.add(run); model.extend(run.0..run.1); }
                    false => { host.remove(run); model.retain(|at| !(run.0..run.1).contains(at)); }
                }
                let slices = host.waiting.iter().flat_map(|&(from, to)| from..to);
                prop_assert!(slices.eq(model.iter().copied()));
                prop_assert!(host.waiting.windows(2).all(|pair| pair[0].1 < pair[1].0));
            }
        }
    }
}
