//! Tests stored captures, on disks that misbehave, and for people with scopes.

use super::*;
use crate::access::Scope;
use profile::{FrameRef, SampleKey, StackEnd, StackId, Value};
use proto::agent::CaptureRequest;
use proto::collector::{FleetCaptureRequest, HostProgress};
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

const SECOND: i64 = 1_000_000_000;
const BOUNDS: Bounds = Bounds {
    bytes: 1 << 20,
    owner_bytes: u64::MAX,
    count: 100,
    age_ns: 100 * SECOND,
};

fn profile(name: &str) -> Profile {
    let mut profile = Profile::default();
    let frame = profile.dict.intern_frame(FrameRef {
        function: name,
        ..FrameRef::default()
    });
    let key = SampleKey {
        labels: profile.dict.intern_labels([("comm", "c")]),
        stack: profile.dict.stacks.child(StackId::EMPTY, frame),
        end: StackEnd::Complete,
    };
    let (count, weight) = (3, 30);
    profile.add(key, Value { count, weight });
    profile
}

fn capture(id: u64) -> KeptCapture {
    let host = |name: &str, state: HostState| HostProgress {
        hostname: name.to_owned(),
        state: state.into(),
        notices: vec!["throttled".to_owned()],
        ..HostProgress::default()
    };
    KeptCapture {
        info: Some(FleetCaptureInfo {
            id,
            request: Some(FleetCaptureRequest {
                capture: Some(CaptureRequest::default()),
                ..FleetCaptureRequest::default()
            }),
            started_unix_ns: id as i64 * SECOND,
            hosts: vec![
                host("a", HostState::Done),
                host("b", HostState::Partial),
                host("c", HostState::Lost),
            ],
            ..FleetCaptureInfo::default()
        }),
        selection: "namespace=\"n\",comm=\"x\"".to_owned(),
        owner: "ada".to_owned(),
        ..KeptCapture::default()
    }
}

/// Those of a directory, opened, and the number that was given last.
async fn open(dir: &Path, bounds: Bounds) -> (KeptCaptures, u64) {
    let now = Arc::new(AtomicI64::new(0));
    let clock = Clock::new(move || now.load(Ordering::Relaxed));
    let kept = KeptCaptures::new((dir.to_owned(), bounds), clock, Arc::default());
    let mut last = 0;
    kept.open(|number| last = number).await.expect("opens");
    (kept, last)
}

fn ids(kept: &KeptCaptures) -> Vec<u64> {
    let (listed, _) = kept.files().expect("open").list(1000, |_| true);
    listed.iter().map(Facts::id).collect()
}

fn keep(kept: &KeptCaptures, id: u64) -> Result<FleetCaptureInfo, String> {
    kept.keep(capture(id), Some(&profile("past")), Some(&profile("own")))
}

#[tokio::test]
async fn all_hosts_are_in_the_file_and_those_that_did_not_answer_in_the_list() {
    let dir = tempfile::tempdir().expect("a directory");
    let (kept, last) = open(dir.path(), BOUNDS).await;
    assert_eq!(last, 0);
    let listed = keep(&kept, 7).expect("kept");
    assert!(listed.kept && listed.has_past && listed.bytes > 0);
    assert_eq!(listed.hosts.len(), 2);
    drop(kept);
    let (kept, last) = open(dir.path(), BOUNDS).await;
    assert_eq!((ids(&kept), last), (vec![7], 7));
    let files = kept.files().expect("open");
    assert_eq!(files.get(7).and_then(|kept| kept.info), Some(listed));
    let about = files.about(7).expect("its head").info.expect("its facts");
    assert_eq!((about.hosts.len(), about.hosts[0].notices.len()), (3, 1));
    for (kind, name) in [
        (ProfileKind::Minutes, "past"),
        (ProfileKind::Captured, "own"),
    ] {
        let found = files.read(7, kind, 1 << 20, || false).expect("a profile");
        assert_eq!(found.total().count, 3, "{name}");
        assert!(found.dict.strings.iter().any(|text| text == name), "{name}");
    }
}

#[tokio::test]
async fn no_number_is_given_twice_though_the_capture_of_it_is_gone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (kept, _) = open(dir.path(), BOUNDS).await;
    keep(&kept, 3).expect("kept");
    kept.use_up(9);
    assert!(kept.remove(3).expect("the disk takes it"));
    assert!(!kept.remove(3).expect("the disk takes it"));
    assert_eq!(kept.metrics.captures_deleted.get(), 1);
    drop(kept);
    let (kept, last) = open(dir.path(), BOUNDS).await;
    assert_eq!((ids(&kept).len(), last), (0, 9));
}

