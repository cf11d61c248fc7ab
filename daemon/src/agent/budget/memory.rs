//! Decides when to use less memory and when to use more again: a state machine without clock or
//! syscalls.
//!
//! It is fed with the memory in use about every ten seconds. After half a minute over the budget it
//! first asks for free memory to be returned to the machine. If that is not enough, it selects the
//! next lower level of bounds: caches are reduced first, because they cost only time, then the
//! flight recorder, which downsamples old windows. It returns when what the higher level may add
//! would fit, without oscillating: see [`super::cpu`].

use super::cpu::INTERVAL;
use host::bounds::Bounds;
use host::time::MonotonicTime;
use std::collections::VecDeque;
use std::time::Duration;

/// Readings over the budget before something is done: a query over an hour holds its answer for
/// some seconds.
const OVER: usize = 3;

/// Readings that must leave room before a raise: ten minutes.
const UNDER: usize = 60;

/// Most of the time before a raise, when raising has been wrong again and again.
const RAISE_AFTER_MAX: Duration = Duration::from_secs(4 * 3600);

/// The part of the budget that a higher level may be expected to take. Unit: percent.
const ROOM_PERCENT: usize = 90;

/// Parts of caches and recorder that the levels leave. Unit: percent.
const LEVELS: [(usize, usize); 6] = [
    (100, 100),
    (50, 100),
    (25, 100),
    (25, 50),
    (25, 25),
    (25, 12),
];

/// Least that a level leaves. Unit: bytes. Below this every window reads tables again.
const CACHE_MIN: usize = 1 << 20;
const UNWIND_MIN: usize = 4 << 20;
const RECORDER_MIN: usize = 4 << 20;

/// The last level.
pub const LOWEST: usize = LEVELS.len() - 1;

