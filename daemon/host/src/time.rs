//! The clocks: everything inside is `CLOCK_MONOTONIC`; wall time enters here, through one anchor,
//! and nowhere else.

use crate::sync::lock;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Nanoseconds on `CLOCK_MONOTONIC`, the clock of every perf record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MonotonicTime(pub u64);

impl MonotonicTime {
    /// The clock now.
    pub fn now() -> MonotonicTime {
        MonotonicTime(clock(libc::CLOCK_MONOTONIC))
    }

    /// Time since `earlier`; zero when that is later.
    pub fn since(self, earlier: MonotonicTime) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time and `more`.
    pub fn plus(self, more: Duration) -> MonotonicTime {
        MonotonicTime(self.0.saturating_add(more.as_nanos() as u64))
    }
}

/// CPU time that the calling thread has used.
pub fn thread_cpu() -> Duration {
    Duration::from_nanos(clock(libc::CLOCK_THREAD_CPUTIME_ID))
}

/// Suspends remembered. A laptop that sleeps every few minutes for an hour makes fewer; beyond it
/// the oldest goes, and windows older than it show the wall time they would have had without it.
const SUSPENDS_MAX: usize = 64;

/// Less than this between two readings of two clocks is the time it took to read them, and moves
/// nothing: wall times, and with them the ends of windows, stay what they were to the nanosecond.
/// Nanoseconds.
const READING_NOISE: i64 = 1_000_000;

/// The clocks, read together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readings {
    /// Wall time, nanoseconds since the Unix epoch.
    pub wall: i64,
    /// `CLOCK_MONOTONIC`.
    pub mono: i64,
    /// `CLOCK_BOOTTIME`: monotonic, and goes on while the machine is suspended.
    pub boot: i64,
}

impl Readings {
    /// Reads them.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the one place where wall time enters"
    )]
    pub fn now() -> Readings {
        let wall = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        Readings {
            wall: wall.as_nanos() as i64,
            mono: clock(libc::CLOCK_MONOTONIC) as i64,
            boot: clock(libc::CLOCK_BOOTTIME) as i64,
        }
    }
}

/// By how much wall time has moved against monotonic time since the last reading. Nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The wall clock was set, or corrected.
    pub stepped: i64,
    /// The machine was suspended.
    pub slept: i64,
}

/// A time from which on the machine had been suspended for so long in all.
#[derive(Clone, Copy, Debug)]
struct Suspended {
    since: i64,
    total: i64,
}

/// The anchor between the clocks: wall time minus monotonic time, now and before each suspend.
///
/// Set at start and refreshed by the main thread, so a stepped wall clock moves the times shown but
/// never the order or length of windows. The monotonic clock stands still while the machine is
/// suspended: what is older than a suspend is further away in wall time by its length.
pub struct WallAnchor(Mutex<Anchor>);

struct Anchor {
    /// Wall time minus monotonic time now, in nanoseconds.
    offset: i64,
    /// Oldest first; never empty.
    suspended: VecDeque<Suspended>,
}

impl Anchor {
    fn new(now: Readings) -> Anchor {
        Anchor {
            offset: now.wall - now.mono,
            suspended: VecDeque::from([Suspended {
                since: i64::MIN,
                total: now.boot - now.mono,
            }]),
        }
    }

    fn total(&self) -> i64 {
        self.suspended.back().map_or(0, |last| last.total)
    }

    fn refresh(&mut self, now: Readings) -> Moved {
        let (offset, total) = (now.wall - now.mono, now.boot - now.mono);
        let slept = total - self.total();
        let slept = if slept.abs() < READING_NOISE {
            0
        } else {
            slept
        };
        if slept != 0 {
            if self.suspended.len() >= SUSPENDS_MAX {
                self.suspended.pop_front();
            }
            let since = now.mono;
            self.suspended.push_back(Suspended { since, total });
        }
        let stepped = offset - self.offset - slept;
        // Held against the offset in force, so many small corrections add up to one that counts.
        if slept == 0 && stepped.abs() < READING_NOISE {
            return Moved { stepped: 0, slept };
        }
        self.offset = offset;
        Moved { stepped, slept }
    }

