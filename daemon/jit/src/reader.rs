//! Reads the perf map and the jitdumps of one process.
//!
//! A reader is in one place at a time: with `fp-jit` while idle, with a helper while reading,
//! because any call may take forever. The result goes into the [`GeneratedCode`] of the process,
//! which the symbolizer reads. Its lock is held for one piece of a file at a time and never while
//! reading a file.

use super::allowance::Allowance;
use super::code::{CodeLookup, CodeMap};
use super::dump::{DumpCounts, DumpReader};
use super::hotspot::HotSpot;
use super::inherited_map;
use super::map::MapReader;
use super::options::Options;
use super::tail::{self, Left, Tail};
use super::target::Target;
use crate::rules::RulesBuilder;
use host::ids::Pid;
use host::time::MonotonicTime;
use profile::UnnamedReason;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use symbolize::counters::{SymbolCounters, add, bump};
use unwind::info::generated::GeneratedRules;
use unwind::process::{DUMPS_MAX, DumpSeen};

/// How long after its first sample a piece of code may be listed and still be taken for the one
/// that was sampled, where nothing was known to lie there: some runtimes write what they have
/// gathered.
const LISTED_LATE_MAX: Duration = Duration::from_secs(10);

/// Bytes of one process's files that are read at once, and for each second since. Parsing that much
/// takes 1 to 3 % of a CPU: a process that rewrites its map all the time takes no more.
const BYTES_AT_ONCE: u64 = 64 << 20;

/// See [`BYTES_AT_ONCE`].
const BYTES_PER_S: u64 = 4 << 20;

/// How often an ancestor's map is looked for while a process has none: it takes a reading of its
/// mappings.
const ANCESTORS_EVERY: Duration = Duration::from_secs(10);

/// Memory for what is known of all processes together.
#[derive(Debug)]
pub struct Room {
    held: AtomicUsize,
    bytes_max: usize,
}

impl Room {
    /// For at most so many bytes.
    pub fn new(bytes_max: u64) -> Arc<Room> {
        Arc::new(Room {
            held: AtomicUsize::new(0),
            bytes_max: usize::try_from(bytes_max).unwrap_or(usize::MAX),
        })
    }
}

/// What `fp-jit` writes while the symbolizer reads, which waits for it only so long.
pub type CodeLock = parking_lot::Mutex<GeneratedCode>;

/// Everything known about the generated code of one process.
#[derive(Debug)]
pub struct GeneratedCode {
    room: Arc<Room>,
    /// Bytes of the room that are counted as this process's.
    counted: usize,
    /// By its perf map.
    pub listed: CodeMap,
    /// By its jitdumps, which have times.
    pub dumped: CodeMap,
    /// By the structures of its runtime.
    read: CodeMap,
    /// Why an address that is in neither has no name.
    pub reason: UnnamedReason,
}

impl GeneratedCode {
    /// Nothing yet.
    pub fn new(room: Arc<Room>) -> GeneratedCode {
        let bytes_max = room.bytes_max;
        GeneratedCode {
            room,
            counted: 0,
            listed: CodeMap::new(bytes_max),
            dumped: CodeMap::new(bytes_max),
            read: CodeMap::new(bytes_max),
            reason: UnnamedReason::JitNoMap,
        }
    }

    /// Bytes left, given what all processes hold and `beside` bytes of this one.
    fn room_beside(&self, beside: usize) -> usize {
        let others = self.room.held.load(Ordering::Relaxed);
        let others = others.saturating_sub(self.counted);
        let held = others.saturating_add(self.heap_bytes() + beside);
        self.room.bytes_max.saturating_sub(held)
    }

    /// Lets each list grow as far as there is room for it, and none beyond `bytes_max`.
    fn make_room(&mut self, bytes_max: u64, beside: usize) {
        let room = self.room_beside(beside);
        let most = |list: &CodeMap| (list.heap_bytes() + room).min(bytes_max as usize);
        let (listed, dumped, read) = (most(&self.listed), most(&self.dumped), most(&self.read));
        self.listed.set_bytes_max(listed);
        self.dumped.set_bytes_max(dumped);
        self.read.set_bytes_max(read);
    }

