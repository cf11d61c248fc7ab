//! Opens one event of a capture on one CPU: any event of the kernel, samples only.
//!
//! The continuous profile's event already records mappings, names and ends of tasks for everybody.
//! A capture's event records only samples, so several captures cost no record twice. Unsupported
//! features are dropped as in [`super::event`].

use crate::arch::USER_REGS;
use crate::event::{self, Feature, Features, OpenError};
use crate::loss::SampleSpacing;
use crate::record::Layout;
use host::ids::CpuId;
use perf_event::events::{Event, Software};
use perf_event::{Builder, Clock, Counter, ReadFormat, SampleFlag};
use perf_event_open_sys::{self as perf, bindings as sys};
use std::ffi::CString;
use std::fs::File;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// When an event takes a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Every {
    /// Samples per second on a CPU where the event occurs often enough.
    Rate(u32),
    /// A sample every so many events; of clocks: nanoseconds.
    Period(u64),
}

/// An event as the kernel names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Source {
    /// `perf_event_attr.type`.
    pub kind: u32,
    /// `perf_event_attr.config`.
    pub config: u64,
    /// Where to set a uprobe.
    pub uprobe: Option<Uprobe>,
}

/// A place in a program. The program is held open and named to the kernel by its descriptor, so
/// that it is the file that was looked at, whatever lies at its path by now.
#[derive(Clone, Debug)]
pub struct Uprobe {
    file: Arc<File>,
    path: CString,
    /// Device and inode.
    identity: (u64, u64),
    offset: u64,
    /// Its file system depends on another process or machine: a read of it may never end.
    pub is_remote: bool,
}

impl Uprobe {
    /// The instruction at this offset in the file.
    ///
    /// # Errors
    /// When the file does not say which it is.
    pub fn new(file: File, offset: u64) -> io::Result<Uprobe> {
        let meta = file.metadata()?;
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(Uprobe {
            file: Arc::new(file),
            path: CString::new(path)?,
            identity: (meta.dev(), meta.ino()),
            offset,
            is_remote: false,
        })
    }

    /// The program.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Offset in it.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn place(&self) -> ((u64, u64), u64) {
        (self.identity, self.offset)
    }
}

/// Equal if they are the same instruction of the same file, whichever descriptor is used.
impl PartialEq for Uprobe {
    fn eq(&self, other: &Uprobe) -> bool {
        self.place() == other.place()
    }
}

impl Eq for Uprobe {}

impl Hash for Uprobe {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place().hash(state);
    }
}

impl Source {
    /// The CPU clock.
    pub const CPU_CLOCK: Source = Source::software(sys::PERF_COUNT_SW_CPU_CLOCK);

    /// Cycles of the processor.
    pub const CYCLES: Source = Source {
        kind: sys::PERF_TYPE_HARDWARE,
        config: sys::PERF_COUNT_HW_CPU_CYCLES as u64,
        uprobe: None,
    };

    /// An event that the kernel counts itself.
    pub const fn software(config: u32) -> Source {
        Source {
            kind: sys::PERF_TYPE_SOFTWARE,
            config: config as u64,
            uprobe: None,
        }
    }

    /// True for clocks: they tick at a fixed pace, whatever happens.
    pub fn is_clock(&self) -> bool {
        let clocks = [sys::PERF_COUNT_SW_CPU_CLOCK, sys::PERF_COUNT_SW_TASK_CLOCK];
        self.kind == sys::PERF_TYPE_SOFTWARE && clocks.map(u64::from).contains(&self.config)
    }

    /// True for events that a counter of the processor counts.
    pub fn is_hardware(&self) -> bool {
        let kinds = [
            sys::PERF_TYPE_HARDWARE,
            sys::PERF_TYPE_HW_CACHE,
            sys::PERF_TYPE_RAW,
        ];
        kinds.contains(&self.kind)
    }
}

