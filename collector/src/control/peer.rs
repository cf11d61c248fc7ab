//! Another collector's hosts in a fan-out: hosts that are connected there, captured through it.
//!
//! Runs as a task of its own, as a host's capture does (`host_capture.rs`). The other collector
//! merges the answers of its hosts, so one profile arrives for all of them, with the labels of
//! hosts. The hosts are requested by id, and the other collector forwards nothing itself.

use super::cancel::cancel_asked;
use super::host_capture::{Event, Incoming, IncomingError, bounded, notices};
use super::limits::{CONNECT_TIMEOUT, PEER_BYTES_MAX, PEER_MESSAGE_BYTES_MAX};
use super::merge::Arrived;
use crate::memory::MemoryPool;
use crate::metrics::Metrics;
use proto::collector::capture_service_client::CaptureServiceClient;
use proto::collector::fleet_capture_response::Body;
use proto::collector::{
    CancelFleetCaptureRequest, FleetCaptureInfo, FleetCaptureRequest, FleetCaptureResponse,
    HostProgress, HostState,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tonic::codec::CompressionEncoding::Zstd;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

/// Longest silence of the other collector, which sends something every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Another collector and the hosts that are asked through it, before it runs.
pub struct PeerCollector {
    /// Where that is.
    pub collector: String,
    /// The request to it, without the hosts.
    pub request: FleetCaptureRequest,
    /// The hosts with their places in the plan.
    pub hosts: Vec<(usize, HostProgress)>,
    /// Memory for assembling profiles.
    pub memory: Arc<MemoryPool>,
    /// To the fan-out.
    pub events: mpsc::Sender<Event>,
    /// True when it is to end with what there is.
    pub cancel: watch::Receiver<bool>,
    /// Counts what is refused.
    pub metrics: Arc<Metrics>,
}

/// Why nothing came of it.
#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error("failed to use the address")]
    Address,
    #[error("the other collector cannot be reached")]
    Unreachable,
    #[error("{}", .0.message())]
    Status(Status),
    #[error("the other collector closed the connection")]
    Ended,
    #[error("the other collector has been silent for {} s", SILENCE_MAX.as_secs())]
    Silent,
    #[error("the answer of the other collector is invalid: {0}")]
    Unusable(IncomingError),
    #[error("no memory for the profile: all results share {0} MiB (`query.memory_mib`)")]
    Memory(usize),
}

/// What came of it.
struct Got {
    profiles: Incoming,
    result: Option<FleetCaptureInfo>,
}

impl PeerCollector {
    /// Handles the other collector's messages until its result.
    pub async fn run(mut self) {
        let got = self.ask().await;
        let ended = match got {
            Ok(got) => self.finish(got),
            Err(error) => Err(error),
        };
        let arrived = ended.unwrap_or_else(|error| {
            match error {
                PeerError::Unusable(_) => _ = self.metrics.control_malformed.inc(),
                PeerError::Memory(_) => _ = self.metrics.control_refused.inc(),
                _ => {}
            }
            let lost = matches!(
                error,
                PeerError::Ended | PeerError::Silent | PeerError::Unreachable
            );
            let state = if lost {
                HostState::Lost
            } else {
                HostState::Failed
            };
            let message = bounded(&format!("collector {}: {error}", self.collector));
            for (_, host) in &mut self.hosts {
                host.state = state.into();
                host.message.clone_from(&message);
            }
            None
        });
        let _ = self.events.send(Event::Ended(self.hosts, arrived)).await;
    }

