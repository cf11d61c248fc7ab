//! Tests captures next to the continuous profile, through the complete sampler: what each gets, and
//! that neither takes a sample from the other.

mod events;
mod got;
mod off_cpu;
#[path = "../support/mod.rs"]
mod support;

use got::Got;
use host::ids::{CaptureId, CgroupId, CpuId, Pid, Tid};
use host::time::MonotonicTime;
use perf::cpu_ring::CpuRing;
use perf::event::Features;
use perf::loss::SampleSpacing;
use perf::record::{Callchain, CpuMode, Sample};
use perf::ring::Ring;
use perf::rings::sets::{RingSet, SetKey};
use perf::rings::{HORIZON, Rings};
use perf::synthetic;
use sampler::filter::Filter;
use sampler::{
    CaptureStart, CaptureSwitch, Command, RingSetSwitch, SamplerHandle, SamplerStart, SetOf,
};
use std::sync::Arc;
use std::time::Duration;
use support::{Driven, unwinder};

const RING_BYTES: usize = 1 << 20;
const PERIOD: u64 = 1_000_000;
/// Copies of stacks, which samples in kernel code have not.
const COPY_BYTES: usize = 16;
const KEY: SetKey = SetKey(1);

/// The sampler on rings in memory, with a time that the test sets.
struct Rig {
    driven: Driven,
    shared: Arc<SamplerHandle>,
    got: Got,
    now: MonotonicTime,
}

impl Rig {
    fn new() -> Rig {
        let rings = rings(2, SampleSpacing::Fixed(PERIOD)).collect();
        // Ahead of the clock, which the sampler looks at too.
        let now = MonotonicTime::now().plus(Duration::from_secs(1000));
        let start = SamplerStart {
            rings: Rings::over(rings, Features::default(), COPY_BYTES as u32).expect("some"),
            unwinder: unwinder(1 << 20),
            period: PERIOD,
            processes: Vec::new(),
            idle: vec![(1, 2)],
            window: Duration::from_secs(10),
            first_window_end: now.plus(Duration::from_secs(10)),
        };
        let shared = Arc::new(SamplerHandle::new().expect("descriptors"));
        let (driven, _) = Driven::new(start, Arc::clone(&shared));
        Rig {
            driven,
            shared,
            got: Got::default(),
            now,
        }
    }

    /// A new set, and a capture of it.
    fn start(&mut self, id: u64, set: SetOf, filter: Filter) {
        let mut capture = CaptureStart::new(CaptureId(id), set, filter);
        capture.keep_times = true;
        capture.period = PERIOD;
        self.command(Command::BeginCapture(Box::new(capture)));
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
        self.captured_by(KEY, cpu, pid, count)
    }

    fn captured_by(&mut self, key: SetKey, cpu: usize, pid: u32, count: u64) -> u64 {
        let from = self.now;
        let rings = self.driven.sampler.rings_mut();
        let set = rings.set_mut(key).expect("it is open");
        let (_, ring) = set.rings_mut().nth(cpu).expect("there");
        write(ring, from, pid, count)
    }

    fn flush(&mut self) {
        self.shared.flush();
        self.pass(1);
    }
}

fn rings(cpus: u32, pace: SampleSpacing) -> impl Iterator<Item = CpuRing> {
    let ring = move |cpu| {
        let ring = Ring::in_memory(RING_BYTES).expect("maps");
        CpuRing::over(CpuId(cpu), ring, pace)
    };
    (0..cpus).map(ring)
}

fn set(pace: SampleSpacing) -> SetOf {
    set_of(KEY, pace)
}

fn set_of(key: SetKey, pace: SampleSpacing) -> SetOf {
    let layouts = vec![Features::default().layout(COPY_BYTES as u32)];
    let rings = rings(2, pace).map(|ring| (0, ring));
    SetOf::New(Box::new(
        RingSet::over(key, rings, layouts, true).expect("some"),
    ))
}

