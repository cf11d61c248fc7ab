//! Pools of memory, one per kind of work: bounded numbers, shown as a metric.
//!
//! Three kinds of work have a pool each: windows on their way to the store (`ingest/`), results of
//! captures (`control/`), and answers that wait to be read (`query/held.rs`). Each of them decides
//! what it answers if its pool is full.

use crate::metrics::Metrics;
use metrics::Gauge;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::{Mutex, Notify};

/// The limit and the current use.
pub struct MemoryPool {
    bytes_max: usize,
    /// Relaxed everywhere: the number alone matters.
    used: AtomicUsize,
    /// How many wait. What becomes free is theirs.
    waiting: AtomicUsize,
    /// Held by the next in line, so that nobody who needs much waits forever.
    turn: Mutex<()>,
    freed: Notify,
    metrics: Arc<Metrics>,
    gauge: fn(&Metrics) -> &Gauge,
}

/// Memory that is held until this is dropped. The default one is of no pool and holds nothing.
#[derive(Default)]
pub struct Reservation {
    bytes: usize,
    pool: Option<Arc<MemoryPool>>,
}

/// Counts one that waits, however that ends.
struct Waiting<'p>(&'p AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl MemoryPool {
    /// Creates a pool of this many bytes; `gauge` shows the current use.
    pub fn new(
        bytes_max: usize,
        metrics: Arc<Metrics>,
        gauge: fn(&Metrics) -> &Gauge,
    ) -> Arc<MemoryPool> {
        Arc::new(MemoryPool {
            bytes_max,
            used: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            turn: Mutex::new(()),
            freed: Notify::new(),
            metrics,
            gauge,
        })
    }

    /// The bound. Unit: bytes.
    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// The bound. Unit: MiB.
    pub fn mib(&self) -> usize {
        self.bytes_max >> 20
    }

    /// A reservation of this pool that holds nothing yet.
    pub fn reserve(self: &Arc<Self>) -> Reservation {
        Reservation {
            bytes: 0,
            pool: Some(Arc::clone(self)),
        }
    }

    /// Waits until `bytes` are free and takes them; `None` when they never will be. Who comes first
    /// is served first.
    pub async fn take(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        if bytes > self.bytes_max {
            return None;
        }
        if let Some(taken) = self.try_take(bytes) {
            return Some(taken);
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let _turn = self.turn.lock().await;
        let mut taken = self.reserve();
        while !taken.grow(bytes) {
            self.freed.notified().await;
        }
        Some(taken)
    }

    /// Reserves `bytes`; `None` if they are not free now, or others wait.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Reservation> {
        let mut taken = self.reserve();
        if bytes > 0 && self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        taken.grow(bytes).then_some(taken)
    }

    fn add(&self, more: usize) {
        (self.gauge)(&self.metrics).inc_by(more as u64);
    }

    fn give_back(&self, less: usize) {
        self.used.fetch_sub(less, Ordering::Relaxed);
        (self.gauge)(&self.metrics).dec_by(less as u64);
        self.freed.notify_one();
    }
}

impl Reservation {
    /// What is held. Unit: bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `more` bytes; false if they are not free.
    pub fn grow(&mut self, more: usize) -> bool {
        let Some(pool) = &self.pool else {
            return more == 0;
        };
        let take = |used: usize| {
            let sum = used.checked_add(more);
            sum.filter(|&sum| sum <= pool.bytes_max)
        };
        let taken = pool
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        if taken.is_err() {
            return false;
        }
        self.bytes += more;
        pool.add(more);
        true
    }

    /// Whether [`Reservation::grow`] would take so many more, as far as nobody else takes them
    /// first.
    pub fn has_room(&self, more: usize) -> bool {
        self.pool.as_ref().is_some_and(|pool| {
            let sum = pool.used.load(Ordering::Relaxed).checked_add(more);
            sum.is_some_and(|sum| sum <= pool.bytes_max)
        })
    }

    /// Returns this many bytes, or everything that is held if that is less.
    pub fn shrink(&mut self, less: usize) {
        let less = less.min(self.bytes);
        if let Some(pool) = self.pool.as_ref().filter(|_| less > 0) {
            self.bytes -= less;
            pool.give_back(less);
        }
    }

    /// Holds so many, no more and no fewer. What is there is counted even beyond the bound, where
    /// it keeps all else out until it is given back: tables double when they are full.
    pub fn settle(&mut self, bytes: usize) {
        if bytes <= self.bytes {
            return self.shrink(self.bytes - bytes);
        }
        if let Some(pool) = &self.pool {
            let more = bytes - self.bytes;
            pool.used.fetch_add(more, Ordering::Relaxed);
            pool.add(more);
            self.bytes = bytes;
        }
    }

    /// Takes over what `other`, of the same pool, holds.
    pub fn join(&mut self, mut other: Reservation) {
        self.bytes += std::mem::take(&mut other.bytes);
        self.pool = self.pool.take().or(other.pool.take());
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(bytes: usize) -> (Arc<MemoryPool>, Arc<Metrics>) {
        let metrics = Arc::new(Metrics::default());
        let pool = MemoryPool::new(bytes, metrics.clone(), |metrics| &metrics.control_bytes);
        (pool, metrics)
    }

    #[test]
    fn memory_is_bounded_over_all_and_given_back() {
        let (pool, metrics) = pool(100);
        let (mut one, mut other) = (pool.reserve(), pool.reserve());
        assert!(one.grow(60) && other.grow(40));
        assert!(!one.grow(1) && !other.grow(usize::MAX));
        one.settle(50);
        assert!(one.has_room(10) && !one.has_room(11));
        assert!(other.grow(10));
        assert_eq!(metrics.control_bytes.get(), 100);
        one.settle(70);
        assert_eq!(metrics.control_bytes.get(), 120);
        assert!(!other.grow(1) && !other.has_room(0));
        one.shrink(30);
        assert_eq!((one.bytes(), metrics.control_bytes.get()), (40, 90));
        let mut both = Reservation::default();
        assert!(both.grow(0) && !both.grow(1));
        both.join(one);
        both.join(other);
        assert_eq!((both.bytes(), metrics.control_bytes.get()), (90, 90));
        drop(both);
        assert_eq!(metrics.control_bytes.get(), 0);
        assert!(pool.reserve().grow(100));
    }

    #[tokio::test]
    async fn who_waits_for_much_is_not_passed_by() {
        let (pool, metrics) = pool(100);
        assert!(pool.take(101).await.is_none());
        let held = pool.take(60).await;
        let much = tokio::spawn({
            let pool = pool.clone();
            async move { pool.take(80).await }
        });
        while pool.waiting.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        assert!(pool.try_take(1).is_none() && pool.try_take(0).is_some());
        drop(held);
        let much = much.await.unwrap();
        assert_eq!(much.as_ref().map(Reservation::bytes), Some(80));
        assert_eq!(metrics.control_bytes.get(), 80);
        // As long as one waits, and no longer.
        let mut given_up = std::pin::pin!(pool.take(90));
        let waits = std::future::poll_fn(|context| {
            std::task::Poll::Ready(given_up.as_mut().poll(context).is_pending())
        });
        assert!(waits.await);
        assert!(pool.try_take(1).is_none());
        drop(much);
        assert_eq!(given_up.await.map(|held| held.bytes()), Some(90));
        assert!(pool.try_take(1).is_some());
    }
}
