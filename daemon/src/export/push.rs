//! The sender's thread: keeps a connection to the collector, with back-off, and a session on it.
//!
//! Windows of earlier boots, or of another host id, go over sessions of their own beside it, one at a
//! time: the collector knows a window by host, boot and sequence.

use super::session::{Session, SessionError};
use super::{Exporter, lock};
use crate::agent::with_causes;
use crate::time::Mono;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How often a quiet connection is asked whether it is still there; windows every ten seconds usually
/// answer that.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Longest wait for the answer to that.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(20);

/// Bound of the first wait before another attempt; it doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// Bound of all waits.
const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Streams that may fail on the agent's fault with the same window in front, before it is taken for
/// the cause and given up.
const STRIKES_MAX: u32 = 3;

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
enum PushError {
    /// The collector cannot be reached.
    #[error("failed to connect")]
    Connect(#[source] tonic::transport::Error),
    /// Nobody answers.
    #[error("failed to connect within {} s", CONNECT_MAX.as_secs())]
    Late,
    /// The stream ended.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Makes the channel to the collector: the one place that will know of certificates. The
/// configuration admits loopback addresses only as long as there are none.
async fn channel(exporter: &Exporter) -> Result<Channel, PushError> {
    let endpoint = Endpoint::from_shared(format!("http://{}", exporter.address))
        .map_err(PushError::Connect)?
        .connect_timeout(CONNECT_MAX)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_MAX);
    // It resolves within its own bound; this one covers the handshake.
    match timeout(CONNECT_MAX + Duration::from_secs(1), endpoint.connect()).await {
        Ok(connected) => connected.map_err(PushError::Connect),
        Err(_) => Err(PushError::Late),
    }
}

/// Sends until the end of the daemon, and says what stays.
pub async fn run(exporter: &Exporter) {
    push(exporter).await;
    let waiting = lock(&exporter.shared.index).waiting();
    if waiting.windows > 0 {
        let connected = lock(&exporter.shared.progress).connected_since.is_some();
        let windows = waiting.windows;
        tracing::info!(windows, connected, "windows wait for the next start");
    }
    exporter.shared.thread_ended(&exporter.identity);
}

async fn push(exporter: &Exporter) {
    let mut stop = exporter.shared.stop.subscribe();
    let mut attempts = 0;
    let mut strikes = Strikes::default();
    // The spool's thread has looked for what earlier runs left.
    exporter.shared.wake.notified().await;
    loop {
        let (result, worked) = connect_once(exporter, &mut strikes).await;
        lock(&exporter.shared.index).unsend(&exporter.identity);
        if stop.borrow().is_some() {
            return;
        }
        if let Err(error) = result {
            exporter.disconnected(&with_causes(&error));
        }
        attempts = if worked { 0 } else { attempts + 1 };
        tokio::select! {
            () = sleep(backoff(attempts)) => {}
            // At the end: what waits stays in the spool.
            _ = stop.wait_for(Option::is_some) => return,
        }
    }
}

/// One connection, until it ends. Tells whether it was worth having.
async fn connect_once(exporter: &Exporter, strikes: &mut Strikes) -> (Result<(), PushError>, bool) {
    let mut stop = exporter.shared.stop.subscribe();
    let connected = tokio::select! {
        connected = channel(exporter) => connected,
        _ = stop.wait_for(Option::is_some) => return (Ok(()), false),
    };
    let channel = match connected {
        Ok(channel) => channel,
        Err(error) => return (Err(error), false),
    };
    let mut session = Session::new(exporter, exporter.identity.clone());
    let result = tokio::select! {
        result = session.run(channel.clone()) => result,
        () = send_others(exporter, &channel) => Ok(()),
    };
    if let Err(error) = &result
        && error.blames_agent()
        && let Some(window) = session.oldest_in_flight()
        && strikes.count(window.about.sequence)
    {
        exporter.refused(&window, &with_causes(error));
    }
    (result.map_err(PushError::from), session.worked())
}

/// Sends what waits of other boots and hosts, for as long as the connection is there; never ends.
async fn send_others(exporter: &Exporter, channel: &Channel) {
    let mut attempts = 0;
    let mut strikes = Strikes::default();
    loop {
        let other = lock(&exporter.shared.index).other_identity(&exporter.identity);
        let Some(other) = other else {
            // A spool that could not be opened at first may bring some later.
            sleep(BACKOFF_MAX).await;
            continue;
        };
        let mut session = Session::new(exporter, other.clone());
        let result = session.run(channel.clone()).await;
        if let Err(error) = &result
            && error.blames_agent()
            && let Some(window) = session.oldest_in_flight()
            && strikes.count(window.about.sequence)
        {
            exporter.refused(&window, &with_causes(error));
        }
        lock(&exporter.shared.index).unsend(&other);
        attempts = if session.worked() { 0 } else { attempts + 1 };
        sleep(backoff(attempts)).await;
    }
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
        progress.away_since.get_or_insert_with(Mono::now);
    }
}

/// A window in front of streams that failed, and how many did.
#[derive(Default)]
struct Strikes {
    sequence: u64,
    count: u32,
}

impl Strikes {
    /// True when the window has had its last chance.
    fn count(&mut self, sequence: u64) -> bool {
        if self.sequence != sequence {
            *self = Strikes { sequence, count: 0 };
        }
        self.count += 1;
        self.count >= STRIKES_MAX
    }
}

/// Time until the next attempt: anything up to a bound that doubles, so that the agents of a fleet do
/// not come back together.
fn backoff(attempts: u32) -> Duration {
    let bound = BACKOFF_MIN
        .saturating_mul(1 << attempts.min(16))
        .min(BACKOFF_MAX);
    // Seeded by the system, anew each time.
    let random = RandomState::new().hash_one(attempts) >> 11;
    bound.mul_f64(random as f64 / (1u64 << 53) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_a_minute_and_differ() {
        for attempts in 0..40 {
            let bound = BACKOFF_MIN
                .saturating_mul(1 << attempts.min(16))
                .min(BACKOFF_MAX);
            let waits: Vec<Duration> = (0..20).map(|_| backoff(attempts)).collect();
            assert!(waits.iter().all(|wait| *wait <= bound));
            assert!(waits.iter().any(|wait| *wait != waits[0]));
        }
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
