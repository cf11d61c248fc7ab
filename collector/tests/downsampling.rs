//! The embedded store as data gets older: parts put together, hours added up, levels of retention.
//! Answers over whole steps stay the same to the sample, whenever the process is killed.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

#[path = "support/fleet.rs"]
mod fleet;

use collector::access::{Caller, Role, Scope};
use collector::query::ScopedStore;
use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    Cancel, DataQuality, LabelSet, Limits, NewWindow, PushOutcome, QueryResult, Scope as Selection,
    StoreError, StoreQueries, StoreStatus, TimeRange, TimeSeries, WindowSink,
};
use fleet::{Fleet, Shape};
use metrics::counted;
use profile::{CostBy, Dictionary, GroupBy, Profile, Query, Selector};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::SmallDisk;

const SECOND: i64 = 1_000_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// 2026-01-15 00:00:00 UTC: where partitions of any length start.
const BEGIN: i64 = 1_768_435_200 * SECOND;

/// Windows of each host: two hours and a half.
const WINDOWS: u64 = 900;

/// Where the child of the kill test finds its directory.
const DIR: &str = "FLEETPROF_TEST_DOWNSAMPLING_DIR";

const SMALL: Shape = Shape {
    hosts: 2,
    containers: 3,
    services: 2,
    stacks: 40,
    samples: 20,
};

/// Ages at which partitions are of each level. Unit: nanoseconds after [`BEGIN`].
const AGES: [(i64, &str, i64); 4] = [
    (DAY, "windows", 10 * SECOND),
    (3 * DAY, "minutes", MINUTE),
    (20 * DAY, "ten_minutes", 10 * MINUTE),
    (100 * DAY, "service_hours", HOUR),
];

fn options() -> Options {
    Options {
        partition_ns: 2 * HOUR as u64,
        ..Options::default()
    }
}

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, options(), BEGIN + DAY).unwrap()
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
    let answer = store.push(&windows, &Dictionary::default(), now).unwrap();
    match answer.into_iter().next().unwrap() {
        PushOutcome::NeedStacks(stacks) => {
            let taken = store.push(&windows, &fleet.define(&stacks), now).unwrap();
            taken.into_iter().next().unwrap()
        }
        other => other,
    }
}

fn counter(store: &EmbeddedStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let (name, labels) = match name.split_once('{') {
        Some((name, labels)) => (name, labels.trim_end_matches('}')),
        None => (name, ""),
    };
    let found = counted(&metrics).find(|of| of.name == name && of.labels == labels);
    found.unwrap_or_else(|| panic!("no counter {name}")).value
}

/// Calls `maintain` until everything due at `now` is done.
fn settle(store: &EmbeddedStore, now: i64) {
    let give_up = Instant::now() + Duration::from_secs(300);
    loop {
        store.maintain(now).unwrap();
        // A partition that was flushed just now is looked at by the next call.
        store.maintain(now).unwrap();
        if counter(store, "fleetprof_store_compaction_pending") == 0 {
            return;
        }
        assert!(Instant::now() < give_up, "compaction never ends");
    }
}

/// Every window of the fleet, in several flushes a chunk: a part each.
fn fill(store: &EmbeddedStore, fleet: &Fleet) {
    for sequence in 0..WINDOWS {
        for host in 0..SMALL.hosts {
            let window = fleet.window(host, sequence, BEGIN);
            let now = window.range.end_unix_ns;
            assert_eq!(push(store, fleet, window, now), PushOutcome::Stored);
        }
        if sequence % 20 == 19 {
            // By this clock all is over: it is flushed. Nothing is closed for an hour.
            store
                .maintain(BEGIN + (sequence as i64 + 1) * 10 * SECOND + 11 * MINUTE)
                .unwrap();
        }
    }
}

type Folded = BTreeMap<(LabelSet, Vec<String>, u8), (u64, u64)>;

fn folded(profile: &Profile) -> Folded {
    let mut out = Folded::new();
    for (key, value) in &profile.samples {
        let labels = profile.dict.labels(key.labels);
        let labels = LabelSet::new(labels.map(|(name, of)| (name.to_owned(), of.to_owned())));
        let mut frames = Vec::new();
        let mut at = key.stack;
        while let Some((parent, frame)) = profile.dict.stacks.node(at) {
            frames.push(profile.dict.frame(frame).function.to_owned());
            at = parent;
        }
        let sum = out.entry((labels, frames, key.end as u8)).or_default();
        *sum = (sum.0 + value.count, sum.1 + value.weight);
    }
    out
}