/// The bounds of a level: parts of what is configured.
pub fn bounds(configured: Bounds, level: usize) -> Bounds {
    let (caches, recorder) = LEVELS[level.min(LOWEST)];
    let part = |bytes: usize, percent: usize, least: usize| (bytes / 100 * percent).max(least);
    match level {
        0 => configured,
        _ => Bounds {
            symbols: part(configured.symbols, caches, CACHE_MIN).min(configured.symbols),
            unwind: part(configured.unwind, caches, UNWIND_MIN).min(configured.unwind),
            recorder: part(configured.recorder, recorder, RECORDER_MIN).min(configured.recorder),
        },
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Give free memory back.
    Trim,
    /// Put the bounds of this level in force: lower ones.
    Lower(usize),
    /// Put the bounds of this level in force: higher ones.
    Raise(usize),
}

/// The state machine. See the head of this file.
#[derive(Debug)]
pub struct MemoryGovernor {
    /// Unit: bytes.
    budget: usize,
    configured: Bounds,
    level: usize,
    since: MonotonicTime,
    last: Option<MonotonicTime>,
    /// Readings since the last change, at most [`UNDER`]. Unit: bytes.
    judged: VecDeque<usize>,
    trimmed: bool,
    raise_after: Duration,
    raised: bool,
}

impl MemoryGovernor {
    /// Everything as configured.
    pub fn new(budget: usize, configured: Bounds, now: MonotonicTime) -> MemoryGovernor {
        MemoryGovernor {
            budget,
            configured,
            level: 0,
            since: now,
            last: None,
            judged: VecDeque::with_capacity(UNDER),
            trimmed: false,
            raise_after: INTERVAL * UNDER as u32,
            raised: false,
        }
    }

    /// The budget. Unit: bytes.
    pub fn budget(&self) -> usize {
        self.budget
    }

    /// The newest reading. Unit: bytes.
    pub fn used(&self) -> Option<usize> {
        self.judged.back().copied()
    }

    /// The level in force; 0: as configured.
    pub fn level(&self) -> usize {
        self.level
    }

    /// Since when it is in force.
    pub fn since(&self) -> MonotonicTime {
        self.since
    }

    /// The bounds in force.
    pub fn bounds(&self) -> Bounds {
        bounds(self.configured, self.level)
    }

    /// Sets a new configuration; the level stays.
    pub fn configure(&mut self, budget: usize, configured: Bounds) {
        if (budget, configured) != (self.budget, self.configured) {
            (self.budget, self.configured) = (budget, configured);
            self.judged.clear();
            self.trimmed = false;
        }
    }

    /// Processes a reading: bytes in use. Changes the level by itself; the caller must carry out
    /// the result.
    pub fn observe(&mut self, now: MonotonicTime, used: usize) -> Option<Action> {
        if self.last.is_some_and(|last| now.since(last) < INTERVAL) {
            return None;
        }
        self.last = Some(now);
        if self.judged.len() == UNDER {
            self.judged.pop_front();
        }
        self.judged.push_back(used);
        let newest = self.judged.iter().rev().take(OVER);
        let over = newest.filter(|&&used| used > self.budget).count() == OVER;
        if over && !self.trimmed {
            self.trimmed = true;
            self.judged.clear();
            self.judged.push_back(used);
            return Some(Action::Trim);
        }
        if over && self.level < LOWEST {
            if std::mem::take(&mut self.raised) {
                self.raise_after = (self.raise_after * 2).min(RAISE_AFTER_MAX);
            }
            self.enter(self.level + 1, now);
            return Some(Action::Lower(self.level));
        }
        if used <= self.budget {
            self.trimmed = false;
        }
        if self.level > 0 && now.since(self.since) >= self.raise_after && self.would_fit() {
            self.raised = true;
            self.enter(self.level - 1, now);
            return Some(Action::Raise(self.level));
        }
        None
    }

    fn enter(&mut self, level: usize, now: MonotonicTime) {
        self.level = level;
        self.since = now;
        // The caches shrink on their own threads; what they free is given back first.
        self.trimmed = false;
        let used = self.judged.back().copied();
        self.judged.clear();
        self.judged.extend(used);
    }

    fn would_fit(&self) -> bool {
        let most = self.judged.iter().max().copied().unwrap_or(0);
        let more = bounds(self.configured, self.level - 1).total() - self.bounds().total();
        self.judged.len() == UNDER && most + more <= self.budget / 100 * ROOM_PERCENT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: usize = 1 << 20;
    const CONFIGURED: Bounds = Bounds {
        symbols: 24 * MIB,
        unwind: 48 * MIB,
        recorder: 64 * MIB,
    };

    /// Readings ten seconds apart; what was done, with the number of the reading.
    fn run(
        governor: &mut MemoryGovernor,
        readings: impl Iterator<Item = usize>,
    ) -> Vec<(usize, Action)> {
        let mut done = Vec::new();
        let mut now = governor.last.unwrap_or(MonotonicTime(1));
        for (at, used) in readings.enumerate() {
            now = now.plus(Duration::from_secs(10));
            done.extend(governor.observe(now, used).map(|action| (at, action)));
        }
        done
    }

    fn governor() -> MemoryGovernor {
        MemoryGovernor::new(100 * MIB, CONFIGURED, MonotonicTime(0))
    }

    #[test]
    fn every_level_holds_less_than_the_one_before() {
        let totals: Vec<usize> = (0..=LOWEST)
            .map(|at| bounds(CONFIGURED, at).total() / MIB)
            .collect();
        assert!(totals.is_sorted_by(|a, b| a > b), "{totals:?}");
        assert_eq!(bounds(CONFIGURED, 0), CONFIGURED);
    }

    #[test]
    fn no_level_holds_more_than_is_configured() {
        let tiny = Bounds {
            symbols: 1,
            unwind: 2,
            recorder: 3,
        };
        for level in 0..=LOWEST {
            assert_eq!(bounds(tiny, level), tiny);
        }
    }

    #[test]
    fn what_a_query_holds_for_seconds_changes_nothing() {
        let readings = [50, 200, 200, 50].into_iter().cycle().take(400);
        assert_eq!(run(&mut governor(), readings.map(|mib| mib * MIB)), []);
    }

    #[test]
    fn free_memory_is_given_back_before_anything_is_dropped() {
        let mut governor = governor();
        let done = run(
            &mut governor,
            [120, 120, 120, 90, 90].into_iter().map(|mib| mib * MIB),
        );
        assert_eq!(done, [(2, Action::Trim)]);
        assert_eq!(governor.level(), 0);
    }

    #[test]
    fn memory_that_stays_over_lowers_level_by_level() {
        let mut governor = governor();
        let done = run(&mut governor, std::iter::repeat_n(120 * MIB, 100));
        let levels: Vec<usize> = done
            .iter()
            .filter_map(|(_, action)| match action {
                Action::Lower(level) => Some(*level),
                Action::Trim | Action::Raise(_) => None,
            })
            .collect();
        assert_eq!(levels, [1, 2, 3, 4, 5]);
        assert_eq!(governor.bounds().recorder, CONFIGURED.recorder / 100 * 12);
    }

    #[test]
    fn it_goes_back_when_what_may_be_added_fits() {
        let mut governor = governor();
        run(&mut governor, std::iter::repeat_n(120 * MIB, 8));
        assert_eq!(governor.level(), 1);
        // 36 MiB more are admitted a level higher: 60 and 36 are over 90.
        assert_eq!(run(&mut governor, std::iter::repeat_n(60 * MIB, 1000)), []);
        let done = run(&mut governor, std::iter::repeat_n(50 * MIB, 61));
        assert_eq!(done, [(59, Action::Raise(0))]);
    }

    proptest! {
        #[test]
        fn it_never_swings(readings in prop::collection::vec((1usize..200, 1usize..100), 1..50)) {
            let mut governor = governor();
            let readings = readings.iter().flat_map(|&(mib, n)| std::iter::repeat_n(mib * MIB, n));
            let mut before = 0;
            for (at, action) in run(&mut governor, readings) {
                let least = match action {
                    Action::Trim => continue,
                    Action::Lower(_) => OVER - 1,
                    Action::Raise(_) => UNDER - 1,
                };
                prop_assert!(at - before >= least);
                before = at;
            }
        }
    }
}
