//! The memory that all streams together may hold: a semaphore counted in KiB.

use crate::metrics::Metrics;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Unit of the semaphore. Unit: bytes.
const GRAIN: usize = 1 << 10;

/// Hands memory out, as numbers.
#[derive(Clone)]
pub struct Memory {
    free: Arc<Semaphore>,
    grains: usize,
    metrics: Arc<Metrics>,
}

/// Memory that is held until this is dropped.
#[derive(Default)]
pub struct Held {
    permit: Option<OwnedSemaphorePermit>,
    metrics: Option<Arc<Metrics>>,
}

impl Memory {
    /// `bytes` in all.
    pub fn new(bytes: usize, metrics: Arc<Metrics>) -> Memory {
        let grains = bytes.div_ceil(GRAIN).min(Semaphore::MAX_PERMITS);
        Memory {
            free: Arc::new(Semaphore::new(grains)),
            grains,
            metrics,
        }
    }

    /// Waits until `bytes` are free and takes them; `None` when they never will be.
    pub async fn take(&self, bytes: usize) -> Option<Held> {
        let Some(grains) = self.grains(bytes)? else {
            return Some(Held::default());
        };
        let permit = self.free.clone().acquire_many_owned(grains).await.ok()?;
        Some(self.held(permit))
    }

    /// Takes `bytes`; `None` when they are not free now.
    pub fn try_take(&self, bytes: usize) -> Option<Held> {
        let Some(grains) = self.grains(bytes)? else {
            return Some(Held::default());
        };
        let permit = self.free.clone().try_acquire_many_owned(grains).ok()?;
        Some(self.held(permit))
    }

    /// How many grains that is; none for nothing at all.
    fn grains(&self, bytes: usize) -> Option<Option<u32>> {
        let grains = bytes.div_ceil(GRAIN);
        if grains > self.grains {
            return None;
        }
        let grains = u32::try_from(grains).ok()?;
        Some((grains > 0).then_some(grains))
    }

    fn held(&self, permit: OwnedSemaphorePermit) -> Held {
        let bytes = permit.num_permits() as u64 * GRAIN as u64;
        self.metrics.ingest_bytes.inc_by(bytes);
        Held {
            permit: Some(permit),
            metrics: Some(self.metrics.clone()),
        }
    }
}

impl Held {
    /// Takes over what `other` holds.
    pub fn join(&mut self, mut other: Held) {
        match (&mut self.permit, other.permit.take()) {
            (Some(permit), Some(more)) => permit.merge(more),
            (none, more) => *none = more,
        }
        self.metrics = self.metrics.take().or(other.metrics.take());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let (Some(permit), Some(metrics)) = (&self.permit, &self.metrics) {
            metrics
                .ingest_bytes
                .dec_by(permit.num_permits() as u64 * GRAIN as u64);
        }
    }
}
