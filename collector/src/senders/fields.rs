//! Walks over the fields of messages of strangers that are not decoded: an entry of two bytes may
//! take a hundred in memory.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Why bytes are no message.
#[derive(Debug, thiserror::Error)]
pub(super) enum Damaged {
    /// A length is larger than what follows.
    #[error("it ends early")]
    Short,
    /// Something else.
    #[error(transparent)]
    Other(#[from] prost::DecodeError),
}

/// The next bytes with their length in front.
pub(super) fn taken<'a>(bytes: &mut &'a [u8]) -> Result<&'a [u8], Damaged> {
    let length = decode_varint(bytes)?;
    taken_bytes(bytes, length)
}

/// So many bytes.
pub(super) fn taken_bytes<'a>(bytes: &mut &'a [u8], length: u64) -> Result<&'a [u8], Damaged> {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let (taken, rest) = bytes.split_at_checked(length).ok_or(Damaged::Short)?;
    *bytes = rest;
    Ok(taken)
}

/// The next field: its content, where that has a length in front, and its number.
///
/// # Errors
/// When the bytes are no message.
pub(super) fn next<'a>(bytes: &mut &'a [u8]) -> Result<(&'a [u8], u32), Damaged> {
    let (tag, kind) = decode_key(bytes)?;
    if kind == WireType::LengthDelimited {
        return Ok((taken(bytes)?, tag));
    }
    skip_field(kind, tag, bytes, DecodeContext::default())?;
    Ok((&[], tag))
}

/// How often a field is there.
///
/// # Errors
/// When the bytes are no message.
pub(super) fn count(mut bytes: &[u8], of: u32) -> Result<usize, Damaged> {
    let mut found = 0;
    while !bytes.is_empty() {
        let (tag, kind) = decode_key(&mut bytes)?;
        found += usize::from(tag == of);
        skip_field(kind, tag, &mut bytes, DecodeContext::default())?;
    }
    Ok(found)
}
