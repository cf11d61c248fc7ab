//! Fakes that speak the protocols, for tests of those on the other side. They store and sample
//! nothing.
//!
//! | Fake | Tests |
//! |---|---|
//! | [`agent::FakeAgent`] answers on a unix socket | agent-ctl |
//! | [`collector::FakeCollector`] answers on a port | agent-ctl |
//! | [`ingest::IngestCollector`] takes windows | the daemon |
//! | [`push::PushStream`] pushes windows | the collector |
//! | [`control::ConnectedAgent`] takes commands | the collector |
//! | [`member::Host`] joins a fleet | the collector |
//! | [`agents::Agents`] do both, on a thread | the collector as a process |

pub mod agent;
pub mod agents;
pub mod collector;
pub mod control;
pub mod ear;
pub mod ingest;
pub mod member;
pub mod memory;
pub mod push;
pub mod samples;
pub mod server;
pub mod window;
