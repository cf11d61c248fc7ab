//! The part of `status` about records lost in the last minutes: how many, and why. Pure arithmetic.

use super::advice::{RING, RUN, SIDE_BAND, STALLED, THROTTLE};
use super::coverage::LENGTH_MIN;
use host::health::{Degradation, Severity};
use host::time::MonotonicTime;
use profile::Quality;
use sampler::REPAIR_INTERVAL;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How far back [`losses`] looks: long enough that who comes because of an alert still sees it,
/// short enough that one lost record does not call a machine degraded until the next restart.
const LOSSES_SPAN: Duration = Duration::from_secs(300);

/// How long a delay is remembered: it is known at once, but the records lost by it only once their
/// batch has been named. If it is too short, the last seconds of a loss are reported without their
/// delay.
const NAMED_WITHIN: Duration = Duration::from_secs(60);

/// Shortest time between two readings that are kept.
const READINGS_APART: Duration = Duration::from_millis(9_500);

/// Readings kept at most, so that more of them than are wanted cannot grow the list: the span, and
/// twice what is needed to look past its start.
const READINGS_MAX: usize = 40;

/// Losses of the rings: since the start, or in a time span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
struct Missed {
    lost: u64,
    lost_late: u64,
    throttled: u64,
    stalls: Stalls,
}

/// What the sampler counted about full rings since the start, besides the records of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct Stalls {
    /// Times such a ring was flushed.
    pub(super) flushed: u64,
    /// Records lost in them.
    pub(super) lost: u64,
    /// Records of the side band lost in rings of its own, which stood still or were too small.
    pub(super) side_band: u64,
}

impl Stalls {
    /// The sampler's counts so far.
    pub(super) fn of(sampler: &sampler::SamplerHandle) -> Stalls {
        Stalls {
            flushed: sampler.rings_flushed.load(Ordering::Relaxed),
            lost: sampler.lost_stalled.load(Ordering::Relaxed),
            side_band: sampler.lost_side_band.load(Ordering::Relaxed),
        }
    }

    /// Records lost in rings that were flushed. One that is full of records of this moment stands
    /// still too, until the next drain: it is too small, and none was flushed for it.
    fn lost_in_flushed(self) -> u64 {
        match self.flushed {
            0 => 0,
            _ => self.lost,
        }
    }

    fn since(self, before: Stalls) -> Stalls {
        Stalls {
            flushed: self.flushed.saturating_sub(before.flushed),
            lost: self.lost.saturating_sub(before.lost),
            side_band: self.side_band.saturating_sub(before.side_band),
        }
    }
}

impl Missed {
    fn of(quality: &Quality, stalls: Stalls) -> Missed {
        Missed {
            lost: quality.lost,
            lost_late: quality.lost_late,
            throttled: quality.throttled,
            stalls,
        }
    }

    fn since(self, before: Missed) -> Missed {
        Missed {
            lost: self.lost.saturating_sub(before.lost),
            lost_late: self.lost_late.saturating_sub(before.lost_late),
            throttled: self.throttled.saturating_sub(before.throttled),
            stalls: self.stalls.since(before.stalls),
        }
    }
}

/// Counters since the start, remembered with their times, so that losses go away again. Bounded;
/// read by whoever asks for the status, fed every ten seconds by the main thread.
#[derive(Debug, Default)]
pub struct RecentLosses {
    /// Time, totals and longest delay since the reading before; oldest first.
    readings: VecDeque<(MonotonicTime, Missed, Duration)>,
    /// When flushed rings were last said, and how often rings had been flushed until then.
    flushes_said: Option<(MonotonicTime, u64)>,
}

impl RecentLosses {
    /// Processes a reading: totals since the start. `take_delay` returns the longest delay since
    /// its last call; it is called only if the reading is kept.
    pub(super) fn note(
        &mut self,
        now: MonotonicTime,
        (quality, stalls): (&Quality, Stalls),
        take_delay: impl FnOnce() -> Duration,
    ) {
        let newest = self.readings.back();
        if newest.is_some_and(|&(at, ..)| now.since(at) < READINGS_APART) {
            return;
        }
        // The newest reading before the span is what later ones are compared with.
        let span = LOSSES_SPAN + NAMED_WITHIN;
        let past = |reading: Option<&(MonotonicTime, Missed, Duration)>| {
            reading.is_some_and(|&(at, ..)| now.since(at) >= span)
        };
        while past(self.readings.get(1)) || self.readings.len() == READINGS_MAX {
            self.readings.pop_front();
        }
        let reading = (now, Missed::of(quality, stalls), take_delay());
        self.readings.push_back(reading);
    }

