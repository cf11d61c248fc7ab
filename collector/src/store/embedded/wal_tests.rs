//! Tests a log that is torn, changed and cut in every way.

use super::*;

fn place(folder: &Path) -> LogLocation {
    LogLocation {
        folder: folder.join("log"),
        ending: "wal",
        generation: 7,
    }
}

fn open(folder: &Path) -> (Wal, Recovered, Vec<Vec<u8>>) {
    let mut records = Vec::new();
    let (wal, recovered) = Wal::open(place(folder), |_, payload| {
        records.push(payload.to_vec());
        payload != b"of no use"
    })
    .unwrap();
    (wal, recovered, records)
}

fn write(wal: &mut Wal, payloads: &[&[u8]]) {
    let mut batch = Batch::default();
    for (at, payload) in payloads.iter().enumerate() {
        batch.add(wal.next() + at as u64, payload);
    }
    wal.write(&batch).unwrap();
}

#[test]
fn what_was_written_is_read_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"one", b"two"]);
    write(&mut wal, &[b""]);
    drop(wal);
    let (mut wal, recovered, records) = open(folder.path());
    assert_eq!(records, [&b"one"[..], b"two", b""]);
    assert_eq!(recovered.torn_bytes, 0);
    write(&mut wal, &[b"four"]);
    assert_eq!(open(folder.path()).2.len(), 4);
}

#[test]
fn a_tail_torn_anywhere_ends_the_log_and_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"first"]);
    let whole = wal.segments[0].bytes;
    write(&mut wal, &[b"second"]);
    let (path, len) = (wal.segments[0].path.clone(), wal.segments[0].bytes);
    drop(wal);
    let bytes = std::fs::read(&path).unwrap();
    for end in whole..len {
        std::fs::write(&path, &bytes[..end as usize]).unwrap();
        let (mut wal, recovered, records) = open(folder.path());
        assert_eq!(records, [b"first"]);
        assert_eq!(recovered.torn_bytes, end - whole);
        write(&mut wal, &[b"again"]);
        assert_eq!(open(folder.path()).2, [&b"first"[..], b"again"]);
        for segment in &wal.segments[1..] {
            std::fs::remove_file(&segment.path).unwrap();
        }
    }
}

#[test]
fn a_changed_byte_ends_the_log_there() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"first", b"second"]);
    let path = wal.segments[0].path.clone();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert_eq!(open(folder.path()).2, [b"first"]);
}

#[test]
fn segments_go_when_nothing_in_them_is_needed() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    let large = vec![7; SEGMENT_BYTES as usize + 1];
    for _ in 0..3 {
        write(&mut wal, &[&large]);
    }
    wal.cut(2).unwrap();
    assert_eq!(wal.segments.len(), 2);
    wal.cut(4).unwrap();
    assert_eq!(wal.segments.len(), 0);
    write(&mut wal, &[b"after"]);
    drop(wal);
    let (wal, _, records) = open(folder.path());
    assert_eq!((records, wal.next()), (vec![b"after".to_vec()], 5));
}

#[test]
fn nothing_is_left_after_everything_was_cut_and_numbers_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"one"]);
    assert!(!wal.can_cut(1) && wal.can_cut(2));
    wal.cut(2).unwrap();
    assert!(!place(folder.path()).has_segments().unwrap());
    write(&mut wal, &[b"two"]);
    drop(wal);
    let (wal, recovered, records) = open(folder.path());
    assert_eq!((records, wal.next()), (vec![b"two".to_vec()], 3));
    assert_eq!(recovered.records_lost, 0);
}

#[test]
fn segments_of_another_generation_are_not_read_and_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"one"]);
    drop(wal);
    let other = LogLocation {
        generation: 8,
        ..place(folder.path())
    };
    assert_eq!(other.find_generation().unwrap(), Some(7));
    let (_, recovered) = Wal::open(other, |_, _| panic!("it is read")).unwrap();
    assert_eq!((recovered.segments_unusable, kept(folder.path())), (1, 1));
}

/// Names of what is kept.
fn kept(folder: &Path) -> usize {
    let names = std::fs::read_dir(folder).unwrap();
    let kept = |name: &str| name.ends_with(".unusable");
    names
        .filter(|entry| kept(entry.as_ref().unwrap().file_name().to_str().unwrap()))
        .count()
}

