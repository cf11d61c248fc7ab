//! Encodes bytes on disk: varints, and sections with their length and a checksum.
//!
//! What is read may be anything, so every reader checks lengths before it allocates, and returns
//! [`Corrupt`] instead of guessing.

use zstd::bulk::{Compressor, Decompressor};

/// Largest section that is read back. Unit: bytes, before compression. A flush writes smaller ones;
/// a larger figure on disk is damage.
const SECTION_BYTES_MAX: usize = 1 << 30;

/// Level of zstd for what is kept. Level 3 is the library's default; higher ones cost ingest more
/// than they save on columns of small integers.
const LEVEL: i32 = 3;

/// Bytes that cannot be what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Corrupt(pub &'static str);

/// Appends `value`, seven bits a byte, low bits first.
pub fn encode_u64(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// How many bytes [`put`] appends.
pub fn len_of(value: u64) -> usize {
    (u64::BITS - (value | 1).leading_zeros()).div_ceil(7) as usize
}

/// Appends a signed number: small ones of either sign are short.
pub fn encode_signed(out: &mut Vec<u8>, value: i64) {
    encode_u64(out, zigzag(value));
}

/// Appends text with its length.
pub fn encode_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    encode_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// Reads what `put…` wrote.
#[derive(Clone)]
pub struct Reader<'b> {
    bytes: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { bytes }
    }

    /// True at the end.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is left.
    pub fn rest(&self) -> &'b [u8] {
        self.bytes
    }

    /// A number.
    #[inline]
    pub fn decode_u64(&mut self) -> Result<u64, Corrupt> {
        match *self.bytes {
            [byte, ref rest @ ..] if byte < 0x80 => {
                self.bytes = rest;
                Ok(byte.into())
            }
            [low, high, ref rest @ ..] if high < 0x80 => {
                self.bytes = rest;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.decode_long(),
        }
    }

    fn decode_long(&mut self) -> Result<u64, Corrupt> {
        let mut value = 0u64;
        for (at, &byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte < 0x80 {
                self.bytes = &self.bytes[at + 1..];
                return Ok(value);
            }
        }
        Err(Corrupt("a number has no end"))
    }

    /// A number of 32 bits.
    #[inline]
    pub fn decode_u32(&mut self) -> Result<u32, Corrupt> {
        u32::try_from(self.decode_u64()?).map_err(|_| Corrupt("a number is too large"))
    }

    /// A number of 16 bits.
    #[inline]
    pub fn decode_u16(&mut self) -> Result<u16, Corrupt> {
        u16::try_from(self.decode_u64()?).map_err(|_| Corrupt("a number is too large"))
    }

    /// A signed number, zigzag-encoded.
    pub fn decode_signed(&mut self) -> Result<i64, Corrupt> {
        let value = self.decode_u64()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// How many things follow, each of at least one byte.
    pub fn decode_count(&mut self) -> Result<usize, Corrupt> {
        let count = self.decode_u64()?;
        if count > self.bytes.len() as u64 {
            return Err(Corrupt("a count is beyond the end"));
        }
        Ok(count as usize)
    }

    /// Decodes the requested count of numbers if each has one byte, which most have; otherwise it
    /// consumes nothing.
    #[inline]
    pub fn decode_short(&mut self, count: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(count)?;
        // Without a branch a number, so that the compiler looks at many at a time.
        let all = taken.iter().fold(0, |all, &byte| all | byte);
        (all < 0x80).then(|| {
            self.bytes = rest;
            taken
        })
    }

    /// As many bytes as are asked for.
    pub fn decode_exact(&mut self, len: usize) -> Result<&'b [u8], Corrupt> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(len)
            .ok_or(Corrupt("bytes end too early"))?;
        self.bytes = rest;
        Ok(taken)
    }

    /// Bytes with their length.
    pub fn decode_bytes(&mut self) -> Result<&'b [u8], Corrupt> {
        let len = self.decode_count()?;
        self.decode_exact(len)
    }

    /// Text with its length.
    pub fn decode_str(&mut self) -> Result<&'b str, Corrupt> {
        std::str::from_utf8(self.decode_bytes()?).map_err(|_| Corrupt("text is not UTF-8"))
    }

    /// A number of 32 bits, of fixed length.
    pub fn decode_fixed_u32(&mut self) -> Result<u32, Corrupt> {
        let bytes = self.decode_exact(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// Sixteen bytes.
    pub fn decode_16(&mut self) -> Result<[u8; 16], Corrupt> {
        let mut out = [0; 16];
        out.copy_from_slice(self.decode_exact(16)?);
        Ok(out)
    }
}

/// Writes sections: checksum, length before and after compression, bytes.
pub struct SectionWriter {
    zstd: Compressor<'static>,
    packed: Vec<u8>,
}

impl SectionWriter {
    /// A sealer; it keeps its tables for as long as it lives.
    ///
    /// # Errors
    /// When zstd gets no memory.
    pub fn new() -> std::io::Result<SectionWriter> {
        Ok(SectionWriter {
            zstd: Compressor::new(LEVEL)?,
            packed: Vec::new(),
        })
    }

    /// Appends `raw` to `out`.
    ///
    /// # Errors
    /// When zstd gets no memory.
    pub fn seal(&mut self, out: &mut Vec<u8>, raw: &[u8]) -> std::io::Result<()> {
        self.packed.clear();
        self.packed
            .reserve(zstd::zstd_safe::compress_bound(raw.len()));
        self.zstd.compress_to_buffer(raw, &mut self.packed)?;
        let body = if self.packed.len() < raw.len() {
            &self.packed[..]
        } else {
            raw
        };
        let at = out.len();
        out.extend_from_slice(&[0; 4]);
        encode_u64(out, raw.len() as u64);
        encode_u64(out, body.len() as u64);
        out.extend_from_slice(body);
        let crc = crc32fast::hash(&out[at + 4..]);
        out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        Ok(())
    }
}

/// Reads sections.
pub struct SectionReader {
    zstd: Decompressor<'static>,
}

impl SectionReader {
    /// An opener; it keeps its tables for as long as it lives.
    ///
    /// # Errors
    /// When zstd gets no memory.
    pub fn new() -> std::io::Result<SectionReader> {
        Ok(SectionReader {
            zstd: Decompressor::new()?,
        })
    }

    /// The next section of `input`, into `raw`, which is cleared before.
    pub fn open(&mut self, input: &mut Reader<'_>, raw: &mut Vec<u8>) -> Result<(), Corrupt> {
        let crc = input.decode_fixed_u32()?;
        let checked = input.rest();
        let raw_len = input.decode_u64()? as usize;
        let body_len = input.decode_u64()? as usize;
        let body = input.decode_exact(body_len)?;
        let used = checked.len() - input.rest().len();
        if crc32fast::hash(&checked[..used]) != crc {
            return Err(Corrupt("a checksum is wrong"));
        }
        if raw_len > SECTION_BYTES_MAX {
            return Err(Corrupt("a section is too large"));
        }
        raw.clear();
        if raw_len == body_len {
            raw.extend_from_slice(body);
            return Ok(());
        }
        raw.reserve(raw_len);
        let read = self.zstd.decompress_to_buffer(body, raw);
        if read.ok() != Some(raw_len) {
            return Err(Corrupt("a section cannot be unpacked"));
        }
        Ok(())
    }

    /// Passes over the next section without reading it.
    pub fn skip(&self, input: &mut Reader<'_>) -> Result<(), Corrupt> {
        input.decode_fixed_u32()?;
        input.decode_u64()?;
        let body_len = input.decode_u64()? as usize;
        input.decode_exact(body_len)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_come_back(values in prop::collection::vec(any::<u64>(), 0..50)) {
            let mut bytes = Vec::new();
            for &value in &values {
                let before = bytes.len();
                encode_u64(&mut bytes, value);
                prop_assert_eq!(bytes.len() - before, len_of(value));
                encode_signed(&mut bytes, value as i64);
            }
            let mut reader = Reader::new(&bytes);
            for &value in &values {
                prop_assert_eq!(reader.decode_u64(), Ok(value));
                prop_assert_eq!(reader.decode_signed(), Ok(value as i64));
            }
            prop_assert!(reader.is_empty());
        }

        #[test]
        fn a_changed_byte_is_noticed(raw in prop::collection::vec(0u8..4, 1..500), at in any::<usize>(), with in 1u8..) {
            let mut sealed = Vec::new();
            SectionWriter::new().unwrap().seal(&mut sealed, &raw).unwrap();
            let (mut opener, mut back) = (SectionReader::new().unwrap(), Vec::new());
            opener.open(&mut Reader::new(&sealed), &mut back).unwrap();
            prop_assert_eq!(&back, &raw);
            let at = at % sealed.len();
            sealed[at] ^= with;
            prop_assert!(opener.open(&mut Reader::new(&sealed), &mut back).is_err());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let mut back = Vec::new();
            let _ = SectionReader::new().unwrap().open(&mut Reader::new(&bytes), &mut back);
            let mut reader = Reader::new(&bytes);
            while reader.decode_bytes().is_ok() && !reader.is_empty() {}
        }
    }
}
