//! Threads that read for the sampler what it must not wait for: files, `/proc`, stacks of others.
//!
//! [`file_loader`] is the body of `fp-files`, [`stack_reader`] that of `fp-look`. Each takes
//! requests from a bounded queue, has helpers touch what may never answer, and sends back what it
//! found.

pub mod file_loader;
pub mod stack_reader;
mod unread;
