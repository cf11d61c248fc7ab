//! Unpacks gzip of strangers, up to a bound.

use flate2::read::MultiGzDecoder;
use std::io::{self, Read};

/// Why bytes could not be unpacked.
#[derive(Debug)]
pub enum GunzipError {
    /// They have more than the bound, unpacked.
    TooLarge,
    /// They are damaged, or no gzip.
    Damaged(io::Error),
}

/// Unpacks up to `most` bytes.
///
/// # Errors
/// When there are more, or they are no gzip.
pub fn gunzip(bytes: &[u8], most: usize) -> Result<Vec<u8>, GunzipError> {
    let mut plain = Vec::new();
    let read = MultiGzDecoder::new(bytes)
        .take(most as u64 + 1)
        .read_to_end(&mut plain);
    // What was unpacked before damage counts as well.
    if plain.len() > most {
        return Err(GunzipError::TooLarge);
    }
    read.map_err(GunzipError::Damaged)?;
    Ok(plain)
}