impl Event for &Source {
    fn update_attrs(self, attributes: &mut sys::perf_event_attr) {
        attributes.type_ = self.kind;
        attributes.config = self.config;
        if let Some(uprobe) = &self.uprobe {
            attributes.__bindgen_anon_3.uprobe_path = uprobe.path.as_ptr() as u64;
            attributes.__bindgen_anon_4.probe_offset = uprobe.offset;
        }
    }
}

/// One event of a capture.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Probe {
    /// Name as people write it.
    pub name: String,
    /// The event.
    pub source: Source,
    /// When it takes a sample.
    pub every: Every,
    /// Frames of a callchain, kernel and user together; capped by `perf_event_max_stack`. 0: none
    /// is taken.
    pub max_stack_depth: u16,
    /// Bytes of user stack copied with each sample, together with the registers; 0: none.
    pub stack_bytes: u32,
    /// Take what a tracepoint recorded with each sample.
    pub raw: bool,
    /// The kernel's filter, for tracepoints.
    pub filter: Option<CString>,
}

impl Probe {
    /// Fields in the records of the event opened with these features.
    pub fn layout(&self, features: Features) -> Layout {
        Layout {
            raw: self.raw,
            fixed_period: self.fixed_period(),
            ..features.layout(self.stack_bytes)
        }
    }

    /// Returns what each sample stands for, if the kernel is not asked for it; otherwise 0. If it
    /// is asked for the period of each sample of an event that it counts itself, the kernel takes a
    /// sample each time the event happens, whatever the period (`perf_swevent_event` in
    /// kernel/events/core.c; seen on Linux 6.18). What happens several times at once is one sample
    /// with a period of one, and would be many without.
    pub(super) fn fixed_period(&self) -> u64 {
        match self.every {
            Every::Period(period) if period > 1 && self.is_counted_by_kernel() => period,
            _ => 0,
        }
    }

    fn is_counted_by_kernel(&self) -> bool {
        !self.source.is_clock() && !self.source.is_hardware()
    }

    /// How far apart samples are. In one cgroup no event ticks all the time.
    pub(super) fn pace(&self, in_cgroup: bool) -> SampleSpacing {
        let distance = |rate: u32| 1_000_000_000 / u64::from(rate.max(1));
        match self.every {
            _ if in_cgroup => SampleSpacing::Counted,
            Every::Rate(rate) if self.source.is_clock() => SampleSpacing::Fixed(distance(rate)),
            Every::Period(period) if self.source.is_clock() => SampleSpacing::Fixed(period.max(1)),
            Every::Rate(rate) if self.source.is_hardware() => {
                SampleSpacing::Varying(distance(rate))
            }
            Every::Rate(_) | Every::Period(_) => SampleSpacing::Counted,
        }
    }

    /// Weight of one sample; 0 when it varies.
    pub fn period(&self) -> u64 {
        match self.every {
            Every::Period(period) => period,
            Every::Rate(rate) if self.source.is_clock() => 1_000_000_000 / u64::from(rate.max(1)),
            Every::Rate(_) => 0,
        }
    }
}

/// Where and how a probe is opened.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// Only what runs in this cgroup and those below it; a directory of the hierarchy that owns
    /// `perf_event`.
    pub cgroup: Option<&'a File>,
    /// Size of the ring, a power of two.
    pub ring_bytes: usize,
    /// Bytes in the ring after which the sampler is woken.
    pub watermark_bytes: usize,
}

/// Why a counter of the processor may be missing.
const NO_COUNTER: &str = "\n  it needs a counter of the processor, which many virtual machines \
    lack; use `cpu-clock`";

