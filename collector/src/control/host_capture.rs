//! One host's capture in a fan-out: the command, the agent's reports, and the assembled profile.
//!
//! Runs as a task of its own. It accepts every report at once and never waits for the client, so
//! that an agent's stream is not held up. What an agent sends is untrusted, and can only harm its
//! own capture.

use super::agent_registry::{ConnectedAgent, Reported, SentCommand};
use super::cancel::cancel_asked;
use super::limits::{HOST_BYTES_MAX, HOST_MEMORY_PART, NOTICES_MAX, TEXT_BYTES_MAX};
use super::merge::Arrived;
use crate::memory::{MemoryPool, Reservation};
use crate::metrics::Metrics;
use crate::time::Clock;
use profile::Profile;
use proto::agent::{CaptureInfo, CaptureResponse, CaptureState, capture_response};
use proto::collector::{HostProgress, HostState, report};
use proto::{AssembleError, ProfileAssembler, wire};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tonic::Code;

/// A change of a host, for its fan-out.
pub enum Event {
    /// It has come further.
    Progress(usize, HostProgress),
    /// It has ended, or several have together.
    Ended(Vec<(usize, HostProgress)>, Option<Box<Arrived>>),
}

/// Why a host's capture failed.
#[derive(Debug, thiserror::Error)]
pub enum HostCaptureError {
    /// The agent, or its connection, has gone.
    #[error("the connection of the host ended")]
    Left,
    /// The agent said so.
    #[error("{0}")]
    Refused(String),
    /// Its chunks are no profile.
    #[error("the answer of the host is invalid: {0}")]
    Unusable(IncomingError),
    /// More than one host has.
    #[error(
        "the profile of the host takes more than {mib} MiB, the share of `query.memory_mib` for \
         one host; capture for a shorter time, or group by fewer labels"
    )]
    Large {
        /// The bound.
        mib: usize,
    },
    /// No room.
    #[error(
        "no memory for the profile of the host: all results share {mib} MiB (`query.memory_mib`); \
         capture fewer hosts, or for a shorter time"
    )]
    Memory {
        /// The bound.
        mib: usize,
    },
}

/// A host's capture, before it runs.
pub struct HostCapture {
    /// Its place in the plan.
    pub at: usize,
    /// Its progress so far.
    pub progress: HostProgress,
    /// Labels to put on its samples.
    pub labels: Vec<(String, String)>,
    /// Its agent.
    pub agent: Arc<ConnectedAgent>,
    /// The collector's clock.
    pub clock: Clock,
    /// Memory for assembling profiles.
    pub memory: Arc<MemoryPool>,
    /// To the fan-out.
    pub events: mpsc::Sender<Event>,
    /// True when it is to end with what there is.
    pub cancel: watch::Receiver<bool>,
    /// Counts what is refused.
    pub metrics: Arc<Metrics>,
}

/// Profiles that come, of a host or of another collector, in memory that is counted as it is taken.
pub struct Incoming {
    past: Option<ProfileAssembler>,
    own: Option<ProfileAssembler>,
    held: Reservation,
    encoded_max: usize,
    heap_max: usize,
}

/// Why what comes is not taken.
#[derive(Debug, thiserror::Error)]
pub enum IncomingError {
    /// It is no profile.
    #[error(transparent)]
    Malformed(#[from] AssembleError),
    /// It ended before it was complete.
    #[error("the capture ended before its profile was complete")]
    Incomplete,
    /// It takes more memory than one sender has.
    #[error("the profile takes more than {mib} MiB of memory")]
    Large {
        /// The bound.
        mib: usize,
    },
    /// There is no memory for it.
    #[error("no memory is left for the profile")]
    Memory,
}

impl HostCapture {
    /// Handles the reports of the command until the last one.
    pub async fn run(mut self, mut sent: SentCommand) {
        let heap_max = self.memory.bytes_max() / HOST_MEMORY_PART;
        let mut incoming = Incoming::new(self.memory.reserve(), HOST_BYTES_MAX, heap_max);
        let outcome = self.reports(&mut sent, &mut incoming).await;
        // Informs the agent if it has not sent its last report.
        drop(sent);
        let arrived = match outcome {
            Ok(info) => self.finish(info, incoming).await,
            Err(error) => {
                self.failed(&error);
                None
            }
        };
        let ended = vec![(self.at, self.progress)];
        // A fan-out that is gone has no use for it.
        let _ = self.events.send(Event::Ended(ended, arrived)).await;
    }

