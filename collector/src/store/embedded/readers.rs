//! All readers of the store's files, as functions of bytes alone, for the fuzzer.
//!
//! The files are the store's own, but a disk may return anything. Whatever it returns, a reader
//! ends, holds no more than a multiple of its input, and returns `Corrupt` instead of panicking.

use super::block::{Block, each_row};
use super::codec::{Reader, SectionReader, SectionWriter};
use super::dict::Dict;
use super::encode::each_head;
use super::hosts::{decode_health, decode_host};
use super::log_record::{RECORD_WINDOW, WindowRecord};
use super::meta::{Summary, WindowMeta};
use super::{archive, host_state, partition_log, wal};

/// A segment of the write-ahead log, and the same bytes as the payload of a record, as a part of
/// the copy of a dictionary, and as what is known of hosts.
///
/// # Panics
/// When a reader breaks its promise.
pub fn log(data: &[u8]) {
    wal::read_any(data);
    partition_log::read_any(data);
    record(data);
    let mut input = Reader::new(data);
    if let Ok(mut host) = decode_host(&mut input) {
        let _ = decode_health(&mut input, &mut host);
    }
    if let Ok(mut opener) = SectionReader::new() {
        let _ = host_state::decode_host(&mut opener, data);
    }
}

/// The payload of a record.
fn record(payload: &[u8]) {
    let mut input = Reader::new(payload);
    if input.decode_exact(1) != Ok(&[RECORD_WINDOW]) {
        return;
    }
    let Ok(record) = WindowRecord::decode(&mut input) else {
        return;
    };
    for part in &record.window.parts {
        let mut rows = 0;
        let _ = each_row(&part.rows, 1, |_| rows += 1);
        assert!(rows <= part.rows.len());
    }
    let mut dict = Dict::new(&["service".to_owned()], true);
    let applied = dict.apply_logged(&mut Reader::new(record.entries));
    if applied.is_ok() {
        let version = dict.version();
        let again = dict.apply_logged(&mut Reader::new(record.entries));
        assert_eq!((again, dict.version()), (Ok(()), version), "it adds twice");
        let _ = host_state::named(&dict, &record.window.meta);
    }
}

/// A block of a partition's file and its sections, and parts of an archived object: as they are,
/// and as the content of sections with correct checksums, so that more than checksums is tested.
///
/// # Panics
/// When a reader breaks its promise.
pub fn block(data: &[u8]) {
    let (Ok(mut opener), Ok(mut sealer)) = (SectionReader::new(), SectionWriter::new()) else {
        return;
    };
    let mut sealed = Vec::new();
    let (totals, times) = data.split_at(data.len() / 2);
    let whole = sealer.seal(&mut sealed, totals).is_ok() && sealer.seal(&mut sealed, times).is_ok();
    assert!(whole, "zstd takes any bytes");
    let mut block = Block::default();
    for body in [data, &sealed] {
        for part in [None, Some((0, u64::MAX)), Some((600, 7))] {
            if block.read(&mut opener, body, 10_101_010, part).is_ok() {
                let rows = block.leaves.len();
                assert_eq!((block.values.len(), block.present.len()), (rows, rows));
                assert!(block.series.iter().all(|&(_, end)| end <= rows));
            }
        }
        for whole in [false, true] {
            let _ = each_head(&mut opener, body, whole, |_| 7, |_, _, _| {});
        }
    }
    archive::read_any(data);
    let _ = each_row(data, 0, |_| {});
    let _ = Summary::decode(&mut Reader::new(data));
    let _ = WindowMeta::decode(&mut Reader::new(data));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(data in prop::collection::vec(prop_oneof![3 => 0u8..6, 1 => any::<u8>()], 0..300)) {
            log(&data);
            block(&data);
            let mut payload = vec![RECORD_WINDOW];
            payload.extend_from_slice(&data);
            log(&payload);
        }
    }
}
