//! Decides when a trigger fires: hold, hysteresis, cooldown, daily limit. Uses no files and no
//! clock: times are passed in.

use super::read::Number;
use agent_config::triggers::rule::Rule;
use host::time::MonotonicTime;
use std::collections::VecDeque;
use std::time::Duration;

/// A pause between two readings after which nothing is known of the time between: what held before
/// it does not hold on, and a rate over it would be a mean of what nobody looked at. Readings come
/// once a second; a machine under load is late by some.
const GAP_MAX: Duration = Duration::from_secs(5);

/// Two readings nearer to each other than this have no rate: counters move in steps.
const RATE_MIN: Duration = Duration::from_millis(200);

/// Most readings remembered for `rises`: a second apart, for its longest time.
const HISTORY_MAX: usize = 601;

/// The day of the daily limit does not change more often than this: a wall clock that is set to and
/// fro across midnight does not give a day's firings each time.
const DAY_MIN: Duration = Duration::from_secs(3600);

/// From numbers as they are read to values: counters become rates a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct RateMeter {
    last: Option<(MonotonicTime, f64)>,
}

impl RateMeter {
    /// The value at a reading; none of a first one, after a gap, or when a counter went backwards.
    pub fn value(&mut self, at: MonotonicTime, number: Number) -> Option<f64> {
        let count = match number {
            Number::Gauge(value) => return Some(value),
            Number::Counter(count) => count,
        };
        let last = self.last;
        if let Some((then, _)) = last
            && at.since(then) < RATE_MIN
        {
            return None;
        }
        self.last = Some((at, count));
        let (then, before) = last?;
        let passed = at.since(then);
        let sound = passed <= GAP_MAX && count >= before;
        sound.then(|| (count - before) / passed.as_secs_f64())
    }
}

/// The value that made a trigger fire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TriggerValue {
    /// The value.
    pub value: f64,
    /// With `rises`: the mean of before.
    pub mean: Option<f64>,
}

/// Why a trigger that should fire does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It fired for this target a short time ago.
    Cooldown,
    /// It has fired so often today.
    Daily,
}

/// Result of a reading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    /// Nothing happened.
    Quiet,
    /// It fires.
    Fire(TriggerValue),
    /// It would fire, but may not: reported once each time the condition comes true.
    Suppressed(Why),
}

/// One trigger's state for one target.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// When the last value came.
    last: Option<MonotonicTime>,
    /// Since when the condition holds.
    since: Option<MonotonicTime>,
    /// It fired, and has not been under `clear` since.
    fired: bool,
    /// The suppression was reported.
    told: bool,
    /// With `rises`: what values are compared with while the condition holds, and since when.
    base: Option<(MonotonicTime, f64)>,
    history: VecDeque<(MonotonicTime, f64)>,
    /// When it last fired, for the cooldown.
    pub last_fired: Option<MonotonicTime>,
}

impl Watch {
    /// A new one for a target for which the trigger last fired then.
    pub fn new(last_fired: Option<MonotonicTime>) -> Watch {
        Watch {
            last_fired,
            ..Watch::default()
        }
    }

    /// Processes a value; `None` if it could not be read.
    pub fn step(
        &mut self,
        rule: &Rule,
        now: MonotonicTime,
        value: Option<f64>,
        daily: &mut Daily,
        day: i64,
    ) -> Verdict {
        if self.last.is_some_and(|last| now.since(last) > GAP_MAX) {
            self.since = None;
            self.base = None;
            self.history.clear();
        }
        let Some(value) = value else {
            return Verdict::Quiet;
        };
        self.last = Some(now);
        let (size, mean) = match rule.condition.rise {
            None => (value, None),
            Some(time) => match self.multiple(rule, now, value, time) {
                Some((size, mean)) => (size, Some(mean)),
                None => return Verdict::Quiet,
            },
        };
        if size <= rule.clear {
            (self.fired, self.told) = (false, false);
        }
        if size <= rule.condition.above {
            self.since = None;
            if !self.fired {
                self.base = None;
            }
            return Verdict::Quiet;
        }
        let since = *self.since.get_or_insert(now);
        if self.fired || now.since(since) < rule.hold {
            return Verdict::Quiet;
        }
        let cooling = |last: MonotonicTime| now.since(last) < rule.cooldown;
        let why = if self.last_fired.is_some_and(cooling) {
            Some(Why::Cooldown)
        } else if !daily.take(day, now, rule.max_per_day) {
            Some(Why::Daily)
        } else {
            None
        };
        match why {
            Some(_) if self.told => Verdict::Quiet,
            Some(why) => {
                self.told = true;
                Verdict::Suppressed(why)
            }
            None => {
                self.fired = true;
                self.last_fired = Some(now);
                Verdict::Fire(TriggerValue { value, mean })
            }
        }
    }

