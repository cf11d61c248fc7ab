//! Opens the events of captures and has the sampler sample them. The capture manager calls it.
//!
//! Captures with equal specifications share one set of rings. Opening happens on the caller's
//! thread and may block: for some kinds of events until all CPUs agree, and for events on other
//! users' files for at most [`FILE_WAIT`], while a helper opens the file. The sampler gets rings
//! that already run. `fp-files` closes a set when its last capture ends.
//!
//! The samples of a capture arrive in batches tagged with its id. The last batch has `closes` set;
//! it always comes, even after the sampler rejected the capture or when the daemon stops.

mod bound;
mod error;
mod follow;
mod off_cpu;
#[cfg(test)]
mod tests;

pub use error::{EngineError, Fault};
pub use follow::Followed;
pub use off_cpu::OffCpuCapture;

use self::bound::{Bound, gone, identity, open_cgroup};
use super::event::{Event, FILE_WAIT, RATE_HZ};
use host::blocking_pool::{BlockingPool, NoResult, REMOTE_LATE_MAX};
use host::facts;
use host::ids::{CaptureId, CpuId};
use host::sync::lock;
use perf::error::RingsError;
use perf::event::OpenError;
use perf::plan::{Machine, SetPlan};
use perf::probe::{Every, Placement, Probe, Source};
use perf::rings::sets::{RingSet, SetKey};
use sampler::filter::Filter;
use sampler::{CAPTURES_MAX, CaptureStart, Command, SamplerHandle, SetOf};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Highest rate. Unit: samples a second on each CPU. At 5 µs a sample it is a twentieth of a CPU
/// for each.
pub const RATE_HZ_MAX: u32 = 9_999;

/// Shortest period of a clock: that of the highest rate. Unit: nanoseconds.
const CLOCK_PERIOD_MIN: u64 = 1_000_000_000 / RATE_HZ_MAX as u64;

/// Longest period: the kernel takes no more than 63 bits.
const PERIOD_MAX: u64 = i64::MAX as u64;

/// Samples a second on each CPU that rings are made for where nobody can say how often the event
/// happens; with copies of stacks a tenth.
const UNKNOWN_PER_SECOND: u64 = 20_000;

/// How often a rate is lowered that the kernel has just ceased to take.
const RATE_TRIES_MAX: u32 = 3;

/// Longest filter of the kernel's. It takes a page at most.
const FILTER_BYTES_MAX: usize = 4095;

/// What a capture should sample.
#[derive(Debug)]
pub struct EventCapture {
    /// Its id.
    pub id: CaptureId,
    /// The event.
    pub event: Event,
    /// By rate or by period.
    pub every: Every,
    /// The kernel's filter; empty: none.
    pub kernel_filter: String,
    /// Bytes of user stack to copy with each sample; 0: frame pointers only.
    pub stack_bytes: u32,
    /// Frames of the kernel's callchain.
    pub max_stack_depth: u16,
    /// Directory of a cgroup, in the hierarchy that owns `perf_event`: only what runs in it and
    /// below it makes samples, so all else costs nothing.
    pub cgroup: Option<PathBuf>,
    /// Which samples are worth unwinding.
    pub filter: Filter,
    /// Say of every sample when it was taken.
    pub keep_times: bool,
}

/// A running capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// By rate or by period.
    pub every: Every,
    /// Weight of one sample; 0 when it varies.
    pub period: u64,
    /// Bytes of user stack copied with each sample.
    pub stack_bytes: u32,
    /// CPUs that are sampled.
    pub cpus: usize,
    /// Memory of the rings, the same for each of the captures that share them.
    pub ring_bytes: usize,
    /// True when another capture had opened the rings.
    pub shared: bool,
    /// Notices for the reader of the profile.
    pub notices: Vec<String>,
}

/// What one set of rings samples. Captures with the same specification share it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Spec {
    probes: Vec<Probe>,
    cgroup: Option<Bound>,
}

