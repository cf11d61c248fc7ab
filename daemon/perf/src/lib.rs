//! Samples from the kernel: opening the events, reading the rings, parsing the records.
//!
//! Data flows [`event`] (one per CPU) → [`ring`] (its buffer) → [`cpu_ring`] (both, with what
//! [`loss`] tells of what is missing) → [`rings`] (all of them, in order of time) → [`record`]
//! (what a record says). Captures have rings of their own ([`rings::sets`]) for events of their own
//! ([`probe`]), drained with the others. [`plan`] decides how much is copied and how large rings
//! are; [`watch`] tells whether a word of a thread was written; [`others`] knows whom our events
//! would harm; [`arch`] knows what the architecture's samples carry.

pub mod arch;
pub mod cpu_ring;
pub mod error;
pub mod event;
pub mod loss;
pub mod others;
pub mod plan;
pub mod probe;
pub mod record;
pub mod ring;
pub mod rings;
pub mod synthetic;
pub mod tracefs;
pub mod watch;
