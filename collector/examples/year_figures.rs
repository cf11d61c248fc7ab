//! Measures whether a collector can run for years: memory, start-up and a five-minute query at 30,
//! 90 and 365 days.
//!
//! `cargo run --release -p fleetprof-collector --example year_figures [HOSTS]` lets a store of 200
//! hosts live for a year by its own clock.
//! Most of it comes as one window an hour, because what is older than two days is kept in coarser
//! steps anyway; the two days before each look come as agents send them, every ten seconds. At each
//! age a process of its own opens the store and asks for the last five minutes.
//!
//! It fails when a start reads more than [`OPENED_MAX`] partitions or a query more than at the
//! first age, when a start or a query takes more CPU by [`START_NOISE`] and [`QUERY_NOISE`], or
//! when memory grows by more than [`PARTITION_BYTES`] a partition: none of them may follow
//! retention.

#[path = "../tests/support/fleet.rs"]
mod fleet;

use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    Cancel, Limits, NewWindow, PushOutcome, StoreQueries, StoreStatus, TimeRange, WindowSink,
};
use fleet::{Fleet, Shape, WINDOW_NS};
use metrics::counted;
use profile::{Dictionary, GroupBy, Query};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::numbering;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// 2026-01-15 00:00:00 UTC.
const BEGIN: i64 = 1_768_435_200 * SECOND;

/// Ages at which the store is looked at. Unit: days.
const LOOKS: [i64; 3] = [30, 90, 365];

/// Most memory for a partition that no query needs: its name, and up to where the log is in it.
/// Whatever it had of hosts would show: that is half a KiB a host. Unit: bytes.
const PARTITION_BYTES: u64 = 6 << 10;

/// Most CPU that a start may take more at one age than at another: the folder is listed and each
/// file asked for its size, which takes microseconds a partition.
const START_NOISE: Duration = Duration::from_millis(50);

/// Most partitions that a start may read: those written to in the last second before the store was
/// closed, when a few become coarser.
const OPENED_MAX: u64 = 8;

/// Most CPU that a query may take more at one age than at another.
const QUERY_NOISE: Duration = Duration::from_millis(10);

/// Memory that two processes doing the same may differ by. Unit: bytes.
const NOISE_BYTES: u64 = 8 << 20;

/// Windows made up for each host; they come again and again at other times.
const VARIANTS: u64 = 16;

/// What is asked for: the last five minutes. Unit: nanoseconds.
const ASKED_NS: i64 = 300 * SECOND;

/// Times the question is asked once more; the scheduler counts CPU in steps of some milliseconds.
const ASKED: u32 = 100;

type Failed = Box<dyn std::error::Error>;

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text.split(' ').next().and_then(|ns| ns.parse().ok());
    Duration::from_nanos(ns.unwrap_or(0))
}

/// Memory of the process. Unit: bytes.
fn memory() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("VmRSS"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) << 10
}

fn options() -> Options {
    Options {
        retention_ns: 400 * DAY as u64,
        ..Options::default()
    }
}

fn counter(store: &EmbeddedStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let found = counted(&metrics).find(|of| of.name == name);
    found.map_or(0, |of| of.value)
}

/// Which of the made-up windows of a host stands for one.
fn variant(start: i64, len: i64) -> usize {
    ((start - BEGIN) / len) as usize % VARIANTS as usize
}

/// A fleet that sends windows of any length at any time.
struct Agents {
    fleet: Fleet,
    /// By host.
    variants: Vec<Vec<NewWindow>>,
}

impl Agents {
    fn new(hosts: u64) -> Agents {
        let fleet = Fleet::new(
            1,
            Shape {
                hosts,
                containers: 4,
                services: 12,
                stacks: 100,
                samples: 30,
            },
        );
        let variants = (0..hosts).map(|host| {
            let numbers = 0..VARIANTS;
            numbers.map(|at| fleet.window(host, at, BEGIN)).collect()
        });
        Agents {
            variants: variants.collect(),
            fleet,
        }
    }

    /// Samples of all hosts in the last five minutes.
    fn last_samples(&self, now: i64) -> u64 {
        let starts = (now - ASKED_NS..now).step_by(WINDOW_NS as usize);
        let variants = starts.map(|start| variant(start, WINDOW_NS));
        let windows = variants.flat_map(|at| self.variants.iter().map(move |of| &of[at]));
        windows.map(Fleet::samples).sum()
    }

    /// A window of every host: stored when it returns.
    fn push(&self, store: &EmbeddedStore, start: i64, len: i64) -> Result<(), Failed> {
        let since = start - BEGIN;
        let variant = variant(start, len);
        let hosts = self.variants.iter().enumerate();
        let windows = hosts.map(|(host, variants)| {
            let mut window = variants[variant].clone();
            window.origin.sequence = numbering::sequence(host as u64, since);
            window.range = TimeRange {
                start_unix_ns: start,
                end_unix_ns: start + len,
            };
            window
        });
        let mut windows: Vec<_> = windows.collect();
        let mut missing = Vec::new();
        while !windows.is_empty() {
            let defined = match missing.is_empty() {
                true => Dictionary::default(),
                false => self.fleet.define(&missing),
            };
            let mut taken = store.push(&windows, &defined, start + len)?.into_iter();
            windows.retain(|_| match taken.next() {
                Some(PushOutcome::NeedStacks(stacks)) => {
                    missing.extend(stacks);
                    true
                }
                _ => false,
            });
        }
        Ok(())
    }
}