    /// Wall time minus monotonic time, from each time on; newest first.
    fn offsets(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        let total = self.total();
        let offset = move |at: &Suspended| (at.since, self.offset - (total - at.total));
        self.suspended.iter().rev().map(offset)
    }

    fn to_unix_ns(&self, mono: i64) -> i64 {
        let mut offsets = self.offsets();
        let found = offsets.find(|&(since, _)| since <= mono);
        // Older than the oldest suspend remembered: as far as is known.
        let offset = found.or_else(|| self.offsets().last());
        mono.saturating_add(offset.map_or(self.offset, |(_, offset)| offset))
    }

    fn to_boot_ns(&self, mono: i64) -> i64 {
        let mut suspended = self.suspended.iter().rev();
        let found = suspended.find(|at| at.since <= mono);
        let total = found.or(self.suspended.front()).map_or(0, |at| at.total);
        mono.saturating_add(total)
    }

    fn to_mono(&self, unix_ns: i64) -> i64 {
        let mut resumed = i64::MAX;
        for (since, offset) in self.offsets() {
            // A wall time while the machine was suspended is the monotonic time of the resume.
            let mono = unix_ns.saturating_sub(offset).min(resumed);
            if mono >= since {
                return mono;
            }
            resumed = since;
        }
        let oldest = self.offsets().last().map_or(self.offset, |(_, o)| o);
        unix_ns.saturating_sub(oldest).min(resumed)
    }
}

impl WallAnchor {
    /// Reads the clocks.
    pub fn new() -> WallAnchor {
        WallAnchor(Mutex::new(Anchor::new(Readings::now())))
    }

    fn anchor(&self) -> MutexGuard<'_, Anchor> {
        lock(&self.0)
    }

    /// Reads the clocks again.
    pub fn refresh(&self) -> Moved {
        self.anchor().refresh(Readings::now())
    }

    /// Wall time of a monotonic time, in nanoseconds since the Unix epoch.
    pub fn to_unix_ns(&self, time: MonotonicTime) -> i64 {
        self.anchor().to_unix_ns(time.0 as i64)
    }

    /// `CLOCK_BOOTTIME` at a monotonic time. Unit: nanoseconds since the boot.
    pub fn to_boot_ns(&self, time: MonotonicTime) -> u64 {
        self.anchor().to_boot_ns(time.0 as i64).max(0) as u64
    }

    /// Monotonic time of a wall time; zero when it lies before boot.
    pub fn to_mono(&self, unix_ns: i64) -> MonotonicTime {
        MonotonicTime(self.anchor().to_mono(unix_ns).max(0) as u64)
    }

    /// The next multiple of `length` in wall time: where windows meet, so that those of a fleet
    /// match.
    pub fn next_multiple(&self, length: Duration) -> MonotonicTime {
        let now = MonotonicTime::now();
        let length = length.as_nanos() as i64;
        let into = self.to_unix_ns(now).rem_euclid(length.max(1));
        now.plus(Duration::from_nanos((length - into) as u64))
    }
}

impl Default for WallAnchor {
    fn default() -> Self {
        WallAnchor::new()
    }
}

