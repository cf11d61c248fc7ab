//! The whole way: the real daemon, the real collector, and a network between them that can be cut.
//! Afterwards the collector has what the daemon sampled, to the sample, and shows it.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use proto::agent::TimeRange;
use proto::collector::query_service_client::QueryServiceClient;
use proto::collector::{DataQuality, HostsRequest, ProfileRequest, Selection};
use rustix::process::Signal;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::fleet::{Collector, Options};
use testkit::process::wait_for;
use testkit::wire::Wire;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, beside, browser, skip};

const NEEDS: &[Need] = &[Need::Root, Need::Program("cc")];
/// Longest wait for windows to arrive: a back-off of up to a minute and a backlog.
const ARRIVE: Duration = Duration::from_secs(150);
/// The grace that daemons are given here, and what a loaded machine adds.
const GRACE: Duration = Duration::from_secs(75);
/// Length of windows, and how long after its end one is on disk for certain.
const WINDOW: Duration = Duration::from_secs(2);
/// Time for which the network is cut: several windows.
const CUT: Duration = Duration::from_secs(7);
/// Step of the store's finest data. Unit: nanoseconds.
const STEP_NS: i64 = 10_000_000_000;
/// "Within half a minute of the first sample."
const SHOWN: Duration = Duration::from_secs(30);

fn daemon(address: &str, dir: &Path) -> Daemon {
    Daemon::with()
        .set(&format!("windows.length_s={}", WINDOW.as_secs()))
        .set("shutdown.grace_s=60")
        .set("collector.host_id=under-test")
        .set(&format!("collector.address={address}"))
        .set(&format!(
            "collector.spool.dir={}",
            dir.join("spool").display()
        ))
        .start()
        .sampling()
}

/// Waits until so many more windows closed; the last one did so about when this says.
fn windows_pass(daemon: &Daemon, windows: u64) -> Instant {
    let until = daemon.export().taken_windows + windows;
    let passed = wait_for(ARRIVE, || {
        let asked = Instant::now();
        (daemon.export().taken_windows >= until).then_some(asked)
    });
    passed.unwrap_or_else(|| panic!("no windows close: {}", daemon.log()))
}

/// Kills the daemon between two windows; the samples of those that had closed.
fn kill(mut daemon: Daemon) -> u64 {
    let before = loop {
        let closed = windows_pass(&daemon, 1);
        // On disk by now, and the next one not over, unless this machine is too busy: then once
        // more.
        std::thread::sleep(WINDOW / 4);
        let before = daemon.export();
        daemon.signal(Signal::STOP);
        if closed.elapsed() < WINDOW * 3 / 4 {
            break before;
        }
        daemon.signal(Signal::CONT);
    };
    daemon.signal(Signal::KILL);
    daemon.wait(GRACE).expect("SIGKILL ends a process");
    before.taken_samples
}

/// What the collector has of all time up to an end.
fn held(options: &Options, end_unix_ns: i64) -> Option<DataQuality> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let address = format!("http://{}", options.grpc());
        let mut client = QueryServiceClient::connect(address).await.ok()?;
        let range = TimeRange {
            start_unix_ns: 1,
            end_unix_ns,
        };
        let selection = Selection {
            range: Some(range),
            ..Selection::default()
        };
        let request = ProfileRequest {
            selection: Some(selection),
            ..ProfileRequest::default()
        };
        let mut answer = client.profile(request).await.ok()?.into_inner();
        let mut quality = None;
        while let Ok(Some(part)) = answer.message().await {
            quality = quality.or(part.quality);
        }
        quality
    })
}

/// Waits for the next multiple of the store's finest step, and returns it.
fn next_step() -> i64 {
    let now = testkit::clock::unix_ns();
    let end = (now / STEP_NS + 1) * STEP_NS;
    std::thread::sleep(Duration::from_nanos(end.abs_diff(now)));
    end
}

fn taken(options: &Options, end_unix_ns: i64) -> Option<u64> {
    held(options, end_unix_ns)
        .and_then(|quality| quality.sampling)
        .map(|sampling| sampling.taken)
}

