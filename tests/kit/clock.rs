//! Both clocks, for tests that bring records of one and answers of the other together.

use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> i64 {
    let time = clock_gettime(clock);
    time.tv_sec * 1_000_000_000 + time.tv_nsec
}

/// Wall time. Unit: nanoseconds since the Unix epoch.
pub fn unix_ns() -> i64 {
    read(ClockId::Realtime)
}

/// Time since the boot, suspended time included: what windows are numbered by. Unit: nanoseconds.
pub fn boot_ns() -> u64 {
    read(ClockId::Boottime).unsigned_abs()
}

/// What to add to a time on CLOCK_MONOTONIC to have wall time. Unit: nanoseconds.
pub fn wall_minus_mono() -> i64 {
    read(ClockId::Realtime) - read(ClockId::Monotonic)
}
