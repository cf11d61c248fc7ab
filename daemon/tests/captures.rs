//! Captures beside the continuous profile, through the whole sampler: what each gets, and that neither
//! takes a sample from the other.

mod support;

use daemon::aggregate::batch::RawBatch;
use daemon::capture::engine::{Engine, Fault, Wanted};
use daemon::capture::event::Event;
use daemon::capture::filter::Filter;
use daemon::ids::{CaptureId, CgroupId, CpuId, Pid, Tid};
use daemon::perf::cpu_ring::CpuRing;
use daemon::perf::environment::Environment;
use daemon::perf::event::{EventKind, EventSpec, Features};
use daemon::perf::loss::Pace;
use daemon::perf::plan::Machine;
use daemon::perf::probe::Every;
use daemon::perf::record::{Callchain, CpuMode, Sample};
use daemon::perf::ring::Ring;
use daemon::perf::rings::{HORIZON, Rings};
use daemon::perf::sets::{RingSet, SetKey};
use daemon::perf::synthetic;
use daemon::process::scan;
use daemon::sampler::{Begin, Command, SetOf, Shared, Start};
use daemon::symbolize::files::identity_of_mapping;
use daemon::time::Mono;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::{Driven, unwinder};

const RING_BYTES: usize = 1 << 20;
const PERIOD: u64 = 1_000_000;
/// Copies of stacks, which samples in kernel code have not.
const COPY_BYTES: usize = 16;
const KEY: SetKey = SetKey(1);

/// What came of the batches: samples and weight by capture (0: the continuous profile) and pid.
#[derive(Default)]
struct Got {
    samples: BTreeMap<(u64, u32), (u64, u64)>,
    quality: BTreeMap<u64, profile::Quality>,
    passed_over: BTreeMap<u64, u64>,
    lost: BTreeMap<u64, u64>,
    shed: u64,
    moments: Vec<(u64, u64)>,
    closed: Vec<u64>,
    batches: BTreeMap<u64, u32>,
}

impl Got {
    fn add(&mut self, batch: &RawBatch) {
        let id = batch.capture.map_or(0, |id| id.0);
        for row in &batch.samples {
            let pid = batch.processes[row.process as usize].pid.0;
            let sum = self.samples.entry((id, pid)).or_default();
            *sum = (sum.0 + row.value.count, sum.1 + row.value.weight);
        }
        *self.quality.entry(id).or_default() += batch.quality;
        *self.passed_over.entry(id).or_default() += batch.passed_over;
        *self.lost.entry(id).or_default() += batch.losses.iter().map(|it| it.samples).sum::<u64>();
        self.shed += batch.shed;
        let moments = batch.moments.iter();
        self.moments.extend(moments.map(|it| (id, it.time.0)));
        *self.batches.entry(id).or_default() += 1;
        if batch.closes && id != 0 {
            self.closed.push(id);
        }
    }

    fn of(&self, id: u64, pid: u32) -> u64 {
        self.samples.get(&(id, pid)).map_or(0, |it| it.0)
    }

    fn all_of(&self, id: u64) -> u64 {
        let all = self
            .samples
            .iter()
            .filter(|((capture, _), _)| *capture == id);
        all.map(|(_, it)| it.0).sum()
    }
}

/// The sampler over rings in memory, whose time is the test's.
struct Rig {
    driven: Driven,
    shared: Arc<Shared>,
    got: Got,
    now: Mono,
}

impl Rig {
    fn new() -> Rig {
        let rings = rings(2, Pace::Fixed(PERIOD)).collect();
        // Ahead of the clock, which the sampler looks at too.
        let now = Mono::now().plus(Duration::from_secs(1000));
        let start = Start {
            rings: Rings::over(rings, Features::default(), COPY_BYTES as u32).expect("some"),
            unwinder: unwinder(1 << 20),
            period: PERIOD,
            processes: Vec::new(),
            idle: vec![(1, 2)],
            window: Duration::from_secs(10),
            first_window_end: now.plus(Duration::from_secs(10)),
        };
        let shared = Arc::new(Shared::new().expect("descriptors"));
        let (driven, _) = Driven::new(start, Arc::clone(&shared));
        Rig {
            driven,
            shared,
            got: Got::default(),
            now,
        }
    }

