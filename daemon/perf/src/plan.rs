//! Decides how much is copied with each sample and how large the rings are, from the configuration,
//! the machine and the budget.
//!
//! A ring must hold what arrives while the sampler is late. With stack copies of 16 KiB at 99 Hz a
//! busy CPU writes 1.7 MB a second. So rings are large on small hosts, where few wake-ups matter
//! more than memory, and shrink as CPUs are added. Every wake-up empties all rings. With many CPUs,
//! wake-ups by samples alone are turned off (`Rings::quiet`), so that they do not wake the daemon
//! more often than a few CPUs would.

use agent_config::{Sampling, Unwind, UnwindMode};
use host::facts::Environment;

/// Bytes of a sample besides the copy of the stack: header, registers, a callchain of some depth;
/// and its share of other records. 45–65 KB/s at 99 Hz on two CPUs measured under a fork-heavy
/// load.
const SAMPLE_BYTES: u64 = 1024;

/// Largest ring chosen. 2.4 s of samples with 16 KiB of stack at 99 Hz.
const RING_BYTES_MAX: u64 = 4 << 20;

/// Ring without copies of the stack: five seconds at 99 Hz.
const RING_BYTES_PLAIN: u64 = 256 << 10;

/// The ring of the side band has this part of that of the samples, and no less than below. Records
/// are 50 to 200 bytes: 512 KiB hold those of 600 programs that start, and 30 ms of a program that
/// does nothing but map.
const SIDE_BAND_SHARE: usize = 8;
const SIDE_BAND_BYTES_MIN: usize = 64 << 10;

/// Memory of all rings of samples: this part of the machine's, within the bounds below.
const MEMORY_SHARE: u64 = 256;
const RINGS_BYTES_MIN: u64 = 4 << 20;
const RINGS_BYTES_MAX: u64 = 512 << 20;

/// Least time that a ring must hold with copies of the stack. Milliseconds. A thread of ordinary
/// priority on a busy machine runs within a few tens; less than this loses samples.
const HELD_MS_MIN: u64 = 200;

/// Least samples that a ring must hold with copies of the stack. At low rates few would fill the
/// time above: the sampler is woken by three of five, and two more come while it wakes up.
const HELD_SAMPLES_MIN: u64 = 5;

/// Least memory of a machine on which `auto` copies stacks.
const MEMORY_FOR_COPIES: u64 = 256 << 20;

/// Smallest copy `auto` goes down to: a quarter of the usual stack depth.
const AUTO_STACK_BYTES_MIN: u64 = 4 << 10;

/// Upper bounds set by the daemon's own budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Copy of the user stack; 0: none.
    pub stack_bytes: u32,
    /// Samples a second.
    pub rate_hz: u32,
}

impl Limits {
    /// No bound.
    pub const NONE: Limits = Limits {
        stack_bytes: u32::MAX,
        rate_hz: u32::MAX,
    };
}

/// Facts about the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs to sample.
    pub cpus: u64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// Memory that rings may lock together; `None`: as much as there is.
    pub lockable_bytes: Option<u64>,
}

impl Machine {
    /// The machine of `environment`.
    pub fn of(environment: &Environment) -> Machine {
        Machine {
            cpus: environment.cpus_online.len().max(1) as u64,
            memory_bytes: environment.memory_bytes.unwrap_or(1 << 30),
            lockable_bytes: environment.ring_bytes_max(),
        }
    }
}

/// How sampling is set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Samples a second on each CPU.
    pub rate_hz: u32,
    /// Bytes of user stack copied with each sample, a multiple of 8; 0: frame pointers only.
    pub stack_bytes: u32,
    /// Bytes of each ring of samples, a power of two.
    pub ring_bytes: usize,
    /// Bytes in a ring after which the sampler is woken.
    pub watermark_bytes: usize,
    /// Bytes of each ring of the side band, a power of two; 0: where no more memory may be locked
    /// the rings of the samples take it.
    pub side_band_bytes: usize,
    /// Why less is copied than the configuration asks for, and how much that is; or why what it
    /// asks for loses samples.
    pub reduced: Option<String>,
}

impl Plan {
    /// Chooses. Limits never make more of anything: a lower rate would leave room in the rings for
    /// copies that are not taken without limits, and cost more than it saves.
    pub fn new(sampling: &Sampling, unwind: &Unwind, machine: &Machine, limits: Limits) -> Plan {
        let full = Plan::within(sampling, unwind, machine, Limits::NONE);
        if limits == Limits::NONE {
            return full;
        }
        let capped = Limits {
            stack_bytes: limits.stack_bytes.min(full.stack_bytes),
            ..limits
        };
        let mut plan = Plan::within(sampling, unwind, machine, capped);
        if plan.stack_bytes == full.stack_bytes {
            // Not the budget's doing.
            plan.reduced = full.reduced;
        }
        plan
    }

