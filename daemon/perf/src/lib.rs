//! Samples from the kernel: opening the events, reading the rings, parsing the records.
//!
//! Data flows from [`event`] (one per CPU) to [`ring`] (its buffer), [`cpu_ring`] (both, with the
//! losses found by [`loss`]), [`rings`] (all of them, in order of time) and [`record`] (parsed
//! records). Captures have their own rings ([`rings::sets`]) for their own events ([`probe`]),
//! drained with the others. [`plan`] decides how much is copied and how large rings are; [`watch`]
//! detects whether a word of a thread was written; [`arch`] knows what the architecture's samples
//! contain.

pub mod arch;
pub mod cpu_ring;
pub mod error;
pub mod event;
pub mod loss;
pub mod plan;
pub mod probe;
pub mod record;
pub mod ring;
pub mod rings;
pub mod synthetic;
pub mod tracefs;
pub mod watch;
