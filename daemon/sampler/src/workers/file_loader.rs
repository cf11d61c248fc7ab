//! The body of the `fp-files` thread: looks at the file system for the sampler, which never does.
//!
//! It has executables opened as soon as they have a sample, and reads their unwind information when
//! nothing is left to open, starting with files at which walks stopped. It examines single calls in
//! them for scans of stacks (`unwind/src/walk/call_sites.rs`), and reads /proc again after records
//! were lost, because nothing else shows what they reported (forks, execs, mappings, exits).
//! Helpers, `fp-blocking`, access the files, and it waits for them only for a limited time, so a
//! file system that never answers blocks only its own files.

use super::unread::Unread;
use hashbrown::HashMap;
use host::blocking_pool::BlockingPool;
use host::heartbeat::Heartbeat;
use host::ids::FileId;
use host::time::MonotonicTime;
use perf::rings::sets::RingSet;
use profile::UnnamedReason;
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::sync::{Arc, Weak};
use std::time::Duration;
use symbolize::budget::{Over, Pause};
use symbolize::contents::ContentId;
use symbolize::elf;
use symbolize::files::{FileSeen, FileStore, generation_in_time};
use unwind::info::module::Module;
use unwind::process::scan::{self, Scan};
use unwind::walk::modules::Loaded;
use unwind::walk::{Missed, UnwindUpdate, call_sites};

/// Unwind information read and not yet taken by the sampler, which takes it at every pass: a second
/// of reading at most. Unit: bytes. The largest module held waits alone.
const UNTAKEN_BYTES_MAX: u64 = 24 << 20;

/// Rings that nobody reads any more: all that is left to do is close them.
pub struct Retired(pub Box<dyn Send>);

impl std::fmt::Debug for Retired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Retired")
    }
}

/// A request of the sampler.
#[derive(Debug)]
pub enum Request {
    /// Open this executable.
    File(FileSeen),
    /// Read this of a file: a walk misses it.
    Missed(Missed),
    /// Read all processes again.
    Processes,
    /// Close the events of a capture that ended: the kernel may wait for all CPUs meanwhile.
    Close(Box<RingSet>),
    /// Closes rings of the continuous profile that were replaced, or whose CPU went away.
    CloseRings(Retired),
}

impl Request {
    /// True for what reads all of /proc or waits for every CPU.
    fn may_take_long(&self) -> bool {
        !matches!(self, Request::File(_) | Request::Missed(_))
    }
}

/// All processes as they were at some time after `asked`.
#[derive(Debug)]
pub struct Scanned {
    /// When the reading started: what started later is better known from records.
    pub asked: MonotonicTime,
    /// The processes.
    pub scan: Scan,
}

/// Longest wait for one file. Opening takes microseconds; over a network, or from a disk that has
/// to spin up, it may take seconds.
const WAIT: Duration = Duration::from_secs(2);

/// Requests served in one pause of a reading.
const SERVED_AT_ONCE: usize = 8;

/// Longest wait for one file while the symbolizer may wait for the reading to end. Most open in
/// microseconds; a later one is taken when its file system answers.
const WAIT_ALONE: Duration = Duration::from_millis(20);

/// Longest time of serving others in such a reading. Beyond it they wait until the file is read.
const SERVED_ALONE_MAX: Duration = Duration::from_millis(500);

/// How unwind information gets to the sampler.
pub struct Modules {
    /// Where to send the result.
    pub loaded: SyncSender<UnwindUpdate>,
    /// Counters shared by the file loader and the sampler.
    pub handover: Arc<Handover>,
    /// Where separate debug files are looked for.
    pub debug_dirs: Vec<PathBuf>,
    /// Whether rows are derived for code that nothing describes.
    pub derive: bool,
}

/// Data shared by `fp-files` and the sampler besides their queues. Plain counters and a hint: only
/// the queues order anything.
#[derive(Debug, Default)]
pub struct Handover {
    /// Bytes sent and not yet taken.
    pub untaken_bytes: AtomicU64,
    /// True when a file is read as soon as it is seen. Without copies of stacks nobody asks for
    /// any.
    pub wanted: AtomicBool,
    /// Files not read because too many waited.
    pub unread: AtomicU64,
    /// Files not read, or read in vain, because the sampler had not taken what was read before.
    pub untaken: AtomicU64,
}

/// Contents of which the module is remembered. Beyond it those are forgotten that nobody has.
const SHARED_MAX: usize = 4096;

/// Opens files, each in its time.
pub struct FileLoader {
    helpers: BlockingPool,
    /// Modules that the sampler may still have: files with the same content share them.
    shared: Shared,
}

/// Modules by content.
type Shared = RefCell<HashMap<ContentId, Weak<Module>>>;

impl Default for FileLoader {
    fn default() -> Self {
        FileLoader {
            helpers: BlockingPool::new("open"),
            shared: RefCell::default(),
        }
    }
}

impl FileLoader {
    /// Reads all processes.
    pub fn scan(&self) -> Scan {
        scan::all(|mapping, path| generation_in_time(&self.helpers, WAIT, mapping, path))
    }

