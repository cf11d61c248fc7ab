//! What the daemon took beside what the kernel accounts, on the real machine under load: the sums
//! of the ledger, the coverage of busy cgroups, and what the kernel was doing in each sample.
//!
//! One recording serves all: a busy program in a cgroup below another, and one that floods the
//! loopback interface, over windows of five seconds.

use profile::{Coverage, StackEnd, Tally, key};
use proto::agent::GetLedgerResponse;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use testkit::recording::Shared;
use testkit::stats::SIGMAS;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, View};

/// How long the programs run together. Unit: seconds.
const RUN_S: u64 = 16;
const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

struct Recording {
    view: View,
    ledger: GetLedgerResponse,
    /// Path, and CPU time by the test's own reading. Unit: nanoseconds.
    busy: (String, u64),
    outer: String,
    network: String,
    /// Ticks of all CPUs while the programs ran.
    ticks: f64,
}

static RECORDING: Shared<Recording> = Shared::new();

fn recording() -> Option<&'static Recording> {
    RECORDING.get(NEEDS, || {
        let outer = Cgroup::new("ledger");
        let busy = outer.child("busy");
        let network = Cgroup::new("ledger-network");
        let options = Daemon::with().set("windows.length_s=5");
        let daemon = options.start().sampling();
        let begin = Instant::now();
        let busy_run = c("split.c").start_in(&busy, &[]);
        let network_run = c("loopback.c").start_in(&network, &[]);
        std::thread::sleep(Duration::from_secs(RUN_S));
        busy_run.finish("split");
        network_run.finish("datagrams");
        let wall = begin.elapsed();
        let used = busy.cpu_ns().expect("the account of a cgroup");
        let view = daemon.client().everything();
        let ledger = daemon.client().ledger().expect("a ledger");
        daemon.stop();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let period = view.info.period as f64;
        Recording {
            view,
            ledger,
            busy: (busy.path().to_owned(), used),
            outer: outer.path().to_owned(),
            network: network.path().to_owned(),
            ticks: wall.as_nanos() as f64 * cpus as f64 / period,
        }
    })
}

/// Largest distance of a count from what is expected of `ticks`: [`SIGMAS`] standard deviations,
/// and two samples for start and end.
fn bound(expected: f64, ticks: f64) -> f64 {
    let share = (expected / ticks).min(1.0);
    SIGMAS * (expected * (1.0 - share)).sqrt() + 2.0
}

fn row<'l>(ledger: &'l GetLedgerResponse, path: &str) -> &'l proto::agent::LedgerRow {
    let found = ledger.rows.iter().find(|row| row.path == path);
    found.unwrap_or_else(|| panic!("no row `{path}` in {:#?}", ledger.rows))
}

#[test]
fn samples_of_a_busy_cgroup_are_its_time_in_cpu_stat_needs_root() {
    let Some(recording) = recording() else { return };
    let (path, used) = &recording.busy;
    let expected = *used as f64 / recording.view.info.period as f64;
    let count = recording.view.in_cgroup(path).count() as f64;
    let bound = bound(expected, recording.ticks);
    let share = count / expected * 100.0;
    let text = format!(
        "cpu.stat: {:.3} s = {expected:.1} samples; profile: {count} = {share:.2} %, ± {bound:.1}",
        *used as f64 / 1e9
    );
    assert!((count - expected).abs() <= bound, "{text}");
    eprintln!("{text}");
}

#[test]
fn taken_and_lost_are_the_sum_of_the_rows_needs_root() {
    let Some(recording) = recording() else { return };
    let ledger = &recording.ledger;
    let sum = ledger.rows.iter().fold(Tally::default(), |mut sum, row| {
        sum += row.own.unwrap_or_default().into();
        sum
    });
    assert_eq!(Tally::from(ledger.host.unwrap_or_default()), sum);
    let quality = ledger.quality.unwrap_or_default();
    assert_eq!((sum.taken, sum.lost), (quality.taken, quality.lost_samples));
    // The view was asked for a moment before.
    assert!(sum.taken + sum.lost >= recording.view.count());
}

