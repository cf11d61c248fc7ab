//! The way to the collector: every window reaches it once and whole, whatever happens to collector,
//! daemon and disk, and sampling does not notice.

use proto::agent::{Export, StreamProfilesRequest};
use rustix::process::Signal;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use testkit::fake::ingest::{Behaviour, IngestCollector};
use testkit::fake::memory::Memory;
use testkit::process::wait_for;
use testkit::{Daemon, Need, beside, live};

/// Longest wait for windows to arrive: a back-off and a backlog.
const ARRIVE: Duration = Duration::from_secs(90);
/// The grace that daemons are given here, and what a loaded machine adds.
const GRACE: Duration = Duration::from_secs(75);

/// Daemons that are started to send what the one before could not.
const ENDS_MAX: usize = 5;

/// Two threads that keep CPUs busy until dropped.
struct Load(Arc<AtomicBool>);

impl Load {
    fn start() -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let stop = Arc::clone(&stop);
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box((0..10_000u64).fold(0, |a, b| a ^ b));
                }
            });
        }
        Load(stop)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A daemon with windows of a second that pushes to `collector` and spools in `dir`.
fn daemon(collector: &IngestCollector, dir: &Path) -> testkit::daemon::Options {
    Daemon::with()
        .set("windows.length_s=1")
        .set("shutdown.grace_s=60")
        .set(&format!("collector.address={}", collector.address()))
        .set(&format!("collector.spool.dir={}", dir.display()))
        .set("collector.host_id=under-test")
}

/// Waits until `windows` closed in this run.
fn closed(daemon: &Daemon, windows: u64) -> Export {
    let reached = wait_for(ARRIVE, || {
        let export = daemon.export();
        (export.taken_windows >= windows).then_some(export)
    });
    reached.unwrap_or_else(|| panic!("no windows close: {}", daemon.log()))
}

/// Waits until the collector has so many samples of windows that have started by now, and checks
/// that it has no more and that the agent kept to the protocol. Where a daemon's grace was over
/// before its last window was through, the next one sends it; windows of its own do not count.
fn arrives(collector: &IngestCollector, dir: &Path, samples: u64) {
    let now = testkit::clock::boot_ns();
    let taken = || -> u64 {
        let memory = collector.memory();
        let mine = memory.windows.iter().filter(|(key, _)| key.2 < now);
        mine.map(|(_, window)| window.taken).sum()
    };
    for _ in 0..ENDS_MAX {
        if taken() >= samples {
            break;
        }
        let next = daemon(collector, dir).start();
        let drained = wait_for(ARRIVE, || {
            (next.export().waiting_windows == 0).then_some(())
        });
        assert!(drained.is_some(), "{:?}", next.export());
        next.stop_and_count(GRACE);
    }
    assert_eq!(taken(), samples);
    check(&collector.memory());
}

/// Waits until everything that was taken is acknowledged, and checks that the collector has it.
fn settles(collector: &IngestCollector, daemon: &Daemon) -> Export {
    let settled = wait_for(ARRIVE, || {
        let export = daemon.export();
        (export.acked_windows == export.taken_windows).then_some(export)
    });
    let settled = settled.unwrap_or_else(|| panic!("{:?}", daemon.export()));
    let memory = collector.memory();
    check(&memory);
    assert!(memory.taken() >= settled.taken_samples);
    settled
}

fn check(memory: &Memory) {
    assert_eq!(memory.violations, Vec::<String>::new());
    for (key, window) in &memory.windows {
        assert_eq!(window.taken, window.quality_taken, "window {key:?}");
    }
}

