//! Who writes to a prefix: a collector that starts again from the bucket, and two at a time.

use super::server::TestBucket;
use super::{
    BEGIN, DAY, Fleet, HOUR, PushOutcome, SMALL, archive, fill, issues, local_files, number, open,
    options, picture, push, settle, total,
};
use collector::store::embedded::{EmbeddedStore, OpenError, Options};
use std::path::Path;

fn take_over(dir: &Path, options: &Options) {
    let archive = options.archive.clone().unwrap();
    let before = EmbeddedStore::take_over_archive(dir, archive).unwrap();
    assert!(before.is_some());
}

fn copy(from: &Path, to: &Path) {
    let mut cp = std::process::Command::new("cp");
    let done = cp.arg("-a").arg(from).arg(to).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_collector_rebuilt_from_nothing_equals_the_lost_one_to_the_sample() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let mut folder = tempfile::tempdir().unwrap();
    let mut store = open(folder.path(), &options);
    fill(&store, &fleet);
    // Lost three times: with everything on its disk, downsampled, and with nothing on it.
    for (age, late) in [(DAY, 11), (3 * DAY - 6 * HOUR, 12), (4 * DAY, 13)] {
        settle(&store, age);
        let before = picture(&store);
        drop(store);
        folder = tempfile::tempdir().unwrap();
        take_over(folder.path(), &options);
        store = open(folder.path(), &options);
        assert_eq!(local_files(folder.path()), Vec::<String>::new());
        assert_eq!(picture(&store), before);
        // What the lost one had stored is known, and what it had not is taken.
        let now = BEGIN + age;
        let repeated = push(&store, &fleet, fleet.window(0, 10, BEGIN), now);
        assert_eq!(repeated, PushOutcome::Duplicate);
        let late = push(&store, &fleet, fleet.window(0, late, BEGIN), now);
        assert_eq!(late, PushOutcome::Stored);
    }
    settle(&store, 5 * DAY);
    assert_eq!(issues(&store), "");
}

#[test]
fn a_second_collector_is_refused_at_its_start_and_told_how_to_take_over() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let options = options(&bucket);
    let store = open(first.path(), &options);
    archive(&store, DAY).unwrap();
    let refused = EmbeddedStore::open(second.path(), options.clone(), BEGIN);
    let Err(OpenError::Archive(error)) = refused else {
        panic!("it is opened");
    };
    let text = error.to_string();
    assert!(text.contains("belongs to the collector of"), "{text}");
    assert!(text.contains("archive take-over"), "{text}");
    assert!(
        text.contains(&format!("s3://{}/fleet/eu", bucket.name)),
        "{text}"
    );
}

#[test]
fn the_collector_that_was_taken_over_uploads_and_removes_nothing_and_says_so() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let old = open(first.path(), &options);
    fill(&old, &fleet);
    settle(&old, 5 * HOUR);
    let samples = total(&old);
    take_over(second.path(), &options);
    let new = open(second.path(), &options);
    archive(&new, 5 * HOUR).unwrap();
    let objects = bucket.objects();
    // It has a partition to upload, and one to remove for its age.
    settle(&old, 12 * HOUR);
    let issue = issues(&old);
    assert!(issue.contains("belongs to the collector of"), "{issue}");
    assert_eq!(number(&old, "fleetprof_archive_fenced"), 1);
    settle(&old, 40 * DAY);
    let after = bucket.objects();
    assert!(objects.iter().all(|name| after.contains(name)), "{after:?}");
    // What it has stays with it: nobody else has all of it.
    assert!(!local_files(first.path()).is_empty());
    assert_eq!(number(&new, "fleetprof_archive_fenced"), 0);
    // Nor does it after a restart, which needs no answer to that.
    drop(old);
    let old = open(first.path(), &options);
    archive(&old, 12 * HOUR).unwrap();
    assert!(issues(&old).contains("belongs to the collector of"));
    assert!(total(&old) > 0 && samples > 0);
}

#[test]
fn of_two_copies_of_a_directory_one_writes() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let (first, copied) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(first.path(), &options);
    fill(&store, &fleet);
    settle(&store, 5 * HOUR);
    let copied = copied.path().join("copy");
    copy(first.path(), &copied);
    let clone = open(&copied, &options);
    settle(&clone, 12 * HOUR);
    assert_eq!(issues(&clone), "");
    let objects = bucket.objects();
    settle(&store, 12 * HOUR);
    let issue = issues(&store);
    assert!(issue.contains("another process"), "{issue}");
    let after = bucket.objects();
    assert!(objects.iter().all(|name| after.contains(name)), "{after:?}");
}

#[test]
fn a_manifest_that_is_gone_or_unreadable_is_never_replaced() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, 5 * HOUR);
    let objects = bucket.objects();
    let samples = total(&store);
    drop(store);
    bucket.put("manifest.json", "{\"format\":99}");
    let unreadable = EmbeddedStore::open(other.path(), options.clone(), BEGIN);
    assert!(matches!(unreadable, Err(OpenError::Archive(_))));
    bucket.delete("manifest.json");
    // One that never saw it must not think that the bucket is new.
    let empty = EmbeddedStore::open(other.path(), options.clone(), BEGIN);
    let text = empty
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(text.contains("has objects and no manifest"), "{text}");
    // One that has seen it goes on without writing.
    let store = open(folder.path(), &options);
    settle(&store, 12 * HOUR);
    assert!(issues(&store).contains("no manifest"), "{}", issues(&store));
    assert_eq!((bucket.objects(), total(&store)), (objects, samples));
}

#[test]
fn a_server_that_ignores_conditions_is_not_written_to() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    bucket.rules(&["PUT\theedless"]);
    super::maintain(&store, DAY);
    assert!(archive(&store, DAY).is_err());
    assert!(
        issues(&store).contains("ignores `If-None-Match`"),
        "{}",
        issues(&store)
    );
    assert_eq!(bucket.objects(), Vec::<String>::new());
    bucket.rules(&[]);
    settle(&store, DAY + HOUR);
    assert_eq!(bucket.objects().len(), 3);
}
