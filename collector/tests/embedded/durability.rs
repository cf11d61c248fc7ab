//! What the log alone must bring back, what is passed over knowingly, and what gives way on a full
//! disk.

use super::fleet::{Fleet, WINDOW_NS};
use super::{BEGIN, HOUR, SECOND, SMALL, by_host, counts, flush, open, push, quick_flushes, total};
use super::{all_time, ample, two_partitions};
use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    NewWindow, PushOutcome, StoreQueries as _, StoreStatus as _, WindowSink as _,
};
use metrics::{Counted, counted};
use profile::Query;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

fn stored(store: &EmbeddedStore, fleet: &Fleet, host: u64, sequence: u64) -> u64 {
    let window = fleet.window(host, sequence, BEGIN);
    let samples = Fleet::samples(&window);
    assert_eq!(push(store, fleet, window).unwrap(), PushOutcome::Stored);
    samples
}

fn files_ending(folder: &Path, end: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(folder).unwrap();
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.to_str().unwrap().ends_with(end));
    files.sort();
    files
}

pub fn counter(store: &EmbeddedStore, name: &str) -> u64 {
    let metrics = store.metrics();
    let full = |of: &Counted| format!("{}{{{}}}", of.name, of.labels);
    let found = counted(&metrics).filter(|of| full(of).contains(name));
    found.map(|of| of.value).sum()
}

/// A store whose second partition has windows of `host-0000` in its file, of which the log has none
/// any more, and one of `host-0002`, made of stacks known before, in the log alone. Returns its
/// file.
fn with_one_window_in_the_log(dir: &Path, fleet: &Fleet) -> (PathBuf, u64) {
    let store = open(dir, &quick_flushes());
    let files = two_partitions(&store, fleet, dir);
    let samples = stored(&store, fleet, 2, 132);
    (files[1].clone(), samples)
}

fn check_destroyed(destroy: impl Fn(&Path)) {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (file, samples) = with_one_window_in_the_log(folder.path(), &fleet);
    destroy(&file);
    for _ in 0..2 {
        let store = open(folder.path(), &quick_flushes());
        assert_eq!(counts(&store).get("host-0002"), Some(&samples));
        let again = fleet.window(2, 132, BEGIN);
        assert_eq!(push(&store, &fleet, again).unwrap(), PushOutcome::Duplicate);
        let issues = store.issues().join("\n");
        assert!(!issues.contains("not replayed"), "{issues}");
    }
    let store = open(folder.path(), &quick_flushes());
    flush(&store);
    store.close().unwrap();
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(counts(&store).get("host-0002"), Some(&samples));
}

#[test]
fn a_window_that_only_the_log_has_survives_a_file_of_garbage() {
    check_destroyed(|path| std::fs::write(path, vec![0x5a; 50_000]).unwrap());
}

#[test]
fn a_window_that_only_the_log_has_survives_a_file_cut_short() {
    check_destroyed(|path| {
        let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
        file.set_len(5000).unwrap();
    });
}

#[test]
fn a_window_that_only_the_log_has_survives_a_file_that_is_gone() {
    check_destroyed(|path| std::fs::remove_file(path).unwrap());
    check_destroyed(|path| {
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
    });
}

#[test]
fn a_file_that_is_gone_is_said_with_its_hours() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    store.close().unwrap();
    drop(store);
    std::fs::remove_file(&files[0]).unwrap();
    for _ in 0..2 {
        let store = open(folder.path(), &quick_flushes());
        let name = files[0].file_name().unwrap().to_str().unwrap();
        assert_eq!(by_host(&store).quality.damaged, [name]);
        assert!(store.issues()[0].contains("is gone"));
    }
}

#[test]
fn the_log_mends_its_copy_of_a_dictionary_and_then_needs_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (file, mut samples) = with_one_window_in_the_log(folder.path(), &fleet);
    for copy in files_ending(&folder.path().join("wal"), ".dict") {
        std::fs::remove_file(copy).unwrap();
    }
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(counts(&store).get("host-0002"), Some(&samples));
    flush(&store);
    samples = stored(&store, &fleet, 1, 133);
    drop(store);
    std::fs::write(file, b"garbage").unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(counts(&store).get("host-0001"), Some(&samples));
}