fn ask(
    store: &EmbeddedStore,
    range: TimeRange,
    selector: &str,
    by: &[&str],
) -> QueryResult<Profile> {
    let query = Query::new(
        selector.parse().unwrap(),
        Vec::new(),
        GroupBy::from_keys(by),
    );
    store.profile(range, &query.unwrap(), &ample()).unwrap()
}

/// What does not depend on the level.
fn told(quality: &DataQuality) -> impl PartialEq + std::fmt::Debug {
    (
        (quality.hosts, quality.hosts_alive, quality.windows),
        (quality.windows_unmeasured, quality.gaps.clone()),
        (quality.sampling, quality.total, quality.unit.clone()),
    )
}

type Seen = (Folded, String, Vec<String>, String);

/// Every kind of answer over a range, for comparison.
fn answers(store: &EmbeddedStore, range: TimeRange, by: &[&str], selector: &str) -> Seen {
    let profile = ask(store, range, selector, by);
    let scope = Selection {
        range,
        selector: selector.parse().unwrap(),
    };
    let by: Vec<String> = by.iter().map(|&name| name.to_owned()).collect();
    let step = HOUR as u64;
    let lines = store.series(&scope, &by, step, &ample()).unwrap();
    let totals = store.totals(&scope, &by, &ample()).unwrap();
    let hosts = store.hosts(range, &ample()).unwrap();
    let mut rows: Vec<String> = totals.data.iter().map(|row| format!("{row:?}")).collect();
    rows.sort();
    (
        folded(&profile.data),
        format!("{:?} {:?}", told(&profile.quality), hosts),
        rows,
        format!("{:?} {:?}", lines.data.lines, told(&lines.quality)),
    )
}

fn files(dir: &Path) -> Vec<PathBuf> {
    let files = std::fs::read_dir(dir.join("partitions")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    // Not what SQLite keeps beside them while they are open.
    files.retain(|path| !path.to_string_lossy().contains(".sqlite-"));
    files.sort();
    files
}

#[test]
fn answers_stay_the_same_to_the_sample_at_every_level() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    let whole = range(-HOUR, 5 * HOUR);
    let by_service = answers(&store, whole, &["service"], "");
    let one_service = answers(&store, whole, &["service"], "service=service-1");
    let labelled = answers(&store, whole, &["*"], "host=host-0001");
    let mut inner = BTreeMap::new();
    for (_, _, step) in AGES {
        let inside = range(HOUR, 2 * HOUR - if step == HOUR { 0 } else { step });
        inner.insert(step, answers(&store, inside, &["service"], ""));
    }
    for (age, level, step) in AGES {
        settle(&store, BEGIN + age);
        println!("{level}: {:?}", files(folder.path()));
        assert_eq!(
            answers(&store, whole, &["service"], ""),
            by_service,
            "{level}"
        );
        assert_eq!(
            answers(&store, whole, &["service"], "service=service-1"),
            one_service,
            "{level}"
        );
        if level != "service_hours" {
            let again = answers(&store, whole, &["*"], "host=host-0001");
            assert_eq!(again, labelled, "{level}");
        }
        let inside = range(HOUR, 2 * HOUR - if step == HOUR { 0 } else { step });
        assert_eq!(
            answers(&store, inside, &["service"], ""),
            inner[&step],
            "{level}"
        );
        let bytes = format!("fleetprof_store_level_bytes{{level=\"{level}\"}}");
        assert!(counter(&store, &bytes) > 0);
        let repeat = fleet.window(1, 3, BEGIN);
        let taken = push(&store, &fleet, repeat.clone(), BEGIN + HOUR);
        assert_eq!(taken, PushOutcome::Duplicate, "{level}");
        if level == "service_hours" {
            let mut other = repeat;
            other.origin.sequence += 1_000_000;
            let taken = push(&store, &fleet, other, BEGIN + HOUR);
            assert!(matches!(taken, PushOutcome::Rejected(_)), "{taken:?}");
        }
    }
    assert_eq!(
        counter(&store, "fleetprof_store_partitions_downsampled_total"),
        6
    );
    store.close().unwrap();
    drop(store);
    let store = open(folder.path());
    assert_eq!(answers(&store, whole, &["service"], ""), by_service);
    assert_eq!(files(folder.path()).len(), 2, "{:?}", files(folder.path()));
    assert!(store.issues().is_empty());
}

