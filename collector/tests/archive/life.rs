//! From the disk into the bucket, and back to whoever asks, while nothing fails.

use super::server::TestBucket;
use super::{
    BEGIN, DAY, Fleet, HOUR, MINUTE, PushOutcome, SMALL, ample, archive, ask, fill, issues,
    local_files, maintain, number, open, options, picture, push, range, settle, total,
};
use collector::store::{StoreQueries as _, WindowSink as _};

#[test]
fn a_partition_is_uploaded_once_it_is_sealed_and_no_earlier() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    // An hour after the end of the second one, less a minute: late windows may still come.
    settle(&store, 5 * HOUR - MINUTE);
    assert_eq!(bucket.objects().len(), 1, "{:?}", bucket.objects());
    assert_eq!(number(&store, "fleetprof_archive_pending_partitions"), 0);
    settle(&store, 5 * HOUR);
    assert_eq!(bucket.objects().len(), 2);
    // It says so while a partition waits.
    maintain(&store, 7 * HOUR);
    bucket.rules(&["PUT\tstatus\t500"]);
    assert!(archive(&store, 7 * HOUR).is_err());
    assert_eq!(number(&store, "fleetprof_archive_pending_partitions"), 1);
    assert_eq!(number(&store, "fleetprof_archive_behind_seconds"), 3600);
    assert!(number(&store, "fleetprof_archive_pending_bytes") > 0);
    // The local files are all there.
    assert_eq!(local_files(folder.path()).len(), 3);
}

#[test]
fn what_left_the_disk_is_answered_from_the_bucket_as_before() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    // As they came, until they leave: at each resolution the test of owners has the same.
    let mut options = options(&bucket);
    options.windows_ns = 5 * DAY as u64;
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, DAY);
    let before = picture(&store);
    settle(&store, 4 * DAY);
    assert_eq!(local_files(folder.path()), Vec::<String>::new());
    let removed = "fleetprof_store_partitions_removed_total{cause=\"archived\"}";
    assert_eq!(number(&store, removed), 3);
    assert_eq!(picture(&store), before);
    // What was fetched is not fetched again, nor is it after a restart.
    let requests = bucket.requests().len();
    assert_eq!(picture(&store), before);
    store.close().unwrap();
    drop(store);
    let store = open(folder.path(), &options);
    assert_eq!(picture(&store), before);
    let more = bucket.requests().split_off(requests);
    assert!(
        more.iter().all(|of| of.contains("/manifest.json")),
        "{more:?}"
    );
    assert_eq!(issues(&store), "");
}

#[test]
fn a_minute_fetches_a_part_of_a_partition() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    let held = number(&store, "fleetprof_archive_bytes");
    let minute = range(16 * MINUTE, 17 * MINUTE);
    assert!(ask(&store, minute, &ample()).unwrap().data.total().count > 0);
    let fetched = number(&store, "fleetprof_archive_read_bytes_total");
    println!("{fetched} of {held} bytes");
    assert!(0 < fetched && fetched < held / 2, "{fetched} of {held}");
}

#[test]
fn a_late_window_is_stored_next_to_what_left_and_a_repeated_one_is_not() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    let before = total(&store);
    let now = BEGIN + 4 * DAY;
    let repeated = push(&store, &fleet, fleet.window(0, 10, BEGIN), now);
    assert_eq!(repeated, PushOutcome::Duplicate);
    let late = fleet.window(0, 11, BEGIN);
    let after = before + Fleet::samples(&late);
    assert_eq!(push(&store, &fleet, late, now), PushOutcome::Stored);
    assert_eq!(total(&store), after);
    // It becomes an object of its own, which leaves too.
    settle(&store, 4 * DAY + HOUR);
    settle(&store, 4 * DAY + 2 * HOUR);
    assert_eq!(local_files(folder.path()), Vec::<String>::new());
    assert_eq!(bucket.objects().len(), 4);
    assert_eq!(total(&store), after);
    drop(store);
    let store = open(folder.path(), &options);
    assert_eq!(total(&store), after);
    for sequence in [10, 11] {
        let again = push(&store, &fleet, fleet.window(0, sequence, BEGIN), now);
        assert_eq!(again, PushOutcome::Duplicate);
    }
}

