//! Tests the overview on handwritten fleets.

use super::noise::Noise;
use super::*;
use crate::store::{Resolution, TimeRange};
use profile::{Quality, Value};

const STEPS: usize = 60;

fn quality() -> DataQuality {
    DataQuality {
        covered: TimeRange {
            start_unix_ns: 0,
            end_unix_ns: 0,
        },
        resolution: Resolution {
            step_ns: 1,
            by_service: false,
        },
        hosts: 12,
        hosts_alive: 12,
        windows: 0,
        windows_unmeasured: 0,
        gaps: Vec::new(),
        gaps_total: 0,
        gap_ns_total: 0,
        sampling: Quality::default(),
        total: Value::default(),
        unit: "nanoseconds".to_owned(),
        pruned_weight: 0,
        named_later: Default::default(),
        damaged: Vec::new(),
        not_kept: Vec::new(),
    }
}

/// Twelve hosts that run `api`, `db` and `cron`; `cores` says how much, by service, host and step.
fn side(load: &mut Noise, cores: impl Fn(&str, usize, usize) -> f64) -> Side {
    let mut cells = BTreeMap::new();
    for service in ["api", "cron", "db"] {
        for host in 0..12 {
            let rates = (0..STEPS).map(|step| cores(service, host, step) * (1.0 + load.next(0.05)));
            let name = (service.to_owned(), format!("web-{host:02}"));
            cells.insert(name, rates.collect());
        }
    }
    Side {
        start_unix_ns: 0,
        step_ns: 60_000_000_000,
        cells,
        dark: vec![false; STEPS],
        silent: BTreeMap::new(),
        quality: quality(),
        accounted: true,
        waiting: Default::default(),
    }
}

/// A side without cells.
pub fn bare_side(steps: usize, step_ns: u64) -> Side {
    Side {
        start_unix_ns: 0,
        step_ns,
        cells: BTreeMap::new(),
        dark: vec![false; steps],
        silent: BTreeMap::new(),
        quality: quality(),
        accounted: true,
        waiting: Default::default(),
    }
}

/// What all of them need when nothing is wrong.
fn usual(service: &str, host: usize, step: usize) -> f64 {
    match service {
        "api" => 1.0,
        "db" => 0.5 + 0.1 * (host % 3) as f64,
        // A job every ten minutes.
        _ if step.is_multiple_of(10) => 0.6,
        _ => 0.01,
    }
}

fn judged(seed: u64, now: impl Fn(&str, usize, usize) -> f64) -> Judged {
    let mut load = Noise(seed);
    let before = side(&mut load, usual);
    judge(&before, &side(&mut load, now), "unit")
}

fn changed(rows: &[Row]) -> Vec<(&str, usize)> {
    let rows = rows.iter().filter(|row| row.significant);
    rows.map(|row| (row.name.as_str(), row.changed_hosts.len()))
        .collect()
}

#[test]
fn nothing_is_said_of_a_fleet_in_which_nothing_happened() {
    for seed in 0..20 {
        let found = judged(seed, usual);
        let alarms = [changed(&found.services), changed(&found.hosts)].concat();
        assert_eq!(
            (alarms, found.fleet.significant),
            (Vec::new(), false),
            "{seed}"
        );
        assert_eq!(found.outliers, []);
    }
}

/// Traffic of both sides by service, host (all together behind the last) and step, around 1: it
/// drifts for minutes, on all hosts of a service alike and on each by itself.
fn traffic(seed: u64) -> impl Fn(&str, usize, usize) -> f64 {
    let mut noise = Noise(seed);
    let mut line = || {
        let mut off = 0.0;
        let next = |_| {
            off = 0.88 * off + noise.next(0.03 * 0.475);
            off
        };
        (0..2 * STEPS).map(next).collect::<Vec<f64>>()
    };
    let lines: Vec<Vec<Vec<f64>>> = (0..3).map(|_| (0..=12).map(|_| line()).collect()).collect();
    move |service, host, step| {
        let of = &lines[["api", "cron", "db"]
            .iter()
            .position(|one| *one == service)
            .expect("one")];
        1.0 + of[host][step] + of[12][step]
    }
}

#[test]
fn traffic_that_drifts_is_no_alarm() {
    let alarms = (0..20).filter(|&seed| {
        let traffic = traffic(100 + seed);
        let mut load = Noise(seed);
        let cores = |from: usize| {
            let traffic = &traffic;
            move |service: &str, host: usize, step: usize| {
                usual(service, host, step) * traffic(service, host, from + step)
            }
        };
        let before = side(&mut load, cores(0));
        let found = judge(&before, &side(&mut load, cores(STEPS)), "unit");
        let rows = found.services.iter().chain(&found.hosts);
        rows.chain([&found.fleet]).any(|row| row.significant)
    });
    assert_eq!(alarms.count(), 0);
}

