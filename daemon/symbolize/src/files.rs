//! Keeps executables open from their first sample on, so that frames get names even after their
//! process or container is gone.
//!
//! The sampler sends a [`FileSeen`] when it first sees a file. The `fp-files` thread opens it
//! through the mapping, else by path inside the process's root, its relatives' roots and the
//! daemon's own, and accepts it only if it is the file that was recorded. The symbolizer calls
//! [`FileStore::get`].
//!
//! A file is the recorded one if device, inode number and, where both are known, inode generation
//! are equal; one from a recording of perf, if it has the recorded build ID. btrfs, and overlays
//! on kernels before October 2025, show device numbers in mappings that `stat` does not: there an
//! equal inode number at the same path is enough. Records contain no size or change time that could
//! be compared. If only a path was recorded, only the mapping and the process's own root count.
//! `map_files` is checked too, because a process that reuses the pid may have another file mapped
//! at the same addresses.
//!
//! The kernel could put the build ID into the record of a mapping. It is not asked for: it then
//! says of the records of other events that they carry one, and `perf record COMMAND` takes the
//! device number for a length and aborts (`perf_event_mmap_output`, 6.18). A build ID also proves
//! nothing: a container may give its file that of another's.

use super::budget::{FileBudget, Purpose, Shares};
use super::contents::{ContentId, Contents, Facts};
use super::counters::{SymbolCounters, bump};
use super::debug_files;
use super::elf;
pub use super::image::Image;
use super::mounts;
use super::open::{self, Links, OpenError, Root};
use hashbrown::{HashMap, HashSet};
use host::blocking_pool::{BlockingPool, REMOTE_LATE_MAX};
use host::ids::{Avma, FileId, Pid};
use host::sync::lock;
use host::time::MonotonicTime;
use profile::UnnamedReason;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Number of relatives named with a file.
pub const RELATIVES: usize = 4;

/// Most files held open by default. Unit: descriptors. Beyond it, and beyond half of the process's
/// limit, the longest unused is closed; its frames then keep only names already read.
pub const OPEN_FILES_MAX: usize = 4096;

/// A file without samples for this long is closed: an open file keeps its file system from being
/// unmounted, and its blocks from being free once it is deleted.
pub const UNUSED_MAX: Duration = Duration::from_secs(90);

/// Most files remembered, open or not. A build host endlessly runs thousands of programs a minute;
/// a forgotten file costs names only if it is sampled again.
const KNOWN_FILES_MAX: usize = 16384;

/// Identity of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FileIdentity {
    /// The linker's hash of the content: in recordings of perf alone.
    BuildId {
        /// The hash, padded with zeros.
        bytes: [u8; 20],
        /// Its length.
        len: u8,
    },
    /// Device and inode as the kernel saw them at the mapping.
    Inode {
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
        /// Inode number.
        inode: u64,
        /// Inode generation; 0 when not known.
        generation: u64,
    },
    /// The code that the kernel maps into every process.
    Vdso,
    /// Only a path is known.
    Path,
}

impl FileIdentity {
    /// A build id; `None` when it is empty or longer than the kernel's 20 bytes.
    pub fn build_id(id: &[u8]) -> Option<FileIdentity> {
        let mut bytes = [0; 20];
        bytes.get_mut(..id.len())?.copy_from_slice(id);
        (!id.is_empty()).then_some(FileIdentity::BuildId {
            bytes,
            len: id.len() as u8,
        })
    }
}

/// A file seen in a process: the sampler sends it at the first sample in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSeen {
    /// Its id in the process table.
    pub id: FileId,
    /// Its identity.
    pub identity: FileIdentity,
    /// Its path in the process's mount namespace, as the kernel wrote it.
    pub path: Box<[u8]>,
    /// The process.
    pub pid: Pid,
    /// Start and end of the mapping.
    pub range: (Avma, Avma),
    /// Live relatives, likely in the same container: parent first; `Pid(0)` where there is none.
    pub relatives: [Pid; RELATIVES],
}

