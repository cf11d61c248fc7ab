//! The daemon and `perf record -F 99 -a -g` over the same seconds see the same machine.

use proto::agent::{QueryProfileRequest, TimeRange};
use proto::wire::{Info, Quality};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;
use testkit::perf::{KernelAliases, PerfRecord, PerfSample};
use testkit::recording::Shared;
use testkit::stats::difference_bound;
use testkit::workload::{Workload, c};
use testkit::{Cgroup, Client, Daemon, Need, View, beside, clock, live};

/// How long both record together. Unit: seconds. About 1,800 samples on two CPUs.
const RUN_S: u64 = 10;
/// Left out at the start: perf opens its events CPU by CPU. Unit: nanoseconds.
const EDGE_NS: i64 = 200_000_000;
/// Functions with less of all samples are not compared one by one.
const SHARE_MIN: f64 = 0.02;
const NEEDS: &[Need] = &[
    Need::Root,
    Need::StaticC,
    Need::Cgroup2,
    Need::Program("perf"),
];

struct Recording {
    ours: View,
    /// Without idle samples, within the time that `ours` covers.
    theirs: Vec<PerfSample>,
    /// Path and processes of the cgroup whose programs keep frame pointers, as perf needs them.
    cgroup: String,
    pids: Vec<u32>,
}

static RECORDING: Shared<Recording> = Shared::new();

fn recording() -> Option<&'static Recording> {
    RECORDING.get(NEEDS, || {
        let cgroup = Cgroup::new("beside-perf");
        let split = c("split.c").start_in(&cgroup, &[]);
        let kernel = c("kernel.c").start_in(&cgroup, &[]);
        let threads = c("threads.c").start_in(&cgroup, &[]);
        // Short windows, so that what both cover is known to the second.
        let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
        // What runs has its names before it counts, so that windows stay short.
        daemon.client().everything();
        let dir = tempfile::tempdir().expect("failed to make a directory");
        let perf = PerfRecord::start(dir.path());
        std::thread::sleep(Duration::from_secs(RUN_S));
        let offset = clock::wall_minus_mono();
        let end = clock::unix_ns();
        let pids = [&split, &kernel, &threads].map(Workload::pid).to_vec();
        split.finish("split");
        kernel.finish("times");
        threads.finish("threads");
        let theirs = perf.stop();
        let begin = theirs
            .iter()
            .map(|sample| sample.mono_ns as i64 + offset)
            .min()
            .unwrap_or(0);
        let windows = windows_between(&daemon.client(), begin + EDGE_NS, end);
        daemon.stop();

        let covers: Vec<_> = windows.iter().map(|view| span(&view.info)).collect();
        let inside = |sample: &&PerfSample| {
            let at = sample.mono_ns as i64 + offset;
            covers.iter().any(|cover| cover.contains(&at)) && !sample.is_idle()
        };
        let theirs = theirs.iter().filter(inside).cloned().collect();
        Recording {
            ours: sum(windows),
            theirs,
            cgroup: cgroup.path().to_owned(),
            pids,
        }
    })
}

/// The wall time that a profile covers.
fn span(info: &Info) -> Range<i64> {
    info.start_unix_ns..info.start_unix_ns + info.duration_ns as i64
}

/// Each window that lies within two times. How long windows are depends on how far naming is
/// behind, so they are taken as they are, one by one.
fn windows_between(client: &Client, begin: i64, end: i64) -> Vec<View> {
    let mut windows = Vec::new();
    let mut at = begin;
    while at < end {
        // An answer is widened to whole windows.
        let range = TimeRange {
            start_unix_ns: at,
            end_unix_ns: at + 1,
        };
        let request = QueryProfileRequest {
            range: Some(range),
            group_by: vec!["*".to_owned()],
            ..QueryProfileRequest::default()
        };
        let view = client.query_until(&request, at + 1);
        let covered = span(&view.info);
        at = covered.end;
        if begin <= covered.start && covered.end <= end {
            windows.push(view);
        }
    }
    let lengths: Vec<u64> = windows
        .iter()
        .map(|view| view.info.duration_ns / 1_000_000_000)
        .collect();
    eprintln!("windows within the time of perf, in seconds: {lengths:?}");
    assert!(
        lengths.iter().sum::<u64>() >= 5,
        "naming is too far behind on this machine"
    );
    windows
}

/// All windows as one profile.
fn sum(windows: Vec<View>) -> View {
    let mut all = View::default();
    let mut quality = Quality::default();
    for view in windows {
        let more = view.info.quality.expect("the quality is told");
        quality.taken += more.taken;
        quality.idle += more.idle;
        quality.lost += more.lost;
        all.info.duration_ns += view.info.duration_ns;
        all.samples.extend(view.samples);
    }
    all.info.quality = Some(quality);
    all
}

impl Recording {
    /// The samples of the cgroup: whatever else the machine does makes its shares no smaller, and
    /// perf sees no callers of programs that are built without frame pointers.
    fn own(&self) -> (View, Vec<&PerfSample>) {
        let theirs = self.theirs.iter();
        let theirs = theirs.filter(|sample| self.pids.contains(&sample.pid));
        (self.ours.in_cgroup(&self.cgroup), theirs.collect())
    }
}