/// Opens the event on one CPU, disabled, with the most features the kernel takes, `features` at
/// most, and sets its filter. Returns the features it took.
///
/// # Errors
/// [`OpenError`].
pub fn open(
    cpu: CpuId,
    probe: &Probe,
    place: &Placement<'_>,
    mut features: Features,
) -> Result<(Counter, Features), OpenError> {
    let counter = loop {
        match builder(cpu, probe, place, features).build() {
            Ok(counter) => break counter,
            Err(error) => match features.fewer() {
                Some(fewer) if event::is_unknown_bit(&error) => features = fewer,
                _ => {
                    let hint = match probe.source.is_hardware() {
                        true => NO_COUNTER,
                        false => "",
                    };
                    return Err(event::explain(cpu, &probe.name, hint, error));
                }
            },
        }
    };
    if let Some(filter) = &probe.filter {
        set_filter(counter.as_raw_fd(), filter).map_err(|source| OpenError::Filter {
            event: probe.name.clone(),
            filter: filter.to_string_lossy().into_owned(),
            source,
        })?;
    }
    Ok((counter, features))
}

/// Opens the event that reports each thread that arrives on a CPU or leaves it, into the ring of
/// `output`, and enables it.
///
/// The arriving thread reports it (`perf_event_task_sched_in`, kernel/events/core.c), not the one
/// that left, so the report exists even where the idle task records nothing.
pub(super) fn open_arrivals(cpu: CpuId, output: &Counter) -> io::Result<Counter> {
    let mut builder = Builder::new(Software::DUMMY);
    let fields = SampleFlag::IDENTIFIER | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU;
    let mut counter = builder
        .any_pid()
        .one_cpu(cpu.0 as usize)
        .include_kernel()
        .context_switch(true)
        .sample(fields)
        .sample_id_all(true)
        .clockid(Clock::MONOTONIC)
        .build()?;
    // SAFETY: both descriptors are open through the call, which takes numbers alone.
    match unsafe { perf::ioctls::SET_OUTPUT(counter.as_raw_fd(), output.as_raw_fd()) } {
        0 => counter.enable()?,
        _ => return Err(io::Error::last_os_error()),
    }
    Ok(counter)
}

fn set_filter(event: RawFd, filter: &CString) -> io::Result<()> {
    // SAFETY: the kernel copies the string, which ends with NUL and lives through the call, and
    // does not write to it; a bad descriptor is an error, not undefined.
    match unsafe { perf::ioctls::SET_FILTER(event, filter.as_ptr().cast_mut()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn builder<'a>(
    cpu: CpuId,
    probe: &Probe,
    place: &Placement<'a>,
    features: Features,
) -> Builder<'a> {
    let mut builder = Builder::new(&probe.source);
    let mut fields = SampleFlag::IDENTIFIER
        | SampleFlag::IP
        | SampleFlag::TID
        | SampleFlag::TIME
        | SampleFlag::CPU
        | SampleFlag::CALLCHAIN;
    if probe.fixed_period() == 0 {
        fields |= SampleFlag::PERIOD;
    }
    if features.has(Feature::Cgroup) {
        fields |= SampleFlag::CGROUP;
    }
    if probe.raw {
        fields |= SampleFlag::RAW;
    }
    if probe.stack_bytes > 0 {
        fields |= SampleFlag::REGS_USER | SampleFlag::STACK_USER;
        builder
            .sample_regs_user(USER_REGS)
            .sample_stack_user(probe.stack_bytes);
    }
    match place.cgroup {
        Some(directory) => builder.observe_cgroup(directory),
        None => builder.any_pid(),
    };
    match probe.every {
        Every::Rate(rate) => builder.sample_frequency(rate.into()),
        Every::Period(period) => builder.sample_period(period),
    };
    builder
        .one_cpu(cpu.0 as usize)
        .include_kernel()
        .sample(fields)
        .sample_id_all(true)
        .clockid(Clock::MONOTONIC)
        .wakeup_watermark(place.watermark_bytes)
        .sample_max_stack(probe.max_stack_depth);
    if probe.max_stack_depth == 0 {
        // For the kernel no depth is the usual one.
        builder
            .exclude_callchain_kernel(true)
            .exclude_callchain_user(true);
    }
    let mut reads = ReadFormat::empty();
    if features.has(Feature::ReadLost) {
        reads |= ReadFormat::LOST;
    }
    if probe.source.is_hardware() {
        reads |= ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING;
    }
    builder.read_format(reads);
    builder
}
