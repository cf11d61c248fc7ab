//! Waits that only a failing test waits out, and that say what never came.

use crate::process::wait_for;
use std::time::{Duration, Instant};

/// Longest wait.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Shortest pause between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// Waits until `what` holds, and leaves the runtime to its other tasks meanwhile.
///
/// # Panics
/// When it does not hold within [`LIMIT`].
pub async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < LIMIT, "it never came to it: {what}");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Waits until `what` holds, on a thread that may block.
///
/// # Panics
/// When it does not hold within [`LIMIT`].
pub fn until_blocking(what: &str, mut holds: impl FnMut() -> bool) {
    let held = wait_for(LIMIT, || holds().then_some(()));
    assert!(held.is_some(), "it never came to it: {what}");
}