    fn within(sampling: &Sampling, unwind: &Unwind, machine: &Machine, limits: Limits) -> Plan {
        let rate_hz = sampling.rate_hz.min(limits.rate_hz).max(1);
        let wanted = match unwind.mode {
            UnwindMode::FramePointer => 0,
            UnwindMode::Auto | UnwindMode::StackCopy => u64::from(unwind.stack_kib) * 1024,
        };
        let mut reduced = None;
        let mut less = |stack_bytes: u64, why: String| {
            reduced.get_or_insert(why);
            stack_bytes
        };
        let mut stack_bytes = wanted;
        if stack_bytes > u64::from(limits.stack_bytes) {
            stack_bytes = less(
                u64::from(limits.stack_bytes),
                "the daemon's CPU budget".to_owned(),
            );
        }
        // What the rings may be at the most: as configured, or what the machine affords.
        let room = match sampling.ring_kib {
            0 => affordable(machine),
            kib => u64::from(kib) * 1024,
        };
        let too_small = |stack_bytes| !holds_enough(room, rate_hz, stack_bytes);
        if unwind.mode == UnwindMode::Auto && stack_bytes > 0 {
            if machine.memory_bytes < MEMORY_FOR_COPIES {
                let mib = machine.memory_bytes >> 20;
                stack_bytes = less(0, format!("the machine has {mib} MiB of memory"));
            }
            while stack_bytes > 0 && too_small(stack_bytes) {
                let why = small_rings(sampling, machine, room, rate_hz, stack_bytes);
                let next = if stack_bytes / 2 >= AUTO_STACK_BYTES_MIN {
                    stack_bytes / 2
                } else {
                    0
                };
                stack_bytes = less(next, why);
            }
        }
        let ring_bytes = if sampling.ring_kib > 0 {
            room
        } else {
            automatic_ring(machine, rate_hz, stack_bytes)
        };
        // A record is never larger than half a ring: a copy that does not fit would never arrive.
        let fits = ring_bytes / 2 - SAMPLE_BYTES;
        if stack_bytes > fits {
            let why = small_rings(sampling, machine, room, rate_hz, stack_bytes);
            stack_bytes = less(fits, why);
        } else if stack_bytes > 0 && too_small(stack_bytes) {
            // Asked for, so it is kept, but not in silence.
            let why = small_rings(sampling, machine, room, rate_hz, stack_bytes);
            stack_bytes = less(stack_bytes, why);
        }
        let reduced = reduced.map(|why: String| {
            let in_force = match stack_bytes >> 10 {
                0 => "none".to_owned(),
                kib => format!("{kib} KiB"),
            };
            match stack_bytes < wanted {
                true => format!(
                    "{} KiB of each stack configured, {in_force} in force: {why}",
                    wanted >> 10
                ),
                false => why,
            }
        });
        Plan {
            rate_hz,
            stack_bytes: (stack_bytes & !7) as u32,
            ring_bytes: ring_bytes as usize,
            // The rest lasts while the sampler wakes up, and under an ordinary load on a small host
            // the tick comes first.
            watermark_bytes: (ring_bytes / 8 * 5) as usize,
            side_band_bytes: side_band(machine, ring_bytes as usize),
            reduced,
        }
    }
}

/// Part of the machine's memory for the rings of all captures.
const SETS_MEMORY_SHARE: u64 = 64;

/// Largest ring of a capture: a tenth of a second at 9,999 Hz with 16 KiB of stack.
const SET_RING_BYTES_MAX: u64 = 16 << 20;

/// Smallest one: a few samples with copies of stacks. What does not fit is not opened.
const SET_RING_BYTES_MIN: u64 = 64 << 10;

/// Time that a ring of a capture is to hold. The sampler wakes when it is five eighths full.
const SET_HELD_MS: u64 = 500;

/// Largest copy of a stack. A record has 64 KiB at most.
pub const STACK_BYTES_MAX: u32 = 60 << 10;

/// Rings of a set of captures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetPlan {
    /// Bytes of each ring, a power of two.
    pub ring_bytes: usize,
    /// Bytes in a ring after which the sampler is woken.
    pub watermark_bytes: usize,
    /// Bytes of user stack copied with each sample.
    pub stack_bytes: u32,
    /// Notices for the reader of the profile: less is copied than requested, or rings are small.
    pub notices: Vec<String>,
}

