//! The agent: samples every CPU of a host, names and folds the stacks, answers questions about them.
//!
//! A sample goes one way: [`perf`] → [`unwind::process`] → [`unwind::walk`] → [`aggregate`] (fold)
//! → [`symbolize`], [`jit`], [`cgroup`] (name) → [`aggregate`] (flight recorder) → [`grpc`].
//! [`export`] pushes what the recorder has closed to a collector.
//!
//! Those that are crates lie below this one. Its modules are layers: none uses what uses it, and a
//! repository test fails on a cycle. From below:
//!
//! 1. [`workers`] → [`aggregate`] → [`sampler`], [`export`] → [`capture`], [`pins`];
//! 2. [`control`], [`grpc`], [`metrics`], [`triggers`] → [`agent`] → [`supervisor`].
//!
//! ARCHITECTURE.md and docs/development/threads.md have the threads.
#![forbid(unsafe_code)]

pub mod agent;
pub mod aggregate;
pub mod capture;
pub mod control;
pub mod export;
pub mod grpc;
mod lateness;
pub mod metrics;
mod notify;
pub mod pins;
mod request;
pub mod sampler;
pub mod supervisor;
pub mod triggers;
pub mod workers;
