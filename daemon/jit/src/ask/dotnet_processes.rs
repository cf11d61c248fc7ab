//! Which .NET processes are had to write a perf map, from when until when.
//!
//! A process is asked while its code has samples without a name, and told to stop when it has had
//! no samples for a while, when it is forgotten, and at the end of the daemon. Each piece of work
//! has a thread of its own; there are few, and one that hangs holds one of the places.

use super::dotnet::{self, DotNetError, NotEnded, Writing};
use super::{AttachTarget, THREAD, pause};
use crate::runtimes::AskReport;
use hashbrown::HashMap;
use host::blocking_pool::{self, Pending};
use host::ids::ProcessId;
use host::time::MonotonicTime;
use profile::text::with_causes;
use std::time::Duration;

/// Most processes known. Those beyond it are not asked, and counted.
const PROCESSES_MAX: usize = 256;

/// Most threads at a time.
const WORKING_MAX: usize = 4;

/// A process without samples in generated code for this long need not write any more.
pub(super) const WANTED: Duration = Duration::from_secs(120);

/// Pause between two tries, before it is doubled with each failure.
const PAUSE: Duration = Duration::from_secs(30);

/// See the head of this file.
#[derive(Debug, Default)]
pub(super) struct Nets {
    known: HashMap<ProcessId, Net>,
    /// Of processes that are forgotten, under way or still to be begun.
    enabling: Vec<Pending<Result<Writing, DotNetError>>>,
    ending: Vec<Ending>,
    to_end: Vec<Writing>,
}

/// A process that is told to stop; what to try again when it does not.
type Ending = Pending<Result<(), NotEnded>>;

#[derive(Debug)]
struct Net {
    process: AttachTarget,
    /// The last time it had samples.
    wanted: MonotonicTime,
    unnamed: bool,
    due: MonotonicTime,
    failures: u32,
    closed: bool,
    enabling: Option<Pending<Result<Writing, DotNetError>>>,
    writing: Option<Writing>,
}

impl Nets {
    /// A process has samples in generated code, some without a name or none. False when there is no
    /// room for one that should be asked.
    pub(super) fn note(
        &mut self,
        process: AttachTarget,
        unnamed: bool,
        now: MonotonicTime,
    ) -> bool {
        if !self.known.contains_key(&process.id) && (!unnamed || self.known.len() >= PROCESSES_MAX)
        {
            return !unnamed;
        }
        let net = self.known.entry(process.id).or_insert_with(|| Net {
            process,
            wanted: now,
            unnamed: false,
            due: now,
            failures: 0,
            closed: false,
            enabling: None,
            writing: None,
        });
        net.wanted = net.wanted.max(now);
        net.unnamed |= unnamed;
        true
    }

    /// Goes on; the processes that have begun to write, and what is to be said of processes.
    pub(super) fn tick(
        &mut self,
        now: MonotonicTime,
    ) -> (Vec<ProcessId>, Vec<(ProcessId, AskReport)>) {
        let (mut written, mut reports) = (Vec::new(), Vec::new());
        for (&id, net) in &mut self.known {
            match net.take(now) {
                Some(Ok(())) => {
                    written.push(id);
                    reports.push((id, AskReport::written()));
                }
                Some(Err(DotNetError::NotDotNet)) | None => {}
                Some(Err(error)) => {
                    let reason = with_causes(&error);
                    reports.push((id, AskReport::failed(reason)));
                }
            }
            if now.since(net.wanted) > WANTED {
                self.to_end.extend(net.writing.take());
            }
        }
        self.begin_due(now);
        (written, reports)
    }

    fn working(&self) -> usize {
        let enabling = self.known.values().filter(|net| net.enabling.is_some());
        enabling.count() + self.enabling.len() + self.ending.len()
    }

    fn begin_due(&mut self, now: MonotonicTime) {
        let mut room = WORKING_MAX.saturating_sub(self.working());
        for net in self.known.values_mut() {
            let idle = net.enabling.is_none() && net.writing.is_none() && !net.closed;
            let due = net.unnamed && net.due <= now && now.since(net.wanted) <= WANTED;
            if room == 0 || !idle || !due {
                continue;
            }
            let (pid, began_by) = (net.process.pid.0, net.process.began_by);
            net.enabling = blocking_pool::alone(THREAD, move || dotnet::enable(pid, began_by));
            net.unnamed = false;
            room -= 1;
        }
    }

    /// The process ended, or nobody wants its names.
    pub(super) fn forget(&mut self, process: ProcessId) {
        if let Some(net) = self.known.remove(&process) {
            self.enabling.extend(net.enabling);
            self.to_end.extend(net.writing);
        }
    }