#[test]
fn what_has_lost_the_labels_of_a_scope_is_left_out_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let store = Arc::new(open(folder.path()));
    let fleet = Fleet::new(5, SMALL);
    fill(&store, &fleet);
    let seen = |scope: &str, now: i64| {
        let caller = Caller {
            name: "eve".to_owned(),
            role: Role::Viewer,
            scope: Some(Scope::parse(scope).unwrap()),
        };
        let eve = ScopedStore::new(store.clone(), &caller, now);
        let whole = range(0, 2 * HOUR);
        let by = GroupBy::from_keys(&["unit"]);
        let query = Query::new(Selector::default(), Vec::new(), by).unwrap();
        let found = eve.profile(whole, &query, &ample()).unwrap();
        let costs = eve
            .costs(whole, &query, CostBy::Function, &ample())
            .unwrap();
        assert_eq!(costs.data.total(), found.data.total(), "{scope}");
        (found.data.total().count, found.quality.not_kept)
    };
    let of_host = "host=host-0001";
    settle(&store, BEGIN + 20 * DAY);
    let (count, said) = seen(of_host, BEGIN + 20 * DAY);
    assert!(count > 0 && said.is_empty(), "{count} {said:?}");
    settle(&store, BEGIN + 100 * DAY);
    let (count, said) = seen(of_host, BEGIN + 100 * DAY);
    assert_eq!(count, 0, "never unfiltered");
    let [said] = &said[..] else {
        panic!("{said:?}");
    };
    assert!(
        said.starts_with("data older than 99 days is not kept per `host`"),
        "{said}"
    );
    // Services have kept it.
    let (_, said) = seen("unit=~\".+\"", BEGIN + 100 * DAY);
    assert!(said.is_empty(), "{said:?}");
}

#[test]
fn a_partition_that_is_coarser_than_wanted_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    let now = BEGIN + 3 * DAY;
    settle(&store, now);
    store.close().unwrap();
    drop(store);
    let raised = Options {
        windows_ns: 30 * DAY as u64,
        minutes_ns: 40 * DAY as u64,
        ..options()
    };
    let store = EmbeddedStore::open(folder.path(), raised, now).unwrap();
    settle(&store, now);
    // At rest nothing of it is opened: nobody misses its file.
    let file = files(folder.path()).remove(0);
    assert!(file.to_string_lossy().ends_with(".1m.sqlite"), "{file:?}");
    let away = file.with_extension("away");
    std::fs::rename(&file, &away).unwrap();
    store.maintain(now + SECOND).unwrap();
    std::fs::rename(&away, &file).unwrap();
    assert_eq!(
        counter(&store, "fleetprof_store_compaction_failures_total"),
        0
    );
    assert_eq!(store.issues(), Vec::<String>::new());
}

#[test]
fn ranges_are_widened_to_what_is_told_apart_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    let asked = range(67 * MINUTE + 10 * SECOND, 82 * MINUTE + 50 * SECOND);
    for (age, level, step) in AGES {
        settle(&store, BEGIN + age);
        let answer = ask(&store, asked, "", &["host"]);
        let covered = match level {
            "windows" => asked,
            "minutes" => range(67 * MINUTE, 83 * MINUTE),
            "ten_minutes" => range(60 * MINUTE, 90 * MINUTE),
            _ => range(60 * MINUTE, 120 * MINUTE),
        };
        assert_eq!(answer.quality.covered, covered, "{level}");
        assert_eq!(answer.quality.resolution.step_ns, step as u64, "{level}");
        let widened = ask(&store, covered, "", &["host"]);
        assert_eq!(folded(&answer.data), folded(&widened.data));
        assert_eq!(answer.quality.windows, widened.quality.windows);
        let windows = (covered.end_unix_ns - covered.start_unix_ns) / (10 * SECOND);
        assert_eq!(answer.quality.windows, 2 * windows as u64, "{level}");
        let scope = Selection {
            range: asked,
            selector: "".parse().unwrap(),
        };
        let lines = store
            .series(&scope, &[], 10 * SECOND as u64, &ample())
            .unwrap();
        assert_eq!(lines.data.step_ns, step as u64, "{level}");
        assert_eq!(lines.quality.total, answer.quality.total);
        let bare = Limits {
            reports: false,
            ..ample()
        };
        let bare = store.series(&scope, &[], 10 * SECOND as u64, &bare);
        let bare = bare.unwrap().data;
        assert_eq!(bare.lines, lines.data.lines, "{level}");
        let hosts = |of: &TimeSeries| of.steps.iter().map(|step| step.hosts).collect::<Vec<_>>();
        assert_eq!(hosts(&bare), hosts(&lines.data), "{level}");
    }
}

