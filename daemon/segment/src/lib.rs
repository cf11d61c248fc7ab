//! Segments: files of windows on disk, for the spool and for pins.
//!
//! ```text
//! window (facts, rows, accounts, times) ─ window.rs ─▶ payload
//! payload ─ record.rs ─▶ record: head with two checksums, zstd frame
//! header, record, record, … ─ file.rs ─▶ a segment's file
//! NUMBER.seg, NUMBER.pin, NUMBER.capture ─ dir.rs ─▶ a private directory
//! ```
//!
//! Promises of this crate: a file appears complete with its header, by a rename; it is only
//! appended to, never changed in place; after a crash it ends at the last complete record; a file
//! of another version, or an unreadable one, is an error and never read as another window. Reading
//! uses memory for one record at a time.
//!
//! The spool (`export`) and the pins (`pins`) decide which windows are kept, for how long, and what
//! is dropped first. Their limits have nothing in common but the unit.
#![forbid(unsafe_code)]

pub mod dir;
pub mod file;
pub mod record;
#[cfg(test)]
mod tests;
pub mod window;
