//! Signals that end a capture and not the command.

use anyhow::Result;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Hears both from now on.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn new() -> Result<Signals> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for one of them, and says which.
    pub async fn next(&mut self) -> rustix::process::Signal {
        tokio::select! {
            _ = self.interrupt.recv() => rustix::process::Signal::INT,
            _ = self.terminate.recv() => rustix::process::Signal::TERM,
        }
    }
}
