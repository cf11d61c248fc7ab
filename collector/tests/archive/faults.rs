//! What fails: the server, the network, the disk, the process. Whatever does, ingest goes on, the
//! local files stay until the bucket has them, and no sample is lost or counted twice.

use super::server::TestBucket;
use super::{
    BEGIN, DAY, Fleet, HOUR, MINUTE, PushOutcome, SECOND, SMALL, ample, archive, ask, fill, issues,
    local_files, maintain, number, open, options, picture, push, range, settle, total,
};
use collector::store::embedded::{EmbeddedStore, OpenError};
use collector::store::{Cancel, Limits, StoreError, WindowSink as _};
use std::sync::Barrier;
use std::time::{Duration, Instant};
use testkit::SmallDisk;

#[test]
fn an_outage_of_ten_minutes_costs_a_few_requests_and_nothing_else() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    maintain(&store, DAY);
    bucket.rules(&[".\tstatus\t503"]);
    let cancel = Cancel::default();
    let mut failed = 0;
    for second in (0..600).step_by(2) {
        let now = BEGIN + DAY + second * SECOND;
        failed += u32::from(store.archive(now, &cancel).is_err());
        if second % 60 == 0 {
            // Windows are stored meanwhile.
            let window = fleet.window(0, 8640 + second as u64 / 10, BEGIN);
            assert_eq!(push(&store, &fleet, window, now), PushOutcome::Stored);
        }
    }
    // After 0, 2, 6, 14, 30, 62, 126, 254 and 510 s.
    assert_eq!(failed, 9);
    assert!(
        issues(&store).contains("3 partitions wait"),
        "{}",
        issues(&store)
    );
    assert_eq!(number(&store, "fleetprof_archive_failures_total"), 9);
    bucket.rules(&[]);
    settle(&store, DAY + 900 * SECOND);
    assert_eq!(bucket.objects().len(), 3);
    assert_eq!(issues(&store), "");
}

#[test]
fn answers_leave_out_what_an_outage_keeps_away_and_name_it() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    let recent = fleet.window(0, 4 * 8640, BEGIN);
    let samples = Fleet::samples(&recent);
    let now = BEGIN + 4 * DAY;
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    assert_eq!(push(&store, &fleet, recent, now), PushOutcome::Stored);
    drop(store);
    // It starts during the outage, too.
    bucket.rules(&[".\tdrop"]);
    let store = open(folder.path(), &options);
    let answer = ask(&store, range(0, 5 * DAY), &ample()).unwrap();
    assert_eq!(answer.data.total().count, samples);
    assert_eq!(
        answer.quality.damaged.len(),
        3,
        "{:?}",
        answer.quality.damaged
    );
    assert!(issues(&store).contains("answers leave archived partitions out"));
    // What needs nothing of the bucket is complete, and who repeats a window is known.
    let answer = ask(&store, range(4 * DAY, 5 * DAY), &ample()).unwrap();
    assert_eq!(answer.quality.damaged, Vec::<String>::new());
    let repeated = push(&store, &fleet, fleet.window(0, 10, BEGIN), now);
    assert_eq!(repeated, PushOutcome::Duplicate);
    bucket.rules(&[]);
    let answer = ask(&store, range(0, 5 * DAY), &ample()).unwrap();
    assert_eq!(answer.quality.damaged, Vec::<String>::new());
    assert!(answer.data.total().count > samples);
    assert_eq!(issues(&store), "");
}

#[test]
fn each_refusal_is_told_by_its_reason() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    maintain(&store, DAY);
    let mut age = DAY;
    for (rule, reason) in [
        ("PUT\tstatus\t403", "access is denied"),
        ("PUT\tstatus\t404", "does not exist"),
        ("PUT\tstatus\t500", "500"),
    ] {
        age += HOUR;
        bucket.rules(&[rule]);
        assert!(archive(&store, age).is_err());
        let issue = issues(&store);
        assert!(issue.contains(reason), "{reason}: {issue}");
    }
    bucket.rules(&[]);
    settle(&store, age + HOUR);
    assert_eq!(bucket.objects().len(), 3);
}

#[test]
fn a_first_start_needs_the_bucket_and_says_why_it_fails() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    bucket.rules(&[".\tstatus\t403"]);
    let refused = EmbeddedStore::open(folder.path(), options(&bucket), BEGIN);
    let Err(OpenError::Archive(error)) = refused else {
        panic!("it is opened");
    };
    assert!(error.to_string().contains("access is denied"), "{error}");
}

