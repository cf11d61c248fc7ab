//! The collector: receives the windows of agents, stores them, and answers queries about them.
#![forbid(unsafe_code)]

pub mod access;
pub mod alerts;
pub mod annotations;
pub mod audit;
pub mod config;
pub mod confine;
pub mod control;
mod database;
mod durable;
mod evidence;
pub mod grpc;
mod gunzip;
pub mod identity;
pub mod incidents;
pub mod ingest;
pub mod listen;
pub mod measure;
mod memory;
pub mod metrics;
pub mod oidc;
mod outbound;
mod percent;
pub mod pins;
pub mod pyroscope;
pub mod query;
mod reread;
pub mod senders;
pub mod server;
pub mod store;
pub mod symbols;
mod sync;
pub mod time;
pub mod upkeep;
pub mod web;
mod wrong_port;
