//! The queue of build ids to fetch, and when to retry each.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Most builds that wait. More are asked for when somebody looks at them again.
const WAITING_MAX: usize = 10_000;

/// Most builds remembered, those that wait included. An entry takes 100 bytes. While there are as
/// many, new ones are not asked for.
const KNOWN_MAX: usize = 60_000;

/// How long a build that no server has is not asked for again: servers learn of new ones. Doubles
/// each time, up to [`ABSENT_MAX`].
const ABSENT: Duration = Duration::from_secs(30);

/// See [`ABSENT`].
const ABSENT_MAX: Duration = Duration::from_secs(3600);

/// The same if not all servers could be reached.
const UNAVAILABLE: Duration = Duration::from_secs(60);

/// The same if a server had an unusable file, because it would be downloaded again.
const REFUSED: Duration = Duration::from_secs(86_400);

/// Result of the query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchOutcome {
    /// It is here.
    Kept,
    /// No server has it.
    Absent,
    /// Not all servers could be reached.
    Unavailable,
    /// The servers' files are unusable, or there is no room for them.
    Refused,
}

/// State of a build without symbols.
enum State {
    /// It waits, or is being fetched, and no server had it so often.
    Waiting(u32),
    /// No server had it so often; it is not asked for before.
    Absent(u32, Instant),
    /// The same for a build that could not be requested, or without a usable file.
    Later(u32, Instant),
}

/// Builds to ask for.
#[derive(Default)]
pub struct FetchQueue {
    waiting: VecDeque<String>,
    known: HashMap<String, State>,
}

impl FetchQueue {
    /// Wants builds, unless they wait already or were asked for lately.
    pub fn add(&mut self, builds: Vec<String>) {
        let now = Instant::now();
        for build in builds {
            let tries = match self.known.get(&build) {
                None => 0,
                Some(State::Absent(tries, until) | State::Later(tries, until)) if now >= *until => {
                    *tries
                }
                Some(_) => continue,
            };
            if self.waiting.len() >= WAITING_MAX {
                return;
            }
            if self.known.len() >= KNOWN_MAX && !self.known.contains_key(&build) {
                self.known.retain(|_, state| match state {
                    State::Waiting(_) => true,
                    State::Absent(_, until) | State::Later(_, until) => now < *until,
                });
                if self.known.len() >= KNOWN_MAX {
                    return;
                }
            }
            self.known.insert(build.clone(), State::Waiting(tries));
            self.waiting.push_back(build);
        }
    }

    /// The next to ask for.
    pub fn take(&mut self) -> Option<String> {
        self.waiting.pop_front()
    }

    /// Says what came of asking for a build.
    pub fn done(&mut self, build: &str, outcome: FetchOutcome) {
        let tries = match self.known.remove(build) {
            Some(State::Waiting(tries) | State::Absent(tries, _) | State::Later(tries, _)) => tries,
            None => 0,
        };
        let now = Instant::now();
        let state = match outcome {
            FetchOutcome::Kept => return,
            FetchOutcome::Absent => {
                let again = ABSENT * 2u32.saturating_pow(tries.min(16));
                State::Absent(tries + 1, now + again.min(ABSENT_MAX))
            }
            FetchOutcome::Unavailable => State::Later(tries, now + UNAVAILABLE),
            FetchOutcome::Refused => State::Later(tries, now + REFUSED),
        };
        self.known.insert(build.to_owned(), state);
    }

    /// How many wait, are to be asked for again, or were of no use; and how many no server has.
    pub fn counts(&self) -> (u64, u64) {
        let is_absent = |state: &&State| matches!(state, State::Absent(..));
        let absent = self.known.values().filter(is_absent).count();
        ((self.known.len() - absent) as u64, absent as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn builds(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_build_is_asked_for_once_and_again_after_a_while() {
        let mut wanted = FetchQueue::default();
        wanted.add(builds(&["a", "b"]));
        wanted.add(builds(&["a"]));
        assert_eq!(wanted.take().as_deref(), Some("a"));
        wanted.add(builds(&["a"]));
        assert_eq!(wanted.take().as_deref(), Some("b"));
        assert_eq!(wanted.take(), None);
        wanted.done("a", FetchOutcome::Absent);
        wanted.done("b", FetchOutcome::Kept);
        assert_eq!(wanted.counts(), (0, 1));
        // One that was fetched and is gone again is as good as new.
        wanted.add(builds(&["a", "b"]));
        assert_eq!(wanted.take().as_deref(), Some("b"));
        assert_eq!(wanted.take(), None);
    }

    #[test]
    fn a_server_that_was_away_says_nothing_of_what_it_has() {
        let mut wanted = FetchQueue::default();
        for outcome in [FetchOutcome::Unavailable, FetchOutcome::Refused] {
            wanted.add(builds(&["a"]));
            wanted.done("a", outcome);
        }
        assert_eq!(wanted.counts(), (1, 0));
    }

    #[test]
    fn those_that_wait_are_bounded() {
        let mut wanted = FetchQueue::default();
        let many = (0..WAITING_MAX + 100).map(|at| at.to_string());
        wanted.add(many.collect());
        assert_eq!(wanted.counts(), (WAITING_MAX as u64, 0));
    }

    #[test]
    fn those_that_are_known_are_bounded_and_not_forgotten() {
        let mut wanted = FetchQueue::default();
        for round in 0..KNOWN_MAX / WAITING_MAX + 2 {
            let many = (0..WAITING_MAX).map(|at| format!("{round}-{at}"));
            wanted.add(many.collect());
            while let Some(build) = wanted.take() {
                wanted.done(&build, FetchOutcome::Absent);
            }
        }
        assert_eq!(wanted.counts(), (0, KNOWN_MAX as u64));
        wanted.add(builds(&["0-0"]));
        assert_eq!(wanted.take(), None);
    }
}