#[test]
fn an_upload_that_is_torn_leaves_nothing_that_counts() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let mut options = options(&bucket);
    // Parts smaller than S3 takes, which this server does: a partition has several.
    options.archive.as_mut().unwrap().part_bytes = 8 << 10;
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    maintain(&store, DAY);
    bucket.rules(&["PUT .*partNumber=2\tdrop"]);
    assert!(archive(&store, DAY).is_err());
    assert!(bucket.count("partNumber=1") > 0);
    assert_eq!(
        (bucket.objects().len(), bucket.unfinished_uploads()),
        (0, 0)
    );
    bucket.rules(&["POST .*uploadId\tdrop"]);
    assert!(archive(&store, DAY + HOUR).is_err());
    assert_eq!(bucket.unfinished_uploads(), 0);
    bucket.rules(&[]);
    settle(&store, DAY + 2 * HOUR);
    assert_eq!(
        (bucket.objects().len(), bucket.unfinished_uploads()),
        (3, 0)
    );
    let before = picture(&store);
    settle(&store, 3 * DAY - 6 * HOUR);
    let minutes = total(&store);
    settle(&store, 4 * DAY);
    assert_eq!(local_files(folder.path()), Vec::<String>::new());
    assert_eq!(total(&store), minutes);
    assert!(!before.is_empty());
}

#[test]
fn a_write_whose_answer_is_lost_is_done_once() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    maintain(&store, DAY);
    bucket.rules(&[
        "PUT .*/objects/\tlose\t\t2",
        "PUT .*/manifest.json\tlose\t\t3",
    ]);
    // What is not settled by retrying at once is when it is tried again.
    let _ = archive(&store, DAY);
    let _ = archive(&store, DAY + HOUR);
    settle(&store, DAY + 2 * HOUR);
    assert_eq!(number(&store, "fleetprof_archive_fenced"), 0);
    assert_eq!(number(&store, "fleetprof_archive_pending_partitions"), 0);
    settle(&store, 3 * DAY - HOUR);
    assert_eq!(bucket.objects().len(), 3, "{:?}", bucket.objects());
    assert_eq!(issues(&store), "");
}

#[test]
fn an_object_that_arrived_with_other_bytes_does_not_count() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    maintain(&store, DAY);
    bucket.rules(&["PUT .*/objects/\tspoil\t\t1"]);
    assert!(archive(&store, DAY).is_err());
    assert!(
        issues(&store).contains("other bytes than were written"),
        "{}",
        issues(&store)
    );
    assert_eq!(number(&store, "fleetprof_archive_partitions"), 0);
    settle(&store, DAY + HOUR);
    assert_eq!(number(&store, "fleetprof_archive_partitions"), 3);
    // The spoiled one is removed within a day.
    settle(&store, 2 * DAY - HOUR);
    settle(&store, 2 * DAY + 2 * HOUR);
    assert_eq!(bucket.objects().len(), 3, "{:?}", bucket.objects());
}

#[test]
fn a_piece_with_other_bytes_is_left_out_named_and_fetched_again() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    bucket.rules(&["GET .*/objects/\tflip\t\t1"]);
    let answer = ask(&store, range(0, DAY), &ample()).unwrap();
    assert_eq!(
        answer.quality.damaged.len(),
        1,
        "{:?}",
        answer.quality.damaged
    );

    let corrupt = "fleetprof_archive_corrupt_total{from=\"bucket\"}";
    assert_eq!(number(&store, corrupt), 1);
    let answer = ask(&store, range(0, DAY), &ample()).unwrap();
    assert_eq!(answer.quality.damaged, Vec::<String>::new());
    // So is a file of the cache that the disk changed.
    let before = picture(&store);
    let cached = std::fs::read_dir(folder.path().join("archive/cache")).unwrap();
    for file in cached {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    assert_eq!(picture(&store), before);
    assert!(number(&store, "fleetprof_archive_corrupt_total{from=\"cache\"}") > 0);
}

#[test]
fn a_query_whose_client_goes_ends_before_a_slow_server_answers() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    bucket.rules(&["GET .*/objects/\tslow\t600"]);
    let limits = ample();
    let cancel = limits.cancel.clone();
    let before = bucket.count("GET /test");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while bucket.count("GET /test") == before {
                std::thread::sleep(Duration::from_millis(5));
            }
            cancel.cancel();
        });
        let ended = ask(&store, range(0, DAY), &limits);
        assert!(matches!(ended, Err(StoreError::Cancelled)));
    });

    let limits = Limits {
        deadline: Instant::now() + Duration::from_millis(200),
        ..ample()
    };
    let ended = ask(&store, range(0, DAY), &limits);
    assert!(matches!(ended, Err(StoreError::Cancelled)));
}

