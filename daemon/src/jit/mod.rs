//! Names generated code: `/tmp/perf-PID.map`, the text file in which runtimes list it.
//!
//! The file is looked for in the process's own root and under the pid the process sees itself by.
//! It belongs to the process, so it is an attacker's: links anywhere on the way are refused, it must
//! be a regular file with one name, of the process's user or its namespace's root, not larger than
//! the limit and not older than the process. Maps are read on as they grow, from where the last
//! reading ended, and stay open, so that the names of a process that has just ended are still read.
//!
//! Asked by the namer's thread as a window closes; the files are touched by helper threads, `fp-maps`,
//! and waited for only so long: `/tmp` of a container may be a file system that never answers. What
//! is late is taken with a later window. Runtimes are not asked to write maps here, and jitdump is not
//! read.

pub mod ask;
pub mod code;
pub mod dump;
pub mod map;
pub mod names;
pub mod runtime;
pub mod target;

#[cfg(test)]
mod tests;

use crate::aggregate::batch::RawProcess;
use crate::helpers::{Helpers, Pending, REMOTE_LATE_MAX};
use crate::ids::{Avma, ProcessId};
use crate::symbolize::Named;
use crate::symbolize::counters::{SymbolCounters, add, bump};
use crate::symbolize::mounts;
use crate::symbolize::open::{Links, OpenError};
use crate::time::Mono;
use hashbrown::HashMap;
use map::PerfMap;
use profile::{Dictionary, FrameId, FrameKind, Unnamed};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;
use target::Target;

use names::MODULE;

/// Most processes with a map held open. Unit: descriptors.
const MAPS_MAX: usize = 1024;

/// Bytes before the place where reading goes on that must be the same as before; if they are not,
/// the file was written anew and is read from its begin.
const JOINT_BYTES: usize = 64;

/// Bytes read at a time.
const READ_BYTES: usize = 64 << 10;

/// Longest wait for one map. The largest is read in a tenth of a second from memory.
const WAIT: Duration = Duration::from_millis(500);

/// Longest wait for all maps together within [`WAITS_OVER`]: the rest of a window is for naming.
const WAITS: Duration = Duration::from_secs(2);

/// See [`WAITS`].
const WAITS_OVER: Duration = Duration::from_secs(10);

/// Whether and how far to read perf maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapOptions {
    /// False to read none.
    pub enabled: bool,
    /// Largest map read, in bytes; also the most memory for all maps together, in bytes.
    pub max_bytes: u64,
}

impl Default for PerfMapOptions {
    fn default() -> Self {
        PerfMapOptions {
            enabled: true,
            max_bytes: 64 << 20,
        }
    }
}

/// The perf maps of all processes.
pub struct PerfMaps {
    options: PerfMapOptions,
    counters: Arc<SymbolCounters>,
    maps: HashMap<ProcessId, State>,
    helpers: Helpers,
    patience: Patience,
    clock: u64,
    /// Processes that were there before the daemon began before this.
    created: Mono,
}

/// How long may still be waited.
struct Patience {
    each: Duration,
    left: Duration,
    since: Mono,
}

impl Patience {
    fn now(&mut self, now: Mono) -> Duration {
        if now.since(self.since) >= WAITS_OVER {
            self.left = WAITS.max(self.each);
            self.since = now;
        }
        self.each.min(self.left)
    }
}

struct State {
    /// What was read; `None` while a helper has it.
    known: Option<Known>,
    /// A helper that is late.
    late: Option<Pending<Known>>,
    used: u64,
}

/// What is known of the map of one process.
struct Known {
    map: PerfMap,
    file: Option<Tail>,
    /// Why addresses have no name while there is no file, or the file is not read further.
    reason: Unnamed,
}

/// An open map and how far it was read.
struct Tail {
    file: File,
    device: u64,
    inode: u64,
    read: u64,
    /// The last bytes read.
    joint: Vec<u8>,
}

impl PerfMaps {
    /// No maps yet.
    pub fn new(options: PerfMapOptions, counters: Arc<SymbolCounters>) -> PerfMaps {
        PerfMaps {
            options,
            counters,
            maps: HashMap::new(),
            helpers: Helpers::new("fp-maps"),
            patience: Patience {
                each: WAIT,
                left: Duration::ZERO,
                since: Mono(0),
            },
            clock: 0,
            created: Mono::now(),
        }
    }

