//! Heartbeats of threads that do one piece of work after the other, and how long they wait for a
//! CPU.

use crate::sync::lock;
use crate::sys::Priority;
use crate::time::MonotonicTime;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How long a thread has worked on one piece. Written by that thread, read by any.
#[derive(Debug, Default)]
pub struct Heartbeat {
    /// Monotonic time at which the piece was started; 0 while there is none.
    since: AtomicU64,
}

impl Heartbeat {
    /// Work was started.
    pub fn start(&self) {
        self.since.store(MonotonicTime::now().0, Ordering::Relaxed);
    }

    /// It was done.
    pub fn end(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// When the work under way was started.
    pub fn started(&self) -> Option<MonotonicTime> {
        let since = self.since.load(Ordering::Relaxed);
        (since != 0).then_some(MonotonicTime(since))
    }

    /// How long the work under way has taken, when that is longer than `limit`.
    pub fn busy_longer_than(&self, limit: Duration, now: MonotonicTime) -> Option<Duration> {
        let age = now.since(self.started()?);
        (age > limit).then_some(age)
    }
}

/// Nice value of a thread that is in time. Against one busy thread of the machine it gets a tenth
/// of a CPU, many times what it needs.
const NICE: i32 = 10;

/// Work done within this is in time. Unit: a tenth of a default window.
const IN_TIME: Duration = Duration::from_secs(1);

/// How long a thread that was late stays as every other is. Lowered at once it would be late again
/// with the next piece.
const RAISED_FOR: Duration = Duration::from_secs(60);

/// Lets all others go first while a thread is in time, and none when it is late: where every CPU
/// has a queue, one of nice 10 hardly runs. With four spinning threads on two CPUs the symbolizer
/// got 2 % of one (2026-11-21): nothing was named, and the end did not come within its grace.
#[derive(Debug, Default)]
pub struct PriorityGovernor {
    /// `None` where it cannot be raised again, and so is not lowered, and when it has ended: its
    /// number may be another thread's then, of any process.
    thread: Mutex<Option<Priority>>,
    /// Monotonic time at which the thread was last raised; 0 while it is lowered.
    raised: AtomicU64,
}

impl PriorityGovernor {
    /// Lowers the calling thread; it is the one until the result is dropped, by that thread.
    pub fn take_thread(&self) -> impl Drop {
        let thread = Priority::of_this_thread();
        if let Some(thread) = thread {
            thread.lower(NICE);
        }
        *lock(&self.thread) = thread;
        ThreadGuard(self)
    }

    /// Raises the thread. From any thread; never waits.
    pub fn hurry(&self, now: MonotonicTime) {
        if let Some(thread) = *lock(&self.thread) {
            self.raised.store(now.0, Ordering::Relaxed);
            thread.raise();
        }
    }

    /// Reports how long a piece of work took. Called by the thread itself.
    pub fn done(&self, took: Duration, now: MonotonicTime) {
        let raised = self.raised.load(Ordering::Relaxed);
        let rests = raised != 0 && took < IN_TIME && now.since(MonotonicTime(raised)) > RAISED_FOR;
        if let (true, Some(thread)) = (rests, *lock(&self.thread)) {
            self.raised.store(0, Ordering::Relaxed);
            thread.lower(NICE);
        }
    }

    /// True after [`PriorityGovernor::hurry`], until the thread was in time for a while.
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed) != 0
    }
}

struct ThreadGuard<'a>(&'a PriorityGovernor);

impl Drop for ThreadGuard<'_> {
    fn drop(&mut self) {
        *lock(&self.0.thread) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn only_work_under_way_grows_old() {
        let heartbeat = Heartbeat::default();
        let later = || MonotonicTime::now().plus(2 * LIMIT);
        assert_eq!(heartbeat.busy_longer_than(LIMIT, later()), None);
        heartbeat.start();
        assert!(heartbeat.busy_longer_than(LIMIT, later()).is_some());
        assert_eq!(
            heartbeat.busy_longer_than(LIMIT, MonotonicTime::now()),
            None
        );
        heartbeat.end();
        assert_eq!(heartbeat.busy_longer_than(LIMIT, later()), None);
    }

    #[test]
    fn a_late_thread_goes_first_until_it_was_in_time_for_a_while() {
        let pace = PriorityGovernor {
            thread: Mutex::new(Some(Priority::none())),
            ..PriorityGovernor::default()
        };
        let now = MonotonicTime::now();
        pace.hurry(now);
        let (soon, later) = (now.plus(RAISED_FOR / 2), now.plus(2 * RAISED_FOR));
        pace.done(Duration::ZERO, soon);
        assert!(pace.is_raised(), "too soon");
        pace.done(2 * IN_TIME, later);
        assert!(pace.is_raised(), "it is late");
        pace.done(Duration::ZERO, later);
        assert!(!pace.is_raised());
    }

    #[test]
    fn a_thread_that_has_ended_is_not_raised() {
        let pace = PriorityGovernor::default();
        drop(pace.take_thread());
        pace.hurry(MonotonicTime::now());
        assert!(!pace.is_raised());
    }
}
