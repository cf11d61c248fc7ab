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

/// How long a build that was asked for in vain is not asked for again: servers learn of new ones, and come
/// back. Doubles each time, up to [`AGAIN_MAX`].
const AGAIN: Duration = Duration::from_secs(30);

/// See [`AGAIN`].
const AGAIN_MAX: Duration = Duration::from_secs(3600);

/// How often the thread looks for something to do.
const LOOK: Duration = Duration::from_millis(500);

/// What is known of a build without symbols.
enum State {
    /// It waits, or is being fetched, and was asked for in vain so often.
    Wanted(u32),
    /// No server had it so often; it is not asked for before.
    Absent(u32, Instant),
}

/// Builds to ask for.
#[derive(Default)]
pub struct Wanted {
    waiting: VecDeque<String>,
    known: HashMap<String, State>,
}

impl Wanted {
    /// Wants builds, unless they wait already or were asked for lately.
    pub fn add(&mut self, builds: Vec<String>) {
        for build in builds {
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            let tries = match self.known.get(&build) {
                None => 0,
                Some(State::Absent(tries, until)) if Instant::now() >= *until => *tries,
                Some(_) => continue,
            };
            self.known.insert(build.clone(), State::Wanted(tries));
            self.waiting.push_back(build);
        }
    }

    /// The next to ask for.
    fn next(&mut self) -> Option<String> {
        self.waiting.pop_front()
    }

    /// Says that a build was fetched, or asked for in vain.
    fn done(&mut self, build: &str, fetched: bool) {
        let tries = match self.known.remove(build) {
            Some(State::Wanted(tries) | State::Absent(tries, _)) => tries,
            None => 0,
        };
        if fetched {
            return;
        }
        if self.known.len() >= ABSENT_MAX + WAITING_MAX {
            self.known
                .retain(|_, state| matches!(state, State::Wanted(_)));
        }
        let again = (AGAIN * 2u32.saturating_pow(tries.min(16))).min(AGAIN_MAX);
        let state = State::Absent(tries + 1, Instant::now() + again);
        self.known.insert(build.to_owned(), state);
    }

    /// How many wait, and how many no server has.
    pub fn counts(&self) -> (u64, u64) {
        let is_absent = |state: &&State| matches!(state, State::Absent(..));
        let absent = self.known.values().filter(is_absent).count();
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
        wanted.done("a", false);
        wanted.done("b", true);
        assert_eq!(wanted.counts(), (0, 1));
        // One that was fetched and is gone again is as good as new.
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
            wanted.done(&build, false);
        }
        assert!(wanted.counts().1 <= (ABSENT_MAX + WAITING_MAX) as u64);
    }
}
