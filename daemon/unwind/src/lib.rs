//! Walks stacks. It has the unwind information of files, processes and their mappings, and the walk
//! of a copied stack by both.
#![forbid(unsafe_code)]

pub mod arch;
pub mod info;
pub mod process;
pub mod walk;
