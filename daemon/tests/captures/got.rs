//! Support for tests of captures: their batches, and the engine over the kernel's own events.

use super::support::{Driven, unwinder};
use aggregate::batch::RawBatch;
use capture::engine::{Engine, EventCapture};
use capture::event::Event;
use host::facts::Environment;
use host::ids::CaptureId;
use host::time::MonotonicTime;
use perf::event::{EventKind, EventSpec};
use perf::plan::Machine;
use perf::rings::Rings;
use sampler::filter::Filter;
use sampler::{SamplerHandle, SamplerStart};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use symbolize::files::generation_of_mapping;
use unwind::process::scan;

/// What came of the batches: samples and weight by capture (0: the continuous profile) and pid.
#[derive(Default)]
pub struct Got {
    pub samples: BTreeMap<(u64, u32), (u64, u64)>,
    pub quality: BTreeMap<u64, profile::Quality>,
    pub passed_over: BTreeMap<u64, u64>,
    pub lost: BTreeMap<u64, u64>,
    /// For how long events were to be counted, and were. Unit: nanoseconds.
    pub counted: BTreeMap<u64, (u64, u64)>,
    /// Time that batches cover. Unit: nanoseconds.
    pub covered: BTreeMap<u64, u64>,
    pub dropped: u64,
    pub timestamps: Vec<(u64, u64)>,
    pub closed: Vec<u64>,
    pub batches: BTreeMap<u64, u32>,
}

impl Got {
    pub fn add(&mut self, batch: &RawBatch) {
        let id = batch.capture.map_or(0, |id| id.0);
        for row in &batch.samples {
            let pid = batch.processes[row.process as usize].pid.0;
            let sum = self.samples.entry((id, pid)).or_default();
            *sum = (sum.0 + row.value.count, sum.1 + row.value.weight);
        }
        *self.quality.entry(id).or_default() += batch.quality;
        *self.passed_over.entry(id).or_default() += batch.passed_over;
        *self.lost.entry(id).or_default() += batch.losses.iter().map(|it| it.samples).sum::<u64>();
        *self.covered.entry(id).or_default() += batch.end.0 - batch.start.0;
        let counted = self.counted.entry(id).or_default();
        counted.0 += batch.counted_ns.0;
        counted.1 += batch.counted_ns.1;
        self.dropped += batch.dropped;
        let timestamps = batch.timestamps.iter();
        self.timestamps.extend(timestamps.map(|it| (id, it.time.0)));
        *self.batches.entry(id).or_default() += 1;
        if batch.closes && id != 0 {
            self.closed.push(id);
        }
    }

    pub fn of(&self, id: u64, pid: u32) -> u64 {
        self.samples.get(&(id, pid)).map_or(0, |it| it.0)
    }

    pub fn all_of(&self, id: u64) -> u64 {
        let all = self
            .samples
            .iter()
            .filter(|((capture, _), _)| *capture == id);
        all.map(|(_, it)| it.0).sum()
    }
}

/// A busy thread of this process.
pub fn while_busy<T>(body: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::black_box((0..10_000u64).fold(1u64, |x, n| x.rotate_left(5) ^ n));
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        stop.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// The sampler over real rings at 99 Hz, and the engine. `None` where there are no perf events.
pub fn live() -> Option<(Driven, Arc<SamplerHandle>, Engine)> {
    let environment = Environment::read();
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 99,
        max_stack_depth: 127,
        watermark_bytes: 128 << 10,
        stack_bytes: 0,
        side_band_bytes: 0,
    };
    let rings = match Rings::open(&environment.cpus_online, &spec, 256 << 10) {
        Ok(rings) => rings,
        Err(error) => {
            testkit::skip(format_args!("perf events are not to be had here: {error}"));
            return None;
        }
    };
    let processes =
        scan::all(|(pid, start, end), _| generation_of_mapping(pid, start, end)).processes;
    let start = SamplerStart {
        rings,
        unwinder: unwinder(32 << 20),
        period: 1_000_000_000 / 99,
        processes,
        idle: vec![(1, 2)],
        window: Duration::from_secs(3600),
        first_window_end: MonotonicTime::now().plus(Duration::from_secs(3600)),
    };
    let shared = Arc::new(SamplerHandle::new().expect("descriptors"));
    let (driven, _) = Driven::new(start, Arc::clone(&shared));
    let engine = Engine::new(Arc::clone(&shared), Machine::of(&environment));
    Some((driven, shared, engine))
}

pub fn wanted(id: u64, event: &str) -> EventCapture {
    let event = Event::parse(event).expect("known");
    EventCapture {
        id: CaptureId(id),
        every: event.default_every(),
        event,
        kernel_filter: String::new(),
        stack_bytes: 0,
        max_stack_depth: 127,
        cgroup: None,
        filter: Filter::default(),
        keep_times: false,
    }
}

/// Passes until `done`, for a minute at most.
pub fn run(driven: &mut Driven, got: &mut Got, mut done: impl FnMut(&Got) -> bool) {
    let begin = MonotonicTime::now();
    while !done(got) {
        assert!(
            MonotonicTime::now().since(begin) < Duration::from_secs(60),
            "it never comes"
        );
        std::thread::sleep(Duration::from_millis(20));
        driven
            .sampler
            .pass(MonotonicTime::now())
            .expect("it goes on");
        while let Ok(mut batch) = driven.batches.try_recv() {
            got.add(&batch);
            batch.clear();
            driven.recycle.send(batch).expect("there is room");
        }
    }
}