    /// A new set, and a capture of it.
    fn begin(&mut self, id: u64, set: SetOf, filter: Filter) {
        let mut begin = Begin::new(CaptureId(id), set, filter);
        begin.keep_times = true;
        begin.period = PERIOD;
        self.command(Command::BeginCapture(Box::new(begin)));
    }

    fn command(&mut self, command: Command) {
        self.shared.command(command);
        self.pass(1);
    }

    /// A pass that sees everything of so many milliseconds from now on.
    fn pass(&mut self, later: u64) {
        self.now = self.now.plus(Duration::from_millis(later) + HORIZON);
        self.driven.sampler.pass(self.now).expect("it goes on");
        while let Ok(batch) = self.driven.batches.try_recv() {
            self.got.add(&batch);
            let mut batch = batch;
            batch.clear();
            self.driven.recycle.send(batch).expect("there is room");
        }
    }

    /// Samples of a process on a CPU, one a period from now on. Returns how many found room.
    fn main(&mut self, cpu: usize, pid: u32, count: u64) -> u64 {
        let from = self.now;
        let ring = &mut self.driven.sampler.rings_mut().rings_mut()[cpu];
        write(ring, from, pid, count)
    }

    fn captured(&mut self, cpu: usize, pid: u32, count: u64) -> u64 {
        let from = self.now;
        let rings = self.driven.sampler.rings_mut();
        let set = rings.set_mut(KEY).expect("it is open");
        let (_, ring) = set.rings_mut().nth(cpu).expect("there");
        write(ring, from, pid, count)
    }

    fn flush(&mut self) {
        self.shared.flush();
        self.pass(1);
    }
}

fn rings(cpus: u32, pace: Pace) -> impl Iterator<Item = CpuRing> {
    let ring = move |cpu| {
        let ring = Ring::in_memory(RING_BYTES).expect("maps");
        CpuRing::over(CpuId(cpu), ring, pace)
    };
    (0..cpus).map(ring)
}

fn set(pace: Pace) -> SetOf {
    let layouts = vec![Features::default().layout(COPY_BYTES as u32)];
    let rings = rings(2, pace).map(|ring| (0, ring));
    SetOf::New(Box::new(
        RingSet::over(KEY, rings, layouts, true).expect("some"),
    ))
}

fn write(ring: &mut CpuRing, from: Mono, pid: u32, count: u64) -> u64 {
    let sample = |number: u64| Sample {
        mode: CpuMode::Kernel,
        ip: 7,
        pid: Pid(pid),
        tid: Tid(pid),
        time: Mono(from.0 + 1 + number),
        cpu: CpuId(0),
        period: PERIOD,
        callchain: Callchain::from_bytes(&[]),
        user: None,
        raw: None,
        cgroup: CgroupId(u64::from(pid) * 10),
    };
    let written = |number: &u64| {
        let sample = sample(*number);
        ring.ring_mut()
            .write(&synthetic::again(&sample, sample.time, COPY_BYTES))
    };
    (0..count).take_while(written).count() as u64
}

#[test]
fn a_capture_and_the_continuous_profile_get_each_their_own() {
    let mut rig = Rig::new();
    rig.begin(5, set(Pace::Fixed(PERIOD)), Filter::default());
    for cpu in 0..2 {
        assert_eq!(rig.main(cpu, 100 + cpu as u32, 10), 10);
        assert_eq!(rig.captured(cpu, 100 + cpu as u32, 70), 70);
    }
    rig.pass(10);
    rig.command(Command::EndCapture(CaptureId(5)));
    rig.pass(10);
    rig.flush();
    for pid in [100, 101] {
        assert_eq!((rig.got.of(0, pid), rig.got.of(5, pid)), (10, 70));
    }
    assert_eq!(rig.got.closed, [5]);
    assert_eq!(rig.got.quality[&0].taken, 20);
    assert_eq!(rig.got.quality[&5].taken, 140);
    assert_eq!(rig.got.moments.len(), 140);
    let times: Vec<u64> = rig.got.moments.iter().map(|it| it.1).collect();
    assert!(times.is_sorted(), "rings are drained in order of time");
    assert!(rig.driven.sampler.rings_mut().sets().is_empty(), "closed");
    rig.driven.end();
}