    /// Names generated code of one process: appends one span of one frame for each address.
    ///
    /// Names that begin with `py::` (CPython's trampolines) or `JS:~` (V8's interpreter) are of
    /// kind interpreted; V8 marks optimised code by `*` and baseline code by `^`.
    pub fn name(
        &mut self,
        process: &RawProcess,
        addresses: &[Avma],
        dict: &mut Dictionary,
        out: &mut Named,
    ) {
        if addresses.is_empty() {
            return;
        }
        if !self.options.enabled {
            let frame = self.unnamed(dict, Unnamed::JitNoMap, addresses.len());
            addresses.iter().for_each(|_| out.push(&[frame]));
            return;
        }
        self.clock += 1;
        self.refresh(process, addresses);
        let state = self.maps.get_mut(&process.id);
        let Some(known) = state.and_then(|state| state.known.as_mut()) else {
            let frame = self.unnamed(dict, Unnamed::JitMapLate, addresses.len());
            addresses.iter().for_each(|_| out.push(&[frame]));
            return;
        };
        add(
            &self.counters.perf_map_lines_skipped,
            known.map.take_skipped(),
        );
        let mut missing: Option<FrameId> = None;
        let mut unnamed = 0;
        for address in addresses {
            let frame = match known.map.find(address.0) {
                Some(name) => names::intern(dict, name, None),
                None => {
                    unnamed += 1;
                    let reason = known.reason;
                    *missing.get_or_insert_with(|| {
                        crate::symbolize::unnamed(dict, FrameKind::Jit, MODULE, reason)
                    })
                }
            };
            out.push(&[frame]);
        }
        add(&self.counters.addresses_unnamed, unnamed);
        add(
            &self.counters.addresses_named,
            addresses.len() as u64 - unnamed,
        );
        self.evict();
    }

    /// Has a helper look at the files of one process, and waits for it.
    fn refresh(&mut self, process: &RawProcess, addresses: &[Avma]) {
        let bytes_max = self.options.max_bytes;
        let state = self.maps.entry(process.id).or_insert_with(|| State {
            known: None,
            late: None,
            used: 0,
        });
        state.used = self.clock;
        if let Some(late) = state.late.take() {
            match late.wait(Duration::ZERO) {
                Ok(known) => state.known = Some(known),
                Err(Some(late)) => {
                    state.late = Some(late);
                    return;
                }
                // A helper that panicked: from the begin.
                Err(None) => {}
            }
        }
        let pid = process.pid.0;
        let refused = self.helpers.is_exhausted()
            || self.helpers.late() >= REMOTE_LATE_MAX && mounts::is_remote_path(pid, b"/tmp");
        if refused {
            // Names read before hold.
            bump(&self.counters.perf_maps_late);
            return;
        }
        let mut known = state.known.take().unwrap_or_else(|| Known {
            map: PerfMap::new(bytes_max as usize),
            file: None,
            reason: Unnamed::JitNoMap,
        });
        let began_by = if process.began == Mono(0) {
            self.created
        } else {
            process.began
        };
        let (counters, addresses) = (Arc::clone(&self.counters), addresses.to_vec());
        let work = move || {
            known.refresh(pid, began_by, bytes_max, &addresses, &counters);
            known
        };
        let now = Mono::now();
        let time = self.patience.now(now);
        let outcome = self.helpers.begin(work).map(|pending| pending.wait(time));
        let waited = Mono::now().since(now);
        self.patience.left = self.patience.left.saturating_sub(waited);
        match outcome {
            Some(Ok(known)) => state.known = Some(known),
            Some(Err(pending)) => {
                bump(&self.counters.perf_maps_late);
                state.late = pending;
            }
            None => bump(&self.counters.perf_maps_late),
        }
    }

    fn unnamed(&self, dict: &mut Dictionary, reason: Unnamed, count: usize) -> FrameId {
        add(&self.counters.addresses_unnamed, count as u64);
        crate::symbolize::unnamed(dict, FrameKind::Jit, MODULE, reason)
    }

    fn evict(&mut self) {
        while self.maps.len() > MAPS_MAX || self.heap_bytes() as u64 > self.options.max_bytes {
            let oldest = self
                .maps
                .iter()
                .min_by_key(|(_, state)| state.used)
                .map(|(&id, _)| id);
            if oldest.and_then(|id| self.maps.remove(&id)).is_none() {
                return;
            }
            bump(&self.counters.perf_maps_evicted);
        }
    }

    /// Drops the maps of processes that are not live. To be called now and then, when the windows
    /// that hold their last samples are named.
    pub fn retain(&mut self, live: impl Fn(ProcessId) -> bool) {
        self.maps.retain(|&id, _| live(id));
    }

    /// Memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let known = self.maps.values().filter_map(|state| state.known.as_ref());
        known.map(|known| known.map.heap_bytes()).sum()
    }

    /// Number of processes that something is known of.
    pub fn len(&self) -> usize {
        self.maps.len()
    }

    /// True when nothing is known of any process.
    pub fn is_empty(&self) -> bool {
        self.maps.is_empty()
    }
}