    async fn reports(
        &mut self,
        sent: &mut SentCommand,
        incoming: &mut Incoming,
    ) -> Result<CaptureInfo, HostCaptureError> {
        let mut cancelled = false;
        loop {
            let reported = tokio::select! {
                reported = sent.next() => reported.ok_or(HostCaptureError::Left)?,
                () = cancel_asked(&mut self.cancel), if !cancelled => {
                    cancelled = true;
                    sent.cancel();
                    continue;
                }
            };
            let Reported { what, held: _held } = reported;
            match what.ok_or_else(|| self.no_room())? {
                report::What::Refusal(refusal) => {
                    return Err(HostCaptureError::Refused(refused(
                        refusal.code,
                        &refusal.message,
                    )));
                }
                report::What::Response(CaptureResponse { body }) => match body {
                    Some(capture_response::Body::Accepted(info)) => self.running(info).await,
                    Some(capture_response::Body::Progress(progress)) => {
                        self.progress.progress = Some(progress);
                        self.tell().await;
                    }
                    Some(capture_response::Body::Past(chunk)) => {
                        incoming.past(chunk).map_err(|error| self.unusable(error))?;
                    }
                    Some(capture_response::Body::Chunk(chunk)) => {
                        incoming.own(chunk).map_err(|error| self.unusable(error))?;
                    }
                    Some(capture_response::Body::Result(info)) => return Ok(info),
                    // A later version sends kinds of messages that this one does not know.
                    None => {}
                },
            }
        }
    }

    fn no_room(&self) -> HostCaptureError {
        let mib = self.memory.mib();
        HostCaptureError::Memory { mib }
    }

    fn unusable(&self, error: IncomingError) -> HostCaptureError {
        match error {
            IncomingError::Memory => self.no_room(),
            IncomingError::Large { mib } => HostCaptureError::Large { mib },
            error => HostCaptureError::Unusable(error),
        }
    }

    async fn running(&mut self, info: CaptureInfo) {
        self.progress.state = HostState::Running.into();
        self.progress.notices = notices(info.notices);
        self.tell().await;
    }

    async fn tell(&self) {
        let event = Event::Progress(self.at, self.progress.clone());
        let _ = self.events.send(event).await;
    }

    /// Handles the end of a capture.
    async fn finish(&mut self, info: CaptureInfo, incoming: Incoming) -> Option<Box<Arrived>> {
        let state = info.state();
        self.progress.notices = notices(info.notices);
        self.progress.progress = info.progress.or(self.progress.progress.take());
        let host = match state {
            CaptureState::Complete => HostState::Done,
            CaptureState::Cancelled => HostState::Partial,
            CaptureState::Failed | CaptureState::Running | CaptureState::Unspecified => {
                let error = match info.error.is_empty() {
                    true => "the capture failed, and the host gave no reason".to_owned(),
                    false => bounded(&info.error),
                };
                self.failed(&HostCaptureError::Refused(error));
                return None;
            }
        };
        let whole = incoming.whole().and_then(|(past, own, held)| {
            let own = own.ok_or(IncomingError::Incomplete)?;
            Ok((past, own, held))
        });
        match whole {
            Ok((past, own, held)) => {
                self.progress.state = host.into();
                self.progress.message = bounded(&info.error);
                // A clock may have been set since the agent said who it is.
                let clock_ahead_ns = self.agent.clock_ahead(&self.clock).await;
                Some(Box::new(Arrived {
                    past,
                    own: Some(own),
                    labels: std::mem::take(&mut self.labels),
                    clock_ahead_ns,
                    held,
                }))
            }
            Err(error) => {
                self.failed(&self.unusable(error));
                None
            }
        }
    }

