//! Asks debuginfod servers for builds that answers had no names for, one at a time, on a thread of
//! its own.
//!
//! No answer waits for it: what it brings is in the next one.

use super::{INCOMING, Inner};
use debuginfod::{FetchOutcome, Fetched, Servers};
use profile::NameSource;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks for something to do.
const LOOK: Duration = Duration::from_millis(500);

/// Starts the thread; it ends when nobody has the symbols any more.
pub fn start(inner: &Arc<Inner>, mut servers: Servers) -> Result<(), std::io::Error> {
    let inner = Arc::downgrade(inner);
    let thread = std::thread::Builder::new().name("fp-debuginfod".to_owned());
    thread.spawn(move || while step(&inner, &mut servers) {})?;
    Ok(())
}

/// Asks for one build; false at the end.
fn step(inner: &Weak<Inner>, servers: &mut Servers) -> bool {
    let Some(strong) = inner.upgrade() else {
        return false;
    };
    let next = match servers.rest() {
        Duration::ZERO => strong.wanted().and_then(|mut wanted| wanted.take()),
        // Who is away says nothing of what it has.
        _ => None,
    };
    let Some(build) = next else {
        drop(strong);
        std::thread::sleep(LOOK);
        return true;
    };
    let path = strong.dir.join(format!("{INCOMING}debuginfod"));
    // A download does not keep the symbols from being closed.
    drop(strong);
    // Whatever a server makes the library do costs one build.
    let fetched = catch_unwind(AssertUnwindSafe(|| {
        servers.fetch(&build, &path, &|| inner.strong_count() == 0)
    }));
    let Some(strong) = inner.upgrade() else {
        return false;
    };
    let outcome = strong.fetched(&build, fetched.ok(), &path);
    // What was not made need not be removed.
    let _ = std::fs::remove_file(&path);
    if let Some(mut wanted) = strong.wanted() {
        wanted.done(&build, outcome);
    }
    true
}

impl Inner {
    /// Takes what was fetched; `None`: the library failed.
    fn fetched(&self, build: &str, fetched: Option<Fetched>, path: &Path) -> FetchOutcome {
        let metrics = &self.metrics;
        let refused = |why: &dyn Display| {
            metrics.debuginfod_refused.inc();
            tracing::warn!(build, "debug file of a debuginfod server refused: {why}");
            FetchOutcome::Refused
        };
        match fetched {
            Some(Fetched::Found { .. }) => {}
            Some(Fetched::Absent) => {
                metrics.debuginfod_absent.inc();
                return FetchOutcome::Absent;
            }
            Some(Fetched::Unavailable) => {
                metrics.debuginfod_failed.inc();
                return FetchOutcome::Unavailable;
            }
            Some(Fetched::TooLarge) => return refused(&"it is too large"),
            None => return refused(&"the answer cannot be read"),
        }
        let _reading = loop {
            // Uploads are read one at a time as well, and take seconds.
            match self.reading.clone().try_acquire_owned() {
                Ok(place) => break place,
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        match self.take(path, ("", NameSource::Debuginfod), Some(build)) {
            Ok((functions, _)) => {
                metrics.debuginfod_fetched.inc();
                let functions = functions.list.len();
                tracing::info!(build, functions, "symbols fetched from a debuginfod server");
                FetchOutcome::Kept
            }
            Err(error) => refused(&error),
        }
    }
}
