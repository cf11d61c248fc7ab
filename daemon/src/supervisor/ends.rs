//! How the process and its threads end: errors, exit codes, and the results of threads.

use crate::agent::Agent;
use crate::grpc::ServeError;
use host::sync::lock;
use host::sys::WakeFd;
use host::time::MonotonicTime;
use perf::error::RingsError;
use perf::event::OpenError;
use profile::text::with_causes;
use std::any::Any;
use std::error::Error;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use triggers::Stage;

/// Exit codes of `fleetprofd`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Stopped as asked.
    Stopped = 0,
    /// Failed.
    Failed = 1,
    /// Bad command line; clap's own code.
    Usage = 2,
    /// Bad configuration.
    Config = 3,
    /// Not permitted to sample.
    Permission = 4,
    /// Another daemon answers on the socket.
    InUse = 5,
}

/// Why the daemon ended.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Signals, wake-ups or threads.
    #[error("failed to set up the process")]
    Setup(#[source] io::Error),
    /// Perf events.
    #[error(transparent)]
    Sampling(#[from] RingsError),
    /// The socket.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// A stage ended on its own.
    #[error("thread `{thread}` ended: {reason}")]
    Stage {
        /// Its name.
        thread: &'static str,
        /// Error or panic, with causes.
        reason: String,
    },
    /// A stage does not move.
    #[error("thread `{thread}` has not moved for {seconds} s")]
    Stuck {
        /// Its name.
        thread: &'static str,
        /// Age of its heartbeat.
        seconds: u64,
    },
    /// Data was still on its way when the grace was over.
    #[error(
        "the daemon stopped before everything was drained: `shutdown.grace_s` of {seconds} s \
        is over"
    )]
    Grace {
        /// The grace.
        seconds: u64,
    },
}

impl RunError {
    /// The exit code that says what happened, for scripts.
    pub fn exit(&self) -> Exit {
        match self {
            RunError::Sampling(RingsError::Open(OpenError::Permission { .. })) => Exit::Permission,
            RunError::Sampling(RingsError::Map { source, .. })
                if source.kind() == io::ErrorKind::PermissionDenied =>
            {
                Exit::Permission
            }
            RunError::Serve(ServeError::InUse { .. }) => Exit::InUse,
            _ => Exit::Failed,
        }
    }
}

pub(super) type StageError = Box<dyn Error + Send + Sync>;

/// Name of a thread and how it ended.
type StageEnd = (&'static str, Result<(), StageError>);

/// Collects the ends of threads as they happen.
#[derive(Clone)]
pub(super) struct Ends {
    pub wake: Arc<WakeFd>,
    list: Arc<List>,
}

#[derive(Default)]
struct List {
    ended: Mutex<Ended>,
    changed: Condvar,
}

#[derive(Default)]
struct Ended {
    /// Ends that were not handled yet.
    ends: Vec<StageEnd>,
    /// All of them.
    names: Vec<&'static str>,
    /// Threads that are waited for at the end.
    awaited: Vec<&'static str>,
}

impl Ends {
    pub fn new() -> io::Result<Ends> {
        Ok(Ends {
            wake: Arc::new(WakeFd::new()?),
            list: Arc::default(),
        })
    }

    /// Starts a thread that has something to bring to its end when the daemon stops, and is waited
    /// for.
    pub fn spawn_awaited(
        &self,
        name: &'static str,
        body: impl FnOnce() -> Result<(), StageError> + Send + 'static,
    ) -> io::Result<()> {
        self.spawn(name, body)?;
        lock(&self.list.ended).awaited.push(name);
        Ok(())
    }

    /// Waits until all threads that are waited for have ended, until `deadline` at most. True when
    /// they have.
    pub fn wait_for_awaited(&self, deadline: MonotonicTime) -> bool {
        let runs = |ended: &mut Ended| {
            let Ended { names, awaited, .. } = ended;
            !awaited.iter().all(|name| names.contains(name))
        };
        let wait = deadline.since(MonotonicTime::now());
        let ended = lock(&self.list.ended);
        let waited = self.list.changed.wait_timeout_while(ended, wait, runs);
        let (mut ended, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !runs(&mut ended)
    }

    /// Starts a thread that may be cut off when the process ends.
    pub fn spawn(
        &self,
        name: &'static str,
        body: impl FnOnce() -> Result<(), StageError> + Send + 'static,
    ) -> io::Result<()> {
        let ends = self.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let spawned = thread.spawn(move || {
            let end = match catch_unwind(AssertUnwindSafe(body)) {
                Ok(end) => end,
                Err(panic) => Err(format!("panic: {}", panic_text(&*panic)).into()),
            };
            {
                let mut ended = lock(&ends.list.ended);
                ended.ends.push((name, end));
                ended.names.push(name);
            }
            ends.list.changed.notify_all();
            ends.wake.wake();
        });
        spawned.map(drop)
    }

    /// Says how `fp-trigger` is started when there is the first trigger.
    pub fn prepare_triggers(&self, agent: &Arc<Agent>) {
        let (ends, watched) = (self.clone(), Arc::downgrade(agent));
        agent.triggers.set_starter(move || {
            let Some(agent) = watched.upgrade() else {
                return Ok(());
            };
            let stage = Stage {
                triggers: Arc::clone(&agent.triggers),
                pins: Arc::clone(&agent.pins),
                hierarchy: agent.start.hierarchy.clone(),
                clock: Arc::clone(&agent.clock),
            };
            // It goes on until the process ends: what it has pinned is on disk by then.
            ends.spawn("fp-trigger", move || {
                stage.run(&agent.recorder);
                Ok(())
            })
        });
    }

    /// The first end that was not asked for.
    pub fn unexpected(&self) -> Option<RunError> {
        let ends = &mut lock(&self.list.ended).ends;
        if ends.is_empty() {
            return None;
        }
        let (thread, end) = ends.remove(0);
        let stopped = || "it stopped unexpectedly".into();
        Some(stage_error(thread, end.err().unwrap_or_else(stopped)))
    }

    /// The first end by error.
    pub fn failure(&self) -> Option<RunError> {
        let ends = &mut lock(&self.list.ended).ends;
        let failed = ends.iter().position(|(_, end)| end.is_err())?;
        let (thread, end) = ends.remove(failed);
        end.err().map(|error| stage_error(thread, error))
    }
}

/// Errors of the socket keep their kind: it decides the exit code.
fn stage_error(thread: &'static str, error: StageError) -> RunError {
    match error.downcast::<ServeError>() {
        Ok(error) => RunError::Serve(*error),
        Err(error) => RunError::Stage {
            thread,
            reason: with_causes(&*error),
        },
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("unknown")
}
