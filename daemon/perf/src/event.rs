//! Opens the sampling event of one CPU, with fallbacks for older kernels.
//!
//! `perf_event_open` answers EINVAL for any bit that it does not know, without saying which. So
//! optional features are dropped newest first until the kernel accepts the event. `status` reports
//! which were dropped, because each has a consequence for the profile.

use crate::arch::USER_REGS;
use crate::record::Layout;
use host::ids::CpuId;
use perf_event::events::{Hardware, Software};
use perf_event::{Builder, Clock, Counter, ReadFormat, SampleFlag};
use std::io;
use std::os::fd::RawFd;
use thiserror::Error;

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The CPU clock: a timer, so samples are honest time. Works in every VM.
    CpuClock,
    /// CPU cycles of the hardware counter. Not there in many VMs.
    Cycles,
}

impl EventKind {
    /// Name as in the configuration and in profiles.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::CpuClock => "cpu-clock",
            EventKind::Cycles => "cycles",
        }
    }

    /// Unit of sample weights.
    pub fn unit(self) -> &'static str {
        match self {
            EventKind::CpuClock => "nanoseconds",
            EventKind::Cycles => "cycles",
        }
    }
}

/// What to open on each CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventSpec {
    /// What is sampled.
    pub kind: EventKind,
    /// Samples a second on each CPU.
    pub rate_hz: u32,
    /// Frames of a callchain, kernel and user together; capped by `perf_event_max_stack`.
    pub max_stack_depth: u16,
    /// Bytes in the ring after which the sampler is woken.
    pub watermark_bytes: usize,
    /// Bytes of user stack copied with each sample, together with the registers; 0: none.
    pub stack_bytes: u32,
    /// Bytes of the ring that takes the side band (processes, mappings, names, cgroups, kernel
    /// code), a power of two; 0: it goes into the ring of the samples.
    pub side_band_bytes: usize,
}

/// The kinds of records from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Brings {
    /// Samples and the side band.
    All,
    /// Samples alone.
    Samples,
    /// The side band alone.
    SideBand,
}

/// A feature the daemon can do without, and the kernel that brought it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Lost counts per event (6.0): without it only `LOST` records report losses.
    ReadLost,
    /// Samples carry their cgroup (5.7): without it `/proc/PID/cgroup` is read.
    Cgroup,
    /// Kernel symbols that come and go (5.1).
    Ksymbol,
}

impl Feature {
    /// Newest first: the order in which they are dropped.
    pub const LADDER: [Feature; 3] = [Feature::ReadLost, Feature::Cgroup, Feature::Ksymbol];

    /// Name of the attribute, as reported.
    pub fn name(self) -> &'static str {
        match self {
            Feature::ReadLost => "read_format.lost",
            Feature::Cgroup => "sample_cgroup",
            Feature::Ksymbol => "ksymbol",
        }
    }
}

/// The features in use: all but the first `dropped` of the ladder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Features {
    dropped: usize,
}

impl Features {
    /// True when it is in use.
    pub fn has(self, feature: Feature) -> bool {
        !Feature::LADDER[..self.dropped].contains(&feature)
    }

    /// Features that the kernel does not support.
    pub fn missing(self) -> &'static [Feature] {
        static LADDER: [Feature; 3] = Feature::LADDER;
        &LADDER[..self.dropped]
    }

    /// The set with one feature less; `None` if none is left.
    pub(super) fn fewer(self) -> Option<Features> {
        (self.dropped < Feature::LADDER.len()).then_some(Features {
            dropped: self.dropped + 1,
        })
    }

    /// Fields in the records of an event opened with these features and `stack_bytes` of stack.
    pub fn layout(self, stack_bytes: u32) -> Layout {
        Layout {
            cgroup: self.has(Feature::Cgroup),
            user_regs: if stack_bytes > 0 { USER_REGS } else { 0 },
            user_stack: stack_bytes > 0,
            raw: false,
            fixed_period: 0,
        }
    }
}

