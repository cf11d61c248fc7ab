//! Measures how many samples a ring missed, and when, by the clock of its CPU.
//!
//! A `LOST` record counts records of all kinds, is written only when there is room again, and does
//! not say when they were lost. But the CPU clock ticks at a fixed period, even on idle CPUs, so
//! the time between the sample before and the sample after shows how many are missing between them:
//! as many as periods fit, and never more than records were lost. An event with a varying period is
//! measured by its own mean interval instead.
//!
//! Times of one ring may go backwards by a little: an interrupt between taking the time of a record
//! and reserving room for it writes its own, younger record first. The meter never goes backwards:
//! a sample older than its latest time counts as taken at that time. So each gap starts where the
//! last one ended, or later, and none ends before it starts.
//!
//! Pure arithmetic on times, one [`LossMeter`] for each ring.

use host::time::MonotonicTime;
use std::time::Duration;

/// Samples missed between two times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LossGap {
    /// Time of the last sample before.
    pub from: MonotonicTime,
    /// Time of the first sample after, or up to when it is known so far.
    pub until: MonotonicTime,
    /// Samples that did not arrive, those of the idle loop included.
    pub samples: u64,
    /// Weight of one of them.
    pub period: u64,
}

impl LossGap {
    /// Divides it at `at` in proportion to time: the part before, and the rest. The sum stays the
    /// same. A gap that ends before it starts counts as one without length.
    pub fn split(self, at: MonotonicTime) -> (LossGap, LossGap) {
        let until = self.until.max(self.from);
        let at = at.max(self.from).min(until);
        let whole = u128::from(until.0 - self.from.0);
        let part = u128::from(at.0 - self.from.0);
        // A gap without length lies before its own start as much as after: all of it goes after.
        let share = (u128::from(self.samples) * part).checked_div(whole);
        let samples = share.unwrap_or(0) as u64;
        let before = LossGap {
            until: at,
            samples,
            ..self
        };
        let after = LossGap {
            from: at,
            until,
            samples: self.samples - samples,
            ..self
        };
        (before, after)
    }
}

/// How far apart samples of an event are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleSpacing {
    /// Always this many nanoseconds, busy or idle.
    Fixed(u64),
    /// About this many nanoseconds while the CPU is busy.
    Varying(u64),
    /// Whenever something happens: every lost record is a sample, and no time says more. For rings
    /// that hold nothing but samples.
    Counted,
    /// There are none: no lost record is a sample.
    Never,
}

/// Distances longer than this many aimed-at ones say that the CPU was idle, not that it samples
/// slowly.
const IDLE_DISTANCES: u64 = 4;

/// Weight of the newest distance in the mean: one part of this many.
const MEAN_PARTS: u64 = 8;

/// Follows the samples of one ring.
#[derive(Clone, Copy, Debug)]
pub struct LossMeter {
    pace: SampleSpacing,
    /// Nanoseconds from sample to sample: the pace's, or the recent mean.
    distance: u64,
    /// Weight of a sample, the recent mean.
    period: u64,
    /// The last sample, or the start.
    last: MonotonicTime,
    /// Records lost since then.
    lost: u64,
    /// Since then something happened that lets samples go without a count.
    uncounted: bool,
    /// Samples reported as lost since then, and until when.
    told: u64,
    told_until: MonotonicTime,
}

impl LossMeter {
    /// For a ring that takes samples from `start` on.
    pub fn new(pace: SampleSpacing, start: MonotonicTime) -> LossMeter {
        let (distance, period) = match pace {
            SampleSpacing::Fixed(distance) => (distance, distance),
            // Not in nanoseconds: the first sample sets it.
            SampleSpacing::Varying(distance) => (distance, 0),
            SampleSpacing::Counted | SampleSpacing::Never => (1, 0),
        };
        LossMeter {
            pace,
            distance: distance.max(1),
            period,
            last: start,
            lost: 0,
            uncounted: false,
            told: 0,
            told_until: start,
        }
    }

