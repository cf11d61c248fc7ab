//! Tests files of pins, on disks that misbehave and with hostile bytes.

use super::*;
use crate::evidence::{Bounds, KeepError, OpenError, ProfileKind, ReadError};
use crate::pins::limits::PINS_MAX;
use profile::Profile;
use proto::agent;
use std::path::Path;

type Files = crate::evidence::Files<HostPin>;

/// More than any profile here.
const MEMORY: usize = 16 << 20;
const SECOND: i64 = 1_000_000_000;
const BOUNDS: Bounds = Bounds {
    bytes: 1 << 20,
    owner_bytes: 1 << 20,
    count: PINS_MAX,
    age_ns: 100 * SECOND,
};

fn head(host: &str, number: u64) -> HostPin {
    HostPin {
        host_id: host.to_owned(),
        hostname: format!("{host}.example"),
        pin: Some(agent::Pin {
            id: number,
            trigger: "t".to_owned(),
            fired_unix_ns: 1000 + number as i64,
            ..agent::Pin::default()
        }),
        received_unix_ns: number as i64 * SECOND,
        ..HostPin::default()
    }
}

/// Many chunks, so that there is something to be damaged in.
fn profile(name: &str) -> Profile {
    let mut profile = Profile::default();
    for number in 0..20 {
        let function = format!("{name}_{number}");
        let frame = profile.dict.intern_frame(profile::FrameRef {
            function: &function,
            ..profile::FrameRef::default()
        });
        let stack = profile.dict.stacks.child(profile::StackId::EMPTY, frame);
        let labels = profile.dict.intern_labels([("comm", "c")]);
        let end = profile::StackEnd::Complete;
        let value = profile::Value {
            count: number + 1,
            weight: number,
        };
        profile.add(profile::SampleKey { labels, stack, end }, value);
    }
    profile
}

fn put(files: &Files, head: HostPin, parts: &[(ProfileKind, &Profile)]) -> u64 {
    let mut upload = files.start(head).unwrap();
    for &(part, profile) in parts {
        for chunk in proto::Chunks::with_target(profile, 64) {
            upload.push(part, &chunk).unwrap();
        }
    }
    upload.finish().unwrap()
}

fn open(dir: &Path) -> Files {
    Files::open(dir, BOUNDS).unwrap()
}

fn all(files: &Files) -> Vec<HostPin> {
    files.list(PINS_MAX, |_| true).0
}

fn read(files: &Files, id: u64, part: ProfileKind) -> Result<u64, ReadError> {
    let profile = files.read(id, part, MEMORY, || false)?;
    Ok(profile.total().count)
}

#[test]
fn both_profiles_come_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let files = open(dir.path());
    let (minutes, captured) = (profile("minutes"), profile("captured"));
    let parts = [
        (ProfileKind::Minutes, &minutes),
        (ProfileKind::Captured, &captured),
    ];
    let id = put(&files, head("a", 1), &parts);
    let before = all(&files);
    drop(files);
    let files = open(dir.path());
    assert_eq!(files.damaged, 0);
    assert_eq!(all(&files), before);
    assert!(before[0].pin.as_ref().unwrap().capture_bytes > 0);
    let found = files
        .read(id, ProfileKind::Captured, MEMORY, || false)
        .unwrap();
    assert_eq!(found.samples.len(), captured.samples.len());
    assert_eq!(read(&files, id, ProfileKind::Minutes).unwrap(), 210);
    assert_eq!(put(&files, head("b", 1), &parts), id + 1, "numbers go on");
}

#[test]
fn a_pin_that_comes_again_takes_its_own_place() {
    let dir = tempfile::tempdir().unwrap();
    let files = open(dir.path());
    let one = profile("one");
    let id = put(&files, head("a", 1), &[(ProfileKind::Minutes, &one)]);
    assert!(matches!(
        read(&files, id, ProfileKind::Captured),
        Err(ReadError::Unknown { .. })
    ));
    let parts = [(ProfileKind::Minutes, &one), (ProfileKind::Captured, &one)];
    assert_eq!(put(&files, head("a", 1), &parts), id);
    assert!(read(&files, id, ProfileKind::Captured).is_ok());
    assert_ne!(put(&files, head("b", 1), &parts), id, "of another host");
    let mut again = head("a", 1);
    again.pin.as_mut().unwrap().fired_unix_ns += 1;
    assert_ne!(put(&files, again, &parts), id, "numbers that started again");
    assert_eq!(files.size().0, 3);
}

#[test]
fn what_was_not_finished_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let files = open(dir.path());
    let mut upload = files.start(head("a", 1)).unwrap();
    let one = profile("one");
    for chunk in proto::Chunks::new(&one) {
        upload.push(ProfileKind::Minutes, &chunk).unwrap();
    }
    drop(upload);
    std::fs::write(dir.path().join("7.tmp"), b"of a collector that was killed").unwrap();
    drop(files);
    let files = open(dir.path());
    assert!(all(&files).is_empty());
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the lock: {left:?}");
}

