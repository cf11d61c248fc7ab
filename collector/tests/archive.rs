//! Tests the archive of the embedded store against a real S3 server.
//!
//! The server is PyPI's `moto`, installed by `collector/tests/s3.sh`, with faults in front of it.
//! Without it, every test here reports that and does nothing.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

#[path = "archive/faults.rs"]
mod faults;
#[path = "support/fleet.rs"]
mod fleet;
#[path = "archive/life.rs"]
mod life;
#[path = "archive/owners.rs"]
mod owners;
#[path = "archive/program.rs"]
mod program;
#[path = "archive/server.rs"]
mod server;

use collector::store::embedded::{ArchiveOptions, EmbeddedStore, Options};
use collector::store::{
    Cancel, HostFacts, HostRecord, Limits, NewWindow, PushOutcome, QueryResult, Scope, StoreError,
    StoreQueries, StoreStatus, TimeRange, WindowSink,
};
use fleet::{Fleet, Shape};
use metrics::{Counted, counted};
use profile::{GroupBy, Profile, Query, Selector};
use server::TestBucket;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// 2026-01-15 00:00:00 UTC: where partitions of any length start.
const BEGIN: i64 = 1_768_435_200 * SECOND;

const SMALL: Shape = Shape {
    hosts: 2,
    containers: 3,
    services: 2,
    stacks: 60,
    samples: 100,
};

/// A store of two-hour partitions that keeps them three days on the disk and 30 in the bucket.
fn options(bucket: &TestBucket) -> Options {
    Options {
        partition_ns: 2 * HOUR as u64,
        archive: Some(ArchiveOptions {
            bucket: bucket.options(),
            local_ns: 3 * DAY as u64,
            retention_ns: 30 * DAY as u64,
            cache_bytes: 64 << 20,
            part_bytes: 5 << 20,
            piece_bytes: 2 << 10,
        }),
        ..Options::default()
    }
}

fn open(dir: &Path, options: &Options) -> EmbeddedStore {
    EmbeddedStore::open(dir, options.clone(), BEGIN + DAY).unwrap()
}

fn ample() -> Limits {
    Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + Duration::from_secs(600),
        memory_bytes: 1 << 30,
        nodes: 1 << 20,
        lines: 1 << 16,
    }
}

fn range(from: i64, to: i64) -> TimeRange {
    TimeRange {
        start_unix_ns: BEGIN + from,
        end_unix_ns: BEGIN + to,
    }
}

fn push(store: &EmbeddedStore, fleet: &Fleet, window: NewWindow, now: i64) -> PushOutcome {
    let windows = [window];
    let mut asked = Vec::new();
    for _ in 0..8 {
        let outcome = store.push(&windows, &fleet.define(&asked), now).unwrap();
        match outcome.into_iter().next().unwrap() {
            PushOutcome::NeedStacks(stacks) => asked.extend(stacks),
            other => return other,
        }
    }
    panic!("it is asked for the same again and again");
}

/// Stores windows of all hosts: each tenth of two partitions and a half, which start at [`BEGIN`].
fn fill(store: &EmbeddedStore, fleet: &Fleet) {
    for host in 0..SMALL.hosts {
        for sequence in (0..1800).step_by(10) {
            let window = fleet.window(host, sequence, BEGIN);
            let now = window.range.end_unix_ns;
            assert_eq!(push(store, fleet, window, now), PushOutcome::Stored);
        }
    }
    let hosts = (0..SMALL.hosts).map(|host| HostRecord {
        key: Fleet::host(host),
        facts: HostFacts::default(),
        first_seen_unix_ns: BEGIN,
        last_seen_unix_ns: BEGIN + 5 * HOUR,
        clock_ahead_ns: 0,
    });
    store.put_hosts(&hosts.collect::<Vec<_>>()).unwrap();
}

/// Has the store do what is due so long after [`BEGIN`], the archive included.
fn settle(store: &EmbeddedStore, age: i64) {
    maintain(store, age);
    archive(store, age).unwrap();
    maintain(store, age);
}

