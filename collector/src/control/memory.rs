//! The memory that results of all fan-outs together may hold.

use crate::metrics::Metrics;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What may be held, and what is.
pub struct Budget {
    bytes_max: usize,
    used: AtomicUsize,
    metrics: Arc<Metrics>,
}

/// Memory that is held until this is dropped.
pub struct Held {
    bytes: usize,
    budget: Arc<Budget>,
}

impl Budget {
    /// So many bytes in all.
    pub fn new(bytes_max: usize, metrics: Arc<Metrics>) -> Budget {
        Budget {
            bytes_max,
            used: AtomicUsize::new(0),
            metrics,
        }
    }

    /// The bound. Unit: MiB.
    pub fn mib(&self) -> usize {
        self.bytes_max >> 20
    }

    /// The bound. Unit: bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// Nothing yet, of this budget.
    pub fn hold(self: &Arc<Self>) -> Held {
        Held {
            bytes: 0,
            budget: self.clone(),
        }
    }
}

impl Held {
    /// Takes `more` bytes; false when they are not free.
    pub fn grow(&mut self, more: usize) -> bool {
        let max = self.budget.bytes_max;
        let take = |used: usize| used.checked_add(more).filter(|&sum| sum <= max);
        // Relaxed: the number alone matters.
        let taken = self
            .budget
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_err() {
            return false;
        }
        self.bytes += more;
        self.budget.metrics.control_bytes.inc_by(more as u64);
        true
    }

    /// What is held. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether [`Held::grow`] would take so many more, as far as nobody else takes them first.
    pub fn has_room(&self, more: usize) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed);
        used.checked_add(more)
            .is_some_and(|sum| sum <= self.budget.bytes_max)
    }

    /// Holds so many, no more and no fewer. What is there is counted even beyond the bound, where
    /// it keeps all else out until it is given back: tables double when they are full.
    pub fn settle(&mut self, bytes: usize) {
        let (used, gauge) = (&self.budget.used, &self.budget.metrics.control_bytes);
        if bytes > self.bytes {
            let more = bytes - self.bytes;
            used.fetch_add(more, Ordering::Relaxed);
            gauge.inc_by(more as u64);
        } else {
            let less = self.bytes - bytes;
            used.fetch_sub(less, Ordering::Relaxed);
            gauge.dec_by(less as u64);
        }
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.settle(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_over_all_and_given_back() {
        let metrics = Arc::new(Metrics::default());
        let budget = Arc::new(Budget::new(100, metrics.clone()));
        let (mut one, mut other) = (budget.hold(), budget.hold());
        assert!(one.grow(60) && other.grow(40));
        assert!(!one.grow(1) && !other.grow(usize::MAX));
        one.settle(50);
        assert!(one.has_room(10) && !one.has_room(11));
        assert!(other.grow(10));
        assert_eq!(metrics.control_bytes.get(), 100);
        one.settle(70);
        assert_eq!(metrics.control_bytes.get(), 120);
        assert!(!other.grow(1) && !other.has_room(0));
        drop((one, other));
        assert_eq!(metrics.control_bytes.get(), 0);
        assert!(budget.hold().grow(100));
    }
}
