//! Tests round trips, torn tails and damage: reading returns what was written, a prefix of it, or
//! an error.

use super::dir::{QUARANTINED_MAX, SegmentDir};
use super::file::{Kind, ReadError, Records, Scanned, Tail, scan};
use super::record::{pack, unpack};
use super::window::WindowHeader;
use proptest::prelude::*;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

const KIND: Kind = Kind {
    magic: *b"FPTEST\0",
    version: 3,
    extension: "test",
};

/// A payload, the window that it is said to be, and whether its tables start from scratch.
type Given = (Vec<u8>, WindowHeader, bool);

fn given() -> impl Strategy<Value = Given> {
    let numbers = (any::<u64>(), any::<(i64, i64)>(), any::<u64>());
    let header = numbers.prop_map(|(sequence, (one, other), samples)| WindowHeader {
        sequence,
        start_unix_ns: one.min(other),
        end_unix_ns: one.max(other),
        samples,
    });
    (
        prop::collection::vec(any::<u8>(), 0..40),
        header,
        any::<bool>(),
    )
}

fn records(all: &[Given]) -> Vec<Vec<u8>> {
    let record = |(payload, header, fresh): &Given| pack(payload, header, *fresh).unwrap();
    all.iter().map(record).collect()
}

/// A directory with segment 1, which has these records.
fn segment(facts: &[u8], records: &[Vec<u8>]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let segments = SegmentDir::open(dir.path(), "test directory").unwrap();
    let (first, rest) = records.split_at(records.len() / 2);
    let mut file = segments.create(&KIND, 1, facts, first).unwrap();
    let (offsets, failed) = file.append_all(rest);
    assert!(offsets.len() == rest.len() && failed.is_none());
    let path = dir.path().join("0000000000000001.test");
    assert_eq!(file.bytes(), fs::metadata(&path).unwrap().len());
    (dir, path)
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

fn scanned(path: &Path) -> Result<Scanned, ReadError> {
    scan(&open(path), &KIND, true)
}

fn read(path: &Path, bytes: u64) -> io::Result<Vec<Given>> {
    let records = Records::of(open(path), &KIND, bytes)?;
    let given =
        |(head, payload): (super::record::RecordHead, _)| (payload, head.header, head.fresh);
    records.map(|record| record.map(given)).collect()
}

proptest! {
    #[test]
    fn a_record_is_unpacked_as_it_was_packed(one in given()) {
        let (head, payload) = unpack(&records(std::slice::from_ref(&one))[0]).unwrap();
        prop_assert_eq!((payload, head.header, head.fresh), one);
    }

    #[test]
    fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = unpack(&bytes);
    }

    #[test]
    fn a_segment_is_read_as_it_was_written(
        all in prop::collection::vec(given(), 0..6),
        facts in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let (_dir, path) = segment(&facts, &records(&all));
        let found = scanned(&path).unwrap();
        prop_assert_eq!((&found.facts, found.tail), (&facts, Tail::Complete));
        prop_assert_eq!(found.bytes, fs::metadata(&path).unwrap().len());
        let headers: Vec<_> = found.records.iter().map(|found| found.header).collect();
        let expected: Vec<_> = all.iter().map(|(_, header, _)| *header).collect();
        prop_assert_eq!(headers, expected);
        prop_assert_eq!(read(&path, found.bytes).unwrap(), all);
    }

    #[test]
    fn a_segment_torn_at_any_byte_has_the_records_before(
        all in prop::collection::vec(given(), 1..4),
        at in any::<prop::sample::Index>(),
    ) {
        let records = records(&all);
        let (_dir, path) = segment(b"facts", &records);
        let whole = fs::read(&path).unwrap();
        let cut = at.index(whole.len() + 1);
        fs::write(&path, &whole[..cut]).unwrap();
        let start = whole.len() - records.iter().map(Vec::len).sum::<usize>();
        if cut < start {
            prop_assert!(matches!(scanned(&path), Err(ReadError::Header)));
            return Ok(());
        }
        let ends = records.iter().scan(start, |end, record| {
            *end += record.len();
            Some(*end)
        });
        let ends: Vec<usize> = ends.take_while(|&end| end <= cut).collect();
        let end = ends.last().copied().unwrap_or(start);
        let found = scanned(&path).unwrap();
        let tail = if end == cut { Tail::Complete } else { Tail::Torn };
        prop_assert_eq!((found.records.len(), found.tail), (ends.len(), tail));
        prop_assert_eq!(found.bytes, end as u64);
        prop_assert_eq!(read(&path, found.bytes).unwrap(), all[..ends.len()].to_vec());
        let again = scanned(&path).unwrap();
        prop_assert_eq!(again, Scanned { tail: Tail::Complete, ..found }, "it is cut off once");
    }

    #[test]
    fn damage_is_an_error_or_leaves_the_records_before(
        all in prop::collection::vec(given(), 1..4),
        at in any::<prop::sample::Index>(),
        flip in 1..255u8,
    ) {
        let (_dir, path) = segment(b"facts", &records(&all));
        let mut bytes = fs::read(&path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fs::write(&path, &bytes).unwrap();
        let Ok(found) = scanned(&path) else { return Ok(()) };
        prop_assert_eq!(&found.facts[..], b"facts");
        let Ok(read) = read(&path, found.bytes) else { return Ok(()) };
        prop_assert!(read.len() < all.len(), "byte {} went unnoticed", at);
        prop_assert!(found.tail != Tail::Complete);
        prop_assert_eq!(&read[..], &all[..read.len()]);
    }
}

#[test]
fn damage_before_complete_records_is_told_from_a_torn_end() {
    let header = WindowHeader::default();
    let records = records(&[(vec![1], header, false), (vec![2], header, false)]);
    let (_dir, path) = segment(b"", &records);
    let whole = fs::read(&path).unwrap();
    for (at, tail) in [
        (records[0].len() + records[1].len(), Tail::Damaged),
        (2, Tail::Torn),
    ] {
        let mut bytes = whole.clone();
        let at = bytes.len() - at;
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert_eq!(scanned(&path).unwrap().tail, tail);
    }
}

#[test]
fn a_file_of_another_version_is_named_and_not_read() {
    let (dir, path) = segment(
        b"facts",
        &records(&[(vec![1], WindowHeader::default(), true)]),
    );
    let before = fs::read(&path).unwrap();
    let newer = Kind { version: 4, ..KIND };
    let error = scan(&open(&path), &newer, true).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the file has format version 3, and this program reads only version 4"
    );
    let error = Records::of(open(&path), &newer, 99)
        .err()
        .map(io::Error::from);
    assert_eq!(error.unwrap().kind(), io::ErrorKind::InvalidData);
    assert_eq!(fs::read(&path).unwrap(), before);
    drop(dir);
}