    async fn ask(&mut self) -> Result<Got, PeerError> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.collector));
        let endpoint = endpoint
            .map_err(|_| PeerError::Address)?
            .connect_timeout(CONNECT_TIMEOUT);
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, endpoint.connect());
        let channel = connecting.await.map_err(|_| PeerError::Unreachable)?;
        let channel = channel.map_err(|_| PeerError::Unreachable)?;
        let mut client = CaptureServiceClient::new(channel)
            .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX)
            .accept_compressed(Zstd)
            .send_compressed(Zstd);
        self.request.host_ids = self
            .hosts
            .iter()
            .map(|(_, host)| host.host_id.clone())
            .collect();
        self.request.max_hosts = self.request.host_ids.len() as u32;
        let call = client.capture(self.request.clone());
        let call = tokio::time::timeout(SILENCE_MAX, call).await;
        let stream = call
            .map_err(|_| PeerError::Silent)?
            .map_err(PeerError::Status)?;
        self.follow(client, stream.into_inner()).await
    }

    async fn follow(
        &mut self,
        mut client: CaptureServiceClient<Channel>,
        mut stream: Streaming<FleetCaptureResponse>,
    ) -> Result<Got, PeerError> {
        let mut got = Got {
            profiles: {
                // It brings profiles of many hosts, each within its bound there: allow all memory
                // that is free.
                let heap_max = self.memory.bytes_max();
                Incoming::new(self.memory.reserve(), PEER_BYTES_MAX, heap_max)
            },
            result: None,
        };
        let (mut id, mut cancelled) = (None, false);
        while got.result.is_none() {
            let message = tokio::select! {
                message = tokio::time::timeout(SILENCE_MAX, stream.message()) => message,
                () = cancel_asked(&mut self.cancel), if !cancelled && id.is_some() => {
                    cancelled = true;
                    if let Some(id) = id {
                        // One that has just ended needs none.
                        let _ = client.cancel(CancelFleetCaptureRequest { id }).await;
                    }
                    continue;
                }
            };
            let message = message.map_err(|_| PeerError::Silent)?;
            let message = message
                .map_err(PeerError::Status)?
                .ok_or(PeerError::Ended)?;
            match message.body {
                Some(Body::Plan(plan)) => id = Some(plan.id),
                Some(Body::Host(host)) => self.tell(host).await,
                Some(Body::Past(chunk)) => {
                    let taken = got.profiles.past(chunk);
                    taken.map_err(|error| self.unusable(error))?;
                }
                Some(Body::Chunk(chunk)) => {
                    let taken = got.profiles.own(chunk);
                    taken.map_err(|error| self.unusable(error))?;
                }
                Some(Body::Result(result)) => got.result = Some(result),
                // A later version sends kinds of messages that this one does not know.
                None => {}
            }
        }
        Ok(got)
    }

    /// How far one of the hosts is; its end comes with the result.
    async fn tell(&mut self, told: HostProgress) {
        let running = told.state() == HostState::Running;
        let found = self
            .hosts
            .iter_mut()
            .find(|(_, host)| running && host.host_id == told.host_id);
        if let Some((at, host)) = found {
            host.state = told.state;
            host.progress = told.progress;
            host.notices = notices(told.notices);
            let event = Event::Progress(*at, host.clone());
            let _ = self.events.send(event).await;
        }
    }

    fn unusable(&self, error: IncomingError) -> PeerError {
        match error {
            // One collector may have all of the room, so that too large is that there is no room.
            IncomingError::Memory | IncomingError::Large { .. } => {
                PeerError::Memory(self.memory.mib())
            }
            error => PeerError::Unusable(error),
        }
    }

    /// States of the hosts, and the profile of those that answered.
    fn finish(&mut self, got: Got) -> Result<Option<Box<Arrived>>, PeerError> {
        let whole = got.profiles.whole();
        let (past, own, held) = whole.map_err(|error| self.unusable(error))?;
        let result = got.result.unwrap_or_default();
        // These notices concern all hosts of that collector, and so each of them.
        let of_all = notices(result.notices).into_iter();
        let of_all: Vec<_> = of_all
            .map(|notice| bounded(&format!("collector {}: {notice}", self.collector)))
            .collect();
        let mut told: HashMap<String, HostProgress> = result
            .hosts
            .into_iter()
            .map(|host| (host.host_id.clone(), host))
            .collect();
        for (_, host) in &mut self.hosts {
            let Some(told) = told.remove(&host.host_id) else {
                host.state = HostState::Lost.into();
                host.message = format!(
                    "the host is no longer connected to collector {}",
                    self.collector
                );
                continue;
            };
            host.progress = told.progress.or(host.progress.take());
            host.message = bounded(&told.message);
            host.notices = notices(told.notices);
            host.notices.extend_from_slice(&of_all);
            host.state = match HostState::try_from(told.state) {
                Ok(state @ (HostState::Done | HostState::Partial)) if own.is_some() => state.into(),
                Ok(state @ (HostState::Failed | HostState::Lost)) => state.into(),
                _ => HostState::Lost.into(),
            };
        }
        Ok(own.map(|own| {
            Box::new(Arrived {
                past,
                own: Some(own),
                // The other collector has put them on, and set times right.
                labels: Vec::new(),
                clock_ahead_ns: 0,
                held,
            })
        }))
    }
}
