//! Windows: samples folded by (cgroup, process, thread, stack), named when they close, kept by the
//! flight recorder.
//!
//! [`fold`] runs on the sampler thread and fills a [`batch`], and [`losses`] adds what was lost.
//! [`batch_symbolizer`] runs on its own thread, names the batch and puts it into the [`recorder`],
//! which answers queries.
#![forbid(unsafe_code)]

mod attribution;
pub mod batch;
pub mod batch_symbolizer;
pub mod context;
pub mod fold;
mod ledger;
pub mod losses;
mod names;
pub mod programs;
pub mod recorder;
pub mod recorders;
pub mod runtimes;
mod target;
mod timed;
mod wakers;
