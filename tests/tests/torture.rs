//! Generated code that never stays what it is: every sample has the name that was right at its
//! time.
//!
//! The workload (`torture.c`) generates, moves and drops code at eight addresses, thousands of
//! times a minute, and logs which of it ran when, so that the right name of every moment is known.
//! A name is used for one piece of code only, so a sample under the name of code that came or went
//! shows: its window says when it was taken. Who is taken for whom is seen by number too: each name
//! must have as many samples as it had CPU time.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use host::time::MonotonicTime;
use jit::code::{CodeLookup, CodeMap, When};
use jit::dump::DumpReader;
use jit::rules::RulesBuilder;
use proto::agent::{QueryProfileRequest, TimeRange};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;
use testkit::perf::PerfRecord;
use testkit::process::{program, wait_for};
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Daemon, Need, View, clock, live, met};

/// How long the workload runs where the real daemon looks on. Unit: seconds.
const RUN_S: u64 = 20;
/// Samples a second: a run of the workload, 2 to 22 ms, has one to eleven.
const RATE_HZ: u64 = 499;
/// Rate of `perf record`.
const PERF_HZ: u64 = 99;
/// How far a window's edges may seem to be off by the wall clock's slewing. Unit: nanoseconds.
const EDGE_NS: u64 = 5_000_000;
/// Longest the workload may take to end by itself.
const END_LIMIT: Duration = Duration::from_secs(60);
/// Where its code lies.
const CODE: std::ops::Range<u64> = 0x1000_0000..0x1000_0800;

/// What ran, when and where.
#[derive(Clone, Debug)]
struct Run {
    begin: u64,
    end: u64,
    cpu: u64,
    address: u64,
    name: String,
}

fn read_log(path: &Path) -> Vec<Run> {
    let text = std::fs::read_to_string(path).unwrap();
    let run = |line: &str| {
        let fields: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| fields[at].parse().unwrap();
        Run {
            begin: number(0),
            end: number(1),
            cpu: number(2),
            address: u64::from_str_radix(fields[3], 16).unwrap(),
            name: fields[4].to_owned(),
        }
    };
    text.lines().map(run).collect()
}

/// True where the code lies where it was not generated: it moved.
fn moved(run: &Run) -> bool {
    let slot = (run.address - CODE.start) / 256;
    !run.name.ends_with(&format!("_s{slot}"))
}

/// What the workload tells of its code.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tells {
    /// In a jitdump, in the directory of the log.
    Dump,
    /// In a perf map.
    Map,
}

fn arguments(tells: Tells, dir: &Path, seconds: u64) -> [String; 3] {
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let output = match tells {
        Tells::Dump => text(dir),
        Tells::Map => "-".to_owned(),
    };
    [output, text(&dir.join("log")), seconds.to_string()]
}

/// Waits for the end of the workload. What ran.
fn finish(workload: &mut Workload, dir: &Path) -> Vec<Run> {
    let ended = workload.proc().wait(END_LIMIT);
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    read_log(&dir.join("log"))
}

/// The same, and how often others took the CPU from the workload, as last seen before its end.
fn finish_counting(workload: &mut Workload, dir: &Path) -> (Vec<Run>, u64) {
    const SWITCHES: &str = "nonvoluntary_ctxt_switches:";
    let status = format!("/proc/{}/status", workload.pid());
    let mut preempted = 0;
    let ended = wait_for(END_LIMIT, || {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(SWITCHES));
        preempted = line.map_or(preempted, |count| count.trim().parse().unwrap());
        workload.proc().exited()
    });
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    (read_log(&dir.join("log")), preempted)
}

