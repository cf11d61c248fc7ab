//! Windows: samples folded by (cgroup, process, thread, stack), named when they close, kept by the
//! flight recorder.
//!
//! [`fold`] runs on the sampler thread and fills a [`batch`], with [`losses`] beside; [`namer`] runs on its own thread, gives
//! the batch names and puts it into the [`recorder`], which answers queries.
#![forbid(unsafe_code)]

pub mod batch;
pub mod context;
pub mod fold;
mod ledger;
pub mod losses;
pub mod namer;
mod names;
mod owners;
pub mod recorder;
pub mod recorders;
pub mod runtimes;
mod target;
mod timed;
