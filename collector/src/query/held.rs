//! Bounds answers that wait to be read: their number and their total memory.
//!
//! A running query may use `query.memory_mib`, in one of `query.concurrent` places. Its answer
//! leaves that place and is held here until its client has read it; all held answers together may
//! use as much memory as one query. So slow readers can keep each other waiting, but never a query.

use super::Queries;
use crate::memory::{MemoryPool, Reservation};
use crate::metrics::Metrics;
use profile::Profile;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::Status;

/// Answers held for clients to read, over all clients. More are refused.
pub(crate) const ANSWERS_MAX: usize = 16;

/// When a client that was refused because others read may come again. Unit: seconds. Most answers
/// are read in one; a slow reader is cut off after [`ANSWER_TIMEOUT`](super::ANSWER_TIMEOUT).
pub(crate) const RETRY_AFTER_S: u64 = 5;

/// Name under which a refusal says when to come again: of HTTP, and of the metadata of gRPC.
pub(crate) const RETRY_AFTER: &str = "retry-after";

/// A sample in its table, and once more in the order it is sent. Unit: bytes.
const SAMPLE_BYTES: usize = 96;

/// The places and the memory.
pub(super) struct Answers {
    places: Arc<Semaphore>,
    memory: Arc<MemoryPool>,
    metrics: Arc<Metrics>,
}

/// A place for one answer; what it holds is given back when it is dropped.
pub(crate) struct ResponseSlot {
    _place: OwnedSemaphorePermit,
    memory: Arc<MemoryPool>,
    held: Reservation,
    metrics: Arc<Metrics>,
}

impl Answers {
    pub fn new(memory_bytes: usize, metrics: Arc<Metrics>) -> Answers {
        Answers {
            places: Arc::new(Semaphore::new(ANSWERS_MAX)),
            memory: MemoryPool::new(memory_bytes, metrics.clone(), |m| &m.answer_bytes),
            metrics,
        }
    }
}

impl Queries {
    /// A place for an answer that is held until it is read.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, with when to come again, when there is none.
    pub(crate) fn response_slot(&self) -> Result<ResponseSlot, Status> {
        let answers = &self.0.answers;
        let place = answers.places.clone().try_acquire_owned().map_err(|_| {
            answers.metrics.answers_refused.inc();
            busy(format!(
                "{ANSWERS_MAX} answers are already being sent, which is the limit; try again in a \
                 moment"
            ))
        })?;
        Ok(ResponseSlot {
            _place: place,
            memory: answers.memory.clone(),
            held: answers.memory.reserve(),
            metrics: answers.metrics.clone(),
        })
    }
}

impl ResponseSlot {
    /// Takes memory for what is to be read.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED, with when to come again, while others hold too much; without it when the
    /// answer is larger than all of it.
    pub fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        let mib = self.memory.mib();
        if bytes > self.memory.bytes_max() {
            self.metrics.answers_refused.inc();
            return Err(Status::resource_exhausted(format!(
                "the answer takes more than {mib} MiB (`query.memory_mib`): use fewer labels or a \
                 shorter range"
            )));
        }
        if self.held.grow(bytes) {
            return Ok(());
        }
        self.metrics.answers_refused.inc();
        Err(busy(format!(
            "answers that are being sent hold most of {mib} MiB (`query.memory_mib`); try again in \
             a moment"
        )))
    }

    /// Releases the memory of what was read.
    pub fn release(&mut self, bytes: usize) {
        self.held.shrink(bytes);
    }
}

/// Approximate memory of a profile until it is sent, including the times of its samples. Unit:
/// bytes.
pub(crate) fn profile_bytes(profile: &Profile) -> usize {
    let samples = profile.samples.len() * SAMPLE_BYTES;
    profile.dict.heap_bytes() + samples + profile.timestamps.heap_bytes()
}

/// A refusal that does not last.
pub(crate) fn busy(text: String) -> Status {
    let mut status = Status::resource_exhausted(text);
    status
        .metadata_mut()
        .insert(RETRY_AFTER, RETRY_AFTER_S.into());
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(answers: &Answers) -> ResponseSlot {
        ResponseSlot {
            _place: answers.places.clone().try_acquire_owned().expect("free"),
            memory: answers.memory.clone(),
            held: answers.memory.reserve(),
            metrics: answers.metrics.clone(),
        }
    }

    #[test]
    fn what_is_held_is_bounded_over_all_and_given_back() {
        let metrics = Arc::new(Metrics::default());
        let answers = Answers::new(10, metrics.clone());
        let (mut one, mut other) = (place(&answers), place(&answers));
        one.hold(6).expect("free");
        let refused = other.hold(5).expect_err("too much for now");
        assert!(refused.metadata().contains_key(RETRY_AFTER));
        let refused = other.hold(11).expect_err("too much for ever");
        assert!(!refused.metadata().contains_key(RETRY_AFTER));
        one.release(2);
        other.hold(5).expect("given back");
        assert_eq!(metrics.answer_bytes.get(), 9);
        one.release(usize::MAX);
        drop((one, other));
        assert_eq!(metrics.answer_bytes.get(), 0);
        assert!(answers.memory.reserve().has_room(10));
    }
}