fn write(ring: &mut CpuRing, from: MonotonicTime, pid: u32, count: u64) -> u64 {
    let sample = |number: u64| Sample {
        mode: CpuMode::Kernel,
        ip: 7,
        pid: Pid(pid),
        tid: Tid(pid),
        time: MonotonicTime(from.0 + 1 + number),
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
    rig.start(5, set(SampleSpacing::Fixed(PERIOD)), Filter::default());
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
    assert_eq!(rig.got.timestamps.len(), 140);
    let times: Vec<u64> = rig.got.timestamps.iter().map(|it| it.1).collect();
    assert!(times.is_sorted(), "rings are drained in order of time");
    assert!(rig.driven.sampler.rings_mut().sets().is_empty(), "closed");
    rig.driven.end();
}

#[test]
fn captures_of_one_set_take_what_each_filter_lets_through() {
    let mut rig = Rig::new();
    rig.start(
        1,
        set(SampleSpacing::Counted),
        Filter::default().pids([Pid(100)]),
    );
    let of_cgroup = Filter::default().cgroups([CgroupId(1010)], []);
    rig.start(2, SetOf::Open(KEY), of_cgroup);
    rig.start(3, SetOf::Open(KEY), Filter::default());
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
fn a_cgroup_made_while_a_capture_was_being_opened_belongs_to_it() {
    let mut rig = Rig::new();
    let (time, rings) = (MonotonicTime(rig.now.0 + 1), rig.driven.sampler.rings_mut());
    for (id, path) in [(1000, *b"/a/new\0\0"), (1010, *b"/b/new\0\0")] {
        let made = synthetic::cgroup(time, id, path);
        assert!(rings.rings_mut()[0].ring_mut().write(&made));
    }
    // Its record is drained before the capture starts, with a list that is older.
    rig.pass(500);
    let below = Filter::default().cgroups([CgroupId(1020)], [&b"/a"[..]]);
    rig.start(1, set(SampleSpacing::Counted), below);
    for pid in 100..103 {
        rig.captured(0, pid, 5);
    }
    rig.pass(5);
    rig.command(Command::EndCapture(CaptureId(1)));
    rig.pass(5);
    let got = [100, 101, 102].map(|pid| rig.got.of(1, pid));
    assert_eq!(got, [5, 0, 5]);
    rig.driven.end();
}

#[test]
fn a_capture_without_a_sample_closes_too_and_hands_over_while_it_runs() {
    let mut rig = Rig::new();
    rig.start(1, set(SampleSpacing::Counted), Filter::default());
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
    rig.start(9, SetOf::Open(SetKey(77)), Filter::default());
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
    rig.start(1, set(SampleSpacing::Counted), Filter::default());
    let written = rig.captured(0, 100, 100_000);
    assert!(written < 100_000, "the ring is full");
    let lost = synthetic::lost(rig.now.plus(Duration::from_millis(200)), 100_000 - written);
    assert_eq!(rig.main(0, 100, 1000), 1000);
    rig.pass(300);
    // The kernel reports losses when there is room again.
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

/// Has capture 1 go on with another set, while both bring samples.
fn followed(seam: RingSetSwitch) -> Rig {
    const NEXT: SetKey = SetKey(2);
    let mut rig = Rig::new();
    rig.start(1, set(SampleSpacing::Counted), Filter::default());
    let SetOf::New(mut next) = set_of(NEXT, SampleSpacing::Counted) else {
        panic!("a new one");
    };
    // Both sets have samples from before the change and from after it.
    rig.captured(0, 100, 5);
    let (_, ring) = next.rings_mut().next().expect("there");
    assert_eq!(write(ring, rig.now, 101, 4), 4);
    let follow = CaptureSwitch {
        id: CaptureId(1),
        set: SetOf::New(next),
        period: 0,
        seam,
    };
    rig.shared.command(Command::FollowCapture(Box::new(follow)));
    rig.pass(1);
    if seam == RingSetSwitch::Cut {
        // Otherwise the first has come to its end.
        rig.captured(0, 102, 7);
    }
    rig.captured_by(NEXT, 0, 103, 9);
    rig.pass(10);
    rig
}

#[test]
fn a_capture_goes_on_with_another_set_at_one_instant() {
    let mut rig = followed(RingSetSwitch::Cut);
    let got = |rig: &Rig| [100, 101, 102, 103].map(|pid| rig.got.of(1, pid));
    assert_eq!(got(&rig)[0], 5);
    assert_eq!(
        rig.driven.sampler.rings_mut().sets().len(),
        1,
        "the first is closed"
    );
    rig.captured_by(SetKey(2), 1, 104, 3);
    rig.command(Command::EndCapture(CaptureId(1)));
    rig.pass(5);
    assert_eq!(got(&rig), [5, 0, 0, 9], "what is younger is the second's");
    assert_eq!(rig.got.of(1, 104), 3);
    assert_eq!(rig.got.closed, [1]);
    assert!(rig.driven.sampler.rings_mut().sets().is_empty());
    rig.driven.end();
}

#[test]
fn sets_that_sample_different_things_are_each_taken_whole() {
    let mut rig = followed(RingSetSwitch::Apart);
    rig.captured_by(SetKey(2), 1, 104, 3);
    rig.command(Command::EndCapture(CaptureId(1)));
    rig.pass(5);
    let got = [100, 101, 103, 104].map(|pid| rig.got.of(1, pid));
    assert_eq!(got, [5, 4, 9, 3], "nothing lost, nothing twice");
    assert_eq!(rig.got.quality[&1].taken, 21);
    assert_eq!(rig.got.closed, [1]);
    assert!(rig.driven.sampler.rings_mut().sets().is_empty());
    rig.driven.end();
}

#[test]
fn for_how_long_each_set_was_counted_adds_up() {
    let counted = |key, enabled, running| {
        let SetOf::New(mut set) = set_of(key, SampleSpacing::Counted) else {
            panic!("a new one");
        };
        for (_, ring) in set.rings_mut() {
            ring.tell_times(enabled, running);
        }
        SetOf::New(set)
    };
    for ended in [true, false] {
        let mut rig = Rig::new();
        rig.start(1, counted(KEY, 100, 40), Filter::default());
        let follow = CaptureSwitch {
            id: CaptureId(1),
            set: counted(SetKey(2), 1000, 300),
            period: 0,
            seam: RingSetSwitch::Cut,
        };
        rig.command(Command::FollowCapture(Box::new(follow)));
        rig.pass(10);
        if ended {
            rig.command(Command::EndCapture(CaptureId(1)));
            rig.pass(5);
        }
        let (mut enabled, mut running) = rig.got.counted[&1];
        // Also where it is the sampler that ends.
        rig.shared.stop();
        rig.driven.sampler.run().expect("it ends");
        for batch in rig.driven.batches.try_iter() {
            enabled += batch.counted_ns.0;
            running += batch.counted_ns.1;
        }
        assert_eq!(
            (enabled, running),
            (2200, 680),
            "of two rings each; ended: {ended}"
        );
    }
}

#[test]
fn a_capture_that_cannot_go_on_ends_with_what_it_has() {
    let mut rig = Rig::new();
    rig.start(1, set(SampleSpacing::Counted), Filter::default());
    rig.captured(0, 100, 5);
    rig.pass(5);
    let follow = CaptureSwitch {
        id: CaptureId(1),
        set: SetOf::Open(SetKey(77)),
        period: 0,
        seam: RingSetSwitch::Apart,
    };
    rig.command(Command::FollowCapture(Box::new(follow)));
    rig.pass(5);
    assert_eq!((rig.got.of(1, 100), &rig.got.closed[..]), (5, &[1][..]));
    rig.driven.end();
}

#[test]
fn a_set_for_a_capture_that_has_ended_is_closed() {
    let mut rig = Rig::new();
    let follow = CaptureSwitch {
        id: CaptureId(9),
        set: set(SampleSpacing::Counted),
        period: 0,
        seam: RingSetSwitch::Apart,
    };
    rig.command(Command::FollowCapture(Box::new(follow)));
    rig.pass(5);
    assert!(rig.driven.sampler.rings_mut().sets().is_empty());
    rig.driven.end();
}
