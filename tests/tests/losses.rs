//! Losses: a daemon that was stopped, while a known load ran, says afterwards what it missed, when
//! and whose it was, and is complete again.

use profile::{Coverage, StackEnd, Tally};
use proto::agent::{LedgerRow, QueryProfileRequest, TimeRange};
use rustix::process::Signal;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::stats::SIGMAS;
use testkit::workload::c;
use testkit::{Cgroup, Client, Daemon, Need, View, live};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];

/// How long the daemon stands still. Rings with copies of stacks hold about 2.4 s of a busy CPU.
const STOPPED: Duration = Duration::from_secs(10);
/// Length of windows: the stop touches four or five.
const WINDOW: Duration = Duration::from_secs(3);
/// Longest that the daemon may take to have windows again.
const LIMIT: Duration = Duration::from_secs(60);
const SECOND: i64 = 1_000_000_000;
/// How far the kernel's figure of a cgroup may be from what its one program counts itself: the
/// start of the program and interrupts that come while it runs are in one and not in the other.
const ACCOUNT_SHARE: f64 = 0.02;

fn row(client: &Client, path: &str) -> LedgerRow {
    let ledger = client.ledger().expect("a ledger");
    let found = ledger.rows.iter().find(|row| row.path == path).cloned();
    found.unwrap_or_else(|| panic!("no row `{path}` in {:#?}", ledger.rows))
}

/// The windows that overlap a time.
fn between(client: &Client, start_unix_ns: i64, end_unix_ns: i64) -> View {
    let range = TimeRange {
        start_unix_ns,
        end_unix_ns,
    };
    let request = QueryProfileRequest {
        range: Some(range),
        group_by: vec!["*".to_owned()],
        ..QueryProfileRequest::default()
    };
    client.query(request).expect("a profile")
}

/// Start and end of a profile.
fn span(view: &View) -> (i64, i64) {
    let begin = view.info.start_unix_ns;
    (begin, begin + view.info.duration_ns as i64)
}

fn is_lost(view: &View) -> View {
    view.only(|sample| sample.end == StackEnd::Lost)
}

/// Hardly anything: a hypervisor takes single ticks at any time.
fn few_lost(view: &View) -> bool {
    is_lost(view).count() * 20 <= view.count()
}

/// Largest distance of a count of busy samples from `expected`, of `ticks` of the clock.
fn bound(expected: f64, ticks: f64) -> f64 {
    let share = (expected / ticks).min(1.0);
    SIGMAS * (expected * (1.0 - share)).sqrt() + 2.0
}

