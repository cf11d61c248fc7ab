//! Watches a running capture: its target may go away and come back, and its event may occur more
//! often than the limit allows. Reacts where it can, and reports it at the end.
//!
//! Runs on the capture's own thread, which blocks on small reads of cgroupfs and /proc.

use super::backend::{Followed, OverloadPolicy, Slowed};
use super::table::CaptureTable;
use super::target::{Gone, Presence};
use host::ids::CaptureId;
use host::time::MonotonicTime;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the one cgroup is looked at that events are bound to: what runs in a new one before it
/// is seen is missing. A look takes a few microseconds.
pub(super) const FOLLOW_INTERVAL: Duration = Duration::from_millis(50);

/// Least time between two cgroups that a capture goes on with: each opens an event on each CPU.
/// What is made again more often is seen in parts.
const FOLLOW_PAUSE: Duration = Duration::from_millis(250);

/// How often a capture looks whether anything of its target is there.
const PRESENCE_INTERVAL: Duration = Duration::from_secs(1);

/// Time over which the rate of an event is measured.
const RATE_SPAN: Duration = Duration::from_secs(1);

/// Longest pause between two tries to slow down: each opens events.
const SLOW_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Most notices on what a change of rings brought: of a cgroup made again all the time there would
/// be no end.
const NOTICES_MAX: usize = 8;

/// See the module.
pub(super) struct CaptureMonitor {
    id: CaptureId,
    started_at: MonotonicTime,
    presence: Presence,
    /// Its events may be bound to one cgroup.
    bound: bool,
    /// When to look at that again, and at the presence of the target.
    follow_at: MonotonicTime,
    presence_at: MonotonicTime,
    /// Since when nothing of the target is there.
    gone: Option<MonotonicTime>,
    returned: u32,
    away: Duration,
    /// Number of new cgroups that the capture followed, and the CPU time they had used before, if
    /// the kernel reports it for each.
    followed: u32,
    unseen: Option<Duration>,
    /// Why the newest one is not sampled.
    unfollowed: Option<String>,
    excess: OverloadPolicy,
    /// Its event occurs so often that it has to end.
    excessive: bool,
    /// Samples up to a moment: less than none where that was of rings that others had opened later.
    counted: (MonotonicTime, i128),
    /// Over which time they are counted next.
    span: Duration,
    /// Why it was not slowed down.
    unslowed: Option<String>,
    notices: Vec<String>,
}

impl CaptureMonitor {
    /// Starts to watch a capture that started when its events had brought so many samples.
    pub fn new(
        id: CaptureId,
        counted: (MonotonicTime, u64),
        presence: Presence,
        excess: OverloadPolicy,
    ) -> CaptureMonitor {
        let (started_at, _) = counted;
        CaptureMonitor {
            id,
            started_at,
            presence,
            bound: true,
            follow_at: started_at,
            presence_at: started_at.plus(PRESENCE_INTERVAL),
            gone: None,
            returned: 0,
            away: Duration::ZERO,
            followed: 0,
            unseen: Some(Duration::ZERO),
            unfollowed: None,
            excess,
            excessive: false,
            counted: (started_at, counted.1.into()),
            span: RATE_SPAN,
            unslowed: None,
            notices: Vec::new(),
        }
    }

    /// When it is to look again at the latest.
    pub fn next(&self) -> MonotonicTime {
        match self.bound {
            true => self.follow_at.min(self.presence_at),
            false => self.presence_at,
        }
    }

    /// Looks at the target. False: all its processes have ended.
    pub fn look(&mut self, now: MonotonicTime, captures: &CaptureTable) -> bool {
        if self.bound && now >= self.follow_at {
            self.follow(now, captures);
        }
        if now < self.presence_at {
            return true;
        }
        self.presence_at = now.plus(PRESENCE_INTERVAL);
        let gone = self.presence.gone();
        if gone == Some(Gone::Processes) {
            return false;
        }
        // For a capture bound to one cgroup, `follow` above knows more.
        if !self.bound {
            self.note(gone == Some(Gone::Cgroups), now);
        }
        true
    }

    fn follow(&mut self, now: MonotonicTime, captures: &CaptureTable) {
        let mut pause = FOLLOW_INTERVAL;
        let counts = &captures.counts;
        let seen = captures.backend.seen(self.id);
        match captures.backend.follow(self.id) {
            Ok(Followed::Unbound) => self.bound = false,
            Ok(Followed::Same) => self.note(false, now),
            Ok(Followed::Gone) => self.note(true, now),
            Ok(Followed::Again { unseen, notices }) => {
                self.note(false, now);
                self.unfollowed = None;
                // The new rings count from their own start.
                let (_, before) = &mut self.counted;
                *before += i128::from(captures.backend.seen(self.id)) - i128::from(seen);
                self.followed += 1;
                counts.followed.fetch_add(1, Ordering::Relaxed);
                self.unseen = self.unseen.zip(unseen).map(|(all, more)| all + more);
                self.add(notices);
                pause = FOLLOW_PAUSE;
            }
            Err(status) => {
                self.note(false, now);
                self.unfollowed = Some(status.message().to_owned());
                pause = FOLLOW_PAUSE;
            }
        }
        self.follow_at = now.plus(pause);
    }