struct OpenSet {
    key: SetKey,
    spec: Spec,
    started: Started,
    users: Vec<CaptureId>,
    /// The count of [`RingSet::seen`].
    seen: Arc<AtomicU64>,
}

/// How a capture comes to a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entry {
    /// It starts.
    CaptureStart,
    /// It leaves the one it has.
    Change,
}

#[derive(Default)]
struct Sets {
    last_key: u64,
    list: Vec<OpenSet>,
}

impl Sets {
    fn captures(&self) -> impl Iterator<Item = CaptureId> + '_ {
        self.list.iter().flat_map(|set| set.users.iter().copied())
    }

    fn ring_bytes(&self) -> u64 {
        let bytes = self.list.iter().map(|set| set.started.ring_bytes as u64);
        bytes.sum()
    }

    /// Memory of the rings that go when this capture leaves its own. Unit: bytes.
    fn bytes_left_by(&self, id: CaptureId) -> u64 {
        let alone = self.list.iter().filter(|set| set.users == [id]);
        alone.map(|set| set.started.ring_bytes as u64).sum()
    }

    /// Removes a capture from its set, and the set from the list if it was the last capture. False:
    /// it has no set.
    fn leave(&mut self, id: CaptureId) -> bool {
        let had = self.captures().any(|running| running == id);
        // No set has this key.
        self.leave_others(id, SetKey(0));
        had
    }

    /// Removes a capture from all sets except this one.
    fn leave_others(&mut self, id: CaptureId, key: SetKey) {
        for set in self.list.iter_mut().filter(|set| set.key != key) {
            set.users.retain(|&user| user != id);
        }
        self.list.retain(|set| !set.users.is_empty());
    }

    /// Gives a capture existing rings with the same specification, if there are any. No set: it has
    /// them already.
    fn join(
        &mut self,
        id: CaptureId,
        entry: Entry,
        spec: &Spec,
    ) -> Result<Option<(Option<SetOf>, Started)>, EngineError> {
        if entry == Entry::CaptureStart {
            if self.captures().count() >= CAPTURES_MAX {
                return Err(EngineError::Captures);
            }
            if self.captures().any(|running| running == id) {
                return Err(EngineError::Running(id.0));
            }
        }
        let Some(at) = self.list.iter().position(|open| open.spec == *spec) else {
            return Ok(None);
        };
        let open = &mut self.list[at];
        let (key, started) = (open.key, open.started.clone());
        let started = Started {
            shared: true,
            ..started
        };
        if open.users.contains(&id) {
            return Ok(Some((None, started)));
        }
        open.users.push(id);
        self.leave_others(id, key);
        Ok(Some((Some(SetOf::Open(key)), started)))
    }
}

/// See the module.
pub struct Engine {
    sampler: Arc<SamplerHandle>,
    machine: Machine,
    sets: Mutex<Sets>,
    /// Whether the processor's counters deliver samples, once somebody asked.
    counters_deliver: OnceLock<bool>,
    /// Look into programs that uprobes are set in.
    files: BlockingPool,
    /// Memory of all rings that are not closed yet, also of captures that have ended. Unit: bytes.
    memory: Arc<AtomicU64>,
}

impl Engine {
    /// For the sampler behind `sampler`.
    pub fn new(sampler: Arc<SamplerHandle>, machine: Machine) -> Engine {
        Engine {
            sampler,
            machine,
            sets: Mutex::default(),
            counters_deliver: OnceLock::new(),
            files: BlockingPool::new("probe"),
            memory: Arc::default(),
        }
    }

