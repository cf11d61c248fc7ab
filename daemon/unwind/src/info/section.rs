//! A section of unwind information: where it is, and in which dialect it is written.

use gimli::LittleEndian;

/// A view of a section's bytes.
pub type Slice<'a> = gimli::EndianSlice<'a, LittleEndian>;

/// Which of the two dialects a section is written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// `.eh_frame`
    Eh,
    /// `.debug_frame`
    Debug,
}

/// Where the sections of an image are: what relative pointers are relative to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bases {
    /// The first executable segment; the index is relative to it.
    pub code: u64,
    /// `.text`
    pub text: u64,
    /// The section itself.
    pub section: u64,
}

/// Where a section is in its image.
#[derive(Clone, Copy, Debug)]
pub struct SectionRange {
    /// Where it starts. Unit: bytes.
    pub offset: u64,
    /// Its length, or the most that it can have. Unit: bytes.
    pub len: u64,
    /// It ends at the first entry of length zero: its length is not known.
    pub ends_at_zero: bool,
}
