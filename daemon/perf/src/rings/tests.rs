//! Tests rings of several CPUs, drained in order of time.

use super::*;
use crate::event::EventKind;
use crate::loss::SampleSpacing;
use crate::ring::Ring;
use crate::synthetic;
use proptest::prelude::*;

#[test]
fn a_busy_thread_is_sampled_in_order_of_time_needs_root() {
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 999,
        max_stack_depth: 127,
        watermark_bytes: 64 << 10,
        stack_bytes: 0,
        side_band_bytes: 0,
    };
    let online = [CpuId(0), CpuId(1)];
    let mut rings = match Rings::open(&online, &spec, 256 << 10) {
        Ok(rings) => rings,
        Err(error) => {
            testkit::skip(format_args!("perf events are not to be had here: {error}"));
            return;
        }
    };
    // By CPU time: other processes want the CPUs too.
    let start = cpu_time();
    let mut burnt = 0u64;
    while cpu_time() < start + Duration::from_millis(300) {
        for _ in 0..100_000 {
            burnt = std::hint::black_box(burnt.wrapping_mul(31).wrapping_add(7));
        }
    }
    let end = MonotonicTime::now();
    let (mut mine, mut newest, mut horizon) = (0, MonotonicTime(0), MonotonicTime(0));
    while horizon < end {
        horizon = rings.drain(horizon_at(MonotonicTime::now()), |drained| {
            let (time, record) = match drained {
                Drained::Record { time, record, .. } => (time, record),
                // On a loaded machine the ring is full before this thread had its time.
                _ => return,
            };
            assert!(time >= newest, "records come in order of time");
            newest = time;
            if let Record::Sample(sample) = record {
                mine += u32::from(sample.pid.0 == std::process::id());
                assert!(!sample.callchain.is_empty());
            }
        });
    }
    assert_eq!((rings.malformed, rings.late), (0, 0));
    // 300 at 999 Hz; a third of it is proof enough.
    assert!(
        mine > 100,
        "only {mine} samples of a thread that was busy for 300 ms"
    );
}

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("readable");
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    Duration::from_nanos(first.expect("a number"))
}

/// An event at 999 Hz on both CPUs, with or without rings for the side band. None where there are
/// no perf events.
fn fast_rings(ring_bytes: usize, side_band_bytes: usize) -> Option<Rings> {
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 999,
        max_stack_depth: 8,
        watermark_bytes: 4 << 10,
        stack_bytes: 0,
        side_band_bytes,
    };
    match Rings::open(&[CpuId(0), CpuId(1)], &spec, ring_bytes) {
        Ok(rings) => Some(rings),
        Err(error) => {
            testkit::skip(format_args!("perf events are not to be had here: {error}"));
            None
        }
    }
}

/// Loads and drops a BPF program that does nothing. False where the kernel does not let it.
fn load_bpf_program() -> bool {
    /// `BPF_PROG_LOAD`
    const LOAD: libc::c_long = 5;
    // r0 = 0; exit
    let instructions: [u64; 2] = [0xb7, 0x95];
    // Type (a socket's filter), number of instructions, where they are, the licence.
    let mut attributes = [0u64; 16];
    attributes[0] = 1 | 2 << 32;
    attributes[1] = instructions.as_ptr() as u64;
    attributes[2] = c"GPL".as_ptr() as u64;
    // SAFETY: the kernel reads as many bytes of the attributes as their size says, and instructions
    // and licence where they point; all three live through the call.
    let program = unsafe {
        let size = size_of_val(&attributes);
        libc::syscall(libc::SYS_bpf, LOAD, attributes.as_ptr(), size)
    };
    // SAFETY: the descriptor is new, and nobody else has it.
    program >= 0 && unsafe { libc::close(program as libc::c_int) } == 0
}

