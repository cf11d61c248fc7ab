//! Tests that a start reads only partitions that changed since the manifest was written.

use super::durability::counter;
use super::fleet::Fleet;
use super::{
    BEGIN, HOUR, SMALL, by_host, flush, open, push, quick_flushes, total, two_partitions, two_weeks,
};
use collector::store::embedded::EmbeddedStore;
use collector::store::{PushOutcome, StoreQueries as _, StoreStatus as _, WindowSink as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Lets a file look as if it was written so many seconds before.
fn age(path: &Path, seconds: u64) {
    let file = std::fs::File::options().write(true).open(path).unwrap();
    let written = file.metadata().unwrap().modified().unwrap();
    file.set_modified(written - Duration::from_secs(seconds))
        .unwrap();
}

fn opened(store: &EmbeddedStore) -> u64 {
    counter(store, "fleetprof_store_partitions_opened_at_start")
}

fn end(store: EmbeddedStore) {
    store.close().unwrap();
}

/// A store that was closed long after its two partitions were written. Returns their files, and
/// how many samples there are.
fn closed(dir: &Path, fleet: &Fleet) -> (Vec<PathBuf>, u64) {
    let store = open(dir, &quick_flushes());
    let files = two_partitions(&store, fleet, dir);
    let samples = total(&store);
    end(store);
    files.iter().for_each(|file| age(file, 7200));
    let store = open(dir, &quick_flushes());
    assert_eq!(
        opened(&store),
        2,
        "the manifest trusts files that changed since"
    );
    end(store);
    (files, samples)
}

fn check_repeated(store: &EmbeddedStore, fleet: &Fleet, sequence: u64, expected: &PushOutcome) {
    let window = fleet.window(0, sequence, BEGIN);
    assert_eq!(push(store, fleet, window).unwrap(), *expected);
}

#[test]
fn a_start_reads_no_partition_that_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (_, samples) = closed(folder.path(), &fleet);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(opened(&store), 0);
    check_repeated(&store, &fleet, 1, &PushOutcome::Duplicate);
    check_repeated(&store, &fleet, 131, &PushOutcome::Duplicate);
    assert_eq!(total(&store), samples);
    let kept = store.kept().unwrap().unwrap();
    let first = fleet.window(0, 0, BEGIN).range;
    assert_eq!(kept.start_unix_ns, first.start_unix_ns);
    check_repeated(&store, &fleet, 2, &PushOutcome::Stored);
    flush(&store);
    end(store);
}

#[test]
fn a_partition_that_changed_is_read_and_the_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (files, samples) = closed(folder.path(), &fleet);
    age(&files[1], 1800);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!((opened(&store), total(&store)), (1, samples));
    check_repeated(&store, &fleet, 1, &PushOutcome::Duplicate);
    check_repeated(&store, &fleet, 130, &PushOutcome::Duplicate);
}

#[test]
fn what_came_after_the_manifest_is_known_after_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    closed(folder.path(), &fleet);
    let store = open(folder.path(), &quick_flushes());
    check_repeated(&store, &fleet, 132, &PushOutcome::Stored);
    flush(&store);
    check_repeated(&store, &fleet, 133, &PushOutcome::Stored);
    let samples = total(&store);
    // Dropped without a close: as after a kill.
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    assert_eq!((opened(&store), total(&store)), (1, samples));
    check_repeated(&store, &fleet, 132, &PushOutcome::Duplicate);
    check_repeated(&store, &fleet, 133, &PushOutcome::Duplicate);
}

#[test]
fn windows_of_a_partition_that_is_gone_may_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (files, samples) = closed(folder.path(), &fleet);
    std::fs::remove_file(&files[0]).unwrap();
    let store = open(folder.path(), &quick_flushes());
    let left = total(&store);
    assert!(left < samples);
    check_repeated(&store, &fleet, 131, &PushOutcome::Duplicate);
    check_repeated(&store, &fleet, 0, &PushOutcome::Stored);
    check_repeated(&store, &fleet, 1, &PushOutcome::Stored);
    assert_eq!(total(&store), samples);
}

#[test]
fn hosts_of_a_partition_whose_removal_was_cut_short_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (files, _) = closed(folder.path(), &fleet);
    // Its log says that it is removed, and its file is there.
    let log = folder
        .path()
        .join("wal")
        .join(files[0].file_stem().unwrap());
    std::fs::rename(&log, log.with_extension("removed")).unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert!(!files[0].exists());
    let kept = store.kept().unwrap().unwrap();
    let left = fleet.window(0, 130, BEGIN).range;
    assert_eq!(kept.start_unix_ns, left.start_unix_ns);
}

#[test]
fn windows_of_a_damaged_partition_may_come_again() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (files, samples) = closed(folder.path(), &fleet);
    // The same size and age, in another file.
    let bytes = vec![0x5a; std::fs::metadata(&files[0]).unwrap().len() as usize];
    let modified = std::fs::metadata(&files[0]).unwrap().modified().unwrap();
    let other = files[0].with_extension("other");
    std::fs::write(&other, bytes).unwrap();
    std::fs::rename(&other, &files[0]).unwrap();
    let file = std::fs::File::options().write(true).open(&files[0]);
    file.unwrap().set_modified(modified).unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert!(!store.issues().is_empty());
    check_repeated(&store, &fleet, 0, &PushOutcome::Stored);
    check_repeated(&store, &fleet, 1, &PushOutcome::Stored);
    assert_eq!(total(&store), samples);
}

