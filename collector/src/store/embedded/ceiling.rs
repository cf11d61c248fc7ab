//! How near the store is to what this machine carries, so that it is known before it is reached.
//!
//! Three things end: the time for maintenance (beyond it downsampling falls behind, and finer data
//! takes the disk), memory for windows that are not flushed (beyond it agents wait), and the disk.
//! Each is a number that says how much of it is used, and an issue from a threshold on.

use crate::sync::lock;
use metrics::{Family, gather};
use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

/// Shares are observed in so many steps.
const STEPS: i64 = 60;

/// From this share of its time on, maintenance is an issue. Unit: percent. There is room then for a
/// third more hosts.
const MAINTENANCE_MAX: u64 = 75;

/// From this share on, memory for windows is an issue. Unit: percent of where agents have to wait.
/// Maintenance flushes at 50, a push at 75.
const MEMORY_MAX: u64 = 90;

/// From this share on, a disk with less space than the budget allows is an issue. Unit: percent.
const DISK_MAX: u64 = 90;

/// What a round of maintenance finds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Since the Unix epoch. Unit: nanoseconds.
    pub now: i64,
    /// Time that compaction and downsampling took.
    pub used: Duration,
    /// Time that there was for them.
    pub given: Duration,
    /// Work was left.
    pub is_pending: bool,
    /// Memory of windows. Unit: bytes.
    pub memory_bytes: u64,
    /// Where agents have to wait. Unit: bytes.
    pub memory_bytes_max: u64,
    /// Size of the store. Unit: bytes.
    pub store_bytes: u64,
    /// The budget for it; 0: none. Unit: bytes.
    pub budget_bytes: u64,
    /// Free space of its disk, if that is known. Unit: bytes.
    pub free_bytes: Option<u64>,
    /// Hosts that sent something lately.
    pub hosts: u64,
}

impl Round {
    /// How large the store can get. Unit: bytes.
    fn room(&self) -> u64 {
        let budget = match self.budget_bytes {
            0 => u64::MAX,
            bytes => bytes,
        };
        let disk = self
            .free_bytes
            .map_or(u64::MAX, |free| free.saturating_add(self.store_bytes));
        budget.min(disk)
    }
}

/// Rounds of some minutes together.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    start: i64,
    used: Duration,
    given: Duration,
    memory: u64,
}

/// What is known of the last hours.
#[derive(Debug, Default)]
struct Seen {
    steps: VecDeque<Step>,
    /// When nothing was left last, or the first round was.
    caught_up: Option<i64>,
    last: Round,
}

/// How much is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Of the time for maintenance. Unit: percent.
    pub maintenance: u64,
    /// For how long work has been waiting without an end. Unit: seconds.
    pub behind_s: u64,
    /// Of the memory for windows, at most. Unit: percent.
    pub memory: u64,
    /// Of the disk. Unit: percent.
    pub disk: u64,
}

metrics::rows! { SHARES: Shares;
    /// Share of its time that maintenance took over the last six hours, in percent. At 100,
    /// downsampling falls behind. Alert on 75.
    Gauge fleetprof_store_maintenance_used_percent = |s| s.maintenance;
    /// For how long maintenance has not come to an end with its work. Alert on six hours.
    Gauge fleetprof_store_maintenance_behind_seconds = |s| s.behind_s;
    /// Largest share of the memory for windows that was used over the last six hours, in percent.
    /// At 100, agents wait. Alert on 90.
    Gauge fleetprof_store_memory_used_percent = |s| s.memory;
    /// Size of the store in percent of what its budget and its disk let it have. At 100, the oldest
    /// data is removed before its age, or, on a full disk, nothing is stored.
    Gauge fleetprof_store_disk_used_percent = |s| s.disk;
}

/// See the module.
pub struct Ceiling {
    /// How long is looked back: a partition is downsampled once in its length. Unit: nanoseconds.
    window_ns: i64,
    seen: Mutex<Seen>,
}

fn percent(part: u128, all: u128) -> u64 {
    u64::try_from((part * 100).checked_div(all).unwrap_or(0)).unwrap_or(u64::MAX)
}

impl Ceiling {
    /// A store with partitions of this length, of which nothing is known yet. Unit: nanoseconds.
    pub fn new(window_ns: i64) -> Ceiling {
        Ceiling {
            window_ns,
            seen: Mutex::default(),
        }
    }

    /// Adds a round.
    pub fn note(&self, round: Round) {
        let mut seen = lock(&self.seen);
        let now = round.now;
        // A clock that was set back starts again.
        if seen.steps.back().is_some_and(|step| step.start > now) {
            *seen = Seen::default();
        }
        let step_ns = self.window_ns / STEPS;
        if seen
            .steps
            .back()
            .is_none_or(|step| now - step.start >= step_ns)
        {
            seen.steps.push_back(Step {
                start: now,
                ..Step::default()
            });
        }
        let from = now.saturating_sub(self.window_ns);
        while seen.steps.len() > 1 && seen.steps[0].start < from {
            seen.steps.pop_front();
        }
        if let Some(step) = seen.steps.back_mut() {
            step.used += round.used;
            step.given += round.given;
            let memory = percent(round.memory_bytes.into(), round.memory_bytes_max.into());
            step.memory = step.memory.max(memory);
        }
        if !round.is_pending || seen.caught_up.is_none() {
            seen.caught_up = Some(now);
        }
        seen.last = round;
    }

