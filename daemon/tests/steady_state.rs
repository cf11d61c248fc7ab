//! Tests that the sampler in steady state never allocates. It counts allocations over real samples
//! with copies of real stacks, which rings in memory replay through the complete pass: order of
//! time, process table, unwinding, folding, windows. Meanwhile two captures share rings of their
//! own.
//!
//! It is the only test in its program, because the count covers all threads.

mod support;

use host::ids::{CaptureId, Comm, CpuId, Pid, Tid};
use host::time::MonotonicTime;
use perf::cpu_ring::CpuRing;
use perf::event::{EventKind, EventSpec, Features};
use perf::loss::SampleSpacing;
use perf::record::{self, Callchain, CpuMode, Layout, Record, Sample};
use perf::ring::Ring;
use perf::rings::sets::{RingSet, SetKey};
use perf::rings::{Drained, Rings, horizon_at};
use perf::synthetic;
use perf_event_open_sys::bindings;
use sampler::filter::Filter;
use sampler::{CaptureStart, Command, Sampler, SamplerHandle, SamplerStart, SetOf};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use support::{Driven, unwinder};
use symbolize::files::generation_of_mapping;
use unwind::process::scan::{self, ScannedMapping, ScannedProcess};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The default size of copies.
const COPY_BYTES: usize = 16 << 10;
const RATE_HZ: u32 = 499;
const PERIOD: u64 = 1_000_000_000 / RATE_HZ as u64;
/// Holds a second of one CPU.
const RING_BYTES: usize = 16 << 20;
const CPUS: u32 = 2;
const WINDOW: Duration = Duration::from_secs(2);
/// Seconds until all tables have met everything and each file was reported for the second time,
/// which is after ten, and seconds counted: five windows.
const WARM_UP: u64 = 14;
const COUNTED: u64 = 10;
/// Within this the files of the replayed samples are read, also on a busy machine.
const READ_WITHIN: Duration = Duration::from_secs(120);

/// One sample in so many is in generated code.
const GENERATED_EVERY: usize = 8;
/// A process with generated code at this address, which is nobody's pid.
const RUNTIME: Pid = Pid(0x3fff_fff0);
const GENERATED_AT: u64 = 0x10_0000;

/// The process of [`RUNTIME`], as /proc would report it.
fn runtime() -> ScannedProcess {
    ScannedProcess {
        pid: RUNTIME,
        parent: Pid(1),
        comm: Comm::from_bytes(b"runtime"),
        kernel: false,
        mappings: vec![ScannedMapping {
            start: GENERATED_AT,
            end: GENERATED_AT + 0x1000,
            file_offset: 0,
            identity: None,
            private: true,
            path: b"//anon"[..].into(),
        }],
        threads_cut: false,
        main_ended: false,
        threads: Vec::new(),
    }
}

/// A sample at the same time in the generated code of [`RUNTIME`].
fn in_generated_code(bytes: &[u8], layout: &Layout) -> Vec<u8> {
    let Ok(Record::Sample(sample)) = record::parse(bytes, layout) else {
        panic!("not a sample");
    };
    let chain = [bindings::PERF_CONTEXT_USER, GENERATED_AT + 0x10];
    let chain: Vec<u8> = chain.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let there = Sample {
        mode: CpuMode::User,
        ip: GENERATED_AT + 0x10,
        pid: RUNTIME,
        tid: Tid(RUNTIME.0),
        callchain: Callchain::from_bytes(&chain),
        user: None,
        ..sample
    };
    synthetic::again(&there, MonotonicTime(0), COPY_BYTES)
}

/// Recurses to changing depths, each level with a frame of its own size, and never allocates.
#[inline(never)]
fn descend(levels: u32, seed: u64) -> u64 {
    let scratch = std::hint::black_box([seed; 24]);
    let below = match levels {
        0 => (0..2_000).fold(seed, |x, n| std::hint::black_box(x.rotate_left(5) ^ n)),
        _ => descend(levels - 1, seed.wrapping_mul(31)),
    };
    below ^ scratch[(seed % 24) as usize]
}