    /// Counts what is held, plus `beside` bytes. Returns the sum.
    fn count(&mut self, beside: usize) -> usize {
        let now = self.heap_bytes() + beside;
        let held = &self.room.held;
        if now >= self.counted {
            held.fetch_add(now - self.counted, Ordering::Relaxed);
        } else {
            held.fetch_sub(self.counted - now, Ordering::Relaxed);
        }
        self.counted = now;
        now
    }

    /// The code at an address at a time. What the runtime has there comes before what it wrote to
    /// its map some time before.
    pub fn find(&self, address: u64, at: MonotonicTime) -> CodeLookup<'_> {
        let found = match self.dumped.find(address, at) {
            CodeLookup::Nothing => self.read.find(address, at),
            found => return found,
        };
        let found = match found {
            CodeLookup::Nothing => self.listed.find(address, at),
            found => return found,
        };
        match found {
            CodeLookup::Nothing => self.soon(address, at),
            found => found,
        }
    }

    fn soon(&self, address: u64, at: MonotonicTime) -> CodeLookup<'_> {
        let by = at.plus(LISTED_LATE_MAX);
        match self.read.soon(address, at, by) {
            CodeLookup::Nothing => self.listed.soon(address, at, by),
            found => found,
        }
    }

    /// The code at an address during all of `from..=until`; `None` if it changed, or may have.
    pub fn steady(
        &self,
        address: u64,
        from: MonotonicTime,
        until: MonotonicTime,
    ) -> Option<CodeLookup<'_>> {
        let found = match self.dumped.steady(address, from, until)? {
            CodeLookup::Nothing => self.read.steady(address, from, until)?,
            found => return Some(found),
        };
        let found = match found {
            CodeLookup::Nothing => self.listed.steady(address, from, until)?,
            found => return Some(found),
        };
        Some(match found {
            CodeLookup::Nothing => self.soon(address, until),
            found => found,
        })
    }

    /// True when something lies at an address now.
    fn has(&self, address: u64) -> bool {
        let now = MonotonicTime::now();
        let is_there = |map: &CodeMap| !matches!(map.find(address, now), CodeLookup::Nothing);
        [&self.dumped, &self.read, &self.listed]
            .into_iter()
            .any(is_there)
    }

    /// The code for which rules are needed. A runtime that writes a jitdump writes there how to
    /// step over its code.
    fn for_rules(&self) -> &CodeMap {
        match self.listed.is_empty() {
            true => &self.dumped,
            false => &self.listed,
        }
    }

    /// Memory held, in bytes, about.
    pub fn heap_bytes(&self) -> usize {
        self.listed.heap_bytes() + self.dumped.heap_bytes() + self.read.heap_bytes()
    }

    fn forget_before(&mut self, time: MonotonicTime) {
        self.listed.forget_before(time);
        self.dumped.forget_before(time);
        self.read.forget_before(time);
    }
}

