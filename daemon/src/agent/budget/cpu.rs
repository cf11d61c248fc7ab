//! Decides when to sample less and when to return: a state machine without clock or syscalls.
//!
//! It is fed with the CPU time used so far about every ten seconds. Input: time and nanoseconds;
//! output: the level that should be in force. It lowers after a minute over the budget, so a spike
//! has no effect. It raises after some minutes in which the cost of the higher level, measured when
//! that level was left, would have fit with room to spare. Each time that proves wrong, the next
//! try waits twice as long. So levels never oscillate under any load.

use host::time::MonotonicTime;
use perf::plan::Limits;
use std::collections::VecDeque;
use std::time::Duration;

/// Length of an interval. Shorter ones would measure whether a window was closed in them: naming is
/// done once a window, ten seconds by default.
pub(super) const INTERVAL: Duration = Duration::from_millis(9_500);

/// An interval longer than this means that the process was stopped or the machine slept. What it
/// then catches up with is no ordinary cost.
const PAUSED: Duration = Duration::from_secs(45);

/// Intervals in the minute that decides on lowering.
const MINUTE: usize = 6;

/// Intervals of the minute that must be over the budget. All but one: one quiet moment does not
/// make a sustained load a spike.
const MINUTE_OVER: usize = 5;

/// Intervals looked at for a load that comes and goes, and before raising: five minutes.
const LONG: usize = 30;

/// Most that an interval may count in the long mean, as a multiple of the budget: a spike of ten
/// seconds, however high, must not look like five minutes of load.
const CLIP: u64 = 3;

/// After the start everything is read for the first time: symbols of every program that runs.
const GRACE: Duration = Duration::from_secs(120);

/// After a step rings are opened and unwind tables are read or dropped.
const SETTLE: Duration = Duration::from_secs(10);

/// Least time at a level before a raise.
const RAISE_AFTER: Duration = Duration::from_secs(300);

/// Most of it, when raising has been wrong again and again.
const RAISE_AFTER_MAX: Duration = Duration::from_secs(3600);

/// A level that was raised to and held for this long has proven right.
const PROVEN: Duration = Duration::from_secs(1800);

/// The part of the budget that a higher level may be expected to take. Unit: percent.
const ROOM_PERCENT: u64 = 80;

/// Expected cost of a level compared with the one below it, while it was never measured. Unit:
/// percent of the lower one's cost. Halving a copy saves less than half.
const COPY_STEP_PERCENT: u64 = 200;

/// A step of the copy was never worth more than this; a load that fell just after a step was taken
/// would otherwise be taken for the step's doing. Unit: percent.
const COPY_STEP_PERCENT_MAX: u64 = 300;

/// Copies of the stack that are stepped down to. Unit: bytes.
const COPIES: [u32; 3] = [8 << 10, 4 << 10, 0];

/// Rates that are stepped down to when nothing is copied any more. Each keeps out of step with
/// timers of round numbers. Unit: samples a second.
const RATES: [u32; 7] = [999, 499, 199, 99, 49, 19, 9];

/// The levels, from what is configured to the least: copies first, for a sample without its callers
/// still counts, while one not taken does not.
pub fn ladder(stack_bytes: u32, rate_hz: u32) -> Vec<Limits> {
    let copies = COPIES.iter().filter(|&&copy| copy < stack_bytes);
    let rates = RATES.iter().filter(|&&rate| rate < rate_hz);
    let mut levels = vec![Limits::NONE];
    levels.extend(copies.map(|&stack_bytes| Limits {
        stack_bytes,
        ..Limits::NONE
    }));
    let stack_bytes = levels.last().map_or(u32::MAX, |level| level.stack_bytes);
    levels.extend(rates.map(|&rate_hz| Limits {
        stack_bytes,
        rate_hz,
    }));
    levels
}

/// The state machine. See the head of this file.
#[derive(Debug)]
pub struct CpuGovernor {
    /// Unit: millionths of one CPU.
    budget_ppm: u64,
    ladder: Vec<Limits>,
    /// Samples a second without limits.
    rate_hz: u32,
    level: usize,
    since: MonotonicTime,
    /// Intervals that end before this are not judged.
    quiet_until: MonotonicTime,
    last: Option<(MonotonicTime, u64)>,
    /// Cost of the last minute's intervals, whatever was in force.
    recent: VecDeque<u64>,
    /// Cost of the intervals since the level came into force, at most [`LONG`].
    judged: VecDeque<u64>,
    /// For each level its measured cost compared with the next lower one's, in percent.
    learnt: Vec<Option<u64>>,
    /// Cost of a minute of the level just left downwards, until the lower one is known too.
    left_at: Option<u64>,
    raise_after: Duration,
    raised: Option<MonotonicTime>,
}

