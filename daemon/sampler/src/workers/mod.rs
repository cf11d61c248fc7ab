//! Threads that read on behalf of the sampler what it must not wait for: files, `/proc`, stacks of
//! other processes.
//!
//! [`file_loader`] is the body of `fp-files`, [`stack_reader`] that of `fp-look`. Each takes
//! requests from a bounded queue, has helpers access what may never answer, and returns the result.

pub mod file_loader;
pub mod stack_reader;
mod unread;