#[test]
fn samples_go_on_when_bpf_programs_come_and_go_under_two_listeners_needs_root() {
    // Small enough to have been written over: what lies behind a record that is too long is old
    // then.
    let (Some(mut first), Some(mut second)) =
        (fast_rings(32 << 10, 32 << 10), fast_rings(32 << 10, 0))
    else {
        return;
    };
    let mut listeners = [
        (&mut first, Heard::default()),
        (&mut second, Heard::default()),
    ];
    while_busy(|| {
        let start = MonotonicTime::now();
        let mut programs = 0;
        while MonotonicTime::now().since(start) < Duration::from_secs(2) {
            if MonotonicTime::now().since(start) > Duration::from_secs(1) {
                if !load_bpf_program() {
                    return testkit::skip("BPF programs are not to be had here");
                }
                programs += 1;
            }
            listeners
                .iter_mut()
                .for_each(|(rings, heard)| heard.all_of(rings));
            wait_until(MonotonicTime::now().plus(Duration::from_millis(20)));
        }
        let last = MonotonicTime::now();
        // Samples that are handed out: a ring that is always full counts as alive, too.
        while listeners
            .iter()
            .any(|(_, heard)| heard.newest.iter().any(|&newest| newest < last))
        {
            let heard = [&listeners[0].1, &listeners[1].1];
            assert!(
                last.plus(Duration::from_secs(30)) > MonotonicTime::now(),
                "{heard:?}"
            );
            wait_until(MonotonicTime::now().plus(Duration::from_millis(20)));
            listeners
                .iter_mut()
                .for_each(|(rings, heard)| heard.all_of(rings));
        }
        for (rings, heard) in &listeners {
            eprintln!("{programs} programs, {heard:?}");
            // One record when it comes and one when it goes; two more where it is compiled.
            assert!(heard.kernel_code >= 2 * programs, "{heard:?} of {programs}");
            assert_eq!((rings.malformed, rings.flushed), (0, 0));
        }
    });
}

/// What a listener was handed out.
#[derive(Debug, Default)]
struct Heard {
    kernel_code: u32,
    /// The newest sample of each of two CPUs.
    newest: [MonotonicTime; 2],
}

impl Heard {
    fn all_of(&mut self, rings: &mut Rings) {
        rings.drain(horizon_at(MonotonicTime::now()), |drained| match drained {
            Drained::Record {
                cpu,
                record: Record::Sample(sample),
                ..
            } => {
                self.newest[cpu.0 as usize] = sample.time;
            }
            Drained::Record {
                record: Record::KernelCode,
                ..
            } => self.kernel_code += 1,
            _ => {}
        });
    }
}

fn wait_until(time: MonotonicTime) {
    std::thread::sleep(time.since(MonotonicTime::now()));
}

#[test]
fn many_rings_with_nothing_but_samples_are_left_alone_and_no_others() {
    let fills_in = Duration::from_millis(2400);
    let stats = |fullest, lost| DrainStats {
        fullest,
        lost,
        ..DrainStats::default()
    };
    let alone = Some(Duration::from_millis(1440));
    for (stats, rings, expected) in [
        (stats(90, 0), 64, alone),
        (stats(90, 0), 2, None),
        (stats(3, 0), 64, None),
        (stats(200, 0), 64, None),
        (stats(160, 0), 64, alone),
        (stats(90, 1), 64, None),
    ] {
        assert_eq!(
            quiet(stats, rings, fills_in, false),
            expected,
            "{stats:?}, {rings} rings"
        );
    }
    assert_eq!(quiet(stats(90, 0), 64, Duration::ZERO, false), None);
    for (fills_in, expected) in [(725, 425), (500, 200), (300, 105)] {
        let found = quiet(stats(90, 0), 2, Duration::from_millis(fills_in), false);
        let expected = Duration::from_millis(expected);
        assert_eq!(
            found,
            Some(expected),
            "a ring that is full in {fills_in} ms"
        );
    }
    let lost_side_band = DrainStats {
        lost_side_band: 1,
        ..stats(90, 0)
    };
    assert_eq!(quiet(lost_side_band, 64, fills_in, false), None);
}

