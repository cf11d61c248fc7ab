//! The agent: samples every CPU of a host, names and folds the stacks, and answers queries about
//! them.
//!
//! A sample goes one way: [`perf`] → [`unwind::process`] → [`unwind::walk`] → [`aggregate`] (fold)
//! → [`symbolize`], [`jit`], [`cgroup`] (name) → [`aggregate`] (flight recorder) → [`grpc`].
//! [`export`] pushes what the recorder has closed to a collector.
//!
//! Each stage is a crate below this one, so a dependency in the other direction does not compile.
//! This crate combines them, also in layers: [`grpc`] → [`agent`] → [`supervisor`].
//!
//! ARCHITECTURE.md and docs/development/threads.md have the threads.
#![forbid(unsafe_code)]

pub mod agent;
pub mod grpc;
mod notify;
pub mod supervisor;