impl CpuGovernor {
    /// Creates it at `now`, the start of the daemon, without limits or knowledge.
    pub fn new(budget_ppm: u64, stack_bytes: u32, rate_hz: u32, now: MonotonicTime) -> CpuGovernor {
        let ladder = ladder(stack_bytes, rate_hz);
        CpuGovernor {
            budget_ppm,
            learnt: vec![None; ladder.len()],
            ladder,
            rate_hz,
            level: 0,
            since: now,
            quiet_until: now.plus(GRACE),
            last: None,
            recent: VecDeque::with_capacity(MINUTE),
            judged: VecDeque::with_capacity(LONG),
            left_at: None,
            raise_after: RAISE_AFTER,
            raised: None,
        }
    }

    /// The budget. Unit: millionths of one CPU.
    pub fn budget_ppm(&self) -> u64 {
        self.budget_ppm
    }

    /// The level in force; 0: nothing is limited.
    pub fn level(&self) -> usize {
        self.level
    }

    /// The last level.
    pub fn lowest(&self) -> usize {
        self.ladder.len() - 1
    }

    /// Since when it is in force.
    pub fn since(&self) -> MonotonicTime {
        self.since
    }

    /// The limits of a level.
    pub fn limits(&self, level: usize) -> Limits {
        self.ladder.get(level).copied().unwrap_or(Limits::NONE)
    }

    /// Mean over the last minute. Unit: millionths of one CPU. `None` before the first interval.
    pub fn used_ppm(&self) -> Option<u64> {
        mean(self.recent.iter().copied())
    }

    /// Sets a new budget. Decisions based on the old one are forgotten.
    pub fn set_budget(&mut self, budget_ppm: u64) {
        if self.budget_ppm != budget_ppm {
            self.budget_ppm = budget_ppm;
            self.judged.clear();
            self.raise_after = RAISE_AFTER;
        }
    }

    /// The level, and its limits, that will be in force when this is what is configured: the
    /// highest that allows no more than the one in force does.
    pub fn level_for(&self, stack_bytes: u32, rate_hz: u32) -> (usize, Limits) {
        let ladder = ladder(stack_bytes, rate_hz);
        let before = self.limits(self.level);
        let no_more = |level: &Limits| {
            level.stack_bytes.min(stack_bytes) <= before.stack_bytes
                && level.rate_hz.min(rate_hz) <= before.rate_hz
        };
        let level = ladder.iter().position(no_more).unwrap_or(ladder.len() - 1);
        (level, ladder[level])
    }

    /// Sets a new configuration of what is sampled; see [`CpuGovernor::level_for`].
    pub fn set_full(&mut self, stack_bytes: u32, rate_hz: u32, now: MonotonicTime) {
        self.level = self.level_for(stack_bytes, rate_hz).0;
        self.ladder = ladder(stack_bytes, rate_hz);
        self.rate_hz = rate_hz;
        self.learnt = vec![None; self.ladder.len()];
        self.left_at = None;
        self.settle(now);
    }

    /// Processes a reading: CPU time used so far. Returns the level that should be in force, if it
    /// differs from the current one. The caller applies it and reports that with
    /// [`CpuGovernor::enter`]; until then the result is repeated every minute.
    pub fn observe(&mut self, now: MonotonicTime, cpu_ns: u64) -> Option<usize> {
        let Some((at, before)) = self.last else {
            self.last = Some((now, cpu_ns));
            return None;
        };
        let length = now.since(at);
        if length < INTERVAL {
            return None;
        }
        self.last = Some((now, cpu_ns));
        if length > PAUSED {
            self.settle(now);
            return None;
        }
        let used = cpu_ns.saturating_sub(before);
        let ppm = (u128::from(used) * 1_000_000 / length.as_nanos().max(1)) as u64;
        push(&mut self.recent, ppm, MINUTE);
        if now < self.quiet_until {
            return None;
        }
        push(&mut self.judged, ppm, LONG);
        self.learn();
        if self.raised.is_some_and(|at| now.since(at) > PROVEN) {
            self.raised = None;
            self.raise_after = RAISE_AFTER;
        }
        if self.is_over() && self.level < self.lowest() {
            return Some(self.level + 1);
        }
        if self.level > 0 && now.since(self.since) >= self.raise_after && self.would_fit() {
            return Some(self.level - 1);
        }
        None
    }

