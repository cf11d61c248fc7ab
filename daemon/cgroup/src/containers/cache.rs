//! The cache of questions and answers per container: bookkeeping only, without clock or calls.
//!
//! Ids are never reused, so what is known of a container stays true, and it is kept after the
//! container has gone, because its samples may still need names. Containers that no runtime knew
//! are looked up again, with growing delays.

use super::Metadata;
use hashbrown::HashMap;
use host::time::MonotonicTime;
use std::sync::Arc;
use std::time::Duration;

/// Most containers kept. Unit: entries of about 500 bytes, of 9 KiB at the most. Beyond it those
/// that nobody asked for longest go first, and are asked for again should they come back.
pub const CONTAINERS_MAX: usize = 2048;

/// Containers that can be asked for at once: as many as a large host has when the daemon starts.
const BURST: u64 = 512;

/// Containers that can be asked for each second beyond that: whoever may make cgroups may name them
/// like containers, and shall not keep a runtime busy with questions.
const ASKS_PER_S: u64 = 32;

/// Pause before a container that nobody knew is asked for again; doubled each time.
const AGAIN_MIN: Duration = Duration::from_secs(5);

/// Longest such pause.
const AGAIN_MAX: Duration = Duration::from_secs(120);

/// What to do about a container with samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: it is known, or it is not time to ask again.
    Nothing,
    /// It is to be asked for.
    Ask,
    /// It would be, but for the bound on asks.
    Deferred,
}

#[derive(Debug, Default)]
struct Entry {
    known: Option<Arc<Metadata>>,
    /// Its answer is on the way.
    asked: bool,
    /// Somebody waits for it.
    awaited: bool,
    /// Looking it up is pointless.
    hopeless: bool,
    /// When to ask again; None: never, for all is known.
    again: Option<MonotonicTime>,
    tries: u32,
    /// Value of [`Cache::clock`] when it was last met.
    used: u64,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Cache {
    entries: HashMap<Box<str>, Entry>,
    capacity: usize,
    clock: u64,
    /// Asks that may be made now, in thousandths, and when that was reckoned.
    allowance: (u64, MonotonicTime),
    awaited: usize,
    evicted: u64,
}

impl Cache {
    /// Creates an empty cache.
    pub fn new(capacity: usize, now: MonotonicTime) -> Cache {
        Cache {
            entries: HashMap::new(),
            capacity,
            clock: 0,
            allowance: (BURST * 1000, now),
            awaited: 0,
            evicted: 0,
        }
    }

    /// A container was met; after [`Want::Ask`] it counts as asked for. `wait`: for its first
    /// answer.
    pub fn want(&mut self, id: &str, wait: bool, now: MonotonicTime) -> Want {
        self.clock += 1;
        let clock = self.clock;
        let is_new = match self.entries.get_mut(id) {
            Some(entry) => {
                entry.used = clock;
                let first = entry.asked && entry.again.is_none() && entry.known.is_none();
                if wait && first && !entry.awaited && !entry.hopeless {
                    entry.awaited = true;
                    self.awaited += 1;
                }
                if entry.asked || entry.again.is_none_or(|again| now < again) {
                    return Want::Nothing;
                }
                false
            }
            None => true,
        };
        if !self.allowed(now) {
            return Want::Deferred;
        }
        if is_new {
            self.make_room();
        }
        let entry = self.entries.entry(id.into()).or_default();
        entry.used = clock;
        entry.asked = true;
        entry.awaited = is_new && wait;
        self.awaited += usize::from(entry.awaited);
        Want::Ask
    }

    /// The ask could not be made after all.
    pub fn unasked(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            self.awaited -= usize::from(std::mem::take(&mut entry.awaited));
            match entry.again {
                Some(_) => entry.asked = false,
                None => drop(self.entries.remove(id)),
            }
        }
    }

    /// The answer is worth no wait: who is asked was late the last time.
    pub fn hopeless(&mut self, id: &str) {
        if let Some(entry) = self.entries.get_mut(id) {
            self.awaited -= usize::from(std::mem::take(&mut entry.awaited));
            entry.hopeless = true;
        }
    }

