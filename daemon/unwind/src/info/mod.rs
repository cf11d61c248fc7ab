//! Unwind information: how to get from a frame to its caller, at each address.
//!
//! A [`module`] has that of one file: from its sections of call frame information (`table.rs`,
//! `pack.rs`), from Go's own tables (`go.rs`), or derived from instructions that nothing describes
//! ([`mod@derive`]). [`generated`] has that of generated code. All of it ends in rules (`rule.rs`),
//! which lead from the registers and the stack of one frame to those of its caller (`state.rs`).
//!
//! `fp-files` and `fp-jit` read it; the sampler, which walks by it ([`crate::walk`]), only
//! searches.

pub mod compare;
pub mod derive;
mod expression;
pub mod generated;
mod go;
pub mod module;
mod pack;
mod row;
mod row_words;
pub mod rule;
pub mod section;
pub mod state;
pub mod table;
pub mod words;

/// Most overhead of the allocator per allocation. Unit: bytes. Memory bounds include it; otherwise
/// many small pieces would take twice their bound.
pub const ALLOCATION_BYTES: usize = 16;
