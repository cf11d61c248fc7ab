//! Limits of pins, and what happens at each.

use std::time::Duration;

/// Largest message of an agent. Unit: bytes, decompressed. Chunks of profiles are 256 KiB and,
/// where a string is long, a little more; a larger message ends the call with the transport's own
/// error.
pub const MESSAGE_BYTES_MAX: usize = crate::evidence::MESSAGE_BYTES_MAX;

/// Largest profile of a pin, its minutes and its capture each. Unit: encoded bytes. An agent's pin
/// is cut at 16 MiB with the defaults, packed; a larger one is refused.
pub const PART_BYTES_MAX: usize = proto::PIN_PART_BYTES_MAX;

/// Largest profile of a pin in memory, while it is put together to see whether it is one. Unit:
/// bytes. Times of samples take five bytes encoded and 32 here; agents leave them out where it
/// would be more.
pub const HEAP_BYTES_MAX: usize = proto::PIN_HEAP_BYTES_MAX;

/// Most pins that are uploaded at a time. More wait for [`PLACE_MAX`] and then must retry. Each is
/// assembled once to check that it is a profile, which takes [`HEAP_BYTES_MAX`] at most.
pub const UPLOADS_MAX: usize = 2;

/// Longest wait for a place.
pub const PLACE_MAX: Duration = Duration::from_secs(10);

/// Longest silence of an agent that uploads a pin.
pub const MESSAGE_MAX: Duration = Duration::from_secs(30);

/// Longest time for all of one pin: 128 MiB in this time are 0.4 MiB/s.
pub const UPLOAD_MAX: Duration = Duration::from_secs(300);

/// Most pins in all. Beyond it the host with the most loses its oldest.
pub const PINS_MAX: usize = 10_000;

/// Pins that one host may upload per day of UTC. A trigger fires at most ten times a day by
/// default; more are rejected until the next day.
pub const HOST_PINS_PER_DAY_MAX: u32 = 256;

/// Most hosts with counted pins per day. Pins of further hosts are rejected until the next day.
pub const HOSTS_PER_DAY_MAX: usize = 65_536;

/// Longest name of a trigger. Unit: bytes. Longer texts of agents are cut.
pub const TRIGGER_BYTES_MAX: usize = 128;

/// Longest cause. Unit: bytes.
pub const CAUSE_BYTES_MAX: usize = 512;

/// Longest path of a cgroup. Unit: bytes: that of Linux.
pub const CGROUP_BYTES_MAX: usize = 4096;

/// Longest head of a file. Unit: bytes. The texts above and a host's name and id are less.
pub const HEAD_BYTES_MAX: usize = 16 << 10;

/// Pins in a list when the request does not say.
pub const LIST_DEFAULT: usize = 1000;

/// How often it is looked whether pins have reached their age.
pub const PRUNE_INTERVAL: Duration = Duration::from_secs(600);