    /// The answer came. `sure`: everybody who might know more was heard.
    pub fn settle(&mut self, id: &str, found: Option<Metadata>, sure: bool, now: MonotonicTime) {
        // It may have been evicted since.
        let Some(entry) = self.entries.get_mut(id) else {
            return;
        };
        self.awaited -= usize::from(std::mem::take(&mut entry.awaited));
        entry.asked = false;
        let complete = sure && found.is_some();
        if let Some(found) = found {
            entry.known = Some(Arc::new(found));
        }
        let pause = AGAIN_MIN.saturating_mul(1 << entry.tries.min(10));
        entry.again = (!complete).then(|| now.plus(pause.min(AGAIN_MAX)));
        entry.tries = entry.tries.saturating_add(1);
    }

    /// Answers that somebody waits for.
    pub fn awaited(&self) -> usize {
        self.awaited
    }

    /// Stops waiting. Returns for how many containers the wait was in vain.
    pub fn stop_waiting(&mut self) -> u64 {
        let late = std::mem::take(&mut self.awaited);
        if late > 0 {
            // Each is waited for once.
            for entry in self.entries.values_mut() {
                entry.hopeless |= std::mem::take(&mut entry.awaited);
            }
        }
        late as u64
    }

    /// Metadata of a container.
    pub fn get(&self, id: &str) -> Option<Arc<Metadata>> {
        self.entries.get(id)?.known.clone()
    }

    /// Containers of which something is known.
    pub fn known(&self) -> u64 {
        self.entries
            .values()
            .filter(|of| of.known.is_some())
            .count() as u64
    }

