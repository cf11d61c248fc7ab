//! Laid out, not built yet.

pub mod environment;
