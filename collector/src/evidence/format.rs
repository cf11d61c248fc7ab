//! The bytes of a file: heads, sizes and checksums, written and read.

use super::Facts;
use std::io::{self, Read};

/// Magic, bytes of both parts, length of what follows, checksum of all from the sizes on. Unit:
/// bytes.
pub(super) const HEAD: usize = 32;

/// Head of a message: packed length, unpacked, part, checksum of these and what follows. Unit:
/// bytes.
pub(super) const MESSAGE_HEAD: usize = 16;

pub(super) fn damaged(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

pub(super) fn encode_head(magic: &[u8; 8], sizes: [u64; 2], facts: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(magic);
    head[8..16].copy_from_slice(&sizes[0].to_le_bytes());
    head[16..24].copy_from_slice(&sizes[1].to_le_bytes());
    head[24..28].copy_from_slice(&(facts.len() as u32).to_le_bytes());
    let sum = head_sum(&head, facts);
    head[28..].copy_from_slice(&sum.to_le_bytes());
    head
}

pub(super) fn head_sum(head: &[u8; HEAD], facts: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&head[8..28]);
    sum.update(facts);
    sum.finalize()
}

/// Its facts, the sizes of its parts, and the length of what was read after the fixed head.
pub(super) fn read_head<F: Facts>(file: &mut impl Read) -> io::Result<(F, [u64; 2], usize)> {
    let mut head = [0; HEAD];
    let short = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("it ends early"),
        _ => error,
    };
    file.read_exact(&mut head).map_err(short)?;
    let [_, _, a, b, c, d, len, sum] = words::<8>(&head);
    if &head[..8] != F::MAGIC || len as usize > F::HEAD_BYTES_MAX {
        return Err(damaged("it has another kind or version"));
    }
    let mut facts = vec![0; len as usize];
    file.read_exact(&mut facts).map_err(short)?;
    if head_sum(&head, &facts) != sum {
        return Err(damaged("its head is damaged"));
    }
    let about = F::decode(&facts[..]).map_err(|_| damaged("its head is damaged"))?;
    let long = |low: u32, high: u32| u64::from(high) << 32 | u64::from(low);
    Ok((about, [long(a, b), long(c, d)], facts.len()))
}

pub(super) fn message_sum(head: [u32; 3], packed: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    for word in head {
        sum.update(&word.to_le_bytes());
    }
    sum.update(packed);
    sum.finalize()
}

pub(super) fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let mut words = [0; N];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    words
}