#[test]
fn every_moment_has_the_name_that_a_jitdump_tells() {
    if !met(&[Need::StaticC]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let arguments = arguments(Tells::Dump, dir.path(), 6);
    let mut workload = c("torture.c").start(&arguments.each_ref().map(String::as_str));
    let runs = finish(&mut workload, dir.path());
    let dump = dir.path().join(format!("jit-{}.dump", workload.pid()));
    let dump = std::fs::read(dump).unwrap();
    let (mut code, mut rules) = (CodeMap::new(8 << 20), RulesBuilder::default());
    let mut reader = DumpReader::default();
    let read = When::between(MonotonicTime(0), MonotonicTime::now());
    for piece in dump.chunks(1000) {
        reader.feed(piece, read, &mut code, &mut rules).unwrap();
    }
    assert_eq!(reader.take_counts().untimed, 0);
    // Fewer where others have the CPUs.
    assert!(runs.len() > 20, "{} runs", runs.len());
    assert!(runs.iter().any(moved));
    let mut seen = BTreeSet::new();
    let again = runs.iter().filter(|run| !seen.insert(&run.name));
    assert!(again.count() > 5, "code of long ago runs again");
    for run in &runs {
        for at in [run.begin, run.begin.midpoint(run.end), run.end] {
            for offset in [0, 4, 10] {
                let found = code.find(run.address + offset, MonotonicTime(at));
                let CodeLookup::Code(code, into) = found else {
                    panic!("{found:?} at {at} of {run:?}")
                };
                assert_eq!((&*code.name, into), (&*run.name, offset), "at {at}");
            }
        }
    }
}

/// Everything about the recording that the checks need.
struct Recording {
    runs: Vec<Run>,
    /// Start and end on `CLOCK_MONOTONIC`, and what the daemon saw of the workload.
    windows: Vec<(u64, u64, View)>,
    /// Times and addresses of what `perf record` saw of it in generated code.
    witness: Option<Vec<(u64, u64)>>,
    /// How often others took the CPU from the workload.
    preempted: u64,
}

/// The windows of the daemon, each once.
fn windows(daemon: &Daemon, cgroup: &Cgroup) -> Vec<(u64, u64, View)> {
    let client = daemon.client();
    let all = client.everything();
    let ahead = clock::wall_minus_mono();
    let end = all.info.start_unix_ns + all.info.duration_ns as i64;
    let mut windows = Vec::new();
    let mut at = all.info.start_unix_ns;
    while at < end {
        let range = TimeRange {
            start_unix_ns: at,
            end_unix_ns: at + 1,
        };
        let request = QueryProfileRequest {
            range: Some(range),
            group_by: vec!["*".to_owned()],
            ..QueryProfileRequest::default()
        };
        let view = client.query(request).unwrap();
        let length = view.info.duration_ns as i64;
        if length == 0 {
            at += 100_000_000;
            continue;
        }
        let from = view.info.start_unix_ns;
        at = (from + length).max(at + 1);
        let mono = |unix: i64| (unix - ahead) as u64;
        let view = view.in_cgroup(cgroup.path());
        windows.push((mono(from), mono(from + length), view));
    }
    windows
}

fn record(tells: Tells, name: &str) -> Recording {
    let dir = tempfile::tempdir().unwrap();
    let cgroup = Cgroup::new(name);
    let rate = format!("sampling.rate_hz={RATE_HZ}");
    let options = Daemon::with().set("windows.length_s=1").set(&rate);
    let daemon = options.start().sampling();
    let perf = program("perf").map(|_| PerfRecord::start(dir.path()));
    let arguments = arguments(tells, dir.path(), RUN_S);
    let torture = c("torture.c").named(name);
    let mut workload = torture.start_in(&cgroup, &arguments.each_ref().map(String::as_str));
    let pid = workload.pid();
    let (runs, preempted) = finish_counting(&mut workload, dir.path());
    let witness = perf.map(|perf| {
        let samples = perf.stop().into_iter();
        let own = samples.filter(|s| s.pid == pid && CODE.contains(&s.leaf_ip));
        own.map(|sample| (sample.mono_ns, sample.leaf_ip)).collect()
    });
    let windows = windows(&daemon, &cgroup);
    let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
    daemon.stop();
    Recording {
        runs,
        windows,
        witness,
        preempted,
    }
}

/// The witness agrees with the log: at its times and addresses, what the log says ran there.
fn check_witness(runs: &[Run], witness: &[(u64, u64)]) {
    let cpu: u64 = runs.iter().map(|run| run.cpu).sum();
    let expected = cpu as f64 * PERF_HZ as f64 / 1e9;
    let seen = witness.len() as f64;
    assert!(seen > expected * 0.8, "{seen} of {expected} samples");
    for &(time, ip) in witness {
        let after = runs.partition_point(|run| run.begin <= time);
        let run = after.checked_sub(1).map(|at| &runs[at]).unwrap();
        let there = time <= run.end && (run.address..run.address + 11).contains(&ip);
        assert!(there, "{ip:x} at {time}, where the log has {run:?}");
    }
}

/// Samples by the name of generated code; under `[jit]` those without.
fn named(view: &View) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for sample in &view.samples {
        let generated = sample.frames.iter().find(|frame| frame.module == "[jit]");
        if let Some(frame) = generated {
            *counts.entry(frame.function.as_str()).or_default() += sample.count;
        }
    }
    counts
}

