//! Tests the embedded store under failures: killed, out of disk, damaged, flooded, too old, too
//! much.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

#[path = "embedded/crashes.rs"]
mod crashes;
#[path = "embedded/durability.rs"]
mod durability;
#[path = "support/fleet.rs"]
mod fleet;
#[path = "embedded/starts.rs"]
mod starts;
#[path = "embedded/steps.rs"]
mod steps;

use collector::store::embedded::{EmbeddedStore, OpenError, Options};
use collector::store::{
    Cancel, Defined, HostFacts, HostRecord, Limits, NewWindow, PushOutcome, QueryResult, Scope,
    StoreError, StoreQueries, StoreStatus, TimeRange, WindowSink,
};
use durability::counter;
use fleet::{Fleet, Shape, WINDOW_NS};
use profile::{ContentId, Dictionary, GroupBy, Profile, Query, Selector, StackId};
use proto::collector::Need;
use proto::{Definer, TableAssembler};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use testkit::SmallDisk;

const SECOND: i64 = 1_000_000_000;
const HOUR: i64 = 3600 * SECOND;

/// 2026-01-15 00:00:00 UTC: where partitions of any length start.
const BEGIN: i64 = 1_768_435_200 * SECOND;

const SMALL: Shape = Shape {
    hosts: 3,
    containers: 4,
    services: 3,
    stacks: 60,
    samples: 200,
};

fn open(dir: &Path, options: &Options) -> EmbeddedStore {
    EmbeddedStore::open(dir, options.clone(), BEGIN + HOUR).unwrap()
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

fn all_time() -> TimeRange {
    TimeRange {
        start_unix_ns: BEGIN - 24 * HOUR,
        end_unix_ns: BEGIN + 48 * HOUR,
    }
}

fn push(
    store: &EmbeddedStore,
    fleet: &Fleet,
    window: NewWindow,
) -> Result<PushOutcome, StoreError> {
    let now = window.range.end_unix_ns;
    let windows = [window];
    let mut asked = Vec::new();
    // More than once when a partition that knew some of them is removed in between.
    for _ in 0..8 {
        match store.push(&windows, &fleet.define(&asked), now)?.remove(0) {
            PushOutcome::NeedStacks(stacks) => asked.extend(stacks),
            other => return Ok(other),
        }
    }
    panic!("it is asked for the same again and again");
}

fn by_host(store: &EmbeddedStore) -> QueryResult<Profile> {
    let query = Query::new(
        Selector::default(),
        Vec::new(),
        GroupBy::from_keys(&["host"]),
    );
    store
        .profile(all_time(), &query.unwrap(), &ample())
        .unwrap()
}

/// Samples by host.
fn counts(store: &EmbeddedStore) -> BTreeMap<String, u64> {
    let answer = by_host(store);
    let mut counts = BTreeMap::new();
    for (key, value) in &answer.data.samples {
        let host = answer
            .data
            .dict
            .label(key.labels, "host")
            .unwrap_or_default();
        *counts.entry(host.to_owned()).or_insert(0) += value.count;
    }
    counts
}

fn total(store: &EmbeddedStore) -> u64 {
    counts(store).values().sum()
}

/// Flushes everything: to the store it is long after the last window.
fn flush(store: &EmbeddedStore) {
    store.maintain(BEGIN + 40 * HOUR).unwrap();
}

fn quick_flushes() -> Options {
    Options {
        partition_ns: 1200 * SECOND as u64,
        // A few windows fill it, so that the child flushes all the time.
        memtable_bytes: 24 << 10,
        ..Options::default()
    }
}

/// Keeps windows for two weeks, and nothing coarser.
fn two_weeks() -> Options {
    let age = 14 * 24 * HOUR as u64;
    Options {
        retention_ns: age,
        windows_ns: age,
        minutes_ns: age,
        ten_minutes_ns: age,
        ..quick_flushes()
    }
}

#[test]
fn a_second_process_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let _first = open(folder.path(), &Options::default());
    let second = EmbeddedStore::open(folder.path(), Options::default(), BEGIN);
    assert!(matches!(second, Err(OpenError::Locked { .. })));
}