#[test]
fn no_byte_of_a_file_can_be_changed_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let id = put(
        &open(dir.path()),
        head("a", 1),
        &[(ProfileKind::Minutes, &profile("f"))],
    );
    let path = dir.path().join(format!("{id:016x}.pin"));
    let whole = std::fs::read(&path).unwrap();
    let expected = open(dir.path())
        .read(id, ProfileKind::Minutes, MEMORY, || false)
        .unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        std::fs::write(&path, &bytes).unwrap();
        let files = open(dir.path());
        // A message that claims to belong to another part is missing, which the profile's own end
        // reveals.
        let found = files.read(id, ProfileKind::Minutes, MEMORY, || false);
        let same = found.is_ok_and(|found| found.total() == expected.total());
        assert!(!same, "byte {at}");
    }
    for len in 0..whole.len() {
        std::fs::write(&path, &whole[..len]).unwrap();
        assert_eq!(open(dir.path()).damaged, 1, "{len} bytes");
    }
}

#[test]
fn over_its_share_a_host_loses_its_own_oldest() {
    let dir = tempfile::tempdir().unwrap();
    let one = profile("one");
    let bytes = {
        let files = open(&dir.path().join("measure"));
        put(&files, head("a", 1), &[(ProfileKind::Minutes, &one)]);
        files.size().1
    };
    let bounds = Bounds {
        owner_bytes: 3 * bytes,
        ..BOUNDS
    };
    let files = Files::open(&dir.path().join("pins"), bounds).unwrap();
    put(&files, head("b", 1), &[(ProfileKind::Minutes, &one)]);
    // Agents upload their newest first.
    for number in [5, 4, 3, 2, 1] {
        put(&files, head("a", number), &[(ProfileKind::Minutes, &one)]);
    }
    let removed = files.prune(0);
    assert_eq!((removed.age, removed.owner, removed.disk), (0, 2, 0));
    let left: Vec<(String, u64)> = all(&files)
        .into_iter()
        .map(|pin| (pin.host_id, pin.pin.unwrap_or_default().id))
        .collect();
    let a = |number| ("a".to_owned(), number);
    assert_eq!(left, [a(5), a(4), a(3), ("b".to_owned(), 1)]);
}

#[test]
fn over_the_disk_the_host_with_most_pays_and_age_removes() {
    let dir = tempfile::tempdir().unwrap();
    let one = profile("one");
    let mut bounds = BOUNDS;
    let files = open(&dir.path().join("pins"));
    put(&files, head("b", 1), &[(ProfileKind::Minutes, &one)]);
    for number in 2..6 {
        put(&files, head("a", number), &[(ProfileKind::Minutes, &one)]);
    }
    bounds.bytes = files.size().1 / 2;
    drop(files);
    let files = Files::open(&dir.path().join("pins"), bounds).unwrap();
    assert_eq!(files.prune(0).disk, 3);
    let hosts =
        |files: &Files| -> Vec<String> { all(files).into_iter().map(|pin| pin.host_id).collect() };
    assert_eq!(hosts(&files), ["a", "b"]);
    // The one of `b` came in second 1.
    assert_eq!(files.prune(102 * SECOND).age, 1);
    assert_eq!(hosts(&files), ["a"]);
    assert_eq!(
        std::fs::read_dir(dir.path().join("pins")).unwrap().count(),
        2
    );
}

#[test]
fn one_larger_than_its_share_is_refused_and_a_second_collector_too() {
    let dir = tempfile::tempdir().unwrap();
    let bounds = Bounds {
        owner_bytes: 100,
        ..BOUNDS
    };
    let files = Files::open(dir.path(), bounds).unwrap();
    let mut upload = files.start(head("a", 1)).unwrap();
    let one = profile("one");
    let chunk = proto::Chunks::new(&one).next().unwrap();
    // Nothing more is written of it than fits.
    let refused = upload.push(ProfileKind::Minutes, &chunk);
    assert!(matches!(refused, Err(KeepError::TooLarge { .. })));
    assert!(matches!(
        Files::open(dir.path(), bounds),
        Err(OpenError::Locked { .. })
    ));
}

#[test]
fn a_profile_that_does_not_fit_in_memory_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let files = open(dir.path());
    let id = put(
        &files,
        head("a", 1),
        &[(ProfileKind::Minutes, &profile("one"))],
    );
    let refused = files.read(id, ProfileKind::Minutes, 64, || false);
    assert!(matches!(refused, Err(ReadError::Memory { .. })));
}

#[test]
fn a_list_is_of_what_is_wanted_the_last_that_fired_first_and_tells_what_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let files = open(dir.path());
    for number in [3, 1, 2] {
        put(&files, head("a", number), &[]);
        put(&files, head("b", number), &[]);
    }
    let (listed, left_out) = files.list(2, |pin| pin.host_id == "a");
    let own = |pin: HostPin| pin.pin.unwrap_or_default().id;
    let listed: Vec<u64> = listed.into_iter().map(own).collect();
    assert_eq!((listed, left_out), (vec![3, 2], 1));
}