impl Drop for GeneratedCode {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

/// What to do.
#[derive(Debug, Default)]
pub struct ReadRequest {
    /// Addresses with samples: where one of them is not known, other files are looked for.
    pub addresses: Vec<u64>,
    /// Look for other files in any case.
    pub look: bool,
    /// Jitdumps that the process has mapped since.
    pub dumps: Vec<DumpSeen>,
    /// Most bytes to read.
    pub bytes: u64,
    /// No sample before this will be asked for.
    pub named_until: MonotonicTime,
}

/// Its result.
#[derive(Debug, Default)]
pub struct ReadOutcome {
    /// Addresses that are still not known.
    pub unnamed: u64,
    /// There is more to read.
    pub behind: bool,
    /// A file is open that may grow.
    pub follows: bool,
    /// Memory held. Unit: bytes.
    pub bytes: usize,
    /// How much was read. Unit: bytes.
    pub read: u64,
    /// Other rules than before for stepping over the code.
    pub rules: Option<Arc<GeneratedRules>>,
}

/// The files of one process. See the head of this file.
#[derive(Debug)]
pub struct Reader {
    pid: Pid,
    started_by: MonotonicTime,
    options: Options,
    /// Held from the first look: the root of a process that ended is still there.
    target: Option<Target>,
    map: Option<MapFile>,
    left: Option<Left>,
    /// The same for the process that owns this one's map.
    left_of_ancestors: Option<Left>,
    /// When such a process is looked for again.
    inherited_due: MonotonicTime,
    dumps: Vec<DumpFile>,
    rules: RulesBuilder,
    hotspot: HotSpot,
    allowance: Allowance,
    /// Code refused and forgotten that was counted.
    counted: (u64, u64),
}

#[derive(Debug)]
struct MapFile {
    tail: Tail,
    lines: MapReader,
    /// A map rewritten, while it is read.
    newer: Option<CodeMap>,
}

impl MapFile {
    /// How far it is to be read: one that is too long no further, since its last lines would be
    /// missed, and those win.
    fn until(&self, bytes_max: u64) -> u64 {
        match self.tail.size() > bytes_max {
            true => self.tail.read_to(),
            false => self.tail.size(),
        }
    }
}

#[derive(Debug)]
struct DumpFile {
    tail: Tail,
    reader: DumpReader,
    /// It is unreadable, or the runtime closed it.
    is_done: bool,
}

impl Reader {
    /// Creates it without open files. `started_by` is the latest time the process can have started.
    pub fn new(pid: Pid, started_by: MonotonicTime, options: Options) -> Reader {
        Reader {
            pid,
            started_by,
            options,
            target: None,
            map: None,
            left: None,
            left_of_ancestors: None,
            inherited_due: MonotonicTime(0),
            dumps: Vec::new(),
            rules: RulesBuilder::default(),
            hotspot: HotSpot::default(),
            allowance: Allowance::new(BYTES_AT_ONCE, BYTES_PER_S),
            counted: (0, 0),
        }
    }

    /// Reads on, and looks for another file if an address is unknown. May wait forever.
    pub fn refresh(
        &mut self,
        request: &ReadRequest,
        known: &CodeLock,
        counters: &SymbolCounters,
    ) -> ReadOutcome {
        let allowed = self.allowance.left(MonotonicTime::now()).min(request.bytes);
        let mut budget = allowed;
        let mut changed = self.read_dumps(&mut budget, known, counters);
        changed |= self.read_map(&mut budget, known, counters);
        let unnamed = unnamed(known, request);
        if request.look || unnamed > 0 || !request.dumps.is_empty() {
            let is_new = self.look_again(&request.dumps, known, counters);
            changed |= self.read_dumps(&mut budget, known, counters);
            if is_new {
                changed |= self.read_map(&mut budget, known, counters);
            }
        }
        // The lock is not held while files and memory are read.
        let of_jvm = match self.options.hotspot {
            true => self
                .hotspot
                .refresh(self.pid, &request.addresses, &mut budget),
            false => None,
        };
        let more = of_jvm.as_ref().is_some_and(|found| found.more);
        if let Some(found) = of_jvm {
            let mut known = known.lock();
            known.make_room(self.options.max_bytes, self.heap_bytes());
            found.tell(&mut known.read, &mut self.rules);
        }
        let asked = self
            .rules
            .unseen(self.pid, known.lock().for_rules(), changed);
        if let Some(asked) = asked {
            let seen = asked.look();
            self.rules.add(seen, known.lock().for_rules());
        }
        let unnamed = if unnamed > 0 {
            self::unnamed(known, request)
        } else {
            0
        };
        self.allowance.take(allowed - budget);
        let mut known = known.lock();
        known.forget_before(request.named_until);
        self.count(&known, counters);
        ReadOutcome {
            unnamed,
            behind: self.is_behind() || more,
            follows: self.map.is_some() || self.dumps.iter().any(|dump| !dump.is_done),
            bytes: known.count(self.heap_bytes()),
            read: allowed - budget,
            rules: self.rules.take(),
        }
    }

