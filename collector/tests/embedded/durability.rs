//! Tests what the log alone must restore, what is skipped on purpose, and what is removed on a full
//! disk.

use super::fleet::{Fleet, WINDOW_NS};
use super::{BEGIN, HOUR, SECOND, SMALL, by_host, counts, flush, open, push, quick_flushes, total};
use super::{all_time, ample, two_partitions};
use collector::store::embedded::{EmbeddedStore, OpenError, Options};
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

/// Files in a folder and in those below it.
pub fn files_ending(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_ending(&path, end));
        } else if path.to_str().unwrap().ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Folder of the log of a partition's file.
fn log_of(file: &Path) -> PathBuf {
    let dir = file.ancestors().nth(2).unwrap();
    dir.join("wal").join(file.file_stem().unwrap())
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
        assert_eq!(counter(&store, "log_records_replayed"), 1);
        assert_eq!(store.issues(), Vec::<String>::new());
    }
    // Its log went with it.
    let logs = std::fs::read_dir(folder.path().join("wal")).unwrap();
    assert_eq!(logs.count(), 1);
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
    // In its log alone.
    stored(&store, &fleet, 2, 1);
    let samples = counts(&store)["host-0000"];
    drop(store);
    // A removal is: the log gets another name, the file goes, then the log. The crash comes before
    // the second step, in the middle of it, before the third, and in the middle of that.
    let log = log_of(&files[0]);
    let removed = log.with_extension("removed");
    std::fs::rename(&log, &removed).unwrap();
    for step in 0..4 {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(folder.path(), copy.path());
        let at = |path: &Path| copy.path().join(path.strip_prefix(folder.path()).unwrap());
        if step > 0 {
            std::fs::remove_file(at(&files[0])).unwrap();
        }
        if step > 1 {
            for rest in ["-wal", "-shm"] {
                let _ =
                    std::fs::remove_file(at(Path::new(&format!("{}{rest}", files[0].display()))));
            }
        }
        if step > 2 {
            std::fs::remove_file(&files_ending(&at(&removed), ".wal")[0]).unwrap();
        }
        for _ in 0..2 {
            let store = open(copy.path(), &quick_flushes());
            assert!(!at(&files[0]).exists() && at(&files[1]).exists(), "{step}");
            assert!(!at(&removed).exists() && !at(&log).exists(), "{step}");
            assert_eq!(store.issues(), Vec::<String>::new());
            let left = counts(&store);
            assert_eq!(left.len(), 1);
            assert!(left["host-0000"] < samples);
        }
        // Its time can be filled again, and what comes is safe.
        let store = open(copy.path(), &quick_flushes());
        let late = stored(&store, &fleet, 1, 2);
        drop(store);
        let store = open(copy.path(), &quick_flushes());
        assert_eq!(counts(&store).get("host-0001"), Some(&late));
    }
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let to = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &to);
        } else {
            std::fs::copy(&path, to).unwrap();
        }
    }
}

#[test]
fn a_log_of_which_any_part_is_left_brings_nothing_back_that_is_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    let samples = total(&store);
    // Segments that the next flush cuts, with what is in the file by then.
    stored(&store, &fleet, 1, 132);
    let log = log_of(&files[1]);
    let before = tempfile::tempdir().unwrap();
    copy_folder(&log, before.path());
    flush(&store);
    let all = total(&store);
    drop(store);
    assert!(samples < all && files_ending(&log, ".wal").is_empty());
    // The crash came after the commit and before the cut; between the copy of the dictionary and
    // the cut; while the log was being removed.
    let states: [&dyn Fn(); 4] = [
        &|| copy_folder(before.path(), &log),
        &|| {
            files_ending(&log, ".dict")
                .iter()
                .for_each(|path| std::fs::remove_file(path).unwrap())
        },
        &|| copy_folder(before.path(), &log),
        &|| std::fs::remove_dir_all(&log).unwrap(),
    ];
    for (nth, state) in states.into_iter().enumerate() {
        state();
        let store = open(folder.path(), &quick_flushes());
        assert_eq!((total(&store), store.issues()), (all, Vec::new()), "{nth}");
        let again = fleet.window(1, 132, BEGIN);
        assert_eq!(push(&store, &fleet, again).unwrap(), PushOutcome::Duplicate);
    }
    // What comes next goes on after the numbers that the file has.
    let store = open(folder.path(), &quick_flushes());
    let late = stored(&store, &fleet, 2, 133);
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(counts(&store).get("host-0002"), Some(&late));
    assert_eq!(total(&store), all + late);
}

