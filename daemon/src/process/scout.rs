//! The body of the `fp-files` thread: looks at the file system for the sampler, which never does.
//!
//! It has executables opened as soon as they have a sample, reads their unwind information when
//! nothing is left to open, and reads /proc again when records were lost: what the lost ones told
//! (forks, execs, mappings, exits) can be learnt in no other way. Files are touched by helpers,
//! `fp-open`, and waited for only so long: one on a file system that never answers holds up no other.

use super::scan::{self, ScannedProcess};
use crate::heartbeat::Heartbeat;
use crate::helpers::Helpers;
use crate::ids::FileId;
use crate::perf::sets::RingSet;
use crate::symbolize::files::{FileSeen, FileStore, identity_in_time};
use crate::time::Mono;
use crate::unwind::module::Module;
use crate::unwind::modules::Loaded;
use profile::Unnamed;
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::time::Duration;

/// Files whose unwind information waits to be read. Beyond it a file is asked for again by the
/// unwinder.
const UNREAD_MAX: usize = 4096;

/// Unwind information read and not yet taken by the sampler, which takes it at every pass: a second
/// of reading at most. Unit: bytes. The largest module held waits alone.
const UNTAKEN_BYTES_MAX: u64 = 24 << 20;

/// What the sampler asks for.
#[derive(Debug)]
pub enum Request {
    /// Open this executable.
    File(FileSeen),
    /// Read the unwind information of this file, which was dropped.
    Module(FileId),
    /// Read all processes again.
    Processes,
    /// Close the events of a capture that ended: the kernel may wait for all CPUs meanwhile.
    Close(Box<RingSet>),
}

/// All processes as they were at some time after `asked`.
#[derive(Debug)]
pub struct Scanned {
    /// When the reading began: what began later is better known from records.
    pub asked: Mono,
    /// The processes.
    pub processes: Vec<ScannedProcess>,
}

/// Longest wait for one file. Opening takes microseconds; over a network, or from a disk that has to
/// spin up, it may take seconds.
const WAIT: Duration = Duration::from_secs(2);

/// How unwind information gets to the sampler.
pub struct Modules {
    /// Where it goes.
    pub loaded: SyncSender<Loaded>,
    /// What is known of it on both sides.
    pub handover: Arc<Handover>,
    /// Where separate debug files are looked for.
    pub debug_dirs: Vec<PathBuf>,
}

/// What `fp-files` and the sampler share beside their queues. Plain counters and a hint: they order
/// nothing, the queues do.
#[derive(Debug, Default)]
pub struct Handover {
    /// Bytes sent and not yet taken.
    pub untaken_bytes: AtomicU64,
    /// True when a file is read as soon as it is seen. Without copies of stacks nobody asks for any.
    pub wanted: AtomicBool,
    /// Files not read because too many waited.
    pub unread: AtomicU64,
    /// Files not read, or read in vain, because the sampler had not taken what was read before.
    pub untaken: AtomicU64,
}

/// Opens files, each in its time.
pub struct Scout {
    helpers: Helpers,
}

impl Default for Scout {
    fn default() -> Self {
        Scout {
            helpers: Helpers::new("fp-open"),
        }
    }
}

impl Scout {
    /// Reads all processes.
    pub fn scan(&self) -> Vec<ScannedProcess> {
        scan::all(|mapping, path| identity_in_time(&self.helpers, WAIT, mapping, path))
    }

    /// Serves the sampler until it hangs up. `heartbeat` tells what takes long.
    pub fn run(
        self,
        requests: &Receiver<Request>,
        store: &Arc<FileStore>,
        scanned: &SyncSender<Scanned>,
        modules: &Modules,
        heartbeat: &Heartbeat,
    ) {
        let mut unread = VecDeque::new();
        loop {
            heartbeat.end();
            let request = match unread.is_empty() {
                true => requests.recv().map_err(|_| TryRecvError::Disconnected),
                false => requests.try_recv(),
            };
            heartbeat.begin();
            match request {
                Ok(Request::File(seen)) => {
                    let id = seen.id;
                    let opened = store.see_in_time(seen, &self.helpers, WAIT);
                    if opened && modules.handover.wanted.load(Ordering::Relaxed) {
                        modules.put_off(id, &mut unread);
                    }
                }
                Ok(Request::Module(id)) => modules.put_off(id, &mut unread),
                Ok(Request::Processes) => {
                    let (asked, processes) = (Mono::now(), self.scan());
                    // The sampler still has the one before: this one is asked for again.
                    let _ = scanned.try_send(Scanned { asked, processes });
                }
                Ok(Request::Close(set)) => drop(set),
                // Opening comes first: a container may be gone in a moment, an open file stays.
                Err(TryRecvError::Empty) => {
                    if let Some(id) = unread.pop_front() {
                        modules.read(id, store);
                    }
                }
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }
}

impl Modules {
    /// Has a file wait to be read, once. The unwinder asks for what it misses, also for what waits.
    fn put_off(&self, file: FileId, unread: &mut VecDeque<FileId>) {
        if unread.contains(&file) {
            return;
        }
        if unread.len() < UNREAD_MAX {
            unread.push_back(file);
        } else {
            self.handover.unread.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn read(&self, file: FileId, store: &FileStore) {
        let Handover {
            untaken_bytes,
            untaken,
            ..
        } = &*self.handover;
        if untaken_bytes.load(Ordering::Acquire) > UNTAKEN_BYTES_MAX {
            // The sampler does not keep up; it asks again for what it still needs then.
            untaken.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let found = store.get(file);
        let module = match &found.image {
            Ok(image) => {
                let held = found.debug.as_ref();
                Module::read(image, held, &found.path, &self.debug_dirs).map(Box::new)
            }
            // Asked for before it was seen. It is asked for again.
            Err(Unnamed::Limit) => return,
            Err(_) => None,
        };
        let loaded = Loaded { file, module };
        let bytes = loaded.heap_bytes() as u64;
        untaken_bytes.fetch_add(bytes, Ordering::AcqRel);
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.loaded.try_send(loaded)
        {
            untaken_bytes.fetch_sub(bytes, Ordering::AcqRel);
            untaken.fetch_add(1, Ordering::Relaxed);
        }
    }
}