/// Samples of the cgroup by leaf function, kernel functions under one of their names.
fn leaves(recording: &Recording) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let aliases = KernelAliases::load();
    let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
    let (here, there) = recording.own();
    for (name, count) in here.by_leaf() {
        *ours.entry(aliases.one(&name).to_owned()).or_default() += count;
    }
    for sample in there {
        *theirs
            .entry(aliases.one(sample.leaf()).to_owned())
            .or_default() += 1;
    }
    (ours, theirs)
}

/// perf takes what the kernel says of a mapping at its word: a build ID that another's event asked
/// for has perf 6.1 abort, and later ones look for files that are nowhere.
#[test]
fn a_command_recorded_beside_the_daemon_keeps_its_files_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let daemon = Daemon::start().sampling();
    let dir = tempfile::tempdir().unwrap();
    let recorded = dir.path().join("perf.data");
    let mut record = Command::new("perf");
    record.args(["record", "-o"]).arg(&recorded).arg("true");
    let record = record.output().unwrap();
    assert!(record.status.success(), "{record:?}");
    let mut list = Command::new("perf");
    list.args(["script", "--show-mmap-events", "-i"])
        .arg(&recorded);
    let list = String::from_utf8(list.output().unwrap().stdout).unwrap();
    let of_program = list.lines().find(|line| line.ends_with("bin/true"));
    let of_program = of_program.unwrap_or_else(|| panic!("no mapping of it:\n{list}"));
    let inode = std::fs::metadata("/usr/bin/true").unwrap().ino();
    assert!(of_program.contains(&format!(" {inode} ")), "{of_program}");
    daemon.stop();
}

#[test]
fn both_take_the_same_number_of_samples_needs_root() {
    let Some(recording) = recording() else { return };
    let (ours, theirs) = (recording.ours.count(), recording.theirs.len() as u64);
    eprintln!("samples: {ours} here, {theirs} in perf");
    assert!(theirs > 1000, "only {theirs} samples in perf");
    assert!(
        ours.abs_diff(theirs) * 50 <= theirs,
        "{ours} samples here, {theirs} in perf"
    );
}

#[test]
fn an_answer_holds_what_its_time_allows_needs_root() {
    let Some(recording) = recording() else { return };
    let info = &recording.ours.info;
    let quality = info.quality.expect("the quality is told");
    let cpus = std::thread::available_parallelism()
        .expect("a number of CPUs")
        .get() as f64;
    let most = info.duration_ns as f64 * 1e-9 * 99.0 * cpus;
    let taken = quality.taken + quality.idle + quality.lost;
    assert!(
        taken as f64 <= most * 1.02 + 4.0,
        "at most {most:.0} fit: {info:?}"
    );
}

#[test]
fn both_see_the_same_top_functions_with_the_same_shares_needs_root() {
    let Some(recording) = recording() else { return };
    let (ours, theirs) = leaves(recording);
    let (our_total, their_total) = (ours.values().sum::<u64>(), theirs.values().sum::<u64>());
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let (mut table, mut compared, mut good) = (String::new(), 0, true);
    for name in names {
        let of = |counts: &BTreeMap<String, u64>| counts.get(name).copied().unwrap_or(0);
        let (here, there) = (of(&ours), of(&theirs));
        let here_share = here as f64 / our_total as f64;
        let there_share = there as f64 / their_total as f64;
        // What has no symbol goes by another word in perf.
        if here_share.max(there_share) < SHARE_MIN || name.starts_with('[') {
            continue;
        }
        let both = (here + there) as f64 / (our_total + their_total) as f64;
        let bound = difference_bound(our_total, their_total, both);
        compared += 1;
        good &= (here_share - there_share).abs() <= bound;
        table +=
            &format!("  {name}: {here_share:.4} here, {there_share:.4} in perf, ± {bound:.4}\n");
    }
    eprintln!("{table}");
    assert!(compared >= 5, "too little to compare:\n{table}");
    assert!(good, "{table}");
}

#[test]
fn both_see_the_same_callers_needs_root() {
    let Some(recording) = recording() else { return };
    let (ours, theirs) = recording.own();
    let (our_total, their_total) = (ours.count(), theirs.len() as u64);
    for function in ["main", "run_part", "start_thread", "ksys_read"] {
        let here = ours.count_with(function);
        let has = |sample: &&&PerfSample| sample.frames.iter().any(|(name, _)| name == function);
        let there = theirs.iter().filter(has).count() as u64;
        let both = (here + there) as f64 / (our_total + their_total) as f64;
        let difference = here as f64 / our_total as f64 - there as f64 / their_total as f64;
        let bound = difference_bound(our_total, their_total, both);
        assert!(
            there > 0 && difference.abs() <= bound,
            "{function}: {here} here, {there} in perf"
        );
    }
}

/// A perf that believes records of mappings which the kernel wrote for younger events dies of it.
#[test]
fn a_perf_that_records_already_survives_the_start_of_the_daemon_needs_root() {
    // Beside nobody who stops a file system: perf opens the programs of all processes.
    let Some(_beside) = beside(NEEDS) else {
        return;
    };
    let dir = tempfile::tempdir().expect("failed to make a directory");
    let perf = PerfRecord::start(dir.path());
    testkit::process::wait_for(Duration::from_secs(60), || perf.records().then_some(()))
        .expect("perf records");
    let daemon = Daemon::start().sampling();
    // Each maps its own file and those that it is linked to.
    for _ in 0..100 {
        let ended = std::process::Command::new("true").status();
        assert!(ended.expect("a program").success());
    }
    perf.stop();
    daemon.stop();
}