#[test]
fn a_segment_that_cannot_be_replayed_is_kept_and_said_until_the_operator_removes_it() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (file, _) = with_one_window_in_the_log(folder.path(), &fleet);
    let log = folder.path().join("wal");
    for copy in files_ending(&log, ".dict") {
        std::fs::remove_file(copy).unwrap();
    }
    std::fs::write(&file, b"garbage").unwrap();
    for nth in 0..3 {
        let store = open(folder.path(), &quick_flushes());
        let unusable = u64::from(nth < 1);
        assert_eq!(counter(&store, "records_unusable"), unusable);
        let issues = store.issues().join("\n");
        assert!(issues.contains("1 segments"), "{issues}");
        // The log gives the segment up; what is kept of it stays.
        stored(&store, &fleet, 1, 135 + nth);
        flush(&store);
        assert_eq!(files_ending(&log, ".unusable").len(), 1);
    }
    std::fs::remove_file(&files_ending(&log, ".unusable")[0]).unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert!(!store.issues().join("\n").contains("segments"));
}

/// A store that the disk budget took the first partition from, while the log still has its records.
fn with_an_evicted_partition(dir: &Path, fleet: &Fleet) {
    let options = Options {
        disk_bytes: 1,
        ..quick_flushes()
    };
    let store = open(dir, &options);
    stored(&store, fleet, 0, 130);
    stored(&store, fleet, 1, 0);
    // The first partition's chunk is over, the other's is not.
    store
        .maintain(BEGIN + 130 * WINDOW_NS + 100 * SECOND)
        .unwrap();
    assert_eq!(counter(&store, "removed_total{cause=\"disk_bytes\"}"), 1);
    assert_eq!(counts(&store).len(), 1);
}

#[test]
fn records_of_an_evicted_partition_do_not_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    with_an_evicted_partition(folder.path(), &fleet);
    for _ in 0..2 {
        let store = open(folder.path(), &quick_flushes());
        let hosts: Vec<_> = counts(&store).into_keys().collect();
        assert_eq!(hosts, ["host-0000"]);
        assert_eq!(counter(&store, "log_records_removed"), 1);
        assert_eq!(store.issues(), Vec::<String>::new());
    }
    // The note goes with the last record.
    let log = folder.path().join("wal");
    assert_eq!(files_ending(&log, ".removed").len(), 1);
    let store = open(folder.path(), &quick_flushes());
    flush(&store);
    assert_eq!(files_ending(&log, ".removed").len(), 0);
}

#[test]
fn a_partition_made_again_after_its_eviction_has_only_what_came_after() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    with_an_evicted_partition(folder.path(), &fleet);
    // More disk: late windows are taken again.
    let store = open(folder.path(), &quick_flushes());
    let late = stored(&store, &fleet, 2, 1);
    drop(store);
    for _ in 0..2 {
        let store = open(folder.path(), &quick_flushes());
        let found = counts(&store);
        assert_eq!((found.len(), found.get("host-0002")), (2, Some(&late)));
        assert_eq!(store.issues(), Vec::<String>::new());
    }
}

#[test]
fn an_eviction_that_a_crash_cut_short_is_ended() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    drop(store);
    let dict = &files_ending(&folder.path().join("wal"), ".dict")[0];
    std::fs::rename(dict, dict.with_extension("removed")).unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert!(!files[0].exists() && files[1].exists());
    assert_eq!(store.issues(), Vec::<String>::new());
}

#[test]
fn windows_older_than_the_disk_budget_keeps_are_refused_until_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    with_an_evicted_partition(folder.path(), &fleet);
    let small = Options {
        disk_bytes: 1,
        ..quick_flushes()
    };
    let late = |store: &EmbeddedStore| push(store, &fleet, fleet.window(2, 1, BEGIN)).unwrap();
    let store = open(folder.path(), &small);
    let PushOutcome::Rejected(reason) = late(&store) else {
        panic!("it is taken, to be removed again");
    };
    assert!(reason.contains("retention.disk_gib"), "{reason}");
    stored(&store, &fleet, 2, 131);
    drop(store);
    assert_eq!(
        late(&open(folder.path(), &quick_flushes())),
        PushOutcome::Stored
    );
}

