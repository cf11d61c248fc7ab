//! Captures that are kept: over restarts and without their client, on disks that are full, for
//! people, and as files.

use crate::captures::{fleet, next, request};
use crate::rig::{LIMIT, Options, Rig, SECOND, until};
use crate::web::get;
use collector::pins::Bounds;
use proto::collector::fleet_capture_response::Body;
use proto::collector::{CancelFleetCaptureRequest, DeleteFleetCaptureRequest, HostState};
use std::path::Path;
use std::sync::atomic::Ordering;
use testkit::fake::control::Does;
use tonic::Code;

/// A collector that keeps captures in a directory.
fn kept_in(dir: &Path) -> Options {
    let mut options = Options::default();
    options.control.captures_dir = dir.join("captures");
    options
}

/// The files are locked until the last of the one before has ended.
async fn restarted(dir: &Path) -> Rig {
    for _ in 0..200 {
        let rig = Rig::with(kept_in(dir)).await;
        if !rig.list().await.is_empty() {
            return rig;
        }
        rig.stop.send(true).expect("it listens");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("the files stay locked");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_capture_outlives_a_restart_with_its_hosts_its_past_and_its_times() {
    let dir = tempfile::tempdir().expect("a directory");
    let (told, listed) = {
        let rig = Rig::with(kept_in(dir.path())).await;
        let _fleet = fleet(&rig, 3, |at| match at {
            1 => Does::Fails,
            _ => Does::AnswersWithPast(5),
        })
        .await;
        let mut asked = request("unit=\"web.service\"", LIMIT);
        asked.capture.as_mut().expect("some").reason = "slow checkout".to_owned();
        let outcome = rig.capture(asked).await;
        let told = outcome.result.clone();
        assert!(told.kept && told.has_past && told.bytes > 0, "{told:?}");
        let listed = rig.list().await;
        rig.stop.send(true).expect("it listens");
        rig.ingest.drained().await;
        (told, listed)
    };
    assert_eq!(listed.len(), 1);
    let rig = restarted(dir.path()).await;
    assert_eq!(rig.list().await, listed);
    let request = listed[0].request.as_ref().expect("what was asked");
    let capture = request.capture.as_ref().expect("what was captured");
    assert_eq!(capture.reason, "slow checkout");
    assert_eq!((listed[0].answered, listed[0].failed), (2, 1));
    let own = rig.kept(told.id, false).await.expect("its profile");
    assert_eq!(own.info, told);
    let states: Vec<_> = own.info.hosts.iter().map(|host| host.state()).collect();
    let done = HostState::Done;
    assert_eq!(states, [done, HostState::Failed, done]);
    assert_eq!(own.profile.total().count, 10);
    assert_eq!(own.profile.timestamps.list.len(), 10);
    let past = rig.kept(told.id, true).await.expect("its past");
    assert_eq!(past.profile.total().count, 10);
    // Numbers go on.
    let _host = rig.host("web-9", Does::Answers(1)).await;
    let next = rig.capture(super::captures::request("", LIMIT)).await;
    assert_eq!(next.result.id, told.id + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_stays_goes_on_when_its_client_has_gone() {
    let rig = Rig::start().await;
    let fleet = fleet(&rig, 3, |_| Does::Runs(5)).await;
    let mut asked = request("", LIMIT);
    asked.stays = true;
    asked.capture.as_mut().expect("one").duration_ns = 3_600_000_000_000;
    let mut stream = rig.started(asked).await.expect("a stream");
    let Some(Body::Plan(plan)) = next(&mut stream).await.expect("a message") else {
        panic!("the plan comes first");
    };
    until("asked", || {
        fleet.iter().all(|one| !one.captures().is_empty())
    })
    .await;
    drop(stream);
    // What others see of it still moves.
    let until_running = async || {
        for _ in 0..1000 {
            let listed = rig.list().await;
            let hosts = &listed[0].hosts;
            if hosts.iter().all(|host| host.state() == HostState::Running) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        panic!("{:?}", rig.list().await);
    };
    until_running().await;
    assert!(fleet.iter().all(|one| !one.dropped()));
    let id = plan.id;
    let mut captures = rig.captures().await;
    let cancelled = captures.cancel(CancelFleetCaptureRequest { id }).await;
    cancelled.expect("it runs");
    until("kept", || rig.metrics.captures_here.get() == 1).await;
    until("over", || rig.metrics.fanouts_running.get() == 0).await;
    let listed = rig.list().await.remove(0);
    assert!(listed.kept && !listed.running, "{listed:?}");
    assert!(listed.ended_by.starts_with("cancelled by"), "{listed:?}");
    let own = rig.kept(id, false).await.expect("its profile");
    assert_eq!((own.profile.total().count, own.info.answered), (15, 3));
    until("given back", || rig.metrics.control_bytes.get() == 0).await;
}

/// What a client is told that has its result, which the collector does not keep.
fn is_told(notices: &[String]) -> bool {
    let told = "the collector does not keep the profile of this capture, so save it";
    notices.iter().any(|one| one.contains(told))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_directory_the_client_has_its_result_and_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("captures"), b"in the way").expect("a file");
    let rig = Rig::with(kept_in(dir.path())).await;
    let _host = rig.host("web-1", Does::Answers(3)).await;
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((1, 1, 0, 0), 3));
    assert!(!outcome.result.kept && is_told(&outcome.result.notices));
    let listed = rig.list().await.remove(0);
    assert!(!listed.kept && is_told(&listed.notices));
    let refused = rig.kept(outcome.result.id, false).await.err();
    assert_eq!(refused.expect("nothing").code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_the_disk_does_not_take_it_the_client_has_its_result_and_is_told() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(kept_in(dir.path())).await;
    let _host = rig.host("web-1", Does::Answers(3)).await;
    assert!(rig.capture(request("", LIMIT)).await.result.kept);
    // Nothing can be written there any more, as on a disk that is full.
    std::fs::remove_dir_all(dir.path().join("captures")).expect("it is there");
    let outcome = rig.capture(request("", LIMIT)).await;
    assert_eq!((outcome.counts(), outcome.samples()), ((1, 1, 0, 0), 3));
    assert!(!outcome.result.kept && is_told(&outcome.result.notices));
    assert_eq!(rig.metrics.captures_kept_failed.get(), 1);
    let listed = rig.list().await.remove(0);
    assert!(!listed.kept && is_told(&listed.notices));
    let refused = rig.kept(outcome.result.id, false).await.err();
    assert_eq!(refused.expect("nothing").code(), Code::NotFound);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_larger_than_all_may_be_is_told_and_the_oldest_of_many_go() {
    let mut options = Options::default();
    options.control.captures = Bounds {
        bytes: 64,
        ..options.control.captures
    };
    let rig = Rig::with(options).await;
    let _host = rig.host("web-1", Does::Answers(3)).await;
    let outcome = rig.capture(request("", LIMIT)).await;
    let notices = &outcome.result.notices;
    assert!(
        notices.iter().any(|one| one.contains("captures.disk_mib")),
        "{notices:?}"
    );
    assert_eq!(rig.metrics.captures_kept_refused.get(), 1);

    let mut options = Options::default();
    options.control.captures.count = 2;
    let rig = Rig::with(options).await;
    let _host = rig.host("web-1", Does::Answers(3)).await;
    for _ in 0..3 {
        assert!(rig.capture(request("", LIMIT)).await.result.kept);
        // The one after it ends later, however long each took.
        rig.clock.fetch_add(60 * SECOND, Ordering::Relaxed);
    }
    let kept = |list: &[proto::collector::FleetCaptureInfo]| {
        let kept = list.iter().filter(|info| info.kept);
        kept.map(|info| info.id).collect::<Vec<u64>>()
    };
    assert_eq!(kept(&rig.list().await), [3, 2]);
    assert_eq!(rig.metrics.captures_over_count.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_is_gone_for_good() {
    let rig = Rig::start().await;
    let _host = rig.host("web-1", Does::Answers(3)).await;
    let id = rig.capture(request("", LIMIT)).await.result.id;
    let mut captures = rig.captures().await;
    let delete = DeleteFleetCaptureRequest { id };
    captures.delete(delete).await.expect("it is kept");
    let refused = captures.delete(delete).await.expect_err("it is gone");
    assert_eq!(refused.code(), Code::NotFound);
    let refused = rig.kept(id, false).await.err().expect("it is gone");
    assert_eq!(refused.code(), Code::NotFound);
    assert!(rig.list().await.iter().all(|info| !info.kept));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_damaged_later_is_told_and_the_list_still_has_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let rig = Rig::with(kept_in(dir.path())).await;
    let _host = rig.host("web-1", Does::Answers(3)).await;
    let id = rig.capture(request("", LIMIT)).await.result.id;
    let path = dir
        .path()
        .join("captures")
        .join(format!("{id:016x}.capture"));
    let mut bytes = std::fs::read(&path).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 0x40;
    std::fs::write(&path, bytes).expect("written");
    let refused = rig.kept(id, false).await.err().expect("it is damaged");
    assert_eq!(refused.code(), Code::DataLoss, "{refused}");
    assert_eq!(rig.list().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_format_is_served_under_a_name_that_says_what_it_is() {
    let rig = Rig::start().await;
    let _fleet = fleet(&rig, 2, |_| Does::AnswersWithPast(4)).await;
    let id = rig.capture(request("", LIMIT)).await.result.id;
    for format in [
        "folded",
        "pb.gz",
        "speedscope.json",
        "svg",
        "html",
        "json",
        "parquet",
        "firefox.json",
        "perf.txt",
        "bundle.html",
    ] {
        for (more, side) in [("", ""), ("&past=1", "-before")] {
            let path = format!("/api/capture.{format}?id={id}{more}");
            let file = get(&rig, &path).await;
            assert_eq!(file.status, 200, "{path}: {}", file.text());
            let head = file.head.to_ascii_lowercase();
            let line = head
                .lines()
                .find(|line| line.starts_with("content-disposition"));
            let name = line.expect("a name");
            let start = format!("filename=\"fleetprof-capture-{id}{side}-");
            assert!(name.contains(&start), "{name}");
            assert!(name.ends_with(&format!(".{format}\"")), "{name}");
            assert!(!file.body.is_empty(), "{path}");
        }
    }
    for (path, expected) in [
        ("/api/capture.folded", 400),
        ("/api/capture.folded?id=99", 404),
        ("/api/capture.exe?id=1", 404),
    ] {
        assert_eq!(get(&rig, path).await.status, expected, "{path}");
    }
}