/// Result of a file lookup for the symbolizer.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its path in the process's mount namespace; empty when the file is not known.
    pub path: Arc<[u8]>,
    /// Its identity.
    pub identity: FileIdentity,
    /// Its content, or why there is none.
    pub image: Result<Image, UnnamedReason>,
    /// Which content it is; `None` before it was first opened.
    pub content: Option<ContentId>,
    /// The linker's hash of the content, as the file says; empty when it has none, or was never
    /// opened.
    pub build_id: Arc<[u8]>,
    /// Its separate debug file, where one was needed and found at the first sample.
    pub debug: Option<Image>,
}

impl Found {
    /// A file without content now.
    fn without(path: Arc<[u8]>, identity: FileIdentity, reason: UnnamedReason) -> Found {
        Found {
            path,
            identity,
            image: Err(reason),
            content: None,
            build_id: Arc::default(),
            debug: None,
        }
    }
}

struct Known {
    found: Found,
    used: u64,
    /// When it was opened, or the end of the last batch with samples in it.
    sampled: MonotonicTime,
}

#[derive(Default)]
struct Table {
    known: HashMap<FileId, Known>,
    contents: Contents,
    clock: u64,
    open: usize,
}

/// Announcements dealt with.
#[derive(Debug, Default)]
struct Done {
    /// Since the start.
    count: u64,
    /// The number for which the symbolizer waits, or last waited.
    wanted: u64,
}

/// The files. Shared by `fp-files`, which opens, and the symbolizer, which reads; the lock is never
/// held over a system call other than close.
pub struct FileStore {
    table: Mutex<Table>,
    /// Announcements dealt with since the start.
    done: Mutex<Done>,
    /// Notified when the number that somebody waits for has been processed.
    enough: Condvar,
    open_max: usize,
    debug: debug_files::DebugFileOptions,
    counters: Arc<SymbolCounters>,
    shares: Arc<Shares>,
    /// Devices of what the host had installed at the start.
    host_devices: Box<[u64]>,
}

impl FileStore {
    /// A store that holds at most `open_max` files open; `None` for the default.
    pub fn new(open_max: Option<usize>, counters: Arc<SymbolCounters>) -> FileStore {
        let default = || OPEN_FILES_MAX.min(open::half_of_descriptor_limit());
        let open_max = open_max.unwrap_or_else(default).max(1);
        FileStore {
            table: Mutex::default(),
            done: Mutex::default(),
            enough: Condvar::new(),
            open_max,
            debug: debug_files::DebugFileOptions::default(),
            shares: Arc::new(Shares::counted(Arc::clone(&counters))),
            counters,
            host_devices: mounts::host_devices().into(),
        }
    }

    /// The current budget for reading a file; `None`, which is counted, while its owner's files
    /// have used more than their share.
    pub fn budget<'a>(&self, image: &Image) -> Option<FileBudget<'a>> {
        self.budget_for(image, Purpose::Profile)
    }

    /// The same, charged to the owner's share for a purpose.
    pub fn budget_for<'a>(&self, image: &Image, purpose: Purpose) -> Option<FileBudget<'a>> {
        let payer = (image.owner(&self.host_devices), purpose);
        let budget = self.shares.budget(payer, MonotonicTime::now());
        if budget.is_none() {
            self.count_put_off();
        }
        budget
    }

    /// Uses up the share of a file's owner.
    #[cfg(test)]
    pub fn take_share(&self, id: FileId) {
        if let Ok(image) = &self.get(id).image {
            let owner = image.owner(&self.host_devices);
            self.shares.take_all((owner, Purpose::Profile));
        }
    }

    /// Counts a file that is not read now but when it is asked for again.
    pub fn count_put_off(&self) {
        bump(&self.counters.files_put_off);
    }

    /// Holds these debug files open too.
    pub fn with_debug_files(self, debug: debug_files::DebugFileOptions) -> FileStore {
        FileStore { debug, ..self }
    }

    /// Opens a file that was seen, unless it is open already, and returns false then. May wait
    /// forever.
    pub fn see(&self, seen: &FileSeen) -> bool {
        let tried = self.open(seen);
        self.count_done();
        tried
    }

