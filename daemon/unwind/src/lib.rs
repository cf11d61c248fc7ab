//! Walks stacks: the unwind information of files, processes with what they have mapped, and the
//! walk of a copied stack by both.
#![forbid(unsafe_code)]

pub mod arch;
pub mod info;
pub mod process;
pub mod walk;
