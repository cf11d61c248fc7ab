//! The fleet's memory: takes the windows of agents, keeps them, and answers questions about them.
#![forbid(unsafe_code)]

pub mod store;
