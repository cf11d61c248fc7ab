//! The time before a capture, from the flight recorder. It is queried when the capture starts,
//! because the recorder may have dropped it by the end, and is kept packed until then.
//!
//! A separate thread runs the query and packs the result, as for clients' queries, and then ends.
//! What does not fit in memory is queried again at the end.

use super::backend::{CaptureBackend, PastQuery};
use profile::Profile;
use prost::Message;
use proto::convert::Chunks;
use proto::wire::ProfileChunk;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::oneshot;

/// Compression level: low, so that the daemon's other threads notice little.
const LEVEL: i32 = 1;

/// Result of the query.
pub(super) enum PastOutcome {
    /// All of it.
    Packed(Packed),
    /// It is larger than it may be while the capture runs.
    TooLarge,
    /// It was not asked, or in vain.
    Nothing,
}

/// A profile in packed pieces.
#[derive(Default)]
pub(super) struct Packed {
    /// With the size of each when it is unpacked.
    pieces: Vec<(Box<[u8]>, usize)>,
    bytes: usize,
}

impl Packed {
    /// Packs it; `None` when it takes more than this. Unit: bytes.
    fn new(profile: Profile, bytes_max: usize) -> io::Result<Option<Packed>> {
        let mut packed = Packed::default();
        for chunk in Chunks::new(profile) {
            let raw = chunk.encode_to_vec();
            let piece = zstd::bulk::compress(&raw, LEVEL)?.into_boxed_slice();
            packed.bytes += piece.len();
            if packed.bytes > bytes_max {
                return Ok(None);
            }
            packed.pieces.push((piece, raw.len()));
        }
        Ok(Some(packed))
    }

    /// Its pieces one after the other; each must be dropped before the next is unpacked.
    pub fn chunks(self) -> impl Iterator<Item = io::Result<ProfileChunk>> {
        self.pieces.into_iter().map(|(piece, size)| {
            let raw = zstd::bulk::decompress(&piece, size)?;
            ProfileChunk::decode(&raw[..]).map_err(io::Error::other)
        })
    }
}

/// The query, and a flag that informs its thread that nobody waits any more.
pub(super) struct Past {
    outcome: oneshot::Receiver<PastOutcome>,
    cancel: Arc<AtomicBool>,
    held: Arc<AtomicU64>,
    /// What was asked.
    pub asked: PastQuery,
}

impl Past {
    /// Runs the query on a thread of its own, as an hour of a large machine takes seconds, and
    /// holds the answer in at most so many bytes. `None`: no thread can be had.
    pub fn ask(
        backend: Arc<dyn CaptureBackend>,
        asked: PastQuery,
        bytes_max: usize,
    ) -> Option<Past> {
        let (cancel, held) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (told, holds, wanted) = (Arc::clone(&cancel), Arc::clone(&held), asked.clone());
        let find = move || {
            let Some(profile) = backend.past(&wanted, &told) else {
                return PastOutcome::Nothing;
            };
            match Packed::new(profile, bytes_max) {
                Ok(Some(packed)) => {
                    holds.store(packed.bytes as u64, Ordering::Relaxed);
                    PastOutcome::Packed(packed)
                }
                Ok(None) => PastOutcome::TooLarge,
                Err(error) => {
                    tracing::warn!(%error, "failed to pack the past of a capture");
                    PastOutcome::Nothing
                }
            }
        };
        let (found, outcome) = oneshot::channel();
        let thread = std::thread::Builder::new().name("fp-query".into());
        // Nobody may want it any more.
        match thread.spawn(move || drop(found.send(find()))) {
            Ok(_) => Some(Past {
                outcome,
                cancel,
                held,
                asked,
            }),
            Err(error) => {
                tracing::warn!(%error, "failed to start a thread for the past of a capture");
                None
            }
        }
    }

    /// Memory of what is held. Unit: bytes.
    pub fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Cancels it: nobody waits for it any more.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// The result. Waits for it; `None` if it was cancelled.
    ///
    /// # Errors
    /// When waiting is not possible.
    pub fn found(self, unwanted: impl Future<Output = ()>) -> io::Result<Option<PastOutcome>> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        Ok(runtime.block_on(async {
            tokio::select! {
                biased;
                // A panic there is logged by its own words.
                found = self.outcome => Some(found.unwrap_or(PastOutcome::Nothing)),
                () = unwanted => {
                    self.cancel.store(true, Ordering::Relaxed);
                    None
                }
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{FrameRef, SampleKey, StackEnd, StackId, Value, key};
    use proto::convert::ProfileAssembler;

    fn profile(rows: u32) -> Profile {
        let mut profile = Profile::default();
        for row in 0..rows {
            let function = format!("function {row}");
            let frame = profile.dict.intern_frame(FrameRef {
                function: &function,
                ..FrameRef::default()
            });
            let key = SampleKey {
                labels: profile.dict.intern_labels([(key::COMM, "a")]),
                stack: profile.dict.stacks.child(StackId::EMPTY, frame),
                end: StackEnd::Complete,
            };
            let value = Value {
                count: 1,
                weight: u64::from(row),
            };
            profile.samples.insert(key, value);
        }
        profile
    }

    #[test]
    fn what_was_packed_comes_out_as_it_was() {
        let packed = Packed::new(profile(20_000), 1 << 20)
            .unwrap()
            .expect("it fits");
        assert!(packed.bytes < 1 << 20 && packed.pieces.len() > 1);
        let mut assembler = ProfileAssembler::new();
        for chunk in packed.chunks() {
            assembler.push(chunk.unwrap()).unwrap();
        }
        let found = assembler.finish().unwrap();
        assert_eq!(found.total(), profile(20_000).total());
        assert_eq!(found.samples.len(), 20_000);
    }

    #[test]
    fn what_is_too_large_is_not_held() {
        assert!(Packed::new(profile(20_000), 1000).unwrap().is_none());
    }
}
