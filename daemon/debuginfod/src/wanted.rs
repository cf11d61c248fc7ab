//! Which builds to ask for, and when again.

use std::collections::{HashMap, VecDeque};
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
    pub fn take(&mut self) -> Option<String> {
        self.waiting.pop_front()
    }

    /// Says that a build was fetched, or asked for in vain.
    pub fn done(&mut self, build: &str, fetched: bool) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_is_asked_for_once_and_again_after_a_while() {
        let mut wanted = Wanted::default();
        wanted.add(vec!["a".to_owned(), "b".to_owned()]);
        wanted.add(vec!["a".to_owned()]);
        assert_eq!(wanted.take().as_deref(), Some("a"));
        wanted.add(vec!["a".to_owned()]);
        assert_eq!(wanted.take().as_deref(), Some("b"));
        assert_eq!(wanted.take(), None);
        wanted.done("a", false);
        wanted.done("b", true);
        assert_eq!(wanted.counts(), (0, 1));
        // One that was fetched and is gone again is as good as new.
        wanted.add(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(wanted.take().as_deref(), Some("b"));
        assert_eq!(wanted.take(), None);
    }

    #[test]
    fn those_that_wait_are_bounded() {
        let mut wanted = Wanted::default();
        let many = (0..WAITING_MAX + 100).map(|at| at.to_string());
        wanted.add(many.collect());
        assert_eq!(wanted.counts(), (WAITING_MAX as u64, 0));
        while let Some(build) = wanted.take() {
            wanted.done(&build, false);
        }
        assert!(wanted.counts().1 <= (ABSENT_MAX + WAITING_MAX) as u64);
    }
}
