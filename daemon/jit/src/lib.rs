//! Names generated code by the time of each sample, from what runtimes write: perf maps
//! (`/tmp/perf-PID.map`, a text file that grows) and jitdumps (`jit-PID.dump`, records with times).
//!
//! The files belong to the process, so they are an attacker's: links anywhere on the way are
//! refused, each must be a regular file with one name, of the process's user or its namespace's
//! root, not older than the process, and what is read and kept of it is bounded. A perf map is
//! looked for in the process's own root and under the pid the process sees itself by.
//!
//! [`watch`] is the thread that keeps what is known up to date, told and asked by [`notice`]s; its
//! helpers have a [`reader`] for each process, which follows the files ([`tail`]) and takes in what
//! they say ([`map`], [`dump`]); the result is [`code`], by address and time. The symbolizer asks
//! through its [`lookup`]. [`ask`] has runtimes write maps where the configuration allows it.
//!
//! A perf map of 100,000 lines that grows by 100 lines a second costs 20 ms a minute to follow; to
//! read all of it each second would cost 4.4 s. A piece of code takes 216 bytes, a look-up 0.3 µs,
//! and the times of samples nothing that shows beside the 0.2 µs of folding one (`benches micro
//! --group generated --group folding`, two shared CPUs, 2026-11-22).
#![forbid(unsafe_code)]

mod allowance;
pub mod ask;
pub mod code;
pub mod dump;
mod inherited_map;
pub mod lookup;
pub mod map;
pub mod names;
pub mod notice;
pub mod options;
pub mod perfdata;
mod read_batch;
pub mod reader;
pub mod rules;
pub mod runtime;
pub mod runtimes;
pub mod tail;
pub mod target;
pub mod watch;

#[cfg(test)]
mod tests;

pub use lookup::JitSymbolLookup;
pub use options::Options;
pub use watch::Watcher;