    /// Forgets all.
    pub(super) fn forget_all(&mut self) {
        let ids: Vec<ProcessId> = self.known.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget(id));
    }

    /// Has told to stop what need not write any more, once each time it is called. Returns how many
    /// have stopped since.
    pub(super) fn tidy(&mut self) -> usize {
        let enabled = blocking_pool::take_done(&mut self.enabling);
        self.to_end.extend(enabled.into_iter().flatten());
        let (mut stopped, mut again) = (0, Vec::new());
        for ended in blocking_pool::take_done(&mut self.ending) {
            match ended {
                Ok(()) => stopped += 1,
                Err(NotEnded {
                    again: Some(writing),
                    ..
                }) => again.push(*writing),
                Err(NotEnded { again: None, error }) => {
                    let reason = with_causes(&error);
                    tracing::warn!(reason, "a .NET process does not stop writing its perf map");
                }
            }
        }
        while self.ending.len() < WORKING_MAX
            && let Some(writing) = self.to_end.pop()
        {
            match blocking_pool::alone(THREAD, move || writing.end()) {
                Some(ending) => self.ending.push(ending),
                None => tracing::warn!(
                    "no thread can be had: a .NET process goes on writing its perf map"
                ),
            }
        }
        self.to_end.append(&mut again);
        stopped
    }

    /// What is still to be done of processes that are forgotten.
    pub(super) fn left(&self) -> usize {
        self.enabling.len() + self.ending.len() + self.to_end.len()
    }
}

impl Net {
    /// What enabling has brought, if it has come.
    fn take(&mut self, now: MonotonicTime) -> Option<Result<(), DotNetError>> {
        let enabled = match self.enabling.take()?.wait(Duration::ZERO) {
            Ok(enabled) => enabled,
            Err(Some(waits)) => {
                self.enabling = Some(waits);
                return None;
            }
            // A thread that panicked: what it did is not known.
            Err(None) => {
                self.closed = true;
                return None;
            }
        };
        match enabled {
            Ok(writing) => {
                self.failures = 0;
                self.writing = Some(writing);
                Some(Ok(()))
            }
            Err(error) => {
                self.closed = error.is_final();
                self.failures = self.failures.saturating_add(1);
                self.due = now.plus(pause(PAUSE, self.failures));
                Some(Err(error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ask::dotnet::tests::{Answer, Recorded};
    use host::ids::Pid;
    use std::time::Instant;

    fn gone(id: u32) -> AttachTarget {
        AttachTarget {
            id: ProcessId(id),
            pid: Pid(u32::MAX),
            began_by: MonotonicTime::now(),
        }
    }

    #[test]
    fn a_process_with_names_is_not_asked() {
        let (mut nets, now) = (Nets::default(), MonotonicTime::now());
        nets.note(gone(1), false, now);
        assert!(nets.known.is_empty());
        nets.note(gone(1), true, now);
        nets.tick(now);
        assert!(nets.known[&ProcessId(1)].enabling.is_some());
    }

    #[test]
    fn what_is_gone_is_asked_once_and_told_of() {
        let (mut nets, now) = (Nets::default(), MonotonicTime::now());
        nets.note(gone(1), true, now);
        let mut reports = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        while reports.is_empty() && Instant::now() < end {
            let (written, more) = nets.tick(now);
            assert!(written.is_empty());
            reports.extend(more);
            std::thread::yield_now();
        }
        let failure = AskReport::failed("the process is gone".to_owned());
        assert_eq!(reports, [(ProcessId(1), failure)]);
        nets.note(gone(1), true, now);
        nets.tick(now);
        assert!(nets.known[&ProcessId(1)].closed && nets.working() == 0);
    }

    #[test]
    fn who_does_not_stop_is_left_over_until_he_does() {
        let server = Recorded::new(&[Answer::Yes, Answer::No(1), Answer::Yes]);
        let mut nets = Nets::default();
        nets.to_end.push(server.enable().expect("it writes"));
        let (mut stopped, mut tries) = (0, 0);
        let end = Instant::now() + Duration::from_secs(60);
        while nets.left() > 0 && Instant::now() < end {
            tries += usize::from(nets.ending.is_empty());
            stopped += nets.tidy();
            std::thread::yield_now();
        }
        assert_eq!((stopped, tries), (1, 2));
        assert!(!server.map().exists());
    }

    #[test]
    fn processes_and_threads_are_bounded() {
        let (mut nets, now) = (Nets::default(), MonotonicTime::now());
        for id in 0..PROCESSES_MAX as u32 + 10 {
            let room = nets.note(gone(id), true, now);
            assert_eq!(room, id < PROCESSES_MAX as u32);
        }
        assert_eq!(nets.known.len(), PROCESSES_MAX);
        nets.begin_due(now);
        assert_eq!(nets.working(), WORKING_MAX);
        nets.forget_all();
        assert_eq!(nets.left(), WORKING_MAX, "what is under way is waited for");
    }
}