#[test]
fn captures_of_one_set_take_what_each_filter_lets_through() {
    let mut rig = Rig::new();
    rig.begin(1, set(Pace::Counted), Filter::default().pids([Pid(100)]));
    let of_cgroup = Filter::default().cgroups([CgroupId(1010)], []);
    rig.begin(2, SetOf::Open(KEY), of_cgroup);
    rig.begin(3, SetOf::Open(KEY), Filter::default());
    for pid in 100..103 {
        rig.captured(0, pid, 5);
    }
    rig.pass(5);
    rig.command(Command::EndCapture(CaptureId(1)));
    rig.captured(0, 100, 7);
    rig.pass(5);
    assert!(
        !rig.driven.sampler.rings_mut().sets().is_empty(),
        "two are left"
    );
    rig.command(Command::EndCapture(CaptureId(2)));
    rig.command(Command::EndCapture(CaptureId(3)));
    rig.pass(5);
    let got = |id| [100, 101, 102].map(|pid| rig.got.of(id, pid));
    assert_eq!((got(1), got(2), got(3)), ([5, 0, 0], [0, 5, 0], [12, 5, 5]));
    assert_eq!(rig.got.passed_over[&1], 10);
    assert_eq!(rig.got.passed_over[&2], 17);
    assert_eq!(rig.got.closed, [1, 2, 3]);
    rig.driven.end();
}

#[test]
fn a_capture_without_a_sample_closes_too_and_hands_over_while_it_runs() {
    let mut rig = Rig::new();
    rig.begin(1, set(Pace::Counted), Filter::default());
    for _ in 0..4 {
        rig.pass(600);
    }
    assert!(rig.got.batches[&1] >= 3);
    assert!(rig.got.closed.is_empty());
    rig.command(Command::EndCapture(CaptureId(1)));
    rig.pass(5);
    assert_eq!(rig.got.closed, [1]);
    assert_eq!(rig.got.all_of(1), 0);
    rig.driven.end();
}

#[test]
fn a_capture_of_a_set_that_is_gone_closes_at_once() {
    let mut rig = Rig::new();
    rig.begin(9, SetOf::Open(SetKey(77)), Filter::default());
    rig.pass(1);
    assert_eq!(rig.got.closed, [9]);
    rig.command(Command::EndCapture(CaptureId(9)));
    rig.command(Command::EndCapture(CaptureId(10)));
    assert_eq!(rig.got.closed, [9], "once");
    rig.driven.end();
}

#[test]
fn what_a_capture_has_no_room_for_is_lost_to_it_alone() {
    let mut rig = Rig::new();
    rig.begin(1, set(Pace::Counted), Filter::default());
    let written = rig.captured(0, 100, 100_000);
    assert!(written < 100_000, "the ring is full");
    let lost = synthetic::lost(rig.now.plus(Duration::from_millis(200)), 100_000 - written);
    assert_eq!(rig.main(0, 100, 1000), 1000);
    rig.pass(300);
    // The kernel tells when there is room again.
    let rings = rig.driven.sampler.rings_mut().set_mut(KEY).expect("open");
    let (_, ring) = rings.rings_mut().next().expect("there");
    assert!(ring.ring_mut().write(&lost));
    rig.pass(300);
    rig.captured(0, 100, 1);
    rig.pass(300);
    rig.command(Command::EndCapture(CaptureId(1)));
    rig.pass(5);
    rig.flush();
    assert_eq!(rig.got.all_of(0), 1000);
    assert_eq!(rig.got.lost[&0], 0);
    assert_eq!(rig.got.all_of(1), written + 1);
    assert_eq!(rig.got.lost[&1], 100_000 - written);
    assert_eq!(rig.got.quality[&1].lost, 100_000 - written);
    rig.driven.end();
}