#[test]
fn another_length_of_partitions_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    drop(open(folder.path(), &Options::default()));
    let second = EmbeddedStore::open(folder.path(), quick_flushes(), BEGIN);
    assert!(matches!(second, Err(OpenError::PartitionLength { .. })));
}

/// Two partitions with samples in files; returns their paths, oldest first.
fn two_partitions(store: &EmbeddedStore, fleet: &Fleet, dir: &Path) -> Vec<std::path::PathBuf> {
    for sequence in [0, 1, 130, 131] {
        let window = fleet.window(0, sequence, BEGIN);
        assert_eq!(push(store, fleet, window).unwrap(), PushOutcome::Stored);
    }
    flush(store);
    let files = std::fs::read_dir(dir.join("partitions")).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "sqlite"));
    files.sort();
    files
}

fn check_damage(damage: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    assert_eq!(files.len(), 2);
    let before = total(&store);
    store.close().unwrap();
    drop(store);
    damage(&files[0]);
    let store = open(folder.path(), &quick_flushes());
    let left = total(&store);
    assert!(0 < left && left < before, "{left} of {before} are left");
    assert!(!store.issues().is_empty());
    let name = files[0].file_name().unwrap().to_str().unwrap();
    assert_eq!(by_host(&store).quality.damaged, [name]);
    store.maintain(BEGIN + HOUR).unwrap();
    assert!(files[0].with_extension("sqlite.damaged").exists());
    // Its time can be filled again.
    let window = fleet.window(1, 0, BEGIN);
    assert_eq!(push(&store, &fleet, window).unwrap(), PushOutcome::Stored);
    assert!(total(&store) > left);
}

#[test]
fn a_partition_replaced_by_garbage_is_set_aside_and_the_others_answer() {
    check_damage(|path| std::fs::write(path, vec![0x5a; 100_000]).unwrap());
}

#[test]
fn a_partition_cut_short_is_set_aside_and_the_others_answer() {
    check_damage(|path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(file.metadata().unwrap().len() / 2).unwrap();
    });
}

#[test]
fn a_partition_with_changed_bytes_is_set_aside_and_the_others_answer() {
    check_damage(|path| {
        let mut bytes = std::fs::read(path).unwrap();
        // Past the first pages, which SQLite itself looks at.
        for at in (8 * 4096..bytes.len()).step_by(64) {
            bytes[at] ^= 0x55;
        }
        std::fs::write(path, bytes).unwrap();
    });
}

#[test]
fn windows_in_memory_survive_the_damage_of_their_file() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    let late = fleet.window(2, 3, BEGIN);
    let samples = Fleet::samples(&late);
    assert_eq!(push(&store, &fleet, late).unwrap(), PushOutcome::Stored);
    for suffix in ["", "-wal"] {
        let mut name = files[0].clone().into_os_string();
        name.push(suffix);
        std::fs::write(name, vec![0; 9000]).unwrap();
    }
    let _ = by_host(&store);
    let _ = store.maintain(BEGIN + HOUR);
    assert_eq!(counts(&store).get("host-0002"), Some(&samples));
    flush(&store);
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(counts(&store).get("host-0002"), Some(&samples));
}

#[test]
fn windows_too_old_or_from_the_future_are_refused_with_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &Options::default());
    let fleet = Fleet::new(1, SMALL);
    let window = fleet.window(0, 0, BEGIN);
    for now in [BEGIN - HOUR, BEGIN + 100 * 24 * HOUR] {
        let taken = store
            .push(std::slice::from_ref(&window), &fleet.dict, now)
            .unwrap();
        let PushOutcome::Rejected(reason) = &taken[0] else {
            panic!("{taken:?}");
        };
        assert!(!reason.is_empty());
    }
    assert_eq!(store.kept().unwrap(), None);
}

#[test]
fn partitions_over_age_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = two_weeks();
    let store = open(folder.path(), &options);
    let files = two_partitions(&store, &fleet, folder.path());
    store
        .maintain(BEGIN + 14 * 24 * HOUR + 1201 * SECOND)
        .unwrap();
    assert!(!files[0].exists() && files[1].exists());
    store.maintain(BEGIN + 15 * 24 * HOUR).unwrap();
    assert!(!files[1].exists());
    assert_eq!((total(&store), store.kept().unwrap()), (0, None));
}