#[test]
fn a_file_damaged_in_place_is_found_by_the_first_question() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (files, samples) = closed(folder.path(), &fleet);
    let metadata = std::fs::metadata(&files[0]).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(&files[0])
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0x5a; metadata.len() as usize], 0)
        .unwrap();
    file.set_modified(metadata.modified().unwrap()).unwrap();
    let store = open(folder.path(), &quick_flushes());
    assert_eq!(opened(&store), 0);
    assert!(total(&store) < samples);
    assert!(!store.issues().is_empty());
    store.maintain(BEGIN + HOUR).unwrap();
    check_repeated(&store, &fleet, 0, &PushOutcome::Stored);
    check_repeated(&store, &fleet, 1, &PushOutcome::Stored);
    check_repeated(&store, &fleet, 131, &PushOutcome::Duplicate);
    // Nor does the next start believe the manifest of before.
    drop(store);
    let store = open(folder.path(), &quick_flushes());
    check_repeated(&store, &fleet, 0, &PushOutcome::Duplicate);
    assert_eq!(total(&store), samples);
}

#[test]
fn the_answer_that_finds_damage_says_so_itself() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (files, samples) = closed(folder.path(), &fleet);
    let modified = std::fs::metadata(&files[0]).unwrap().modified().unwrap();
    // Samples stay as they are: what windows there were is read for what the answer says of them.
    let file = rusqlite::Connection::open(&files[0]).unwrap();
    file.execute("UPDATE windows SET body = zeroblob(length(body))", ())
        .unwrap();
    file.close().unwrap();
    let file = std::fs::File::options().write(true).open(&files[0]);
    file.unwrap().set_modified(modified).unwrap();
    let store = open(folder.path(), &quick_flushes());
    let answer = by_host(&store);
    let name = files[0].file_name().unwrap().to_string_lossy();
    let missing = samples - answer.quality.total.count;
    assert_eq!(
        answer.quality.damaged,
        [name],
        "{missing} samples are missing"
    );
}

#[test]
fn a_manifest_of_garbage_costs_time_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let (_, samples) = closed(folder.path(), &fleet);
    let path = folder.path().join("manifest");
    let written = std::fs::read(&path).unwrap();
    let mut changed = written.clone();
    changed[written.len() / 2] ^= 1;
    for bytes in [
        &b""[..],
        b"garbage",
        &written[..written.len() - 1],
        &changed,
    ] {
        std::fs::write(&path, bytes).unwrap();
        let store = open(folder.path(), &quick_flushes());
        assert_eq!((opened(&store), total(&store)), (2, samples));
        check_repeated(&store, &fleet, 1, &PushOutcome::Duplicate);
    }
}

#[test]
fn hosts_of_partitions_that_age_took_are_forgotten() {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = two_weeks();
    closed(folder.path(), &fleet);
    let store = open(folder.path(), &options);
    assert_eq!(opened(&store), 0);
    // Killed after the partitions went, before a manifest says so.
    let manifest = std::fs::read(folder.path().join("manifest")).unwrap();
    store.maintain(BEGIN + 15 * 24 * HOUR).unwrap();
    assert_eq!(total(&store), 0);
    drop(store);
    std::fs::write(folder.path().join("manifest"), manifest).unwrap();
    let at = BEGIN + 15 * 24 * HOUR;
    let store = EmbeddedStore::open(folder.path(), options, at).unwrap();
    assert_eq!((opened(&store), store.kept().unwrap()), (0, None));
}

/// Files of partitions in a folder that this process has open.
fn open_files(dir: &Path) -> usize {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let paths = open.filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok());
    let folder = dir.join("partitions").canonicalize().unwrap();
    let ours = paths.filter(|path| path.starts_with(&folder));
    ours.filter(|path| path.extension().is_some_and(|end| end == "sqlite"))
        .count()
}

#[test]
fn a_question_about_many_partitions_leaves_few_of_them_open() {
    const PARTITIONS: u64 = 48;
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &quick_flushes());
    for at in 0..PARTITIONS {
        check_repeated(&store, &fleet, at * 120, &PushOutcome::Stored);
    }
    flush(&store);
    let samples = total(&store);
    end(store);
    let store = open(folder.path(), &quick_flushes());
    let files = std::fs::read_dir(folder.path().join("partitions")).unwrap();
    assert_eq!(files.count() as u64, PARTITIONS);
    assert_eq!(open_files(folder.path()), 0);
    for _ in 0..2 {
        assert_eq!(total(&store), samples);
        let open = open_files(folder.path());
        assert!((1..=32).contains(&open), "{open} files are open");
    }
    let on_disk = counter(&store, "fleetprof_store_bytes");
    assert!(on_disk > 0, "{on_disk}");
}