#[test]
fn every_window_arrives_once_whatever_is_asked_meanwhile_needs_root() {
    let Some(_live) = live(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let collector = IngestCollector::start();
    let dir = spool.path().join("spool");
    let daemon = daemon(&collector, &dir)
        .set("recorder.budget_mib=4")
        .start()
        .sampling();
    let _load = Load::start();
    // Somebody who watches live makes parts of windows.
    let watcher = daemon.client();
    let watching = std::thread::spawn(move || {
        let request = StreamProfilesRequest {
            interval_ms: 500,
            ..StreamProfilesRequest::default()
        };
        watcher.stream(request, 6)
    });
    let export = closed(&daemon, 6);
    // How far it came is not this test's matter.
    let _ = watching.join();
    assert_eq!(export.host_id, "under-test");
    assert!(export.connected_since_unix_ns > 0, "{export:?}");
    assert_eq!(export.spool_error, "");
    assert_eq!(export.collector_version, "fake");
    settles(&collector, &daemon);
    let samples = daemon.stop_and_count(GRACE);
    assert!(collector.memory().needs > 0, "it asked for stacks");
    assert_eq!(collector.memory().repeats, 0);
    arrives(&collector, &dir, samples);
    let memory = collector.memory();
    let names: Vec<_> = memory
        .windows
        .values()
        .flat_map(|w| &w.label_names)
        .collect();
    assert!(names.iter().any(|name| *name == "comm"));
    assert!(!names.iter().any(|name| *name == "pid" || *name == "thread"));
    // Windows of a run meet: no time is missing between them.
    let mut ends = memory.windows.values().map(|window| {
        let end = window.start_unix_ns + window.duration_ns as i64;
        (window.start_unix_ns, end)
    });
    let mut last = ends.next().unwrap().1;
    for (start, end) in ends.take(5) {
        assert!((start - last).abs() < 2_000_000, "{start} after {last}");
        last = end;
    }
}

#[test]
#[ignore = "takes long: make test-slow"]
fn callers_that_a_collector_forgot_come_again_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let collector = IngestCollector::with(Behaviour {
        forgets: true,
        ..Behaviour::default()
    });
    let daemon = daemon(&collector, &dir).start().sampling();
    let _load = Load::start();
    closed(&daemon, 4);
    settles(&collector, &daemon);
    let samples = daemon.stop_and_count(GRACE);
    {
        let memory = collector.memory();
        assert!(memory.known > 0, "callers were taken for known");
        assert!(memory.needs_all > 0, "and were not");
    }
    arrives(&collector, &dir, samples);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_collector_that_comes_and_goes_gets_everything_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let mut collector = IngestCollector::start();
    let daemon = daemon(&collector, &dir).start().sampling();
    let _load = Load::start();
    closed(&daemon, 2);
    collector.kill();
    let export = closed(&daemon, 6);
    assert!(export.waiting_windows >= 2, "{export:?}");
    assert!(export.away_since_unix_ns > 0 && !export.last_error.is_empty());
    collector.restart();
    let caught_up = wait_for(ARRIVE, || {
        let export = daemon.export();
        (export.waiting_windows <= 1).then_some(())
    });
    assert!(caught_up.is_some(), "{:?}", daemon.export());
    collector.behave(|behaviour| behaviour.ends_after = Some(2));
    closed(&daemon, 10);
    collector.behave(|behaviour| behaviour.ends_after = None);
    let samples = daemon.stop_and_count(GRACE);
    arrives(&collector, &dir, samples);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_daemon_that_ends_without_a_collector_leaves_its_windows_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let mut collector = IngestCollector::start();
    collector.kill();
    let _load = Load::start();
    let mut samples = 0;
    for _ in 0..2 {
        let daemon = daemon(&collector, &dir).start().sampling();
        closed(&daemon, 3);
        samples += daemon.stop_and_count(GRACE);
    }
    assert_eq!(collector.memory().taken(), 0);
    collector.restart();
    let daemon = daemon(&collector, &dir).start().sampling();
    closed(&daemon, 2);
    samples += daemon.stop_and_count(GRACE);
    arrives(&collector, &dir, samples);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_killed_daemon_loses_no_window_that_was_on_disk_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let mut collector = IngestCollector::start();
    let _load = Load::start();
    // Acknowledged in any round, and on disk when the last one ended. What waits for the disk dies
    // with the daemon.
    let (mut acked, mut waiting, mut samples) = (0, 0, 0);
    for round in 0..3 {
        if round == 1 {
            collector.kill();
        }
        let mut daemon = daemon(&collector, &dir).start().sampling();
        closed(&daemon, 3);
        // All that closed are on disk or acknowledged.
        let spooled = wait_for(ARRIVE, || {
            let export = daemon.export();
            let kept = export.waiting_windows + export.acked_windows;
            (kept >= export.taken_windows).then_some(export)
        });
        let spooled = spooled.expect("windows are spooled");
        daemon.signal(Signal::KILL);
        daemon.wait(GRACE).expect("it is gone");
        acked += spooled.acked_windows;
        waiting = spooled.waiting_windows;
        samples += spooled.taken_samples;
        if round == 1 {
            collector.restart();
        }
    }
    let daemon = daemon(&collector, &dir).start().sampling();
    let drained = wait_for(ARRIVE, || {
        (daemon.export().waiting_windows == 0).then_some(())
    });
    assert!(drained.is_some());
    let last = daemon.stop_and_count(GRACE);
    let memory = collector.memory();
    check(&memory);
    // An acknowledgement that a daemon did not live to note is given again.
    let arrived = memory.windows.len() as u64 + memory.repeats;
    assert!(arrived >= acked + waiting, "{acked} + {waiting}");
    // Each killed daemon may have closed one window more between the question and its end.
    let most = memory.windows.values().map(|window| window.taken).max();
    assert!(memory.taken() <= samples + last + 3 * most.unwrap());
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_collector_that_misbehaves_costs_nothing_but_time_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let behaviour = Behaviour {
        asks_nonsense: true,
        message_bytes_max: 64 << 10,
        windows_in_flight: 1,
        ..Behaviour::default()
    };
    let collector = IngestCollector::with(behaviour);
    let daemon = daemon(&collector, &dir).start().sampling();
    let _load = Load::start();
    let export = closed(&daemon, 3);
    assert!(export.last_error.contains("never sent"), "{export:?}");
    collector.behave(|behaviour| {
        behaviour.asks_nonsense = false;
        behaviour.unavailable = true;
    });
    let told = wait_for(ARRIVE, || {
        let export = daemon.export();
        export.last_error.contains("unavailable").then_some(())
    });
    assert!(told.is_some(), "{:?}", daemon.export());
    collector.behave(|behaviour| {
        behaviour.unavailable = false;
        behaviour.message_bytes_max = 1000;
    });
    let told = wait_for(ARRIVE, || {
        let export = daemon.export();
        export.last_error.contains("1000 bytes").then_some(())
    });
    assert!(told.is_some(), "{:?}", daemon.export());
    collector.behave(|behaviour| behaviour.message_bytes_max = 64 << 10);
    let drained = wait_for(ARRIVE, || {
        (daemon.export().waiting_windows <= 1).then_some(())
    });
    assert!(drained.is_some(), "{:?}", daemon.export());
    let samples = daemon.stop_and_count(GRACE);
    arrives(&collector, &dir, samples);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_collector_that_never_answers_is_left_and_gets_the_windows_again_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let collector = IngestCollector::with(Behaviour {
        silent: true,
        ..Behaviour::default()
    });
    let daemon = daemon(&collector, &dir).start().sampling();
    let left = wait_for(ARRIVE, || {
        let export = daemon.export();
        export.last_error.contains("not answered").then_some(())
    });
    assert!(left.is_some(), "{:?}", daemon.export());
    collector.behave(|behaviour| behaviour.silent = false);
    let drained = wait_for(ARRIVE, || {
        (daemon.export().waiting_windows <= 1).then_some(())
    });
    assert!(drained.is_some(), "{:?}", daemon.export());
    let samples = daemon.stop_and_count(GRACE);
    arrives(&collector, &dir, samples);
    assert!(collector.memory().repeats > 0);
}