/// Does something while no CPU is idle: not every machine's clock ticks on idle ones.
fn while_busy<T>(body: impl FnOnce() -> T) -> T {
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn taken_and_missing_samples_add_up_to_the_time_that_passed_needs_root() {
    while_busy(hold_taken_and_missing_against_time);
}

fn hold_taken_and_missing_against_time() {
    // The same clock with room for all of it: a hypervisor that takes a CPU away takes its ticks
    // away too, so the time alone does not show how many there were.
    let Some(mut reference) = fast_rings(4 << 20, 0) else {
        return;
    };
    let Some(mut rings) = fast_rings(8 << 10, 0) else {
        return;
    };
    let start = MonotonicTime::now();
    // Nobody drains for a second: rings of 8 KiB hold a part of it.
    wait_until(MonotonicTime::now().plus(Duration::from_secs(1)));
    let full = MonotonicTime::now();
    let (mut missing, mut known_at_once) = (0, false);
    // Until each CPU has sampled again: before, what is missing has no end.
    while rings.counts().count() < 2 || rings.counts().any(|(_, of_cpu)| of_cpu.newest < full) {
        assert!(
            MonotonicTime::now().since(full) < Duration::from_secs(30),
            "no samples"
        );
        let horizon = horizon_at(MonotonicTime::now());
        rings.drain(horizon, |drained| {
            if let Drained::LossGap(gap) = drained {
                assert!(gap.from < gap.until && gap.until <= horizon, "{gap:?}");
                known_at_once |= missing == 0;
                missing += gap.samples;
            }
        });
        wait_until(MonotonicTime::now().plus(Duration::from_millis(20)));
    }
    let newest: BTreeMap<CpuId, MonotonicTime> = rings
        .counts()
        .map(|(cpu, counts)| (cpu, counts.newest))
        .collect();
    let (mut ticks, mut throttled) = (0, false);
    reference.drain(horizon_at(MonotonicTime::now()), |drained| match drained {
        // There is room for everything: only the kernel can have taken samples away.
        Drained::LossGap(_) => throttled = true,
        Drained::Record { time, cpu, record } => {
            let is_sample = matches!(record, Record::Sample(_));
            ticks += u64::from(is_sample && start < time && time <= newest[&cpu]);
        }
        Drained::SetGap { .. } | Drained::SetSample { .. } | Drained::SetArrival { .. } => {}
    });
    let mut counts = CpuCounts::default();
    let mut periods = 0;
    for (_, of_cpu) in rings.counts() {
        periods += of_cpu.newest.since(start).as_nanos() as u64 / (1_000_000_000 / 999);
        counts.add(of_cpu);
    }
    assert_eq!(counts.missed, missing);
    assert!(known_at_once && missing > 500, "{missing} missing");
    let found = counts.samples + counts.missed;
    eprintln!("{counts:?}, {periods} periods passed, {ticks} ticks");
    // A busy virtual machine makes up for timers that came late.
    assert!(found <= periods + periods / 20 + 4, "{found} of {periods}");
    if throttled {
        return testkit::skip("the kernel throttles events here");
    }
    assert!(found >= ticks * 95 / 100, "{found} of {ticks}");
}

#[test]
fn no_tick_is_twice_or_missing_where_rings_are_replaced_needs_root() {
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 99,
        max_stack_depth: 127,
        watermark_bytes: 64 << 10,
        stack_bytes: 0,
        side_band_bytes: 0,
    };
    let cpus = [CpuId(0), CpuId(1)];
    let open = || Rings::open(&cpus, &spec, 256 << 10);
    // A hypervisor may take a CPU away for longer than this waits: then there is nothing to hold
    // against each other, and another try may have more luck.
    let seamless = while_busy(|| {
        (0..10).any(|_| match (open(), open()) {
            (Ok(old), Ok(new)) => replaced_without_a_seam(old, new, cpus.len()),
            _ => {
                testkit::skip("perf events are not to be had here");
                true
            }
        })
    });
    assert!(
        seamless,
        "in ten tries a CPU had no samples on both sides of the cut"
    );
}

/// False when a CPU has no samples right before or right after the cut.
fn replaced_without_a_seam(mut old: Rings, mut new: Rings, cpus: usize) -> bool {
    wait_until(MonotonicTime::now().plus(Duration::from_millis(100)));
    let cut = MonotonicTime::now();
    wait_until(cut.plus(Duration::from_millis(100)));
    let mut times = BTreeMap::<CpuId, Vec<MonotonicTime>>::new();
    let mut collect = |drained: Drained<'_>| {
        if let Drained::Record { time, cpu, record } = drained
            && matches!(record, Record::Sample(_))
        {
            times.entry(cpu).or_default().push(time);
        }
    };
    assert_eq!(old.drain(cut, &mut collect), cut);
    new.follow(&old, cut);
    new.drain(horizon_at(MonotonicTime::now()), &mut collect);
    let has_both = |times: &Vec<MonotonicTime>| {
        let after = times.partition_point(|&time| time <= cut);
        after > 0 && after < times.len()
    };
    if times.len() < cpus || !times.values().all(has_both) {
        return false;
    }
    let period = Duration::from_nanos(1_000_000_000 / 99);
    for (cpu, times) in &times {
        assert!(times.is_sorted_by(|a, b| a < b), "{cpu:?}: {times:?}");
        let after = times.partition_point(|&time| time <= cut);
        let across = times[after].since(times[after - 1]);
        if across > 2 * period {
            eprintln!("{cpu:?}: {across:?} across the cut");
            return false;
        }
    }
    for (cpu, counts) in new.counts() {
        assert_eq!(counts.samples, times[&cpu].len() as u64);
    }
    true
}

const PERIOD: u64 = 10_000_000;

fn rings_in_memory(cpus: u32) -> Rings {
    let ring = |cpu| {
        let ring = Ring::in_memory(64 << 10).expect("maps");
        CpuRing::over(CpuId(cpu), ring, SampleSpacing::Fixed(PERIOD))
    };
    Rings::over((0..cpus).map(ring).collect(), Features::default(), 0).expect("some")
}