#[test]
fn queries_at_the_same_time_share_what_they_fetch() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let store = open(folder.path(), &options(&bucket));
    fill(&store, &fleet);
    settle(&store, DAY);
    settle(&store, 4 * DAY);
    let requests = bucket.requests().len();
    bucket.rules(&["GET .*/objects/\tslow\t0.3"]);
    let together = Barrier::new(4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                together.wait();
                ask(&store, range(0, DAY), &ample()).unwrap()
            });
        }
    });
    // No piece was fetched twice.
    let mut pieces = bucket.requests().split_off(requests);
    let fetched = pieces.len();
    pieces.sort();
    pieces.dedup();
    assert_eq!(pieces.len(), fetched);
    assert!(number(&store, "fleetprof_archive_reads_shared_total") > 0);
}

#[test]
fn a_full_disk_keeps_neither_uploads_nor_answers_from_working() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let Some(disk) = SmallDisk::mount("8m") else {
        return;
    };
    let fleet = Fleet::new(1, SMALL);
    let store = open(disk.path(), &options(&bucket));
    fill(&store, &fleet);
    maintain(&store, 3 * DAY - 6 * HOUR);
    let before = total(&store);
    let filler = disk.path().join("filler");
    let chunk = vec![1; 4096];
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &chunk).is_ok() {}
    archive(&store, 3 * DAY - 6 * HOUR).unwrap();
    assert_eq!(bucket.objects().len(), 3);
    // Local files leave, which is what makes room. Not all is well meanwhile, and it says so.
    let _ = store.maintain(BEGIN + 4 * DAY);
    assert_eq!(local_files(disk.path()), Vec::<String>::new());
    assert_eq!(total(&store), before);
    std::fs::remove_file(filler).unwrap();
    settle(&store, 4 * DAY + HOUR);
    drop(store);
    let store = open(disk.path(), &options(&bucket));
    assert_eq!(total(&store), before);
}

/// Runs the archive with its requests from number `dies_at` on unanswered, as one that is killed
/// then; whether they are done all the same goes by turns. Says whether there was such a request.
fn run_until(bucket: &TestBucket, store: &EmbeddedStore, dies_at: usize, age: i64) -> bool {
    let answered = format!("/fleet/eu/(?!condition)\tnone\t\t{dies_at}");
    let action = ["drop", "lose"][dies_at % 2];
    bucket.rules(&[&answered, &format!("/fleet/eu/(?!condition)\t{action}")]);
    let died = archive(store, age).is_err();
    bucket.rules(&[]);
    died
}

#[test]
fn killed_at_every_request_it_completes_what_was_begun() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    let samples = total(&store);
    drop(store);
    let mut deaths = 0;
    // So long after its start that what the log had is flushed.
    let age = DAY + HOUR;
    for dies_at in 1.. {
        let store = open(folder.path(), &options);
        maintain(&store, age);
        let died = run_until(&bucket, &store, dies_at, age);
        assert_eq!(
            total(&store),
            samples,
            "before the kill at request {dies_at}"
        );
        println!("request {dies_at}: {}", issues(&store));
        // Nothing is closed: as after a kill.
        drop(store);
        deaths += usize::from(died);
        if !died {
            break;
        }
    }
    println!("died {deaths} times");
    assert!(deaths > 5);
    let store = open(folder.path(), &options);
    assert_eq!(total(&store), samples);
    // Twice, a day apart: what nobody names is removed.
    settle(&store, age + MINUTE);
    settle(&store, 3 * DAY - HOUR);
    assert_eq!(bucket.objects().len(), 3, "{:?}", bucket.objects());
    settle(&store, 4 * DAY);
    assert_eq!(local_files(folder.path()), Vec::<String>::new());
    assert_eq!((total(&store), issues(&store)), (samples, String::new()));
}

#[test]
fn a_damaged_file_is_answered_from_the_archive() {
    let Some(bucket) = TestBucket::new() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(1, SMALL);
    let options = options(&bucket);
    let store = open(folder.path(), &options);
    fill(&store, &fleet);
    settle(&store, DAY);
    let samples = total(&store);
    store.close().unwrap();
    drop(store);
    let name = &local_files(folder.path())[0];
    let path = folder.path().join("partitions").join(name);
    std::fs::write(&path, vec![0; 8192]).unwrap();
    let store = open(folder.path(), &options);
    assert_eq!(total(&store), samples);
    // What comes late for its time does not take the object's place.
    let late = fleet.window(0, 11, BEGIN);
    let samples = samples + Fleet::samples(&late);
    let now = BEGIN + DAY;
    assert_eq!(push(&store, &fleet, late, now), PushOutcome::Stored);
    settle(&store, DAY + 2 * HOUR);
    assert_eq!(bucket.objects().len(), 4);
    assert_eq!(total(&store), samples);
}