#[test]
fn the_ledger_expects_what_the_kernel_accounts_needs_root() {
    let Some(recording) = recording() else { return };
    let ledger = &recording.ledger;
    for path in [&recording.busy.0, &recording.outer] {
        let row = row(ledger, path);
        let expected = row.expected.unwrap_or_default();
        let total = row.total.unwrap_or_default();
        let measured = (expected.ns - expected.estimated_ns) as f64;
        let taken = total.taken_weight.saturating_sub(expected.estimated_ns) as f64;
        let period = recording.view.info.period as f64;
        let bound = bound(measured / period, recording.ticks) * period;
        let text = format!(
            "`{path}`: {:.1} % of {:.2} s, {:.2} s not measured",
            taken / measured * 100.0,
            measured / 1e9,
            expected.estimated_ns as f64 / 1e9
        );
        assert!(
            measured >= 3e8 && (taken - measured).abs() <= bound,
            "{text}"
        );
        eprintln!("{text}");
    }
}

#[test]
fn the_profile_says_its_coverage_needs_root() {
    let Some(recording) = recording() else { return };
    let coverage = recording.view.info.coverage.unwrap_or_default();
    let coverage = Coverage::from(coverage);
    assert!(coverage.windows >= 3, "{coverage:?}");
    // The open window has no accounts yet.
    assert!(coverage.windows_unmeasured <= 2, "{coverage:?}");
    let share = coverage.share().expect("something was measured");
    // On a loaded machine accounts are read late, and one window is measured.
    assert!((0.8..=1.25).contains(&share), "{share}: {coverage:?}");
}

#[test]
fn a_cgroup_without_samples_of_its_own_stands_above_those_with_needs_root() {
    let Some(recording) = recording() else { return };
    let outer = row(&recording.ledger, &recording.outer);
    assert_eq!(outer.own.unwrap_or_default().taken, 0);
    let busy = row(&recording.ledger, &recording.busy.0);
    assert_eq!(outer.total, busy.total);
}

fn contexts(view: &View) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    // Nobody knows what ran when samples were lost.
    let taken = view.only(|sample| sample.end != StackEnd::Lost);
    for sample in &taken.samples {
        *counts
            .entry(sample.label(key::CONTEXT).to_owned())
            .or_default() += sample.count;
    }
    counts
}

#[test]
fn user_code_is_work_of_a_task_needs_root() {
    let Some(recording) = recording() else { return };
    let counts = contexts(&recording.view.in_cgroup(&recording.busy.0));
    let all: u64 = counts.values().sum();
    let tasks = counts.get("task").copied().unwrap_or(0);
    assert!(all > 50 && tasks * 100 >= all * 95, "{counts:?}");
}

#[test]
fn datagrams_are_delivered_by_soft_interrupts_needs_root() {
    let Some(recording) = recording() else { return };
    let view = recording.view.in_cgroup(&recording.network);
    let counts = contexts(&view);
    let soft = view.only(|sample| sample.label(key::CONTEXT) == "softirq");
    assert!(
        soft.count() * 20 >= view.count() && soft.count() > 5,
        "{counts:?}"
    );
    let task = view.only(|sample| sample.label(key::CONTEXT) == "task");
    assert!(task.count() > soft.count(), "{counts:?}");
    // Where the receiving end of the stack runs, and nothing of a system call of its own.
    assert!(
        soft.count_with("net_rx_action") * 2 > soft.count(),
        "{}",
        soft.dump()
    );
    assert_eq!(task.count_with("net_rx_action"), 0, "{}", task.dump());
}

#[test]
fn every_sample_has_a_context_needs_root() {
    let Some(recording) = recording() else { return };
    let known = ["task", "softirq", "hardirq", "idle"];
    let counts = contexts(&recording.view);
    assert!(
        counts.keys().all(|word| known.contains(&word.as_str())),
        "{counts:?}"
    );
}