#[test]
fn a_push_into_several_partitions_is_there_up_to_where_it_was_killed() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let windows = [0, 130, 260].map(|sequence| fleet.window(0, sequence, BEGIN));
    let stacks = |window: &NewWindow| window.rows.iter().map(|row| row.stack).collect();
    let stacks: Vec<Vec<_>> = windows.iter().map(stacks).collect();
    let now = windows[2].range.end_unix_ns;
    let taken = store.push(&windows, &fleet.define(&stacks.concat()), now);
    assert_eq!(taken.unwrap(), [const { PushOutcome::Stored }; 3]);
    assert_eq!(counter(&store, "log_batches"), 3);
    drop(store);
    let logs = files_ending(&folder.path().join("wal"), ".wal");
    assert_eq!(logs.len(), 3);
    // The last log was not written yet, then torn, then the second was not.
    let samples = windows.each_ref().map(Fleet::samples);
    let whole = std::fs::read(&logs[2]).unwrap();
    let torn = std::fs::File::options().write(true).open(&logs[2]);
    torn.unwrap().set_len(whole.len() as u64 - 1).unwrap();
    for (left, issues) in [(2, 0), (2, 0)] {
        let store = open(folder.path(), &quick_flushes());
        assert_eq!(total(&store), samples[..left].iter().sum::<u64>());
        assert_eq!(store.issues().len(), issues);
        drop(store);
        std::fs::remove_dir_all(log_of_log(&logs[2])).unwrap_or_default();
    }
    let store = open(folder.path(), &quick_flushes());
    let again: Vec<_> = windows
        .into_iter()
        .map(|window| push(&store, &fleet, window))
        .collect();
    let again: Vec<_> = again.into_iter().map(Result::unwrap).collect();
    let repeated = [
        PushOutcome::Duplicate,
        PushOutcome::Duplicate,
        PushOutcome::Stored,
    ];
    assert_eq!(again, repeated);
}

fn log_of_log(segment: &Path) -> &Path {
    segment.parent().unwrap()
}

#[test]
fn a_log_whose_folder_cannot_be_written_fails_its_windows_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    let files = two_partitions(&store, &fleet, folder.path());
    store.close().unwrap();
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    // A file is where the folder of the second log should be.
    let log = log_of(&files[1]);
    std::fs::remove_dir_all(&log).unwrap();
    std::fs::write(&log, b"").unwrap();
    let windows = [2, 132].map(|sequence| fleet.window(0, sequence, BEGIN));
    let stacks = |window: &NewWindow| window.rows.iter().map(|row| row.stack).collect();
    let stacks: Vec<Vec<_>> = windows.iter().map(stacks).collect();
    let define = fleet.define(&stacks.concat());
    let now = windows[1].range.end_unix_ns;
    store.push(&windows, &define, now).unwrap_err();
    assert!(
        store
            .issues()
            .join("\n")
            .contains("agents keep their windows")
    );
    std::fs::remove_file(&log).unwrap();
    let taken = store.push(&windows, &define, now).unwrap();
    assert_eq!(taken, [PushOutcome::Duplicate, PushOutcome::Stored]);
    assert_eq!(store.issues(), Vec::<String>::new());
    let samples = total(&store);
    drop(store);
    std::fs::remove_file(&files[1]).unwrap();
    // The record that failed had entries of the dictionary; the next one has them again.
    let store = open(folder.path(), &quick_flushes());
    let window = Fleet::samples(&windows[1]);
    assert!(total(&store) < samples && total(&store) > window);
    assert_eq!(counter(&store, "records_unusable"), 0);
}

#[test]
fn a_log_of_before_there_was_one_for_each_partition_is_refused_unless_it_is_empty() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    two_partitions(&store, &fleet, folder.path());
    let samples = total(&store);
    store.close().unwrap();
    drop(store);
    // As that version left it: a segment with a record, numbers in files beyond those of any log.
    std::fs::write(folder.path().join("layout"), "partition_s 1200\n").unwrap();
    let logs = folder.path().join("wal");
    std::fs::remove_dir_all(&logs).unwrap();
    std::fs::create_dir(&logs).unwrap();
    let head = [&b"fpwal\0\0\x02"[..], &[4, 0, 0, 0, 0, 0, 0, 0]].concat();
    let segment = logs.join("0000000000000005.wal");
    std::fs::write(&segment, [&head[..], &[0; 30]].concat()).unwrap();
    for beside in [
        "1768435200-00ab.dict",
        "1768430000-00ac.removed",
        "1.wal.unusable",
    ] {
        std::fs::write(logs.join(beside), b"x").unwrap();
    }
    for _ in 0..2 {
        let refused = EmbeddedStore::open(folder.path(), quick_flushes(), BEGIN + HOUR);
        let Err(refused @ OpenError::LogVersion { .. }) = refused else {
            panic!("it is opened");
        };
        let text = refused.to_string();
        assert!(
            text.contains("start and stop the collector that wrote the log"),
            "{text}"
        );
        assert!(segment.exists());
    }
    // Stopped, it has no record.
    std::fs::write(&segment, &head).unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(total(&store), samples);
    let left = std::fs::read_dir(&logs)
        .unwrap()
        .map(|file| file.unwrap().file_name());
    assert_eq!(left.collect::<Vec<_>>(), ["1.wal.unusable"]);
    let late = stored(&store, &fleet, 2, 132);
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(total(&store), samples + late);
    // A later version is refused too.
    drop(store);
    std::fs::write(folder.path().join("layout"), "partition_s 1200\nlog 4\n").unwrap();
    let refused = EmbeddedStore::open(folder.path(), quick_flushes(), BEGIN);
    assert!(matches!(
        refused,
        Err(OpenError::LogVersion { found: 4, .. })
    ));
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
