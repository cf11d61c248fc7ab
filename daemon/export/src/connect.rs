//! The connection to the collector, for all that goes over one: windows and captures.

use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::time::timeout;
use tonic::transport::{Channel, Endpoint};

/// Longest wait for a connection.
const CONNECT_MAX: Duration = Duration::from_secs(10);

/// How often a quiet connection is asked whether it is still there; windows every ten seconds
/// usually answer that.
const KEEP_ALIVE: Duration = Duration::from_secs(60);

/// Longest wait for the answer to that.
const KEEP_ALIVE_MAX: Duration = Duration::from_secs(20);

/// Bound of the first wait before another attempt; it doubles with each.
const BACKOFF_MIN: Duration = Duration::from_millis(500);

/// Bound of all waits.
pub const BACKOFF_MAX: Duration = Duration::from_secs(60);

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The collector cannot be reached.
    #[error("failed to connect")]
    Unreachable(#[source] tonic::transport::Error),
    /// Nobody answers.
    #[error("failed to connect within {} s", CONNECT_MAX.as_secs())]
    Late,
}

/// Makes the channel to the collector: the one place that will know of certificates. The
/// configuration admits loopback addresses only as long as there are none.
///
/// # Errors
/// When there is none in time.
pub async fn channel(address: SocketAddr) -> Result<Channel, ConnectError> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(ConnectError::Unreachable)?
        .connect_timeout(CONNECT_MAX)
        .http2_keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE_MAX);
    // It resolves within its own bound; this one covers the handshake.
    match timeout(CONNECT_MAX + Duration::from_secs(1), endpoint.connect()).await {
        Ok(connected) => connected.map_err(ConnectError::Unreachable),
        Err(_) => Err(ConnectError::Late),
    }
}

/// Time until the next attempt: anything up to a bound that doubles, so that the agents of a fleet
/// do not come back together.
pub fn backoff(attempts: u32) -> Duration {
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
}