#[test]
fn refused_windows_are_a_gap_and_the_next_ones_go_on_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let collector = IngestCollector::with(Behaviour {
        refuses: true,
        ..Behaviour::default()
    });
    let daemon = daemon(&collector, &dir).start().sampling();
    let refused = wait_for(ARRIVE, || {
        let export = daemon.export();
        (!export.dropped.is_empty()).then_some(export)
    });
    let refused = refused.expect("windows are refused");
    assert_eq!(refused.dropped[0].cause, "refused");
    let status = daemon.client().status().unwrap();
    let told = status
        .degradations
        .iter()
        .find(|d| d.id == "collector_refuses");
    assert!(told.expect("it says so").message.contains("it is too old"));
    collector.behave(|behaviour| behaviour.refuses = false);
    let begun = daemon.export().acked_windows;
    let again = wait_for(ARRIVE, || {
        (daemon.export().acked_windows > begun + 1).then_some(())
    });
    assert!(again.is_some(), "{:?}", daemon.export());
    // The last refused one has to be told of too.
    let told = wait_for(ARRIVE, || {
        let memory = collector.memory();
        let gaps = memory.windows.values().filter_map(|w| w.gap.as_ref());
        (gaps.map(|gap| gap.windows).sum::<u64>() == memory.refused).then_some(())
    });
    assert!(told.is_some());
    let samples = daemon.stop_and_count(GRACE);
    let lost: u64 = {
        let memory = collector.memory();
        let gaps = memory.windows.values().filter_map(|w| w.gap.as_ref());
        gaps.inspect(|gap| assert_eq!(gap.cause, "refused"))
            .map(|gap| gap.samples)
            .sum()
    };
    assert!(lost > 0);
    arrives(&collector, &dir, samples - lost);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_window_the_collector_objects_to_does_not_stop_the_others_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let collector = IngestCollector::with(Behaviour {
        objects: true,
        windows_in_flight: 1,
        ..Behaviour::default()
    });
    let daemon = daemon(&collector, &dir).start().sampling();
    // After eight tries, each after a back-off drawn at random that may be a minute in the end.
    let given_up = wait_for(3 * ARRIVE, || {
        (!daemon.export().dropped.is_empty()).then_some(())
    });
    assert!(given_up.is_some(), "{:?}", daemon.export());
    collector.behave(|behaviour| behaviour.objects = false);
    let again = wait_for(ARRIVE, || {
        (daemon.export().waiting_windows <= 1).then_some(())
    });
    assert!(again.is_some(), "{:?}", daemon.export());
    let told = wait_for(ARRIVE, || {
        let lost: u64 = daemon
            .export()
            .dropped
            .iter()
            .map(|drop| drop.windows)
            .sum();
        let memory = collector.memory();
        let gaps = memory.windows.values().filter_map(|w| w.gap.as_ref());
        let gaps: Vec<_> = gaps.cloned().collect();
        let windows: u64 = gaps.iter().map(|gap| gap.windows).sum();
        (windows == lost).then(|| gaps.iter().map(|gap| gap.samples).sum::<u64>())
    });
    let lost = told.expect("the gap is told");
    let samples = daemon.stop_and_count(GRACE);
    arrives(&collector, &dir, samples - lost);
}

