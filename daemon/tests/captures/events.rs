//! Tests the events of captures on the running kernel: what each samples, and what is rejected.

use super::got::{Got, live, run, wanted, while_busy};
use capture::engine::{EngineError, EventCapture, Fault, Followed};
use cgroup::Hierarchy;
use host::ids::{CaptureId, Pid};
use perf::probe::Every;
use sampler::filter::Filter;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use testkit::process::wait_for;

#[test]
fn a_capture_at_997_hz_and_the_profile_at_99_hz_agree_needs_root() {
    let Some((mut driven, shared, engine)) = live() else {
        return;
    };
    let own = std::process::id();
    let mut got = Got::default();
    while_busy(|| {
        let started = engine.start(EventCapture {
            every: Every::Rate(997),
            stack_bytes: 16 << 10,
            filter: Filter::default().pids([Pid(own)]),
            ..wanted(1, "cpu-clock")
        });
        let started = started.expect("it starts");
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
    // Both are of one clock and the same time: 300 samples are right to a few per cent.
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
    match engine.start(wanted(1, "cycles")) {
        Ok(_) => testkit::cannot("this machine counts cycles"),
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

/// A program that is busy until it is dropped.
struct Busy(Child);

impl Busy {
    fn start() -> Busy {
        let mut shell = Command::new("/bin/sh");
        Busy(
            shell
                .args(["-c", "while :; do :; done"])
                .spawn()
                .expect("a shell"),
        )
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Directories of cgroups, the outermost first, which go when it is dropped and nobody is in them.
struct Cgroups(Vec<PathBuf>);

impl Cgroups {
    /// `None` where cgroup2 does not own `perf_event`, or cannot be written to.
    fn new() -> Option<Cgroups> {
        let hierarchy = Hierarchy::discover(Path::new("/proc"));
        let mount = hierarchy.mount.filter(|_| !hierarchy.v1)?;
        let outer = mount.join(format!("fleetprof-capture-{}", std::process::id()));
        let inner = outer.join("inner");
        std::fs::create_dir(&outer).ok()?;
        std::fs::create_dir(&inner).ok()?;
        Some(Cgroups(vec![outer, inner]))
    }

    fn put(&self, directory: &Path, pid: u32) {
        std::fs::write(directory.join("cgroup.procs"), pid.to_string()).expect("moved");
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for directory in self.0.iter().rev() {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

#[test]
fn the_kernel_itself_leaves_out_what_is_not_below_the_cgroup_needs_root() {
    let (Some((mut driven, _, engine)), Some(cgroups)) = (live(), Cgroups::new()) else {
        return testkit::skip("no cgroup2 to write to");
    };
    let (within, below, outside) = (Busy::start(), Busy::start(), Busy::start());
    let (outer, inner) = (&cgroups.0[0], &cgroups.0[1]);
    cgroups.put(outer, within.pid());
    cgroups.put(inner, below.pid());
    let started = engine.start(EventCapture {
        every: Every::Rate(499),
        cgroup: Some(outer.clone()),
        ..wanted(1, "cpu-clock")
    });
    started.expect("it starts");
    let mut got = Got::default();
    let busy = [within.pid(), below.pid()];
    run(&mut driven, &mut got, |got| {
        busy.iter().all(|&pid| got.of(1, pid) > 100)
    });
    // A child made meanwhile is below it too.
    let later = inner.join("later");
    std::fs::create_dir(&later).expect("made");
    cgroups.put(&later, below.pid());
    let before = got.of(1, below.pid());
    run(&mut driven, &mut got, |got| {
        got.of(1, below.pid()) > before + 300
    });
    engine.end(CaptureId(1));
    run(&mut driven, &mut got, |got| got.closed == [1]);
    assert_eq!(got.of(1, outside.pid()), 0);
    let whose: Vec<u32> = got
        .samples
        .keys()
        .filter(|it| it.0 == 1)
        .map(|it| it.1)
        .collect();
    assert!(
        whose.iter().all(|pid| busy.contains(pid)),
        "{whose:?}, not {busy:?}"
    );
    assert_eq!(got.quality[&1].idle, 0);
    drop((within, below));
    while std::fs::remove_dir(&later).is_err() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    driven.end();
}

/// Removes a cgroup as soon as the kernel finds it empty.
fn remove(directory: &Path) {
    let limit = std::time::Duration::from_secs(60);
    let removed = wait_for(limit, || std::fs::remove_dir(directory).ok());
    assert!(removed.is_some(), "`{}` is not empty", directory.display());
}

#[test]
fn a_cgroup_that_is_made_again_is_followed_needs_root() {
    let (Some((mut driven, _, engine)), Some(cgroups)) = (live(), Cgroups::new()) else {
        return testkit::skip("no cgroup2 to write to");
    };
    let inner = cgroups.0[1].clone();
    let first = Busy::start();
    cgroups.put(&inner, first.pid());
    let id = CaptureId(1);
    let started = engine.start(EventCapture {
        every: Every::Rate(499),
        cgroup: Some(inner.clone()),
        ..wanted(1, "cpu-clock")
    });
    started.expect("it starts");
    let mut got = Got::default();
    run(&mut driven, &mut got, |got| got.of(1, first.pid()) > 20);
    assert_eq!(engine.follow(id).expect("there"), Followed::Same);
    let gone = first.pid();
    drop(first);
    remove(&inner);
    assert_eq!(engine.follow(id).expect("nothing to do"), Followed::Gone);
    std::fs::create_dir(&inner).expect("created again");
    let second = Busy::start();
    cgroups.put(&inner, second.pid());
    match engine.follow(id).expect("followed") {
        Followed::Again { unseen, .. } => assert!(unseen.is_some(), "the kernel keeps an account"),
        other => panic!("not followed but {other:?}"),
    }
    assert_eq!(engine.follow(id).expect("there"), Followed::Same);
    run(&mut driven, &mut got, |got| got.of(1, second.pid()) > 20);
    assert_eq!(engine.running(), 1);
    engine.end(id);
    run(&mut driven, &mut got, |got| got.closed == [1]);
    assert!(got.of(1, gone) > 20, "what there was is kept");
    assert_eq!(engine.follow(id).expect("over"), Followed::Unbound);
    assert_eq!(engine.ring_bytes(), 0);
    // A program that is gone when a capture starts is reported as such.
    drop(second);
    remove(&inner);
    let refused = engine.start(EventCapture {
        cgroup: Some(inner.clone()),
        ..wanted(2, "cpu-clock")
    });
    assert_eq!(refused.expect_err("gone").fault(), Fault::Gone);
    driven.end();
}

#[test]
fn a_period_of_page_faults_is_kept_and_an_event_that_comes_too_often_slows_down_needs_root() {
    const FAULTS: u64 = 20_000;
    let Some((mut driven, _, engine)) = live() else {
        return;
    };
    let own = std::process::id();
    let start = |id: u64, period| {
        let started = engine.start(EventCapture {
            every: Every::Period(period),
            filter: Filter::default().pids([Pid(own)]),
            ..wanted(id, "page-faults")
        });
        started.expect("it starts")
    };
    let mut got = Got::default();
    start(1, 100);
    run(&mut driven, &mut got, |got| got.batches.contains_key(&1));
    touch(FAULTS);
    engine.end(CaptureId(1));
    run(&mut driven, &mut got, |got| got.closed == [1]);
    let (samples, weight) = got.samples[&(1, own)];
    eprintln!("{FAULTS} faults and more: {samples} samples of {weight} in all");
    assert_eq!(weight, samples * 100);
    // Others' faults are counted too, and any of them may be the hundredth.
    assert!((FAULTS / 200..FAULTS / 10).contains(&samples), "{samples}");
    // Samples each one, until a lower rate is set.
    start(2, 1);
    run(&mut driven, &mut got, |got| got.batches.contains_key(&2));
    let slowed = engine.slow_down(CaptureId(2), 50).expect("slower");
    assert_eq!(slowed.map(|started| started.every), Some(Every::Period(50)));
    let slowed = engine.slow_down(CaptureId(2), 2).expect("slower");
    assert_eq!(slowed.map(|started| started.period), Some(100));
    let before = got.of(2, own);
    let batches = got.batches[&2];
    run(&mut driven, &mut got, |got| got.batches[&2] > batches + 1);
    touch(10 * FAULTS);
    run(&mut driven, &mut got, |got| got.of(2, own) > before);
    assert!(engine.seen(CaptureId(2)) > 0);
    engine.end(CaptureId(2));
    run(&mut driven, &mut got, |got| {
        got.closed == [2] || got.closed == [1, 2]
    });
    let fewer = got.of(2, own) - before;
    eprintln!("{} faults, one in 100: {fewer} samples", 10 * FAULTS);
    assert!(fewer < 2 * FAULTS, "{fewer}");
    driven.end();
}

/// Touches so many pages of new memory.
fn touch(pages: u64) {
    const PAGE: usize = 4096;
    // Too few for the kernel to map a large page.
    const AT_ONCE: usize = 250;
    for _ in 0..pages as usize / AT_ONCE {
        let mut memory = memmap2::MmapMut::map_anon(AT_ONCE * PAGE).expect("memory");
        for page in memory.chunks_mut(PAGE) {
            page[0] = 1;
        }
    }
}

#[test]
fn a_tracepoint_has_what_its_filter_lets_through_needs_root() {
    let Some((mut driven, _, engine)) = live() else {
        return;
    };
    let event = "tracepoint:sched:sched_switch";
    let refused = engine.start(EventCapture {
        kernel_filter: "prev_state ! 0".into(),
        ..wanted(1, event)
    });
    let error = match refused {
        Err(EngineError::Event(error)) => {
            return testkit::skip(format_args!("no tracepoints: {error}"));
        }
        Err(error) => error,
        Ok(_) => panic!("the filter is none"),
    };
    assert_eq!(error.fault(), Fault::Request);
    let told = error.to_string();
    assert!(
        told.contains("refuses `prev_state ! 0`") && told.contains("`next_pid`"),
        "{told}"
    );
    let unknown = engine.start(EventCapture {
        kernel_filter: "no_such_field == 1".into(),
        ..wanted(1, event)
    });
    assert_eq!(unknown.expect_err("refused").fault(), Fault::Request);

    let sleeper = std::thread::Builder::new().name("fp-sleeper".into());
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = std::sync::Arc::clone(&stop);
    let sleeper = sleeper.spawn(move || {
        while !stopped.load(std::sync::atomic::Ordering::Relaxed) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let started = engine.start(EventCapture {
        kernel_filter: "prev_comm == \"fp-sleeper\" && prev_state != 0".into(),
        ..wanted(1, event)
    });
    let started = started.expect("it starts");
    assert_eq!((started.every, started.period), (Every::Period(1), 1));
    let mut got = Got::default();
    let own = std::process::id();
    run(&mut driven, &mut got, |got| got.of(1, own) > 200);
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    sleeper.expect("a thread").join().expect("it ends");
    engine.end(CaptureId(1));
    run(&mut driven, &mut got, |got| got.closed == [1]);
    assert_eq!(got.of(1, own), got.all_of(1), "nobody else is called so");
    let (samples, weight) = got.samples[&(1, own)];
    assert_eq!(samples, weight, "each switch is one");
    driven.end();
}

/// Path of the C library of this process.
fn libc_path() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("readable");
    let paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    let mut libc = paths.filter(|path| path.contains("/libc.so.6") || path.contains("/libc-2."));
    libc.next().expect("a C library").to_owned()
}

#[test]
fn a_uprobe_counts_the_calls_of_a_function_needs_root() {
    const CALLS: u64 = 500;
    let Some((mut driven, _, engine)) = live() else {
        return;
    };
    let own = std::process::id();
    let started = engine.start(EventCapture {
        filter: Filter::default().pids([Pid(own)]),
        ..wanted(1, &format!("uprobe:{}:getppid", libc_path()))
    });
    if let Err(error) = started {
        return testkit::skip(format_args!("no uprobes: {error}"));
    }
    let mut got = Got::default();
    // The sampler takes over rings that run already.
    run(&mut driven, &mut got, |got| got.batches.contains_key(&1));
    for _ in 0..CALLS {
        std::hint::black_box(std::os::unix::process::parent_id());
    }
    run(&mut driven, &mut got, |got| got.of(1, own) >= CALLS);
    engine.end(CaptureId(1));
    run(&mut driven, &mut got, |got| got.closed == [1]);
    assert_eq!(got.samples[&(1, own)], (CALLS, CALLS));
    driven.end();
}

#[test]
fn page_faults_are_where_memory_is_touched_first_needs_root() {
    let Some((mut driven, _, engine)) = live() else {
        return;
    };
    let own = std::process::id();
    let started = engine.start(EventCapture {
        every: Every::Period(1),
        filter: Filter::default().pids([Pid(own)]),
        ..wanted(1, "page-faults")
    });
    started.expect("it starts");
    let mut got = Got::default();
    run(&mut driven, &mut got, |got| {
        let fresh = vec![1u8; 8 << 20];
        std::hint::black_box(&fresh);
        got.of(1, own) > 100
    });
    engine.end(CaptureId(1));
    run(&mut driven, &mut got, |got| got.closed == [1]);
    driven.end();
}

#[test]
fn captures_that_want_the_same_share_their_rings_needs_root() {
    let Some((mut driven, _, engine)) = live() else {
        return;
    };
    let start = |id| engine.start(wanted(id, "cpu-clock")).expect("it starts");
    let (first, second) = (start(1), start(2));
    assert_eq!((first.shared, second.shared), (false, true));
    assert_eq!(engine.ring_bytes(), first.ring_bytes as u64);
    let again = engine.start(wanted(2, "cpu-clock")).expect_err("it runs");
    assert!(matches!(again, EngineError::Running(2)));
    assert!(engine.end(CaptureId(1)));
    let mut got = Got::default();
    run(&mut driven, &mut got, |got| got.closed == [1]);
    let ticks = |got: &Got| {
        let quality = got.quality.get(&2);
        quality.map_or(0, |quality| quality.idle + quality.taken)
    };
    let before = ticks(&got);
    run(&mut driven, &mut got, |got| ticks(got) > before + 100);
    assert!(engine.end(CaptureId(2)));
    assert!(!engine.end(CaptureId(2)), "it has ended");
    run(&mut driven, &mut got, |got| got.closed == [1, 2]);
    assert_eq!((engine.running(), engine.ring_bytes()), (0, 0));
    assert!(driven.sampler.rings_mut().sets().is_empty());
    driven.end();
}

#[test]
fn rates_and_periods_that_cannot_be_are_refused_needs_root() {
    let Some((driven, _, engine)) = live() else {
        return;
    };
    for (event, every) in [
        ("cpu-clock", Every::Rate(0)),
        ("cpu-clock", Every::Rate(10_000)),
        ("cpu-clock", Every::Period(99_999)),
        ("page-faults", Every::Period(0)),
        ("page-faults", Every::Period(u64::MAX)),
    ] {
        let refused = engine.start(EventCapture {
            every,
            ..wanted(1, event)
        });
        assert_eq!(
            refused.expect_err("refused").fault(),
            Fault::Request,
            "{every:?}"
        );
    }
    let filtered = engine.start(EventCapture {
        kernel_filter: "x == 1".into(),
        ..wanted(1, "cpu-clock")
    });
    assert!(matches!(filtered, Err(EngineError::NoFilter { .. })));
    let cgroup = engine.start(EventCapture {
        cgroup: Some("/nowhere".into()),
        ..wanted(1, "cpu-clock")
    });
    assert!(matches!(cgroup, Err(EngineError::Cgroup { .. })));
    driven.end();
}

#[test]
fn at_9999_hz_weights_and_losses_add_up_to_the_time_needs_root() {
    let Some((mut driven, _, engine)) = live() else {
        return;
    };
    let own = std::process::id();
    let mut got = Got::default();
    let started = while_busy(|| {
        let started = engine.start(EventCapture {
            every: Every::Rate(9_999),
            stack_bytes: 8 << 10,
            ..wanted(1, "cpu-clock")
        });
        run(&mut driven, &mut got, |got| got.of(1, own) > 5_000);
        engine.end(CaptureId(1));
        run(&mut driven, &mut got, |got| got.closed == [1]);
        started.expect("it starts")
    });
    let rate = match started.every {
        Every::Rate(rate) => u64::from(rate),
        Every::Period(_) => panic!("asked for a rate"),
    };
    assert_eq!(started.period, 1_000_000_000 / rate);
    let (samples, weight) = got.samples[&(1, own)];
    assert_eq!(weight / samples, started.period);
    let quality = got.quality[&1];
    let ticks = (quality.taken + quality.idle + got.lost[&1]) * started.period;
    let time = got.covered[&1] * started.cpus as u64;
    eprintln!(
        "{rate} Hz: {} taken, {} idle, {} lost, {} throttled, {:?}; {} of {} ms",
        quality.taken,
        quality.idle,
        got.lost[&1],
        quality.throttled,
        started.notices,
        ticks / 1_000_000,
        time / 1_000_000
    );
    // A hypervisor that takes a CPU away takes its ticks along.
    assert!(ticks < time + time / 20, "{ticks} of {time}");
    assert!(ticks > time / 2, "{ticks} of {time}");
    driven.end();
}
