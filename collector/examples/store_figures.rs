//! Measures what the embedded store costs: rows a second, CPU, bytes and memory of ingest, CPU of
//! queries.
//!
//! `cargo run --release -p fleetprof-collector --example store_figures [HOSTS [MINUTES]]` makes up
//! a fleet, pushes it through the store as collectors do (durable windows, in order of time), and
//! asks what people ask. Without arguments: 10 hosts and 20 hosts, one hour. CPU is of the thread
//! that pushes or asks, by the scheduler's own count, so making the fleet up is not in it.

#[path = "../tests/support/fleet.rs"]
mod fleet;

use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    Cancel, Limits, NewWindow, PushOutcome, Scope, StoreQueries, StoreStatus, TimeRange, WindowSink,
};
use fleet::{Fleet, Shape, WINDOW_NS};
use metrics::counted;
use profile::{Dictionary, GroupBy, Query, Selector, TopBy, TopSort};
use std::path::Path;
use std::time::{Duration, Instant};

const SECOND: i64 = 1_000_000_000;

/// 2026-01-15 00:00:00 UTC.
const BEGIN: i64 = 1_768_435_200 * SECOND;

/// Times each query is asked; the least counts.
const ASKED: usize = 3;

type Failed = Box<dyn std::error::Error>;

/// CPU time of this thread.
fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// Memory of the process, now and at most. Unit: MiB.
fn memory() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number
            .and_then(|number| number.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (kib("VmRSS") / 1024, kib("VmHWM") / 1024)
}

fn bytes_below(path: &Path) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        sum += if entry.file_type()?.is_dir() {
            bytes_below(&entry.path())?
        } else {
            entry.metadata()?.len()
        };
    }
    Ok(sum)
}

/// Size of the log's own dictionaries, which are written when the log is cut.
fn dictionaries(dir: &Path) -> std::io::Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir)? {
        let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
        if kind.is_dir() {
            sum += dictionaries(&path)?;
        } else if path.extension().is_some_and(|end| end == "dict") {
            sum += std::fs::metadata(&path)?.len();
        }
    }
    Ok(sum)
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

#[derive(Default)]
struct Ingest {
    rows: u64,
    samples: u64,
    cpu: Duration,
    wall: Duration,
    longest: Duration,
}

/// Pushes windows as they come within one step of time: all of them in one call, as a collector
/// groups them.
fn push(
    store: &EmbeddedStore,
    fleet: &Fleet,
    windows: &[NewWindow],
    now: i64,
) -> Result<(), Failed> {
    let taken = store.push(windows, &Dictionary::default(), now)?;
    let mut again = Vec::new();
    let mut missing = Vec::new();
    for (window, taken) in windows.iter().zip(taken) {
        if let PushOutcome::NeedStacks(stacks) = taken {
            missing.extend(stacks);
            again.push(window.clone());
        }
    }
    if !again.is_empty() {
        let taken = store.push(&again, &fleet.define(&missing), now)?;
        assert!(taken.iter().all(|taken| *taken == PushOutcome::Stored));
    }
    Ok(())
}

fn ingest(store: &EmbeddedStore, fleet: &Fleet, hosts: u64, steps: u64) -> Result<Ingest, Failed> {
    let mut all = Ingest::default();
    for step in 0..steps {
        let windows: Vec<_> = (0..hosts)
            .map(|host| fleet.window(host, step, BEGIN))
            .collect();
        all.rows += windows
            .iter()
            .map(|window| window.rows.len() as u64)
            .sum::<u64>();
        all.samples += windows.iter().map(Fleet::samples).sum::<u64>();
        let now = BEGIN + (step as i64 + 1) * WINDOW_NS;
        let (begin, cpu_before) = (Instant::now(), cpu());
        push(store, fleet, &windows, now)?;
        store.maintain(now)?;
        all.cpu += cpu().saturating_sub(cpu_before);
        all.wall += begin.elapsed();
        all.longest = all.longest.max(begin.elapsed());
    }
    let (begin, cpu_before) = (Instant::now(), cpu());
    // To the store it is long after the last window: it flushes the rest.
    store.maintain(BEGIN + 12 * 3600 * SECOND)?;
    all.cpu += cpu().saturating_sub(cpu_before);
    all.wall += begin.elapsed();
    Ok(all)
}

fn ask(name: &str, mut question: impl FnMut() -> Result<u64, Failed>) -> Result<(), Failed> {
    let (mut least, mut first, mut found) = (Duration::MAX, None, 0);
    for _ in 0..ASKED {
        let before = cpu();
        found = question()?;
        let took = cpu().saturating_sub(before);
        first.get_or_insert(took);
        least = least.min(took);
    }
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!(
        "  {name:<28} {:>8.1} ms CPU ({:.1} first)  {found} samples",
        ms(least),
        ms(first.unwrap_or_default())
    );
    Ok(())
}