/// Why an event could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// Not allowed.
    #[error(
        "failed to open perf event `{event}` on CPU `{cpu}`: not permitted\n  the daemon needs \
         CAP_PERFMON (or root), or: sysctl kernel.perf_event_paranoid=-1 (now {paranoid})\n  in a \
         container, the engine's seccomp profile must also allow perf_event_open: \
         deploy/container/seccomp.json"
    )]
    Permission {
        /// The event.
        event: String,
        /// The CPU.
        cpu: u32,
        /// The sysctl's value now.
        paranoid: String,
    },
    /// The event does not exist here.
    #[error(
        "failed to open perf event `{event}` on CPU `{cpu}`: this machine does not support it{hint}"
    )]
    Unsupported {
        /// The event.
        event: String,
        /// The CPU.
        cpu: u32,
        /// What to do.
        hint: String,
    },
    /// The kernel takes the event and not its filter.
    #[error("failed to set the filter of `{event}`: the kernel refuses `{filter}`")]
    Filter {
        /// The event.
        event: String,
        /// The filter.
        filter: String,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// Anything else.
    #[error("failed to open perf event `{event}` on CPU `{cpu}`")]
    Other {
        /// The event.
        event: String,
        /// The CPU.
        cpu: u32,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

/// The events of one CPU, disabled.
#[derive(Debug)]
pub struct Opened {
    /// Brings the samples.
    pub samples: Counter,
    /// Brings the side band, where that has a ring of its own.
    pub side_band: Option<Counter>,
    /// Features that the kernel accepted.
    pub features: Features,
}

/// Opens the events on one CPU, disabled, with the most features the kernel takes, `features` at
/// most.
///
/// # Errors
/// [`OpenError`], when even the bottom of the ladder is refused.
pub fn open(cpu: CpuId, spec: &EventSpec, features: Features) -> Result<Opened, OpenError> {
    if spec.side_band_bytes == 0 {
        let (samples, features) = open_one(cpu, spec, features, Brings::All)?;
        return Ok(Opened {
            samples,
            side_band: None,
            features,
        });
    }
    let (side_band, features) = open_one(cpu, spec, features, Brings::SideBand)?;
    let (samples, took) = open_one(cpu, spec, features, Brings::Samples)?;
    if took == features {
        return Ok(Opened {
            samples,
            side_band: Some(side_band),
            features,
        });
    }
    // Records of both are read alike.
    drop((side_band, samples));
    open(cpu, spec, took)
}

fn open_one(
    cpu: CpuId,
    spec: &EventSpec,
    mut features: Features,
    brings: Brings,
) -> Result<(Counter, Features), OpenError> {
    loop {
        let error = match builder(cpu, spec, features, brings).build() {
            Ok(counter) => return Ok((counter, features)),
            Err(error) => error,
        };
        match features.fewer() {
            Some(fewer) if is_unknown_bit(&error) => features = fewer,
            _ => {
                let hint = match spec.kind {
                    EventKind::Cycles => "\n  use `sampling.event: cpu-clock`",
                    EventKind::CpuClock => "",
                };
                return Err(explain(cpu, spec.kind.name(), hint, error));
            }
        }
    }
}

/// The counts in an event's own `read_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct ReadCounts {
    /// Records that found no room in the ring, as the kernel counts them: it knows before a `LOST`
    /// record can be written. With [`Feature::ReadLost`].
    pub lost: Option<u64>,
    /// For how long the event was to be counted, and was. Unit: nanoseconds.
    pub times: Option<(u64, u64)>,
}

/// Reads an event opened with these in its `read_format`, and nothing else.
pub(super) fn read_counts(event: RawFd, lost: bool, times: bool) -> Option<ReadCounts> {
    let mut words = [0u64; 4];
    let used = 1 + 2 * usize::from(times) + usize::from(lost);
    let words = &mut words[..used];
    // SAFETY: `words` is writable for the size passed; a bad descriptor is an error, not undefined.
    let read = unsafe { libc::read(event, words.as_mut_ptr().cast(), size_of_val(words)) };
    (read == size_of_val(words) as isize).then(|| counts_in(words, lost, times))
}

/// Parses the result of a read: the event's value, then the times, then the count of lost records.
fn counts_in(words: &[u64], lost: bool, times: bool) -> ReadCounts {
    let lost_at = if times { 3 } else { 1 };
    let word = |at: usize| words.get(at).copied();
    ReadCounts {
        lost: word(lost_at).filter(|_| lost),
        times: word(1).zip(word(2)).filter(|_| times),
    }
}

fn builder(cpu: CpuId, spec: &EventSpec, features: Features, brings: Brings) -> Builder<'static> {
    let mut builder = match (brings, spec.kind) {
        (Brings::SideBand, _) => Builder::new(Software::DUMMY),
        (_, EventKind::CpuClock) => Builder::new(Software::CPU_CLOCK),
        (_, EventKind::Cycles) => Builder::new(Hardware::CPU_CYCLES),
    };
    // Every record carries these.
    let mut fields = SampleFlag::IDENTIFIER | SampleFlag::TID | SampleFlag::TIME | SampleFlag::CPU;
    builder
        .any_pid()
        .one_cpu(cpu.0 as usize)
        .include_kernel()
        .sample_id_all(true)
        .clockid(Clock::MONOTONIC);
    if features.has(Feature::ReadLost) {
        builder.read_format(ReadFormat::LOST);
    }
    if brings != Brings::SideBand {
        fields |= SampleFlag::IP | SampleFlag::PERIOD | SampleFlag::CALLCHAIN;
        if features.has(Feature::Cgroup) {
            fields |= SampleFlag::CGROUP;
        }
        if spec.stack_bytes > 0 {
            fields |= SampleFlag::REGS_USER | SampleFlag::STACK_USER;
            builder
                .sample_regs_user(USER_REGS)
                .sample_stack_user(spec.stack_bytes);
        }
        builder
            .sample_frequency(u64::from(spec.rate_hz))
            .sample_max_stack(spec.max_stack_depth)
            .wakeup_watermark(spec.watermark_bytes);
    }
    if brings != Brings::Samples {
        builder
            .mmap(true)
            .mmap2(true)
            .comm(true)
            .comm_exec(true)
            .task(true);
        if features.has(Feature::Cgroup) {
            builder.cgroup(true);
        }
        if features.has(Feature::Ksymbol) {
            builder.ksymbol(true).bpf_event(true);
        }
    }
    if brings == Brings::SideBand {
        builder.wakeup_watermark(spec.side_band_bytes / 8 * 5);
    }
    builder.sample(fields);
    builder
}

