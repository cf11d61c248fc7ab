//! Bounds the memory of answers that wait to be read.
//!
//! A query occupies one of few places while it runs. Its answer is held here until the client has
//! read it. So slow readers can keep others from getting answers, for at most the time limit of one
//! answer, but never from running queries.

use super::HELD_BYTES_MAX;
use profile::Profile;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Unit of what is held. Unit: bytes.
const GRAIN: usize = 1 << 10;

/// A sample in its table, and once more in the order it is sent. Unit: bytes.
const SAMPLE_BYTES: usize = 96;

/// Answers refused because others held too much. One for the process, as its service is.
pub static ANSWERS_REFUSED: AtomicU64 = AtomicU64::new(0);

/// The memory.
#[derive(Clone)]
pub(super) struct HeldAnswers {
    grains: Arc<Semaphore>,
    max: usize,
}

/// Memory of one answer; returned when it is dropped.
pub(super) struct Hold(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl HeldAnswers {
    pub(super) fn new(bytes: usize) -> HeldAnswers {
        let max = (bytes / GRAIN).min(u32::MAX as usize);
        HeldAnswers {
            grains: Arc::new(Semaphore::new(max)),
            max,
        }
    }

    /// Reserves memory for an answer; all of it if the answer is larger.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED while others hold too much.
    pub(super) fn hold(&self, profile: &Profile) -> Result<Hold, Status> {
        let bytes = profile.dict.heap_bytes()
            + profile.samples.len() * SAMPLE_BYTES
            + profile.timestamps.heap_bytes();
        let grains = bytes.div_ceil(GRAIN).min(self.max);
        let permit = self.grains.clone().try_acquire_many_owned(grains as u32);
        permit.map(Hold).map_err(|_| {
            ANSWERS_REFUSED.fetch_add(1, Ordering::Relaxed);
            Status::resource_exhausted(format!(
                "answers that are being sent hold most of {} MiB; try again in a moment",
                HELD_BYTES_MAX >> 20
            ))
        })
    }
}
