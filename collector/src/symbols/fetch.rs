//! Asks debuginfod servers for builds that answers had no names for, one at a time, on a thread of its own.
//!
//! No answer waits for it: what it brings is in the next one.

use super::{INCOMING, Inner, TakeError};
use debuginfod::{Fetched, Servers};
use profile::NameSource;
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
    let next = strong.wanted().and_then(|mut wanted| wanted.take());
    let Some(build) = next else {
        drop(strong);
        std::thread::sleep(LOOK);
        return true;
    };
    let path = strong.dir.join(format!("{INCOMING}debuginfod"));
    // A download does not keep the symbols from being closed.
    drop(strong);
    let fetched = servers.fetch(&build, &path, &|| inner.strong_count() == 0);
    let Some(strong) = inner.upgrade() else {
        return false;
    };
    let is_there = strong.fetched(&build, &fetched, &path);
    // What was not made need not be removed.
    let _ = std::fs::remove_file(&path);
    if let Some(mut wanted) = strong.wanted() {
        wanted.done(&build, is_there);
    }
    true
}

impl Inner {
    /// Takes what was fetched; true when that gave symbols.
    fn fetched(&self, build: &str, fetched: &Fetched, path: &Path) -> bool {
        let metrics = &self.metrics;
        match fetched {
            Fetched::Found { .. } => {}
            Fetched::Absent => {
                metrics.debuginfod_absent.inc();
                return false;
            }
            Fetched::TooLarge => {
                metrics.debuginfod_refused.inc();
                tracing::warn!(
                    build,
                    "debug file of a debuginfod server refused: it is too large"
                );
                return false;
            }
            Fetched::Unavailable => {
                metrics.debuginfod_failed.inc();
                return false;
            }
        }
        match self.take_fetched(build, path) {
            Ok(functions) => {
                metrics.debuginfod_fetched.inc();
                tracing::info!(build, functions, "symbols fetched from a debuginfod server");
                true
            }
            Err(error) => {
                metrics.debuginfod_refused.inc();
                tracing::warn!(build, "debug file of a debuginfod server refused: {error}");
                false
            }
        }
    }

    fn take_fetched(&self, build: &str, path: &Path) -> Result<usize, TakeError> {
        let _reading = loop {
            // Uploads are read one at a time as well, and take minutes at most.
            match self.reading.clone().try_acquire_owned() {
                Ok(place) => break place,
                Err(_) => std::thread::sleep(LOOK),
            }
        };
        let (functions, _) = self.take(path, ("", NameSource::Debuginfod), Some(build))?;
        Ok(functions.list.len())
    }
}