    /// How often rings have been flushed since that was last said, when there is something to say
    /// of it in the log: at once, and again only after [`LOSSES_SPAN`], for a ring that stalls
    /// again and again does so every few seconds.
    pub(super) fn flushes(&mut self, now: MonotonicTime, stalls: Stalls) -> Option<u64> {
        let before = match self.flushes_said {
            Some((said, _)) if now.since(said) < LOSSES_SPAN => return None,
            Some((_, flushed)) => flushed,
            None => 0,
        };
        let more = stalls
            .flushed
            .checked_sub(before)
            .filter(|&more| more > 0)?;
        self.flushes_said = Some((now, stalls.flushed));
        Some(more)
    }

    /// Records lost in rings that stood still in the time before `now` that may belong to windows
    /// of the last minute: the sampler counts them at once, a window has its losses when it has
    /// been named.
    pub(super) fn lost_stalled(&self, now: MonotonicTime, stalls: Stalls) -> u64 {
        let before = self.stalls_before(now, LENGTH_MIN + NAMED_WITHIN);
        stalls.since(before).lost_in_flushed()
    }

    /// Stalls at the latest reading that is at least this old.
    fn stalls_before(&self, now: MonotonicTime, span: Duration) -> Stalls {
        let before = |&&(at, ..): &&(MonotonicTime, Missed, Duration)| now.since(at) >= span;
        let base = self.readings.iter().rev().find(before);
        base.map_or(Stalls::default(), |(_, missed, _)| missed.stalls)
    }

    /// Losses in the span before `now`, and the longest delay. `counted`: totals since the start;
    /// `delay`: the longest delay since the last reading.
    fn recent(
        &self,
        now: MonotonicTime,
        (quality, stalls): (&Quality, Stalls),
        delay: Duration,
    ) -> (Missed, Duration) {
        let before = |&&(at, ..): &&(MonotonicTime, Missed, Duration)| now.since(at) >= LOSSES_SPAN;
        // Without a reading that old the daemon has not run for longer: the start counts.
        let base = self.readings.iter().rev().find(before);
        let base = base.map_or(Missed::default(), |&(_, missed, _)| missed);
        let span = LOSSES_SPAN + NAMED_WITHIN;
        let delays = self.readings.iter().rev();
        let delays = delays.take_while(|&&(at, ..)| now.since(at) < span);
        let longest = delays.map(|&(.., longest)| longest).max();
        let missed = Missed {
            // As with the delay: known before the records that were lost by it.
            stalls: stalls.since(self.stalls_before(now, span)),
            ..Missed::of(quality, stalls).since(base)
        };
        (missed, delay.max(longest.unwrap_or_default()))
    }

    /// Degradations for losses and throttling in the last minutes, each with the remedy for its
    /// cause. `quality`: totals since the start; `delay`: the longest time since the last reading
    /// during which the daemon did not empty rings that then had lost records.
    pub(super) fn degradations(
        &self,
        now: MonotonicTime,
        counted: (&Quality, Stalls),
        delay: Duration,
    ) -> Vec<Degradation> {
        let (missed, longest) = self.recent(now, counted, delay);
        losses(missed, longest)
    }
}