/// Changes the last byte of `what` in a file.
fn damage(path: &Path, what: &[u8]) {
    let mut bytes = std::fs::read(path).unwrap();
    let mut places = bytes.windows(what.len());
    let at = places.position(|place| place == what).unwrap();
    bytes[at + what.len() - 1] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn damage_in_the_middle_costs_the_records_it_hit_and_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"first", b"second", b"third"]);
    let path = wal.segments[0].path.clone();
    drop(wal);
    damage(&path, b"second");
    for _ in 0..2 {
        let (wal, recovered, records) = open(folder.path());
        assert_eq!(records, [&b"first"[..], b"third"]);
        let counted = (recovered.records_lost, recovered.segments_unusable);
        assert_eq!((counted, recovered.torn_bytes), ((1, 1), 0));
        assert_eq!((wal.next(), kept(folder.path())), (4, 1));
    }
}

#[test]
fn a_length_that_is_wrong_is_no_torn_tail_when_records_follow() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"first", b"second", b"third"]);
    let path = wal.segments[0].path.clone();
    drop(wal);
    let mut bytes = std::fs::read(&path).unwrap();
    let second = SEGMENT_HEAD_LEN + HEAD_LEN + 8 + b"first".len();
    bytes[second + 3] = 0xff;
    std::fs::write(&path, &bytes).unwrap();
    let (mut wal, recovered, records) = open(folder.path());
    assert_eq!(
        (records, recovered.torn_bytes),
        (vec![b"first".to_vec()], 0)
    );
    assert_eq!((recovered.segments_unusable, kept(folder.path())), (1, 1));
    write(&mut wal, &[b"again"]);
    assert_eq!(open(folder.path()).2, [&b"first"[..], b"again"]);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "nothing of it is cut");
}

#[test]
fn what_follows_a_lost_segment_is_read_and_the_loss_counted() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    let large = vec![7; SEGMENT_BYTES as usize + 1];
    write(&mut wal, &[&large]);
    write(&mut wal, &[b"two", &large]);
    write(&mut wal, &[b"four"]);
    std::fs::write(&wal.segments[1].path, b"garbage").unwrap();
    drop(wal);
    let (wal, recovered, records) = open(folder.path());
    assert_eq!(records, [&large[..], b"four"]);
    assert_eq!((recovered.records_lost, wal.next()), (2, 5));
    assert_eq!(kept(folder.path()), 1);
}

#[test]
fn a_segment_with_a_record_of_no_use_outlives_the_cut() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"one", b"of no use", b"three"]);
    drop(wal);
    let (mut wal, recovered, records) = open(folder.path());
    assert_eq!((records.len(), recovered.segments_unusable), (3, 1));
    assert!(wal.can_cut(4) && !wal.can_cut(3));
    wal.cut(4).unwrap();
    drop(wal);
    let (_, recovered, records) = open(folder.path());
    assert_eq!((records.len(), recovered.segments_unusable), (0, 0));
    assert_eq!(kept(folder.path()), 1);
}

#[test]
fn numbers_that_were_passed_over_are_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (mut wal, ..) = open(folder.path());
    write(&mut wal, &[b"one"]);
    wal.skip_to(100);
    write(&mut wal, &[b"hundred"]);
    drop(wal);
    let (wal, recovered, records) = open(folder.path());
    assert_eq!(records, [&b"one"[..], b"hundred"]);
    assert_eq!((recovered.records_lost, wal.next()), (0, 101));
}

#[test]
fn any_bytes_are_read_or_end_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = place(folder.path()).folder.join("0000000000000001.wal");
    std::fs::create_dir(path.parent().unwrap()).unwrap();
    for bytes in [
        &b""[..],
        b"fpwal",
        b"garbage of some length",
        b"fpwal\0\0\x02",
    ] {
        std::fs::write(&path, bytes).unwrap();
        let (_, recovered, records) = open(folder.path());
        assert!(records.is_empty());
        assert_eq!(recovered.segments_unusable, 1);
    }
    assert_eq!(kept(folder.path()), 4);
}
