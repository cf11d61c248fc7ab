//! Requests builds without known names from debuginfod servers, one at a time, on a thread of its
//! own.
//!
//! No answer waits for it; the next answer uses what it fetched.

use super::{INCOMING, Inner};
use debuginfod::{FetchOutcome, Servers};
use profile::NameSource;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks whether uploads are still being read. It has no runtime to wait with.
const LOOK: Duration = Duration::from_millis(500);

/// Longest wait for something to do: servers rest no longer.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// Starts the thread, which looks for something to do when `bell` rings; it ends when nobody has
/// the symbols any more.
pub fn start(
    inner: &Arc<Inner>,
    mut servers: Servers,
    bell: Receiver<()>,
) -> Result<(), std::io::Error> {
    let inner = Arc::downgrade(inner);
    let thread = std::thread::Builder::new().name("fp-debuginfod".to_owned());
    thread.spawn(move || while step(&inner, &mut servers, &bell) {})?;
    Ok(())
}

/// Asks for one build; false at the end.
fn step(inner: &Weak<Inner>, servers: &mut Servers, bell: &Receiver<()>) -> bool {
    let Some(strong) = inner.upgrade() else {
        return false;
    };
    let rest = servers.rest();
    let next = match rest {
        Duration::ZERO => strong.wanted().and_then(|mut wanted| wanted.take()),
        // Who is away says nothing of what it has.
        _ => None,
    };
    let Some(build) = next else {
        drop(strong);
        let wait = if rest.is_zero() { WAIT_MAX } else { rest };
        return bell.recv_timeout(wait) != Err(RecvTimeoutError::Disconnected);
    };
    let path = strong.dir.join(format!("{INCOMING}debuginfod"));
    // A download does not keep the symbols from being closed.
    drop(strong);
    let stopped = || inner.strong_count() == 0;
    let mut take = |_| match inner.upgrade() {
        Some(strong) => strong.take_fetched(&build, &path),
        None => Err("the collector is shutting down".to_owned()),
    };
    // Whatever a server makes the library do costs one build.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        servers.fetch(&build, &path, &mut take, &stopped)
    }));
    let outcome = outcome.unwrap_or_else(|_| {
        tracing::warn!(build, "failed to read the answer of a debuginfod server");
        FetchOutcome::Refused
    });
    let Some(strong) = inner.upgrade() else {
        return false;
    };
    let metrics = &strong.metrics;
    match outcome {
        FetchOutcome::Kept => &metrics.debuginfod_fetched,
        FetchOutcome::Absent => &metrics.debuginfod_absent,
        FetchOutcome::Unavailable => &metrics.debuginfod_failed,
        FetchOutcome::Refused => &metrics.debuginfod_refused,
    }
    .inc();
    // What was not made need not be removed.
    let _ = std::fs::remove_file(&path);
    if let Some(mut wanted) = strong.wanted() {
        wanted.done(&build, outcome);
    }
    true
}

impl Inner {
    /// Stores a server's file for a build, or says why it is unusable.
    fn take_fetched(&self, build: &str, path: &Path) -> Result<(), String> {
        let _reading = loop {
            // Uploads are read one at a time as well, and take seconds.
            match self.reading.clone().try_acquire_owned() {
                Ok(place) => break place,
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        let taken = self.take(path, ("", NameSource::Debuginfod), Some(build));
        let (functions, _) = taken.map_err(|error| error.to_string())?;
        let functions = functions.list.len();
        tracing::info!(build, functions, "symbols fetched from a debuginfod server");
        Ok(())
    }
}