#[test]
fn whole_hours_are_read_coarse_and_edges_fine() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    let ranges = [
        (range(0, 2 * HOUR), HOUR),
        (range(7 * MINUTE, 130 * MINUTE), MINUTE),
        (range(10 * SECOND, 2 * HOUR), 10 * SECOND),
        (range(0, HOUR), HOUR),
        (range(HOUR, 2 * HOUR + 30 * MINUTE), MINUTE),
    ];
    let before: Vec<Folded> = ranges
        .iter()
        .map(|(range, _)| folded(&ask(&store, *range, "", &["service"]).data))
        .collect();
    settle(&store, BEGIN + DAY);
    assert_eq!(counter(&store, "fleetprof_store_service_sums_total"), 3);
    for ((range, step), before) in ranges.into_iter().zip(before) {
        let answer = ask(&store, range, "", &["service"]);
        assert_eq!(folded(&answer.data), before, "{range:?}");
        assert_eq!(answer.quality.resolution.step_ns, step as u64, "{range:?}");
        assert_eq!(answer.quality.resolution.by_service, step >= MINUTE);
    }
}

#[test]
fn parts_become_one_and_what_comes_later_is_put_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    settle(&store, BEGIN + DAY);
    assert_eq!(
        counter(&store, "fleetprof_store_chunks_compacted_total"),
        15
    );
    let hour = range(0, HOUR);
    let before = ask(&store, hour, "", &["service"]);
    assert_eq!(before.quality.resolution.step_ns, HOUR as u64);
    // Agents that were cut off bring windows of an hour that is closed, at each level that takes
    // them.
    let mut samples = before.quality.total.count;
    for (at, (age, level, _)) in AGES[..3].iter().enumerate() {
        let now = BEGIN + age;
        settle(&store, now);
        let mut late = fleet.window(1, 8, BEGIN);
        // A part of a window that was cut in two: numbered as one that starts a moment later.
        late.origin.sequence += 1 + at as u64;
        samples += Fleet::samples(&late);
        assert_eq!(push(&store, &fleet, late.clone(), now), PushOutcome::Stored);
        assert_eq!(
            push(&store, &fleet, late.clone(), now),
            PushOutcome::Duplicate
        );
        let answer = ask(&store, hour, "", &["service"]);
        assert_eq!(answer.quality.total.count, samples, "{level}: in memory");
        store.maintain(now + MINUTE).unwrap();
        let answer = ask(&store, hour, "", &["service"]);
        assert_eq!(answer.quality.total.count, samples, "{level}: in the file");
        settle(&store, now + 2 * MINUTE);
        let answer = ask(&store, hour, "", &["service"]);
        assert_eq!(answer.quality.total.count, samples, "{level}: put together");
        assert_eq!(answer.quality.resolution.step_ns, HOUR as u64, "{level}");
        assert_eq!(push(&store, &fleet, late, now), PushOutcome::Duplicate);
    }
    settle(&store, BEGIN + 100 * DAY);
    let answer = ask(&store, hour, "", &["service"]);
    assert_eq!(answer.quality.total.count, samples);
    assert_eq!(store.issues(), Vec::<String>::new());
}

#[test]
fn what_is_replaced_leaves_room_for_what_comes() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    let mut sizes = vec![counter(&store, "fleetprof_store_bytes")];
    for (age, _, _) in AGES {
        settle(&store, BEGIN + age);
        sizes.push(counter(&store, "fleetprof_store_bytes"));
    }
    println!("bytes: parts, then by level {sizes:?}");
    assert!(sizes[2] < sizes[0] && sizes[3] < sizes[2] && sizes[4] < sizes[3]);
}

