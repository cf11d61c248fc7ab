//! The body of the `fp-files` thread: looks at the file system for the sampler, which never does.
//!
//! It opens executables as soon as they have a sample, and reads /proc again when records were lost:
//! what the lost ones told (forks, execs, mappings, exits) can be learnt in no other way.

use super::scan::{self, ScannedProcess};
use crate::symbolize::files::{FileSeen, FileStore, identity_of_mapping};
use crate::time::Mono;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender};

/// What the sampler asks for.
#[derive(Debug)]
pub enum Request {
    /// Open this executable.
    File(FileSeen),
    /// Read all processes again.
    Processes,
}

/// All processes as they were at some time after `asked`.
#[derive(Debug)]
pub struct Scanned {
    /// When the reading began: what began later is better known from records.
    pub asked: Mono,
    /// The processes.
    pub processes: Vec<ScannedProcess>,
}

/// Serves the sampler until it hangs up.
pub fn run(requests: &Receiver<Request>, store: &Arc<FileStore>, scanned: &SyncSender<Scanned>) {
    while let Ok(request) = requests.recv() {
        match request {
            Request::File(seen) => store.see(&seen),
            Request::Processes => {
                let asked = Mono::now();
                let processes = scan::all(identity_of_mapping);
                // The sampler still has the one before: this one is asked for again.
                let _ = scanned.try_send(Scanned { asked, processes });
            }
        }
    }
}
