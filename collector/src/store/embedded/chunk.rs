//! How time is divided: chunks of ten minutes, and hours of them.

/// Length of a chunk: what one block holds. Unit: nanoseconds.
///
/// Ten minutes measured 1.33 bytes a row, one minute 1.70; an hour would keep six times as much in
/// memory.
pub const CHUNK_NS: u64 = 600_000_000_000;

/// Chunks of an hour: what the rollup by hours adds up. An hour is counted from the partition's
/// start.
pub const HOUR_CHUNKS: u16 = 6;

/// Length of an hour. Unit: nanoseconds.
pub const HOUR_NS: u64 = CHUNK_NS * HOUR_CHUNKS as u64;

/// Number of the first hour among the chunks of the tables by service: hours stand there as chunks
/// beyond all of ten minutes, of which a partition of seven days has 1,008.
pub const HOURS_FROM: u16 = 0x4000;