/// As many samples of a cgroup, lost ones included, as the `used` nanoseconds of CPU that the
/// kernel accounts in `wall` nanoseconds stand for.
fn hold_against_cpu_stat(all: &View, own: &View, used: f64, wall: f64) {
    let period = all.info.period as f64;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let expected = used / period;
    let bound = bound(expected, wall * cpus / period);
    eprintln!(
        "{expected:.0} samples by cpu.stat; {} with {} lost, ± {bound:.0}",
        own.count(),
        is_lost(own).count()
    );
    assert!(
        (own.count() as f64 - expected).abs() <= bound,
        "{}",
        own.dump()
    );
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_daemon_that_stood_still_says_what_it_missed_and_whose_it_was_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("stopped");
    let mut daemon = Daemon::with()
        .set(&format!("windows.length_s={}", WINDOW.as_secs()))
        .watchdog(Duration::from_secs(30))
        .start()
        .sampling();
    let split = c("split.c").start_in(&cgroup, &[]);
    let begin = testkit::clock::unix_ns();
    std::thread::sleep(2 * WINDOW);
    daemon.signal(Signal::STOP);
    let stopped = testkit::clock::unix_ns();
    std::thread::sleep(STOPPED);
    daemon.signal(Signal::CONT);
    let resumed = testkit::clock::unix_ns();
    daemon.forget_notifications();
    // Whole windows that started after it went on.
    let client = daemon.client();
    let window_ns = WINDOW.as_nanos() as i64;
    let after = wait_for(LIMIT, || {
        let now = testkit::clock::unix_ns();
        let after = between(&client, now - window_ns - SECOND, now - SECOND);
        let coverage = Coverage::from(after.info.coverage.unwrap_or_default());
        let measured = coverage.windows > 1 && coverage.windows_unmeasured == 0;
        (span(&after).0 >= resumed && measured).then_some(after)
    });
    let after = after.expect("windows go on");
    let spent = split.finish("split").iter().sum::<u64>() as f64;
    let now = testkit::clock::unix_ns();
    let wall = (now - begin) as f64;
    let used = cgroup.cpu_ns().expect("the account of a cgroup") as f64;
    assert!(
        (used - spent).abs() < ACCOUNT_SHARE * used,
        "{used} {spent}"
    );

    let all = daemon.client().everything();
    let own = all.in_cgroup(cgroup.path());
    let lost = is_lost(&own);
    hold_against_cpu_stat(&all, &own, used, wall);
    assert!(lost.count() > 0, "{}", own.dump());
    assert!(
        lost.samples
            .iter()
            .all(|sample| sample.frames.iter().any(|frame| frame.function == "[lost]")),
        "{}",
        lost.dump()
    );
    let middle = between(&client, stopped + 5 * SECOND, stopped + 6 * SECOND);
    assert!(is_lost(&middle).count() > 0, "{}", middle.dump());
    let (begins, ends) = span(&middle);
    eprintln!(
        "the window from {:.1} to {:.1} s after the stop: {} samples, {} lost",
        (begins - stopped) as f64 / 1e9,
        (ends - stopped) as f64 / 1e9,
        middle.count(),
        is_lost(&middle).count()
    );
    let before = between(&client, begin, stopped - window_ns);
    // A daemon that is behind with naming makes windows longer.
    if span(&before).1 <= stopped {
        assert!(few_lost(&before), "{}", before.dump());
    }
    assert!(span(&after).0 >= resumed, "{:?}", after.info);
    assert!(few_lost(&after), "{}", after.dump());
    let coverage = Coverage::from(after.info.coverage.unwrap_or_default());
    eprintln!("afterwards: {coverage:?}, {:?}", coverage.share());
    assert!(
        coverage
            .share()
            .is_some_and(|share| (0.8..=1.2).contains(&share)),
        "{coverage:?}"
    );
    let row = row(&daemon.client(), cgroup.path());
    let tally = Tally::from(row.total.unwrap_or_default());
    assert_eq!(
        (tally.taken + tally.lost, tally.lost),
        (own.count(), lost.count())
    );
    let degradations = daemon.client().status().expect("a status").degradations;
    let ids: Vec<&str> = degradations.iter().map(|found| found.id.as_str()).collect();
    assert!(ids.contains(&"sampler_late"), "{degradations:?}");
    assert!(!ids.contains(&"records_lost"), "{degradations:?}");
    for format in ["folded", "svg"] {
        let out = daemon
            .ctl(&["profile", "--since", "1m", "--format", format])
            .text();
        assert!(out.contains("[lost]"), "{format}: {out}");
    }
    assert!(daemon.notified("WATCHDOG=1", Duration::from_secs(20)));
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_load_that_started_just_before_the_daemon_stood_still_is_not_thinned_out_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("sudden");
    let mut daemon = Daemon::with().set("windows.length_s=10").start().sampling();
    // A window in which nothing of it runs, and most of another: they meet at multiples of 10 s.
    let into = testkit::clock::unix_ns().rem_euclid(10 * SECOND);
    std::thread::sleep(Duration::from_nanos((18 * SECOND - into) as u64));
    let begin = testkit::clock::unix_ns();
    let split = c("split.c").start_in(&cgroup, &[]);
    std::thread::sleep(Duration::from_millis(500));
    daemon.signal(Signal::STOP);
    std::thread::sleep(STOPPED);
    daemon.signal(Signal::CONT);
    std::thread::sleep(4 * WINDOW);
    split.finish("split");
    let wall = (testkit::clock::unix_ns() - begin) as f64;
    let used = cgroup.cpu_ns().expect("the account of a cgroup") as f64;

    let all = daemon.client().everything();
    let own = all.in_cgroup(cgroup.path());
    hold_against_cpu_stat(&all, &own, used, wall);
    daemon.stop();
}

#[test]
#[ignore = "takes long: make test-slow"]
fn a_minute_with_a_stop_is_said_to_be_badly_covered_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let cgroup = Cgroup::new("covered");
    let mut daemon = Daemon::with()
        .set(&format!("windows.length_s={}", WINDOW.as_secs()))
        .watchdog(Duration::from_secs(30))
        .start()
        .sampling();
    let _split = c("split.c").start_in(&cgroup, &[]);
    let low = |daemon: &Daemon| {
        let status = daemon.client().status().expect("a status");
        let mut found = status.degradations.into_iter();
        found.find(|found| found.id == "coverage_low")
    };
    // A minute without a loss is not said to be low, however often one asks.
    let minute = std::time::Instant::now();
    while minute.elapsed() < Duration::from_secs(70) {
        assert_eq!(low(&daemon), None);
        std::thread::sleep(WINDOW);
    }
    daemon.signal(Signal::STOP);
    std::thread::sleep(STOPPED);
    daemon.signal(Signal::CONT);
    // While the ledger of these seconds is not whole another cause may weigh more.
    let found = wait_for(LIMIT, || {
        low(&daemon).filter(|found| found.message.contains("the daemon was stopped"))
    });
    let found = found.unwrap_or_else(|| panic!("{:?}", low(&daemon)));
    eprintln!("{}: {}", found.message, found.remedy);
    let doctor = daemon.ctl(&["doctor"]);
    assert_eq!(doctor.code, Some(6), "{doctor:?}");
    assert!(doctor.text().contains("coverage_low: "), "{doctor:?}");
}
