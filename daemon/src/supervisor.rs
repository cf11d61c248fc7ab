//! Laid out, not built yet.
