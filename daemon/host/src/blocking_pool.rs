//! A few threads for work that may never return: reading from file systems that others control.
//!
//! On a stopped FUSE server or a lost NFS server, `open`, `fstat` and even `statfs` wait forever. A
//! caller that must not wait hands such work to a helper and waits only for a limited time. A
//! helper that does not return stays blocked and another takes its place, up to a bound; its late
//! result is used if somebody still wants it. Nobody joins helpers: the end of the process ends
//! them if their wait can be killed, as with NFS, or with FUSE until the server has taken the
//! request. If a FUSE server took the request and never answers, only the end of the server ends
//! the helper's wait (fuse/dev.c, `request_wait_answer`; seen on Linux 6.18, 2026-11-21). By then
//! the process has closed its rings and socket and answers nobody, so a successor can start, but a
//! parent that waits for the exit code waits for that server.
//!
//! All threads are named [`THREAD`]. Each purpose has its own [`BlockingPool`] with a quota, so
//! that a file system that hangs takes only threads of those who access it. Threads have the
//! priority of the thread that hands out the work.
//!
//! Usually one thread hands out all work of a purpose, so helpers that are busy when it hands out
//! the next piece are late. If several threads do, [`BlockingPool::ask`] distinguishes late work
//! from work that found no free helper.

use crate::sync::lock;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Name of the threads.
pub const THREAD: &str = "fp-blocking";

/// Threads of one purpose: all but one may be late.
const QUOTA: usize = 5;

/// Late helpers from which work on file systems that depend on another process or machine is not
/// started any more, so that they cannot take the helpers that local ones need.
pub const REMOTE_LATE_MAX: usize = 2;

/// Runs the work and returns what hands the result over.
type Job = Box<dyn FnOnce() -> Box<dyn FnOnce() + Send> + Send>;

/// Helpers for one purpose. See the head of this file.
pub struct BlockingPool {
    purpose: &'static str,
    quota: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Job>,
    /// Threads that wait for work that was not promised to them yet.
    idle: usize,
    threads: usize,
    closed: bool,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// The work was not started: all helpers are at work, or no thread can be had.
    Busy,
    /// It was started, and has not come back.
    Late,
}

/// Work under way.
#[derive(Debug)]
pub struct Pending<T>(Receiver<T>);

impl<T> Pending<T> {
    /// The result, when it comes within `time`; itself when it does not, and nothing when it never
    /// will, because the work panicked.
    pub fn wait(self, time: Duration) -> Result<T, Option<Pending<T>>> {
        self.0.recv_timeout(time).map_err(|error| match error {
            RecvTimeoutError::Timeout => Some(self),
            RecvTimeoutError::Disconnected => None,
        })
    }
}

/// Removes and returns finished work; the rest stays in the list.
pub fn take_done<T>(list: &mut Vec<Pending<T>>) -> Vec<T> {
    let mut done = Vec::new();
    for pending in std::mem::take(list) {
        match pending.wait(Duration::ZERO) {
            Ok(result) => done.push(result),
            Err(waits) => list.extend(waits),
        }
    }
    done
}

/// Does one piece of work on a thread of its own, which ends with it: for work that changes the
/// thread for good. `None` when no thread can be had. Whoever calls bounds how many there are.
pub fn alone<T: Send + 'static>(
    name: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<Pending<T>> {
    let (sender, receiver) = sync_channel(1);
    let builder = std::thread::Builder::new().name(name.to_owned());
    let run = move || {
        if let Ok(result) = catch_unwind(AssertUnwindSafe(work)) {
            // Nobody may want it any more.
            let _ = sender.send(result);
        }
    };
    builder.spawn(run).ok()?;
    Some(Pending(receiver))
}

impl BlockingPool {
    /// No thread yet: the first is started with the first work.
    pub fn new(purpose: &'static str) -> BlockingPool {
        BlockingPool::with_quota(purpose, QUOTA)
    }

    /// The same with another number of threads.
    pub fn with_quota(purpose: &'static str, quota: usize) -> BlockingPool {
        BlockingPool {
            purpose,
            quota,
            shared: Arc::default(),
        }
    }

    /// Helpers at work: those that are late, when the one who hands out work asks.
    pub fn late(&self) -> usize {
        let state = self.shared.lock();
        state.threads - state.idle
    }

    /// True when no more work is taken: all helpers are late.
    pub fn is_exhausted(&self) -> bool {
        self.late() == self.quota
    }

