//! Tracks which .NET processes have their perf map enabled, and for how long.
//!
//! A process is asked to enable it while its code has samples without names, and to disable it
//! after a while without samples, when it is forgotten, and when the daemon ends. Each piece of
//! work runs on a thread of its own. There are few such threads, and one that hangs occupies its
//! place.

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
pub(super) struct DotNetProcesses {
    known: HashMap<ProcessId, DotNetProcess>,
    /// Perf maps being enabled for processes that are forgotten meanwhile.
    enabling: Vec<Pending<Result<Writing, DotNetError>>>,
    ending: Vec<Ending>,
    to_end: Vec<Writing>,
}

/// A pending request to disable a map; its result says what to retry.
type Ending = Pending<Result<(), NotEnded>>;

#[derive(Debug)]
struct DotNetProcess {
    target: AttachTarget,
    /// The last time it had samples.
    wanted: MonotonicTime,
    unnamed: bool,
    due: MonotonicTime,
    failures: u32,
    closed: bool,
    enabling: Option<Pending<Result<Writing, DotNetError>>>,
    writing: Option<Writing>,
}

impl DotNetProcesses {
    /// A process has samples in generated code, some without a name or none. False when there is no
    /// room for one that should be asked.
    pub(super) fn note(&mut self, target: AttachTarget, unnamed: bool, now: MonotonicTime) -> bool {
        if !self.known.contains_key(&target.id) && (!unnamed || self.known.len() >= PROCESSES_MAX) {
            return !unnamed;
        }
        let process = self
            .known
            .entry(target.id)
            .or_insert_with(|| DotNetProcess {
                target,
                wanted: now,
                unnamed: false,
                due: now,
                failures: 0,
                closed: false,
                enabling: None,
                writing: None,
            });
        process.wanted = process.wanted.max(now);
        process.unnamed |= unnamed;
        true
    }

    /// Goes on; the processes that have started to write, and what is to be said of processes.
    pub(super) fn tick(
        &mut self,
        now: MonotonicTime,
    ) -> (Vec<ProcessId>, Vec<(ProcessId, AskReport)>) {
        let (mut written, mut reports) = (Vec::new(), Vec::new());
        for (&id, process) in &mut self.known {
            match process.take(now) {
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
            if now.since(process.wanted) > WANTED {
                self.to_end.extend(process.writing.take());
            }
        }
        self.start_due(now);
        (written, reports)
    }

    fn working(&self) -> usize {
        let enabling = self
            .known
            .values()
            .filter(|process| process.enabling.is_some());
        enabling.count() + self.enabling.len() + self.ending.len()
    }

    fn start_due(&mut self, now: MonotonicTime) {
        let mut room = WORKING_MAX.saturating_sub(self.working());
        for process in self.known.values_mut() {
            let idle = process.enabling.is_none() && process.writing.is_none() && !process.closed;
            let due = process.unnamed && process.due <= now && now.since(process.wanted) <= WANTED;
            if room == 0 || !idle || !due {
                continue;
            }
            let (pid, started_by) = (process.target.pid.0, process.target.started_by);
            process.enabling =
                blocking_pool::alone(THREAD, move || dotnet::enable(pid, started_by));
            process.unnamed = false;
            room -= 1;
        }
    }

    /// The process ended, or nobody wants its names.
    pub(super) fn forget(&mut self, id: ProcessId) {
        if let Some(process) = self.known.remove(&id) {
            self.enabling.extend(process.enabling);
            self.to_end.extend(process.writing);
        }
    }

    /// Forgets all.
    pub(super) fn forget_all(&mut self) {
        let ids: Vec<ProcessId> = self.known.keys().copied().collect();
        ids.into_iter().for_each(|id| self.forget(id));
    }

    /// Sends requests to disable maps that are no longer needed, once per call. Returns how many
    /// processes have disabled theirs since.
    pub(super) fn reap(&mut self) -> usize {
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
                    "failed to start a thread: a .NET process keeps writing its perf map"
                ),
            }
        }
        self.to_end.append(&mut again);
        stopped
    }

    /// Number of forgotten processes with work left.
    pub(super) fn left(&self) -> usize {
        self.enabling.len() + self.ending.len() + self.to_end.len()
    }
}

impl DotNetProcess {
    /// The result of enabling, if there is one.
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
            started_by: MonotonicTime::now(),
        }
    }

    #[test]
    fn a_process_with_names_is_not_asked() {
        let (mut processes, now) = (DotNetProcesses::default(), MonotonicTime::now());
        processes.note(gone(1), false, now);
        assert!(processes.known.is_empty());
        processes.note(gone(1), true, now);
        processes.tick(now);
        assert!(processes.known[&ProcessId(1)].enabling.is_some());
    }

    #[test]
    fn what_is_gone_is_asked_once_and_told_of() {
        let (mut processes, now) = (DotNetProcesses::default(), MonotonicTime::now());
        processes.note(gone(1), true, now);
        let mut reports = Vec::new();
        let end = Instant::now() + Duration::from_secs(60);
        while reports.is_empty() && Instant::now() < end {
            let (written, more) = processes.tick(now);
            assert!(written.is_empty());
            reports.extend(more);
            std::thread::yield_now();
        }
        let failure = AskReport::failed("the process has ended".to_owned());
        assert_eq!(reports, [(ProcessId(1), failure)]);
        processes.note(gone(1), true, now);
        processes.tick(now);
        assert!(processes.known[&ProcessId(1)].closed && processes.working() == 0);
    }

    #[test]
    fn who_does_not_stop_is_left_over_until_he_does() {
        let server = Recorded::new(&[Answer::Yes, Answer::No(1), Answer::Yes]);
        let mut processes = DotNetProcesses::default();
        processes.to_end.push(server.enable().expect("it writes"));
        let (mut stopped, mut tries) = (0, 0);
        let end = Instant::now() + Duration::from_secs(60);
        while processes.left() > 0 && Instant::now() < end {
            tries += usize::from(processes.ending.is_empty());
            stopped += processes.reap();
            std::thread::yield_now();
        }
        assert_eq!((stopped, tries), (1, 2));
        assert!(!server.map().exists());
    }

    #[test]
    fn processes_and_threads_are_bounded() {
        let (mut processes, now) = (DotNetProcesses::default(), MonotonicTime::now());
        for id in 0..PROCESSES_MAX as u32 + 10 {
            let room = processes.note(gone(id), true, now);
            assert_eq!(room, id < PROCESSES_MAX as u32);
        }
        assert_eq!(processes.known.len(), PROCESSES_MAX);
        processes.start_due(now);
        assert_eq!(processes.working(), WORKING_MAX);
        processes.forget_all();
        assert_eq!(
            processes.left(),
            WORKING_MAX,
            "what is under way is waited for"
        );
    }
}
