//! The thread `fp-uplink`: all communication with the collector, on one runtime.
//!
//! Windows, captures and pins are services, one task each, over one connection
//! ([`Connection`](super::connect::Connection)). None of them blocks the thread: work that may wait
//! for a disk, or that starts a capture, runs on other threads, with a quota per purpose.

use std::io;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::time::Duration;
use tokio::task::JoinSet;

/// Name of the thread, and of the blocking threads it has: the budget counts them together.
pub const THREAD: &str = "fp-uplink";

/// Blocking threads: the quotas of windows (1), pins (1) and captures that start (8), and one to
/// spare.
const BLOCKING_THREADS: usize = 11;

/// How long a thread without work stays. Windows come each 10 s with the defaults: a new thread for
/// each would cost more than the work.
const BLOCKING_KEEP: Duration = Duration::from_secs(60);

/// A service on the uplink. It ends when the daemon stops.
pub type Service = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The body of `fp-uplink`: ends when all services have ended. One that panics ends it.
///
/// # Errors
/// When the runtime cannot be made.
pub fn run(services: Vec<Service>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_keep_alive(BLOCKING_KEEP)
        .thread_name(THREAD)
        .build()?;
    let panicked = runtime.block_on(async {
        let mut tasks: JoinSet<()> = services.into_iter().collect();
        while let Some(ended) = tasks.join_next().await {
            if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
                return Some(panic);
            }
        }
        None
    });
    // Work that a disk holds up is left behind: dropping the runtime would wait for it.
    runtime.shutdown_background();
    match panicked {
        Some(panic) => resume_unwind(panic),
        None => Ok(()),
    }
}
