//! All limits of alerts.

use std::time::Duration;

/// Most groups of a rule. Of more, those with the largest values are judged.
pub const GROUPS_MAX: usize = 200;

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

/// How long a baseline is used. It is a mean over an hour. Unit: nanoseconds.
pub const BASELINE_NS: i64 = 300 * 1_000_000_000;

/// Samples below which a selection is idle: nothing is said of shares of less. At 99 Hz these are
/// half a second of CPU time.
pub const SAMPLES_MIN: u64 = 50;

/// Part of a selection's CPU time that may be without samples before its shares have an error that
/// counts. Reading the kernel's counters a moment apart stays well below it.
pub const UNSAMPLED_MAX: f64 = 0.1;

/// Part of the evaluated time for which a host must have sent windows to have a value.
pub const COVERED_MIN: f64 = 0.5;

/// For how long a firing alert without data stays. Unit: nanoseconds.
pub const DARK_NS_MAX: u64 = 6 * 3600 * 1_000_000_000;

/// Most alerts that fired and are kept. At the bound the oldest resolved ones go.
pub const EPISODES_MAX: usize = 10_000;

/// Most notifications that wait for a receiver. At the bound the oldest is dropped, and counted.
pub const WAITING_MAX: usize = 1000;

/// Most alerts that a notification names. Others are only counted.
pub const ALERTS_TOLD_MAX: usize = 100;

/// Longest text for chats. Unit: bytes.
pub const CHAT_BYTES_MAX: usize = 3000;

/// Waits between two attempts: the first, and the longest.
pub const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));

/// For how long a receiver may refuse everything before its oldest notification is dropped.
pub const GIVE_UP: Duration = Duration::from_secs(24 * 3600);

/// Attempts for a notification whose content the receiver refuses (400, 413, 422).
pub const REFUSED_MAX: u32 = 3;

/// How often the sender looks for work that nobody told it of.
pub const LOOK: Duration = Duration::from_secs(1);

/// Alerts that are listed unless more are asked for.
pub const LIST_DEFAULT: usize = 1000;

/// Most alerts of a list.
pub const LIST_MAX: usize = 10_000;

/// Most bytes of a list, below the 4 MiB that clients take.
pub const LIST_BYTES_MAX: usize = 3 << 20;

/// Largest request. Unit: bytes.
pub const REQUEST_BYTES_MAX: usize = 4 << 10;

/// Rounds between two looks at what is too old.
pub const PRUNE_ROUNDS: u32 = 100;
