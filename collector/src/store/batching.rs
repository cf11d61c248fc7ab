//! Groups windows before a store is called.

use std::time::Duration;

/// How a store wants windows to come: what one call costs it, whatever is in it, decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPolicy {
    /// Time to wait for more windows after the first. Each agent waits this much longer for an
    /// answer it does nothing else without, and has at most four windows on their way.
    pub linger: Duration,
    /// Most windows of one call.
    pub windows: usize,
}

impl Default for BatchPolicy {
    /// For a store with an fsync per call: 25 ms, in which one call stores all that wait; 256
    /// windows.
    fn default() -> BatchPolicy {
        BatchPolicy {
            linger: Duration::from_millis(25),
            windows: 256,
        }
    }
}
