//! One host's part of a fan-out: the order, what the agent reports of it, and the profile put together.
//!
//! A task of its own. It takes every report at once and never waits for the client, so that an agent's stream
//! is not held up; what an agent sends is an attacker's, and costs its own part alone.

use super::attendance::Ordered;
use super::fanout::cancel_asked;
use super::limits::{BYTES_PER_ENCODED, HOST_BYTES_MAX, NOTICES_MAX, TEXT_BYTES_MAX};
use super::memory::{Budget, Held};
use super::merge::Arrived;
use crate::metrics::Metrics;
use profile::Profile;
use prost::Message;
use proto::agent::{CaptureInfo, CaptureResponse, CaptureState, capture_response};
use proto::collector::{HostProgress, HostState, report};
use proto::{AssembleError, ProfileAssembler, wire};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tonic::Code;

/// What becomes of a host, for its fan-out.
pub enum Event {
    /// It has come further.
    Progress(usize, HostProgress),
    /// It has ended, or several have together.
    Ended(Vec<(usize, HostProgress)>, Option<Box<Arrived>>),
}

/// Why a host's part failed.
#[derive(Debug, thiserror::Error)]
pub enum PartError {
    /// The agent, or its connection, has gone.
    #[error("it left: its connection ended")]
    Left,
    /// The agent said so.
    #[error("{0}")]
    Refused(String),
    /// Its chunks are no profile.
    #[error("what it sent cannot be used: {0}")]
    Malformed(#[from] AssembleError),
    /// It said that it has ended, before its profile was whole.
    #[error("what it sent cannot be used: it ended before its profile was whole")]
    Incomplete,
    /// No room.
    #[error(
        "its profile found no room: results have {mib} MiB (`query.memory_mib`) together; capture fewer \
         hosts, or for a shorter time"
    )]
    Memory {
        /// The bound.
        mib: usize,
    },
}

/// A host's part, before it runs.
pub struct Part {
    /// Its place in the plan.
    pub at: usize,
    /// What is known of it so far.
    pub progress: HostProgress,
    /// Labels to put on its samples.
    pub labels: Vec<(String, String)>,
    /// By how much its clock is ahead.
    pub clock_ahead_ns: i64,
    /// Where profiles are put together.
    pub budget: Arc<Budget>,
    /// To the fan-out.
    pub events: mpsc::Sender<Event>,
    /// True when it is to end with what there is.
    pub cancel: watch::Receiver<bool>,
    /// Counts what is refused.
    pub metrics: Arc<Metrics>,
}

/// Profiles that come.
struct Incoming {
    past: Option<ProfileAssembler>,
    own: Option<ProfileAssembler>,
    held: Held,
    mib: usize,
}

impl Part {
    /// Takes what is reported of the order until the last.
    pub async fn run(mut self, mut ordered: Ordered) {
        let mut incoming = Incoming {
            past: None,
            own: None,
            held: self.budget.hold(),
            mib: self.budget.mib(),
        };
        let outcome = self.reports(&mut ordered, &mut incoming).await;
        // Tells the agent where it has not said its last.
        drop(ordered);
        let arrived = match outcome {
            Ok(info) => self.finish(info, incoming),
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
        ordered: &mut Ordered,
        incoming: &mut Incoming,
    ) -> Result<CaptureInfo, PartError> {
        let mut cancelled = false;
        loop {
            let what = tokio::select! {
                what = ordered.next() => what.ok_or(PartError::Left)?,
                () = cancel_asked(&mut self.cancel), if !cancelled => {
                    cancelled = true;
                    ordered.cancel();
                    continue;
                }
            };
            match what {
                report::What::Refusal(refusal) => {
                    return Err(PartError::Refused(refused(refusal.code, &refusal.message)));
                }
                report::What::Response(CaptureResponse { body }) => match body {
                    Some(capture_response::Body::Accepted(info)) => self.running(info).await,
                    Some(capture_response::Body::Progress(progress)) => {
                        self.progress.progress = Some(progress);
                        self.tell().await;
                    }
                    Some(capture_response::Body::Past(chunk)) => incoming.past(chunk)?,
                    Some(capture_response::Body::Chunk(chunk)) => incoming.own(chunk)?,
                    Some(capture_response::Body::Result(info)) => return Ok(info),
                    // Of a later version.
                    None => {}
                },
            }
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

    /// What a capture that has ended is worth.
    fn finish(&mut self, info: CaptureInfo, incoming: Incoming) -> Option<Box<Arrived>> {
        let state = info.state();
        self.progress.notices = notices(info.notices);
        self.progress.progress = info.progress.or(self.progress.progress.take());
        let host = match state {
            CaptureState::Complete => HostState::Done,
            CaptureState::Cancelled => HostState::Partial,
            CaptureState::Failed | CaptureState::Running | CaptureState::Unspecified => {
                let error = match info.error.is_empty() {
                    true => "it failed for a reason it did not say".to_owned(),
                    false => bounded(&info.error),
                };
                self.failed(&PartError::Refused(error));
                return None;
            }
        };
        match incoming.whole() {
            Ok((past, own, held)) => {
                self.progress.state = host.into();
                self.progress.message = bounded(&info.error);
                Some(Box::new(Arrived {
                    past,
                    own: Some(own),
                    labels: std::mem::take(&mut self.labels),
                    clock_ahead_ns: self.clock_ahead_ns,
                    held,
                }))
            }
            Err(error) => {
                self.failed(&error);
                None
            }
        }
    }

    fn failed(&mut self, error: &PartError) {
        let state = match error {
            PartError::Left => HostState::Lost,
            _ => HostState::Failed,
        };
        if matches!(error, PartError::Malformed(_) | PartError::Incomplete) {
            self.metrics.control_malformed.inc();
        }
        self.progress.state = state.into();
        self.progress.message = error.to_string();
    }
}

impl Incoming {
    fn past(&mut self, chunk: wire::ProfileChunk) -> Result<(), PartError> {
        self.weigh(&chunk)?;
        Ok(assembler(&mut self.past).push(chunk)?)
    }

    fn own(&mut self, chunk: wire::ProfileChunk) -> Result<(), PartError> {
        if self.past.as_ref().is_some_and(|past| !past.is_complete()) {
            return Err(PartError::Incomplete);
        }
        self.weigh(&chunk)?;
        Ok(assembler(&mut self.own).push(chunk)?)
    }

    fn weigh(&mut self, chunk: &wire::ProfileChunk) -> Result<(), PartError> {
        let bytes = chunk.encoded_len().saturating_mul(BYTES_PER_ENCODED);
        match self.held.grow(bytes) {
            true => Ok(()),
            false => Err(PartError::Memory { mib: self.mib }),
        }
    }

    fn whole(self) -> Result<(Option<Profile>, Profile, Held), PartError> {
        let whole =
            |assembler: ProfileAssembler| assembler.finish().map_err(|_| PartError::Incomplete);
        let past = self.past.map(whole).transpose()?;
        let own = whole(self.own.ok_or(PartError::Incomplete)?)?;
        Ok((past, own, self.held))
    }
}

fn assembler(place: &mut Option<ProfileAssembler>) -> &mut ProfileAssembler {
    place.get_or_insert_with(|| ProfileAssembler::with_limit(HOST_BYTES_MAX))
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

/// What a refusal of an agent says.
pub fn refused(code: i32, message: &str) -> String {
    match message.is_empty() {
        true => format!("it refused: {}", Code::from_i32(code).description()),
        false => bounded(message),
    }
}
