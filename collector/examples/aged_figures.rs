//! Measures what a day of a fleet costs as it ages: the fleet's profile over 24 h from minutes and
//! from hours, the size of each level, and the CPU for maintenance.
//!
//! `cargo run --release -p fleetprof-collector --example aged_figures [HOSTS [HOURS]]`, 5 hosts and
//! 24 hours without arguments. CPU is that of the querying or maintaining thread, by the
//! scheduler's own count.

#[path = "../tests/support/fleet.rs"]
mod fleet;

use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    Cancel, Limits, PushOutcome, StoreQueries, StoreStatus, TimeRange, WindowSink,
};
use fleet::{Fleet, Shape, WINDOW_NS};
use metrics::counted;
use profile::{Dictionary, GroupBy, Query};
use std::path::Path;
use std::time::{Duration, Instant};

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// 2026-01-15 00:00:00 UTC.
const BEGIN: i64 = 1_768_435_200 * SECOND;

type Failed = Box<dyn std::error::Error>;

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

fn limits() -> Limits {
    Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 4 << 30,
        nodes: 200_000,
        lines: 20,
    }
}

/// Pushes everything; returns rows and samples.
fn fill(dir: &Path, fleet: &Fleet, hosts: u64, steps: u64) -> Result<(u64, u64), Failed> {
    let store = EmbeddedStore::open(dir, Options::default(), BEGIN)?;
    let (mut rows, mut samples) = (0, 0);
    for step in 0..steps {
        let windows: Vec<_> = (0..hosts)
            .map(|host| fleet.window(host, step, BEGIN))
            .collect();
        rows += windows
            .iter()
            .map(|window| window.rows.len() as u64)
            .sum::<u64>();
        samples += windows.iter().map(Fleet::samples).sum::<u64>();
        let now = BEGIN + (step as i64 + 1) * WINDOW_NS;
        // Without upkeep: flushed when memory is full, and not put in order.
        let taken = store.push(&windows, &Dictionary::default(), now)?;
        let missing = taken.into_iter().filter_map(|taken| match taken {
            PushOutcome::NeedStacks(stacks) => Some(stacks),
            _ => None,
        });
        let missing: Vec<_> = missing.flatten().collect();
        if !missing.is_empty() {
            store.push(&windows, &fleet.define(&missing), now)?;
        }
    }
    store.close()?;
    Ok((rows, samples))
}

fn ask(store: &EmbeddedStore, name: &str, range: TimeRange, by: &[&str]) -> Result<(), Failed> {
    let query = Query::new("".parse()?, Vec::new(), GroupBy::from_keys(by))?;
    let (mut least, mut told) = (Duration::MAX, String::new());
    for _ in 0..3 {
        let before = cpu();
        let answer = store.profile(range, &query, &limits())?;
        least = least.min(cpu().saturating_sub(before));
        told = format!(
            "{} samples, steps of {} s",
            answer.data.total().count,
            answer.quality.resolution.step_ns / 1_000_000_000
        );
    }
    let ms = least.as_secs_f64() * 1000.0;
    println!("  {name:<34} {ms:>8.1} ms CPU  {told}");
    Ok(())
}

fn counter(store: &EmbeddedStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let found = counted(&metrics).find(|of| of.name == name);
    found.map_or(0, |of| of.value)
}

/// Lets everything be done that is due; returns the CPU it took and the longest call.
fn settle(store: &EmbeddedStore, now: i64) -> Result<(Duration, Duration), Failed> {
    let (before, mut longest) = (cpu(), Duration::ZERO);
    loop {
        for _ in 0..2 {
            let begin = Instant::now();
            store.maintain(now)?;
            longest = longest.max(begin.elapsed());
        }
        if counter(store, "fleetprof_store_compaction_pending") == 0 {
            return Ok((cpu().saturating_sub(before), longest));
        }
    }
}

fn main() -> Result<(), Failed> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let hosts = numbers.next().transpose()?.unwrap_or(5);
    let hours = numbers.next().transpose()?.unwrap_or(24);
    let shape = Shape {
        hosts,
        containers: 20,
        services: 12,
        stacks: 3_000,
        samples: 4_000,
    };
    let fleet = Fleet::new(1, shape);
    let folder = tempfile::tempdir()?;
    let (rows, samples) = fill(folder.path(), &fleet, hosts, hours * 360)?;
    let store = EmbeddedStore::open(folder.path(), Options::default(), BEGIN)?;
    let whole = TimeRange {
        start_unix_ns: BEGIN,
        end_unix_ns: BEGIN + hours as i64 * HOUR,
    };
    let off = TimeRange {
        start_unix_ns: whole.start_unix_ns + 420 * SECOND,
        end_unix_ns: whole.end_unix_ns - 2280 * SECOND,
    };
    println!("{hosts} hosts, {hours} hours: {rows} rows, {samples} samples");
    let stages = [
        ("as it was flushed", None),
        ("closed", Some(DAY + 3 * HOUR)),
        ("3 days old", Some(3 * DAY + HOUR)),
        ("20 days old", Some(20 * DAY)),
        ("100 days old", Some(100 * DAY)),
    ];
    for (name, age) in stages {
        if let Some(age) = age {
            let (cpu, longest) = settle(&store, BEGIN + age)?;
            println!(
                "{name}: {:.1} CPU-s to get there, {:.2} a million rows; longest call {} ms",
                cpu.as_secs_f64(),
                cpu.as_secs_f64() / (rows as f64 / 1e6),
                longest.as_millis()
            );
        } else {
            println!("{name}:");
        }
        let bytes =
            counter(&store, "fleetprof_store_bytes") - counter(&store, "fleetprof_store_log_bytes");
        println!("  {bytes} bytes, {:.3} a row", bytes as f64 / rows as f64);
        ask(&store, "fleet, the whole time", whole, &[])?;
        ask(&store, "fleet, 0:07 to 23:22", off, &[])?;
        ask(&store, "by service, the whole time", whole, &["service"])?;
        if name != "100 days old" {
            ask(&store, "by host, the whole time", whole, &["host"])?;
        }
    }
    Ok(())
}
