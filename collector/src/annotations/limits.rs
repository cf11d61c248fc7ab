//! All limits of annotations.

use std::time::Duration;

/// Most annotations. At the bound the oldest go first.
pub const ANNOTATIONS_MAX: usize = 10_000;

/// Longest text of one. Unit: bytes.
pub const TEXT_BYTES_MAX: usize = 1000;

/// Longest address of one. Unit: bytes.
pub const URL_BYTES_MAX: usize = 2000;

/// Most labels of one.
pub const LABELS_MAX: usize = 16;

/// Longest name of a label. Unit: bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 128;

/// Longest value of a label. Unit: bytes.
pub const LABEL_VALUE_BYTES_MAX: usize = 512;

/// Longest time that one covers. Unit: nanoseconds.
pub const LENGTH_NS_MAX: i64 = 31 * 86_400 * 1_000_000_000;

/// How far ahead one may lie: what is planned, and clocks that are ahead. Unit: nanoseconds.
pub const AHEAD_NS_MAX: i64 = 7 * 86_400 * 1_000_000_000;

/// Largest message that adds one. Unit: bytes. With every label at its bound it is 12 KiB.
pub const REQUEST_BYTES_MAX: usize = 32 << 10;

/// Annotations that are listed unless more are asked for.
pub const LIST_DEFAULT: usize = 1000;

/// Most bytes of a list, below the 4 MiB that clients take. The newest have the room.
pub const LIST_BYTES_MAX: usize = 3 << 20;

/// How often what was found is written.
pub const FLUSH_INTERVAL: Duration = Duration::from_secs(2);

/// Rounds of that between two looks at what is too old.
pub const PRUNE_ROUNDS: u32 = 900;

/// For how long after it was first seen nothing is said of what a service runs: all of it is new.
/// Unit: nanoseconds.
pub const LEARN_NS: i64 = 600 * 1_000_000_000;

/// Two deployments of a service under different labels are one if they are this close. Unit:
/// nanoseconds.
pub const SAME_NS: i64 = 600 * 1_000_000_000;

/// For how long a deployment counts its hosts, and the same version of agents is not announced
/// again. Unit: nanoseconds.
pub const COUNTING_NS: i64 = 86_400 * 1_000_000_000;

/// How far a host that reports later may move the time of a deployment back. Unit: nanoseconds.
pub const BACK_NS_MAX: i64 = 3600 * 1_000_000_000;

/// Most deployments announced in an hour. Further ones are remembered and not announced.
pub const DEPLOYS_PER_HOUR_MAX: usize = 100;

/// Most services with remembered versions. At the limit the one not seen for longest is forgotten,
/// and counts as new when it comes again.
pub const SERVICES_MAX: usize = 10_000;

/// Most versions of a service that are remembered.
pub const VALUES_MAX: usize = 64;

/// Most hosts with remembered agent versions.
pub const HOSTS_MAX: usize = 20_000;

/// Most hosts counted, over all deploys.
pub const COUNTED_MAX: usize = 200_000;

/// Most hosts of deploys that are kept, over all of them: at the limit those of the oldest deploys
/// go first, and scopes of hosts do not see these any more.
pub const KEPT_HOSTS_MAX: i64 = 200_000;

/// Most names of hosts in an annotation that is listed.
pub const HOST_NAMES_MAX: usize = 50;

/// A host that gets a version this long after the host before it is no part of the same rollout any
/// more: it does not move the end of the deployment. Unit: nanoseconds.
pub const ROLLOUT_GAP_NS: i64 = 1800 * 1_000_000_000;

/// A deployment that took less has no end: hosts start their windows within this time. Unit:
/// nanoseconds.
pub const ROLLOUT_NS_MIN: i64 = 60 * 1_000_000_000;

/// A program is never said to run for longer than this: what is older was no deployment of now.
/// Unit: nanoseconds.
pub const SINCE_NS_MAX: i64 = 7 * 86_400 * 1_000_000_000;

/// Most that waits to be written. Nothing is remembered beyond it until there is room.
pub const WAITING_MAX: usize = 4096;
