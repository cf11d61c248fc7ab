//! The thread `fp-jit`: tracks which processes run generated code, and keeps the names of that code
//! up to date.
//!
//! The sampler reports a process at its first sample in generated code, each jitdump that is
//! mapped, and the end of each reported process. The symbolizer asks for the names before it names
//! a batch. Files are opened at the first sample, read once a second while there are samples, and
//! read to their end when the process ends, so that names match the time of a sample and outlive
//! the process.
//!
//! This thread itself accesses no file. Helpers (`fp-blocking`) do, and it waits for them only for
//! a limited time. A file that never answers costs one helper and the names of its own process.

use super::allowance::Allowance;
use super::ask::{AttachTarget, RuntimeAttacher};
use super::notice::{NOTICES_MAX, Notice, SharedCodeMap, SymbolRequest};
use super::options::Options;
use super::read_batch::{ReadBatch, Work};
use super::reader::{CodeLock, GeneratedCode, ReadOutcome, ReadRequest, Reader, Room};
use super::target;
use hashbrown::HashMap;
use host::blocking_pool::{BlockingPool, REMOTE_LATE_MAX};
use host::ids::ProcessId;
use host::sync::lock;
use host::time::MonotonicTime;
use profile::UnnamedReason;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use symbolize::counters::{SymbolCounters, bump};
use symbolize::{mounts, open};
use unwind::info::generated::{Generated, GeneratedRules};
use unwind::process::{DUMPS_MAX, DumpSeen, ProcessInstance};

/// Most processes watched. Unit: processes, each with a descriptor for its root and one for each
/// file.
pub const PROCESSES_MAX: usize = 1024;

/// How often files are read while there are samples. The time at which a line came into a perf map
/// is known no better than this.
const TICK: Duration = Duration::from_secs(1);

/// The same while there are processes but none has samples: only needed to forget them in time.
const LAZY_TICK: Duration = Duration::from_secs(60);

/// How long after its last sample a process's files are read on. Three default windows.
const ACTIVE: Duration = Duration::from_secs(30);

/// How long after its last sample a process is forgotten, its files are closed and its memory is
/// freed.
const IDLE_MAX: Duration = Duration::from_secs(600);

/// If a process has no file yet, the file is looked for again after this time, then twice this and
/// so on, and with each batch that has samples of it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Longest such wait; after it only batches are a reason to look.
const LOOK_AGAIN_MAX: Duration = Duration::from_secs(8);

/// Most bytes of one process read at a tick. A file that grows faster is read more slowly than it
/// grows.
const TICK_BYTES: u64 = 16 << 20;

/// Most bytes of one process read at its first sample, at its end, and before its samples are
/// named.
const REFRESH_BYTES: u64 = 64 << 20;

/// Longest wait for one process. The largest map is read in some tenths of a second from memory.
const WAIT: Duration = Duration::from_millis(500);

/// Longest wait for all of them together: the rest of a window is for naming.
const WAITS: Duration = Duration::from_secs(2);

/// A process with files that take longer than this is skipped at ticks: others come first.
const SLOW: Duration = Duration::from_millis(200);

/// A reader that has read this much is allowed to take long.
const SLOW_BYTES: u64 = 1 << 20;

/// How long a process is rejected if its code needs more memory than there is.
const REFUSED_FOR: Duration = Duration::from_secs(60);

/// Memory for everything known, as a multiple of the most for one process: twice as much, so that a
/// map of the largest size can be read again while the old one is in use.
pub const ROOM_OF_MAPS: u64 = 2;

/// Bytes of all files together that are read at once, and for each second since: a hundred
/// processes that write without end cost no more than four.
const ALL_BYTES_AT_ONCE: u64 = 256 << 20;

/// See [`ALL_BYTES_AT_ONCE`].
const ALL_BYTES_PER_S: u64 = 16 << 20;

/// State of one process.
struct Watched {
    whose: ProcessInstance,
    known: Arc<CodeLock>,
    /// `None` while a helper has it, and when nothing is left to read.
    reader: Option<Reader>,
    /// The process has ended and all it wrote was read, or reading it does not work.
    closed: bool,
    /// Jitdumps to be opened.
    dumps: Vec<DumpSeen>,
    /// All jitdumps reported for it.
    told: Vec<DumpSeen>,
    /// When it last had samples, or was reported.
    used: MonotonicTime,
    ended: Option<MonotonicTime>,
    /// When to look for files again, and how long to wait then.
    look: (MonotonicTime, Duration),
    slow: bool,
    refused_until: MonotonicTime,
    bytes: usize,
    behind: bool,
    follows: bool,
    /// Rules that the sampler has not got yet.
    rules: Option<Arc<GeneratedRules>>,
    /// The sampler has the rules; its first samples wait for that.
    answered: bool,
}

