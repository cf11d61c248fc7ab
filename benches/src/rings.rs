//! A host with hundreds of CPUs, simulated: the real sampler on rings in memory, filled with a
//! second of samples and of processes that come and go.

use aggregate::batch::RawBatch;
use anyhow::{Context, ensure};
use host::bounds::{Bounds, CacheBounds};
use host::ids::CpuId;
use host::time::MonotonicTime;
use perf::cpu_ring::CpuRing;
use perf::event::Features;
use perf::loss::SampleSpacing;
use perf::ring::Ring;
use perf::rings::Rings;
use perf::synthetic;
use sampler::{Queues, Sampler, SamplerHandle, SamplerStart};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};
use unwind::walk::{Depths, Unwinder};

/// A second of records without copies of stacks fits five times.
const RING_BYTES: usize = 256 << 10;
/// Frames of each stack: kernel and user.
const FRAMES: u64 = 30;
/// Stacks a CPU goes through; half of all samples have one that was there before.
const STACKS: u64 = 50;
/// One process comes and goes for this many samples.
const SAMPLES_PER_FORK: u32 = 4;
/// Seconds simulated: the first ones make tables grow.
const SECONDS: u32 = 12;
/// `PERF_CONTEXT_KERNEL`.
const KERNEL: u64 = (-128i64) as u64;

/// Simulates, and returns a table.
///
/// # Errors
/// When a ring is too small for the rate, or the sampler fails.
pub fn run(cpus: u32, rate_hz: u32) -> anyhow::Result<String> {
    let period = 1_000_000_000 / u64::from(rate_hz.max(1));
    let rings = (0..cpus)
        .map(|cpu| {
            let ring = Ring::in_memory(RING_BYTES)?;
            Ok(CpuRing::over(
                CpuId(cpu),
                ring,
                SampleSpacing::Fixed(period),
            ))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let begin = MonotonicTime::now();
    let start = SamplerStart {
        rings: Rings::over(rings, Features::default(), 0)?,
        unwinder: Unwinder::new(
            Depths {
                chain: 127,
                walk: 127,
            },
            Arc::new(CacheBounds::new(Bounds {
                symbols: 0,
                unwind: 1 << 20,
                recorder: 0,
            })),
        ),
        period,
        processes: Vec::new(),
        idle: vec![(1, 2)],
        window: Duration::from_secs(10),
        first_window_end: begin.plus(Duration::from_secs(10)),
    };
    let (batches, handed_over) = sync_channel(2);
    let (recycle, recycled) = sync_channel(2);
    recycle.send(RawBatch::default())?;
    recycle.send(RawBatch::default())?;
    let (file_loader, _requests) = sync_channel(1024);
    let (_scans, scanned) = sync_channel(1);
    let (_loaded, modules) = sync_channel(1);
    let (_rules, generated) = sync_channel(1);
    let shared = Arc::new(SamplerHandle::new()?);
    let (code, _notices) = sync_channel(16);
    let queues = Queues {
        batches,
        recycled,
        file_loader,
        scanned,
        modules: (modules, Arc::default()),
        generated,
        code,
        looks: None,
    };
    let mut sampler = Sampler::new(start, queues, Arc::clone(&shared))?;
    let (mut times, mut records) = (Vec::new(), 0);
    for second in 0..SECONDS {
        let from = begin.plus(Duration::from_secs(u64::from(second)));
        records = fill(sampler.rings_mut(), from, rate_hz)?;
        let clock = Instant::now();
        sampler.pass(from.plus(Duration::from_millis(1002)))?;
        times.push(clock.elapsed());
        while let Ok(batch) = handed_over.try_recv() {
            recycle.send(batch)?;
        }
    }
    let samples = shared.samples.load(Ordering::Relaxed);
    let expected = u64::from(cpus) * u64::from(rate_hz) * u64::from(SECONDS);
    ensure!(samples == expected, "{samples} of {expected} samples");
    times.drain(..2);
    times.sort_unstable();
    let median = times[times.len() / 2];
    let worst = times.last().copied().context("some seconds")?;
    Ok(format!(
        "{cpus} CPUs at {rate_hz} Hz, {records} records a second\n\
         drain of one second, median   {:>8.1} ms\n\
         drain of one second, worst    {:>8.1} ms\n\
         a record                      {:>8.2} us\n\
         memory of the index           {:>8.1} MiB\n",
        median.as_secs_f64() * 1e3,
        worst.as_secs_f64() * 1e3,
        median.as_secs_f64() * 1e6 / records as f64,
        sampler.rings_mut().index_bytes() as f64 / f64::from(1 << 20),
    ))
}

/// A second of records in every ring. Returns how many.
fn fill(rings: &mut Rings, from: MonotonicTime, rate_hz: u32) -> anyhow::Result<u64> {
    let period = 1_000_000_000 / u64::from(rate_hz);
    let mut records = 0;
    for ring in rings.rings_mut() {
        let cpu = ring.cpu.0;
        for tick in 0..rate_hz {
            // CPUs tick out of step.
            let phase = u64::from(cpu) * 7919 % period;
            let time = MonotonicTime(from.0 + u64::from(tick) * period + phase);
            let leaf = u64::from(tick * 31 + cpu * 17) % (2 * STACKS);
            let mut chain = vec![KERNEL];
            chain.extend((0..FRAMES).map(|depth| (0xffff_ffff_8100_0000 + depth * 4096) | leaf));
            let mut write = |bytes: &[u8]| {
                records += 1;
                ensure!(
                    ring.ring_mut().write(bytes),
                    "the ring of CPU {cpu} is full"
                );
                Ok(())
            };
            let pid = 1000 + cpu * 8 + tick % 8;
            if tick % SAMPLES_PER_FORK == 0 {
                write(&synthetic::fork(time, pid, 1))?;
                write(&synthetic::comm(
                    MonotonicTime(time.0 + 1),
                    pid,
                    *b"worker\0\0",
                ))?;
            }
            write(&synthetic::sample(
                MonotonicTime(time.0 + 2),
                pid,
                cpu,
                period,
                &chain,
            ))?;
            if tick % SAMPLES_PER_FORK == SAMPLES_PER_FORK - 1 {
                write(&synthetic::exit(MonotonicTime(time.0 + 3), pid))?;
            }
        }
    }
    Ok(records)
}