    /// Number of samples that an event with a fixed period would have taken from `since` to
    /// `until`, or to the start of this meter, which has seen nothing yet.
    pub fn missed_between(
        &self,
        since: MonotonicTime,
        until: Option<MonotonicTime>,
    ) -> Option<LossGap> {
        let until = until.unwrap_or(self.last);
        let samples = until.0.saturating_sub(since.0) / self.distance;
        let fixed = matches!(self.pace, SampleSpacing::Fixed(_));
        (fixed && samples > 0).then_some(LossGap {
            from: since,
            until,
            samples,
            period: self.period,
        })
    }

    /// True when samples are overdue at `time`: a clock that ticks always has not for two periods.
    pub fn overdue(&self, time: MonotonicTime) -> bool {
        matches!(self.pace, SampleSpacing::Fixed(distance) if time.since(self.last) > Duration::from_nanos(distance.saturating_mul(2)))
    }

    /// True when records were lost since the last sample.
    pub fn is_losing(&self) -> bool {
        self.lost > 0 || self.uncounted
    }

    /// Records of any kind were lost.
    pub fn lost(&mut self, records: u64) {
        self.lost = self.lost.saturating_add(records);
    }

    /// Samples may be missing that nobody counted: the event was throttled, or a part of the ring
    /// was unreadable. Only the time shows how many.
    pub fn uncounted(&mut self) {
        self.uncounted = true;
    }

    /// A sample came: what is missing between it and the one before.
    pub fn sample(&mut self, time: MonotonicTime, period: u64) -> Option<LossGap> {
        let time = time.max(self.last);
        let distance = time.0 - self.last.0;
        let gap = if self.is_losing() {
            let places = distance.saturating_add(self.distance / 2) / self.distance;
            let missing = places.saturating_sub(1);
            if self.period == 0 {
                self.period = period;
            }
            self.tell(missing, time)
        } else {
            self.learn(distance, period);
            None
        };
        self.last = time;
        self.told_until = self.told_until.max(time);
        self.lost = 0;
        self.uncounted = false;
        self.told = 0;
        gap
    }

    /// Returns what is missing so far, once all records up to `time` have been seen. Half a period
    /// is left for a sample that is on its way.
    pub fn up_to(&mut self, time: MonotonicTime) -> Option<LossGap> {
        if !self.is_losing() {
            return None;
        }
        let distance = time.0.saturating_sub(self.last.0);
        self.tell(
            distance.saturating_sub(self.distance / 2) / self.distance,
            time,
        )
    }

    fn tell(&mut self, missing: u64, until: MonotonicTime) -> Option<LossGap> {
        let missing = match self.pace {
            SampleSpacing::Counted => self.lost,
            SampleSpacing::Never => 0,
            _ if self.uncounted => missing,
            _ => missing.min(self.lost),
        };
        let samples = missing.saturating_sub(self.told);
        if samples == 0 {
            return None;
        }
        // The reported loss may extend beyond a sample that was delayed for long.
        let until = until.max(self.told_until);
        let gap = LossGap {
            from: self.told_until,
            until,
            samples,
            period: self.period,
        };
        self.told = missing;
        self.told_until = until;
        Some(gap)
    }