/// Times of everything up to `horizon`, however many drains it takes.
fn times(rings: &mut Rings, horizon: MonotonicTime) -> Vec<u64> {
    let mut times = Vec::new();
    while rings.drain(horizon, |drained| {
        if let Drained::Record { time, .. } = drained {
            times.push(time.0);
        }
    }) < horizon
    {}
    times
}

proptest! {
    #[test]
    fn what_old_and_new_rings_both_have_comes_out_once(
        records in proptest::collection::vec((0u32..4, 1u64..50), 1..200), cut in 0u64..6000
    ) {
        let (mut old, mut new) = (rings_in_memory(4), rings_in_memory(4));
        let mut time = 0;
        let mut expected = Vec::new();
        for (cpu, later) in records {
            time += later;
            let bytes = synthetic::comm(MonotonicTime(time), 1, *b"worker\0\0");
            prop_assert!(old.rings_mut()[cpu as usize].ring_mut().write(&bytes));
            prop_assert!(new.rings_mut()[cpu as usize].ring_mut().write(&bytes));
            expected.push(time);
        }
        let mut found = times(&mut old, MonotonicTime(cut));
        new.follow(&old, MonotonicTime(cut));
        found.extend(times(&mut new, MonotonicTime(time)));
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_ring_that_is_told_to_leave_is_emptied_first() {
    let mut rings = rings_in_memory(2);
    let bytes = synthetic::comm(MonotonicTime(5), 1, *b"worker\0\0");
    assert!(rings.rings_mut()[1].ring_mut().write(&bytes));
    rings.leave(CpuId(1));
    assert!(rings.take_left().is_none());
    assert_eq!(times(&mut rings, MonotonicTime(10)), [5]);
    assert_eq!(rings.take_left().map(|ring| ring.cpu), Some(CpuId(1)));
    assert_eq!(rings.cpus(), 1);
}

/// The losses of a CPU with a last sample at `last` and a new ring that starts now, 30 periods
/// after it: from, until and number, counted back from now in periods.
fn around(left: u64, since: u64) -> (Vec<(u64, u64, u64)>, u64) {
    let mut rings = rings_in_memory(2);
    let ring = Ring::in_memory(64 << 10).expect("maps");
    let ring = CpuRing::over(CpuId(1), ring, SampleSpacing::Fixed(PERIOD));
    let start = ring
        .missed_between(MonotonicTime(0), None)
        .expect("long ago")
        .until;
    let ago = |periods: u64| MonotonicTime(start.0 - periods * PERIOD);
    let sample = synthetic::sample(ago(30), 1, 1, PERIOD, &[7]);
    assert!(rings.rings_mut()[1].ring_mut().write(&sample));
    times(&mut rings, ago(29));
    let gaps = rings.missed_around(&ring, ago(left), ago(since));
    let back = |time: MonotonicTime| (start.0 - time.0) / PERIOD;
    let gaps = gaps.map(|gap| (back(gap.from), back(gap.until), gap.samples));
    let gaps = gaps.collect();
    let counted = rings.counts().find(|(cpu, _)| *cpu == CpuId(1));
    (gaps, counted.map_or(0, |(_, counts)| counts.missed))
}

#[test]
fn a_cpu_misses_what_is_before_it_was_away_and_after() {
    assert_eq!(around(20, 5), (vec![(30, 20, 10), (5, 0, 5)], 15));
}

#[test]
fn a_cpu_that_left_unnoticed_misses_all_since_its_last_sample() {
    assert_eq!(around(3, 3), (vec![(30, 0, 30)], 30));
}

#[test]
fn counts_of_a_cpu_go_on_when_it_comes_back() {
    let mut rings = rings_in_memory(2);
    for round in 1..=2 {
        let bytes = synthetic::sample(MonotonicTime(round * 10), 1, 1, PERIOD, &[7]);
        let ring = rings
            .rings_mut()
            .iter_mut()
            .find(|ring| ring.cpu == CpuId(1));
        assert!(ring.expect("there").ring_mut().write(&bytes));
        rings.leave(CpuId(1));
        times(&mut rings, MonotonicTime(round * 10));
        assert!(rings.take_left().is_some());
        let ring = Ring::in_memory(64 << 10).expect("maps");
        rings.add(CpuRing::over(CpuId(1), ring, SampleSpacing::Fixed(PERIOD)).into());
    }
    let counted = rings.counts().find(|(cpu, _)| *cpu == CpuId(1));
    assert_eq!(counted.map(|(_, counts)| counts.samples), Some(2));
}
