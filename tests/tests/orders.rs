//! A collector that orders everything: what it may not have is refused by the real daemon, in words
//! that name the key, is in the log of the host, and costs next to nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::key;
use proto::agent::{CaptureRequest, LabelMatcher, MatchOp};
use std::time::{Duration, Instant};
use testkit::fake::ingest::{Behaviour, IngestCollector};
use testkit::process::wait_for;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, live};

/// How long something that has to come may take on a loaded machine.
const LIMIT: Duration = Duration::from_secs(90);

/// Rounds of all orders.
const ROUNDS: usize = 8;

/// CPU time that one refused order may take. Unit: seconds. A probe on malloc, a capture at 9,999
/// Hz, or one of an hour that was started takes many times that.
const ORDER_MAX_S: f64 = 0.05;

/// Orders a capture; the profile, or why there is none.
fn order(collector: &IngestCollector, request: CaptureRequest) -> Result<profile::Profile, String> {
    let before = collector.memory().heard.captures.len();
    collector.order(request);
    let over = wait_for(LIMIT, || {
        collector.memory().heard.captures.get(before).cloned()
    });
    over.expect("the order is answered")
}

fn cpu_clock(duration_s: u64) -> CaptureRequest {
    CaptureRequest {
        event: "cpu-clock".to_owned(),
        duration_ns: duration_s * 1_000_000_000,
        group_by: vec!["*".to_owned()],
        who: "mallory".to_owned(),
        ..CaptureRequest::default()
    }
}

/// What a hijacked collector asks for, each with the key that refuses it.
fn orders(withheld: &Cgroup) -> Vec<(&'static str, CaptureRequest)> {
    let event = |event: &str| CaptureRequest {
        event: event.to_owned(),
        ..cpu_clock(2)
    };
    let mut all = vec![
        // Each call of each process traps.
        (
            "`captures.remote_events`",
            event("uprobe:/lib/x86_64-linux-gnu/libc.so.6:malloc"),
        ),
        (
            "`captures.remote_events`",
            event("tracepoint:raw_syscalls:sys_enter"),
        ),
        // Whether a sample comes tells what is in memory.
        (
            "`captures.remote: all`",
            CaptureRequest {
                filter: "filename.ustring ~ \"*password*\"".to_owned(),
                ..event("tracepoint:syscalls:sys_enter_openat")
            },
        ),
        (
            "`captures.remote_rate_max_hz`",
            CaptureRequest {
                rate_hz: 9999,
                ..cpu_clock(2)
            },
        ),
        (
            "`withhold`",
            CaptureRequest {
                matchers: vec![LabelMatcher {
                    label: key::CGROUP.to_owned(),
                    op: MatchOp::Subtree as i32,
                    value: withheld.path().to_owned(),
                }],
                ..cpu_clock(2)
            },
        ),
    ];
    all.extend((0..8).map(|_| ("`captures.remote_duration_max_s`", cpu_clock(3600))));
    all
}

/// CPU time of a process so far. Unit: seconds.
fn cpu_s(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, behind) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = behind.split_whitespace().collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    // utime and stime; a tick is 10 ms on every machine that we know (proc_pid_stat(5)).
    (ticks(11) + ticks(12)) / 100.0
}

#[test]
fn a_collector_that_orders_everything_gets_nothing_needs_root() {
    let Some(_live) = live(&[Need::Root, Need::StaticC]) else {
        return;
    };
    let secret = Cgroup::new("vault");
    let _victim = c("split.c").named("victim").start_in(&secret, &[]);
    let dir = tempfile::tempdir().unwrap();
    let collector = IngestCollector::with(Behaviour {
        hears: true,
        ..Behaviour::default()
    });
    let yaml = format!(
        "windows: {{length_s: 1}}\n\
         withhold: ['cgroup^=\"{secret}\"']\n\
         collector: {{address: '{address}', host_id: under-test, spool: {{dir: {spool}}}}}\n",
        secret = secret.path(),
        address = collector.address(),
        spool = dir.path().join("spool").display(),
    );
    let daemon = Daemon::with().config(&yaml).start().sampling();
    let arrived = wait_for(LIMIT, || (daemon.export().acked_windows >= 2).then_some(()));
    arrived.expect("windows arrive");
    // What it may have: it is heard, and its stacks are there.
    let allowed = order(&collector, cpu_clock(2)).expect("it runs");
    assert!(allowed.total().count > 0);

    // As much as it takes without any order.
    let (begin, before) = (Instant::now(), cpu_s(daemon.pid()));
    std::thread::sleep(Duration::from_secs(5));
    let idle = (cpu_s(daemon.pid()) - before) / begin.elapsed().as_secs_f64();
    let (begin, before) = (Instant::now(), cpu_s(daemon.pid()));
    let mut count = 0;
    for round in 0..ROUNDS {
        for (key, request) in orders(&secret) {
            let told = format!("{round}: {} {request:?}", request.event);
            let refused = order(&collector, request).err();
            let refused = refused.unwrap_or_else(|| panic!("it ran: {told}"));
            assert!(refused.contains(key), "{told}: {refused}");
            count += 1;
        }
    }
    let took = cpu_s(daemon.pid()) - before;
    let beyond = took - idle * begin.elapsed().as_secs_f64();
    let most = ORDER_MAX_S * f64::from(count);
    println!("{count} orders: {took:.2} s of CPU time, {beyond:.2} s of them for orders");
    assert!(
        beyond < most,
        "{beyond:.2} s for {count} orders, {idle:.3} without"
    );

    // Each is in the log of the host, with who asked and the key.
    let log = daemon.log();
    let logged: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("capture from the collector refused"))
        .collect();
    assert_eq!(logged.len() as i32, count, "{log}");
    for (key, _) in orders(&secret) {
        let found = logged.iter().filter(|line| line.contains(key)).count();
        assert!(found >= ROUNDS, "{key} {found}: {log}");
    }
    assert!(logged.iter().all(|line| line.contains("mallory")), "{log}");

    // It takes the hour up, and no more than that: three of ten minutes that run side by side.
    // With the first one that is more than half an hour.
    for _ in 0..2 {
        collector.order(cpu_clock(600));
    }
    let last = order(&collector, cpu_clock(600)).err();
    let last = last.expect("refused");
    assert!(
        last.contains("`captures.remote_minutes_per_hour`"),
        "{last}"
    );

    // Windows go on all the while.
    let windows = daemon.export().acked_windows;
    let more = wait_for(LIMIT, || {
        (daemon.export().acked_windows > windows + 1).then_some(())
    });
    more.expect("windows arrive");
    daemon.stop();
}
