//! The sender: keeps a session on the connection to the collector, with back-off.
//!
//! Windows of earlier boots, or of another host id, go over separate sessions, one at a time,
//! because the collector identifies a window by host, boot and sequence.

use super::Exporter;
use super::connect::{BACKOFF_MAX, ConnectError, Link, backoff};
use super::session::{Session, SessionError};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::text::with_causes;
use std::sync::Arc;
use tokio::time::sleep;

/// Streams that may fail on the agent's fault with the same window in front, before it is taken for
/// the cause and given up.
const STRIKES_MAX: u32 = 3;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum PushError {
    /// It cannot be reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The stream ended.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Sends until the end of the daemon, and says what stays.
pub async fn run(exporter: &Arc<Exporter>) {
    push(exporter).await;
    let waiting = lock(&exporter.shared.index).waiting();
    if waiting.windows > 0 {
        let connected = lock(&exporter.shared.progress).connected_since.is_some();
        let windows = waiting.windows;
        tracing::info!(windows, connected, "unsent windows wait for the next start");
    }
    let own = Arc::clone(exporter);
    let end = move || own.shared.thread_ended(&own.identity);
    exporter.shared.disk.run(end).await;
}

async fn push(exporter: &Arc<Exporter>) {
    let mut stop = exporter.shared.stop.subscribe();
    let mut attempts = 0;
    let mut strikes = Strikes::default();
    // The spool's thread has looked for what earlier runs left.
    exporter.shared.wake.notified().await;
    loop {
        let (result, worked) = connect_once(exporter, &mut strikes).await;
        // Those of other boots too: their session ends with the connection.
        lock(&exporter.shared.index).unsend_all();
        write_notes(exporter).await;
        if stop.borrow().is_some() {
            return;
        }
        if let Err(error) = result {
            exporter.disconnected(&with_causes(&error));
            if let PushError::Connect(_) = error {
                // The connection has a back-off of its own.
                continue;
            }
        }
        attempts = if worked { 0 } else { attempts + 1 };
        tokio::select! {
            () = sleep(backoff(attempts)) => {}
            // Another collector owes nothing for what the last one did.
            () = exporter.connection.target_changed() => attempts = 0,
            // At the end: what waits stays in the spool.
            _ = stop.wait_for(Option::is_some) => return,
        }
    }
}

/// One connection, until it ends. Returns whether it was useful.
async fn connect_once(
    exporter: &Arc<Exporter>,
    strikes: &mut Strikes,
) -> (Result<(), PushError>, bool) {
    let mut stop = exporter.shared.stop.subscribe();
    let connected = tokio::select! {
        connected = exporter.connection.link() => connected,
        _ = stop.wait_for(Option::is_some) => return (Ok(()), false),
    };
    let link = match connected {
        Ok(link) => link,
        Err(error) => return (Err(error.into()), false),
    };
    let session = Session::new(exporter, exporter.identity.clone());
    let mut session = session.suspecting(strikes.suspect());
    let result = tokio::select! {
        result = session.run(link.channel.clone()) => result,
        () = send_others(exporter, &link) => Ok(()),
        () = exporter.connection.moved(&link) => return (Err(ConnectError::Moved.into()), true),
    };
    if result.as_ref().is_err_and(SessionError::blames_connection) {
        exporter.connection.give_up(&link);
    }
    if let Err(error) = &result
        && error.blames_agent()
        && let Some(window) = session.oldest_in_flight()
        && strikes.count(window.header.sequence)
    {
        exporter.refused(&window, &with_causes(error));
    }
    (result.map_err(PushError::from), session.worked())
}

/// Sends what waits of other boots and hosts, for as long as the connection is there; never ends.
async fn send_others(exporter: &Arc<Exporter>, link: &Link) {
    let mut attempts = 0;
    let mut strikes = Strikes::default();
    loop {
        let other = lock(&exporter.shared.index).other_identity(&exporter.identity);
        let Some(other) = other else {
            // A spool that could not be opened at first may bring some later.
            sleep(BACKOFF_MAX).await;
            continue;
        };
        let session = Session::new(exporter, other.clone());
        let mut session = session.suspecting(strikes.suspect());
        let result = session.run(link.channel.clone()).await;
        if let Err(error) = &result
            && error.blames_agent()
            && let Some(window) = session.oldest_in_flight()
            && strikes.count(window.header.sequence)
        {
            exporter.refused(&window, &with_causes(error));
        }
        lock(&exporter.shared.index).unsend(&other);
        attempts = if session.worked() { 0 } else { attempts + 1 };
        sleep(backoff(attempts)).await;
    }
}

/// Notes on disk what streams have left to note.
async fn write_notes(exporter: &Arc<Exporter>) {
    if exporter.shared.notes_due().is_none() {
        return;
    }
    let (shared, identity) = (Arc::clone(&exporter.shared), Arc::clone(&exporter.identity));
    let write = move || shared.write_notes(&identity);
    exporter.shared.disk.run(write).await;
}

impl Exporter {
    fn disconnected(&self, reason: &str) {
        let reason: String = reason
            .chars()
            .filter(|c| !c.is_control())
            .take(300)
            .collect();
        let mut progress = lock(&self.shared.progress);
        let was_connected = progress.connected_since.take().is_some();
        if was_connected || progress.last_error.is_empty() {
            tracing::info!(reason, "no connection to the collector: windows wait");
        } else {
            tracing::debug!(reason, "no connection to the collector");
        }
        progress.last_error = reason;
        progress.away_since.get_or_insert_with(MonotonicTime::now);
    }
}

/// A window in front of streams that failed, and how many did.
#[derive(Default)]
struct Strikes {
    sequence: u64,
    count: u32,
}

impl Strikes {
    /// The window that the last stream failed over, unless it is given up.
    fn suspect(&self) -> Option<u64> {
        (1..STRIKES_MAX)
            .contains(&self.count)
            .then_some(self.sequence)
    }

    /// True when the window has had its last chance.
    fn count(&mut self, sequence: u64) -> bool {
        if self.sequence != sequence {
            *self = Strikes { sequence, count: 0 };
        }
        self.count += 1;
        self.count >= STRIKES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_under_suspicion_until_it_is_given_up() {
        let mut strikes = Strikes::default();
        assert_eq!(strikes.suspect(), None);
        for _ in 1..STRIKES_MAX {
            strikes.count(7);
            assert_eq!(strikes.suspect(), Some(7));
        }
        strikes.count(7);
        assert_eq!(strikes.suspect(), None);
    }

    #[test]
    fn a_window_is_to_blame_after_three_streams() {
        let mut strikes = Strikes::default();
        assert!(!strikes.count(7));
        assert!(!strikes.count(8));
        assert!(!strikes.count(8));
        assert!(strikes.count(8));
    }
}