    /// Opens what a capture samples, or shares it, and has it sampled. Blocks.
    ///
    /// # Errors
    /// [`EngineError`]: then no batch comes.
    pub fn start(&self, wanted: EventCapture) -> Result<Started, EngineError> {
        let mut notices = Vec::new();
        let name = wanted.event.name();
        let source = wanted.event.source(&self.files)?;
        let mut probe = Probe {
            filter: checked_filter(&wanted)?,
            every: checked(wanted.every, &name, &source, &mut notices)?,
            name,
            max_stack_depth: wanted.max_stack_depth,
            stack_bytes: wanted.stack_bytes,
            raw: false,
            source,
        };
        self.check_counters(&probe)?;
        let (id, cgroup) = (wanted.id, wanted.cgroup.as_deref());
        let mut tries = 0;
        let started = loop {
            let period = probe.period();
            let start = |set| {
                let mut start = CaptureStart::new(id, set, wanted.filter.clone());
                start.keep_times = wanted.keep_times;
                start.period = period;
                start
            };
            let error = match self.start_with(id, vec![probe.clone()], cgroup, start) {
                Ok(started) => break started,
                Err(error) => error,
            };
            // The kernel may have lowered its limit since it was looked at.
            let every = checked(probe.every, &probe.name, &probe.source, &mut notices)?;
            if every == probe.every || tries == RATE_TRIES_MAX {
                return Err(with_fields(error, &wanted.event));
            }
            probe.every = every;
            tries += 1;
        };
        notices.extend(started.notices);
        Ok(Started { notices, ..started })
    }

    /// As [`Engine::start`], for events that are put together otherwise: a set of several. Their
    /// copies of stacks are cut to what rings can hold.
    ///
    /// # Errors
    /// [`EngineError`]: then no batch comes.
    pub fn start_with(
        &self,
        id: CaptureId,
        probes: Vec<Probe>,
        cgroup: Option<&Path>,
        start: impl FnOnce(SetOf) -> CaptureStart,
    ) -> Result<Started, EngineError> {
        let cgroup = cgroup.map(open_cgroup).transpose()?;
        self.enter(id, Entry::CaptureStart, probes, cgroup, |set, _| {
            Command::BeginCapture(Box::new(start(set)))
        })
    }

    /// Gives a capture the rings of a specification: existing ones, or new ones.
    fn enter(
        &self,
        id: CaptureId,
        entry: Entry,
        mut probes: Vec<Probe>,
        cgroup: Option<(File, Bound)>,
        command: impl FnOnce(SetOf, &Started) -> Command,
    ) -> Result<Started, EngineError> {
        let spec = Spec {
            probes: probes.clone(),
            cgroup: cgroup.as_ref().map(|(_, bound)| bound.clone()),
        };
        let (key, used) = {
            let mut sets = self.lock();
            if let Some((set, started)) = sets.join(id, entry, &spec)? {
                if let Some(set) = set {
                    // Under the lock: a set ends after all captures that were started with it.
                    self.sampler.command(command(set, &started));
                }
                return Ok(started);
            }
            sets.last_key += 1;
            let used = self.memory.load(Ordering::Relaxed);
            let used = used.saturating_sub(sets.bytes_left_by(id));
            (SetKey(sets.last_key), used)
        };
        let cpus = online();
        let plan = self.plan(&probes, cpus.len(), used)?;
        for probe in &mut probes {
            probe.stack_bytes = probe.stack_bytes.min(plan.stack_bytes);
        }
        let set = self.open(key, cpus, &probes, cgroup, &plan)?;
        let mut sets = self.lock();
        // Somebody may have opened the same meanwhile.
        if let Some((open, started)) = sets.join(id, entry, &spec)? {
            if let Some(open) = open {
                self.sampler.command(command(open, &started));
            }
            return Ok(started);
        }
        let first = &probes[0];
        let started = Started {
            every: first.every,
            period: first.period(),
            stack_bytes: probes.iter().map(|it| it.stack_bytes).max().unwrap_or(0),
            cpus: set.cpus(),
            ring_bytes: set.ring_bytes(),
            shared: false,
            notices: plan.notices,
        };
        sets.leave(id);
        sets.list.push(OpenSet {
            key,
            spec,
            started: started.clone(),
            users: vec![id],
            seen: Arc::clone(&set.seen),
        });
        self.sampler
            .command(command(SetOf::New(Box::new(set)), &started));
        Ok(started)
    }

