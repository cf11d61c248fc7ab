//! Reads numbers and text of untrusted bytes from front to back; what is not there is `None`.
//!
//! Files of machines with the other byte order are rejected before, so numbers are little-endian.

/// Most bytes of the names of events, hosts and releases. A character that is cut shows as one that
/// is damaged.
const TEXT_MAX: usize = 256;

/// What is left of some bytes.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, back) = self.0.split_at_checked(len)?;
        self.0 = back;
        Some(front)
    }

    /// As [`Fields::take`], of a length from the file.
    pub fn take_u64(&mut self, len: u64) -> Option<&'a [u8]> {
        self.take(usize::try_from(len).ok()?)
    }

    /// The next so many words.
    pub fn words(&mut self, count: u64) -> Option<&'a [u8]> {
        self.take_u64(count.checked_mul(8)?)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        let (front, back) = self.0.split_first_chunk()?;
        self.0 = back;
        Some(u64::from_le_bytes(*front))
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        let (front, back) = self.0.split_first_chunk()?;
        self.0 = back;
        Some(u32::from_le_bytes(*front))
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        let (front, back) = self.0.split_first_chunk()?;
        self.0 = back;
        Some(u16::from_le_bytes(*front))
    }

    /// A text behind its length, which counts its padding; of a long one the start.
    pub fn counted_text(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        let text = Fields(self.take_u64(len.into())?).text();
        Some(&text[..text.len().min(TEXT_MAX)])
    }

    /// Bytes before the first NUL of what is left.
    pub fn text(&self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == 0);
        &self.0[..end.unwrap_or(self.0.len())]
    }
}

/// The bytes `offset..offset + size`, if they are all there.
pub fn section(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let start = usize::try_from(offset).ok()?;
    let end = usize::try_from(offset.checked_add(size)?).ok()?;
    bytes.get(start..end)
}
