//! Captures that a collector asks for: the agent connects to it with a stream of its own, so that
//! no port is open on the host.
//!
//! A service on `fp-uplink` keeps the stream open (`stream.rs`), on the exporter's connection, and
//! runs its commands (`commands.rs`) through [`Capturing`], as calls on the host's own socket do. A
//! collector can request only what that allows. A slow collector delays only its own captures, and
//! one that disconnects ends them. Without a collector in the configuration none of this runs.
#![forbid(unsafe_code)]

mod commands;
mod policy;
mod stream;
#[cfg(test)]
mod tests;

use capture::Capturing;
use export::{Exporter, Quota};
use host::sync::lock;
use host::time::MonotonicTime;
pub use policy::Policy;
use policy::Spent;
use proto::agent::CaptureRequest;
use proto::collector as wire;
use proto::collector::control_request::Body as AgentMessage;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use tonic::Status;

metrics::counted! {
    /// Counters of the stream to a collector since the start.
    #[derive(Clone)]
    pub struct ControlCounts;
    /// 1 while the collector can ask for captures.
    Gauge fleetprof_control_connected = connected;
    /// Times the collector welcomed the agent for captures.
    Counter fleetprof_control_connections_total = connections;
    /// Captures started for the collector.
    Counter fleetprof_control_captures_total = captures;
    /// Captures that the collector asked for and did not get.
    Counter fleetprof_control_refused_total = refused;
    /// Captures of the collector that ended because it dropped them or went away.
    Counter fleetprof_control_given_up_total = given_up;
    /// Reports of progress left out because the collector was slow.
    Counter fleetprof_control_progress_skipped_total = skipped;
}

/// The handle of the service: what the supervisor and the metrics see of it.
pub struct Control {
    exporter: Arc<Exporter>,
    capturing: Arc<dyn Capturing>,
    /// What the host allows.
    policy: Mutex<Policy>,
    spent: Arc<Mutex<Spent>>,
    counts: ControlCounts,
    /// Captures that start.
    starts: Quota,
    /// Until when what captures have left may be sent, once it is to end.
    stop: watch::Sender<Option<MonotonicTime>>,
}

impl Control {
    /// Creates it without a connection.
    pub fn new(exporter: Arc<Exporter>, capturing: Arc<dyn Capturing>, policy: Policy) -> Control {
        Control {
            starts: exporter.outside(commands::COMMANDS_MAX),
            exporter,
            capturing,
            policy: Mutex::new(policy),
            spent: Arc::default(),
            counts: ControlCounts::default(),
            stop: watch::Sender::new(None),
        }
    }

    /// Keeps the stream open, a service of the uplink: ends soon after [`Control::stop`].
    pub async fn run(self: Arc<Self>) {
        stream::run(&self).await;
    }

    /// Sets the policy from now on; running captures continue.
    pub fn allow(&self, policy: Policy) {
        *lock(&self.policy) = policy;
    }

    /// Lets a capture through, or says why not. It counts for as long as the charge is kept, and no
    /// longer than was asked for.
    fn admit(&self, request: CaptureRequest) -> Result<(CaptureRequest, Charge), Status> {
        let (policy, now) = (lock(&self.policy).clone(), MonotonicTime::now());
        let mut spent = lock(&self.spent);
        policy.check(&request, spent.at(now))?;
        let charge = Charge {
            number: spent.add(now, policy::charge(&request)),
            spent: Arc::clone(&self.spent),
        };
        Ok((policy.bounded(request), charge))
    }

    /// Ends the service once the collector has all results of captures, or at the deadline.
    /// Captures that still run then are dropped.
    pub fn stop(&self, deadline: MonotonicTime) {
        self.stop.send_replace(Some(deadline));
    }

    /// Its counters.
    pub fn counts(&self) -> &ControlCounts {
        &self.counts
    }
}

/// A capture that counts; dropped when it has ended.
struct Charge {
    number: u64,
    spent: Arc<Mutex<Spent>>,
}

impl Drop for Charge {
    fn drop(&mut self) {
        lock(&self.spent).end(self.number, MonotonicTime::now());
    }
}

/// A message to the collector.
fn request(body: AgentMessage) -> wire::ControlRequest {
    wire::ControlRequest { body: Some(body) }
}
