//! Windows: samples folded by (cgroup, process, thread, stack), named when they close, kept by the
//! flight recorder.

pub mod batch;
pub mod recorder;