#[test]
fn over_the_disk_budget_the_oldest_goes_first_and_service_hours_last() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let late = 95 * DAY / (10 * SECOND);
    let store = open(folder.path());
    fill(&store, &fleet);
    settle(&store, BEGIN + 94 * DAY);
    for sequence in [late, late + 800, late + 1600] {
        let window = fleet.window(0, sequence as u64, BEGIN);
        let now = window.range.end_unix_ns;
        assert_eq!(push(&store, &fleet, window, now), PushOutcome::Stored);
        store.maintain(now + HOUR).unwrap();
    }
    store.close().unwrap();
    drop(store);
    let names = || -> Vec<String> {
        let files = files(folder.path());
        let names = files.iter().filter_map(|path| path.file_name()?.to_str());
        let names = names.filter(|name| name.ends_with(".sqlite"));
        names.map(str::to_owned).collect()
    };
    let before = names();
    assert_eq!(
        before
            .iter()
            .filter(|name| name.ends_with(".1h.sqlite"))
            .count(),
        2
    );
    let hours_bytes: u64 = files(folder.path())
        .iter()
        .filter(|path| path.to_string_lossy().ends_with(".1h.sqlite"))
        .map(|path| path.metadata().unwrap().len())
        .sum();
    let newest: u64 = files(folder.path())
        .last()
        .unwrap()
        .metadata()
        .unwrap()
        .len();
    let budget = Options {
        disk_bytes: hours_bytes + newest + (16 << 10),
        ..options()
    };
    let store = EmbeddedStore::open(folder.path(), budget, BEGIN + 95 * DAY).unwrap();
    store.maintain(BEGIN + 95 * DAY).unwrap();
    let after = names();
    let left: Vec<&String> = [&before[0], &before[1], before.last().unwrap()].to_vec();
    assert_eq!(after.iter().collect::<Vec<_>>(), left, "{before:?}");
    drop(store);
    let nothing = Options {
        disk_bytes: 1,
        ..options()
    };
    let store = EmbeddedStore::open(folder.path(), nothing, BEGIN + 95 * DAY).unwrap();
    store.maintain(BEGIN + 95 * DAY).unwrap();
    assert_eq!(names(), [before.last().unwrap().clone()]);
}

#[test]
fn queries_go_on_while_partitions_are_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    let whole = range(-HOUR, 5 * HOUR);
    let expected = folded(&ask(&store, whole, "", &["service"]).data);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut asked = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) || asked == 0 {
                        let answer = ask(&store, whole, "", &["service"]);
                        assert_eq!(folded(&answer.data), expected);
                        asked += 1;
                    }
                })
            })
            .collect();
        for (age, _, _) in AGES {
            settle(&store, BEGIN + age);
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        readers
            .into_iter()
            .for_each(|reader| reader.join().unwrap());
    });
}

/// Downsamples a store, level by level, and says when each is done, until it is killed.
#[test]
fn child_of_the_kill_test() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let say = |text: &str| {
        let line = format!("did {text}\n");
        std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
    };
    let store = open(Path::new(&dir));
    say("open");
    for (age, level, _) in AGES {
        settle(&store, BEGIN + age);
        say(level);
    }
    store.close().unwrap();
}

