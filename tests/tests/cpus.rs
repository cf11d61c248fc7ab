//! CPUs that go offline and come back under a running daemon.

use proto::agent::{CpuStatus, GetStatusResponse};
use std::time::Duration;
use testkit::cpu::Offline;
use testkit::process::wait_for;
use testkit::workload::Workload;
use testkit::{Client, Daemon, Need, live};

/// Longest that the daemon may take to see a change. It sees one at once, but is not always run at
/// once.
const SEEN: Duration = Duration::from_secs(20);
const NEEDS: &[Need] = &[Need::Root, Need::SecondCpu];

fn cpu(status: &GetStatusResponse, number: usize) -> CpuStatus {
    status.cpus[number]
}

/// A status in which `wanted` is so.
fn status(client: &Client, wanted: impl Fn(&GetStatusResponse) -> bool) -> GetStatusResponse {
    let found = wait_for(SEEN, || {
        client.status().ok().filter(|status| wanted(status))
    });
    found.unwrap_or_else(|| panic!("not seen: {:#?}", client.status().map(|s| s.cpus)))
}

fn spinner() -> Workload {
    Workload::spawn(std::process::Command::new("sh").args(["-c", "while :; do :; done"]))
}

#[test]
fn a_cpu_that_comes_back_misses_only_the_time_it_was_away_needs_root() {
    let Some(live) = live(NEEDS) else {
        return;
    };
    // Busy CPUs tick alike; not every machine's clock ticks on idle ones.
    let daemon = Daemon::start().sampling();
    let _busy: Vec<Workload> = (0..4).map(|_| spinner()).collect();
    let client = daemon.client();
    let before = status(&client, |s| cpu(s, 1).samples > 0);
    let offline = Offline::take(&live);
    let while_away = status(&client, |s| {
        !cpu(s, 1).online && cpu(s, 1).away_ns > 1_000_000_000
    });
    let sampling = while_away.sampling.clone().unwrap();
    assert_eq!((sampling.cpus_online, sampling.cpus_sampled), (1, 1));
    let degraded =
        |s: &GetStatusResponse| s.degradations.iter().any(|d| d.id == "cpus_not_sampled");
    assert!(
        !degraded(&while_away),
        "a CPU that is off is no degradation"
    );
    drop(offline);
    let back = status(&client, |s| {
        let had = cpu(&while_away, 1).samples;
        cpu(s, 1).online && cpu(s, 1).samples > had + 50
    });
    let sampling = back.sampling.clone().unwrap();
    assert_eq!((sampling.cpus_online, sampling.cpus_sampled), (2, 2));
    assert!(!degraded(&back));
    // Both CPUs tick alike, and both are counted up to the same moment.
    let ticks = |number| {
        let (before, back) = (cpu(&before, number), cpu(&back, number));
        back.samples + back.missed_samples - before.samples - before.missed_samples
    };
    let missing = ticks(0) as i64 - ticks(1) as i64;
    let away = (cpu(&back, 1).away_ns * u64::from(sampling.rate_hz) / 1_000_000_000) as i64;
    eprintln!(
        "{missing} ticks are missing, {away} while away: {:?}",
        back.cpus
    );
    // What the kernel takes before and after it says so is counted as missed; each of three parts
    // of the time, and each of two statuses, is rounded to a tick.
    assert!((missing - away).abs() <= 10, "{missing} for {away}");
    assert_eq!(cpu(&back, 0).away_ns, 0);
    let told = daemon.ctl(&["status", "--cpus"]).text();
    assert!(told.contains("online, was away"), "{told}");
}

#[test]
fn a_cpu_that_is_away_for_a_moment_is_sampled_again_needs_root() {
    let Some(live) = live(NEEDS) else {
        return;
    };
    let daemon = Daemon::start().sampling();
    let _busy: Vec<Workload> = (0..4).map(|_| spinner()).collect();
    let client = daemon.client();
    for _ in 0..3 {
        drop(Offline::take(&live));
    }
    // A look that comes after both, going and coming, counts what lay between as missed.
    let told = |s: &CpuStatus| s.away_ns > 0 || s.missed_samples > 0;
    let after = status(&client, |s| told(&cpu(s, 1)) && cpu(s, 1).online);
    status(&client, |s| cpu(s, 1).samples > cpu(&after, 1).samples + 50);
    assert!(!daemon.log().contains("ERROR"), "{}", daemon.log());
}