    /// Has a helper open a file that was seen, unless it is open already, and waits only for a
    /// limited time. If the file system answers later, the file is used from then on. True if it
    /// was opened now.
    pub fn see_in_time(
        self: &Arc<Self>,
        seen: FileSeen,
        helpers: &BlockingPool,
        time: Duration,
    ) -> bool {
        let late = helpers.late();
        let refused = helpers.is_exhausted()
            || late >= REMOTE_LATE_MAX && mounts::is_remote_path(seen.pid.0, &seen.path);
        let (id, path, identity) = (seen.id, Arc::from(&*seen.path), seen.identity);
        let (store, work) = (Arc::clone(self), move |store: &FileStore| store.open(&seen));
        let tried = match refused {
            true => None,
            false => helpers.run(time, move || work(&store)),
        };
        if tried.is_none() {
            bump(&self.counters.files_late);
            let found = Found::without(path, identity, UnnamedReason::FileUnreadable);
            self.put_unless_open(id, found);
        }
        self.count_done();
        tried.unwrap_or(false)
    }

    fn open(&self, seen: &FileSeen) -> bool {
        if let Some(known) = self.lock().known.get_mut(&seen.id)
            && known.found.image.is_ok()
        {
            known.sampled = MonotonicTime::now();
            return false;
        }
        let image = open_seen(seen);
        bump(match image {
            Ok(_) => &self.counters.files_opened,
            Err(reason) => self.refused(reason),
        });
        let held = image.as_ref().ok().cloned();
        let facts = held.as_ref().map(Facts::of);
        let found = Found {
            path: seen.path.as_ref().into(),
            identity: seen.identity,
            image,
            content: None,
            build_id: Arc::default(),
            debug: None,
        };
        self.put(seen.id, found, facts.as_ref());
        // Where that hangs the executable is there all the same.
        if let Some(image) = held {
            let path = open::without_deleted(&seen.path);
            if let Some(debug) = debug_files::at_first_sight(&self.debug, &image, seen.pid, path) {
                self.hold(seen.id, debug);
            }
        }
        true
    }

    /// Holds the debug file of an executable that is open.
    fn hold(&self, id: FileId, debug: Image) {
        let table = &mut *self.lock();
        if let Some(known) = table.known.get_mut(&id)
            && known.found.image.is_ok()
            && known.found.debug.is_none()
        {
            table.open -= descriptors(&known.found);
            known.found.debug = Some(debug);
            table.open += descriptors(&known.found);
            bump(&self.counters.debug_files_held);
        }
        self.keep_within(table);
    }

    /// Waits until `announced` announcements have been dealt with, or the time is over.
    pub fn wait_for(&self, announced: u64, time: Duration) {
        let mut done = lock(&self.done);
        done.wanted = announced;
        let missing = |done: &mut Done| done.count < announced;
        // Those that are missing are read later.
        drop(self.enough.wait_timeout_while(done, time, missing));
    }

    fn count_done(&self) {
        let mut done = lock(&self.done);
        done.count += 1;
        if done.count == done.wanted {
            drop(done);
            self.enough.notify_all();
        }
    }

    fn refused(&self, reason: UnnamedReason) -> &AtomicU64 {
        match reason {
            UnnamedReason::FileGone => &self.counters.files_gone,
            UnnamedReason::FileChanged => &self.counters.files_changed,
            _ => &self.counters.files_unreadable,
        }
    }

    /// The helper may have come back just now: whether it did is looked at under the same lock.
    fn put_unless_open(&self, id: FileId, found: Found) {
        let table = &mut *self.lock();
        let known = table.known.get(&id);
        if known.is_none_or(|known| known.found.image.is_err()) {
            self.put_into(table, id, found, None);
        }
    }

    fn put(&self, id: FileId, found: Found, facts: Option<&Facts>) {
        self.put_into(&mut self.lock(), id, found, facts);
    }

    /// `facts`: those of its image; `None` if there is none now. What was known stays then.
    fn put_into(&self, table: &mut Table, id: FileId, mut found: Found, facts: Option<&Facts>) {
        table.clock += 1;
        if let Some(facts) = facts {
            found.content = Some(table.contents.id_of(id, facts));
            found.build_id = Arc::clone(&facts.build_id);
            if table.contents.count() > 2 * table.known.len() + 64 {
                forget_contents(table, found.content);
            }
        } else if let Some(known) = table.known.get(&id) {
            found.content = known.found.content;
            found.build_id = Arc::clone(&known.found.build_id);
        }
        table.open += descriptors(&found);
        let known = Known {
            found,
            used: table.clock,
            sampled: MonotonicTime::now(),
        };
        if let Some(old) = table.known.insert(id, known) {
            table.open -= descriptors(&old.found);
        }
        self.keep_within(table);
        if table.known.len() > KNOWN_FILES_MAX {
            forget_longest_unused(table);
        }
    }

