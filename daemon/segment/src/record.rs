//! A record: a payload with its length and checksums, as it stands in a segment's file.
//!
//! It has [`HEAD_BYTES`] bytes of head and a zstd frame. The head has a checksum of its own, so
//! that the number of lost windows is known even if the payload is damaged. Numbers are
//! little-endian:
//!
//! | Offset | Bytes | |
//! |---|---|---|
//! | 0 | 4 | magic |
//! | 4 | 4 | length of the frame |
//! | 8 | 4 | length of the payload |
//! | 12 | 4 | flags: bit 0 is [`RecordHead::fresh`] |
//! | 16 | 32 | the window's sequence, start, end and samples |
//! | 48 | 4 | checksum of the frame |
//! | 52 | 4 | checksum of the head up to here |

use super::window::WindowHeader;
use std::io;

/// Start of every record.
const MAGIC: [u8; 4] = *b"FPR2";

/// Length of a record's head. Unit: bytes.
pub const HEAD_BYTES: usize = 56;

/// Largest payload of a record, packed or not. Unit: bytes. A window of the largest host is a
/// hundredth of it; what claims to be larger is damaged.
pub const PAYLOAD_BYTES_MAX: usize = 64 << 20;

/// How hard payloads are packed. zstd's default: 20 to 100 KiB pack in under a millisecond.
const ZSTD_LEVEL: i32 = 3;

/// Flag of a record that starts with new tables: everything before is forgotten.
const FRESH: u32 = 1;

/// Data in the head of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    packed: u32,
    raw: u32,
    packed_sum: u32,
    /// The window; zeros where the payload is none.
    pub header: WindowHeader,
    /// The tables start from scratch: ids of earlier records of the file mean nothing any more.
    pub fresh: bool,
}

impl RecordHead {
    /// Length of the record, head included. Unit: bytes.
    pub fn record_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + u64::from(self.packed)
    }

    /// Parses a head; `None` if it is damaged.
    pub(super) fn parse(bytes: &[u8; HEAD_BYTES]) -> Option<RecordHead> {
        let (sound, sum) = bytes.split_last_chunk::<4>()?;
        let flags = u32_at(bytes, 12);
        let head = RecordHead {
            packed: u32_at(bytes, 4),
            raw: u32_at(bytes, 8),
            packed_sum: u32_at(bytes, 48),
            header: WindowHeader {
                sequence: u64_at(bytes, 16),
                start_unix_ns: u64_at(bytes, 24) as i64,
                end_unix_ns: u64_at(bytes, 32) as i64,
                samples: u64_at(bytes, 40),
            },
            fresh: flags & FRESH != 0,
        };
        let is_record = bytes.starts_with(&MAGIC)
            && u32::from_le_bytes(*sum) == crc32fast::hash(sound)
            && flags & !FRESH == 0
            && head.packed.max(head.raw) as usize <= PAYLOAD_BYTES_MAX
            && head.header.start_unix_ns <= head.header.end_unix_ns;
        is_record.then_some(head)
    }
}

/// True when a complete head of a record starts somewhere in these bytes.
pub(super) fn has_head(bytes: &[u8]) -> bool {
    let mut places = bytes.windows(HEAD_BYTES);
    places.any(|place| {
        let head = place.first_chunk().filter(|head| head.starts_with(&MAGIC));
        head.and_then(RecordHead::parse).is_some()
    })
}

/// A payload as a record. `fresh`: its tables need none of those before.
///
/// # Errors
/// When the payload is over its bound or cannot be packed.
pub fn pack(payload: &[u8], header: &WindowHeader, fresh: bool) -> io::Result<Vec<u8>> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(io::Error::other("it is larger than the limit for a record"));
    }
    let packed = zstd::bulk::compress(payload, ZSTD_LEVEL)?;
    let mut record = Vec::with_capacity(HEAD_BYTES + packed.len());
    record.extend(MAGIC);
    record.extend((packed.len() as u32).to_le_bytes());
    record.extend((payload.len() as u32).to_le_bytes());
    record.extend(if fresh { FRESH } else { 0 }.to_le_bytes());
    record.extend(header.sequence.to_le_bytes());
    record.extend(header.start_unix_ns.to_le_bytes());
    record.extend(header.end_unix_ns.to_le_bytes());
    record.extend(header.samples.to_le_bytes());
    record.extend(crc32fast::hash(&packed).to_le_bytes());
    record.extend(crc32fast::hash(&record).to_le_bytes());
    record.extend(packed);
    Ok(record)
}

/// The head and the payload of a record.
///
/// # Errors
/// `InvalidData` when it is damaged.
pub fn unpack(record: &[u8]) -> io::Result<(RecordHead, Vec<u8>)> {
    let unpacked = || {
        let (head, packed) = record.split_first_chunk::<HEAD_BYTES>()?;
        let head = RecordHead::parse(head)?;
        let sound =
            packed.len() == head.packed as usize && crc32fast::hash(packed) == head.packed_sum;
        let raw = head.raw as usize;
        let payload = sound.then(|| zstd::bulk::decompress(packed, raw).ok())??;
        (payload.len() == raw).then_some((head, payload))
    };
    unpacked().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a record is damaged"))
}

fn u32_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