    /// How much is used now.
    pub fn shares(&self) -> Shares {
        let seen = lock(&self.seen);
        let sum = |time: fn(&Step) -> Duration| seen.steps.iter().map(time).sum::<Duration>();
        let (used, given) = (sum(|step| step.used), sum(|step| step.given));
        let last = &seen.last;
        let behind = seen
            .caught_up
            .map_or(0, |at| last.now.saturating_sub(at).max(0));
        Shares {
            maintenance: percent(used.as_nanos(), given.as_nanos()),
            behind_s: behind.unsigned_abs() / 1_000_000_000,
            memory: seen.steps.iter().map(|step| step.memory).max().unwrap_or(0),
            disk: percent(last.store_bytes.into(), last.room().into()),
        }
    }

    /// Numbers for metrics.
    pub fn families(&self) -> Vec<Family> {
        gather(SHARES, &self.shares()).collect()
    }

    /// What is near its end, by subject, in sentences; `None` for what is not.
    pub fn issues(&self) -> [(&'static str, Option<String>); 3] {
        let shares = self.shares();
        let seen = lock(&self.seen);
        let last = &seen.last;
        let first = seen.steps.front().map_or(last.now, |step| step.start);
        // Less than that may be the work of one partition.
        let is_long = last.now.saturating_sub(first) >= self.window_ns / STEPS * (STEPS - 1);
        let maintenance = (is_long && shares.maintenance >= MAINTENANCE_MAX).then(|| {
            let most = last.hosts * 100 / shares.maintenance.max(1);
            format!(
                "maintenance of the store takes {} % of its time with {} hosts: from about {most} \
                 hosts like these on, downsampling falls behind and the disk fills with finer \
                 data; connect further hosts to another collector, or move to ClickHouse",
                shares.maintenance, last.hosts
            )
        });
        let memory = (shares.memory >= MEMORY_MAX).then(|| {
            format!(
                "windows came faster than the store flushes them: {} % of their memory was used, \
                 and at 100 % agents wait; see whether the disk is slow, or connect fewer hosts",
                shares.memory
            )
        });
        let is_small = last.budget_bytes == 0 || last.room() < last.budget_bytes;
        let disk = (is_small && shares.disk >= DISK_MAX).then(|| {
            format!(
                "the disk of the store is {} % full, with {} bytes free: on a full disk nothing is \
                 stored; lower retention.disk_gib below what the disk holds, or enlarge the disk",
                shares.disk,
                last.free_bytes.unwrap_or(0)
            )
        });
        [
            ("ceiling of maintenance", maintenance),
            ("ceiling of memory", memory),
            ("ceiling of the disk", disk),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: i64 = 60_000_000_000;

    fn round(minute: i64, used_ms: u64) -> Round {
        Round {
            now: minute * MINUTE,
            used: Duration::from_millis(used_ms),
            given: Duration::from_millis(400),
            memory_bytes: 10,
            memory_bytes_max: 100,
            store_bytes: 50,
            budget_bytes: 100,
            free_bytes: Some(1000),
            hosts: 600,
            ..Round::default()
        }
    }

    fn text(ceiling: &Ceiling) -> String {
        let issues = ceiling.issues().into_iter();
        let issues: Vec<String> = issues.filter_map(|(_, issue)| issue).collect();
        issues.join("\n")
    }

    #[test]
    fn maintenance_near_its_ceiling_is_reported_with_the_hosts_that_it_carries() {
        let ceiling = Ceiling::new(360 * MINUTE);
        for minute in 0..300 {
            ceiling.note(round(minute, 320));
        }
        // Not before a partition's length was observed: one partition's work is no trend.
        assert_eq!(
            (ceiling.shares().maintenance, text(&ceiling)),
            (80, String::new())
        );
        for minute in 300..361 {
            ceiling.note(round(minute, 320));
        }
        let issue = text(&ceiling);
        assert!(issue.contains("80 % of its time with 600 hosts"), "{issue}");
        assert!(issue.contains("about 750 hosts"), "{issue}");
        for minute in 361..800 {
            ceiling.note(round(minute, 40));
        }
        assert_eq!(
            (ceiling.shares().maintenance, text(&ceiling)),
            (10, String::new())
        );
    }

    #[test]
    fn work_that_never_ends_is_counted_from_when_it_last_did() {
        let ceiling = Ceiling::new(360 * MINUTE);
        for minute in 0..10 {
            let is_pending = minute > 3;
            ceiling.note(Round {
                is_pending,
                ..round(minute, 1)
            });
        }
        assert_eq!(ceiling.shares().behind_s, 6 * 60);
        ceiling.note(round(10, 1));
        assert_eq!(ceiling.shares().behind_s, 0);
    }

    #[test]
    fn the_peak_of_memory_is_remembered_for_a_while() {
        let ceiling = Ceiling::new(360 * MINUTE);
        ceiling.note(Round {
            memory_bytes: 95,
            ..round(0, 1)
        });
        ceiling.note(round(10, 1));
        assert_eq!(ceiling.shares().memory, 95);
        assert!(text(&ceiling).contains("95 % of their memory"));
        for minute in 11..400 {
            ceiling.note(round(minute, 1));
        }
        assert_eq!(
            (ceiling.shares().memory, text(&ceiling)),
            (10, String::new())
        );
    }

    #[test]
    fn a_disk_smaller_than_the_budget_is_the_ceiling_and_a_full_budget_is_none() {
        let ceiling = Ceiling::new(360 * MINUTE);
        ceiling.note(Round {
            store_bytes: 100,
            ..round(0, 1)
        });
        assert_eq!(
            (ceiling.shares().disk, text(&ceiling)),
            (100, String::new())
        );
        ceiling.note(Round {
            free_bytes: Some(4),
            ..round(0, 1)
        });
        assert_eq!(ceiling.shares().disk, 92);
        assert!(text(&ceiling).contains("with 4 bytes free"));
        ceiling.note(Round {
            free_bytes: None,
            budget_bytes: 0,
            ..round(0, 1)
        });
        assert_eq!((ceiling.shares().disk, text(&ceiling)), (0, String::new()));
    }
}
