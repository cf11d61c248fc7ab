//! The set of stored windows of one boot of a host, by their numbers.
//!
//! Agents number windows by their start, in nanoseconds since boot, so numbers are a window's
//! length apart, with another offset after each start of an agent. So the set stores runs of equal
//! distance: one for each start of the agent and for each late window, whatever the number of
//! windows. A set of ranges would hold every window of every host for as long as its partition is
//! kept.

use super::codec::{Corrupt, Reader, encode_u64};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Stands where earlier versions had the number of ranges: they never wrote an empty set.
const NOT_AS_RANGES: u64 = 0;

/// Numbers `first`, `first + step`, and so on up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: u64,
    /// Distance of neighbours; of a single number 1, which it is not used for.
    step: u64,
}

/// Numbers of windows that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SequenceSet {
    /// By their first number. A run ends before the next one starts.
    runs: BTreeMap<u64, Run>,
}

impl SequenceSet {
    /// True when the number is there.
    pub fn contains(&self, number: u64) -> bool {
        let before = self.runs.range(..=number).next_back();
        before.is_some_and(|(&first, run)| {
            number <= run.last && (number - first).is_multiple_of(run.step)
        })
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u64) {
        if self.contains(number) {
            return;
        }
        let before = self.runs.range(..number).next_back();
        let around = before.map(|(&first, &run)| (first, run));
        let around = around.filter(|(_, run)| number < run.last);
        let single = |number| {
            (
                number,
                Run {
                    last: number,
                    step: 1,
                },
            )
        };
        self.runs.extend([single(number)]);
        let Some((first, run)) = around else {
            return self.settle(number);
        };
        // It lies between two of a run, which is cut there.
        let below = number - (number - first) % run.step;
        let above = below + run.step;
        for (first, last) in [(first, below), (above, run.last)] {
            let step = if first == last { 1 } else { run.step };
            self.runs.insert(first, Run { last, step });
        }
        for first in [number, above, first] {
            self.settle(first);
        }
    }

    /// Adds the numbers of another.
    pub fn merge(&mut self, other: &SequenceSet) {
        for (&first, run) in &other.runs {
            let adjoins = self.runs.last_key_value();
            if adjoins.is_none_or(|(_, known)| known.last < first) {
                self.runs.insert(first, *run);
                self.settle(first);
            } else {
                let numbers = (run.last - first) / run.step;
                (0..=numbers).for_each(|number| self.insert(first + number * run.step));
            }
        }
    }

    /// Keeps at most so many runs. Beyond it the two oldest become one, as if every number between
    /// them were there: a window that is that late is taken for a repeat.
    pub fn keep_runs(&mut self, most: usize) {
        while self.runs.len() > most.max(1)
            && let Some((first, _)) = self.runs.pop_first()
            && let Some((_, next)) = self.runs.pop_first()
        {
            let last = next.last;
            self.runs.insert(first, Run { last, step: 1 });
        }
    }

    /// Keeps at most so many runs, and forgets the oldest beyond it.
    pub fn forget_runs(&mut self, most: usize) {
        while self.runs.len() > most {
            self.runs.pop_first();
        }
    }

    /// Joins the run that starts at `first`, if one does, with its neighbours, nearer ones before
    /// others, as long as distances are equal.
    fn settle(&mut self, mut first: u64) {
        while let Some(&run) = self.runs.get(&first) {
            let before = self.runs.range(..first).next_back();
            let before = before.map(|(&start, &before)| (start, before, (first, run)));
            let after = self.runs.range((Bound::Excluded(first), Bound::Unbounded));
            let after = after.map(|(&start, &after)| (first, run, (start, after)));
            let pairs = before.into_iter().chain(after.take(1));
            let joined = pairs.filter_map(|(start, run, next)| {
                join((start, run), next).map(|joined| (next.0 - run.last, start, next.0, joined))
            });
            let Some((_, start, next, joined)) = joined.min_by_key(|&(distance, ..)| distance)
            else {
                return;
            };
            self.runs.remove(&next);
            self.runs.insert(start, joined);
            first = start;
        }
    }

    /// Appends the numbers: [`NOT_AS_RANGES`], then runs, each as the distance from the run before,
    /// how many numbers follow its first, and, where some do, their distance.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_u64(out, NOT_AS_RANGES);
        encode_u64(out, self.runs.len() as u64);
        let mut before = 0;
        for (&first, run) in &self.runs {
            encode_u64(out, first - before);
            let more = (run.last - first) / run.step;
            encode_u64(out, more);
            if more > 0 {
                encode_u64(out, run.step);
            }
            before = run.last;
        }
    }

    /// Reads what [`SequenceSet::encode`] wrote, or the ranges that earlier versions did.
    pub fn decode(input: &mut Reader<'_>) -> Result<SequenceSet, Corrupt> {
        let ranges = input.decode_u64()?;
        if ranges == NOT_AS_RANGES {
            return SequenceSet::decode_runs(input);
        }
        let mut seen = SequenceSet::default();
        for _ in 0..ranges {
            let first = input.decode_u64()?;
            let last = first
                .checked_add(input.decode_u64()?)
                .ok_or(Corrupt("a range of windows has no end"))?;
            let before = seen.runs.last_key_value();
            if before.is_some_and(|(_, run)| first <= run.last) {
                return Err(Corrupt("ranges of windows are out of order"));
            }
            seen.runs.insert(first, Run { last, step: 1 });
            seen.settle(first);
        }
        Ok(seen)
    }

    fn decode_runs(input: &mut Reader<'_>) -> Result<SequenceSet, Corrupt> {
        const NO_END: Corrupt = Corrupt("a run of windows has no end");
        let mut seen = SequenceSet::default();
        let mut before: u64 = 0;
        for at in 0..input.decode_count()? {
            let distance = input.decode_u64()?;
            if at > 0 && distance == 0 {
                return Err(Corrupt("runs of windows are out of order"));
            }
            let first = before.checked_add(distance).ok_or(NO_END)?;
            let more = input.decode_u64()?;
            let step = if more > 0 { input.decode_u64()? } else { 1 };
            if step == 0 {
                return Err(NO_END);
            }
            let len = more.checked_mul(step).ok_or(NO_END)?;
            let last = first.checked_add(len).ok_or(NO_END)?;
            seen.runs.insert(first, Run { last, step });
            before = last;
        }
        Ok(seen)
    }
}