fn ask_all(store: &EmbeddedStore, fleet: &Fleet, minutes: u64) -> Result<(), Failed> {
    let range = TimeRange {
        start_unix_ns: BEGIN,
        end_unix_ns: BEGIN + minutes as i64 * 60 * SECOND,
    };
    let profile = |selector: &str| -> Result<profile::Profile, Failed> {
        let keys: [&str; 0] = [];
        let query = Query::new(selector.parse()?, Vec::new(), GroupBy::from_keys(&keys))?;
        Ok(store.profile(range, &query, &limits())?.data)
    };
    let container = fleet.labels(0, 0).get("container").to_owned();
    let of_container = format!("container={container}");
    ask("container", || Ok(profile(&of_container)?.total().count))?;
    let of_service = format!("service={}", fleet.labels(0, 0).get("service"));
    ask("service", || Ok(profile(&of_service)?.total().count))?;
    ask("fleet", || Ok(profile("")?.total().count))?;
    ask("one host, off the minute", || {
        let range = TimeRange {
            start_unix_ns: range.start_unix_ns + 10 * SECOND,
            end_unix_ns: range.end_unix_ns - 10 * SECOND,
        };
        let query = Query::new("host=host-0000".parse()?, Vec::new(), GroupBy::All)?;
        Ok(store.profile(range, &query, &limits())?.data.total().count)
    })?;
    ask("series by cgroup, 1 min", || {
        let scope = Scope {
            range,
            selector: Selector::default(),
        };
        let answer = store.series(
            &scope,
            &["cgroup".to_owned()],
            60 * SECOND as u64,
            &limits(),
        )?;
        Ok(answer.quality.total.count)
    })?;
    ask("top 50 of the fleet", || {
        let profile = profile("")?;
        let top = profile.top(&TopBy::Function, TopSort::Own, 50);
        Ok(top.total.count)
    })
}

fn shape(hosts: u64) -> Shape {
    Shape {
        hosts,
        containers: 25,
        services: 12,
        stacks: 3_000,
        samples: 18_000,
    }
}

fn counter(store: &EmbeddedStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let found = counted(&metrics).filter(|of| of.name == name);
    found.map(|of| of.value).sum()
}

fn figures(hosts: u64, minutes: u64) -> Result<(), Failed> {
    let fleet = Fleet::new(1, shape(hosts));
    let folder = tempfile::tempdir()?;
    let store = EmbeddedStore::open(folder.path(), Options::default(), BEGIN)?;
    let before = memory().0;
    let ingest = ingest(&store, &fleet, hosts, minutes * 6)?;
    let (rss, peak) = memory();
    println!(
        "{hosts} hosts, {minutes} minutes: {} rows, {} samples",
        ingest.rows, ingest.samples
    );
    let millions = ingest.rows as f64 / 1e6;
    println!(
        "  ingest: {:.0} rows/s, {:.3} CPU-s per 1M rows, longest push {:.0} ms",
        ingest.rows as f64 / ingest.wall.as_secs_f64(),
        ingest.cpu.as_secs_f64() / millions,
        ingest.longest.as_secs_f64() * 1000.0
    );
    println!("  memory: {rss} MiB, at most {peak} MiB; the fleet itself {before} MiB");
    let logged = counter(&store, "fleetprof_store_log_written_bytes_total");
    println!(
        "  log: {logged} bytes in {} batches, {:.2} a row; and {} bytes of dictionaries",
        counter(&store, "fleetprof_store_log_batches_total"),
        logged as f64 / ingest.rows as f64,
        dictionaries(&folder.path().join("wal"))?
    );
    ask_all(&store, &fleet, minutes)?;
    store.close()?;
    let on_disk = bytes_below(folder.path())?;
    println!(
        "  on disk: {on_disk} bytes, {:.2} a row",
        on_disk as f64 / ingest.rows as f64
    );
    start_after_a_kill(hosts, minutes.min(20))
}

/// What a kill leaves is read again: windows that are in no file yet.
fn start_after_a_kill(hosts: u64, minutes: u64) -> Result<(), Failed> {
    let fleet = Fleet::new(1, shape(hosts));
    let folder = tempfile::tempdir()?;
    let options = || Options {
        memtable_bytes: 1 << 30,
        ..Options::default()
    };
    let store = EmbeddedStore::open(folder.path(), options(), BEGIN)?;
    let mut rows = 0;
    for step in 0..minutes * 6 {
        let windows = (0..hosts).map(|host| fleet.window(host, step, BEGIN));
        let windows: Vec<_> = windows.collect();
        rows += windows
            .iter()
            .map(|window| window.rows.len())
            .sum::<usize>();
        push(
            &store,
            &fleet,
            &windows,
            BEGIN + (step as i64 + 1) * WINDOW_NS,
        )?;
    }
    let batches = counter(&store, "fleetprof_store_log_batches_total");
    drop(store);
    let (begin, cpu_before) = (Instant::now(), cpu());
    let store = EmbeddedStore::open(folder.path(), options(), BEGIN)?;
    println!(
        "  start after a kill: {rows} rows in {batches} batches, {:.0} ms, {:.0} ms CPU, {} records",
        begin.elapsed().as_secs_f64() * 1000.0,
        cpu().saturating_sub(cpu_before).as_secs_f64() * 1000.0,
        counter(&store, "fleetprof_store_log_records_replayed_total"),
    );
    Ok(())
}

fn main() -> Result<(), Failed> {
    let numbers: Vec<u64> = std::env::args()
        .skip(1)
        .map(|text| text.parse())
        .collect::<Result<_, _>>()?;
    match numbers[..] {
        [] => {
            figures(10, 60)?;
            figures(20, 60)
        }
        [hosts] => figures(hosts, 60),
        [hosts, minutes, ..] => figures(hosts, minutes),
    }
}
