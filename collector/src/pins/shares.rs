//! Which pins go when they take too much room: of the host with the most its oldest, until all
//! bounds hold.
//!
//! Takes n log n steps for n pins, however many of them go: hosts are kept in order by what they
//! have, and each host's pins in order of age.

use super::files::Bounds;
use super::limits::PINS_MAX;
use std::collections::{BTreeSet, HashMap};

/// Why a pin goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Its host has more than one host may have.
    Host,
    /// All have more than all may have.
    Disk,
}

/// When a pin fired, and its number.
type Order = (i64, u64);

/// What hosts have.
#[derive(Default)]
pub struct Shares {
    hosts: Vec<Host>,
    /// Places in `hosts`.
    by_id: HashMap<String, usize>,
    /// By what they have, the host with the most last.
    by_bytes: BTreeSet<(u64, usize)>,
    /// By how many they have, the host with the most last.
    by_count: BTreeSet<(usize, usize)>,
    bytes: u64,
    count: usize,
    /// Pins and hosts that were looked at.
    #[cfg(test)]
    steps: u64,
}

#[derive(Default)]
struct Host {
    /// With their bytes; the oldest last once they are sorted.
    pins: Vec<(Order, u64)>,
    bytes: u64,
}

impl Shares {
    /// Adds a pin of a host.
    pub fn add(&mut self, host_id: &str, order: Order, bytes: u64) {
        let at = match self.by_id.get(host_id) {
            Some(&at) => at,
            None => {
                self.hosts.push(Host::default());
                self.by_id.insert(host_id.to_owned(), self.hosts.len() - 1);
                self.hosts.len() - 1
            }
        };
        let host = &mut self.hosts[at];
        host.pins.push((order, bytes));
        host.bytes += bytes;
        self.bytes += bytes;
        self.count += 1;
        self.step();
    }

    /// Puts what was added in order. To be called once, after all were added.
    pub fn sort(&mut self) {
        for at in 0..self.hosts.len() {
            let pins = &mut self.hosts[at].pins;
            pins.sort_unstable_by_key(|&(order, _)| std::cmp::Reverse(order));
            self.rank(at);
        }
    }

    /// Takes out the pin that is to go next; `None` when all bounds hold.
    pub fn dispensable(&mut self, bounds: Bounds) -> Option<(u64, Why)> {
        let &(most, by_bytes) = self.by_bytes.last()?;
        let &(_, by_count) = self.by_count.last()?;
        let (at, why) = if most > bounds.host_bytes {
            (by_bytes, Why::Host)
        } else if self.bytes > bounds.bytes {
            (by_bytes, Why::Disk)
        } else if self.count > PINS_MAX {
            (by_count, Why::Disk)
        } else {
            return None;
        };
        let host = &mut self.hosts[at];
        self.by_bytes.remove(&(host.bytes, at));
        self.by_count.remove(&(host.pins.len(), at));
        let ((_, id), bytes) = host.pins.pop()?;
        host.bytes -= bytes;
        self.bytes -= bytes;
        self.count -= 1;
        self.rank(at);
        Some((id, why))
    }

    /// Puts a host in its place among the others.
    fn rank(&mut self, at: usize) {
        let host = &self.hosts[at];
        if !host.pins.is_empty() {
            self.by_bytes.insert((host.bytes, at));
            self.by_count.insert((host.pins.len(), at));
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

    const BOUNDS: Bounds = Bounds {
        bytes: u64::MAX,
        host_bytes: u64::MAX,
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
        for id in 10..PINS_MAX as u64 + 5 {
            // More bytes, but one pin each.
            shares.add(&format!("other-{id}"), (0, id), 1000);
        }
        let gone = all(&mut shares, BOUNDS);
        let oldest = [9, 8, 7, 6, 5].map(|id| (id, Why::Disk));
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
            host_bytes: 10,
            ..BOUNDS
        };
        let gone = all(&mut shares, bounds);
        assert_eq!(gone, [(2, Why::Host), (1, Why::Disk)]);
    }
}
