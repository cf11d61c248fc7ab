//! The events that an `off-cpu` capture opens, and how its samples are read.
//!
//! The cost of a context switch is what is recorded for it, and there can be 100,000 a second. For
//! a switch away from a thread that could continue, only the two thread ids are recorded. For a
//! thread that starts to wait, the kernel's callchain and [`NEAR_BYTES`] of the user stack are
//! recorded, which hold the complete stack of most event loops. Wake-ups record the callchain.
//! Larger copies come from two more events, which the kernel limits to [`COPIES_HZ`] per second on
//! each CPU; they complete deeper stacks, exactly or as an estimate (`unwind/src/walk/recall.rs`).
//! With [`Options::copy_all`] every wait records a copy of the requested size, at the cost of that.
//!
//! Used on the thread that opens a capture. Blocks on tracefs and on the kernel.

use aggregate::context::Context;
use offcpu::format::{FormatError, SwitchFormat, WakingFormat};
use offcpu::machine::Machine;
use offcpu::reading::Reading;
use perf::probe::{Every, Probe, Source};
use perf::tracefs::{Tracefs, TracefsError};
use perf_event_open_sys::bindings as sys;
use profile::{FrameKind, FrameRef};
use sampler::waits::Waits;
use std::ffi::CString;
use std::time::Duration;
use symbolize::kernel::KernelSymbols;
use thiserror::Error;

/// Larger copies of stacks a second on each CPU, of waits. Threads that wait for long wait rarely
/// and are not among those copied: looks at their memory complete theirs. With these 95.8 % of the
/// time that postgres waited (12,912 waits in 10 s under pgbench) has complete stacks, and 98.3 %
/// at 997 copies a second; without looks 67 % and that at 997, which costs 1 % of a CPU more.
pub const COPIES_HZ: u32 = 199;

/// The same for wake-ups, which show the waker: their important frames are near the leaf.
const WAKER_COPIES_HZ: u32 = 199;

/// Bytes of the user stack copied with every wait. Where they wait, redis has 0.6 KiB of stack,
/// nginx 1.4 to 1.7 KiB, CPython 1.4 KiB, postgres 1 to 6 KiB, node 16 KiB (Debian 12, 2026-11-22).
/// A copy of 2 KiB took the kernel no more time than the noise of the measurement (`perf bench
/// sched pipe` under `perf record`, 6.3 µs a switch with it and 6.0 to 6.2 µs without), one of 8
/// KiB 1.4 µs more.
pub const NEAR_BYTES: u32 = 2 << 10;

/// Why waits cannot be captured.
#[derive(Debug, Error)]
pub enum SetupError {
    /// The tracepoints are not to be had.
    #[error(transparent)]
    Tracefs(#[from] TracefsError),
    /// They are not as they should be.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A filter is made of numbers: that it has a NUL cannot be.
    #[error("failed to make a filter for tracepoint `{0}`")]
    Filter(&'static str),
}

/// Options of a capture of waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Frames of a callchain.
    pub max_stack_depth: u16,
    /// Bytes of user stack copied with some of the samples; 0: frame pointers only.
    pub stack_bytes: u32,
    /// Copy so many with every wait.
    pub copy_all: bool,
    /// Waits shorter than this are left out.
    pub min_wait: Duration,
}

/// All that is needed to start.
#[derive(Clone, Debug)]
pub struct Setup {
    options: Options,
    reading: Reading,
    probes: Vec<Probe>,
}

impl Setup {
    /// Reads the kernel's description of its tracepoints and functions.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn read(options: Options) -> Result<Setup, SetupError> {
        let tracefs = Tracefs::find()?;
        let switch = tracefs.format("sched", "sched_switch")?;
        let waking = tracefs.format("sched", "sched_waking")?;
        let kernel = KernelSymbols::read().unwrap_or_else(|_| KernelSymbols::none());
        Setup::new(switch.as_bytes(), waking.as_bytes(), &kernel, options)
    }

    /// From the `format` files of `sched:sched_switch` and `sched:sched_waking`.
    ///
    /// # Errors
    /// [`SetupError`].
    pub fn new(
        switch: &[u8],
        waking: &[u8],
        kernel: &KernelSymbols,
        options: Options,
    ) -> Result<Setup, SetupError> {
        let reading = Reading {
            switch: SwitchFormat::parse(switch)?,
            waking: WakingFormat::parse(waking)?,
            interrupts: interrupt_ranges(kernel),
            near_bytes: match options.copy_all {
                true => options.stack_bytes,
                false => options.stack_bytes.min(NEAR_BYTES),
            },
        };
        let probes = probes(&reading, options)?;
        Ok(Setup {
            options,
            reading,
            probes,
        })
    }

    /// Returns the events; the number of an event is its place in the slice.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// The machine with which the sampler makes waits.
    pub fn waits(&self) -> Box<Waits> {
        let machine = Machine::new(self.options.min_wait);
        Box::new(Waits::new(self.reading.clone(), machine))
    }
}