/// Explains the kernel's error, with an alternative if the event does not exist.
pub(super) fn explain(cpu: CpuId, event: &str, hint: &str, source: io::Error) -> OpenError {
    let (event, cpu) = (event.to_owned(), cpu.0);
    match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => OpenError::Permission {
            event,
            cpu,
            paranoid: std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid")
                .map_or_else(|_| "unreadable".into(), |text| text.trim().into()),
        },
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::ENXIO) => {
            OpenError::Unsupported {
                event,
                cpu,
                hint: hint.to_owned(),
            }
        }
        _ => OpenError::Other { event, cpu, source },
    }
}

/// True for an error that may come of a bit the kernel does not know.
pub(super) fn is_unknown_bit(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::Unsupported || error.raw_os_error() == Some(libc::EINVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_stands_in_the_order_of_the_manual() {
        let found = |words: &[u64], lost, times| {
            let found = counts_in(words, lost, times);
            (found.lost, found.times)
        };
        assert_eq!(
            found(&[9, 100, 40, 7], true, true),
            (Some(7), Some((100, 40)))
        );
        assert_eq!(found(&[9, 7], true, false), (Some(7), None));
        assert_eq!(found(&[9, 100, 40], false, true), (None, Some((100, 40))));
        assert_eq!(found(&[9], false, false), (None, None));
    }
}