/// Two neighbouring runs as one, where the distance between them is that within both.
fn join((first, run): (u64, Run), (next, after): (u64, Run)) -> Option<Run> {
    let step = next - run.last;
    let fits = |first: u64, run: Run| first == run.last || run.step == step;
    (fits(first, run) && fits(next, after)).then_some(Run {
        last: after.last,
        step,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_number_is_seen_when_it_was_inserted(
            numbers in prop::collection::vec(prop_oneof![0u64..30, Just(u64::MAX), Just(u64::MAX - 1)], 0..40)
        ) {
            let mut seen = SequenceSet::default();
            for &number in &numbers {
                seen.insert(number);
            }
            let mut bytes = Vec::new();
            seen.encode(&mut bytes);
            let read = SequenceSet::decode(&mut Reader::new(&bytes)).unwrap();
            for number in (0..32).chain([u64::MAX - 2, u64::MAX - 1, u64::MAX]) {
                prop_assert_eq!(seen.contains(number), numbers.contains(&number));
                prop_assert_eq!(read.contains(number), numbers.contains(&number));
            }
            let ends = seen.runs.iter().map(|(&first, run)| (first, run.last));
            let ends: Vec<_> = ends.collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?}", ends);
        }
    }

    const SECOND: u64 = 1_000_000_000;

    /// Windows of ten seconds of an agent that was started at a second of its own.
    fn of_agent(started: u64, windows: u64) -> impl Iterator<Item = u64> {
        (0..windows).map(move |number| started * SECOND + 123 + number * 10 * SECOND)
    }

    #[test]
    fn six_hours_of_an_agent_are_one_run() {
        let mut seen = SequenceSet::default();
        of_agent(40, 2160).for_each(|number| seen.insert(number));
        assert_eq!(seen.runs.len(), 1);
        let mut bytes = Vec::new();
        seen.encode(&mut bytes);
        let read = SequenceSet::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(read, seen);
    }

    #[test]
    fn each_start_of_an_agent_is_a_run_and_what_comes_late_leaves_none() {
        let mut seen = SequenceSet::default();
        let numbers: Vec<_> = of_agent(40, 500).chain(of_agent(9_007, 500)).collect();
        // A spool that is replayed next to new windows.
        let (late, new): (Vec<_>, Vec<_>) = numbers.iter().partition(|&&number| number / 7 % 5 < 2);
        new.into_iter()
            .chain(late)
            .for_each(|&number| seen.insert(number));
        assert_eq!(seen.runs.len(), 2);
        assert!(numbers.iter().all(|&number| seen.contains(number)));
        assert!(numbers.iter().all(|&number| !seen.contains(number + 1)));
    }

    #[test]
    fn runs_beyond_the_bound_become_one_and_no_number_is_forgotten() {
        let mut seen = SequenceSet::default();
        let numbers: Vec<_> = (1..60).flat_map(|at| of_agent(at * 1000, 3)).collect();
        for &number in &numbers {
            seen.insert(number);
            seen.keep_runs(8);
        }
        assert_eq!(seen.runs.len(), 8);
        assert!(numbers.iter().all(|&number| seen.contains(number)));
        assert!(!seen.contains(numbers[numbers.len() - 1] + 1));
    }

    #[test]
    fn a_day_of_an_agent_takes_a_few_bytes() {
        let mut seen = SequenceSet::default();
        of_agent(4_000_000, 8640).for_each(|number| seen.insert(number));
        let mut bytes = Vec::new();
        seen.encode(&mut bytes);
        assert!(bytes.len() <= 24, "{} bytes", bytes.len());
    }

    #[test]
    fn ranges_of_earlier_versions_are_read() {
        let mut bytes = Vec::new();
        for value in [3, 10, 2, 30, 0, 50, 0] {
            encode_u64(&mut bytes, value);
        }
        let read = SequenceSet::decode(&mut Reader::new(&bytes)).unwrap();
        let seen: Vec<_> = (0..60).filter(|&number| read.contains(number)).collect();
        assert_eq!(seen, [10, 11, 12, 30, 50]);
    }

    #[test]
    fn runs_that_cannot_be_are_damage() {
        let check = |values: &[u64]| {
            let mut bytes = Vec::new();
            values
                .iter()
                .for_each(|&value| encode_u64(&mut bytes, value));
            assert!(
                SequenceSet::decode(&mut Reader::new(&bytes)).is_err(),
                "{values:?}"
            );
        };
        check(&[0, 1]);
        check(&[0, 1, 5, 3, 0]);
        check(&[0, 2, 5, 0, 0, 0]);
        check(&[0, 1, 5, u64::MAX, 2]);
        check(&[0, 2, u64::MAX, 0, 1, 0]);
        check(&[0, 1 << 40]);
    }

    #[test]
    fn ranges_that_meet_become_one() {
        let mut seen = SequenceSet::default();
        [1, 3, 2].into_iter().for_each(|number| seen.insert(number));
        assert_eq!(seen.runs.len(), 1);
    }
}
