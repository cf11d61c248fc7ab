//! Threads that read for the sampler what it must not wait for: files, `/proc`, stacks of others.
//!
//! [`scout`] is the body of `fp-files`, [`looker`] that of `fp-look`. Each takes requests from a
//! bounded queue, has helpers touch what may never answer, and sends back what it found.

pub mod looker;
pub mod scout;
mod unread;