#[test]
fn files_that_are_set_aside_are_few_and_what_was_never_complete_goes() {
    let dir = tempfile::tempdir().unwrap();
    let segments = SegmentDir::open(dir.path(), "test directory").unwrap();
    let none: [&[u8]; 0] = [];
    for id in 1..=6 {
        segments.create(&KIND, id, b"", &none).unwrap();
        assert!(segments.modified_unix_ns(&KIND, id).is_some());
    }
    assert_eq!(segments.ids("test").unwrap(), [1, 2, 3, 4, 5, 6]);
    for id in 1..=5 {
        segments.quarantine(&KIND, id).unwrap();
    }
    assert_eq!(segments.ids("test").unwrap(), [6]);
    let aside = segments.ids("test.bad").unwrap();
    assert_eq!((aside.len(), aside[0]), (QUARANTINED_MAX, 2));
    fs::write(dir.path().join("0000000000000009.test.tmp"), b"half").unwrap();
    drop(segments);
    let segments = SegmentDir::open(dir.path(), "test directory").unwrap();
    assert!(!segments.path(9, "test.tmp").exists());
    segments.remove(6, &["note", "test"]);
    assert!(segments.ids("test").unwrap().is_empty());
    let gone = segments.reopen(&KIND, 6, 0).unwrap_err();
    assert_eq!(gone.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_file_that_cannot_be_made_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let segments = SegmentDir::open(dir.path(), "test directory").unwrap();
    fs::create_dir(segments.path(1, "test")).unwrap();
    let none: [&[u8]; 0] = [];
    assert!(segments.create(&KIND, 1, b"", &none).is_err());
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        2,
        "the lock and what was in the way"
    );
}