#[test]
fn a_spool_that_cannot_be_used_is_told_and_windows_go_from_memory_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    std::fs::create_dir(&dir).unwrap();
    std::os::unix::fs::chown(&dir, Some(12345), None).unwrap();
    let collector = IngestCollector::start();
    let daemon = daemon(&collector, &dir).start().sampling();
    let export = closed(&daemon, 3);
    assert!(export.spool_error.contains("user 12345"), "{export:?}");
    let status = daemon.client().status().unwrap();
    assert!(status.degradations.iter().any(|d| d.id == "spool_unusable"));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
    settles(&collector, &daemon);
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_full_disk_costs_no_window_while_the_collector_answers_needs_root() {
    let Some(_live) = beside(&[Need::Root, Need::Program("mount")]) else {
        return;
    };
    let place = tempfile::tempdir().unwrap();
    let Some(_mounted) = Mounted::small(place.path()) else {
        return;
    };
    let collector = IngestCollector::start();
    let daemon = daemon(&collector, &place.path().join("spool"))
        .start()
        .sampling();
    closed(&daemon, 2);
    let filler = place.path().join("filler");
    let filled = std::fs::write(&filler, vec![7; 4 << 20]);
    assert!(filled.is_err(), "the disk is full");
    let before = daemon.export().taken_windows;
    let export = closed(&daemon, before + 4);
    assert!(export.spool_error.contains("No space left"), "{export:?}");
    assert_eq!(export.dropped, vec![]);
    let settled = settles(&collector, &daemon);
    assert_eq!(settled.dropped, vec![]);
}

/// A file system of 256 KiB.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn small(at: &Path) -> Option<Mounted<'_>> {
        let mut mount = std::process::Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=256k", "none"])
            .arg(at);
        match mount.status() {
            Ok(status) if status.success() => Some(Mounted(at)),
            _ => {
                testkit::skip("needs the right to mount a file system");
                None
            }
        }
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("-l")
            .arg(self.0)
            .status();
    }
}

#[test]
fn without_a_collector_there_is_no_spool_and_no_thread_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let dir = spool.path().join("spool");
    let setting = format!("collector.spool.dir={}", dir.display());
    let daemon = Daemon::with().set(&setting).start().sampling();
    let status = daemon.client().status().unwrap();
    assert_eq!(status.export, None);
    let threads = status.own_cost.unwrap().cpu_ns_by_thread;
    assert!(!threads.contains_key("fp-spool") && !threads.contains_key("fp-uplink"));
    assert!(!dir.exists());
}

#[test]
#[ignore = "takes long: make test-slow"]
fn labels_follow_a_reload_needs_root() {
    let Some(_live) = beside(&[Need::Root]) else {
        return;
    };
    let spool = tempfile::tempdir().unwrap();
    let collector = IngestCollector::start();
    let yaml =
        |labels: &str| format!("windows: {{length_s: 1}}\ncollector: {{labels: {labels}}}\n");
    let daemon = daemon(&collector, &spool.path().join("spool"))
        .config(&yaml("{region: eu}"))
        .start()
        .sampling();
    closed(&daemon, 1);
    let begin = Instant::now();
    std::fs::write(daemon.config_path(), yaml("{region: us, rack: r7}")).unwrap();
    let reloaded = daemon.client().reload().unwrap();
    assert_eq!(reloaded.changed, ["collector.labels"]);
    let told = wait_for(ARRIVE, || {
        let memory = collector.memory();
        let facts = memory.facts.last()?;
        (facts.labels.get("rack").map(String::as_str) == Some("r7")).then_some(())
    });
    assert!(told.is_some(), "not within {:?}", begin.elapsed());
    let hello = collector.memory().hellos[0].clone();
    let facts = hello.facts.unwrap();
    assert_eq!(facts.labels["region"], "eu");
    assert!(facts.cpus_online > 0 && facts.memory_bytes > 0 && !facts.kernel.is_empty());
}
