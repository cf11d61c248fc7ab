//! What stands in the logs: records of windows and of hosts.

use super::codec::{Corrupt, Reader};
use super::memtable::Prepared;

/// First byte of the record of a window.
pub const RECORD_WINDOW: u8 = 3;

/// First byte of the record of a host.
pub const RECORD_HOST: u8 = 2;

/// The record of a window.
pub struct WindowRecord<'b> {
    /// What it adds to the dictionary.
    pub entries: &'b [u8],
    /// The window.
    pub window: Prepared,
}

impl<'b> WindowRecord<'b> {
    /// Reads what follows the kind of the record.
    pub fn decode(input: &mut Reader<'b>) -> Result<WindowRecord<'b>, Corrupt> {
        Ok(WindowRecord {
            entries: input.decode_bytes()?,
            window: Prepared::decode(input)?,
        })
    }
}