    /// Reads what was appended to the map held open; all of it when it was rewritten. Returns
    /// true when there was anything.
    fn read_map(&mut self, budget: &mut u64, known: &CodeLock, counters: &SymbolCounters) -> bool {
        let bytes_max = self.options.max_bytes;
        let Some(file) = &mut self.map else {
            return false;
        };
        let Some(look) = file.tail.look() else {
            return false;
        };
        let until = file.until(bytes_max);
        if look.rewritten {
            file.lines.restart();
            let room = known.lock().room_beside(0);
            file.newer = Some(CodeMap::new(room.min(bytes_max as usize)));
        }
        let before = file.tail.read_to();
        // One that is rewritten all the time is not started before it can be read.
        if before == 0 && *budget < until.min(BYTES_AT_ONCE / 2) {
            return false;
        }
        let MapFile { tail, lines, newer } = file;
        let beside = newer.as_ref().map_or(0, CodeMap::heap_bytes);
        known.lock().make_room(bytes_max, beside);
        tail.read(until, budget, |bytes| match newer {
            Some(newer) => lines.feed(bytes, look.when, newer),
            None => lines.feed(bytes, look.when, &mut known.lock().listed),
        });
        let grew = tail.read_to() > before;
        match before {
            0 => add(&counters.perf_maps_read, u64::from(grew)),
            _ => add(&counters.perf_maps_tailed, u64::from(grew)),
        }
        add(&counters.perf_map_lines_skipped, lines.take_skipped());
        let mut known = known.lock();
        if tail.read_to() >= until
            && let Some(newer) = newer.take()
        {
            known.listed.succeed(newer, look.when);
        }
        let refused = look.size > bytes_max || known.listed.is_full();
        known.reason = match refused {
            true => UnnamedReason::JitMapRefused,
            false => UnnamedReason::JitNotInMap,
        };
        look.rewritten || grew
    }

    /// Reads what was appended to the jitdumps. Returns true when there was anything.
    fn read_dumps(
        &mut self,
        budget: &mut u64,
        known: &CodeLock,
        counters: &SymbolCounters,
    ) -> bool {
        let mut changed = false;
        known
            .lock()
            .make_room(self.options.max_bytes, self.heap_bytes());
        for dump in self.dumps.iter_mut().filter(|dump| !dump.is_done) {
            let Some(look) = dump.tail.look() else {
                continue;
            };
            if look.rewritten {
                // What was read before keeps its times.
                dump.reader = DumpReader::default();
            }
            let before = dump.tail.read_to();
            let (reader, rules, mut failed) = (&mut dump.reader, &mut self.rules, false);
            dump.tail.read(look.size, budget, |bytes| {
                let code = &mut known.lock().dumped;
                failed = failed || reader.feed(bytes, look.when, code, rules).is_err();
            });
            count_dump(dump.reader.take_counts(), counters);
            changed |= dump.tail.read_to() > before;
            dump.is_done = failed || dump.reader.is_closed();
            if failed {
                bump(&counters.jitdumps_refused);
            }
        }
        changed
    }

    /// Looks for files: there may be one now, or another than the one held. Returns true when there
    /// is another map.
    fn look_again(
        &mut self,
        dumps: &[DumpSeen],
        known: &CodeLock,
        counters: &SymbolCounters,
    ) -> bool {
        match Target::look(self.pid.0, self.started_by) {
            Some(target) => self.target = Some(target),
            None if self.target.is_none() => {
                known.lock().reason = UnnamedReason::JitProcessGone;
                return false;
            }
            // It ended. Its root is held.
            None => {}
        }
        for seen in dumps {
            self.open_dump(seen, counters);
        }
        self.options.perf_maps && self.open_map(known, counters)
    }

    fn open_dump(&mut self, seen: &DumpSeen, counters: &SymbolCounters) {
        if !self.options.jitdumps || self.dumps.len() >= DUMPS_MAX {
            return;
        }
        let Some(tail) = tail::open_dump(self.target.as_ref(), seen) else {
            return bump(&counters.jitdumps_refused);
        };
        if self.dumps.iter().any(|known| known.tail.is_same(&tail)) {
            return;
        }
        bump(&counters.jitdumps_read);
        self.dumps.push(DumpFile {
            tail,
            reader: DumpReader::default(),
            is_done: false,
        });
    }