    /// How many times the mean of before a value is, and that mean. While the condition holds,
    /// "before" is before it came true, for as long as the condition looks back: then the new level
    /// is what is usual.
    fn multiple(
        &mut self,
        rule: &Rule,
        now: MonotonicTime,
        value: f64,
        time: Duration,
    ) -> Option<(f64, f64)> {
        while let Some(&(then, _)) = self.history.front()
            && now.since(then) > time
        {
            self.history.pop_front();
        }
        if self
            .base
            .is_some_and(|(since, _)| now.since(since) > time + rule.hold)
        {
            self.base = None;
        }
        let oldest = self.history.front().map(|&(then, _)| now.since(then));
        let mean = match self.base {
            Some((_, mean)) => Some(mean),
            None if oldest.is_some_and(|age| age * 2 >= time) => {
                let sum: f64 = self.history.iter().map(|(_, value)| value).sum();
                Some(sum / self.history.len() as f64)
            }
            // Too little is known of before.
            None => None,
        };
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back((now, value));
        let mean = mean?;
        let size = value / mean.max(rule.condition.quantity.floor());
        if self.base.is_none() && size > rule.condition.above {
            self.base = Some((now, mean));
        }
        Some((size, mean))
    }
}

/// Firings of one trigger on one day.
#[derive(Clone, Copy, Debug, Default)]
pub struct Daily {
    day: Option<i64>,
    count: u32,
    changed: Option<MonotonicTime>,
}

impl Daily {
    /// With firings of `day` from before a restart.
    pub fn with(day: i64, count: u32) -> Daily {
        Daily {
            day: Some(day),
            count,
            changed: None,
        }
    }