fn clock(id: libc::clockid_t) -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for one timespec; the clocks asked for always exist.
    unsafe { libc::clock_gettime(id, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;
    const BOOTED: i64 = 1_700_000_000 * S;

    /// The clocks `mono` seconds of running and `slept` seconds of suspend after boot, when the
    /// wall clock was stepped by `stepped` seconds.
    fn at(mono: i64, slept: i64, stepped: i64) -> Readings {
        Readings {
            wall: BOOTED + (mono + slept + stepped) * S,
            mono: mono * S,
            boot: (mono + slept) * S,
        }
    }

    #[test]
    fn what_is_older_than_a_suspend_keeps_its_wall_time() {
        let mut anchor = Anchor::new(at(100, 0, 0));
        let moved = anchor.refresh(at(200, 3600, 0));
        let (stepped, slept) = (0, 3600 * S);
        assert_eq!(moved, Moved { stepped, slept });
        assert_eq!(anchor.to_unix_ns(150 * S), BOOTED + 150 * S);
        assert_eq!(anchor.to_unix_ns(250 * S), BOOTED + (250 + 3600) * S);
        assert_eq!(anchor.to_boot_ns(150 * S), 150 * S);
        assert_eq!(anchor.to_boot_ns(250 * S), (250 + 3600) * S);
        assert_eq!(anchor.to_mono(BOOTED + 150 * S), 150 * S);
        assert_eq!(anchor.to_mono(BOOTED + (250 + 3600) * S), 250 * S);
    }

    #[test]
    fn a_wall_time_while_suspended_is_the_time_of_the_resume() {
        let mut anchor = Anchor::new(at(100, 0, 0));
        anchor.refresh(at(200, 3600, 0));
        assert_eq!(anchor.to_mono(BOOTED + (200 + 1800) * S), 200 * S);
    }

    #[test]
    fn a_step_moves_all_times_and_is_told_apart_from_a_suspend() {
        let mut anchor = Anchor::new(at(100, 0, 0));
        assert_eq!(anchor.refresh(at(200, 50, -3600)).stepped, -3600 * S);
        assert_eq!(anchor.to_unix_ns(150 * S), BOOTED + (150 - 3600) * S);
        assert_eq!(anchor.to_unix_ns(250 * S), BOOTED + (250 + 50 - 3600) * S);
    }

    #[test]
    fn the_time_it_takes_to_read_the_clocks_moves_no_window() {
        let mut anchor = Anchor::new(at(100, 0, 0));
        let end = anchor.to_mono(BOOTED + 130 * S);
        for late in [700, -90_000, 999_999] {
            let mut readings = at(110, 0, 0);
            readings.wall += late;
            let (stepped, slept) = (0, 0);
            assert_eq!(anchor.refresh(readings), Moved { stepped, slept });
            assert_eq!(anchor.to_unix_ns(end), BOOTED + 130 * S);
        }
    }

    #[test]
    fn small_corrections_of_the_wall_clock_add_up() {
        let mut anchor = Anchor::new(at(100, 0, 0));
        let corrected = |by: i64| Readings {
            wall: at(110, 0, 0).wall + by,
            ..at(110, 0, 0)
        };
        assert_eq!(anchor.refresh(corrected(600_000)).stepped, 0);
        assert_eq!(anchor.refresh(corrected(1_200_000)).stepped, 1_200_000);
        assert_eq!(anchor.to_unix_ns(110 * S), BOOTED + 110 * S + 1_200_000);
    }

    #[test]
    fn a_daemon_started_after_a_suspend_does_not_count_it() {
        let anchor = Anchor::new(at(100, 5000, 0));
        assert_eq!(anchor.to_unix_ns(100 * S), BOOTED + 5100 * S);
        assert_eq!(anchor.to_unix_ns(90 * S), BOOTED + 5090 * S);
    }

    #[test]
    fn suspends_are_remembered_up_to_a_bound_and_the_way_back_matches() {
        let mut anchor = Anchor::new(at(0, 0, 0));
        for number in 1..200 {
            anchor.refresh(at(number * 10, number * 60, 0));
        }
        assert_eq!(anchor.suspended.len(), SUSPENDS_MAX);
        for mono in [1995 * S, 1985 * S, 1700 * S, 1401 * S] {
            assert_eq!(anchor.to_mono(anchor.to_unix_ns(mono)), mono);
        }
        assert_eq!(anchor.to_unix_ns(1985 * S), BOOTED + (1985 + 198 * 60) * S);
    }
}