    /// Serves the sampler until it hangs up. `heartbeat` reports long work.
    pub fn run(
        self,
        requests: &Receiver<Request>,
        store: &Arc<FileStore>,
        scanned: &SyncSender<Scanned>,
        modules: &Modules,
        heartbeat: &Heartbeat,
    ) {
        let mut unread = Unread::default();
        // What could not be served while a file was read.
        let mut left = None;
        loop {
            heartbeat.end();
            let request = match (left.take(), unread.is_empty()) {
                (Some(request), _) => Ok(request),
                (None, true) => requests.recv().map_err(|_| TryRecvError::Disconnected),
                (None, false) => requests.try_recv(),
            };
            heartbeat.start();
            match request {
                Ok(request) => self.serve(request, WAIT, store, scanned, modules, &mut unread),
                // Opening comes first, also while one file takes long to read: a container may be
                // gone in a moment, an open file stays.
                Err(TryRecvError::Empty) => {
                    if let Some(id) = unread.pop() {
                        let mut served_alone = Duration::ZERO;
                        let mut pause = |alone: bool| {
                            for _ in 0..SERVED_AT_ONCE {
                                if left.is_some() || alone && served_alone > SERVED_ALONE_MAX {
                                    return;
                                }
                                let Ok(request) = requests.try_recv() else {
                                    return;
                                };
                                if alone && request.may_take_long() {
                                    left = Some(request);
                                    return;
                                }
                                heartbeat.start();
                                let started = MonotonicTime::now();
                                let wait = if alone { WAIT_ALONE } else { WAIT };
                                self.serve(request, wait, store, scanned, modules, &mut unread);
                                if alone {
                                    served_alone += MonotonicTime::now().since(started);
                                }
                                // The reading goes on.
                                heartbeat.start();
                            }
                        };
                        modules.read(id, store, &self.shared, &mut pause);
                    }
                }
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    fn serve(
        &self,
        request: Request,
        wait: Duration,
        store: &Arc<FileStore>,
        scanned: &SyncSender<Scanned>,
        modules: &Modules,
        unread: &mut Unread,
    ) {
        match request {
            Request::File(seen) => {
                let id = seen.id;
                let opened = store.see_in_time(seen, &self.helpers, wait);
                if opened && modules.handover.wanted.load(Ordering::Relaxed) {
                    let content = store.get(id).content;
                    let shared = content.and_then(|content| known(&self.shared, content));
                    match shared {
                        Some(module) => modules.share(id, module),
                        None => modules.count(unread.saw(id)),
                    }
                }
            }
            Request::Missed(Missed::Module(id)) => modules.count(unread.missed(id)),
            Request::Missed(Missed::CallSite(place)) => modules.look_at(place, store),
            Request::Processes => {
                let (asked, scan) = (MonotonicTime::now(), self.scan());
                // There is room: the sampler asks for one at a time.
                let _ = scanned.try_send(Scanned { asked, scan });
            }
            Request::Close(set) => drop(set),
            Request::CloseRings(rings) => drop(rings),
        }
    }
}

/// The module that another file with this content has.
fn known(shared: &Shared, content: ContentId) -> Option<Arc<Module>> {
    shared.borrow().get(&content)?.upgrade()
}

impl Modules {
    /// Counts a file that could not be had wait.
    fn count(&self, waits: bool) {
        if !waits {
            self.handover.unread.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks at the call before a place. What cannot be looked at now has no answer, and is asked
    /// for again.
    fn look_at(&self, place: call_sites::ReturnSite, store: &FileStore) {
        let (file, offset) = place;
        let Ok(image) = store.get(file).image else {
            return;
        };
        let Some(budget) = store.budget(&image) else {
            return;
        };
        let headers = elf::read_headers(&image).ok();
        let site = headers.and_then(|headers| call_sites::look(&image, &headers, offset));
        drop(budget);
        if let Some(site) = site {
            let looked = call_sites::Looked { place, site };
            let _ = self.loaded.try_send(UnwindUpdate::CallSite(looked));
        }
    }

    /// Reads a file, with a `pause` now and then.
    fn read<'p>(&self, file: FileId, store: &FileStore, shared: &Shared, pause: &'p mut Pause<'p>) {
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
        if let Some(module) = found.content.and_then(|content| known(shared, content)) {
            return self.share(file, module);
        }
        let module = match &found.image {
            Ok(image) => {
                // Where its owner has to wait it is asked for again.
                let Some(budget) = store.budget(image) else {
                    return;
                };
                let budget = budget.pausing(pause);
                let held = found.debug.as_ref();
                let module = Module::read(
                    image,
                    held,
                    &found.path,
                    (&self.debug_dirs, self.derive),
                    &budget,
                );
                if budget.over() == Some(Over::Later) {
                    store.count_put_off();
                    return;
                }
                module.map(|module| module.map(Arc::new))
            }
            // Asked for before it was seen. It is asked for again.
            Err(UnnamedReason::Limit) => return,
            Err(_) => Ok(None),
        };
        if let (Some(content), Ok(Some(module))) = (found.content, &module) {
            let shared = &mut *shared.borrow_mut();
            if shared.len() >= SHARED_MAX {
                shared.retain(|_, module| module.strong_count() > 0);
            }
            shared.insert(content, Arc::downgrade(module));
        }
        self.send(UnwindUpdate::Module(Loaded { file, module }));
    }

    /// Gives the sampler a module that another file has, too.
    fn share(&self, file: FileId, module: Arc<Module>) {
        let module = Ok(Some(module));
        self.send(UnwindUpdate::Shared(Loaded { file, module }));
    }

    /// Gives the sampler what was read, unless it does not take it.
    fn send(&self, loaded: UnwindUpdate) {
        let Handover {
            untaken_bytes,
            untaken,
            ..
        } = &*self.handover;
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
