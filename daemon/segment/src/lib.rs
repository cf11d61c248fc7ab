//! Segments: files of windows on disk, for the spool and for pins.
//!
//! ```text
//! window (facts, rows, accounts, times) ─ window.rs ─▶ payload
//! payload ─ record.rs ─▶ record: head with two checksums, zstd frame
//! header, record, record, … ─ file.rs ─▶ a segment's file
//! NUMBER.seg, NUMBER.pin, NUMBER.capture ─ dir.rs ─▶ a private directory
//! ```
//!
//! What this crate promises: a file appears complete with its header, by a rename; it is appended
//! to and never changed in place; what a crash tore ends at the last complete record; a file of
//! another version, or that cannot be read, is an error and never another window. Reading takes
//! memory for one record at a time.
//!
//! Which windows are kept, for how long and what goes first is for the spool (`export`) and the
//! pins (`pins`) to say: their bounds have nothing in common but the unit.
#![forbid(unsafe_code)]

pub mod dir;
pub mod file;
pub mod record;
#[cfg(test)]
mod tests;
pub mod window;