fn losses(missed: Missed, longest: Duration) -> Vec<Degradation> {
    let mut list = Vec::new();
    let mut say = |id, message: String, remedy| {
        let minutes = LOSSES_SPAN.as_secs() / 60;
        let message = format!("in the last {minutes} minutes {message}");
        list.push(Degradation::new(id, Severity::Warning, message, remedy));
    };
    let late = missed.lost_late.min(missed.lost);
    let flushed = missed.stalls.flushed;
    let stalled = missed.stalls.lost_in_flushed().min(missed.lost - late);
    let in_time = missed.lost - late - stalled;
    if in_time > 0 {
        let message = format!(
            "{in_time} records found no room in a ring buffer although it was read in time: it is \
             too small"
        );
        say("records_lost", message, RING);
    }
    if flushed > 0 {
        let message = format!(
            "a ring buffer was full and was not read; it was flushed {flushed} times, and {stalled} \
             records were lost"
        );
        say("ring_stalled", message, STALLED);
    }
    let side_band = missed.stalls.side_band;
    if side_band > 0 {
        let message = format!(
            "{side_band} records of processes, mappings and names were lost, because they arrived \
             faster than the daemon reads, or while it did not run. No sample was lost by it; \
             programs that started, mapped code or were renamed meanwhile may lack names or stacks \
             for up to {} s, until the daemon reads /proc again",
            REPAIR_INTERVAL.as_secs()
        );
        say("side_band_lost", message, SIDE_BAND);
    }
    if late > 0 {
        let message = format!(
            "{late} records found no room in a ring buffer while the daemon was stopped, frozen or got \
             no CPU, for {:.1} s at the longest",
            longest.as_secs_f64()
        );
        say("sampler_late", message, RUN);
    }
    if missed.throttled > 0 {
        let message = format!(
            "the kernel paused sampling {} times because samples took too long",
            missed.throttled
        );
        say("throttled", message, THROTTLE);
    }
    list
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::agent) const CLEAN: Quality = Quality {
        taken: 0,
        idle: 0,
        lost: 0,
        throttled: 0,
        folded: 0,
        truncated: 0,
        depth_limit: 0,
        unnamed: 0,
        malformed: 0,
        lost_samples: 0,
        reduced: 0,
        lost_late: 0,
    };

    const DELAY: Duration = Duration::from_millis(9_960);

    fn lost(lost: u64, lost_late: u64, throttled: u64) -> Quality {
        Quality {
            lost,
            lost_late,
            throttled,
            ..CLEAN
        }
    }

    fn said(recent: &RecentLosses, at_s: u64, quality: &Quality) -> Vec<Degradation> {
        let counted = (quality, Stalls::default());
        recent.degradations(MonotonicTime(at_s * 1_000_000_000), counted, Duration::ZERO)
    }

    fn ids(found: &[Degradation]) -> Vec<&'static str> {
        found.iter().map(|found| found.id).collect()
    }

    #[track_caller]
    fn check_losses(quality: &Quality, expected: &[&str]) {
        let found = said(&RecentLosses::default(), 1_000, quality);
        assert_eq!(ids(&found), expected);
    }

    #[test]
    fn records_lost_by_a_late_daemon_do_not_blame_the_rings() {
        check_losses(&lost(0, 0, 0), &[]);
        check_losses(&lost(5, 0, 0), &["records_lost"]);
        check_losses(&lost(5, 5, 0), &["sampler_late"]);
        check_losses(&lost(5, 2, 0), &["records_lost", "sampler_late"]);
        let recent = RecentLosses::default();
        let found =
            &recent.degradations(MonotonicTime(1), (&lost(5, 5, 0), Stalls::default()), DELAY)[0];
        assert!(found.message.contains("for 10.0 s"), "{}", found.message);
        assert!(!found.remedy.contains("ring_kib"), "{}", found.remedy);
    }

    /// Readings every ten seconds up to `until_s`; at 1000 s `what` was missed, and never again.
    fn read_until(until_s: u64, what: &Quality) -> RecentLosses {
        let mut recent = RecentLosses::default();
        for at_s in (10..=until_s).step_by(10) {
            let now = MonotonicTime(at_s * 1_000_000_000);
            let (quality, delay) = match at_s {
                ..1000 => (CLEAN, Duration::ZERO),
                // The delay is known a batch before its losses.
                1000 => (CLEAN, DELAY),
                _ => (*what, Duration::ZERO),
            };
            recent.note(now, (&quality, Stalls::default()), || delay);
        }
        recent
    }

    #[test]
    fn losses_are_told_for_five_minutes_and_then_go_away() {
        let what = lost(7, 3, 2);
        let all = ["records_lost", "sampler_late", "throttled"];
        for at_s in [1_010, 1_290] {
            let found = said(&read_until(at_s, &what), at_s, &what);
            assert_eq!(ids(&found), all, "{at_s} s");
            let message = &found[1].message;
            let start = "in the last 5 minutes 3 records";
            assert!(message.starts_with(start), "{message}");
            assert!(message.ends_with("for 10.0 s at the longest"), "{message}");
        }
        for at_s in [1_320, 5_000] {
            assert_eq!(
                ids(&said(&read_until(at_s, &what), at_s, &what)),
                [""; 0],
                "{at_s} s"
            );
        }
    }

    #[test]
    fn what_the_side_band_lost_is_told_apart_from_samples() {
        let mut recent = RecentLosses::default();
        recent.note(MonotonicTime(0), (&CLEAN, Stalls::default()), || {
            Duration::ZERO
        });
        let stalls = Stalls {
            side_band: 40_000,
            ..Stalls::default()
        };
        let found = recent.degradations(MonotonicTime(1), (&CLEAN, stalls), Duration::ZERO);
        assert_eq!(ids(&found), ["side_band_lost"]);
        let message = &found[0].message;
        assert!(message.contains("40000 records"), "{message}");
        assert!(message.contains("No sample was lost by it"), "{message}");
    }

    #[test]
    fn records_lost_in_a_ring_that_stood_still_do_not_blame_its_size() {
        let stalls = |flushed, lost| Stalls {
            flushed,
            lost,
            side_band: 0,
        };
        let check = |quality: Quality, stalls, expected: &[&str]| {
            let recent = RecentLosses::default();
            let found = recent.degradations(MonotonicTime(1), (&quality, stalls), Duration::ZERO);
            assert_eq!(ids(&found), expected, "{found:?}");
            for said in found.iter().filter(|said| said.id == "ring_stalled") {
                assert!(!said.remedy.contains("ring_kib"), "{}", said.remedy);
                assert!(!said.remedy.contains("agent-ctl"), "{}", said.remedy);
            }
        };
        check(lost(5, 0, 0), stalls(1, 5), &["ring_stalled"]);
        check(lost(5, 0, 0), stalls(0, 5), &["records_lost"]);
        check(
            lost(5, 0, 0),
            stalls(1, 3),
            &["records_lost", "ring_stalled"],
        );
        check(
            lost(5, 3, 0),
            stalls(1, 5),
            &["ring_stalled", "sampler_late"],
        );
        // The sampler reports a stall before the window with its losses is named.
        check(CLEAN, stalls(1, 5), &["ring_stalled"]);
    }

    #[test]
    fn a_stall_is_the_cause_of_low_coverage_while_its_losses_are_in_the_minute() {
        let mut recent = RecentLosses::default();
        let at = |s: u64| MonotonicTime(s * 1_000_000_000);
        for s in (0..=400).step_by(10) {
            let stalls = match s {
                ..200 => Stalls::default(),
                _ => Stalls {
                    flushed: 1,
                    lost: 900,
                    side_band: 0,
                },
            };
            recent.note(at(s), (&CLEAN, stalls), || Duration::ZERO);
            let expected = if (200..320).contains(&s) { 900 } else { 0 };
            assert_eq!(recent.lost_stalled(at(s), stalls), expected, "{s} s");
        }
    }

    #[test]
    fn flushed_rings_are_said_once_in_a_while() {
        let mut recent = RecentLosses::default();
        let mut said = Vec::new();
        for s in (0..900).step_by(10) {
            // From 100 s on a ring is flushed every ten seconds.
            let flushed = (s / 10u64).saturating_sub(9);
            let stalls = Stalls {
                flushed,
                ..Stalls::default()
            };
            let now = MonotonicTime(s * 1_000_000_000);
            if let Some(more) = recent.flushes(now, stalls) {
                said.push((s, more));
            }
            recent.note(now, (&CLEAN, stalls), || Duration::ZERO);
        }
        // None is left out, and the last of them are still to be said.
        assert_eq!(said, [(100, 1), (400, 30), (700, 30)]);
    }

    #[test]
    fn what_is_lost_anew_is_counted_alone() {
        let recent = read_until(2_000, &lost(7, 0, 0));
        let found = said(&recent, 2_005, &lost(9, 0, 0));
        assert_eq!(ids(&found), ["records_lost"]);
        let message = &found[0].message;
        assert!(message.contains(" 2 records "), "{message}");
    }

    #[test]
    fn readings_do_not_grow_however_often_they_are_taken() {
        let mut recent = RecentLosses::default();
        for at_ms in 0..1_000_000 {
            let counted = (&CLEAN, Stalls::default());
            recent.note(MonotonicTime(at_ms * 1_000_000), counted, || Duration::ZERO);
        }
        assert!(recent.readings.len() <= READINGS_MAX);
    }
}