/// Lets everything be done that is due.
fn settle(store: &EmbeddedStore, now: i64) -> Result<(), Failed> {
    loop {
        store.maintain(now)?;
        store.maintain(now)?;
        if counter(store, "fleetprof_store_compaction_pending") == 0 {
            return Ok(());
        }
    }
}

/// What a process that opens the store finds.
struct Look {
    start_ms: f64,
    opened_bytes: u64,
    asked_bytes: u64,
    first_ms: f64,
    mean_ms: f64,
    partitions: u64,
    partitions_opened: u64,
    partitions_read: u64,
}

/// Opens the store and asks; prints the numbers of a [`Look`] for the process that started this
/// one.
fn look(dir: &Path, now: i64, samples: u64) -> Result<(), Failed> {
    let before = cpu();
    let store = EmbeddedStore::open(dir, options(), now)?;
    let start = cpu().saturating_sub(before);
    let opened_bytes = memory();
    let range = TimeRange {
        start_unix_ns: now - ASKED_NS,
        end_unix_ns: now,
    };
    let limits = Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 1 << 30,
        nodes: 200_000,
        lines: 20,
    };
    let query = Query::new("".parse()?, Vec::new(), GroupBy::from_keys(&["service"]))?;
    let ask = || -> Result<(), Failed> {
        let answer = store.profile(range, &query, &limits)?;
        assert_eq!(answer.data.total().count, samples);
        assert_eq!(answer.quality.gaps_total, 0);
        Ok(())
    };
    let before = cpu();
    ask()?;
    let first = cpu().saturating_sub(before);
    let before = cpu();
    (0..ASKED).try_for_each(|_| ask())?;
    let mean = cpu().saturating_sub(before) / ASKED;
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{} {opened_bytes} {} {} {} {} {} {}",
        ms(start),
        memory(),
        ms(first),
        ms(mean),
        counter(&store, "fleetprof_store_partitions"),
        counter(&store, "fleetprof_store_partitions_opened_at_start"),
        counter(&store, "fleetprof_store_partitions_read_total") / u64::from(ASKED + 1),
    );
    Ok(())
}

fn look_apart(dir: &Path, now: i64, samples: u64) -> Result<Look, Failed> {
    let output = Command::new(std::env::current_exe()?)
        .arg("look")
        .arg(dir)
        .args([now.to_string(), samples.to_string()])
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
    let [
        start_ms,
        opened_bytes,
        asked_bytes,
        first_ms,
        mean_ms,
        partitions,
        opened,
        read,
    ] = numbers?[..]
    else {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    };
    Ok(Look {
        start_ms,
        opened_bytes: opened_bytes as u64,
        asked_bytes: asked_bytes as u64,
        first_ms,
        mean_ms,
        partitions: partitions as u64,
        partitions_opened: opened as u64,
        partitions_read: read as u64,
    })
}

fn live(hosts: u64) -> Result<Vec<Look>, Failed> {
    let agents = Agents::new(hosts);
    let folder = tempfile::tempdir()?;
    let (mut looks, mut day) = (Vec::new(), 0);
    for age in LOOKS {
        let store = EmbeddedStore::open(folder.path(), options(), BEGIN + day * DAY)?;
        while day < age {
            let len = match age - day {
                1 | 2 => WINDOW_NS,
                _ => HOUR,
            };
            let (from, to) = (BEGIN + day * DAY, BEGIN + (day + 1) * DAY);
            let mut at = from;
            while at < to {
                agents.push(&store, at, len)?;
                at += len;
                if at % HOUR == 0 {
                    store.maintain(at)?;
                }
            }
            settle(&store, to)?;
            day += 1;
        }
        store.close()?;
        drop(store);
        let now = BEGIN + age * DAY;
        looks.push(look_apart(folder.path(), now, agents.last_samples(now))?);
        eprintln!("{age} days are over");
    }
    Ok(looks)
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [word, dir, now, samples] = &arguments[..]
        && word == "look"
    {
        return look(Path::new(dir), now.parse()?, samples.parse()?);
    }
    let hosts = match &arguments[..] {
        [] => 200,
        [hosts, ..] => hosts.parse()?,
    };
    let looks = live(hosts)?;
    println!(
        "{hosts} hosts\n\
         days  partitions  start CPU ms  opened  memory MiB  after queries MiB  query CPU ms (first)  partitions read"
    );
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    for (days, of) in LOOKS.iter().zip(&looks) {
        println!(
            "{days:>4}  {:>10}  {:>12.0}  {:>6}  {:>10.1}  {:>17.1}  {:>12.1} ({:>5.1})  {:>15}",
            of.partitions,
            of.start_ms,
            of.partitions_opened,
            mib(of.opened_bytes),
            mib(of.asked_bytes),
            of.mean_ms,
            of.first_ms,
            of.partitions_read
        );
    }
    for of in &looks {
        let more = of.partitions - looks[0].partitions;
        let most = looks[0].asked_bytes + NOISE_BYTES + more * PARTITION_BYTES;
        assert!(of.asked_bytes <= most, "memory grows with retention");
        let is_more = |ms: f64, first: f64, noise: Duration| ms > first + noise.as_secs_f64() * 1e3;
        assert!(
            !is_more(of.start_ms, looks[0].start_ms, START_NOISE),
            "a start grows with retention"
        );
        assert!(
            !is_more(of.mean_ms, looks[0].mean_ms, QUERY_NOISE),
            "a query grows with retention"
        );
        assert!(
            of.partitions_opened <= OPENED_MAX,
            "a start reads more when more is kept"
        );
        assert_eq!(
            of.partitions_read, looks[0].partitions_read,
            "a query reads more when more is kept"
        );
    }
    Ok(())
}
