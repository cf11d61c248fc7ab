//! Ends the stages in the order of the data flow, within the grace period.

use super::{RunError, Stages};
use host::sync::lock;
use host::time::MonotonicTime;
use sd_notify::NotifyState;

/// Part of the shutdown's grace in which captures end with what they have. Most take a part of a
/// second; who does not read what was captured is not waited for longer.
const CAPTURES_GRACE_SHARE: f64 = 0.3;

/// Part of it in which what came of captures may reach the collector.
const ORDERS_GRACE_SHARE: f64 = 0.7;

/// Part of the shutdown's grace in which the last windows may reach the collector. What does not is
/// in the spool.
const PUSHING_GRACE_SHARE: f64 = 0.8;

impl Stages {
    /// Ends captures with what they have, and waits until clients have received it and evidence is
    /// on disk.
    fn end_captures(&self, deadline: MonotonicTime) {
        let Some(captures) = self.agent.captures.get() else {
            return;
        };
        captures.stop();
        let answered = captures.wait_until_answered(deadline);
        let unkept = self.agent.triggers.wait_until_kept(deadline);
        if !answered || unkept > 0 {
            let running = captures.running();
            tracing::warn!(
                running,
                unkept,
                "stopping before all captures are sent and stored"
            );
        }
    }

    /// Drains and ends the stages in the order data flows, within the grace.
    pub(super) fn stop(mut self, cause: Option<RunError>) -> Result<(), RunError> {
        self.manager.tell(&NotifyState::Stopping);
        let grace = lock(&self.agent.settings.active).config.shutdown.grace();
        if let (None, Some(uplink)) = (&cause, self.agent.uplink.get()) {
            uplink.exporter.say_stopping();
        }
        let started = MonotonicTime::now();
        let deadline = started.plus(grace);
        let by = |share| started.plus(grace.mul_f64(share));
        // While there is everything that an answer needs: sampler, symbolizer, and the ways out.
        self.end_captures(by(CAPTURES_GRACE_SHARE));
        if let Some(uplink) = self.agent.uplink.get() {
            if let Some(control) = uplink.control.get() {
                control.stop(by(ORDERS_GRACE_SHARE));
            }
            uplink.pins.stop();
        }
        self.agent.sampling.sampler.stop();
        // What is left to name has the grace and no more.
        self.agent
            .health
            .symbolizer_pace
            .hurry(MonotonicTime::now());
        if let Some(uplink) = self.agent.uplink.get() {
            uplink.exporter.stop(by(PUSHING_GRACE_SHARE));
        }
        // Both end side by side: receivers may all be gone.
        let _ = self.stop_serving.send(true);
        let drained = self.ends.wait_for_awaited(deadline);
        // What ended after it was asked to may still have failed.
        match cause.or_else(|| self.ends.failure()) {
            Some(error) => Err(error),
            None if drained => Ok(()),
            None => Err(RunError::Grace {
                seconds: grace.as_secs(),
            }),
        }
    }
}
