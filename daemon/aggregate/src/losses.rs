//! Assigns losses to the batches of the time in which they happened.
//!
//! A loss may start in one window and end in a later one, and is often known only when the sampler
//! runs again. The part within a batch's time goes with that batch; the rest waits for the next
//! one.

use super::batch::{RawBatch, RawLoss};
use host::time::MonotonicTime;
use perf::loss::LossGap;

/// Most separate losses in a batch and waiting for one. A host of 512 CPUs with rings that are all
/// too small has that many in a second; further ones are added to the last, with the time of both.
const LOSSES_MAX: usize = 1 << 14;

/// Losses that no batch has taken yet.
#[derive(Debug, Default)]
pub struct Losses {
    waiting: Vec<LossGap>,
}

impl Losses {
    /// Adds one.
    pub fn add(&mut self, gap: LossGap) {
        let full = self.waiting.len() >= LOSSES_MAX;
        match self.waiting.last_mut() {
            Some(last) if full => join(last, gap),
            _ if gap.samples > 0 => self.waiting.push(gap),
            _ => {}
        }
    }

    /// Moves what was lost before `end` to `batch`. What was lost before its start and is known
    /// only now is put at the start: late, but not forgotten.
    pub fn take(&mut self, end: MonotonicTime, batch: &mut RawBatch) {
        let start = batch.start;
        self.waiting.retain_mut(|gap| {
            let (before, after) = if gap.until <= end {
                let nothing = LossGap { samples: 0, ..*gap };
                (*gap, nothing)
            } else {
                gap.split(end)
            };
            if before.samples > 0 {
                let from = before.from.max(start).min(end);
                let until = before.until.max(from);
                // No more than wait; a batch takes its losses once, so this bounds it too.
                batch.losses.push(RawLoss {
                    from,
                    until,
                    samples: before.samples,
                    period: before.period,
                });
            }
            *gap = after;
            after.samples > 0
        });
        let weights = self
            .waiting
            .iter()
            .map(|gap| gap.samples.saturating_mul(gap.period));
        batch.lost_after = weights.fold(0, u64::saturating_add);
    }
}

fn join(gap: &mut LossGap, other: LossGap) {
    gap.from = gap.from.min(other.from);
    gap.until = gap.until.max(other.until);
    gap.period = mean_period((gap.samples, gap.period), (other.samples, other.period));
    gap.samples += other.samples;
}

/// The period that keeps the weight of both, to a part in the number of samples.
fn mean_period(one: (u64, u64), other: (u64, u64)) -> u64 {
    let weight = |(samples, period)| u128::from(samples) * u128::from(period);
    let samples = u128::from(one.0) + u128::from(other.0);
    ((weight(one) + weight(other)) / samples.max(1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gap(from: u64, until: u64, samples: u64) -> LossGap {
        LossGap {
            from: MonotonicTime(from),
            until: MonotonicTime(until),
            samples,
            period: 10,
        }
    }

    fn taken(losses: &mut Losses, start: u64, end: u64) -> RawBatch {
        let mut batch = RawBatch {
            start: MonotonicTime(start),
            ..RawBatch::default()
        };
        losses.take(MonotonicTime(end), &mut batch);
        batch
    }

    fn take(losses: &mut Losses, start: u64, end: u64) -> Vec<(u64, u64, u64)> {
        taken(losses, start, end)
            .losses
            .iter()
            .map(|l| (l.from.0, l.until.0, l.samples))
            .collect()
    }

    #[test]
    fn a_loss_over_three_windows_is_divided_by_time() {
        let mut losses = Losses::default();
        losses.add(gap(70, 230, 16));
        let first = taken(&mut losses, 0, 100);
        assert_eq!(first.losses[0].samples, 3);
        assert_eq!(first.lost_after, 13 * 10);
        assert_eq!(take(&mut losses, 100, 200), [(100, 200, 10)]);
        assert_eq!(take(&mut losses, 200, 300), [(200, 230, 3)]);
        assert_eq!(take(&mut losses, 300, 400), []);
    }

    #[test]
    fn a_loss_that_has_not_started_waits() {
        let mut losses = Losses::default();
        losses.add(gap(150, 160, 1));
        assert_eq!(take(&mut losses, 0, 100), []);
        assert_eq!(take(&mut losses, 100, 200), [(150, 160, 1)]);
    }

    #[test]
    fn a_loss_known_too_late_is_put_at_the_start() {
        let mut losses = Losses::default();
        losses.add(gap(50, 60, 7));
        assert_eq!(take(&mut losses, 100, 200), [(100, 100, 7)]);
    }

    #[test]
    fn more_losses_than_are_kept_apart_are_added_up() {
        let mut losses = Losses::default();
        for at in 0..LOSSES_MAX as u64 + 100 {
            losses.add(gap(at, at + 1, 2));
        }
        assert_eq!(losses.waiting.len(), LOSSES_MAX);
        let batch = take(&mut losses, 0, u64::MAX);
        assert_eq!(
            batch.iter().map(|loss| loss.2).sum::<u64>(),
            2 * (LOSSES_MAX as u64 + 100)
        );
    }

    proptest! {
        #[test]
        fn windows_anywhere_keep_totals_and_hold_only_their_own_time(
            gaps in proptest::collection::vec((0u64..1000, 1u64..500, 1u64..100), 0..20),
            mut ends in proptest::collection::vec(1u64..1400, 0..20),
        ) {
            let mut losses = Losses::default();
            for &(from, len, samples) in &gaps {
                losses.add(gap(from, from + len, samples));
            }
            ends.sort_unstable();
            ends.push(2000);
            let (mut start, mut total) = (0, 0);
            for end in ends {
                for (from, until, samples) in take(&mut losses, start, end) {
                    prop_assert!(start <= from && from <= until && until <= end);
                    total += samples;
                }
                start = end;
            }
            prop_assert_eq!(total, gaps.iter().map(|gap| gap.2).sum::<u64>());
        }
    }
}