#[test]
fn what_was_set_aside_gives_way_to_the_disk_budget_before_partitions_do() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    let healthy = counter(&store, "store_bytes_") + counter(&store, "fleetprof_store_bytes");
    store.close().unwrap();
    drop(store);
    let damaged = folder.path().join("partitions/1768262400.sqlite.damaged");
    let unusable = folder.path().join("wal/0000000000000000.wal.unusable");
    std::fs::write(&damaged, vec![0; 1 << 20]).unwrap();
    std::fs::write(&unusable, vec![0; 1 << 20]).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1);
    let file = std::fs::OpenOptions::new().write(true).open(&unusable);
    file.unwrap().set_modified(old).unwrap();
    let budget = |bytes| Options {
        disk_bytes: bytes,
        ..quick_flushes()
    };
    let now = BEGIN + HOUR;
    for (bytes, left) in [
        (4 << 20, 2),
        (healthy + (3 << 19), 1),
        (healthy + (1 << 19), 0),
    ] {
        let store = open(folder.path(), &budget(bytes));
        store.maintain(now).unwrap();
        let aside = [&damaged, &unusable]
            .into_iter()
            .filter(|path| path.exists());
        assert_eq!(aside.count(), left, "with {bytes} bytes");
        assert!(left != 1 || damaged.exists(), "the oldest goes first");
        assert!(files.iter().all(|file| file.exists()));
        store.close().unwrap();
    }
}

#[test]
fn a_partition_is_removed_when_nothing_of_it_is_on_its_way_into_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = Options {
        partition_ns: 600 * SECOND as u64,
        disk_bytes: 1,
        ..quick_flushes()
    };
    let store = open(folder.path(), &options);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let pushers: Vec<_> = (0..3)
            .map(|host| {
                let (store, fleet) = (&store, &fleet);
                scope.spawn(move || {
                    for sequence in 0..150 {
                        // Ten minutes and five seconds: sooner or later one of every partition.
                        let mut window = fleet.window(host, sequence, BEGIN);
                        let shift = sequence as i64 * 50 * SECOND;
                        window.range.start_unix_ns += shift;
                        window.range.end_unix_ns += shift;
                        let taken = push(store, fleet, window).unwrap();
                        assert!(
                            matches!(taken, PushOutcome::Stored | PushOutcome::Rejected(_)),
                            "{taken:?}"
                        );
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let _ = store.maintain(BEGIN + 3 * HOUR);
            }
        });
        let ended: Vec<_> = pushers.into_iter().map(|pusher| pusher.join()).collect();
        // Also when one has failed: the other thread shall end.
        done.store(true, Ordering::Release);
        for of_pusher in ended {
            of_pusher.unwrap();
        }
    });
    assert!(counter(&store, "removed_total{cause=\"disk_bytes\"}") > 0);
    let left = total(&store);
    drop(store);
    let store = open(folder.path(), &options);
    assert_eq!(store.issues(), Vec::<String>::new());
    assert_eq!(total(&store), left);
}

#[test]
fn answers_are_exact_while_flushes_commit() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let (before, after) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 0..100 {
                let window: NewWindow = fleet.window(0, sequence, BEGIN);
                before.fetch_add(Fleet::samples(&window), Ordering::SeqCst);
                let samples = stored(&store, &fleet, 0, sequence);
                after.fetch_add(samples, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
        });
        scope.spawn(|| {
            while !done.load(Ordering::SeqCst) {
                store.maintain(BEGIN + 72 * HOUR).unwrap();
            }
        });
        while !done.load(Ordering::SeqCst) {
            let least = after.load(Ordering::SeqCst);
            let answer = store.profile(all_time(), &Query::default(), &ample());
            let found = answer.unwrap().data.total().count;
            let most = before.load(Ordering::SeqCst);
            assert!((least..=most).contains(&found), "{least} {found} {most}");
        }
    });
}