#[test]
fn a_change_on_a_third_of_the_hosts_names_service_hosts_and_time() {
    let slower = |service: &str, host: usize, step: usize| {
        let more = service == "api" && host < 4 && step >= 20;
        usual(service, host, step) * if more { 1.2 } else { 1.0 }
    };
    let found = judged(7, slower);
    assert_eq!(changed(&found.services), [("api", 4)]);
    let api = &found.services[0];
    assert_eq!(api.hosts, 12);
    let shift = api.shift.expect("a change");
    assert!((19..=21).contains(&shift.steps.0), "{shift:?}");
    assert!((shift.change - 0.8).abs() < 0.2, "{shift:?}");
    let mut hosts: Vec<_> = api.changed_hosts.iter().map(String::as_str).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, ["web-00", "web-01", "web-02", "web-03"]);
}

#[test]
fn a_small_change_of_one_host_is_found_in_the_noise_of_all() {
    let slower = |service: &str, host: usize, step: usize| {
        let more = service == "db" && host == 5;
        usual(service, host, step) * if more { 1.3 } else { 1.0 }
    };
    let found = judged(8, slower);
    assert_eq!(changed(&found.services), [("db", 1)]);
    assert_eq!(found.services[0].changed_hosts, ["web-05"]);
    assert_eq!(found.services[0].shift.expect("a change").steps, (0, STEPS));
}

#[test]
fn a_host_that_is_held_back_differs_from_its_peers() {
    let throttled = |service: &str, host: usize, step: usize| {
        usual(service, host, step) * if host == 3 { 0.3 } else { 1.0 }
    };
    let found = judged(9, throttled);
    let outlier = &found.outliers[0];
    assert_eq!((outlier.0.host.as_str(), outlier.1), ("web-03", false));
    assert!(outlier.0.deviations < -4.0);
    assert!(changed(&found.hosts).contains(&("web-03", 0)));
    assert!(found.hosts[0].change() < 0.0, "the largest change first");
}

#[test]
fn a_host_that_was_different_all_the_time_is_no_news() {
    let mut load = Noise(10);
    let large = |service: &str, host: usize, step: usize| {
        usual(service, host, step) * if host == 2 { 4.0 } else { 1.0 }
    };
    let before = side(&mut load, large);
    let found = judge(&before, &side(&mut load, large), "unit");
    assert_eq!(changed(&found.services), []);
    assert!(found.outliers.iter().all(|(_, before)| *before));
    assert!(!found.outliers.is_empty());
}

#[test]
fn a_service_that_starts_and_one_that_ends_are_changes() {
    let mut load = Noise(11);
    let without = |gone: &'static str| {
        move |service: &str, host: usize, step: usize| {
            usual(service, host, step) * f64::from(u8::from(service != gone))
        }
    };
    let before = side(&mut load, without("api"));
    let after = side(&mut load, without("db"));
    let found = judge(&before, &after, "unit");
    let answer = answer_of(found, (before, after), 10, Functions::default(), |_| {
        Default::default()
    });
    let change = |name: &str| {
        let mut rows = answer.services.iter();
        let row = rows.find(|row| row.name == name).expect("a row");
        row.change.expect("a change")
    };
    assert!(change("api").significant && change("api").appeared);
    assert!(change("db").significant && change("db").vanished);
}

#[test]
fn steps_without_data_are_told_as_such() {
    let mut load = Noise(12);
    let mut before = side(&mut load, usual);
    let mut after = side(&mut load, usual);
    for side in [&mut before, &mut after] {
        side.dark[5] = true;
        for line in side.cells.values_mut() {
            line[5] = f64::NAN;
        }
    }
    let found = judge(&before, &after, "unit");
    assert_eq!(changed(&found.services), []);
    let answer = answer_of(found, (before, after), 10, Functions::default(), |_| {
        Default::default()
    });
    let fleet = answer.fleet.expect("the fleet");
    assert_eq!(fleet.steps[5], -1.0);
    assert!(fleet.steps[6] > 0.0);
}

#[test]
fn steps_are_as_long_as_a_range_needs() {
    let hours = |hours: i64| TimeRange {
        start_unix_ns: 0,
        end_unix_ns: hours * 3_600_000_000_000,
    };
    let seconds = |range, baseline| step(range, baseline) / 1_000_000_000;
    assert_eq!(seconds(hours(1), hours(1)), 60);
    assert_eq!(seconds(hours(1), hours(24)), 1800, "of the longer side");
    assert_eq!(seconds(hours(24 * 7), hours(1)), 10_800);
    let years = seconds(hours(24 * 3650), hours(0));
    assert!(24 * 3650 * 3600 / years <= STEPS_MAX);
}

#[test]
fn a_host_that_joins_late_does_not_move_when_it_started() {
    let slower = |service: &str, host: usize, step: usize| {
        let from = if host == 5 { 50 } else { 20 };
        // Too few to be seen in the sum, which others make up for.
        let way = match host {
            0..=2 | 5 if step >= from => 1.4,
            6..=9 if step >= 20 => 0.65,
            _ => 1.0,
        };
        usual(service, host, step) * if service == "api" { way } else { 1.0 }
    };
    let found = judged(9, slower);
    let api = &found.services[0];
    let starts = api.shift.map(|shift| shift.steps.0);
    assert!(
        api.significant && starts.is_some_and(|start| (19..=21).contains(&start)),
        "{starts:?}"
    );
}