    fn open_map(&mut self, known: &CodeLock, counters: &SymbolCounters) -> bool {
        let Some(target) = &self.target else {
            return false;
        };
        let opened = tail::open_map(target, &mut self.left);
        let has_none = self.map.is_none() && matches!(opened, Err(UnnamedReason::JitNoMap));
        if has_none && known.lock().reason != UnnamedReason::JitMapRefused && self.inherit_map() {
            return true;
        }
        let held = self.map.as_ref().map(|file| &file.tail);
        match (opened, held) {
            (Ok(new), Some(held)) if new.is_same(held) => {}
            (Ok(mut new), held) => {
                // Another file in place of one: what that listed went when this came.
                let room = known.lock().room_beside(0);
                let newer = held.map(|held| {
                    new.follows(held);
                    CodeMap::new(room.min(self.options.max_bytes as usize))
                });
                let lines = match new.is_within_a_line() {
                    true => MapReader::within_a_line(),
                    false => MapReader::default(),
                };
                let tail = new;
                self.map = Some(MapFile { tail, lines, newer });
                return true;
            }
            (Err(UnnamedReason::JitMapRefused), _) => {
                bump(&counters.perf_maps_refused);
                known.lock().reason = UnnamedReason::JitMapRefused;
            }
            // The names that a process wrote before it ended, or before it removed the file, hold.
            (Err(_), Some(_)) => {}
            // A map that was refused does not become one that was not there by its removal.
            (Err(UnnamedReason::JitNoMap), None)
                if known.lock().reason == UnnamedReason::JitMapRefused => {}
            (Err(reason), None) => {
                let is_told = !self.dumps.is_empty();
                let reason = if is_told {
                    UnnamedReason::JitNotInMap
                } else {
                    reason
                };
                known.lock().reason = reason;
            }
        }
        false
    }

    /// Opens the map that an ancestor keeps for this process. Returns true when there is one.
    fn inherit_map(&mut self) -> bool {
        let now = MonotonicTime::now();
        if now < self.inherited_due {
            return false;
        }
        self.inherited_due = now.plus(ANCESTORS_EVERY);
        let Some(inherited) = inherited_map::find(self.pid.0, &mut self.left_of_ancestors) else {
            return false;
        };
        let lines = match inherited.tail.is_within_a_line() {
            true => MapReader::within_a_line(),
            false => MapReader::default(),
        };
        self.map = Some(MapFile {
            tail: inherited.tail,
            lines: lines.only(inherited.within),
            newer: None,
        });
        true
    }

    fn is_behind(&self) -> bool {
        let map = self
            .map
            .as_ref()
            .is_some_and(|file| file.tail.read_to() < file.until(self.options.max_bytes));
        let mut dumps = self.dumps.iter().filter(|dump| !dump.is_done);
        map || dumps.any(|dump| dump.tail.read_to() < dump.tail.size())
    }

    /// Memory held besides the names. The sampler has the rules too.
    fn heap_bytes(&self) -> usize {
        let map = self.map.as_ref().map_or(0, |file| {
            let newer = file.newer.as_ref().map_or(0, CodeMap::heap_bytes);
            newer + file.lines.heap_bytes()
        });
        let dumps = self.dumps.iter().map(|dump| dump.reader.heap_bytes());
        let hotspot = self.hotspot.heap_bytes();
        map + dumps.sum::<usize>() + 2 * self.rules.heap_bytes() + hotspot
    }

    fn count(&mut self, known: &GeneratedCode, counters: &SymbolCounters) {
        let lists = [&known.listed, &known.dumped, &known.read].map(CodeMap::dropped);
        let now = lists
            .iter()
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let (refused, forgotten) = self.counted;
        add(&counters.code_refused, now.0.saturating_sub(refused));
        add(&counters.code_forgotten, now.1.saturating_sub(forgotten));
        self.counted = now;
        let rules = self.rules.take_counts();
        add(&counters.code_rules_taken, rules.taken);
        add(&counters.code_rules_senseless, rules.senseless);
        add(&counters.code_rules_refused, rules.refused);
        add(&counters.trampolines_found, rules.trampolines);
    }
}

fn count_dump(counts: DumpCounts, counters: &SymbolCounters) {
    add(&counters.jitdump_code_loaded, counts.loads);
    add(&counters.jitdump_records_skipped, counts.skipped);
    add(&counters.jitdump_records_foreign, counts.foreign);
    add(&counters.jitdump_records_untimed, counts.untimed);
    add(&counters.jitdump_lines_dropped, counts.lines_dropped);
    add(
        &counters.jitdump_unwinding_dropped,
        counts.unwinding_dropped,
    );
}

/// Addresses of the request that are not known.
fn unnamed(known: &CodeLock, request: &ReadRequest) -> u64 {
    let known = known.lock();
    let missing = request.addresses.iter().filter(|at| !known.has(**at));
    missing.count() as u64
}