impl SetPlan {
    /// Plans rings for `rings` CPUs and events of `per_second` samples on a busy CPU with
    /// `stack_bytes` of stack, given that rings of captures use `used` bytes. `None`: no memory is
    /// left for them.
    pub fn new(
        machine: &Machine,
        rings: u64,
        per_second: u64,
        stack_bytes: u32,
        used: u64,
    ) -> Option<SetPlan> {
        let mut notices = Vec::new();
        let mut stack_bytes = stack_bytes.min(STACK_BYTES_MAX) & !7;
        let share =
            (machine.memory_bytes / SETS_MEMORY_SHARE).clamp(RINGS_BYTES_MIN, RINGS_BYTES_MAX);
        let room = share.saturating_sub(used) / rings.max(1);
        let room = match machine.lockable_bytes {
            Some(max) => room.min((max / rings.max(1)).saturating_sub(4096)),
            None => room,
        };
        if room < SET_RING_BYTES_MIN {
            return None;
        }
        let room = 1u64 << room.ilog2();
        let per_second = u32::try_from(per_second).unwrap_or(u32::MAX);
        let wanted = bytes_per_second(per_second, stack_bytes.into()) * SET_HELD_MS / 1000;
        let bytes = wanted.next_power_of_two().max(RING_BYTES_PLAIN);
        let bytes = bytes.min(SET_RING_BYTES_MAX).min(room);
        let fits = (bytes / 2 - SAMPLE_BYTES) as u32 & !7;
        if stack_bytes > fits {
            let kib = bytes >> 10;
            notices.push(format!(
                "{} KiB of each stack are copied instead of {}, because rings have {kib} KiB",
                fits >> 10,
                stack_bytes >> 10
            ));
            stack_bytes = fits;
        }
        if !holds_enough(bytes, per_second, stack_bytes.into()) {
            let held = held_ms(bytes, per_second, stack_bytes.into());
            notices.push(format!(
                "rings of {} KiB hold {held} ms at {per_second} samples a second with {} KiB of each \
                 stack: samples may be lost while all CPUs are busy",
                bytes >> 10,
                stack_bytes >> 10
            ));
        }
        Some(SetPlan {
            ring_bytes: bytes as usize,
            watermark_bytes: (bytes / 8 * 5) as usize,
            stack_bytes,
            notices,
        })
    }
}

/// Says that rings of `room` bytes hold too little with copies of this size, and why they are no
/// larger.
fn small_rings(
    sampling: &Sampling,
    machine: &Machine,
    room: u64,
    rate_hz: u32,
    stack_bytes: u64,
) -> String {
    let cause = match (sampling.ring_kib, machine.lockable_bytes) {
        (1.., _) => "sampling.ring_kib".to_owned(),
        (0, Some(max)) => format!(
            "{} CPUs, and the daemon may lock {} KiB of memory",
            machine.cpus,
            max >> 10
        ),
        (0, None) => format!("{} CPUs", machine.cpus),
    };
    let held = held_ms(room, rate_hz, stack_bytes);
    format!(
        "rings of {} KiB ({cause}) hold {held} ms at {rate_hz} Hz with {} KiB of each stack",
        room >> 10,
        stack_bytes >> 10
    )
}

/// Bytes a busy CPU writes in a second.
fn bytes_per_second(rate_hz: u32, stack_bytes: u64) -> u64 {
    u64::from(rate_hz) * (stack_bytes + SAMPLE_BYTES)
}

/// Largest power of two that each ring may have by the machine's memory and limits.
fn affordable(machine: &Machine) -> u64 {
    let all = (machine.memory_bytes / MEMORY_SHARE).clamp(RINGS_BYTES_MIN, RINGS_BYTES_MAX);
    // Each ring has a page of its own for the positions.
    let each = (all / machine.cpus).min(match machine.lockable_bytes {
        Some(max) => (max / machine.cpus).saturating_sub(4096),
        None => u64::MAX,
    });
    let floor = |bytes: u64| 1 << bytes.max(1).ilog2();
    floor(each).clamp(64 << 10, RING_BYTES_MAX)
}

/// How long a ring of `room` bytes holds what a busy CPU samples. Unit: milliseconds.
pub(super) fn held_ms(room: u64, rate_hz: u32, stack_bytes: u64) -> u64 {
    room * 1000 / bytes_per_second(rate_hz, stack_bytes).max(1)
}

/// True when a ring of `room` bytes does not overflow before the sampler comes.
fn holds_enough(room: u64, rate_hz: u32, stack_bytes: u64) -> bool {
    held_ms(room, rate_hz, stack_bytes) >= HELD_MS_MIN
        && room / (stack_bytes + SAMPLE_BYTES) >= HELD_SAMPLES_MIN
}

