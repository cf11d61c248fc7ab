//! The two clocks: everything inside is `CLOCK_MONOTONIC`; wall time enters here, through one
//! anchor, and nowhere else.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds on `CLOCK_MONOTONIC`, the clock of every perf record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// The clock now.
    pub fn now() -> Mono {
        let mut time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: `time` is a valid place for one timespec; CLOCK_MONOTONIC always exists.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
        Mono(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    /// Time since `earlier`; zero when that is later.
    pub fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time and `more`.
    pub fn plus(self, more: Duration) -> Mono {
        Mono(self.0.saturating_add(more.as_nanos() as u64))
    }
}

/// The anchor between both clocks: wall time minus monotonic time, in nanoseconds.
///
/// Set at start and refreshed when a window closes, so a stepped wall clock moves the times shown
/// but never the order or length of windows.
pub struct WallAnchor(AtomicI64);

impl WallAnchor {
    /// Reads both clocks.
    pub fn new() -> WallAnchor {
        WallAnchor(AtomicI64::new(offset_now()))
    }

    /// Reads both clocks again; returns by how many nanoseconds the wall clock was stepped.
    pub fn refresh(&self) -> i64 {
        let now = offset_now();
        now - self.0.swap(now, Ordering::Relaxed)
    }

    /// Wall time of a monotonic time, in nanoseconds since the Unix epoch.
    pub fn to_unix_ns(&self, time: Mono) -> i64 {
        time.0 as i64 + self.0.load(Ordering::Relaxed)
    }

    /// Monotonic time of a wall time; zero when it lies before boot.
    pub fn to_mono(&self, unix_ns: i64) -> Mono {
        Mono(
            unix_ns
                .saturating_sub(self.0.load(Ordering::Relaxed))
                .max(0) as u64,
        )
    }
}

impl Default for WallAnchor {
    fn default() -> Self {
        WallAnchor::new()
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this is the one place where wall time enters"
)]
fn offset_now() -> i64 {
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    wall.as_nanos() as i64 - Mono::now().0 as i64
}