/// A busy thread of this process.
fn while_busy<T>(body: impl FnOnce() -> T) -> T {
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
fn live() -> Option<(Driven, Arc<Shared>, Engine)> {
    let environment = Environment::read();
    let spec = EventSpec {
        kind: EventKind::CpuClock,
        rate_hz: 99,
        max_stack_depth: 127,
        watermark_bytes: 128 << 10,
        stack_bytes: 0,
    };
    let rings = match Rings::open(&environment.cpus_online, &spec, 256 << 10) {
        Ok(rings) => rings,
        Err(error) => {
            eprintln!("skip: perf events are not to be had here: {error}");
            return None;
        }
    };
    let processes = scan::all(|(pid, start, end), _| identity_of_mapping(pid, start, end));
    let start = Start {
        rings,
        unwinder: unwinder(32 << 20),
        period: 1_000_000_000 / 99,
        processes,
        idle: vec![(1, 2)],
        window: Duration::from_secs(3600),
        first_window_end: Mono::now().plus(Duration::from_secs(3600)),
    };
    let shared = Arc::new(Shared::new().expect("descriptors"));
    let (driven, _) = Driven::new(start, Arc::clone(&shared));
    let engine = Engine::new(Arc::clone(&shared), Machine::of(&environment));
    Some((driven, shared, engine))
}

fn wanted(id: u64, event: &str) -> Wanted {
    Wanted {
        id: CaptureId(id),
        event: Event::parse(event).expect("known"),
        every: None,
        kernel_filter: String::new(),
        stack_bytes: 0,
        max_stack_depth: 127,
        cgroup: None,
        filter: Filter::default(),
        keep_times: false,
    }
}

/// Passes until `done`, for a minute at most.
fn run(driven: &mut Driven, got: &mut Got, mut done: impl FnMut(&Got) -> bool) {
    let begin = Mono::now();
    while !done(got) {
        assert!(
            Mono::now().since(begin) < Duration::from_secs(60),
            "it never comes"
        );
        std::thread::sleep(Duration::from_millis(20));
        driven.sampler.pass(Mono::now()).expect("it goes on");
        while let Ok(mut batch) = driven.batches.try_recv() {
            got.add(&batch);
            batch.clear();
            driven.recycle.send(batch).expect("there is room");
        }
    }
}

#[test]
fn a_capture_at_997_hz_and_the_profile_at_99_hz_agree_needs_root() {
    let Some((mut driven, shared, engine)) = live() else {
        return;
    };
    let own = std::process::id();
    let mut got = Got::default();
    while_busy(|| {
        let started = engine.begin(Wanted {
            every: Some(Every::Rate(997)),
            stack_bytes: 16 << 10,
            filter: Filter::default().pids([Pid(own)]),
            ..wanted(1, "cpu-clock")
        });
        let started = started.expect("it begins");
        assert_eq!((started.every, started.shared), (Every::Rate(997), false));
        run(&mut driven, &mut got, |got| got.of(1, own) > 3000);
        assert!(engine.end(CaptureId(1)));
        run(&mut driven, &mut got, |got| got.closed == [1]);
        shared.flush();
        run(&mut driven, &mut got, |got| got.batches.contains_key(&0));
    });
    let ((ours, weight), (theirs, their_weight)) = (got.samples[&(1, own)], got.samples[&(0, own)]);
    eprintln!(
        "capture: {ours} samples, {} ms; profile: {theirs} samples, {} ms; lost {:?}",
        weight / 1_000_000,
        their_weight / 1_000_000,
        got.lost
    );
    // Of one clock each, over the same time: 300 samples are right to a few of a hundred.
    let ratio = weight as f64 / their_weight as f64;
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
    assert_eq!(got.quality[&0].lost, 0);
    driven.end();
}

#[test]
fn events_of_the_processor_are_refused_with_the_reason_where_there_are_none_needs_root() {
    let Some((driven, _, engine)) = live() else {
        return;
    };
    match engine.begin(wanted(1, "cycles")) {
        Ok(_) => eprintln!("skip: this machine counts cycles"),
        Err(error) => {
            assert_eq!(error.fault(), Fault::Machine, "{error}");
            let told = error.to_string();
            assert!(
                told.contains("`cycles`") && told.contains("use `cpu-clock`"),
                "{told}"
            );
        }
    }
    assert_eq!(engine.running(), 0);
    driven.end();
}
