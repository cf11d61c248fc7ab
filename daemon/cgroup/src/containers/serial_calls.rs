//! Runs calls to file systems, which may never return, off the calling thread.
//!
//! Each source has at most one such call in progress, on a pool thread that nobody else waits for.
//! A disk that hangs blocks only its own source and takes no thread from the others.

use super::Error;
use host::blocking_pool::BlockingPool;
use std::sync::{Arc, LazyLock};
use tokio::sync::{Mutex, oneshot};

/// Most calls under way: more than there are sources, which have one each.
const CALLS_MAX: usize = 32;

static HELPERS: LazyLock<BlockingPool> =
    LazyLock::new(|| BlockingPool::with_quota("inspect", CALLS_MAX));

/// Makes the calls of one source, one after the other.
#[derive(Debug, Default)]
pub struct SerialCalls(Arc<Mutex<()>>);

impl SerialCalls {
    /// The result of a call. Whoever gives up waiting leaves the call where it is, and the next
    /// ones of this source wait for it.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.0).lock_owned().await;
        let (made, result) = oneshot::channel();
        let started = HELPERS.spawn(move || {
            let _turn = turn;
            // Whoever asked may have given up.
            let _ = made.send(call());
        });
        match started {
            Some(_) => result.await.unwrap_or(Err(Error::Late)),
            None => Err(Error::Late),
        }
    }
}