impl Watched {
    fn new(whose: ProcessInstance, defaults: &Defaults, now: MonotonicTime) -> Watched {
        let Defaults {
            options,
            room,
            created,
        } = defaults;
        let (options, created) = (*options, *created);
        Watched {
            whose,
            known: Arc::new(CodeLock::new(GeneratedCode::new(Arc::clone(room)))),
            reader: Some(Reader::new(whose.pid, started_by(whose, created), options)),
            closed: false,
            dumps: Vec::new(),
            told: Vec::new(),
            used: now,
            ended: None,
            look: (now, LOOK_AGAIN),
            slow: false,
            refused_until: MonotonicTime(0),
            bytes: 0,
            behind: false,
            follows: false,
            rules: None,
            answered: false,
        }
    }

    /// Closes its files and forgets their content: they are read again when needed.
    fn start_over(&mut self, defaults: &Defaults) {
        let told = std::mem::take(&mut self.told);
        *self = Watched {
            dumps: told.clone(),
            told,
            ended: self.ended,
            // The sampler frees what it has of them too.
            rules: Some(Arc::default()),
            ..Watched::new(self.whose, defaults, self.used)
        };
    }

    /// It has samples, which may not have names yet.
    fn is_wanted(&self, now: MonotonicTime) -> bool {
        now.since(self.used) < ACTIVE
    }

    /// It has samples, and something to read.
    fn is_active(&self, now: MonotonicTime) -> bool {
        self.is_wanted(now) && !self.closed
    }
}

/// The latest time a process can have started: before the daemon where it is older.
fn started_by(whose: ProcessInstance, created: MonotonicTime) -> MonotonicTime {
    if whose.started == MonotonicTime(0) {
        created
    } else {
        whose.started
    }
}

/// Initial state of every process.
struct Defaults {
    options: Options,
    room: Arc<Room>,
    /// Processes that were there before the daemon started before this.
    created: MonotonicTime,
}

/// Watches processes with generated code. See the head of this file.
pub struct Watcher {
    defaults: Defaults,
    counters: Arc<SymbolCounters>,
    processes: HashMap<ProcessId, Watched>,
    pub(super) helpers: BlockingPool,
    /// Results of helpers.
    done: Arc<Mutex<Vec<Work>>>,
    attacher: RuntimeAttacher,
    /// Rules to the sampler.
    rules: SyncSender<Generated>,
    /// For the files of all processes.
    allowance: Allowance,
    named_until: MonotonicTime,
    pub(super) wait: Duration,
}

impl Watcher {
    /// Watches nobody yet.
    pub fn new(
        options: Options,
        attacher: RuntimeAttacher,
        counters: Arc<SymbolCounters>,
        rules: SyncSender<Generated>,
    ) -> Watcher {
        // This notes the clock as the daemon found it.
        target::least_ahead();
        Watcher {
            defaults: Defaults {
                options,
                room: Room::new(options.max_bytes.saturating_mul(ROOM_OF_MAPS)),
                created: MonotonicTime::now(),
            },
            allowance: Allowance::new(ALL_BYTES_AT_ONCE, ALL_BYTES_PER_S),
            counters,
            processes: HashMap::new(),
            helpers: BlockingPool::new("maps"),
            done: Arc::default(),
            attacher,
            rules,
            named_until: MonotonicTime(0),
            wait: WAIT,
        }
    }