#[test]
fn the_disk_budget_removes_the_oldest_and_leaves_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = Options {
        disk_bytes: 1,
        ..quick_flushes()
    };
    let store = open(folder.path(), &options);
    let files = two_partitions(&store, &fleet, folder.path());
    assert_eq!(files.len(), 1);
    let kept = store.kept().unwrap().unwrap();
    assert_eq!(kept.start_unix_ns, BEGIN + 130 * WINDOW_NS);
}

#[test]
fn a_flood_of_label_sets_keeps_its_host_and_its_samples() {
    let folder = tempfile::tempdir().unwrap();
    let shape = Shape {
        containers: 200,
        samples: 4000,
        ..SMALL
    };
    let fleet = Fleet::new(1, shape);
    let options = Options {
        label_sets: 50,
        ..Options::default()
    };
    let store = open(folder.path(), &options);
    let window = fleet.window(0, 0, BEGIN);
    let samples = Fleet::samples(&window);
    assert_eq!(push(&store, &fleet, window).unwrap(), PushOutcome::Stored);
    assert_eq!(counts(&store), [("host-0000".to_owned(), samples)].into());
    let scope = Scope {
        range: all_time(),
        selector: Selector::default(),
    };
    let (values, _) = store
        .label_values(&scope, "overflow", "", 9, &ample())
        .unwrap();
    assert_eq!(values, ["true"]);
    assert!(
        store
            .issues()
            .iter()
            .any(|text| text.contains("label sets"))
    );
}

#[test]
fn a_full_dictionary_puts_new_stacks_under_other() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = Options {
        partition_dictionary_bytes: 1,
        ..Options::default()
    };
    let store = open(folder.path(), &options);
    let window = fleet.window(0, 0, BEGIN);
    let samples = Fleet::samples(&window);
    assert_eq!(push(&store, &fleet, window).unwrap(), PushOutcome::Stored);
    let answer = by_host(&store);
    assert_eq!(answer.quality.total.count, samples);
    assert_eq!(answer.quality.sampling.folded, samples);
}

#[test]
fn a_new_partition_asks_for_no_stack_that_another_has() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let mut window = fleet.window(0, 0, BEGIN);
    assert_eq!(
        push(&store, &fleet, window.clone()).unwrap(),
        PushOutcome::Stored
    );
    window.origin.sequence += HOUR as u64;
    window.range.start_unix_ns += HOUR;
    window.range.end_unix_ns += HOUR;
    let now = window.range.end_unix_ns;
    let taken = store.push(&[window], &Dictionary::default(), now).unwrap();
    assert_eq!(taken, [PushOutcome::Stored]);
}

#[test]
fn hosts_survive_a_crash_and_a_close() {
    let folder = tempfile::tempdir().unwrap();
    let record = HostRecord {
        key: Fleet::host(3),
        facts: HostFacts {
            hostname: "three".into(),
            ..HostFacts::default()
        },
        first_seen_unix_ns: BEGIN,
        last_seen_unix_ns: BEGIN + SECOND,
        clock_ahead_ns: -5,
    };
    let store = open(folder.path(), &Options::default());
    store.put_hosts(std::slice::from_ref(&record)).unwrap();
    drop(store);
    for _ in 0..2 {
        let store = open(folder.path(), &Options::default());
        let hosts = store.hosts(all_time(), &ample()).unwrap();
        assert_eq!(
            hosts.iter().map(|(host, _)| host).collect::<Vec<_>>(),
            [&record]
        );
        store.close().unwrap();
    }
}

#[test]
fn a_closed_store_takes_and_answers_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &Options::default());
    store.close().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let pushed = push(&store, &fleet, fleet.window(0, 0, BEGIN));
    assert!(matches!(pushed, Err(StoreError::Unavailable(_))));
}

