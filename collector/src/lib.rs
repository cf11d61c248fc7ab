//! The fleet's memory: takes the windows of agents, keeps them, and answers questions about them.
#![forbid(unsafe_code)]

pub mod ingest;
pub mod metrics;
pub mod query;
pub mod store;
pub mod time;