    /// Opens new rings. What touches files of others does so on a helper, and is waited for only so
    /// long.
    fn open(
        &self,
        key: SetKey,
        cpus: Vec<CpuId>,
        probes: &[Probe],
        cgroup: Option<(File, Bound)>,
        plan: &SetPlan,
    ) -> Result<RingSet, EngineError> {
        let (directory, bound) = cgroup.unzip();
        let (ring_bytes, watermark_bytes) = (plan.ring_bytes, plan.watermark_bytes);
        let mut files = probes.iter().filter_map(|probe| {
            let uprobe = probe.source.uprobe.as_ref()?;
            Some((probe.name.clone(), uprobe.is_remote))
        });
        let hangs = files.next();
        let memory = Arc::clone(&self.memory);
        let probes = probes.to_vec();
        let open = move || {
            let place = Placement {
                cgroup: directory.as_ref(),
                ring_bytes,
                watermark_bytes,
            };
            let mut set = RingSet::open(key, &cpus, &probes, &place)?;
            set.charge(memory);
            Ok(set)
        };
        let opened: Result<RingSet, RingsError> = match hangs {
            None => open(),
            Some((event, true)) if self.files.late() >= REMOTE_LATE_MAX => {
                return Err(EngineError::Busy { event });
            }
            Some((event, _)) => {
                let opened = self.files.ask(FILE_WAIT, open);
                opened.map_err(|error| match error {
                    NoResult::Busy => EngineError::Busy { event },
                    NoResult::Late => EngineError::Late { event },
                })?
            }
        };
        opened.map_err(|error| match bound {
            // The kernel says of a cgroup on its way out that there is no such event.
            Some(bound) if identity(&bound.directory).ok() != Some(bound.identity) => {
                gone(&bound.directory, io::ErrorKind::NotFound.into())
            }
            _ => error.into(),
        })
    }

    /// Plans rings for the event that writes most, given that other rings use `used` bytes.
    fn plan(&self, probes: &[Probe], cpus: usize, used: u64) -> Result<SetPlan, EngineError> {
        let most = probes.iter().max_by_key(|probe| bytes_per_second(probe));
        let most = most.ok_or(RingsError::NoCpus)?;
        let rings = (cpus * probes.len()) as u64;
        let plan = SetPlan::new(
            &self.machine,
            rings,
            per_second(most),
            most.stack_bytes,
            used,
        );
        let mut plan = plan.ok_or(EngineError::Memory { used })?;
        if most.stack_bytes == 0 {
            // Others may copy, more rarely: as long as a ring holds two.
            let fits = (plan.ring_bytes / 2).saturating_sub(1024) & !7;
            plan.stack_bytes = u32::try_from(fits).unwrap_or(u32::MAX);
        }
        Ok(plan)
    }

    /// Ends a capture and keeps what it has; its last batch arrives soon. False: no capture with
    /// this id is running.
    pub fn end(&self, id: CaptureId) -> bool {
        let mut sets = self.lock();
        let ran = sets.leave(id);
        if ran {
            // Under the lock, as its start.
            self.sampler.command(Command::EndCapture(id));
        }
        ran
    }

    /// Samples that the events of a capture brought since they were opened, lost ones too, whoever
    /// they are of.
    pub fn seen(&self, id: CaptureId) -> u64 {
        let seen = self.of(id, |set| set.seen.load(Ordering::Relaxed));
        seen.unwrap_or(0)
    }

    /// Something of the set that a capture samples; nothing when it does not run. Nobody waits for
    /// the kernel while the list is locked.
    fn of<T>(&self, id: CaptureId, pick: impl FnOnce(&OpenSet) -> T) -> Option<T> {
        let sets = self.lock();
        let set = sets.list.iter().find(|set| set.users.contains(&id));
        set.map(pick)
    }

    /// Captures that run.
    pub fn running(&self) -> usize {
        self.lock().captures().count()
    }

    /// Memory of the rings of all captures that run. Unit: bytes.
    pub fn ring_bytes(&self) -> u64 {
        self.lock().ring_bytes()
    }