#[test]
#[ignore = "takes long: make test-slow"]
fn every_sample_arrives_once_whoever_dies_and_whatever_is_cut_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new();
    let mut collector = options.start(dir.path());
    let wire = Wire::to(&options.grpc());
    let address = wire.address();
    let cgroup = Cgroup::new("fleet");
    let _split = c("split.c").start_in(&cgroup, &["-p", "30"]);
    let mut sampled = 0;

    let first = daemon(&address, dir.path());
    windows_pass(&first, 2);
    collector.kill();
    windows_pass(&first, 2);
    collector = options.start(dir.path());
    windows_pass(&first, 1);
    wire.cut();
    std::thread::sleep(CUT);
    sampled += kill(first);
    let second = daemon(&address, dir.path());
    windows_pass(&second, 1);
    wire.restore();
    windows_pass(&second, 2);
    assert!(collector.stop().success(), "the collector drains");
    sampled += second.stop_and_count(GRACE);
    let third = daemon(&address, dir.path());
    windows_pass(&third, 1);
    collector = options.start(dir.path());
    let drained = wait_for(ARRIVE, || {
        (third.export().waiting_windows <= 1).then_some(())
    });
    assert!(drained.is_some(), "{:?}\n{}", third.export(), third.log());
    collector.kill();
    collector = options.start(dir.path());
    sampled += third.stop_and_count(GRACE);
    // Sends what the grace of the one before was too short for. Its own windows start behind the
    // end of what is compared.
    let end = next_step();
    let last = daemon(&address, dir.path());
    let all = wait_for(ARRIVE, || {
        taken(&options, end).filter(|&taken| taken >= sampled)
    });
    eprintln!("{sampled} samples of three daemons; the collector has {all:?}");
    assert_eq!(
        all.or_else(|| taken(&options, end)),
        Some(sampled),
        "{}\n{}",
        last.log(),
        collector.log()
    );
    let quality = held(&options, end).unwrap();
    assert_eq!((quality.hosts, quality.damaged.len()), (1, 0));
    last.stop_and_count(GRACE);
    assert!(collector.stop().success());
}

fn hosts(collector: &Collector) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let address = format!("http://{}", collector.options().grpc());
        let mut client = QueryServiceClient::connect(address).await.unwrap();
        let answer = client.hosts(HostsRequest::default()).await.unwrap();
        answer.into_inner().hosts.len()
    })
}

#[test]
fn the_page_shows_real_stacks_of_this_machine_within_half_a_minute_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    if browser::chromium().is_none() {
        return skip("needs chromium");
    }
    let dir = tempfile::tempdir().unwrap();
    let options = Options::new();
    let collector = options.start(dir.path());
    let cgroup = Cgroup::new("page");
    let _split = c("split.c").start_in(&cgroup, &[]);
    // Windows as long as they are by default.
    let daemon = Daemon::with()
        .set("collector.host_id=under-test")
        .set(&format!("collector.address={}", options.grpc()))
        .set(&format!(
            "collector.spool.dir={}",
            dir.path().join("spool").display()
        ))
        .start()
        .sampling();
    let first_sample = Instant::now();
    let now = testkit::clock::unix_ns;
    let samples = wait_for(ARRIVE, || taken(&options, now()).filter(|&taken| taken > 0));
    let shown_after = first_sample.elapsed();
    assert!(samples.is_some(), "{}\n{}", daemon.log(), collector.log());
    eprintln!("samples can be asked for {shown_after:?} after the first (aim: {SHOWN:?})");
    assert_eq!(hosts(&collector), 1);
    // Chromium's virtual time, on which the page is dumped, does not wait for its worker.
    let page = format!("http://{}/?worker=off#view=profile", options.http());
    let shot = std::env::var_os("FLEETPROF_SHOTS").map_or_else(
        || dir.path().join("page.png"),
        |dir| Path::new(&dir).join("page.png"),
    );
    let look = wait_for(ARRIVE, || {
        let look = browser::screenshot_of(&page, &shot);
        (look.drawn > 0.1 && look.colours > 100).then_some(look)
    });
    assert!(look.is_some(), "the page stays empty");
    let dom = browser::dom_of(&page);
    assert!(
        dom.contains("run_part") || dom.contains("spend_seventy"),
        "{dom}"
    );
}
