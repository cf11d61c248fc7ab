//! The time axis of lines.

use crate::store::{StoreError, TimeRange};

/// Most steps of a line. A chart has some hundreds; a year in steps of a second is a mistake.
const STEPS_MAX: u64 = 1 << 20;

/// The time axis of lines.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Start of the first step.
    pub start: i64,
    /// Length of a step. Unit: nanoseconds.
    pub step_ns: u64,
    /// How many there are.
    pub steps: usize,
}

impl Axis {
    /// Steps of `step_ns` over a range, which start at multiples of it.
    pub(super) fn of(range: TimeRange, step_ns: u64) -> Result<Axis, StoreError> {
        let step = i64::try_from(step_ns).unwrap_or(i64::MAX).max(1);
        let start = range.start_unix_ns.div_euclid(step).saturating_mul(step);
        let covered = i128::from(range.end_unix_ns) - i128::from(start);
        let steps = covered
            .max(0)
            .unsigned_abs()
            .div_ceil(step.unsigned_abs().into());
        if steps > STEPS_MAX.into() {
            return Err(StoreError::TooLarge(format!(
                "{steps} steps exceed the limit of {STEPS_MAX}; use a longer step or a shorter \
                 range"
            )));
        }
        Ok(Axis {
            start,
            step_ns: step.unsigned_abs(),
            steps: steps as usize,
        })
    }

    /// The step in which an instant lies; what lies before the first counts as of the first.
    pub fn step_of(&self, at: i64) -> usize {
        let step = at.saturating_sub(self.start) / self.step_ns as i64;
        step.max(0) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start_unix_ns: i64, end_unix_ns: i64) -> TimeRange {
        TimeRange {
            start_unix_ns,
            end_unix_ns,
        }
    }

    #[test]
    fn steps_start_at_multiples_of_their_length() {
        let check = |(from, to), step_ns, expected| {
            let axis = Axis::of(range(from, to), step_ns).unwrap();
            assert_eq!((axis.start, axis.steps), expected);
        };
        check((0, 100), 10, (0, 10));
        check((5, 95), 10, (0, 10));
        check((-5, 5), 10, (-10, 2));
        check((20, 20), 10, (20, 0));
        check((20, 10), 10, (20, 0));
        check((7, 9), u64::MAX, (0, 1));
        assert!(Axis::of(range(0, i64::MAX), 1).is_err());
    }
}
