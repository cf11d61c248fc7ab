//! Perf maps of real processes.
