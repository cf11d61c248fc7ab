//! The daemon and `perf record -F 99 -a -g` over the same seconds see the same machine.

use fixtures::perf::{KernelAliases, PerfRecord, PerfSample};
use fixtures::recording::Shared;
use fixtures::stats::difference_bound;
use fixtures::workload::c;
use fixtures::{Cgroup, Daemon, Need, View, clock};
use proto::agent::{QueryProfileRequest, TimeRange};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long both record together. Unit: seconds. About 2,700 samples on two CPUs.
const RUN_S: u64 = 14;
/// Cut from both ends: where one of the two may still start or already end.
const EDGE_NS: i64 = 1_000_000_000;
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
        let dir = tempfile::tempdir().expect("failed to make a directory");
        let perf = PerfRecord::start(dir.path());
        let start = clock::unix_ns() + EDGE_NS;
        std::thread::sleep(Duration::from_secs(RUN_S));
        let end = clock::unix_ns() - EDGE_NS;
        let theirs = perf.stop();
        let request = QueryProfileRequest {
            range: Some(TimeRange {
                start_unix_ns: start,
                end_unix_ns: end,
            }),
            group_by: vec!["*".to_owned()],
            ..QueryProfileRequest::default()
        };
        let ours = daemon.client().query(request).expect("a profile");
        daemon.stop();
        split.finish("split");
        kernel.finish("times");
        threads.finish("threads");

        let offset = clock::wall_minus_mono();
        let covered_from = ours.info.start_unix_ns - offset;
        let covered_to = covered_from + ours.info.duration_ns as i64;
        let inside = |sample: &&PerfSample| {
            (covered_from..covered_to).contains(&(sample.mono_ns as i64)) && !sample.is_idle()
        };
        let covered_s = ours.info.duration_ns as f64 * 1e-9;
        let late_s = (ours.info.start_unix_ns - start) as f64 * 1e-9;
        eprintln!(
            "asked for {} s, {covered_s} s covered from {late_s} s on",
            RUN_S - 2
        );
        let theirs = theirs.iter().filter(inside).cloned().collect();
        Recording { ours, theirs }
    })
}

/// Samples by leaf function, kernel functions under one of their names.
fn leaves(recording: &Recording) -> (BTreeMap<String, u64>, BTreeMap<String, u64>) {
    let aliases = KernelAliases::load();
    let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
    for (name, count) in recording.ours.by_leaf() {
        *ours.entry(aliases.one(&name).to_owned()).or_default() += count;
    }
    for sample in &recording.theirs {
        *theirs
            .entry(aliases.one(sample.leaf()).to_owned())
            .or_default() += 1;
    }
    (ours, theirs)
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
        if here_share.max(there_share) < SHARE_MIN {
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
    let our_total = recording.ours.count();
    let their_total = recording.theirs.len() as u64;
    for function in ["main", "run_part", "start_thread", "ksys_read"] {
        let here = recording.ours.count_with(function);
        let has = |sample: &&PerfSample| sample.frames.iter().any(|(name, _)| name == function);
        let there = recording.theirs.iter().filter(has).count() as u64;
        let both = (here + there) as f64 / (our_total + their_total) as f64;
        let difference = here as f64 / our_total as f64 - there as f64 / their_total as f64;
        let bound = difference_bound(our_total, their_total, both);
        assert!(
            there > 0 && difference.abs() <= bound,
            "{function}: {here} here, {there} in perf"
        );
    }
}
