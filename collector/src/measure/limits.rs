//! All limits of what is measured on stored profiles, for alerts and for `/metrics`.

use std::time::Duration;

/// Most values of a measure in `/metrics`. Of more, the largest are shown.
pub const MEASURED_GROUPS_MAX: usize = 1000;

/// Rounds after which a value that nobody renewed is not shown any more.
pub const STALE_ROUNDS: u32 = 4;

/// Most lines (a group on a host) that a rule reads.
pub const CELLS_MAX: usize = 20_000;

/// Most stacks of a profile that a rule on shares reads. What is cut counts for its callers, which
/// changes no sum.
pub const NODES_MAX: usize = 10_000;

/// Longest time for the queries of one rule.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(10);

/// Part of the time that evaluation may take: a round is followed by a break of this many times its
/// length.
pub const BREAK_TIMES: u32 = 4;

/// How far back values end, so that windows on their way have come. A window lasts ten seconds.
/// Unit: nanoseconds.
pub const DELAY_NS: i64 = 30 * 1_000_000_000;

/// For how long a host that went silent is missed; after that it counts as removed. Unit:
/// nanoseconds.
pub const MISSED_NS: i64 = 900 * 1_000_000_000;

/// Samples below which a selection is idle: nothing is said of shares of less. At 99 Hz these are
/// half a second of CPU time.
pub const SAMPLES_MIN: u64 = 50;

/// Part of a selection's CPU time that may be without samples before its shares have an error that
/// counts. Reading the kernel's counters a moment apart stays well below it.
pub const UNSAMPLED_MAX: f64 = 0.1;

/// Part of the evaluated time for which a host must have sent windows to have a value.
pub const COVERED_MIN: f64 = 0.5;