#[tokio::test]
async fn the_oldest_go_first_and_are_counted_by_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let few = Bounds { count: 2, ..BOUNDS };
    let (kept, _) = open(&dir.path().join("count"), few).await;
    // One that took long ends last, though it started first.
    let mut long = capture(1);
    long.info.as_mut().expect("facts").elapsed_ns = 90 * SECOND as u64;
    kept.keep(long, None, Some(&profile("long"))).expect("kept");
    for id in [2, 3, 4] {
        keep(&kept, id).expect("kept");
    }
    assert_eq!(ids(&kept), [1, 4]);
    assert_eq!(kept.metrics.captures_over_count.get(), 2);

    let bytes = kept.files().expect("open").size().1;
    let small = Bounds { bytes, ..BOUNDS };
    let (kept, _) = open(&dir.path().join("bytes"), small).await;
    for id in 1..=5 {
        keep(&kept, id).expect("kept");
    }
    assert!(kept.files().expect("open").size().1 <= bytes);
    assert_eq!(ids(&kept)[0], 5);
    assert!(kept.metrics.captures_over_disk.get() > 0);

    let young = Bounds {
        age_ns: 0,
        ..BOUNDS
    };
    let now = Arc::new(AtomicI64::new(0));
    let told = now.clone();
    let clock = Clock::new(move || told.load(Ordering::Relaxed));
    let dir = (dir.path().join("age"), young);
    let kept = KeptCaptures::new(dir, clock, Arc::default());
    kept.open(|_| {}).await.expect("opens");
    keep(&kept, 5).expect("kept");
    now.store(6 * SECOND, Ordering::Relaxed);
    kept.prune();
    assert_eq!((ids(&kept).len(), kept.metrics.captures_aged.get()), (0, 1));
}

#[tokio::test]
async fn damaged_files_are_set_aside_and_the_newest_four_of_them_stay() {
    let dir = tempfile::tempdir().expect("a directory");
    let (kept, _) = open(dir.path(), BOUNDS).await;
    for id in 1..=7 {
        keep(&kept, id).expect("kept");
    }
    drop(kept);
    for id in 1..=6 {
        let path = dir.path().join(format!("{id:016x}.capture"));
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes[40] ^= 1;
        std::fs::write(&path, bytes).expect("written");
    }
    for _ in 0..2 {
        let (kept, last) = open(dir.path(), BOUNDS).await;
        assert_eq!((ids(&kept), last), (vec![7], 7));
        let entries = std::fs::read_dir(dir.path()).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string());
        let mut names: Vec<String> = names.map(|name| name.expect("text")).collect();
        names.retain(|name| name.ends_with(".damaged"));
        names.sort();
        let expected = [3, 4, 5, 6].map(|id| format!("{id:016x}.capture.damaged"));
        assert_eq!(names, expected);
    }
}

#[tokio::test]
async fn one_that_is_too_large_is_told_and_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let small = Bounds {
        bytes: 100,
        ..BOUNDS
    };
    let (kept, _) = open(dir.path(), small).await;
    let why = keep(&kept, 1).expect_err("too large");
    assert!(why.contains("captures.disk_mib"), "{why}");
    assert_eq!(kept.metrics.captures_kept_refused.get(), 1);
    assert!(ids(&kept).is_empty());
    let left = std::fs::read_dir(dir.path()).expect("a directory").count();
    assert_eq!(left, 1, "the lock");
}

#[tokio::test]
async fn what_a_thousand_hosts_noted_fits_a_head() {
    let dir = tempfile::tempdir().expect("a directory");
    let (kept, _) = open(dir.path(), BOUNDS).await;
    let mut large = capture(1);
    let info = large.info.as_mut().expect("facts");
    info.hosts[0].notices = vec!["n".repeat(512); 16];
    info.hosts = vec![info.hosts[0].clone(); 1000];
    kept.keep(large, None, Some(&profile("own"))).expect("kept");
    let about = kept.files().expect("open").about(1).expect("its head");
    let info = about.info.expect("facts");
    assert_eq!(info.hosts.len(), 1000);
    assert!(info.notices[0].contains("the file has no room for the notices of hosts"));
}

#[test]
fn it_is_shown_where_all_that_it_selects_is_in_the_scope() {
    let caller = |name: &str, scope: &str| Caller {
        name: name.to_owned(),
        scope: Some(Scope::parse(scope).expect("a scope")),
        ..Caller::clone(&Caller::local())
    };
    assert!(shown(capture(1), &Caller::local()).is_some());
    for (name, scope, expected) in [
        ("eve", "namespace=n", true),
        ("eve", "namespace=~n", false),
        ("eve", "namespace=n,team=a", false),
        // Who asked had another scope then.
        ("ada", "namespace=other", false),
    ] {
        let found = shown(capture(1), &caller(name, scope));
        assert_eq!(found.is_some(), expected, "{name} {scope}");
        let info = found.and_then(|kept| kept.info);
        let hosts = info.map(|info| info.hosts).unwrap_or_default();
        assert!(hosts.iter().all(|host| host.notices.is_empty()));
    }
    let mut waits = capture(1);
    let request = waits.info.as_mut().and_then(|info| info.request.as_mut());
    let asked = request.and_then(|request| request.capture.as_mut());
    asked.expect("a capture").event = OFF_CPU.to_owned();
    let eve = caller("eve", "namespace=n");
    assert!(shown(waits.clone(), &eve).is_some());
    waits.filtered = true;
    assert!(
        shown(waits.clone(), &eve).is_none(),
        "wakers were looked at"
    );
    waits.in_part = true;
    assert!(shown(waits, &eve).is_some());
}
