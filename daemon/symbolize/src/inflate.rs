//! Decompresses sections, never to more than a stated size, because sections are untrusted and
//! could expand without end.

use super::budget::{Charge, FileBudget};
use super::elf::{ElfError, ReadAt, Section};
use std::io::Read;
use std::ops::Deref;

/// Memory that unpacking xz may take next to its output. Unit: bytes. `xz -8` needs 33 MiB;
/// distributions pack symbols with the default, which needs 9. Symbols packed harder are not read.
const XZ_BYTES_MAX: usize = 34 << 20;

/// Bytes unpacked between two looks at the budget.
const AT_ONCE: usize = 256 << 10;

/// Content in memory, charged to a budget while it is held.
pub struct Content<'b> {
    bytes: Vec<u8>,
    charge: Charge<'b>,
}

impl Deref for Content<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Content<'_> {
    /// The bytes; they stay charged as long as the budget lasts.
    pub fn keep(self) -> Vec<u8> {
        self.charge.keep();
        self.bytes
    }
}

/// The content of a section, decompressed when it is compressed, at most `bytes_max` long.
///
/// # Errors
/// When it is longer, over the budget, damaged, or compressed by a method that is not known.
pub fn content<'b, R: ReadAt + ?Sized>(
    image: &R,
    section: &Section,
    is_64: bool,
    bytes_max: usize,
    budget: &'b FileBudget<'_>,
) -> Result<Content<'b>, ElfError> {
    if section.size > bytes_max as u64 {
        return Err(ElfError::TooLarge);
    }
    let raw = read(image, section, budget)?;
    if !section.compressed {
        return Ok(raw);
    }
    let (size, header) = unpacked_size(&raw, is_64)?;
    if size > bytes_max as u64 {
        return Err(ElfError::TooLarge);
    }
    let packed = raw.get(header..).ok_or(ElfError::Damaged)?;
    let size = size as usize;
    let charge = budget.charge(size)?;
    let bytes = match word(&raw, 0)? {
        1 => unpack(flate2::bufread::ZlibDecoder::new(packed), size, budget)?,
        // Written where it stays: a decoder with a window of its own takes what the data asks for.
        2 => zstd::bulk::Decompressor::new()?.decompress(packed, size)?,
        _ => return Err(ElfError::Damaged),
    };
    budget.check()?;
    match bytes.len() == size {
        true => Ok(Content { bytes, charge }),
        false => Err(ElfError::Damaged),
    }
}

/// The bytes of a section as they are in the image.
fn read<'b, R: ReadAt + ?Sized>(
    image: &R,
    section: &Section,
    budget: &'b FileBudget<'_>,
) -> Result<Content<'b>, ElfError> {
    let size = usize::try_from(section.size).map_err(|_| ElfError::TooLarge)?;
    let charge = budget.charge(size)?;
    let mut bytes = vec![0; size];
    for (number, part) in bytes.chunks_mut(AT_ONCE).enumerate() {
        budget.reads(part.len())?;
        let at = section.offset.checked_add((number * AT_ONCE) as u64);
        image.read_exact_at(part, at.ok_or(ElfError::Damaged)?)?;
    }
    Ok(Content { bytes, charge })
}

/// The ELF image with the symbols that some distributions leave in stripped files, in
/// `.gnu_debugdata`, packed with xz; at most `bytes_max` long.
///
/// # Errors
/// When it is longer, over the budget or damaged.
pub fn mini_debug_info<'b>(
    packed: &[u8],
    bytes_max: usize,
    budget: &'b FileBudget<'_>,
) -> Result<Content<'b>, ElfError> {
    // Taken for the time of unpacking, as much as the stream may ask for.
    let _decoder = budget.charge(XZ_BYTES_MAX)?;
    let stream = xz2::stream::Stream::new_stream_decoder(XZ_BYTES_MAX as u64, 0)
        .map_err(|_| ElfError::Damaged)?;
    let mut charge = budget.charge(0)?;
    let mut decoder = xz2::bufread::XzDecoder::new_stream(packed, stream);
    let mut bytes = Vec::new();
    while bytes.len() <= bytes_max {
        budget.check()?;
        charge.set(bytes.len() + AT_ONCE)?;
        bytes.reserve_exact(AT_ONCE);
        if (&mut decoder)
            .take(AT_ONCE as u64)
            .read_to_end(&mut bytes)?
            < AT_ONCE
        {
            return Ok(Content { bytes, charge });
        }
    }
    Err(ElfError::TooLarge)
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
    // For a moment the packed bytes are in memory as well.
    Ok(unpacked_size(header, is_64)?.0.max(section.size))
}

/// The size, and the length of the header that states it. Elf64_Chdr: type, reserved, size (8),
/// alignment (8). Elf32_Chdr: type, size, alignment.
fn unpacked_size(raw: &[u8], is_64: bool) -> Result<(u64, usize), ElfError> {
    Ok(match is_64 {
        true => (word(raw, 8)? | word(raw, 12)? << 32, 24),
        false => (word(raw, 4)?, 12),
    })
}

/// Reads up to `size` bytes from a decoder, which are already charged.
fn unpack(
    mut decoder: impl Read,
    size: usize,
    budget: &FileBudget<'_>,
) -> Result<Vec<u8>, ElfError> {
    let mut bytes = Vec::new();
    while bytes.len() < size {
        budget.check()?;
        let part = (size - bytes.len()).min(AT_ONCE);
        bytes.reserve_exact(part);
        if (&mut decoder).take(part as u64).read_to_end(&mut bytes)? < part {
            break;
        }
    }
    Ok(bytes)
}

fn word(raw: &[u8], at: usize) -> Result<u64, ElfError> {
    let bytes = raw.get(at..at + 4).ok_or(ElfError::Damaged)?;
    Ok(u64::from(u32::from_le_bytes([
        bytes[0], bytes[1], bytes[2], bytes[3],
    ])))
}