/// Records of this process's own samples while it is busy, and of the kernel's while it works for
/// it.
fn recorded() -> Option<Vec<Vec<u8>>> {
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: RATE_HZ,
        max_stack_depth: 127,
        watermark_bytes: 2 << 20,
        stack_bytes: COPY_BYTES as u32,
        side_band_bytes: 0,
    };
    let cpus: Vec<CpuId> = (0..std::thread::available_parallelism().ok()?.get() as u32)
        .map(CpuId)
        .collect();
    let mut rings = Rings::open(&cpus, &spec, 8 << 20).ok()?;
    let mut kept = Vec::new();
    let mut depth = 0;
    while kept.len() < RATE_HZ as usize {
        for _ in 0..200 {
            depth = (depth + 7) % 40;
            std::hint::black_box(descend(depth, depth.into()));
        }
        // Work of the kernel too: a read that returns zeros.
        let _ = std::fs::read("/proc/self/maps");
        rings.drain(horizon_at(MonotonicTime::now()), |drained| {
            if let Drained::Record { record, .. } = drained
                && let Record::Sample(sample) = record
                && sample.pid == Pid(std::process::id())
                && kept.len() < RATE_HZ as usize
            {
                kept.push(synthetic::again(&sample, MonotonicTime(0), COPY_BYTES));
            }
        });
    }
    Some(kept)
}

/// Where the time stands in a sample: after the header, identifier, address and ids.
const TIME_AT: usize = 32;

/// The set of the captures.
const KEY: SetKey = SetKey(1);

/// Two captures of one set: one takes all and keeps times, the other nothing but generated code.
fn start_captures(shared: &SamplerHandle) {
    let rings = (0..CPUS).map(|cpu| {
        let ring = Ring::in_memory(RING_BYTES).expect("maps");
        (
            0,
            CpuRing::over(CpuId(cpu), ring, SampleSpacing::Fixed(PERIOD)),
        )
    });
    let layouts = vec![Features::default().layout(COPY_BYTES as u32)];
    let set = RingSet::over(KEY, rings, layouts, true).expect("some");
    let mut all = CaptureStart::new(CaptureId(1), SetOf::New(Box::new(set)), Filter::default());
    all.keep_times = true;
    let generated = Filter::default().pids([RUNTIME]);
    let some = CaptureStart::new(CaptureId(2), SetOf::Open(KEY), generated);
    for begin in [all, some] {
        shared.command(Command::BeginCapture(Box::new(begin)));
    }
}

/// Writes a second of samples, which starts at `from`, to every ring.
fn fill(sampler: &mut Sampler, from: MonotonicTime, samples: &mut [Vec<u8>]) {
    let rings = sampler.rings_mut();
    fill_rings(rings.rings_mut().iter_mut(), from, samples);
    if let Some(set) = rings.set_mut(KEY) {
        fill_rings(set.rings_mut().map(|(_, ring)| ring), from, samples);
    }
}

fn fill_rings<'a>(
    rings: impl Iterator<Item = &'a mut CpuRing>,
    from: MonotonicTime,
    samples: &mut [Vec<u8>],
) {
    for ring in rings {
        for (tick, bytes) in samples.iter_mut().enumerate() {
            let time = from.0 + tick as u64 * PERIOD + 1 + u64::from(ring.cpu.0);
            bytes[TIME_AT..TIME_AT + 8].copy_from_slice(&time.to_ne_bytes());
            assert!(ring.ring_mut().write(bytes), "a ring is too small");
        }
    }
}