    /// Counts a firing, when one more is left.
    fn take(&mut self, day: i64, now: MonotonicTime, most: u32) -> bool {
        if self.day.is_none() {
            self.day = Some(day);
        }
        let recent = self
            .changed
            .is_some_and(|changed| now.since(changed) < DAY_MIN);
        if self.day != Some(day) && !recent {
            (self.day, self.count, self.changed) = (Some(day), 0, Some(now));
        }
        let left = self.count < most;
        self.count += u32::from(left);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_config::{Seconds, Trigger};

    fn rule(change: impl FnOnce(&mut Trigger)) -> Rule {
        let mut trigger = Trigger {
            name: "t".to_owned(),
            target: "host".to_owned(),
            when: "cpus > 10".to_owned(),
            cooldown: Seconds(0),
            ..Trigger::default()
        };
        change(&mut trigger);
        Rule::all(&[trigger]).unwrap().remove(0)
    }

    /// Values a second apart; where it fires (`F`) or is kept from it (`c`, `d`).
    struct Run {
        rule: Rule,
        watch: Watch,
        daily: Daily,
        now: u64,
        day: i64,
    }

    impl Run {
        fn of(rule: Rule) -> Run {
            Run {
                rule,
                watch: Watch::default(),
                daily: Daily::default(),
                now: 1000,
                day: 5,
            }
        }

        fn step(&mut self, value: Option<f64>) -> char {
            self.now += 1;
            let now = MonotonicTime(self.now * 1_000_000_000);
            match self
                .watch
                .step(&self.rule, now, value, &mut self.daily, self.day)
            {
                Verdict::Quiet => '.',
                Verdict::Fire(_) => 'F',
                Verdict::Suppressed(Why::Cooldown) => 'c',
                Verdict::Suppressed(Why::Daily) => 'd',
            }
        }

        fn take(&mut self, values: &[u32]) -> String {
            let values = values.iter();
            values
                .map(|&value| self.step(Some(f64::from(value))))
                .collect()
        }
    }

    #[test]
    fn it_fires_once_for_each_time_the_condition_comes_true() {
        let mut run = Run::of(rule(|_| {}));
        assert_eq!(run.take(&[5, 11, 12, 10, 11, 9]), ".F..F.");
    }

    #[test]
    fn with_hysteresis_it_is_armed_again_by_a_low_value_only() {
        let mut run = Run::of(rule(|t| t.clear = Some("5".to_owned())));
        assert_eq!(run.take(&[11, 9, 11, 6, 11, 5, 11]), "F.....F");
    }

    #[test]
    fn it_has_to_hold_without_a_break() {
        let mut run = Run::of(rule(|t| t.hold = Seconds(3)));
        assert_eq!(run.take(&[11, 11, 11, 9, 11, 11, 11, 11, 11]), ".......F.");
    }

    #[test]
    fn a_gap_breaks_what_held() {
        let mut run = Run::of(rule(|t| t.hold = Seconds(3)));
        assert_eq!(run.take(&[11, 11, 11]), "...");
        run.now += 60;
        assert_eq!(run.take(&[11, 11, 11, 11]), "...F");
    }

    #[test]
    fn values_that_cannot_be_read_change_nothing() {
        let mut run = Run::of(rule(|_| {}));
        assert_eq!(run.take(&[11]), "F");
        assert_eq!(run.step(None), '.');
        assert_eq!(run.take(&[11, 9, 11]), "..F");
    }

    #[test]
    fn the_cooldown_delays_and_is_told_once() {
        let mut run = Run::of(rule(|t| t.cooldown = Seconds(6)));
        assert_eq!(run.take(&[11, 9, 11, 11, 9, 11, 11, 11, 11]), "F.c..cF..");
    }

    #[test]
    fn the_daily_limit_holds_until_the_day_is_over() {
        let mut run = Run::of(rule(|t| t.max_per_day = 2));
        assert_eq!(run.take(&[11, 9, 11, 9, 11, 11, 9, 11, 9]), "F.F.d..d.");
        run.day += 1;
        assert_eq!(run.take(&[11, 9, 11, 9, 11]), "F.F.d");
    }

    #[test]
    fn a_clock_set_to_and_fro_gives_no_firings_away() {
        let mut run = Run::of(rule(|t| t.max_per_day = 1));
        assert_eq!(run.take(&[11, 9]), "F.");
        run.day = 6;
        assert_eq!(run.take(&[11, 9]), "F.");
        for day in [5, 6, 5, 6] {
            run.day = day;
            assert_eq!(run.take(&[11, 9]), "d.");
        }
    }

    #[test]
    fn a_clock_that_was_years_ahead_does_not_stop_it_for_years() {
        let mut run = Run::of(rule(|t| t.max_per_day = 1));
        run.day = 40_000;
        assert_eq!(run.take(&[11, 9]), "F.");
        run.day = 5;
        assert_eq!(run.take(&[11, 9, 11]), "F.d");
    }

    #[test]
    fn firings_from_before_a_restart_count() {
        let mut run = Run::of(rule(|t| t.max_per_day = 3));
        run.daily = Daily::with(5, 2);
        assert_eq!(run.take(&[11, 9, 11]), "F.d");
    }

    #[test]
    fn a_rise_is_held_against_the_mean_of_before() {
        let mut run = Run::of(rule(|t| t.when = "cpus rises > 3x in 10s".to_owned()));
        assert_eq!(run.take(&[9, 9]), "..", "too little is known");
        assert_eq!(run.take(&[2; 20]), "....................");
        assert_eq!(run.take(&[5, 8, 8]), ".F.");
    }

    #[test]
    fn what_rises_and_stays_becomes_usual_and_may_rise_again() {
        let mut run = Run::of(rule(|t| {
            t.when = "cpus rises > 3x in 10s".to_owned();
            t.hold = Seconds(4);
        }));
        run.take(&[2; 20]);
        assert_eq!(run.take(&[8; 40]), format!("....F{}", ".".repeat(35)));
        assert_eq!(run.take(&[25; 6]), "....F.");
    }

    #[test]
    fn nothing_rises_from_nearly_nothing() {
        let mut run = Run::of(rule(|t| {
            t.when = "run_queue rises > 3x in 10s".to_owned();
        }));
        run.take(&[0; 20]);
        assert_eq!(run.take(&[1]), ".");
        assert_eq!(run.take(&[2]), "F");
    }

    #[test]
    fn counters_become_rates_unless_they_jump() {
        let mut meter = RateMeter::default();
        let mut value = |ms: u64, count: f64| {
            meter.value(MonotonicTime(ms * 1_000_000), Number::Counter(count))
        };
        assert_eq!(value(1000, 50.0), None, "the first");
        assert_eq!(value(2000, 60.0), Some(10.0));
        assert_eq!(value(2100, 99.0), None, "too near");
        assert_eq!(value(4000, 100.0), Some(20.0));
        assert_eq!(value(5000, 3.0), None, "backwards");
        assert_eq!(value(6000, 5.0), Some(2.0));
        assert_eq!(value(60_000, 5000.0), None, "after a gap");
        assert_eq!(value(61_000, 5001.0), Some(1.0));
    }
}