/// No sample has a name that did not run in its window.
fn check_windows(runs: &[Run], windows: &[(u64, u64, View)]) {
    let mut wrong = Vec::new();
    for (begin, end, view) in windows {
        let (from, until) = (begin.saturating_sub(EDGE_NS), end + EDGE_NS);
        let within = runs
            .iter()
            .filter(|run| run.begin < until && run.end > from);
        let possible: BTreeSet<&str> = within.map(|run| run.name.as_str()).collect();
        for (name, count) in named(view) {
            if name != "[jit]" && !possible.contains(name) {
                wrong.push(format!("{count} of {name} in {begin}..{end}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// How far two counts by name are apart, all names together.
fn distance(a: &BTreeMap<String, f64>, b: &BTreeMap<String, f64>) -> f64 {
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let of = |counts: &BTreeMap<String, f64>, name: &String| {
        counts.get(name).copied().unwrap_or_default()
    };
    names
        .iter()
        .map(|name| (of(a, name) - of(b, name)).abs())
        .sum()
}

#[test]
#[ignore = "takes long: make test-slow"]
fn every_sample_has_the_name_of_its_time_needs_root() {
    let needs = [Need::Root, Need::StaticC, Need::Cgroup2];
    let Some(_live) = live(&needs) else { return };
    let Recording {
        runs,
        windows,
        witness,
        preempted,
    } = record(Tells::Dump, "torture");
    // Windows last a second, and longer where others have the CPUs.
    assert!(
        windows.len() as u64 >= RUN_S / 4,
        "{} windows",
        windows.len()
    );
    if let Some(witness) = &witness {
        check_witness(&runs, witness);
    }
    check_windows(&runs, &windows);

    let mut seen: BTreeMap<String, f64> = BTreeMap::new();
    let mut unnamed = 0;
    for (_, _, view) in &windows {
        for (name, count) in named(view) {
            match name {
                "[jit]" => unnamed += count,
                _ => *seen.entry(name.to_owned()).or_default() += count as f64,
            }
        }
    }
    let mut expected: BTreeMap<String, f64> = BTreeMap::new();
    for run in &runs {
        let samples = run.cpu as f64 * RATE_HZ as f64 / 1e9;
        *expected.entry(run.name.clone()).or_default() += samples;
    }
    let (all, ran): (f64, f64) = (seen.values().sum(), expected.values().sum());
    let apart = distance(&seen, &expected);
    eprintln!(
        "{} runs of {} names, {} moved; {all} samples named, {unnamed} not, {ran:.0} expected; \
         {apart:.0} apart",
        runs.len(),
        expected.len(),
        runs.iter().filter(|run| moved(run)).count()
    );
    let unknown: Vec<_> = seen
        .keys()
        .filter(|name| !expected.contains_key(*name))
        .collect();
    assert!(
        unknown.is_empty(),
        "nothing of these names ran: {unknown:?}"
    );
    assert!(
        (unnamed as f64) < all * 0.01,
        "{unnamed} samples without a name"
    );
    assert!((all - ran).abs() < ran * 0.05, "{all} samples of {ran}");
    // A clock that ticks evenly is at most one sample off at each end of a run; names taken for
    // each other would make it twice as many as there are samples. Where others take the CPU in the
    // middle of runs, there are as many more ends.
    let granted = (runs.len() as u64 + preempted) as f64;
    if preempted < runs.len() as u64 {
        assert!(granted < ran / 3.0, "the runs are too short to tell");
    }
    assert!(apart < granted, "{apart} samples are under another name");
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_perf_map_gives_no_sample_the_name_of_another_time_needs_root() {
    let needs = [Need::Root, Need::StaticC, Need::Cgroup2];
    let Some(_live) = live(&needs) else { return };
    let Recording { runs, windows, .. } = record(Tells::Map, "torture-map");
    // Its lines have no times: code that came and went between two readings has no sure name, and
    // then has none at all.
    check_windows(&runs, &windows);
    let counts = windows.iter().flat_map(|(_, _, view)| named(view));
    let (unnamed, with): (Vec<_>, Vec<_>) = counts.partition(|(name, _)| *name == "[jit]");
    let sum = |counts: Vec<(&str, u64)>| counts.iter().map(|(_, count)| count).sum::<u64>();
    let (unnamed, with) = (sum(unnamed), sum(with));
    eprintln!("{with} samples named, {unnamed} not");
    let cpu: u64 = runs.iter().map(|run| run.cpu).sum();
    let expected = cpu as f64 * RATE_HZ as f64 / 1e9;
    let all = (unnamed + with) as f64;
    assert!(
        (all - expected).abs() < expected * 0.05,
        "{all} of {expected}"
    );
}
