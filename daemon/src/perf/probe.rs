//! Opening one event of a capture on one CPU: any event of the kernel's, samples only.
//!
//! The continuous profile's event brings mappings, names and ends of tasks for all; a capture's brings
//! nothing but samples, so several captures cost no record twice. The ladder of features is that of
//! [`super::event`].

use crate::ids::CpuId;
use crate::perf::event::{self, Feature, Features, OpenError, USER_REGS};
use crate::perf::loss::Pace;
use crate::perf::record::Layout;
use perf_event::events::Event;
use perf_event::{Builder, Clock, Counter, ReadFormat, SampleFlag};
use perf_event_open_sys::{self as perf, bindings as sys};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// What makes an event take a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Every {
    /// So many samples a second on a CPU where it happens often enough.
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
    /// Path of the executable and offset in it, for a uprobe.
    pub uprobe: Option<(CString, u64)>,
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
        if let Some((path, offset)) = &self.uprobe {
            attributes.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
            attributes.__bindgen_anon_4.probe_offset = *offset;
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
    /// Frames of a callchain, kernel and user together; capped by `perf_event_max_stack`.
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
            ..features.layout(self.stack_bytes)
        }
    }

    /// How far apart samples are. In one cgroup no event ticks all the time.
    pub(super) fn pace(&self, in_cgroup: bool) -> Pace {
        let distance = |rate: u32| 1_000_000_000 / u64::from(rate.max(1));
        match self.every {
            _ if in_cgroup => Pace::Counted,
            Every::Rate(rate) if self.source.is_clock() => Pace::Fixed(distance(rate)),
            Every::Period(period) if self.source.is_clock() => Pace::Fixed(period.max(1)),
            Every::Rate(rate) if self.source.is_hardware() => Pace::Varying(distance(rate)),
            Every::Rate(_) | Every::Period(_) => Pace::Counted,
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
const NO_COUNTER: &str = "\n  it is counted by the processor, whose counters many virtual machines do not pass on; use `cpu-clock`";

/// Opens the event on one CPU, disabled, with the most features the kernel takes, `features` at most, and
/// sets its filter. Returns the features it took.
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

fn set_filter(event: RawFd, filter: &CString) -> io::Result<()> {
    // SAFETY: the kernel copies the string, which ends with NUL and lives through the call, and does not
    // write to it; a bad descriptor is an error, not undefined.
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
        | SampleFlag::PERIOD
        | SampleFlag::CALLCHAIN;
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
    if features.has(Feature::ReadLost) {
        builder.read_format(ReadFormat::LOST);
    } else {
        builder.read_format(ReadFormat::empty());
    }
    builder
}
