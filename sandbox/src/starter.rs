//! Starts unconfined threads on behalf of confined ones.
//!
//! A thread inherits the restrictions of the thread that starts it (see the crate). Work that reads
//! other processes is handed to this starter, which was started before the restrictions.

use crate::lock;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};

/// Work that waits for its thread. Who hands it over has a bound of its own; beyond this it waits.
const WAITING_MAX: usize = 64;

/// Name of the thread that starts others.
pub const THREAD: &str = "fp-start";

/// Threads that were started, and work that was done without one because there was none.
static STARTED: AtomicU64 = AtomicU64::new(0);
static WITHOUT: AtomicU64 = AtomicU64::new(0);

/// Threads that were started, over all.
pub fn started() -> u64 {
    STARTED.load(Ordering::Relaxed)
}

/// Work that had to be done one after the other because there was no thread for it, over all.
pub fn without_thread() -> u64 {
    WITHOUT.load(Ordering::Relaxed)
}

type Work = Box<dyn FnOnce() + Send>;

/// The handle. The thread ends when the last one is gone.
#[derive(Clone, Debug)]
pub struct Starter(SyncSender<(&'static str, Work)>);

impl Starter {
    /// Starts the thread, which has what the caller has.
    ///
    /// # Errors
    /// When there is no thread.
    pub fn new() -> io::Result<Starter> {
        let (ask, asked) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name(THREAD.to_owned());
        thread.spawn(move || serve(&asked))?;
        Ok(Starter(ask))
    }

    /// Runs `work` on a new thread of this name. Without a starter thread the work is done one
    /// piece after the other.
    pub fn start(&self, name: &'static str, work: impl FnOnce() + Send + 'static) {
        // The thread goes on as long as this handle.
        let _ = self.0.send((name, Box::new(work)));
    }
}

fn serve(asked: &Receiver<(&'static str, Work)>) {
    for (name, work) in asked {
        let work = Arc::new(Mutex::new(Some(work)));
        let own = Arc::clone(&work);
        let take = move |work: &Mutex<Option<Work>>| lock(work).take();
        let run = move || {
            if let Some(work) = take(&own) {
                work();
            }
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        if thread.spawn(run).is_ok() {
            STARTED.fetch_add(1, Ordering::Relaxed);
        } else if let Some(work) = take(&work) {
            WITHOUT.fetch_add(1, Ordering::Relaxed);
            work();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reach, Sandbox};

    #[test]
    fn what_a_confined_thread_has_started_is_not_confined() {
        let starter = Starter::new().expect("a thread");
        let confined = std::thread::spawn(move || {
            let sandbox = Sandbox::new(true);
            sandbox.confine("test", &Reach::default());
            let (tell, told) = sync_channel(1);
            starter.start("helper", move || {
                let name = std::thread::current().name().map(str::to_owned);
                let _ = tell.send((name, std::fs::read("/etc/passwd").is_ok()));
            });
            told.recv().expect("it is done")
        });
        let (name, reads) = confined.join().expect("no panic");
        assert_eq!(name.as_deref(), Some("helper"));
        assert!(reads);
        assert!(started() >= 1);
        assert_eq!(without_thread(), 0);
    }
}