/// Why an address is not in a map that was read.
fn reason_for(size: u64, bytes_max: u64, map: &PerfMap) -> Unnamed {
    let refused = size > bytes_max || map.is_full();
    if refused {
        Unnamed::JitMapRefused
    } else {
        Unnamed::JitNotInMap
    }
}

impl Known {
    /// Reads on, and looks for another file when an address is not listed. May wait for ever.
    fn refresh(
        &mut self,
        pid: u32,
        began_by: Mono,
        bytes_max: u64,
        addresses: &[Avma],
        counters: &SymbolCounters,
    ) {
        self.read_on(bytes_max, counters);
        // An address that is not listed: there may be another file by now.
        let listed = |address: &Avma| self.map.find(address.0).is_some();
        if !addresses.iter().all(listed) {
            self.look_again(pid, began_by, bytes_max, counters);
        }
    }

    /// Reads what was appended to the file held open; from its begin when it was written anew.
    fn read_on(&mut self, bytes_max: u64, counters: &SymbolCounters) {
        let Some(tail) = &mut self.file else { return };
        let Ok(facts) = tail.file.metadata() else {
            return;
        };
        let size = facts.len();
        if size < tail.read || size > tail.read && !tail.joins() {
            self.map = PerfMap::new(bytes_max as usize);
            tail.read = 0;
            tail.joint.clear();
            bump(&counters.perf_maps_read);
        } else if size.min(bytes_max) == tail.read {
            self.reason = reason_for(size, bytes_max, &self.map);
            return;
        } else if tail.read > 0 {
            bump(&counters.perf_maps_tailed);
        }
        tail.read_to(size.min(bytes_max), &mut self.map);
        self.reason = reason_for(size, bytes_max, &self.map);
    }

    /// Looks for the file by its path: there may be one now, or another than the one held.
    fn look_again(&mut self, pid: u32, began_by: Mono, bytes_max: u64, counters: &SymbolCounters) {
        let opened = match Target::look(pid, began_by) {
            Some(target) => open(&target, bytes_max),
            None => Err(Unnamed::JitProcessGone),
        };
        match (opened, &self.file) {
            (Ok(new), Some(held)) if (new.device, new.inode) == (held.device, held.inode) => {}
            (Ok(new), _) => {
                self.map = PerfMap::new(bytes_max as usize);
                self.file = Some(new);
                self.reason = Unnamed::JitNotInMap;
                bump(&counters.perf_maps_read);
                self.read_on(bytes_max, counters);
            }
            (Err(Unnamed::JitMapRefused), _) => {
                bump(&counters.perf_maps_refused);
                self.reason = Unnamed::JitMapRefused;
            }
            // The names that a process wrote before it ended, or before it removed the file, hold.
            (Err(_), Some(_)) => {}
            (Err(reason), None) => self.reason = reason,
        }
    }
}

fn open(target: &Target, bytes_max: u64) -> Result<Tail, Unnamed> {
    let path = format!("tmp/perf-{}.map", target.inner_pid);
    let file = target
        .root
        .open(path.as_bytes(), Links::Refuse)
        .map_err(|error| match error {
            OpenError::Gone => Unnamed::JitNoMap,
            _ => Unnamed::JitMapRefused,
        })?;
    let facts = file.metadata().map_err(|_| Unnamed::JitMapRefused)?;
    let changed = facts
        .ctime()
        .saturating_mul(1_000_000_000)
        .saturating_add(facts.ctime_nsec());
    let plain = facts.nlink() == 1 && target.may_own(facts.uid()) && facts.len() <= bytes_max;
    if !plain || target.is_older(changed) {
        return Err(Unnamed::JitMapRefused);
    }
    Ok(Tail {
        file,
        device: facts.dev(),
        inode: facts.ino(),
        read: 0,
        joint: Vec::new(),
    })
}

impl Tail {
    /// True when the bytes before the place to read on from are those read last time.
    fn joins(&self) -> bool {
        let mut now = vec![0; self.joint.len()];
        let at = self.read.saturating_sub(now.len() as u64);
        self.file.read_exact_at(&mut now, at).is_ok() && now == self.joint
    }

    /// Feeds the bytes up to `size` to the map.
    fn read_to(&mut self, size: u64, map: &mut PerfMap) {
        let mut buffer = vec![0; READ_BYTES];
        while self.read < size {
            let want = (size - self.read).min(READ_BYTES as u64) as usize;
            let Ok(got @ 1..) = self.file.read_at(&mut buffer[..want], self.read) else {
                return;
            };
            map.feed(&buffer[..got]);
            self.read += got as u64;
            self.joint
                .extend_from_slice(&buffer[got.saturating_sub(JOINT_BYTES)..got]);
            let surplus = self.joint.len().saturating_sub(JOINT_BYTES);
            self.joint.drain(..surplus);
        }
    }
}