    fn lock(&self) -> MutexGuard<'_, Sets> {
        lock(&self.sets)
    }

    /// Some VMs accept events of the processor and never deliver. Cycles are always counted, so
    /// they prove what an event that may not happen for a while cannot.
    fn check_counters(&self, probe: &Probe) -> Result<(), EngineError> {
        if !probe.source.is_hardware() {
            return Ok(());
        }
        if self.counters_deliver.get().is_none() {
            let proof = Probe {
                source: Source::CYCLES,
                every: Every::Rate(RATE_HZ),
                stack_bytes: 0,
                filter: None,
                ..probe.clone()
            };
            let place = Placement {
                cgroup: None,
                ring_bytes: 256 << 10,
                watermark_bytes: 128 << 10,
            };
            let set = RingSet::open(SetKey(0), &online(), &[proof], &place)?;
            // Somebody else may have found out the same.
            let _ = self.counters_deliver.set(set.delivers_samples());
        }
        match self.counters_deliver.get() {
            Some(false) => Err(EngineError::Silent {
                event: probe.name.clone(),
            }),
            _ => Ok(()),
        }
    }
}

fn online() -> Vec<CpuId> {
    facts::cpus_online().unwrap_or_default()
}

/// A rate or period that is in its bounds, and not above what the kernel allows now.
fn checked(
    every: Every,
    event: &str,
    source: &Source,
    notices: &mut Vec<String>,
) -> Result<Every, EngineError> {
    match every {
        Every::Rate(rate) if !(1..=RATE_HZ_MAX).contains(&rate) => Err(EngineError::Rate(rate)),
        Every::Rate(rate) => match facts::max_sample_rate() {
            Some(most) if most < rate => {
                notices.push(format!(
                    "sampled at {most} Hz instead of {rate}: kernel.perf_event_max_sample_rate is \
                     the limit, and the kernel lowers it when samples take long"
                ));
                Ok(Every::Rate(most.max(1)))
            }
            _ => Ok(every),
        },
        Every::Period(period) => {
            let min = match source.is_clock() {
                true => CLOCK_PERIOD_MIN,
                false => 1,
            };
            match (min..=PERIOD_MAX).contains(&period) {
                true => Ok(every),
                false => Err(EngineError::Period {
                    period,
                    min,
                    event: event.to_owned(),
                }),
            }
        }
    }
}

fn checked_filter(wanted: &EventCapture) -> Result<Option<CString>, EngineError> {
    let (filter, event) = (&wanted.kernel_filter, || wanted.event.name());
    if filter.is_empty() {
        return Ok(None);
    }
    if !wanted.event.takes_filter() {
        return Err(EngineError::NoFilter { event: event() });
    }
    let fits = filter.len() <= FILTER_BYTES_MAX;
    let text = CString::new(filter.as_bytes()).ok().filter(|_| fits);
    text.map(Some)
        .ok_or_else(|| EngineError::BadFilter { event: event() })
}

/// Says of a filter that is refused what it could speak of.
fn with_fields(error: EngineError, event: &Event) -> EngineError {
    match error {
        EngineError::Rings(RingsError::Open(OpenError::Filter {
            event: name,
            filter,
            source,
        })) => EngineError::Filter {
            event: name,
            filter,
            fields: event.fields(),
            source,
        },
        other => other,
    }
}

/// Samples a second on a busy CPU.
fn per_second(probe: &Probe) -> u64 {
    match probe.every {
        Every::Rate(rate) => rate.into(),
        Every::Period(period) if probe.source.is_clock() => 1_000_000_000 / period.max(1),
        Every::Period(_) if probe.stack_bytes > 0 => UNKNOWN_PER_SECOND / 10,
        Every::Period(_) => UNKNOWN_PER_SECOND,
    }
}

fn bytes_per_second(probe: &Probe) -> u64 {
    per_second(probe) * (1024 + u64::from(probe.stack_bytes))
}