#[test]
fn in_steady_state_nothing_is_allocated_needs_root() {
    let samples = std::thread::spawn(recorded).join().unwrap();
    let Some(mut samples) = samples else {
        testkit::skip("not permitted to sample");
        return;
    };
    let layout = Features::default().layout(COPY_BYTES as u32);
    let copies = samples.iter().filter(|bytes| {
        let parsed = record::parse(bytes, &layout);
        matches!(parsed, Ok(Record::Sample(sample)) if sample.user.is_some())
    });
    assert_eq!(copies.count(), samples.len());
    // Some of them in generated code, of a process that has nothing else.
    for bytes in samples.iter_mut().step_by(GENERATED_EVERY) {
        *bytes = in_generated_code(bytes, &layout);
    }

    let own = Pid(std::process::id());
    let mut processes =
        scan::all(|(pid, start, end), _| generation_of_mapping(pid, start, end)).processes;
    processes.retain(|process| process.pid == own);
    processes.push(runtime());
    let rings = (0..CPUS)
        .map(|cpu| {
            let ring = Ring::in_memory(RING_BYTES).unwrap();
            CpuRing::over(CpuId(cpu), ring, SampleSpacing::Fixed(PERIOD))
        })
        .collect();
    let begin = MonotonicTime::now();
    let start = SamplerStart {
        rings: Rings::over(rings, Features::default(), COPY_BYTES as u32).unwrap(),
        unwinder: unwinder(32 << 20),
        period: PERIOD,
        processes,
        idle: vec![(1, 2)],
        window: WINDOW,
        first_window_end: begin.plus(WINDOW),
    };
    let shared = Arc::new(SamplerHandle::new().unwrap());
    let (mut driven, _rules) = Driven::new(start, Arc::clone(&shared));

    start_captures(&shared);
    let mut second = 0;
    let mut times = 0;
    let mut captured = [0u64; 2];
    // Replays seconds; counts samples with cut stacks, and with complete ones.
    let mut run = |seconds: u64, driven: &mut Driven| {
        let mut ends = [0u64; 2];
        for _ in 0..seconds {
            let from = begin.plus(Duration::from_secs(second));
            second += 1;
            fill(&mut driven.sampler, from, &mut samples);
            driven
                .sampler
                .pass(from.plus(Duration::from_millis(1002)))
                .unwrap();
            while let Ok(batch) = driven.batches.try_recv() {
                if let Some(id) = batch.capture {
                    captured[id.0 as usize - 1] += batch.quality.taken;
                    assert!(
                        id != CaptureId(1) || batch.timestamps.len() as u64 == batch.quality.taken
                    );
                    driven.recycle.send(batch).unwrap();
                    continue;
                }
                times += batch.times.len();
                for sample in &batch.samples {
                    let stack = &batch.stacks[sample.stack as usize];
                    if !stack.generated {
                        ends[usize::from(stack.end.is_complete())] += sample.value.count;
                    }
                }
                driven.recycle.send(batch).unwrap();
            }
        }
        ends
    };
    // What `fp-files` is asked for comes while the first seconds are replayed.
    let mostly_whole = |[cut, whole]: [u64; 2]| whole > cut;
    let give_up = Instant::now() + READ_WITHIN;
    while !mostly_whole(run(1, &mut driven)) {
        assert!(Instant::now() < give_up, "files are not read");
        std::thread::sleep(Duration::from_millis(300));
    }
    run(WARM_UP, &mut driven);
    let before = shared.samples.load(Ordering::Relaxed);
    let region = Region::new(ALLOCATOR);
    let ends = run(COUNTED, &mut driven);
    let change = region.change();
    let folded = shared.samples.load(Ordering::Relaxed) - before;
    eprintln!(
        "{folded} samples, of captures {captured:?}: {} allocations, {} reallocations; of all {} whole, {} not",
        change.allocations, change.reallocations, ends[1], ends[0]
    );
    assert_eq!(
        folded,
        u64::from(CPUS) * u64::from(RATE_HZ) * COUNTED,
        "every sample went through"
    );
    assert_eq!((change.allocations, change.reallocations), (0, 0));
    let generated = samples.len().div_ceil(GENERATED_EVERY) * CPUS as usize;
    assert!(
        times >= generated * COUNTED as usize,
        "{times} times of samples in generated code"
    );
    let all = u64::from(CPUS) * u64::from(RATE_HZ);
    assert!(captured[0] >= all * COUNTED, "{captured:?}");
    assert!(
        captured[1] >= (all / GENERATED_EVERY as u64) * COUNTED,
        "{captured:?}"
    );
    // The count covers the complete path of a sample, including unwinding.
    assert!(mostly_whole(ends), "{ends:?}");
    driven.end();
}