#[test]
fn a_full_disk_refuses_for_now_and_recovers_needs_root() {
    let Some(disk) = SmallDisk::mount("1500k") else {
        return;
    };
    let dir = disk.path().join("store");
    let fleet = Fleet::new(1, SMALL);
    let store = open(&dir, &quick_flushes());
    let (mut sequence, mut samples) = (0, 0);
    let refused = loop {
        let window = fleet.window(0, sequence, BEGIN);
        let of_window = Fleet::samples(&window);
        match push(&store, &fleet, window) {
            Ok(taken) => {
                assert_eq!(taken, PushOutcome::Stored);
                (sequence, samples) = (sequence + 1, samples + of_window);
            }
            Err(error) => break error,
        }
        assert!(sequence < 5000, "the disk is never full");
    };
    assert!(matches!(refused, StoreError::Unavailable(_)), "{refused}");
    assert!(!store.issues().is_empty());
    assert_eq!(total(&store), samples, "what was taken is answered");
    // Killed while the disk is full, it opens again.
    drop(store);
    let store = open(&dir, &quick_flushes());
    assert_eq!(total(&store), samples);
    disk.grow("64m");
    let again = fleet.window(0, sequence, BEGIN);
    samples += Fleet::samples(&again);
    assert_eq!(push(&store, &fleet, again).unwrap(), PushOutcome::Stored);
    store.maintain(BEGIN + HOUR).unwrap();
    assert_eq!(total(&store), samples);
    assert_eq!(store.issues(), Vec::<String>::new());
}

#[test]
fn a_query_reads_the_partitions_of_its_range_and_is_told_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = quick_flushes();
    let store = open(folder.path(), &options);
    // Ten partitions of 20 minutes; the second host is not there in the middle of it.
    for window in (0..1200).step_by(30) {
        for host in 0..2 {
            if host == 0 || !(400..800).contains(&window) {
                let taken = push(&store, &fleet, fleet.window(host, window, BEGIN));
                assert_eq!(taken.unwrap(), PushOutcome::Stored);
            }
        }
    }
    let range = TimeRange {
        start_unix_ns: BEGIN + 6000 * SECOND,
        end_unix_ns: BEGIN + 6300 * SECOND,
    };
    let query = Query::new(Selector::default(), Vec::new(), GroupBy::All).unwrap();
    let check = |store: &EmbeddedStore| {
        let before = counter(store, "fleetprof_store_partitions_read_total");
        let quality = store.profile(range, &query, &ample()).unwrap().quality;
        let read = counter(store, "fleetprof_store_partitions_read_total") - before;
        // For samples one, for gaps that and the next.
        assert_eq!(read, 3);
        assert_eq!((quality.hosts, quality.hosts_alive), (1, 2));
        let longest = quality.gaps.first().unwrap();
        assert_eq!(longest.0.host_id, "host-0001");
        assert_eq!(longest.1.range, range);
    };
    check(&store);
    flush(&store);
    check(&store);
    drop(store);
    check(&open(folder.path(), &options));
}

#[test]
fn what_is_known_of_a_thousand_hosts_is_one_batch_of_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path(), &Options::default());
    let records: Vec<HostRecord> = (0..1000)
        .map(|host| HostRecord {
            key: Fleet::host(host),
            facts: HostFacts::default(),
            first_seen_unix_ns: BEGIN,
            last_seen_unix_ns: BEGIN + SECOND,
            clock_ahead_ns: 0,
        })
        .collect();
    store.put_hosts(&records).unwrap();
    assert_eq!(counter(&store, "fleetprof_store_log_batches_total"), 1);
    let known = |store: &EmbeddedStore| store.hosts(all_time(), &ample()).unwrap().len();
    assert_eq!(known(&store), 1000);
    drop(store);
    assert_eq!(known(&open(folder.path(), &Options::default())), 1000);
}

#[test]
fn dictionaries_that_find_no_room_are_forgotten_and_read_again() {
    let fleet = Fleet::new(1, SMALL);
    let (large, small) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stores = [(&large, usize::MAX), (&small, 1)].map(|(folder, dictionary_bytes)| {
        let options = Options {
            dictionary_bytes,
            ..quick_flushes()
        };
        let store = open(folder.path(), &options);
        // Ten partitions of 20 minutes.
        for window in (0..1200).step_by(40) {
            let taken = push(&store, &fleet, fleet.window(0, window, BEGIN));
            assert_eq!(taken.unwrap(), PushOutcome::Stored);
        }
        flush(&store);
        store
    });
    let held = |store: &EmbeddedStore| counter(store, "fleetprof_store_dictionary_bytes");
    for _ in 0..2 {
        let [answer, of_small] = [0, 1].map(|at| by_host(&stores[at]));
        assert_eq!(of_small.quality, answer.quality);
        let folded = [&answer, &of_small].map(|answer| by_stack(&answer.data));
        assert_eq!(folded[1], folded[0]);
        // One, the one used last, of ten.
        let [all, one] = [0, 1].map(|at| held(&stores[at]));
        assert!(one > 0 && one < all / 5, "{one} of {all} bytes");
    }
    // A late window needs one of those that were forgotten.
    let late = fleet.window(0, 41, BEGIN);
    let samples = total(&stores[1]) + Fleet::samples(&late);
    let [large, small] = stores.each_ref().map(|store| {
        assert_eq!(
            push(store, &fleet, late.clone()).unwrap(),
            PushOutcome::Stored
        );
        by_stack(&by_host(store).data)
    });
    assert_eq!(small, large);
    assert_eq!(total(&stores[1]), samples);
}