    /// Starts work; `None` when too many helpers are late, or no thread can be had.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Pending<T>> {
        let (sender, receiver) = sync_channel(1);
        let job: Job = Box::new(move || {
            let result = catch_unwind(AssertUnwindSafe(work));
            Box::new(move || {
                if let Ok(result) = result {
                    // Nobody may want it any more.
                    let _ = sender.send(result);
                }
            })
        });
        let mut state = self.shared.lock();
        if state.idle > 0 {
            state.idle -= 1;
            state.queue.push_back(job);
            self.shared.wake.notify_one();
            return Some(Pending(receiver));
        }
        if state.threads == self.quota {
            return None;
        }
        let shared = Arc::clone(&self.shared);
        let builder = std::thread::Builder::new().name(THREAD.to_owned());
        builder.spawn(move || shared.help(job)).ok()?;
        state.threads += 1;
        Some(Pending(receiver))
    }

    /// The result of work, when it comes within `time`, or why not.
    ///
    /// # Errors
    /// [`NoResult`].
    pub fn ask<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoResult> {
        let pending = self.spawn(work).ok_or(NoResult::Busy)?;
        pending.wait(time).map_err(|_| NoResult::Late)
    }

    /// The result of work, when it comes within `time`.
    pub fn run<T: Send + 'static>(
        &self,
        time: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.ask(time, work).ok()
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (purpose, busy, quota) = (self.purpose, self.late(), self.quota);
        write!(out, "helpers for `{purpose}`, {busy} of {quota} at work")
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics while it holds the lock.
        lock(&self.state)
    }

    fn help(&self, mut job: Job) {
        loop {
            let hand_over = job();
            // Idle before the result is seen: who waits for it may come with the next work at once.
            self.lock().idle += 1;
            hand_over();
            let mut state = self.lock();
            job = loop {
                if let Some(job) = state.queue.pop_front() {
                    break job;
                }
                if state.closed {
                    return;
                }
                state = self
                    .wake
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const SHORT: Duration = Duration::from_millis(1);

    #[test]
    fn work_that_comes_back_uses_one_thread() {
        let helpers = BlockingPool::new("test");
        for number in 0..100 {
            assert_eq!(helpers.run(LONG, move || number), Some(number));
        }
        let threads = helpers.shared.lock().threads;
        assert_eq!((threads, helpers.late()), (1, 0));
    }

    #[test]
    fn what_is_late_is_left_and_taken_when_it_comes() {
        let helpers = BlockingPool::new("test");
        let (go, wait) = sync_channel::<u32>(1);
        let pending = helpers.spawn(move || wait.recv()).expect("a thread");
        let pending = pending
            .wait(SHORT)
            .expect_err("it waits")
            .expect("it lives");
        assert_eq!(helpers.late(), 1);
        assert_eq!(helpers.run(LONG, || 7), Some(7), "another helper");
        go.send(3).expect("it still waits");
        assert_eq!(pending.wait(LONG).expect("comes"), Ok(3));
        assert_eq!(helpers.late(), 0);
    }

    #[test]
    fn the_number_of_late_helpers_is_bounded() {
        let helpers = BlockingPool::new("test");
        let held: Vec<_> = (0..QUOTA)
            .map(|_| {
                let (hold, wait) = sync_channel::<()>(1);
                let asked = helpers.ask(SHORT, move || wait.recv());
                assert_eq!(asked, Err(NoResult::Late));
                hold
            })
            .collect();
        assert_eq!(helpers.ask(LONG, || ()), Err(NoResult::Busy));
        assert!(helpers.spawn(|| ()).is_none());
        drop(held);
    }

    #[test]
    fn a_quota_is_that_of_one_purpose() {
        let [one, other] = [5, 1].map(|quota| BlockingPool::with_quota("test", quota));
        let (hold, wait) = sync_channel::<()>(1);
        assert_eq!(other.ask(SHORT, move || wait.recv()), Err(NoResult::Late));
        assert!(other.is_exhausted() && !one.is_exhausted());
        assert_eq!(other.ask(LONG, || ()), Err(NoResult::Busy));
        assert_eq!(one.run(LONG, || 7), Some(7));
        drop(hold);
    }

    #[test]
    fn a_thread_of_its_own_brings_one_result() {
        let name = || std::thread::current().name().map(str::to_owned);
        let pending = alone("test-alone", name).expect("a thread");
        let found = pending.wait(LONG).expect("comes");
        assert_eq!(found.as_deref(), Some("test-alone"));
        let pending = alone("test-alone", || panic!("on purpose")).expect("a thread");
        assert!(matches!(pending.wait(LONG), Err(None)), "known at once");
    }

    #[test]
    fn a_panic_ends_no_helper() {
        let helpers = BlockingPool::new("test");
        let pending = helpers.spawn(|| panic!("on purpose")).expect("a thread");
        let outcome = pending.wait(LONG);
        assert!(matches!(outcome, Err(None)), "known at once");
        assert_eq!(helpers.run(LONG, || 7), Some(7));
    }
}
