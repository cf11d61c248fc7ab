//! Captures on demand: temporary sampling next to the continuous profile.
//!
//! A capture opens its own events (`rings`). Their records go through the same sampler, process
//! table and unwinder into its own batch ([`RawBatch::capture`](aggregate::batch::RawBatch)), which
//! the symbolizer names into its own recorder. The continuous profile shares threads and tables
//! with it, but no ring and no row.
#![forbid(unsafe_code)]

pub mod backend;
pub mod engine;
pub mod event;
mod lines;
mod manager;
mod monitor;
pub mod offcpu;
mod past;
pub mod query;
pub mod request;
mod run;
mod table;
pub mod target;

pub use table::{CaptureCounts, CaptureTable};

use profile::Withholding;
use proto::agent;
use std::sync::Arc;
use tokio::sync::mpsc;
use tonic::Status;

/// Who requests a capture, and so reads it.
#[derive(Clone, Debug)]
pub struct Asker {
    /// As it is listed and logged.
    pub peer: String,
    /// What the asker must not see.
    pub withhold: Arc<Withholding>,
}

impl Asker {
    /// Somebody on this host, who may see everything.
    pub fn here(peer: impl Into<String>) -> Asker {
        Asker::elsewhere(peer, Arc::default())
    }

    /// Somebody whom the answer reaches over the network.
    pub fn elsewhere(peer: impl Into<String>, withhold: Arc<Withholding>) -> Asker {
        Asker {
            peer: peer.into(),
            withhold,
        }
    }
}

/// Starts, lists and ends captures: what every way in (gRPC, a collector's command, a trigger) goes
/// through.
pub trait Capturing: Send + Sync + 'static {
    /// Starts one. Its messages come in the order of `CaptureResponse`; the receiver that is
    /// dropped gives the capture up. Opens events and reads /proc: to be called where blocking is
    /// allowed.
    ///
    /// # Errors
    /// As `AgentService.Capture` documents.
    fn start(
        &self,
        request: agent::CaptureRequest,
        asker: Asker,
    ) -> Result<mpsc::Receiver<agent::CaptureResponse>, Status>;

    /// Ends a capture and keeps what it has. False: no capture with this id is running.
    fn cancel(&self, id: u64) -> bool;

    /// How many run.
    fn running(&self) -> usize {
        let all = self.list();
        let running = |info: &&agent::CaptureInfo| info.state() == agent::CaptureState::Running;
        all.iter().filter(running).count()
    }

    /// Running and past captures, newest first.
    fn list(&self) -> Vec<agent::CaptureInfo>;
}
