//! Samples from the kernel: opening the events, reading the rings, parsing the records.
//!
//! Data flows [`event`] (one per CPU) → [`ring`] (its buffer) → [`rings`] (all of them, in order of
//! time) → [`record`] (what a record says). [`environment`] reports the kernel settings that bound
//! all of it.

pub mod environment;
pub mod event;
pub mod record;
pub mod ring;
pub mod rings;