    fn note(&mut self, gone: bool, now: MonotonicTime) {
        if gone {
            self.gone.get_or_insert(now);
        } else if let Some(since) = self.gone.take() {
            self.returned += 1;
            self.away += now.since(since);
        }
    }

    fn add(&mut self, notices: Vec<String>) {
        for notice in notices {
            if self.notices.len() < NOTICES_MAX && !self.notices.contains(&notice) {
                self.notices.push(notice);
            }
        }
    }

    /// Looks how often the event happens. Returns the period that is in force from now on, where
    /// that was too often.
    pub fn count(&mut self, now: MonotonicTime, captures: &CaptureTable) -> Option<u64> {
        let (since, before) = self.counted;
        let span = now.since(since);
        let (OverloadPolicy::Slows(most) | OverloadPolicy::Ends(most)) = self.excess else {
            return None;
        };
        if span < self.span {
            return None;
        }
        let samples = i128::from(captures.backend.seen(self.id));
        self.counted = (now, samples);
        let a_second = (samples - before).max(0) * 1_000_000_000 / span.as_nanos() as i128;
        if a_second <= i128::from(most) {
            return None;
        }
        if let OverloadPolicy::Ends(_) = self.excess {
            self.excess = OverloadPolicy::Bounded;
            self.excessive = true;
            captures.counts.excessive.fetch_add(1, Ordering::Relaxed);
            self.add(vec![format!(
                "the capture ended early: {a_second} context switches and wake-ups a second exceed \
                 the {most} that `captures.switches_max` allows on all CPUs"
            )]);
            return None;
        }
        let found =
            format!("the event brought {a_second} samples a second, more than {most} on all CPUs");
        // Half of what is allowed: it may happen more often still.
        let times = (a_second * 2 / i128::from(most.max(1))).clamp(2, i128::from(u64::MAX)) as u64;
        match captures.backend.slow_down(self.id, times) {
            Ok(Some(Slowed { period, notices })) => {
                self.unslowed = None;
                self.counted = (now, captures.backend.seen(self.id).into());
                captures.counts.slowed.fetch_add(1, Ordering::Relaxed);
                let after = now.since(self.started_at).as_secs_f64();
                let notice = format!(
                    "{found}: from {after:.1} s on, one event in {period} was sampled and counted \
                     for all of them"
                );
                self.add(vec![notice]);
                self.add(notices);
                Some(period)
            }
            Ok(None) => {
                self.excess = OverloadPolicy::Bounded;
                None
            }
            Err(status) => {
                // A cgroup that is just made again, room that others have: it may succeed later.
                self.span = (self.span * 2).min(SLOW_PAUSE_MAX);
                let why = status.message();
                self.unslowed = Some(format!(
                    "{found}, and the period could not be raised: {why}"
                ));
                None
            }
        }
    }

    /// Whether its event occurs so often that it has to end, because it would cost the host too
    /// much.
    pub fn is_excessive(&self) -> bool {
        self.excessive
    }

    /// Whether its events are bound to one cgroup.
    pub fn is_bound(&self) -> bool {
        self.bound
    }

    /// Notices for the reader of the profile.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = self.notices.clone();
        notices.extend(self.unslowed.clone());
        if self.followed > 0 {
            let unseen = match self.unseen {
                Some(used) => {
                    let used = used.as_secs_f64() * 1e3;
                    format!("at least {used:.0} ms of CPU time of the new cgroup are missing")
                }
                None => "the start of the new cgroup is missing".to_owned(),
            };
            notices.push(format!(
                "the cgroup was removed and created again {}: the capture followed it, and \
                 {unseen}",
                times(self.followed)
            ));
        } else if self.returned > 0 {
            notices.push(format!(
                "the target disappeared {} and came back: it had no cgroup for {:.1} s",
                times(self.returned),
                self.away.as_secs_f64()
            ));
        }
        if let Some(why) = &self.unfollowed {
            notices.push(format!(
                "the cgroup was removed and created again, and the new cgroup is not sampled: {why}"
            ));
        }
        if let Some(gone) = self.gone {
            let after = gone.since(self.started_at).as_secs_f64();
            notices.push(format!(
                "the target disappeared after {after:.0} s: it had no cgroup any more"
            ));
        }
        notices
    }
}

fn times(count: u32) -> String {
    match count {
        1 => "once".to_owned(),
        more => format!("{more} times"),
    }
}
