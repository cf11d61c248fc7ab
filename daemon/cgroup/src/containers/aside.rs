//! Calls to file systems, which may never come back, beside the thread that asks.
//!
//! Each source has at most one such call under way, on a thread that nobody else waits for: a disk
//! that hangs holds up the source it belongs to, and takes no thread from the others.

use super::Error;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

/// Where one source's calls are made, one after the other.
#[derive(Debug, Default)]
pub struct Aside(Arc<Mutex<()>>);

impl Aside {
    /// The result of a call. Whoever gives up waiting leaves the call where it is, and the next
    /// ones of this source wait for it.
    pub async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let turn = Arc::clone(&self.0).lock_owned().await;
        let made = spawn_blocking(move || {
            let _turn = turn;
            call()
        });
        made.await.unwrap_or(Err(Error::Late))
    }
}
