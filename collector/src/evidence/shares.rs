//! Decides which files to remove when they take too much room: the oldest of the owner with the
//! most, until all limits hold.
//!
//! Takes n log n steps for n files, however many are removed: owners are ordered by how much they
//! have, and each owner's files by age.

use super::bounds::Bounds;
use std::collections::{BTreeSet, HashMap};

/// Why a file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its owner has more than one may have.
    Owner,
    /// All have more than all may have.
    Disk,
    /// There are more than there may be.
    Count,
}

/// When it was, and its number.
type Order = (i64, u64);

/// Sizes by owner.
#[derive(Default)]
pub struct Shares {
    owners: Vec<Owner>,
    /// Places in `owners`.
    by_name: HashMap<String, usize>,
    /// By what they have, whoever has most last.
    by_bytes: BTreeSet<(u64, usize)>,
    /// By how many they have, whoever has most last.
    by_count: BTreeSet<(usize, usize)>,
    bytes: u64,
    count: usize,
    /// Files and owners that were looked at.
    #[cfg(test)]
    steps: u64,
}

#[derive(Default)]
struct Owner {
    /// With their bytes; the oldest last once they are sorted.
    files: Vec<(Order, u64)>,
    bytes: u64,
}

impl Shares {
    /// Adds a file of an owner.
    pub fn add(&mut self, name: &str, order: Order, bytes: u64) {
        let at = match self.by_name.get(name) {
            Some(&at) => at,
            None => {
                self.owners.push(Owner::default());
                self.by_name.insert(name.to_owned(), self.owners.len() - 1);
                self.owners.len() - 1
            }
        };
        let owner = &mut self.owners[at];
        owner.files.push((order, bytes));
        owner.bytes += bytes;
        self.bytes += bytes;
        self.count += 1;
        self.step();
    }

    /// Puts what was added in order. To be called once, after all were added.
    pub fn sort(&mut self) {
        for at in 0..self.owners.len() {
            let files = &mut self.owners[at].files;
            files.sort_unstable_by_key(|&(order, _)| std::cmp::Reverse(order));
            self.rank(at);
        }
    }

    /// Removes and returns the file to delete next; `None` if all bounds hold.
    pub fn dispensable(&mut self, bounds: Bounds) -> Option<(u64, Why)> {
        let &(most, by_bytes) = self.by_bytes.last()?;
        let &(_, by_count) = self.by_count.last()?;
        let (at, why) = if most > bounds.owner_bytes {
            (by_bytes, Why::Owner)
        } else if self.bytes > bounds.bytes {
            (by_bytes, Why::Disk)
        } else if self.count > bounds.count {
            (by_count, Why::Count)
        } else {
            return None;
        };
        let owner = &mut self.owners[at];
        self.by_bytes.remove(&(owner.bytes, at));
        self.by_count.remove(&(owner.files.len(), at));
        let ((_, id), bytes) = owner.files.pop()?;
        owner.bytes -= bytes;
        self.bytes -= bytes;
        self.count -= 1;
        self.rank(at);
        Some((id, why))
    }

    /// Puts an owner in its place among the others.
    fn rank(&mut self, at: usize) {
        let owner = &self.owners[at];
        if !owner.files.is_empty() {
            self.by_bytes.insert((owner.bytes, at));
            self.by_count.insert((owner.files.len(), at));
        }
        self.step();
    }

    fn step(&mut self) {
        #[cfg(test)]
        {
            self.steps += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILES_MAX: usize = 1000;

    const BOUNDS: Bounds = Bounds {
        bytes: u64::MAX,
        owner_bytes: u64::MAX,
        count: FILES_MAX,
        age_ns: 0,
    };

    /// Pins of `hosts` hosts in turn, each of one byte, the newest first.
    fn shares(hosts: u64, pins: u64) -> Shares {
        let mut shares = Shares::default();
        for id in 0..pins {
            let host = format!("host-{}", id % hosts);
            shares.add(&host, ((pins - id) as i64, id), 1);
        }
        shares
    }

    fn all(shares: &mut Shares, bounds: Bounds) -> Vec<(u64, Why)> {
        shares.sort();
        std::iter::from_fn(|| shares.dispensable(bounds)).collect()
    }

    #[test]
    fn each_pin_that_goes_is_one_step_however_many_there_are() {
        let bounds = Bounds { bytes: 0, ..BOUNDS };
        let bounds = Bounds {
            count: usize::MAX,
            ..bounds
        };
        for hosts in [1, 100, 10_000] {
            let mut shares = shares(hosts, 10_000);
            assert_eq!(all(&mut shares, bounds).len(), 10_000);
            // Each is added and taken out once, and each host put in its place.
            assert!(shares.steps <= 30_000, "{} steps", shares.steps);
        }
    }

    #[test]
    fn more_than_all_may_be_are_taken_of_who_has_most_of_them() {
        let mut shares = shares(1, 10);
        for id in 10..FILES_MAX as u64 + 5 {
            // More bytes, but one pin each.
            shares.add(&format!("other-{id}"), (0, id), 1000);
        }
        let gone = all(&mut shares, BOUNDS);
        let oldest = [9, 8, 7, 6, 5].map(|id| (id, Why::Count));
        assert_eq!(gone, oldest);
    }

    #[test]
    fn a_host_over_its_share_pays_before_others_do() {
        let mut shares = Shares::default();
        for (host, id, bytes) in [("a", 1, 9), ("b", 2, 4), ("b", 3, 4), ("b", 4, 4)] {
            shares.add(host, (id as i64, id), bytes);
        }
        let bounds = Bounds {
            bytes: 12,
            owner_bytes: 10,
            ..BOUNDS
        };
        let gone = all(&mut shares, bounds);
        assert_eq!(gone, [(2, Why::Owner), (1, Why::Disk)]);
    }
}