    /// If too many are open, closes a sixteenth of the files, so that the search for the oldest is
    /// rarely needed.
    fn keep_within(&self, table: &mut Table) {
        if table.open <= self.open_max {
            return;
        }
        let mut uses: Vec<u64> = table
            .known
            .values()
            .filter(|known| is_open(&known.found))
            .map(|k| k.used)
            .collect();
        let nth = (uses.len() / 16).min(uses.len() - 1);
        let (_, &mut limit, _) = uses.select_nth_unstable(nth);
        for known in table.known.values_mut() {
            if known.used <= limit && is_open(&known.found) {
                table.open -= descriptors(&known.found);
                close(&mut known.found);
                bump(&self.counters.files_evicted);
            }
        }
    }

    /// Notes which files had samples in what ended at `end`, and closes those that have had none
    /// for [`UNUSED_MAX`]. One that is sampled again is announced again, and opened.
    pub fn close_unused(&self, sampled: impl Iterator<Item = FileId>, end: MonotonicTime) {
        let table = &mut *self.lock();
        for id in sampled {
            if let Some(known) = table.known.get_mut(&id) {
                known.sampled = known.sampled.max(end);
            }
        }
        for known in table.known.values_mut() {
            if is_open(&known.found) && end.since(known.sampled) > UNUSED_MAX {
                table.open -= descriptors(&known.found);
                close(&mut known.found);
                bump(&self.counters.files_closed);
            }
        }
    }

    /// What is known of a file. One that was never reported counts as over a limit: the queue
    /// between sampler and `fp-files` was full.
    pub fn get(&self, id: FileId) -> Found {
        let table = &mut *self.lock();
        table.clock += 1;
        match table.known.get_mut(&id) {
            Some(known) => {
                known.used = table.clock;
                known.found.clone()
            }
            None => Found::without(Arc::default(), FileIdentity::Path, UnnamedReason::Limit),
        }
    }

    /// Number of files held open now.
    pub fn open_files(&self) -> usize {
        self.lock().open
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is complete between any two statements that can panic.
        lock(&self.table)
    }
}

fn is_open(found: &Found) -> bool {
    descriptors(found) > 0
}

/// Descriptors held for a file.
fn descriptors(found: &Found) -> usize {
    let held = [found.image.as_ref().ok(), found.debug.as_ref()];
    let open = |image: &&Image| matches!(image, Image::File(..) | Image::Remote(_));
    held.into_iter().flatten().filter(open).count()
}

fn close(found: &mut Found) {
    found.image = Err(UnnamedReason::Limit);
    found.debug = None;
}

fn forget_longest_unused(table: &mut Table) {
    let mut uses: Vec<u64> = table.known.values().map(|known| known.used).collect();
    let nth = uses.len() / 16;
    let (_, &mut limit, _) = uses.select_nth_unstable(nth);
    table.known.retain(|_, known| known.used > limit);
    forget_contents(table, None);
    table.open = table
        .known
        .values()
        .map(|known| descriptors(&known.found))
        .sum();
}

/// Forgets contents of files that are not known any more.
fn forget_contents(table: &mut Table, kept: Option<ContentId>) {
    let known = table.known.values().map(|known| known.found.content);
    let used: HashSet<ContentId> = known.chain([kept]).flatten().collect();
    table.contents.retain(&used);
}

/// As [`generation_of_mapping`], by a helper that is waited for only so long.
pub fn generation_in_time(
    helpers: &BlockingPool,
    time: Duration,
    (pid, start, end): (Pid, u64, u64),
    path: &[u8],
) -> Option<u32> {
    let refused = helpers.is_exhausted()
        || helpers.late() >= REMOTE_LATE_MAX && mounts::is_remote_path(pid.0, path);
    if refused {
        return None;
    }
    helpers.run(time, move || generation_of_mapping(pid, start, end))?
}