/// Runs the child until it said `said` and `after` passed; returns whether it came to its end
/// before.
fn run_until_killed(dir: &Path, said: &str, after: Duration) -> bool {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "child_of_the_kill_test",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains(said) && lines.read_line(&mut line).unwrap() > 0 {}
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap().success()
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn a_partition_is_old_or_new_and_never_both_or_neither_whenever_it_is_killed() {
    const KILLS: u64 = 40;
    let folder = tempfile::tempdir().unwrap();
    let (full, dir) = (folder.path().join("full"), folder.path().join("killed"));
    let fleet = Fleet::new(5, SMALL);
    let store = open(&full);
    fill(&store, &fleet);
    store.close().unwrap();
    let whole = range(-HOUR, 5 * HOUR);
    let expected = {
        drop(store);
        let store = open(&full);
        folded(&ask(&store, whole, "", &["service"]).data)
    };
    copy(&full, &dir);
    let (mut kills, mut rounds) = (0, 0);
    let mut left: BTreeMap<String, u64> = BTreeMap::new();
    let mut random = fleet::Random::new(3);
    while kills < KILLS {
        // The child goes through the levels again each time, as far as they are not done.
        let said = ["did open", "did windows", "did minutes", "did ten_minutes"];
        let said = said[random.below(4) as usize];
        let ended = run_until_killed(&dir, said, Duration::from_micros(random.below(120_000)));
        kills += u64::from(!ended);
        for path in files(&dir) {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            *left.entry(name).or_insert(0) += 1;
        }
        let store = open(&dir);
        assert_eq!(store.issues(), Vec::<String>::new());
        let answer = ask(&store, whole, "", &["service"]);
        assert_eq!(folded(&answer.data), expected, "kill {kills}");
        assert_eq!(answer.quality.windows, SMALL.hosts * WINDOWS);
        let names = files(&dir);
        let of = |start: &str| {
            let is = |path: &&PathBuf| {
                let name = path.file_name().unwrap().to_str().unwrap();
                name.starts_with(start) && name.ends_with(".sqlite")
            };
            names.iter().filter(is).count()
        };
        let second = (BEGIN + 2 * HOUR) / SECOND;
        assert_eq!(of(&format!("{}.", BEGIN / SECOND)), 1, "{names:?}");
        assert_eq!(of(&format!("{second}.")), 1, "{names:?}");
        assert!(!names.iter().any(|path| path.extension().unwrap() == "new"));
        let hours = |path: &PathBuf| path.to_string_lossy().contains(".1h.");
        let coarsest = names.iter().all(hours);
        drop(store);
        if coarsest || ended {
            rounds += 1;
            std::fs::remove_dir_all(&dir).unwrap();
            copy(&full, &dir);
        }
    }
    println!("killed {kills} times over {rounds} whole rounds; files that were left: {left:?}");
}

#[test]
fn a_finer_file_that_a_crash_left_next_to_the_downsampled_one_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(folder.path());
    fill(&store, &fleet);
    store.close().unwrap();
    drop(store);
    let finer: Vec<PathBuf> = files(folder.path());
    let aside = tempfile::tempdir().unwrap();
    copy(&folder.path().join("partitions"), aside.path());
    let store = open(folder.path());
    let expected = folded(&ask(&store, range(0, 3 * HOUR), "", &["service"]).data);
    settle(&store, BEGIN + 3 * DAY);
    store.close().unwrap();
    drop(store);
    copy(aside.path(), &folder.path().join("partitions"));
    let store = open(folder.path());
    assert_eq!(
        folded(&ask(&store, range(0, 3 * HOUR), "", &["service"]).data),
        expected
    );
    assert!(finer.iter().all(|path| !path.exists()), "{finer:?}");
}

#[test]
fn a_full_disk_keeps_the_finer_data_until_there_is_room_needs_root() {
    let source = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(5, SMALL);
    let store = open(source.path());
    fill(&store, &fleet);
    settle(&store, BEGIN + DAY);
    let expected = folded(&ask(&store, range(0, 3 * HOUR), "", &["service"]).data);
    store.close().unwrap();
    drop(store);
    let bytes: u64 = files(source.path())
        .iter()
        .map(|path| path.metadata().unwrap().len())
        .sum();
    let Some(disk) = SmallDisk::mount(&format!("{}k", bytes / 1024 + 300)) else {
        return;
    };
    let dir = disk.path().join("store");
    copy(source.path(), &dir);
    let store = open(&dir);
    let ballast = disk.path().join("ballast");
    let room = 100 << 10;
    let mut size = 300 << 10;
    while size > 0 && std::fs::write(&ballast, vec![7u8; size]).is_err() {
        size -= 4096;
    }
    std::fs::write(&ballast, vec![7u8; size.saturating_sub(room)]).unwrap();
    let now = BEGIN + 3 * DAY;
    let failed = store.maintain(now);
    assert!(
        matches!(failed, Err(StoreError::Unavailable(_))),
        "{failed:?}"
    );
    assert!(
        store
            .issues()
            .iter()
            .any(|text| text.contains("downsample"))
    );
    let answer = ask(&store, range(0, 3 * HOUR), "", &["service"]);
    assert_eq!(folded(&answer.data), expected);
    std::fs::remove_file(&ballast).unwrap();
    settle(&store, now + 2 * MINUTE);
    assert_eq!(store.issues(), Vec::<String>::new());
    let answer = ask(&store, range(0, 3 * HOUR), "", &["service"]);
    assert_eq!(folded(&answer.data), expected);
    let names = files(&dir);
    let minutes = names
        .iter()
        .filter(|path| path.to_string_lossy().ends_with(".1m.sqlite"));
    assert_eq!(minutes.count(), 2, "{names:?}");
}
