//! A cache of what the dictionaries of the database contain, so that the collector need not ask.

use std::collections::{BTreeMap, HashSet};

/// Most ids that are remembered. Unit: ids of 8 bytes, about 16 in memory. A fleet's stacks of a
/// day and what belongs to them; with fewer the collector asks the database more often.
const KNOWN_MAX: usize = 2_000_000;

/// Ids of stacks, frames and label sets by day.
pub(super) struct Known {
    /// Most ids.
    max: usize,
    days: BTreeMap<u16, HashSet<u64>>,
    len: usize,
    /// Ids that were forgotten because there were too many.
    pub forgotten: u64,
}

impl Known {
    /// Remembers nothing yet, of one of so many shards: they share the room.
    pub fn of_shards(count: usize) -> Known {
        Known {
            max: KNOWN_MAX / count.max(1),
            days: BTreeMap::new(),
            len: 0,
            forgotten: 0,
        }
    }

    /// True when the day's dictionary has it.
    pub fn has(&self, day: u16, id: u64) -> bool {
        self.days.get(&day).is_some_and(|ids| ids.contains(&id))
    }

    /// Remembers what was inserted or seen.
    pub fn add(&mut self, day: u16, ids: impl IntoIterator<Item = u64>) {
        for id in ids {
            if self.len >= self.max {
                self.forget_oldest();
            }
            self.len += usize::from(self.days.entry(day).or_default().insert(id));
        }
    }

    /// Forgets the oldest day: agents that send it again are late and few.
    fn forget_oldest(&mut self) {
        if let Some((_, ids)) = self.days.pop_first() {
            self.len -= ids.len();
            self.forgotten += ids.len() as u64;
        }
    }

    /// Forgets days before `day`.
    pub fn retire(&mut self, day: u16) {
        let kept = self.days.split_off(&day);
        self.len = kept.values().map(HashSet::len).sum();
        self.days = kept;
    }

    /// Number of ids.
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_day_is_forgotten_first() {
        let mut known = Known::of_shards(1);
        known.add(1, [7]);
        known.add(2, 0..KNOWN_MAX as u64 - 1);
        assert!(known.has(1, 7));
        known.add(2, [u64::MAX]);
        assert!(!known.has(1, 7) && known.has(2, u64::MAX));
        assert_eq!((known.len(), known.forgotten), (KNOWN_MAX, 1));
        known.retire(3);
        assert_eq!(known.len(), 0);
    }
}
