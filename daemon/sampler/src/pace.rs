//! Decides when the sampler makes a pass earlier than it has to, and when the size of stack copies
//! should be checked.
//!
//! State machines without clock or system calls.

use host::time::MonotonicTime;
use std::time::Duration;

/// Longest sleep. Rings hold more, so this is about how fresh data is and how soon the end of a
/// window is noticed.
pub const TICK: Duration = Duration::from_secs(1);

/// The same for [`FRESH`] after new files were seen, so that short-lived programs are opened while
/// they exist, and because stacks wait for their unwind information. Also after holes in stacks
/// were seen, because what follows a hole is visible only once it has been read.
const TICK_FRESH: Duration = Duration::from_millis(100);

/// See [`TICK_FRESH`].
const FRESH: Duration = Duration::from_secs(1);

/// How often holes make passes come sooner: so many times at once, and once more each time that
/// [`HOLES_EVERY`] has gone by. Where programs with holes come and go all the time it costs a pass
/// a second.
const HOLES_MAX: f64 = 10.0;
const HOLES_EVERY: Duration = Duration::from_secs(10);

/// How soon the next pass comes.
#[derive(Debug)]
pub struct PassPacing {
    /// When passes were last wanted sooner.
    wanted: MonotonicTime,
    /// Files and holes that were met before.
    files: u64,
    holes: u64,
    /// The rest of [`HOLES_MAX`], and when.
    left: (f64, MonotonicTime),
}

impl Default for PassPacing {
    fn default() -> Self {
        PassPacing {
            wanted: MonotonicTime(0),
            files: 0,
            holes: 0,
            left: (HOLES_MAX, MonotonicTime(0)),
        }
    }
}

impl PassPacing {
    /// Sets how many files and holes have been seen since the start.
    pub fn met(&mut self, files: u64, holes: u64, now: MonotonicTime) {
        if files > self.files || holes > self.holes && self.grants(now) {
            self.wanted = now;
        }
        (self.files, self.holes) = (files, holes);
    }

    fn grants(&mut self, now: MonotonicTime) -> bool {
        let (left, then) = self.left;
        let refilled = now.since(then).as_secs_f64() / HOLES_EVERY.as_secs_f64();
        let left = (left + refilled).min(HOLES_MAX);
        let any = left >= 1.0;
        self.left = (if any { left - 1.0 } else { left }, now);
        any
    }

    /// Longest sleep from `now` on.
    pub fn tick(&self, now: MonotonicTime) -> Duration {
        match self.wanted != MonotonicTime(0) && now.since(self.wanted) < FRESH {
            true => TICK_FRESH,
            false => TICK,
        }
    }
}

/// Cut stacks after which it is looked at whether more should be copied.
const DEEP_MIN: u64 = 10;

/// Time between two of these looks. Each time that nothing comes of it it is twice as long.
const DEEP_WAIT: Duration = Duration::from_secs(1);
const DEEP_WAIT_MAX: Duration = Duration::from_secs(64);

/// When somebody should look at how many stacks are cut by their copies.
#[derive(Debug)]
pub struct CopyWatch {
    /// Stacks cut before the last look.
    cut: u64,
    not_before: MonotonicTime,
    wait: Duration,
}

impl Default for CopyWatch {
    fn default() -> Self {
        CopyWatch::since(0)
    }
}

impl CopyWatch {
    /// With other copies than those with which so many were `cut`.
    pub fn since(cut: u64) -> CopyWatch {
        CopyWatch {
            cut,
            not_before: MonotonicTime(0),
            wait: DEEP_WAIT,
        }
    }

    /// True when a look is due after so many were `cut` since the start.
    pub fn is_due(&mut self, cut: u64, now: MonotonicTime) -> bool {
        if cut < self.cut.saturating_add(DEEP_MIN) || now < self.not_before {
            return false;
        }
        self.cut = cut;
        self.not_before = now.plus(self.wait);
        self.wait = (self.wait * 2).min(DEEP_WAIT_MAX);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * 1_000_000_000)
    }

    #[test]
    fn new_files_bring_passes_for_a_second() {
        let mut pace = PassPacing::default();
        assert_eq!(pace.tick(at(0)), TICK);
        pace.met(1, 0, at(5));
        assert_eq!(pace.tick(at(5)), TICK_FRESH);
        pace.met(1, 0, at(6));
        assert_eq!(pace.tick(at(6)), TICK);
    }

    #[test]
    fn holes_bring_them_now_and_then() {
        let mut pace = PassPacing::default();
        let mut sooner = |seconds: std::ops::Range<u64>| {
            seconds.fold(0, |sooner, second| {
                pace.met(0, second, at(second));
                sooner + u64::from(pace.tick(at(second)) == TICK_FRESH)
            })
        };
        assert_eq!(sooner(100..110), 10, "at once");
        let later = sooner(110..210);
        assert!((9..=11).contains(&later), "{later}");
    }

    #[test]
    fn many_cut_stacks_are_told_of_less_and_less_until_copies_change() {
        let mut deep = CopyWatch::default();
        assert!(!deep.is_due(DEEP_MIN - 1, at(1)));
        let told: Vec<u64> = (1..=20)
            .filter(|&second| deep.is_due(second * DEEP_MIN, at(second)))
            .collect();
        assert_eq!(told, [1, 2, 4, 8, 16]);
        let mut deep = CopyWatch::since(1000);
        assert!(!deep.is_due(1000, at(21)));
        assert!(deep.is_due(1000 + DEEP_MIN, at(21)));
    }
}