    /// Serves sampler and symbolizer until both have hung up.
    pub fn run(mut self, notices: &Receiver<Notice>) {
        let mut next = MonotonicTime::now();
        loop {
            let now = MonotonicTime::now();
            let active = self.processes.values().any(|one| one.is_active(now));
            let notice = match (active, self.is_empty()) {
                (true, _) => notices.recv_timeout(next.since(now)),
                (false, false) => notices.recv_timeout(LAZY_TICK),
                (false, true) => notices.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match notice {
                Ok(first) => self.take(std::iter::once(first).chain(notices.try_iter())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let now = MonotonicTime::now();
            if now >= next {
                self.tick(now);
                next = MonotonicTime::now().plus(TICK);
            }
        }
    }

    /// Handles the notices, then answers the queries.
    pub fn take(&mut self, notices: impl Iterator<Item = Notice>) {
        let now = MonotonicTime::now();
        let mut due: Vec<ProcessId> = Vec::new();
        for notice in notices.take(NOTICES_MAX) {
            match notice {
                Notice::Met(whose) => {
                    self.meet(whose, now);
                    due.push(whose.id);
                }
                Notice::Dump(seen) => {
                    let id = seen.whose.id;
                    self.take_dump(*seen, now);
                    due.push(id);
                }
                Notice::Ended(id, time) => {
                    if let Some(known) = self.processes.get_mut(&id) {
                        known.ended = Some(time);
                    }
                    due.push(id);
                }
                Notice::Named(until) => self.named_until = self.named_until.max(until),
                Notice::Refresh {
                    wanted,
                    named_until,
                    reply,
                } => {
                    self.look_at(std::mem::take(&mut due));
                    self.named_until = self.named_until.max(named_until);
                    let shared = self.refresh(wanted);
                    // Whoever asked may have given up.
                    let _ = reply.try_send(shared);
                }
            }
        }
        self.look_at(due);
    }

    /// Looks for files of processes that were just reported, or ended, and reads them.
    fn look_at(&mut self, mut due: Vec<ProcessId>) {
        if due.is_empty() {
            return;
        }
        due.sort_unstable();
        due.dedup();
        let requests = due.into_iter().map(|id| {
            let request = ReadRequest {
                look: true,
                bytes: REFRESH_BYTES,
                ..ReadRequest::default()
            };
            (id, request)
        });
        self.work(requests.collect());
    }

    fn meet(&mut self, whose: ProcessInstance, now: MonotonicTime) -> Option<&mut Watched> {
        if !self.processes.contains_key(&whose.id) {
            if self.processes.len() >= PROCESSES_MAX {
                self.forget_ended(now);
            }
            if self.processes.len() >= PROCESSES_MAX && !self.forget_idle(now) {
                bump(&self.counters.code_processes_refused);
                return None;
            }
            let watched = Watched::new(whose, &self.defaults, now);
            self.processes.insert(whose.id, watched);
        }
        let watched = self.processes.get_mut(&whose.id)?;
        watched.used = now;
        Some(watched)
    }

    fn take_dump(&mut self, seen: DumpSeen, now: MonotonicTime) {
        let Some(watched) = self.meet(seen.whose, now) else {
            return;
        };
        if watched.told.len() < DUMPS_MAX {
            watched.told.push(seen.clone());
            watched.dumps.push(seen);
        } else {
            bump(&self.counters.jitdumps_untold);
        }
    }

    /// Brings processes up to date, and says what is known of them.
    pub fn refresh(&mut self, mut wanted: Vec<SymbolRequest>) -> Vec<SharedCodeMap> {
        let now = MonotonicTime::now();
        let mut requests = Vec::new();
        for wanted in &mut wanted {
            if let Some(watched) = self.meet(wanted.whose, now) {
                if wanted.ended && watched.ended.is_none() {
                    watched.ended = Some(now);
                }
                let request = ReadRequest {
                    addresses: std::mem::take(&mut wanted.addresses),
                    bytes: REFRESH_BYTES,
                    ..ReadRequest::default()
                };
                requests.push((wanted.whose.id, request));
            }
        }
        self.work(requests);
        let mut shared = Vec::new();
        for wanted in &wanted {
            if let Some(watched) = self.processes.get(&wanted.whose.id) {
                shared.push(SharedCodeMap {
                    id: wanted.whose.id,
                    known: Arc::clone(&watched.known),
                    late: watched.reader.is_none() && !watched.closed,
                });
            }
        }
        shared
    }

    /// Work that is due once a second.
    pub fn tick(&mut self, now: MonotonicTime) {
        self.collect();
        self.forget_ended(now);
        let mut requests = Vec::new();
        for (&id, watched) in &mut self.processes {
            if !watched.is_active(now) || watched.slow && !watched.behind {
                continue;
            }
            let (at, wait) = watched.look;
            let look = !watched.follows && now >= at && wait <= LOOK_AGAIN_MAX;
            if look {
                watched.look = (now.plus(wait), 2 * wait);
            }
            if look || watched.follows || watched.behind {
                let request = ReadRequest {
                    look,
                    bytes: TICK_BYTES,
                    ..ReadRequest::default()
                };
                requests.push((id, request));
            }
        }
        self.work(requests);
        let written = self.attacher.tick(now);
        self.look_at(written);
    }

    /// Has helpers carry out the requests, and waits for them for a limited time.
    fn work(&mut self, requests: Vec<(ProcessId, ReadRequest)>) {
        self.collect();
        let turn = Arc::new(ReadBatch::default());
        for (id, request) in requests {
            if let Some(work) = self.prepare(id, request) {
                lock(&turn.todo).push_back(work);
            }
        }
        self.see_through(&turn);
        // Untouched for lack of time or helpers.
        while let Some(work) = turn.take() {
            bump(&self.counters.perf_maps_late);
            if let Some(watched) = self.processes.get_mut(&work.id) {
                watched.dumps = work.request.dumps;
                watched.reader = Some(work.reader);
            }
        }
        self.collect();
        self.evict(MonotonicTime::now());
        self.send_rules();
    }

    fn prepare(&mut self, id: ProcessId, mut request: ReadRequest) -> Option<Work> {
        let watched = self.processes.get_mut(&id)?;
        if watched.refused_until > MonotonicTime::now() {
            return None;
        }
        let pid = watched.whose.pid.0;
        // Those that may hang too must not take the helpers that others need.
        let may_hang = || {
            let told = watched.told.iter();
            let mut paths = told.map(|seen| open::without_deleted(&seen.path));
            paths.any(|path| mounts::is_remote_path(pid, path))
                || mounts::is_remote_below(pid, b"/tmp").unwrap_or(true)
        };
        let refused = watched.reader.is_some()
            && (self.helpers.is_exhausted()
                || self.helpers.late() >= REMOTE_LATE_MAX && may_hang());
        if refused {
            // What was read before holds.
            bump(&self.counters.perf_maps_late);
            lock_if_free(&watched.known, |known| {
                if known.reason == UnnamedReason::JitNoMap {
                    known.reason = UnnamedReason::JitMapLate;
                }
            });
            return None;
        }
        let reader = watched.reader.take()?;
        request.dumps = std::mem::take(&mut watched.dumps);
        request.named_until = self.named_until;
        request.bytes = request.bytes.min(self.allowance.left(MonotonicTime::now()));
        Some(Work {
            id,
            reader,
            request,
            started: MonotonicTime::now(),
            known: Arc::clone(&watched.known),
            outcome: ReadOutcome::default(),
            took: Duration::ZERO,
        })
    }

    /// Has helpers work until everything is done or the time is over. Late results arrive later.
    fn see_through(&mut self, turn: &Arc<ReadBatch>) {
        let started = MonotonicTime::now();
        let waits = WAITS.max(self.wait);
        let mut under_way = None;
        while !lock(&turn.todo).is_empty() || under_way.is_some() {
            let pending = match under_way.take() {
                Some(pending) => Some(pending),
                None => {
                    let (turn, done) = (Arc::clone(turn), Arc::clone(&self.done));
                    let counters = Arc::clone(&self.counters);
                    self.helpers.spawn(move || turn.work(&done, &counters))
                }
            };
            let Some(pending) = pending else { return };
            match pending.wait(self.wait) {
                Ok(()) => {}
                Err(None) => self.drop_broken(turn),
                Err(Some(pending)) => {
                    let out_of_time = MonotonicTime::now().since(started) >= waits;
                    let is_stuck = turn.is_stuck(self.wait);
                    if is_stuck || out_of_time {
                        bump(&self.counters.perf_maps_late);
                    }
                    if out_of_time {
                        return;
                    }
                    if !is_stuck {
                        under_way = Some(pending);
                    }
                }
            }
        }
    }

    /// A helper panicked: what it had in hand is not tried again.
    fn drop_broken(&mut self, turn: &ReadBatch) {
        bump(&self.counters.library_panics);
        for (id, _) in lock(&turn.in_hand).drain(..) {
            if let Some(watched) = self.processes.get_mut(&id) {
                watched.closed = true;
            }
        }
    }

    /// Collects the results of helpers.
    fn collect(&mut self) {
        let done: Vec<Work> = std::mem::take(&mut *lock(&self.done));
        let now = MonotonicTime::now();
        for work in done {
            self.allowance.take(work.outcome.read);
            let Some(watched) = self.processes.get_mut(&work.id) else {
                continue;
            };
            if !Arc::ptr_eq(&watched.known, &work.known) {
                continue;
            }
            let ReadOutcome {
                unnamed,
                behind,
                follows,
                bytes,
                read,
                rules,
            } = work.outcome;
            (watched.behind, watched.follows) = (behind, follows);
            watched.bytes = bytes;
            watched.slow = work.took > SLOW && read < SLOW_BYTES;
            let is_first = !std::mem::replace(&mut watched.answered, true);
            if let Some(rules) = rules.or_else(|| is_first.then(Arc::default)) {
                watched.rules = Some(rules);
            }
            // Read after its end, and to the end.
            watched.closed = !behind && watched.ended.is_some_and(|ended| ended <= work.started);
            // Root and files of a process that ended are not held.
            watched.reader = (!watched.closed).then_some(work.reader);
            if !work.request.addresses.is_empty() {
                let asked = AttachTarget {
                    id: work.id,
                    pid: watched.whose.pid,
                    started_by: started_by(watched.whose, self.defaults.created),
                };
                self.attacher.note(asked, unnamed, now);
            }
        }
    }

    /// Sends the sampler the rules it does not have yet. They wait while its queue is full.
    fn send_rules(&mut self) {
        for watched in self.processes.values_mut() {
            let Some(rules) = watched.rules.take() else {
                continue;
            };
            let generated = Generated {
                process: watched.whose.id,
                pid: watched.whose.pid,
                rules,
            };
            if let Err(TrySendError::Full(generated)) = self.rules.try_send(generated) {
                watched.rules = Some(generated.rules);
                return;
            }
        }
    }

    /// Forgets processes that ended when their last samples have names, and those without samples
    /// for long.
    fn forget_ended(&mut self, now: MonotonicTime) {
        let Watcher {
            processes,
            attacher,
            named_until,
            defaults,
            ..
        } = self;
        processes.retain(|&id, watched| {
            let named = watched
                .ended
                .is_some_and(|ended| ended < *named_until || now.since(ended) >= IDLE_MAX);
            let idle = now.since(watched.used) >= IDLE_MAX;
            if named || idle {
                attacher.forget(id);
            }
            // A mapped jitdump is not reported again.
            let stays = !named && (!idle || !watched.told.is_empty());
            if stays && idle && watched.bytes > 0 {
                watched.start_over(defaults);
            }
            stays
        });
    }

    /// Forgets the process that has been without samples for the longest; false when all have some.
    fn forget_idle(&mut self, now: MonotonicTime) -> bool {
        let idle = self.processes.values().filter(|one| !one.is_wanted(now));
        // A mapped jitdump is not reported again, so processes that have one go last.
        let first = idle.min_by_key(|one| (!one.told.is_empty(), one.used));
        let Some(id) = first.map(|one| one.whose.id) else {
            return false;
        };
        self.processes.remove(&id);
        self.attacher.forget(id);
        bump(&self.counters.perf_maps_evicted);
        true
    }

    /// Keeps memory under the limit, an eighth below it, so that there is room for who comes. Of
    /// those without samples the largest starts over first. Where all have samples the largest has
    /// none of its names for a while: whatever one process writes, the names of the others stay.
    fn evict(&mut self, now: MonotonicTime) {
        let most = self.defaults.options.max_bytes.saturating_mul(ROOM_OF_MAPS) / 8 * 7;
        while self.heap_bytes() as u64 > most {
            let held = self.processes.values_mut().filter(|one| one.bytes > 0);
            let rank = |one: &&mut Watched| (!one.is_wanted(now), one.bytes);
            let Some(largest) = held.max_by_key(rank) else {
                return;
            };
            let wanted = largest.is_wanted(now);
            largest.start_over(&self.defaults);
            if wanted {
                largest.refused_until = now.plus(REFUSED_FOR);
                largest.known.lock().reason = UnnamedReason::JitMapRefused;
            }
            bump(&self.counters.perf_maps_evicted);
        }
    }

    /// Memory held, in bytes, about.
    pub fn heap_bytes(&self) -> usize {
        self.processes.values().map(|watched| watched.bytes).sum()
    }

    /// Number of processes watched.
    pub fn len(&self) -> usize {
        self.processes.len()
    }

    /// True when none is.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty()
    }
}

fn lock_if_free(known: &CodeLock, change: impl FnOnce(&mut GeneratedCode)) {
    if let Some(mut known) = known.try_lock() {
        change(&mut known);
    }
}