#[test]
fn a_partition_that_changed_is_uploaded_again_and_its_old_object_goes() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    settle(&store, DAY);
    let first = bucket.objects();
    // Downsampled to minutes, then a late window.
    settle(&store, 2 * DAY + 12 * HOUR);
    let second = bucket.objects();
    assert_eq!(second.len(), 3, "{second:?}");
    assert!(
        second.iter().all(|name| name.ends_with("-minutes")),
        "{second:?}"
    );
    assert!(second.iter().all(|name| !first.contains(name)));
    let now = BEGIN + 2 * DAY + 12 * HOUR;
    let stored = push(&store, &fleet, fleet.window(0, 11, BEGIN), now);
    assert_eq!(stored, PushOutcome::Stored);
    settle(&store, 2 * DAY + 14 * HOUR);
    let third = bucket.objects();
    assert_eq!(third.len(), 3);
    let kept = third.iter().filter(|name| second.contains(name)).count();
    assert_eq!(kept, 2, "{third:?}");
}

#[test]
fn objects_go_at_their_age_and_hosts_with_them() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    let all = total(&store);
    // The first partition is over its age, the second not.
    settle(&store, 30 * DAY + 3 * HOUR);
    assert_eq!(bucket.objects().len(), 2);
    assert_eq!(
        number(
            &store,
            "fleetprof_archive_objects_removed_total{cause=\"age\"}"
        ),
        1
    );
    let left = total(&store);
    assert!(0 < left && left < all, "{left} of {all}");
    assert!(store.kept().unwrap().unwrap().start_unix_ns >= BEGIN + 2 * HOUR);
    settle(&store, 31 * DAY);
    assert_eq!(bucket.objects(), Vec::<String>::new());
    assert_eq!((total(&store), store.kept().unwrap()), (0, None));
    assert_eq!(issues(&store), "");
    drop(store);
    let store = open(folder.path(), &options);
    assert_eq!((total(&store), store.kept().unwrap()), (0, None));
    let heads = std::fs::read_dir(folder.path().join("archive/heads")).unwrap();
    assert_eq!(heads.count(), 0);
}

#[test]
fn over_the_disk_budget_archived_partitions_leave_first_and_nothing_is_lost() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let mut options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, 5 * HOUR + MINUTE);
    let all = total(&store);
    let bytes = number(&store, "fleetprof_store_bytes");
    store.close().unwrap();
    drop(store);
    options.disk_bytes = bytes / 8;
    let store = open(folder.path(), &options);
    maintain(&store, 5 * HOUR + MINUTE);
    assert!(local_files(folder.path()).len() < 3);
    assert_eq!(total(&store), all);
    let evicted = "fleetprof_store_partitions_removed_total{cause=\"disk_bytes\"}";
    assert_eq!(number(&store, evicted), 0);
    // Late windows of that time are still taken.
    let now = BEGIN + 5 * HOUR + MINUTE;
    let late = push(&store, &fleet, fleet.window(0, 11, BEGIN), now);
    assert_eq!(late, PushOutcome::Stored);
}

#[test]
fn the_cache_stays_within_its_size_and_answers_stay_the_same() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let mut options = options(&bucket);
    options.archive.as_mut().unwrap().cache_bytes = 20_000;
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, 3 * DAY - 6 * HOUR);
    let before = picture(&store);
    settle(&store, 4 * DAY);
    assert_eq!(picture(&store), before);
    assert_eq!(picture(&store), before);
    assert!(number(&store, "fleetprof_archive_cache_bytes") <= 20_000);
    assert!(number(&store, "fleetprof_archive_cache_evicted_total") > 0);
    let files = std::fs::read_dir(folder.path().join("archive/cache")).unwrap();
    let on_disk: u64 = files
        .map(|file| file.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(on_disk, number(&store, "fleetprof_archive_cache_bytes"));
}