/// Samples by stack.
fn by_stack(profile: &Profile) -> BTreeMap<ContentId, u64> {
    let ids = profile.dict.content_ids();
    let mut counts = BTreeMap::new();
    for (key, value) in &profile.samples {
        *counts.entry(ids[key.stack.0 as usize]).or_insert(0) += value.count;
    }
    counts
}

/// A host's second window, with what its agent sends of the stacks that were asked for when it
/// takes those of the first for known.
fn second_window(fleet: &Fleet, asked: &[ContentId], all_callers: bool) -> Arc<Defined> {
    let windows = [0, 1].map(|at| fleet.window(0, at, BEGIN));
    let contents = |window: &NewWindow| window.rows.iter().map(|row| row.stack).collect();
    let [first, second]: [Vec<ContentId>; 2] = [contents(&windows[0]), contents(&windows[1])];
    let dict = fleet.define(&[first.clone(), second].concat());
    let ids = dict.content_ids();
    let stacks: HashMap<ContentId, StackId> = ids.iter().copied().zip((0..).map(StackId)).collect();
    let mut definer = Definer::new(true);
    definer.sent(1, first.iter().map(|id| stacks[id]));
    definer.answered(&dict, 1, true);
    let wanted: Vec<StackId> = asked.iter().map(|id| stacks[id]).collect();
    let need = Need {
        all_callers,
        ..Need::default()
    };
    let content = |stack: StackId| ids[stack.0 as usize];
    let mut tables = TableAssembler::new(1 << 20, true);
    for message in definer.define(&dict, content, &need, &wanted, 1 << 16) {
        tables.push(&message).unwrap();
    }
    let tables = tables.finish().unwrap();
    assert_eq!(tables.known.is_empty(), all_callers);
    let asked = asked.iter().copied().collect();
    Arc::new(Defined::new(tables, &asked).unwrap())
}

#[test]
fn callers_that_should_be_known_and_are_not_are_asked_for() {
    let fleet = Fleet::new(7, SMALL);
    let window = |at| fleet.window(0, at, BEGIN);
    let now = BEGIN + 60 * SECOND;
    let (knows, lacks) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [knows, lacks] = [&knows, &lacks].map(|dir| open(dir.path(), &Options::default()));
    assert_eq!(
        push(&knows, &fleet, window(0)).unwrap(),
        PushOutcome::Stored
    );
    let mut expected = None;
    for (store, has_first) in [(&knows, true), (&lacks, false)] {
        let second = [window(1)];
        let none = store.push_defined(&second, &[], now).unwrap().remove(0);
        let PushOutcome::NeedStacks(mut asked) = none else {
            panic!("{none:?}");
        };
        let mut all_callers = false;
        loop {
            let defined = second_window(&fleet, &asked, all_callers);
            match store
                .push_defined(&second, &[defined], now)
                .unwrap()
                .remove(0)
            {
                PushOutcome::NeedCallers(again) => {
                    assert!(!has_first && !all_callers);
                    (asked, all_callers) = (again, true);
                }
                taken => {
                    assert_eq!(taken, PushOutcome::Stored);
                    break;
                }
            }
        }
        assert_eq!(all_callers, !has_first);
        if !has_first {
            assert_eq!(push(store, &fleet, window(0)).unwrap(), PushOutcome::Stored);
        }
        let profile = by_host(store).data;
        let found = by_stack(&profile);
        assert_eq!(*expected.get_or_insert_with(|| found.clone()), found);
    }
}