fn maintain(store: &EmbeddedStore, age: i64) {
    let pending = || number(store, "fleetprof_store_compaction_pending");
    for _ in 0..10_000 {
        store.maintain(BEGIN + age).unwrap();
        // What was flushed or downsampled just now is looked at by the next call.
        store.maintain(BEGIN + age).unwrap();
        if pending() == 0 {
            return;
        }
    }
    panic!("maintenance does not end");
}

fn archive(store: &EmbeddedStore, age: i64) -> Result<(), StoreError> {
    let cancel = Cancel::default();
    for _ in 0..1000 {
        if !store.archive(BEGIN + age, &cancel)? {
            return Ok(());
        }
    }
    panic!("the archive does not come to an end");
}

/// A number of the store; with labels in braces, the one with these.
fn number(store: &EmbeddedStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let full = |of: &Counted| format!("{}{{{}}}", of.name, of.labels);
    let found = counted(&metrics).filter(|of| of.name == name || full(of) == name);
    found.map(|of| of.value).sum()
}

fn ask(
    store: &EmbeddedStore,
    range: TimeRange,
    limits: &Limits,
) -> Result<QueryResult<Profile>, StoreError> {
    let query = Query::new(Selector::default(), Vec::new(), GroupBy::All);
    store.profile(range, &query.unwrap(), limits)
}

fn total(store: &EmbeddedStore) -> u64 {
    let answer = ask(store, range(0, DAY), &ample()).unwrap();
    answer.data.total().count
}

/// Everything that a store answers about its first six hours, as text, down to the sample.
fn picture(store: &EmbeddedStore) -> String {
    let mut text = String::new();
    let limits = ample();
    let all = range(0, 6 * HOUR);
    for range in [all, range(17 * MINUTE, 3 * HOUR + 44 * MINUTE)] {
        let answer = ask(store, range, &limits).unwrap();
        let profile = &answer.data;
        let mut lines = Vec::new();
        for (key, value) in &profile.samples {
            let mut frames = Vec::new();
            let mut at = key.stack;
            while let Some((parent, frame)) = profile.dict.stacks.node(at) {
                frames.push(profile.dict.frame(frame).function);
                at = parent;
            }
            let labels: Vec<_> = profile.dict.labels(key.labels).collect();
            lines.push(format!("{labels:?} {frames:?} {:?} {value:?}", key.end));
        }
        lines.sort();
        let _ = writeln!(text, "{}\n{:?}", lines.join("\n"), answer.quality);
    }
    let scope = Scope {
        range: all,
        selector: Selector::default(),
    };
    let service = ["service".to_owned()];
    for step in [MINUTE, HOUR] {
        let step = step as u64;
        let series = store.series(&scope, &service, step, &limits).unwrap();
        let accounted = store.accounted(&scope, &service, step, &limits).unwrap();
        let _ = writeln!(text, "{:?}\n{:?}", series.data, accounted.data);
    }
    let totals = store.totals(&scope, &service, &limits).unwrap();
    let mut rows: Vec<String> = totals.data.iter().map(|row| format!("{row:?}")).collect();
    rows.sort();
    let names = store.label_names(&scope, &limits).unwrap();
    let values = store.label_values(&scope, "service", "", 100, &limits);
    let hosts = store.hosts(all, &limits).unwrap();
    let _ = writeln!(
        text,
        "{}\n{names:?}\n{values:?}\n{hosts:?}",
        rows.join("\n")
    );
    text
}

/// Names of partitions' files.
fn local_files(dir: &Path) -> Vec<String> {
    let files = std::fs::read_dir(dir.join("partitions")).unwrap();
    let files = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<String> = files.filter(|name| name.ends_with(".sqlite")).collect();
    files.sort();
    files
}

/// What concerns the archive among what is wrong.
fn issues(store: &EmbeddedStore) -> String {
    let all = store.issues().into_iter();
    let all: Vec<String> = all.filter(|issue| issue.contains("archive")).collect();
    all.join("\n")
}
