//! Decompresses sections, never to more than a stated size: archives that inflate without end are
//! an old trick, and an executable's sections are its owner's choice.

use super::elf::{ElfError, ReadAt, Section};
use std::io::Read;

/// Memory a decompressor may use beside its output. Unit: bytes. `xz -9` needs 64 MiB.
const DECODER_BYTES_MAX: u64 = 80 << 20;

/// The content of a section, decompressed when it is compressed, at most `bytes_max` long.
///
/// # Errors
/// When it is longer, damaged, or compressed by a method that is not known.
pub fn content<R: ReadAt + ?Sized>(
    image: &R,
    section: &Section,
    is_64: bool,
    bytes_max: usize,
) -> Result<Vec<u8>, ElfError> {
    if section.size > bytes_max as u64 {
        return Err(ElfError::TooLarge);
    }
    let mut raw = vec![0; section.size as usize];
    image.read_exact_at(&mut raw, section.offset)?;
    if !section.compressed {
        return Ok(raw);
    }
    let (size, header) = unpacked_size(&raw, is_64)?;
    if size > bytes_max as u64 {
        return Err(ElfError::TooLarge);
    }
    let packed = raw.get(header..).ok_or(ElfError::Damaged)?;
    match word(&raw, 0)? {
        1 => exactly(flate2::bufread::ZlibDecoder::new(packed), size),
        2 => exactly(zstd::stream::read::Decoder::with_buffer(packed)?, size),
        _ => Err(ElfError::Damaged),
    }
}

/// The ELF image with the symbols that some distributions leave in stripped files, in
/// `.gnu_debugdata`, packed with xz; at most `bytes_max` long.
///
/// # Errors
/// When it is longer or damaged.
pub fn mini_debug_info(packed: &[u8], bytes_max: usize) -> Result<Vec<u8>, ElfError> {
    let stream = xz2::stream::Stream::new_stream_decoder(DECODER_BYTES_MAX, 0)
        .map_err(|_| ElfError::Damaged)?;
    let decoder = xz2::bufread::XzDecoder::new_stream(packed, stream);
    let mut out = Vec::new();
    decoder.take(bytes_max as u64 + 1).read_to_end(&mut out)?;
    if out.len() > bytes_max {
        Err(ElfError::TooLarge)
    } else {
        Ok(out)
    }
}

/// How long the content of a section is when it is decompressed, as the section says: [`content`]
/// never gives more.
///
/// # Errors
/// When it is compressed and its header cannot be read.
pub fn content_size<R: ReadAt + ?Sized>(
    image: &R,
    section: &Section,
    is_64: bool,
) -> Result<u64, ElfError> {
    if !section.compressed {
        return Ok(section.size);
    }
    let mut header = [0; 24];
    let header = &mut header[..if is_64 { 24 } else { 12 }];
    if section.size < header.len() as u64 {
        return Err(ElfError::Damaged);
    }
    image.read_exact_at(header, section.offset)?;
    // The packed bytes are in memory beside the others for a moment.
    Ok(unpacked_size(header, is_64)?.0.max(section.size))
}

/// The size and the length of the header that tells it. Elf64_Chdr: type, reserved, size (8),
/// alignment (8). Elf32_Chdr: type, size, alignment.
fn unpacked_size(raw: &[u8], is_64: bool) -> Result<(u64, usize), ElfError> {
    Ok(match is_64 {
        true => (word(raw, 8)? | word(raw, 12)? << 32, 24),
        false => (word(raw, 4)?, 12),
    })
}

fn exactly(decoder: impl Read, size: u64) -> Result<Vec<u8>, ElfError> {
    let mut out = Vec::new();
    decoder.take(size).read_to_end(&mut out)?;
    if out.len() as u64 != size {
        Err(ElfError::Damaged)
    } else {
        Ok(out)
    }
}

fn word(raw: &[u8], at: usize) -> Result<u64, ElfError> {
    let bytes = raw.get(at..at + 4).ok_or(ElfError::Damaged)?;
    Ok(u64::from(u32::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3],
    ])))
}
