//! Asks debuginfod servers for builds that answers had no names for, one at a time, on a thread of its own.
//!
//! No answer waits for it: what it brings is in the next one.

use super::{INCOMING, Inner, TakeError};
use debuginfod::{Fetched, Servers};
use hashbrown::HashMap;
use profile::NameSource;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most builds that wait. More are asked for when somebody looks at them again.
const WAITING_MAX: usize = 10_000;

/// Most builds remembered as those that no server has. An entry takes 100 bytes.
const ABSENT_MAX: usize = 50_000;

/// How long a build that no server has is not asked for again: servers learn of new ones.
const ABSENT_FOR: Duration = Duration::from_secs(3600);

/// The same where not all servers could be asked.
const UNAVAILABLE_FOR: Duration = Duration::from_secs(60);

/// How often the thread looks for something to do.
const LOOK: Duration = Duration::from_millis(500);

/// Builds to ask for.
#[derive(Default)]
pub struct Wanted {
    waiting: VecDeque<String>,
    /// Not to be asked for before; those that wait and what is being fetched have none.
    known: HashMap<String, Option<Instant>>,
}

impl Wanted {
    /// Wants builds, unless they wait already or were asked for lately.
    pub fn add(&mut self, builds: Vec<String>) {
        for build in builds {
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            match self.known.get(&build) {
                Some(None) => continue,
                Some(Some(until)) if Instant::now() < *until => continue,
                _ => {}
            }
            self.known.insert(build.clone(), None);
            self.waiting.push_back(build);
        }
    }

    /// The next to ask for.
    fn next(&mut self) -> Option<String> {
        self.waiting.pop_front()
    }

    /// Says that a build was asked for in vain, or with success (`None`).
    fn done(&mut self, build: &str, again_after: Option<Duration>) {
        self.known.remove(build);
        if let Some(after) = again_after {
            if self.known.len() >= ABSENT_MAX + WAITING_MAX {
                let now = Instant::now();
                self.known
                    .retain(|_, until| until.is_none_or(|until| now < until));
                if self.known.len() >= ABSENT_MAX + WAITING_MAX {
                    self.known.retain(|_, until| until.is_none());
                }
            }
            self.known
                .insert(build.to_owned(), Some(Instant::now() + after));
        }
    }

    /// How many wait, and how many no server has.
    pub fn counts(&self) -> (u64, u64) {
        let absent = self.known.values().filter(|until| until.is_some()).count();
        ((self.known.len() - absent) as u64, absent as u64)
    }
}

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
    let next = strong.wanted().and_then(|mut wanted| wanted.next());
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
    let again_after = strong.fetched(&build, &fetched, &path);
    // What was not made need not be removed.
    let _ = std::fs::remove_file(&path);
    if let Some(mut wanted) = strong.wanted() {
        wanted.done(&build, again_after);
    }
    true
}

impl Inner {
    /// Takes what was fetched; how long not to ask again where that gave nothing.
    fn fetched(&self, build: &str, fetched: &Fetched, path: &Path) -> Option<Duration> {
        let metrics = &self.metrics;
        match fetched {
            Fetched::Found { .. } => {}
            Fetched::Absent => {
                metrics.debuginfod_absent.inc();
                return Some(ABSENT_FOR);
            }
            Fetched::TooLarge => {
                metrics.debuginfod_refused.inc();
                tracing::warn!(
                    build,
                    "debug file of a debuginfod server refused: it is too large"
                );
                return Some(ABSENT_FOR);
            }
            Fetched::Unavailable => {
                metrics.debuginfod_failed.inc();
                return Some(UNAVAILABLE_FOR);
            }
        }
        match self.take_fetched(build, path) {
            Ok(functions) => {
                metrics.debuginfod_fetched.inc();
                tracing::info!(build, functions, "symbols fetched from a debuginfod server");
                None
            }
            Err(error) => {
                metrics.debuginfod_refused.inc();
                tracing::warn!(build, "debug file of a debuginfod server refused: {error}");
                Some(ABSENT_FOR)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_asked_for_once_and_again_after_a_while() {
        let mut wanted = Wanted::default();
        wanted.add(vec!["a".to_owned(), "b".to_owned()]);
        wanted.add(vec!["a".to_owned()]);
        assert_eq!(wanted.next().as_deref(), Some("a"));
        wanted.add(vec!["a".to_owned()]);
        assert_eq!(wanted.next().as_deref(), Some("b"));
        assert_eq!(wanted.next(), None);
        wanted.done("a", Some(Duration::from_secs(60)));
        wanted.done("b", Some(Duration::ZERO));
        assert_eq!(wanted.counts(), (0, 2));
        wanted.add(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(wanted.next().as_deref(), Some("b"));
        assert_eq!(wanted.next(), None);
    }

    #[test]
    fn those_that_wait_are_bounded() {
        let mut wanted = Wanted::default();
        let many = (0..WAITING_MAX + 100).map(|at| at.to_string());
        wanted.add(many.collect());
        assert_eq!(wanted.counts(), (WAITING_MAX as u64, 0));
        while let Some(build) = wanted.next() {
            wanted.done(&build, Some(Duration::from_secs(60)));
        }
        assert!(wanted.counts().1 <= (ABSENT_MAX + WAITING_MAX) as u64);
    }
}