    fn learn(&mut self, distance: u64, period: u64) {
        let mean = |mean: u64, new: u64| {
            let sum = u128::from(mean) * u128::from(MEAN_PARTS - 1) + u128::from(new);
            (sum / u128::from(MEAN_PARTS)) as u64
        };
        match self.pace {
            SampleSpacing::Fixed(_) => self.period = period,
            SampleSpacing::Never => {}
            SampleSpacing::Counted => {
                self.period = match self.period {
                    0 => period,
                    known => mean(known, period),
                };
            }
            SampleSpacing::Varying(aim) => {
                self.distance = mean(
                    self.distance,
                    distance.min(aim.saturating_mul(IDLE_DISTANCES)),
                )
                .max(1);
                self.period = match self.period {
                    0 => period,
                    known => mean(known, period),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PERIOD: u64 = 10_000_000;

    fn meter() -> LossMeter {
        let mut meter = LossMeter::new(SampleSpacing::Fixed(PERIOD), MonotonicTime(0));
        assert_eq!(meter.sample(tick(1), PERIOD), None);
        meter
    }

    fn tick(number: u64) -> MonotonicTime {
        MonotonicTime(number * PERIOD)
    }

    #[test]
    fn as_many_samples_are_missing_as_periods_fit() {
        let mut meter = meter();
        meter.lost(1000);
        let gap = meter.sample(tick(7), PERIOD).expect("five are missing");
        assert_eq!((gap.from, gap.until), (tick(1), tick(7)));
        assert_eq!((gap.samples, gap.period), (5, PERIOD));
    }

    #[test]
    fn no_more_samples_are_missing_than_records_were_lost() {
        // A hypervisor took the CPU away for the rest of the gap: nothing was sampled then.
        let mut meter = meter();
        meter.lost(2);
        assert_eq!(
            meter.sample(tick(100), PERIOD).map(|gap| gap.samples),
            Some(2)
        );
    }

    #[test]
    fn lost_records_between_two_samples_in_time_were_no_samples() {
        let mut meter = meter();
        meter.lost(40);
        assert_eq!(meter.sample(tick(2), PERIOD), None);
    }

    #[test]
    fn a_gap_without_a_lost_record_is_no_loss() {
        assert_eq!(meter().sample(tick(50), PERIOD), None);
    }

    #[test]
    fn what_a_throttled_event_did_not_take_is_lost() {
        let mut meter = meter();
        meter.uncounted();
        assert_eq!(
            meter.sample(tick(5), PERIOD).map(|gap| gap.samples),
            Some(3)
        );
    }

    #[test]
    fn a_loss_that_goes_on_is_told_as_far_as_it_is_known_and_not_twice() {
        let mut meter = meter();
        meter.lost(500);
        let first = meter
            .up_to(MonotonicTime(tick(4).0 + PERIOD * 3 / 4))
            .expect("known");
        assert_eq!((first.from, first.samples), (tick(1), 3));
        assert_eq!(meter.up_to(MonotonicTime(tick(4).0 + PERIOD * 4 / 5)), None);
        let second = meter.sample(tick(7), PERIOD).expect("the rest");
        assert_eq!((second.from, second.samples), (first.until, 2));
    }

    #[test]
    fn a_sample_older_than_what_was_told_ends_no_gap_before_it_starts() {
        let mut meter = LossMeter::new(SampleSpacing::Counted, MonotonicTime(0));
        assert_eq!(meter.sample(tick(4), 1), None);
        meter.lost(3);
        // An interrupt's record, written before the one it came into.
        let gap = meter.sample(tick(3), 1).expect("all three");
        assert_eq!((gap.from, gap.until, gap.samples), (tick(4), tick(4), 3));
        let (before, after) = gap.split(tick(2));
        assert_eq!((before.samples, after.samples), (0, 3));
    }

    #[test]
    fn an_old_time_does_not_stretch_the_next_gap() {
        let mut meter = meter();
        assert_eq!(meter.sample(tick(20), PERIOD), None);
        assert_eq!(meter.sample(MonotonicTime(0), PERIOD), None);
        meter.uncounted();
        let gap = meter.sample(tick(23), PERIOD).expect("two are missing");
        assert_eq!((gap.from, gap.until, gap.samples), (tick(20), tick(23), 2));
    }

    #[test]
    fn an_event_with_a_varying_period_is_measured_by_its_own_distance() {
        let mut meter = LossMeter::new(SampleSpacing::Varying(PERIOD), MonotonicTime(0));
        for number in 1..100 {
            assert_eq!(meter.sample(MonotonicTime(number * 2 * PERIOD), 3000), None);
        }
        meter.lost(100);
        let gap = meter
            .sample(MonotonicTime(109 * 2 * PERIOD), 3000)
            .expect("missing");
        assert!((8..=9).contains(&gap.samples), "{gap:?}");
        assert!((2990..=3010).contains(&gap.period), "{gap:?}");
    }

    #[test]
    fn of_an_event_that_just_happens_every_lost_record_is_a_sample() {
        let mut meter = LossMeter::new(SampleSpacing::Counted, MonotonicTime(0));
        assert_eq!(meter.sample(MonotonicTime(100), 1), None);
        meter.lost(40);
        let first = meter.up_to(MonotonicTime(101)).expect("known at once");
        assert_eq!(
            (first.from, first.until, first.samples),
            (MonotonicTime(100), MonotonicTime(101), 40)
        );
        meter.lost(2);
        let second = meter.sample(MonotonicTime(105), 1).expect("the rest");
        assert_eq!(
            (second.from, second.samples, second.period),
            (MonotonicTime(101), 2, 1)
        );
        assert!(!meter.overdue(MonotonicTime(u64::MAX)));
        meter.uncounted();
        assert_eq!(
            meter.sample(MonotonicTime(200), 1),
            None,
            "no time says how many"
        );
    }

    proptest! {
        /// Ticks that are lost or arrive, with jitter, looked at in between whenever.
        #[test]
        fn every_lost_tick_is_told_once(
            ticks in proptest::collection::vec((any::<bool>(), 0..PERIOD / 5, any::<bool>()), 1..200)
        ) {
            let mut meter = meter();
            let (mut told, mut lost, mut told_until) = (0, 0, MonotonicTime(0));
            let mut gaps = Vec::new();
            let mut unwritten = 0;
            for (number, &(arrives, late, look)) in ticks.iter().enumerate() {
                let time = MonotonicTime(tick(number as u64 + 2).0 + late);
                if arrives {
                    meter.lost(unwritten);
                    unwritten = 0;
                    gaps.extend(meter.sample(time, PERIOD));
                } else {
                    lost += 1;
                    unwritten += 1;
                }
                if look {
                    meter.lost(unwritten);
                    unwritten = 0;
                    gaps.extend(meter.up_to(MonotonicTime(tick(number as u64 + 2).0 + PERIOD / 2)));
                }
            }
            meter.lost(unwritten);
            gaps.extend(meter.sample(tick(ticks.len() as u64 + 2), PERIOD));
            for gap in gaps {
                prop_assert!(told_until <= gap.from && gap.from < gap.until, "{:?}", gap);
                told_until = gap.until;
                told += gap.samples;
            }
            prop_assert_eq!(told, lost);
        }

        /// Anything in any order, as no clock would say it.
        #[test]
        fn times_that_go_backwards_make_no_gap_that_does(
            pace in prop_oneof![
                Just(SampleSpacing::Fixed(PERIOD)), Just(SampleSpacing::Varying(PERIOD)), Just(SampleSpacing::Counted)
            ],
            events in proptest::collection::vec(
                (0..5u8, prop_oneof![0..100 * PERIOD, any::<u64>()], 0..50u64), 1..100),
            at in prop_oneof![0..100 * PERIOD, any::<u64>()],
        ) {
            let mut meter = LossMeter::new(pace, MonotonicTime(10 * PERIOD));
            let (mut told_until, mut lost, mut told, mut uncounted) = (MonotonicTime(0), 0, 0, false);
            for (what, time, number) in events {
                let gap = match what {
                    0 => { meter.lost(number); lost += number; None }
                    1 => { meter.uncounted(); uncounted = true; None }
                    2 => meter.up_to(MonotonicTime(time)),
                    _ => meter.sample(MonotonicTime(time), number),
                };
                let Some(gap) = gap else { continue };
                prop_assert!(told_until <= gap.from && gap.from <= gap.until, "{gap:?}");
                told_until = gap.until;
                told += u128::from(gap.samples);
                let (before, after) = gap.split(MonotonicTime(at));
                prop_assert!(before.until == after.from && gap.from <= after.from);
                prop_assert_eq!(before.samples + after.samples, gap.samples);
            }
            prop_assert!(uncounted || told <= u128::from(lost), "{told} of {lost}");
        }

        #[test]
        fn splitting_keeps_the_total(
            from in 0u64..1000, len in 0u64..1000, samples in 0u64..10_000, at in 0u64..3000
        ) {
            let gap = LossGap { from: MonotonicTime(from), until: MonotonicTime(from + len), samples, period: 1 };
            let (before, after) = gap.split(MonotonicTime(at));
            prop_assert_eq!(before.samples + after.samples, samples);
            prop_assert!(before.until == after.from && gap.from <= after.from);
            prop_assert!(after.until == gap.until && before.until <= gap.until);
        }
    }
}
