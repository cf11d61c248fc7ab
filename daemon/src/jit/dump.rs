//! The content of a jitdump file: what a runtime loaded, moved and described, each at its time.

use super::code::{CodeMap, When};
use crate::unwind::generated::RulesBuilder;

/// Why a file is not read further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DumpError {
    /// It does not begin as a jitdump.
    #[error("not a jitdump file")]
    NotADump,
}

/// Reads one jitdump, fed in pieces of any size as the file grows.
#[derive(Debug, Default)]
pub struct DumpReader {}

impl DumpReader {
    /// Takes the next bytes of the file, which were written at `read` (used where the records' own clock is
    /// not the sampler's).
    ///
    /// # Errors
    /// When nothing more can be made of the file.
    pub fn feed(
        &mut self,
        _bytes: &[u8],
        _read: When,
        _code: &mut CodeMap,
        _rules: &mut RulesBuilder,
    ) -> Result<(), DumpError> {
        Err(DumpError::NotADump)
    }

    /// True when the runtime said that nothing follows.
    pub fn is_closed(&self) -> bool {
        false
    }

    /// Records that made no sense, since the last call.
    pub fn take_skipped(&mut self) -> u64 {
        0
    }
}
