//! Captures that a collector asks for: the agent attends at it on a stream of its own, so that no
//! port is open on the host.
//!
//! `fp-control` holds the stream open (`attend.rs`), with the connection and the back-off of the
//! exporter, and does what it is told (`orders.rs`) through [`Capturing`]: as a call on the host's
//! own socket would. What a collector may ask is what that allows; nothing else is taken from it. A
//! collector that is slow holds up its own captures alone, and one that goes away ends them.
//! Without a collector in the configuration nothing of this exists.
#![forbid(unsafe_code)]

mod attend;
mod orders;
#[cfg(test)]
mod tests;

use capture::Capturing;
use export::Exporter;
use host::time::MonotonicTime;
use proto::collector as wire;
use proto::collector::attend_request::Body as Say;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

metrics::counted! {
    /// What the stream to a collector came to. Counted since the start.
    #[derive(Clone)]
    pub struct ControlCounts;
    /// 1 while the collector can ask for captures.
    Gauge fleetprof_control_attending = attending;
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

/// The handle of the thread: what the supervisor and the metrics see of it.
pub struct Control {
    exporter: Arc<Exporter>,
    capturing: Arc<dyn Capturing>,
    /// `captures.remote`.
    allowed: AtomicBool,
    counts: ControlCounts,
    /// Until when what captures have left may be sent, once it is to end.
    stop: watch::Sender<Option<MonotonicTime>>,
}

impl Control {
    /// One whose thread does not run yet. Captures are refused unless `allowed`.
    pub fn new(exporter: Arc<Exporter>, capturing: Arc<dyn Capturing>, allowed: bool) -> Control {
        Control {
            exporter,
            capturing,
            allowed: AtomicBool::new(allowed),
            counts: ControlCounts::default(),
            stop: watch::Sender::new(None),
        }
    }

    /// The body of `fp-control`: ends soon after [`Control::stop`].
    ///
    /// # Errors
    /// When the runtime cannot be made.
    pub fn run(&self) -> std::io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(attend::run(self));
        Ok(())
    }

    /// Whether captures of a collector are taken from now on; those that run go on.
    pub fn allow(&self, allowed: bool) {
        self.allowed.store(allowed, Ordering::Relaxed);
    }

    fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Relaxed)
    }

    /// Has the thread end: when all that came of captures is with the collector, and by the
    /// deadline whatever is left. Captures that still run then are given up.
    pub fn stop(&self, deadline: MonotonicTime) {
        self.stop.send_replace(Some(deadline));
    }

    /// What it came to.
    pub fn counts(&self) -> &ControlCounts {
        &self.counts
    }
}

/// A message to the collector.
fn request(body: Say) -> wire::AttendRequest {
    wire::AttendRequest { body: Some(body) }
}
