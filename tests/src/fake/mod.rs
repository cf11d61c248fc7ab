//! Fakes that speak the protocols of agents and collectors, for tests of those on the other side.

pub mod agents;
pub mod attend;
pub mod push;
pub mod window;