    /// Containers forgotten because there were too many.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    fn allowed(&mut self, now: MonotonicTime) -> bool {
        let (left, reckoned) = self.allowance;
        let earned = now.since(reckoned).as_millis().min(1 << 32) as u64 * ASKS_PER_S;
        let left = left.saturating_add(earned).min(BURST * 1000);
        // What is less than a thousandth is earned later.
        let reckoned = if earned > 0 { now } else { reckoned };
        let paid = left.checked_sub(1000);
        self.allowance = (paid.unwrap_or(left), reckoned);
        paid.is_some()
    }

    /// Drops an eighth of the entries when there are too many, so that the search is made rarely.
    fn make_room(&mut self) {
        if self.entries.len() < self.capacity {
            return;
        }
        let idle = self.entries.iter().filter(|(_, entry)| !entry.awaited);
        let mut order: Vec<u64> = idle.map(|(_, entry)| entry.used).collect();
        order.sort_unstable();
        let last = order.get((self.capacity / 8).saturating_sub(1));
        let last = last.or(order.last()).copied().unwrap_or(0);
        let before = self.entries.len();
        self.entries
            .retain(|_, entry| entry.awaited || entry.used > last);
        self.evicted += (before - self.entries.len()) as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> MonotonicTime {
        MonotonicTime(seconds * 1_000_000_000)
    }

    fn named(name: &str) -> Option<Metadata> {
        let container_name = Some(name.into());
        Some(Metadata {
            container_name,
            ..Metadata::default()
        })
    }

    fn name(cache: &Cache, id: &str) -> Option<Box<str>> {
        cache.get(id)?.container_name.clone()
    }

    #[test]
    fn what_is_known_is_never_asked_for_again() {
        let mut cache = Cache::new(8, at(0));
        assert_eq!(cache.want("a", true, at(0)), Want::Ask);
        assert_eq!(cache.want("a", true, at(0)), Want::Nothing, "on its way");
        cache.settle("a", named("web"), true, at(1));
        assert_eq!(cache.want("a", true, at(1_000_000)), Want::Nothing);
        assert_eq!(name(&cache, "a").as_deref(), Some("web"));
        assert_eq!(cache.known(), 1);
    }

    #[test]
    fn what_nobody_knew_is_asked_for_ever_more_rarely() {
        let mut cache = Cache::new(8, at(0));
        let mut asked = Vec::new();
        for second in 0..600 {
            if cache.want("a", true, at(second)) == Want::Ask {
                cache.settle("a", None, true, at(second));
                asked.push(second);
            }
        }
        assert_eq!(asked, [0, 5, 15, 35, 75, 155, 275, 395, 515]);
    }

    #[test]
    fn what_may_be_more_is_asked_for_again_and_kept_until_then() {
        let mut cache = Cache::new(8, at(0));
        cache.want("a", true, at(0));
        cache.settle("a", named("by file"), false, at(0));
        assert_eq!(cache.want("a", true, at(10)), Want::Ask);
        cache.settle("a", None, false, at(10));
        assert_eq!(name(&cache, "a").as_deref(), Some("by file"));
        assert_eq!(cache.want("a", true, at(60)), Want::Ask);
        cache.settle("a", named("by socket"), true, at(60));
        assert_eq!(name(&cache, "a").as_deref(), Some("by socket"));
    }

    #[test]
    fn only_first_answers_are_waited_for() {
        let mut cache = Cache::new(8, at(0));
        cache.want("a", true, at(0));
        cache.want("b", true, at(0));
        cache.want("c", true, at(0));
        assert_eq!(cache.awaited(), 3);
        cache.settle("a", named("web"), true, at(0));
        cache.hopeless("b");
        cache.hopeless("b");
        assert_eq!(cache.awaited(), 1);
        assert_eq!(cache.stop_waiting(), 1);
        assert_eq!(cache.want("c", true, at(0)), Want::Nothing);
        assert_eq!(cache.awaited(), 0, "once is enough");
        cache.settle("b", None, true, at(0));
        cache.settle("c", None, true, at(0));
        assert_eq!(cache.want("c", true, at(10)), Want::Ask);
        assert_eq!((cache.awaited(), cache.stop_waiting()), (0, 0));
    }

    #[test]
    fn what_was_asked_for_ahead_is_waited_for_when_it_is_met() {
        let mut cache = Cache::new(8, at(0));
        assert_eq!(cache.want("a", false, at(0)), Want::Ask);
        assert_eq!(cache.awaited(), 0);
        assert_eq!(cache.want("a", true, at(0)), Want::Nothing);
        assert_eq!(cache.want("a", true, at(0)), Want::Nothing);
        assert_eq!(cache.awaited(), 1);
        cache.hopeless("a");
        assert_eq!(cache.want("a", true, at(0)), Want::Nothing);
        assert_eq!(cache.awaited(), 0);
    }

    #[test]
    fn an_ask_that_was_not_made_is_made_later() {
        let mut cache = Cache::new(8, at(0));
        cache.want("a", true, at(0));
        cache.unasked("a");
        assert_eq!(cache.awaited(), 0);
        assert_eq!(cache.want("a", true, at(0)), Want::Ask);
    }

    #[test]
    fn asks_are_bounded_over_time() {
        let mut cache = Cache::new(100_000, at(0));
        let ask = |cache: &mut Cache, from: u64, count: u64, now| {
            let ids = from..from + count;
            let wanted = ids.map(|id| cache.want(&id.to_string(), true, now));
            wanted.filter(|want| *want == Want::Ask).count() as u64
        };
        assert_eq!(ask(&mut cache, 0, 10_000, at(0)), BURST);
        assert_eq!(ask(&mut cache, 10_000, 10_000, at(1)), ASKS_PER_S);
        assert_eq!(ask(&mut cache, 20_000, 10_000, at(1_000_000)), BURST);
    }

    #[test]
    fn of_too_many_the_longest_unused_go() {
        let mut cache = Cache::new(16, at(0));
        for id in 0..16 {
            cache.want(&id.to_string(), true, at(0));
            cache.settle(&id.to_string(), named("x"), true, at(0));
        }
        cache.want("0", true, at(1));
        cache.want("new", true, at(1));
        assert_eq!(cache.evicted(), 2);
        assert!(cache.get("0").is_some() && cache.get("1").is_none());
        // Its answer comes after it was forgotten, and changes nothing.
        cache.settle("1", named("x"), true, at(1));
        assert!(cache.get("1").is_none());
    }
}
