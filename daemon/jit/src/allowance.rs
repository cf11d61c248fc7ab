//! A budget of file bytes that may be read: a large amount at once, and more each second.

use host::time::MonotonicTime;
use std::time::Duration;

/// The rest of an allowance at some time.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    at_once: u64,
    per_s: u64,
    left: u64,
    since: MonotonicTime,
}

impl Allowance {
    /// All of what may be read at once is left. Unit: bytes, and bytes a second.
    pub fn new(at_once: u64, per_s: u64) -> Allowance {
        Allowance {
            at_once,
            per_s,
            left: at_once,
            since: MonotonicTime::now(),
        }
    }

    /// Bytes that may be read now.
    pub fn left(&mut self, now: MonotonicTime) -> u64 {
        let millis = now.since(self.since).as_millis() as u64;
        if millis > 0 {
            let more = millis.saturating_mul(self.per_s / 1000);
            self.left = self.left.saturating_add(more).min(self.at_once);
            self.since = self.since.plus(Duration::from_millis(millis));
        }
        self.left
    }

    /// Subtracts what was read.
    pub fn take(&mut self, read: u64) {
        self.left = self.left.saturating_sub(read);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back_with_time_and_no_more_than_at_once() {
        let mut allowance = Allowance::new(10_000, 2_000);
        let start = allowance.since;
        let mut after = |millis| {
            let left = allowance.left(start.plus(Duration::from_millis(millis)));
            allowance.take(left);
            left
        };
        assert_eq!(after(0), 10_000);
        assert_eq!(after(0), 0);
        assert_eq!(after(500), 1_000);
        assert_eq!(after(60_000), 10_000);
    }

    #[test]
    fn asking_often_loses_no_time() {
        let mut allowance = Allowance::new(10_000, 1_000);
        allowance.take(10_000);
        let start = allowance.since;
        for micros in 1..=300 {
            allowance.left(start.plus(Duration::from_micros(7 * micros)));
        }
        assert_eq!(allowance.left, 2);
    }
}
