//! All limits of alerts.

use std::time::Duration;

/// Most groups of a rule. Of more, those with the largest values are judged.
pub const GROUPS_MAX: usize = 200;

/// How long a baseline is used. It is a mean over an hour. Unit: nanoseconds.
pub const BASELINE_NS: i64 = 300 * 1_000_000_000;

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