    /// Says that a level is in force from now on.
    pub fn enter(&mut self, level: usize, now: MonotonicTime) {
        let level = level.min(self.lowest());
        if level > self.level {
            self.left_at = self.minute();
            // The raise before was wrong: the next one waits longer.
            if self.raised.take().is_some() {
                self.raise_after = (self.raise_after * 2).min(RAISE_AFTER_MAX);
            }
        } else if level < self.level {
            self.left_at = None;
            self.raised = Some(now);
        }
        self.level = level;
        self.since = now;
        self.settle(now);
    }

    /// Says that a level could not be put in force. It is asked for again in a minute.
    pub fn refused(&mut self, now: MonotonicTime) {
        self.settle(now);
    }

    fn settle(&mut self, now: MonotonicTime) {
        self.judged.clear();
        self.quiet_until = self.quiet_until.max(now.plus(SETTLE));
    }

    /// Mean of the last minute at this level, once there is one.
    fn minute(&self) -> Option<u64> {
        let newest = self.judged.iter().rev().take(MINUTE).copied();
        (self.judged.len() >= MINUTE).then(|| mean(newest))?
    }

    fn is_over(&self) -> bool {
        let budget = self.budget_ppm;
        let newest = || self.judged.iter().rev().take(MINUTE);
        let for_a_minute = self.minute().is_some_and(|mean| mean > budget)
            && newest().filter(|&&ppm| ppm > budget).count() >= MINUTE_OVER;
        let clipped = self.judged.iter().map(|&ppm| ppm.min(CLIP * budget));
        let again_and_again = self.judged.len() == LONG
            && mean(clipped).is_some_and(|mean| mean > budget)
            && self.judged.iter().filter(|&&ppm| ppm > budget).count() > LONG / 2;
        for_a_minute || again_and_again
    }

    /// True when in no minute of the last five the next higher level would have taken more than its
    /// part of the budget. Then the same load cannot lower it again: every rule of `is_over` needs
    /// a mean above the budget.
    fn would_fit(&self) -> bool {
        if self.judged.len() < LONG {
            return false;
        }
        let highest = (0..=LONG - MINUTE)
            .filter_map(|from| mean(self.judged.range(from..from + MINUTE).copied()))
            .max();
        let expected = highest
            .unwrap_or(0)
            .saturating_mul(self.step_percent(self.level - 1))
            / 100;
        expected <= self.budget_ppm * ROOM_PERCENT / 100
    }

    /// The cost of a level compared with the next lower one. Unit: percent.
    fn step_percent(&self, level: usize) -> u64 {
        let rate = |level| u64::from(self.limits(level).rate_hz.min(self.rate_hz).max(1));
        let (high, low) = (rate(level), rate(level + 1));
        let (usual, most) = match high == low {
            true => (COPY_STEP_PERCENT, COPY_STEP_PERCENT_MAX),
            // Part of the cost does not depend on the rate.
            false => ((high * 100).div_ceil(low), (high * 100).div_ceil(low)),
        };
        self.learnt
            .get(level)
            .copied()
            .flatten()
            .unwrap_or(usual)
            .clamp(110, most)
    }

    /// Compares the first minute of a level with the last of the one above it.
    fn learn(&mut self) {
        if self.level == 0 || self.judged.len() < MINUTE {
            return;
        }
        if let (Some(above), Some(here)) = (self.left_at.take(), self.minute()) {
            self.learnt[self.level - 1] = Some(above.saturating_mul(100) / here.max(1));
        }
    }
}

fn push(list: &mut VecDeque<u64>, value: u64, max: usize) {
    if list.len() == max {
        list.pop_front();
    }
    list.push_back(value);
}