fn probes(reading: &Reading, options: Options) -> Result<Vec<Probe>, SetupError> {
    let (switch, waking) = (&reading.switch, &reading.waking);
    let probe = |name: &'static str, id: u16, filter: Option<String>| {
        let filter = filter.map(CString::new).transpose();
        Ok::<_, SetupError>(Probe {
            name: name.to_owned(),
            source: Source {
                kind: sys::PERF_TYPE_TRACEPOINT,
                config: id.into(),
                uprobe: None,
            },
            every: Every::Period(1),
            max_stack_depth: options.max_stack_depth,
            stack_bytes: 0,
            raw: true,
            filter: filter.map_err(|_| SetupError::Filter(name))?,
        })
    };
    let switches = |filter| probe(SwitchFormat::NAME, switch.id(), Some(filter));
    let copied = |probe: &Probe, rate| Probe {
        every: Every::Rate(rate),
        stack_bytes: options.stack_bytes,
        ..probe.clone()
    };
    let blocked = Probe {
        stack_bytes: reading.near_bytes,
        ..switches(switch.blocked_filter())?
    };
    let ready = Probe {
        max_stack_depth: 0,
        ..switches(switch.ready_filter())?
    };
    let wakings = probe(WakingFormat::NAME, waking.id(), None)?;
    let copies = [
        copied(&wakings, WAKER_COPIES_HZ),
        copied(&blocked, COPIES_HZ),
    ];
    let mut probes = vec![blocked, ready, wakings];
    if options.stack_bytes > 0 {
        // If all waits have such copies, additional ones would add nothing.
        let wanted = if options.copy_all { 1 } else { copies.len() };
        probes.extend(copies.into_iter().take(wanted));
    }
    Ok(probes)
}

/// Address ranges of the kernel's entries into interrupts, from the names of its functions.
fn interrupt_ranges(kernel: &KernelSymbols) -> Vec<(u64, u64)> {
    if kernel.hidden() {
        return Vec::new();
    }
    kernel.ranges_of(|function| {
        let found = Context::of(FrameRef {
            kind: FrameKind::Kernel,
            function,
            ..FrameRef::default()
        });
        matches!(found, Some(Context::Hardirq | Context::Softirq))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use offcpu::reading::event;

    const SWITCH: &str = include_str!("../../offcpu/src/format/sched_switch.txt");
    const WAKING: &str = include_str!("../../offcpu/src/format/sched_waking.txt");

    const OPTIONS: Options = Options {
        max_stack_depth: 127,
        stack_bytes: 16 << 10,
        copy_all: false,
        min_wait: Duration::ZERO,
    };

    fn setup(options: Options) -> Setup {
        let kernel = KernelSymbols::none();
        Setup::new(SWITCH.as_bytes(), WAKING.as_bytes(), &kernel, options).expect("sound")
    }

    #[test]
    fn every_switch_is_recorded_once_and_only_waits_have_stacks() {
        let setup = setup(OPTIONS);
        let told = |number: u8| {
            let probe = &setup.probes()[usize::from(number)];
            let filter = probe
                .filter
                .as_ref()
                .map(|filter| filter.to_str().expect("text"));
            (
                filter,
                probe.max_stack_depth,
                probe.stack_bytes,
                probe.every,
            )
        };
        let all = Every::Period(1);
        assert_eq!(
            told(event::BLOCKED),
            (Some("prev_state & 255"), 127, NEAR_BYTES, all)
        );
        assert_eq!(told(event::READY), (Some("!(prev_state & 255)"), 0, 0, all));
        assert_eq!(told(event::WAKING), (None, 127, 0, all));
        let some = Every::Rate(COPIES_HZ);
        assert_eq!(
            told(event::COPIED),
            (Some("prev_state & 255"), 127, 16 << 10, some)
        );
        let some = Every::Rate(WAKER_COPIES_HZ);
        assert_eq!(told(event::COPIED_WAKING), (None, 127, 16 << 10, some));
    }

    #[test]
    fn without_copies_there_are_no_events_for_them() {
        let stack_bytes = 0;
        let setup = setup(Options {
            stack_bytes,
            ..OPTIONS
        });
        assert_eq!(setup.probes().len(), 3);
        assert_eq!(setup.probes()[0].stack_bytes, 0);
    }

    #[test]
    fn every_wait_has_the_copy_that_was_asked_for() {
        let setup = setup(Options {
            copy_all: true,
            ..OPTIONS
        });
        let blocked = &setup.probes()[usize::from(event::BLOCKED)];
        assert_eq!(
            (blocked.stack_bytes, blocked.every),
            (16 << 10, Every::Period(1))
        );
        let others = &setup.probes()[usize::from(event::BLOCKED) + 1..];
        let copies = others.iter().filter(|probe| probe.stack_bytes > 0).count();
        assert_eq!(copies, 1, "of wake-ups");
    }

    #[test]
    fn interrupts_are_known_by_the_names_of_their_entries() {
        let table = "ffffffff81000000 T schedule\n\
            ffffffff81000100 T sysvec_apic_timer_interrupt\n\
            ffffffff81000200 T try_to_wake_up\n\
            ffffffff81000300 t handle_softirqs\n\
            ffffffff81000400 T end\n";
        let kernel = KernelSymbols::parse(table.as_bytes()).expect("text");
        let start = 0xffff_ffff_8100_0000;
        let expected = [
            (start + 0x100, start + 0x200),
            (start + 0x300, start + 0x400),
        ];
        assert_eq!(interrupt_ranges(&kernel), expected);
    }
}
