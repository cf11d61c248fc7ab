//! All limits of exports.

use std::time::Duration;

/// Length of a slice, the unit in which it is known what was sent: that of a window. Every engine
/// answers for complete slices exactly. Unit: nanoseconds.
pub const SLICE_NS: i64 = 10_000_000_000;

/// How long after its end a stretch of time is read, so that windows on their way have come. What
/// comes later is sent on its own. Unit: nanoseconds.
pub const SETTLE_NS: i64 = 30_000_000_000;

/// How often it is looked for what is due. A stretch of a minute waits this much longer at most.
pub const LOOK: Duration = Duration::from_secs(5);

/// Most stretches without a break that are remembered over all hosts, some 100 bytes each. A host
/// has one for each hour and more of an outage, so it is reached by agents that come and go. Beyond
/// it the oldest are given up, and counted.
pub const RUNS_MAX: usize = 100_000;

/// Most hosts that are remembered. Windows of further ones are given up, and counted.
pub const HOSTS_MAX: usize = 50_000;

/// Most stretches that are taken at once over all hosts, some 130 bytes each; of each host one at
/// least.
pub const PIECES_MAX: usize = 50_000;

/// After this time without a window a host is forgotten. Unit: slices.
pub const HOST_SLICES: i64 = 7 * 86_400 / 10;

/// Size from which a request is sent, by an estimate. Unit: bytes.
pub const REQUEST_BYTES: usize = 1 << 20;

/// Most stretches in a request: a host each.
pub const REQUEST_PIECES: usize = 64;

/// Largest request, before it is packed. Unit: bytes. Receivers in Go take 4 MiB over gRPC unless
/// they are told otherwise. A larger one is cut, by hosts and then by time.
pub const REQUEST_BYTES_MAX: usize = 4 << 20;

/// Longest time for one question to the store.
pub const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A question to the store is followed by a break of this many times its length, so that reading
/// for an export takes half of a CPU at most.
pub const BREAK_TIMES: u32 = 1;

/// Time for a receiver to answer a request.
pub const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest answer that is read. Unit: bytes. It is a number and a sentence.
pub const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Waits between two attempts to send: the first, and the longest.
pub const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Longest time that a receiver may ask to wait.
pub const RETRY_AFTER_MAX: Duration = Duration::from_secs(600);

/// Largest file of headers. Unit: bytes.
pub const HEADERS_BYTES_MAX: u64 = 64 << 10;

/// Shortest time between two writes of what was sent. After a crash, what was sent in between is
/// sent again.
pub const SAVE: Duration = Duration::from_secs(5);