fn mean(values: impl Iterator<Item = u64>) -> Option<u64> {
    let (mut sum, mut count) = (0u128, 0u128);
    for value in values {
        sum += u128::from(value);
        count += 1;
    }
    (count > 0).then(|| (sum / count) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;
    /// One percent of a CPU.
    const BUDGET: u64 = 10_000;

    /// A governed daemon: cost at full sampling in, levels out.
    struct Daemon {
        governor: CpuGovernor,
        now: MonotonicTime,
        cpu_ns: u64,
        /// Seconds since the start at which the level changed, and to which.
        changes: Vec<(u64, usize)>,
    }

    impl Daemon {
        fn new() -> Daemon {
            let now = MonotonicTime(1000 * SECOND);
            Daemon {
                governor: CpuGovernor::new(BUDGET, 16 << 10, 99, now),
                now,
                cpu_ns: 0,
                changes: Vec::new(),
            }
        }

        /// Ten seconds in which full sampling would cost `full_ppm`; each level costs `share`
        /// percent of the one above.
        fn interval(&mut self, full_ppm: u64, share: u64) {
            let mut cost = full_ppm;
            for _ in 0..self.governor.level() {
                cost = cost * share / 100;
            }
            self.now = self.now.plus(Duration::from_secs(10));
            self.cpu_ns += cost * 10_000;
            if let Some(level) = self.governor.observe(self.now, self.cpu_ns) {
                self.governor.enter(level, self.now);
                self.changes.push((self.now.0 / SECOND - 1000, level));
            }
        }

        fn minutes(&mut self, minutes: u64, full_ppm: u64) {
            (0..minutes * 6).for_each(|_| self.interval(full_ppm, 60));
        }
    }

    #[test]
    fn copies_go_before_samples() {
        let steps = |stack, rate| -> Vec<(u32, u32)> {
            let level = |l: Limits| (l.stack_bytes.min(stack), l.rate_hz.min(rate));
            ladder(stack, rate).into_iter().map(level).collect()
        };
        let full = [
            (16384, 99),
            (8192, 99),
            (4096, 99),
            (0, 99),
            (0, 49),
            (0, 19),
            (0, 9),
        ];
        assert_eq!(steps(16384, 99), full);
        assert_eq!(steps(0, 49), [(0, 49), (0, 19), (0, 9)]);
        assert_eq!(steps(6144, 9), [(6144, 9), (4096, 9), (0, 9)]);
        assert_eq!(steps(0, 9), [(0, 9)]);
    }

    #[test]
    fn the_start_is_not_judged() {
        let mut daemon = Daemon::new();
        daemon.minutes(2, 50 * BUDGET);
        daemon.minutes(10, BUDGET / 2);
        assert_eq!(daemon.changes, []);
    }

    #[test]
    fn the_configuration_says_when_the_first_step_comes() {
        let mut daemon = Daemon::new();
        daemon.minutes(10, 50 * BUDGET);
        let first = daemon.changes.first().expect("a step").0;
        let keys = agent_config::KEYS;
        let key = keys.iter().find(|key| key.path == "budget.cpu");
        let doc = key.expect("the key").doc;
        let (grace, step) = (GRACE.as_secs() / 60, first.div_ceil(60));
        let said = format!("first {grace} minutes after a start");
        assert!(doc.contains(&said), "{doc}");
        let said = format!("nearly {step} minutes after a start at the earliest");
        assert!(doc.contains(&said), "{first} s: {doc}");
    }

    #[test]
    fn a_spike_lowers_nothing() {
        let mut daemon = Daemon::new();
        for _ in 0..20 {
            daemon.minutes(5, BUDGET / 2);
            (0..4).for_each(|_| daemon.interval(90 * BUDGET, 60));
        }
        assert_eq!(daemon.changes, []);
    }

    #[test]
    fn a_minute_over_the_budget_lowers_by_one_step() {
        let mut daemon = Daemon::new();
        daemon.minutes(5, BUDGET / 2);
        daemon.minutes(1, BUDGET * 3 / 2);
        // One of the six intervals may be within the budget. A step lower everything fits.
        assert_eq!(daemon.changes, [(350, 1)]);
        daemon.minutes(60, BUDGET * 3 / 2);
        assert_eq!(daemon.changes, [(350, 1)]);
    }

    #[test]
    fn a_load_that_comes_and_goes_lowers_too() {
        let mut daemon = Daemon::new();
        for _ in 0..30 {
            (0..2).for_each(|_| daemon.interval(3 * BUDGET, 60));
            daemon.interval(BUDGET / 10, 60);
        }
        assert!(daemon.governor.level() > 0);
    }

    #[test]
    fn a_load_that_nothing_makes_fit_ends_at_the_lowest_level() {
        let mut daemon = Daemon::new();
        daemon.minutes(30, 1000 * BUDGET);
        assert_eq!(daemon.governor.level(), daemon.governor.lowest());
        assert_eq!(daemon.changes.len(), daemon.governor.lowest());
    }

    #[test]
    fn what_was_lowered_comes_back_when_there_is_room() {
        let mut daemon = Daemon::new();
        daemon.minutes(20, 6 * BUDGET);
        assert!(daemon.governor.level() > 2);
        daemon.minutes(120, BUDGET / 3);
        assert_eq!(daemon.governor.level(), 0);
    }

    #[test]
    fn a_raise_that_proved_wrong_is_tried_ever_less_often() {
        let mut daemon = Daemon::new();
        // What lowering saves here is more than the steps are believed to be worth.
        (0..6 * 60 * 24).for_each(|_| daemon.interval(BUDGET * 2, 12));
        let raises = daemon
            .changes
            .iter()
            .filter(|(_, level)| *level == 0)
            .count();
        assert!((1..30).contains(&raises), "{:?}", daemon.changes);
    }

    #[test]
    fn time_in_which_the_process_was_stopped_does_not_count() {
        let mut daemon = Daemon::new();
        daemon.minutes(5, BUDGET / 2);
        daemon.now = daemon.now.plus(Duration::from_secs(3600));
        daemon.interval(100 * BUDGET, 60);
        daemon.minutes(10, BUDGET / 2);
        assert_eq!(daemon.changes, []);
        assert_eq!(daemon.governor.used_ppm(), Some(BUDGET / 2));
    }

    #[test]
    fn a_new_configuration_keeps_what_was_limited() {
        let mut governor = CpuGovernor::new(BUDGET, 16 << 10, 99, MonotonicTime(0));
        governor.set_full(32 << 10, 199, MonotonicTime(1));
        assert_eq!(governor.level(), 0);
        governor.enter(2, MonotonicTime(2));
        let before = governor.limits(governor.level());
        governor.set_full(16 << 10, 99, MonotonicTime(3));
        let after = governor.limits(governor.level());
        assert!(after.stack_bytes <= before.stack_bytes && after.rate_hz <= before.rate_hz);
        assert_eq!(after.stack_bytes, 4096);
    }

    proptest! {
        // Each case is hours of a daemon's life.
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn levels_never_swing(
            loads in prop::collection::vec((1u64..5 * BUDGET, 1u64..60), 1..60),
            share in 20u64..95,
        ) {
            let mut daemon = Daemon::new();
            for &(load, intervals) in &loads {
                (0..intervals).for_each(|_| daemon.interval(load, share));
            }
            let mut before = (0, 0usize);
            for &(at, level) in &daemon.changes {
                prop_assert_eq!(before.1.abs_diff(level), 1, "one step at a time");
                let least = if level < before.1 { 300 } else { 60 };
                prop_assert!(at - before.0 >= least, "{:?}", daemon.changes);
                before = (at, level);
            }
        }

        #[test]
        fn under_a_steady_load_levels_come_to_rest(
            load in 1u64..20 * BUDGET, noise in prop::collection::vec(90u64..110, 64), share in 34u64..95,
        ) {
            let mut daemon = Daemon::new();
            for at in 0..6 * 60 * 12 {
                daemon.interval(load * noise[at % noise.len()] / 100, share);
            }
            // The first half hour finds the level; from then on there may be tries, ever rarer.
            let later = daemon.changes.iter().filter(|(at, _)| *at > 3600).count();
            prop_assert!(later <= 2 * 12, "{:?}", daemon.changes);
        }

        #[test]
        fn a_load_within_the_budget_is_never_limited(
            loads in prop::collection::vec(0..=BUDGET, 1..500),
        ) {
            let mut daemon = Daemon::new();
            loads.iter().for_each(|&load| daemon.interval(load, 60));
            prop_assert_eq!(daemon.changes, []);
        }
    }
}
