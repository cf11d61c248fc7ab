//! Names generated code by the time of each sample, from what runtimes write: perf maps
//! (`/tmp/perf-PID.map`, a text file that grows) and jitdumps (`jit-PID.dump`, records with times).
//!
//! The files belong to the process, so an attacker may control them: links anywhere on the path are
//! rejected, each must be a regular file with one name, owned by the process's user or its
//! namespace's root, and not older than the process, and what is read and kept of it is bounded. A
//! perf map is looked up in the process's own root, under the pid that the process itself sees.
//!
//! A JVM's code is read from the JVM's own structures (`hotspot.rs`).
//!
//! The thread [`watch`] keeps the data up to date; other threads inform and query it by
//! [`notice`]s. Its helpers have a [`reader`] for each process, which follows the files ([`tail`])
//! and parses them ([`map`], [`dump`]). The result is [`code`], by address and time. The symbolizer
//! queries it through its [`lookup`]. [`ask`] has runtimes write maps where the configuration
//! allows it.
//!
//! A perf map of 100,000 lines that grows by 100 lines a second costs 20 ms a minute to follow;
//! reading all of it each second would cost 4.4 s. A piece of code takes 216 bytes and a lookup 0.3
//! µs. The times of samples cost nothing noticeable compared with the 0.2 µs for folding one
//! (`benches micro --group generated --group folding`, two shared CPUs, 2026-11-22).
#![forbid(unsafe_code)]

mod allowance;
pub mod ask;
pub mod code;
pub mod dump;
mod hotspot;
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