/// The inode generation of the file of a mapping that is older than the daemon, if the kernel
/// allows opening it and the file system has one. Records of mappings bring it, /proc does not. May
/// wait forever.
pub fn generation_of_mapping(pid: Pid, start: u64, end: u64) -> Option<u32> {
    open::inode_generation(&open::open_mapping(pid.0, start, end).ok()?)
}

/// The way a file was found, which says how far its path may be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Via {
    Mapping,
    OwnRoot,
    OtherRoot,
}

fn open_seen(seen: &FileSeen) -> Result<Image, UnnamedReason> {
    if seen.identity == FileIdentity::Vdso {
        return match open::own_vdso() {
            Some(bytes) => Ok(Image::Memory(bytes.into())),
            None => Err(UnnamedReason::FileGone),
        };
    }
    let mut worst = UnnamedReason::FileGone;
    let mut take = |opened: Result<File, OpenError>, via: Via| -> Option<Image> {
        let problem = match opened {
            Ok(file) if is_the_one(&file, &seen.identity, via) => match Image::open(file) {
                Ok(image) => return Some(image),
                Err(_) => UnnamedReason::FileUnreadable,
            },
            Ok(_) => UnnamedReason::FileChanged,
            Err(OpenError::Gone) => UnnamedReason::FileGone,
            Err(_) => UnnamedReason::FileUnreadable,
        };
        // Keep the most specific problem: a changed file, then an unreadable one, then a missing
        // one.
        worst = match (worst, problem) {
            (UnnamedReason::FileChanged, _) | (_, UnnamedReason::FileChanged) => {
                UnnamedReason::FileChanged
            }
            (UnnamedReason::FileUnreadable, _) => UnnamedReason::FileUnreadable,
            (_, problem) => problem,
        };
        None
    };
    let (start, end) = (seen.range.0.0, seen.range.1.0);
    let mapping = open::open_mapping(seen.pid.0, start, end);
    // Without the right to use map_files every try fails alike, which says nothing of the file.
    let mapping = match mapping {
        Err(OpenError::Io(error)) if error.raw_os_error() == Some(libc::EPERM) => {
            Err(OpenError::Gone)
        }
        other => other,
    };
    if let Some(image) = take(mapping, Via::Mapping) {
        return Ok(image);
    }
    let path = open::without_deleted(&seen.path);
    if path.first() != Some(&b'/') {
        return Err(worst);
    }
    let inside = |pid: Pid| Root::of_process(pid.0).and_then(|root| root.open(path, Links::Inside));
    if let Some(image) = take(inside(seen.pid), Via::OwnRoot) {
        return Ok(image);
    }
    for &relative in seen.relatives.iter().filter(|pid| pid.0 != 0) {
        if let Some(image) = take(inside(relative), Via::OtherRoot) {
            return Ok(image);
        }
    }
    let own = Root::of_dir(Path::new("/")).and_then(|root| root.open(path, Links::Inside));
    take(own, Via::OtherRoot).ok_or(worst)
}

/// True if an opened file is the one that a process mapped. `mapping` says that it was opened
/// through the mapping itself, else by its path in the process's root.
pub fn is_mapped(file: &File, identity: &FileIdentity, mapping: bool) -> bool {
    let via = if mapping { Via::Mapping } else { Via::OwnRoot };
    is_the_one(file, identity, via)
}

/// True when an opened file is the one that was recorded; see the head of this file.
fn is_the_one(file: &File, identity: &FileIdentity, via: Via) -> bool {
    match *identity {
        FileIdentity::BuildId { bytes, len } => {
            let recorded = &bytes[..usize::from(len).min(bytes.len())];
            elf::read_build_id(file).is_ok_and(|found| *found == *recorded)
        }
        FileIdentity::Inode {
            major,
            minor,
            inode,
            generation,
        } => {
            let Ok(found) = open::device_and_inode(file) else {
                return false;
            };
            let same_generation = generation == 0
                || open::inode_generation(file).is_none_or(|found| found == generation as u32);
            let same_device = (found.0, found.1) == (major, minor);
            match found.2 == inode {
                true => same_generation && (same_device || open::device_may_differ(file)),
                // An overlay of several file systems makes its inode numbers up.
                false => !same_device && via == Via::Mapping && open::device_may_differ(file),
            }
        }
        FileIdentity::Path => via != Via::OtherRoot,
        FileIdentity::Vdso => false,
    }
}
