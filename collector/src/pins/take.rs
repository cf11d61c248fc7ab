//! Receives one pin of an agent: checks its head, writes it, and verifies that it is a profile.

use super::Inner;
use super::admission::Admitted;
use super::limits::{
    CAUSE_BYTES_MAX, CGROUP_BYTES_MAX, HEAP_BYTES_MAX, PART_BYTES_MAX, TRIGGER_BYTES_MAX,
};
use crate::evidence::{KeepError, ProfileKind};
use crate::ingest::window::host_facts;
use crate::metrics::Metrics;
use crate::store::HOST_ID_BYTES_MAX;
use proto::ProfileAssembler;
use proto::agent;
use proto::collector::{HostPin, PinHead};
use proto::wire::ProfileChunk;
use tokio::sync::mpsc::Receiver;
use tonic::Status;

/// What comes of an agent after the head.
#[expect(
    clippy::large_enum_variant,
    reason = "pieces of a stream: nearly all are chunks, and two wait at most"
)]
pub(super) enum UploadMessage {
    /// A chunk of one of its profiles.
    Chunk(ProfileKind, ProfileChunk),
    /// The agent has said all.
    End,
}

/// Checks and bounds the head of a pin from an agent.
pub(super) fn head(asked: PinHead, now_unix_ns: i64, metrics: &Metrics) -> Result<HostPin, Status> {
    let hello = asked.hello.ok_or_else(|| fault("the head has no host"))?;
    let pin = asked.pin.ok_or_else(|| fault("the head has no pin"))?;
    if hello.host_id.is_empty() || hello.host_id.len() > HOST_ID_BYTES_MAX {
        let bytes = hello.host_id.len();
        return Err(fault(format!(
            "a host id must have 1 to {HOST_ID_BYTES_MAX} bytes, not {bytes}"
        )));
    }
    let range = pin.range.unwrap_or_default();
    if range.start_unix_ns < 0 || range.end_unix_ns < range.start_unix_ns || pin.fired_unix_ns < 0 {
        return Err(fault("its range ends before it starts, or is before 1970"));
    }
    let facts = host_facts(hello.facts.unwrap_or_default(), metrics);
    let cut = |text: &str, most: usize| text[..text.floor_char_boundary(most)].to_owned();
    Ok(HostPin {
        id: 0,
        hostname: facts.hostname,
        host_id: hello.host_id,
        pin: Some(agent::Pin {
            id: pin.id,
            trigger: cut(&pin.trigger, TRIGGER_BYTES_MAX),
            cause: cut(&pin.cause, CAUSE_BYTES_MAX),
            cgroup: cut(&pin.cgroup, CGROUP_BYTES_MAX),
            fired_unix_ns: pin.fired_unix_ns,
            range: Some(range),
            ..agent::Pin::default()
        }),
        received_unix_ns: now_unix_ns,
        clock_ahead_ns: hello.now_unix_ns.saturating_sub(now_unix_ns),
    })
}

impl Inner {
    /// Writes what arrives until its end. Blocks. A pin is stored completely or not at all.
    pub(super) fn take(
        &self,
        head: HostPin,
        has_capture: bool,
        admitted: &mut Admitted,
        pieces: &mut Receiver<UploadMessage>,
    ) -> Result<(), Status> {
        let files = self.files()?;
        let mut upload = files
            .start(head)
            .map_err(|error| self.failed(error.into()))?;
        let mut part = ProfileKind::Minutes;
        let mut assembler = ProfileAssembler::with_limit(PART_BYTES_MAX);
        loop {
            let Some(piece) = pieces.blocking_recv() else {
                return Err(Status::cancelled("the pin is incomplete"));
            };
            let (of, chunk) = match piece {
                UploadMessage::Chunk(of, chunk) => (of, chunk),
                UploadMessage::End => break,
            };
            if of != part {
                if of == ProfileKind::Minutes || !has_capture {
                    return Err(fault("its chunks are not in the order that its head names"));
                }
                part = of;
                let next = ProfileAssembler::with_limit(PART_BYTES_MAX);
                // Its memory is given back: it has been seen.
                std::mem::replace(&mut assembler, next)
                    .finish()
                    .map_err(fault)?;
            }
            let written = upload.push(of, &chunk);
            let bytes = written.map_err(|error| self.failed(error))?;
            admitted.add_bytes(bytes);
            assembler.push(chunk).map_err(fault)?;
            if assembler.heap_bytes() > HEAP_BYTES_MAX {
                let mib = HEAP_BYTES_MAX >> 20;
                return Err(fault(format!(
                    "the pin takes more than {mib} MiB of memory"
                )));
            }
        }
        assembler.finish().map_err(fault)?;
        if has_capture != (part == ProfileKind::Captured) {
            return Err(fault("the pin ends before its capture"));
        }
        upload.finish().map_err(|error| self.failed(error))?;
        self.prune();
        Ok(())
    }

    /// The error for a pin that was not stored.
    fn failed(&self, error: KeepError) -> Status {
        match error {
            KeepError::TooLarge { .. } => fault(error),
            KeepError::Write(source) => {
                self.metrics.pins_failed.inc();
                tracing::warn!(%source, "failed to write a pin of an agent; it will upload it again");
                Status::unavailable(format!("failed to write the pin: {source}"))
            }
        }
    }
}

/// The agent's pin cannot be taken, now or later.
pub(super) fn fault(what: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("failed to use the pin: {what}"))
}