/// Size of the side band's ring next to one of `ring_bytes` for samples.
fn side_band(machine: &Machine, ring_bytes: usize) -> usize {
    let bytes = (ring_bytes / SIDE_BAND_SHARE).max(SIDE_BAND_BYTES_MIN);
    // Each ring has a page of its own for the positions.
    let both = (ring_bytes + bytes + 2 * 4096) as u64;
    match machine.lockable_bytes {
        Some(max) if both.saturating_mul(machine.cpus) > max => 0,
        _ => bytes,
    }
}

/// A ring that is half full after more than the sampler's tick of a second, where that is
/// affordable.
fn automatic_ring(machine: &Machine, rate_hz: u32, stack_bytes: u64) -> u64 {
    let enough = bytes_per_second(rate_hz, stack_bytes) * 9 / 4;
    enough
        .next_power_of_two()
        .max(RING_BYTES_PLAIN)
        .min(affordable(machine))
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_config::Config;

    const GIB: u64 = 1 << 30;

    fn machine(cpus: u64, memory_bytes: u64) -> Machine {
        Machine {
            cpus,
            memory_bytes,
            lockable_bytes: None,
        }
    }

    /// Copy and ring, in KiB, of the default configuration.
    fn check(machine: Machine, expected: (u32, usize)) -> Option<String> {
        let config = Config::default();
        let plan = Plan::new(&config.sampling, &config.unwind, &machine, Limits::NONE);
        let found = (plan.stack_bytes >> 10, plan.ring_bytes >> 10);
        assert_eq!(found, expected, "{machine:?}: {:?}", plan.reduced);
        assert!(plan.ring_bytes.is_power_of_two());
        assert!(plan.watermark_bytes < plan.ring_bytes);
        plan.reduced
    }

    #[test]
    fn small_hosts_have_large_rings_and_large_hosts_small_ones() {
        assert_eq!(check(machine(2, 24 * GIB), (16, 4096)), None);
        assert_eq!(check(machine(64, 256 * GIB), (16, 4096)), None);
        assert_eq!(check(machine(512, 1024 * GIB), (16, 1024)), None);
        assert_eq!(check(machine(512, 128 * GIB), (16, 1024)), None);
    }

    #[test]
    fn the_side_band_has_an_eighth_beside_the_samples() {
        let found = [64 << 10, 1 << 20, 4 << 20].map(|bytes| side_band(&machine(2, GIB), bytes));
        assert_eq!(found, [64 << 10, 128 << 10, 512 << 10]);
    }

    #[test]
    fn what_memory_does_not_hold_is_not_copied() {
        assert!(check(machine(64, 4 * GIB), (8, 256)).is_some());
        assert!(check(machine(1, GIB / 8), (0, 256)).is_some());
    }

    #[test]
    fn without_the_right_to_lock_memory_rings_fit_the_sysctl() {
        let lockable = |cpus: u64, memory| Machine {
            lockable_bytes: Some(cpus * 516 * 1024),
            ..machine(cpus, memory)
        };
        check(lockable(2, 24 * GIB), (16, 512));
        assert_eq!(side_band(&lockable(2, 24 * GIB), 512 << 10), 0);
        let tiny = Machine {
            lockable_bytes: Some(2 * 100 * 1024),
            ..machine(2, 24 * GIB)
        };
        assert!(check(tiny, (0, 64)).is_some());
    }

    #[test]
    fn a_mode_that_is_asked_for_is_kept() {
        let mut config = Config::default();
        config.unwind.mode = UnwindMode::StackCopy;
        let small = machine(64, 4 * GIB);
        let plan = Plan::new(&config.sampling, &config.unwind, &small, Limits::NONE);
        assert_eq!(plan.stack_bytes, 16 << 10);
        config.unwind.mode = UnwindMode::FramePointer;
        let plan = Plan::new(&config.sampling, &config.unwind, &small, Limits::NONE);
        assert_eq!((plan.stack_bytes, plan.ring_bytes), (0, 256 << 10));
    }

    #[test]
    fn the_budget_lowers_copy_and_rate() {
        let config = Config::default();
        let limits = Limits {
            stack_bytes: 4096,
            rate_hz: 49,
        };
        let plan = Plan::new(
            &config.sampling,
            &config.unwind,
            &machine(2, 24 * GIB),
            limits,
        );
        assert_eq!((plan.stack_bytes, plan.rate_hz), (4096, 49));
        let said = "16 KiB of each stack configured, 4 KiB in force: the daemon's CPU budget";
        assert_eq!(plan.reduced.as_deref(), Some(said));
    }

    fn plan(set: impl FnOnce(&mut Config), limits: Limits) -> Plan {
        let mut config = Config::default();
        set(&mut config);
        let machine = machine(2, 24 * GIB);
        Plan::new(&config.sampling, &config.unwind, &machine, limits)
    }

    #[test]
    fn no_limit_makes_more_of_anything() {
        for ring_kib in [0, 64, 256, 4096] {
            for rate_hz in [9, 99, 999, 4999] {
                for mode in [UnwindMode::Auto, UnwindMode::StackCopy] {
                    let plan = |limits| {
                        let set = |config: &mut Config| {
                            config.sampling.ring_kib = ring_kib;
                            config.sampling.rate_hz = rate_hz;
                            config.unwind.mode = mode;
                        };
                        plan(set, limits)
                    };
                    let full = plan(Limits::NONE);
                    for limited_hz in [u32::MAX, 999, 499, 99, 9] {
                        let limited = plan(Limits {
                            rate_hz: limited_hz,
                            ..Limits::NONE
                        });
                        let what = format!("{ring_kib} KiB, {rate_hz} Hz: {limited:?}");
                        assert!(limited.stack_bytes <= full.stack_bytes, "{what}");
                        assert!(limited.rate_hz <= full.rate_hz, "{what}");
                        let budget = "the daemon's CPU budget";
                        let reduced = limited.reduced.unwrap_or_default();
                        assert!(!reduced.contains(budget), "{what}");
                    }
                }
            }
        }
    }

    /// Ring in KiB, copy in KiB, number of notices of a set of captures.
    fn check_set(
        cpus: u64,
        rate: u64,
        stack_kib: u32,
        used: u64,
        expected: Option<(usize, u32, usize)>,
    ) {
        let plan = SetPlan::new(&machine(cpus, 24 * GIB), cpus, rate, stack_kib << 10, used);
        let found = plan.map(|plan| {
            assert!(plan.watermark_bytes < plan.ring_bytes);
            (
                plan.ring_bytes >> 10,
                plan.stack_bytes >> 10,
                plan.notices.len(),
            )
        });
        assert_eq!(
            found, expected,
            "{cpus} CPUs, {rate} Hz, {stack_kib} KiB, {used}"
        );
    }

    #[test]
    fn rings_of_captures_hold_what_comes_while_the_sampler_wakes_up() {
        check_set(2, 99, 0, 0, Some((256, 0, 0)));
        check_set(2, 997, 16, 0, Some((16 << 10, 16, 0)));
        check_set(2, 9_999, 16, 0, Some((16 << 10, 16, 1)));
        check_set(64, 9_999, 0, 0, Some((4 << 10, 0, 0)));
    }

    #[test]
    fn memory_that_captures_have_already_is_not_there_for_another() {
        check_set(2, 997, 16, 383 << 20, Some((512, 16, 1)));
        check_set(64, 99, 60, 380 << 20, Some((64, 31, 2)));
        check_set(2, 99, 0, 384 << 20, None);
    }

    #[test]
    fn rings_as_configured_decide_what_is_copied() {
        let set = |config: &mut Config| config.sampling.ring_kib = 64;
        let plan = plan(set, Limits::NONE);
        assert_eq!((plan.stack_bytes, plan.ring_bytes), (0, 64 << 10));
        let said = "16 KiB of each stack configured, none in force: rings of 64 KiB \
                    (sampling.ring_kib) hold 38 ms at 99 Hz with 16 KiB of each stack";
        assert_eq!(plan.reduced.as_deref(), Some(said));
    }

    #[test]
    fn a_ring_of_a_few_samples_is_too_small_at_any_rate() {
        let set = |config: &mut Config| {
            config.sampling.ring_kib = 64;
            config.sampling.rate_hz = 9;
        };
        let plan = plan(set, Limits::NONE);
        assert_eq!(plan.stack_bytes, 8 << 10);
        assert!(plan.reduced.is_some());
    }

    #[test]
    fn copies_that_are_asked_for_and_hardly_fit_are_told() {
        let set = |config: &mut Config| {
            config.sampling.ring_kib = 64;
            config.unwind.mode = UnwindMode::StackCopy;
        };
        let plan = plan(set, Limits::NONE);
        assert_eq!(plan.stack_bytes, 16 << 10);
        let why = plan.reduced.expect("a reason");
        assert!(why.starts_with("rings of 64 KiB"), "{why}");
    }
}