    fn failed(&mut self, error: &HostCaptureError) {
        let state = match error {
            HostCaptureError::Left => HostState::Lost,
            _ => HostState::Failed,
        };
        match error {
            HostCaptureError::Unusable(_) => _ = self.metrics.control_malformed.inc(),
            HostCaptureError::Memory { .. } | HostCaptureError::Large { .. } => {
                self.metrics.control_refused.inc();
            }
            HostCaptureError::Left | HostCaptureError::Refused(_) => {}
        }
        self.progress.state = state.into();
        self.progress.message = error.to_string();
    }
}

impl Incoming {
    /// Creates it empty, for profiles of at most this many encoded bytes each, and this many in
    /// memory together.
    pub fn new(held: Reservation, encoded_max: usize, heap_max: usize) -> Incoming {
        Incoming {
            past: None,
            own: None,
            held,
            encoded_max,
            heap_max,
        }
    }

    /// Takes more of the time before.
    ///
    /// # Errors
    /// When it cannot be; nothing can after that.
    pub fn past(&mut self, chunk: wire::ProfileChunk) -> Result<(), IncomingError> {
        assembler(&mut self.past, self.encoded_max).push(chunk)?;
        self.weigh()
    }

    /// Takes more of the capture, once what came of the time before is complete.
    ///
    /// # Errors
    /// When it cannot be; nothing can after that.
    pub fn own(&mut self, chunk: wire::ProfileChunk) -> Result<(), IncomingError> {
        if self.past.as_ref().is_some_and(|past| !past.is_complete()) {
            return Err(IncomingError::Incomplete);
        }
        assembler(&mut self.own, self.encoded_max).push(chunk)?;
        self.weigh()
    }

    /// Counts what there is. What a chunk was too much by is given back at once by whoever drops
    /// this.
    fn weigh(&mut self) -> Result<(), IncomingError> {
        let sides = [&self.past, &self.own].into_iter().flatten();
        let bytes: usize = sides.map(ProfileAssembler::heap_bytes).sum();
        if bytes > self.heap_max {
            let mib = self.heap_max >> 20;
            return Err(IncomingError::Large { mib });
        }
        match self.held.grow(bytes.saturating_sub(self.held.bytes())) {
            true => Ok(()),
            false => Err(IncomingError::Memory),
        }
    }

    /// What came, and its memory. None of the capture: nobody captured.
    ///
    /// # Errors
    /// When the last of it is missing.
    pub fn whole(self) -> Result<(Option<Profile>, Option<Profile>, Reservation), IncomingError> {
        let whole =
            |assembler: ProfileAssembler| assembler.finish().map_err(|_| IncomingError::Incomplete);
        let past = self.past.map(whole).transpose()?;
        let own = self.own.map(whole).transpose()?;
        Ok((past, own, self.held))
    }
}

fn assembler(place: &mut Option<ProfileAssembler>, encoded_max: usize) -> &mut ProfileAssembler {
    place.get_or_insert_with(|| ProfileAssembler::with_limit(encoded_max))
}

/// Text of an agent, within bounds. Whoever shows it escapes it.
pub fn bounded(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_BYTES_MAX)].to_owned()
}

/// Notices of an agent, within bounds.
pub fn notices(all: Vec<String>) -> Vec<String> {
    let few = all.iter().take(NOTICES_MAX);
    few.map(|notice| bounded(notice)).collect()
}

/// Text of an agent's rejection.
pub fn refused(code: i32, message: &str) -> String {
    match message.is_empty() {
        true => format!("it refused: {}", Code::from_i32(code).description()),
        false => bounded(message),
    }
}
