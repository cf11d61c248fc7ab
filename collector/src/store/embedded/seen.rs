//! Which windows of a boot of a host are there, by their numbers.
//!
//! Agents number windows by the time since boot at which they start, in nanoseconds, so numbers are
//! a window's length apart, and each start of an agent is another beginning. Kept are therefore
//! runs of equal distance: one for each start of the agent and for each window that was late,
//! whatever the number of windows. A set of ranges would hold every window of every host for as
//! long as its partition is kept.

use super::codec::{Damage, Reader, put};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Numbers `first`, `first + step`, and so on up to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    last: u64,
    /// Distance of neighbours; of a single number 1, which it is not used for.
    step: u64,
}

/// Numbers of windows that are there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// By their first number. A run ends before the next one starts.
    runs: BTreeMap<u64, Run>,
}

impl Seen {
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
    pub fn merge(&mut self, other: &Seen) {
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

    /// Appends the numbers, as ranges.
    pub fn put(&self, out: &mut Vec<u8>) {
        let ranges = |(&first, run): (&u64, &Run)| {
            let Run { last, step } = *run;
            let (count, len) = match step {
                1 => (1, last - first),
                step => ((last - first) / step + 1, 0),
            };
            (0..count).map(move |number| (first + number * step, len))
        };
        put(out, self.runs.iter().flat_map(ranges).count() as u64);
        for (first, len) in self.runs.iter().flat_map(ranges) {
            put(out, first);
            put(out, len);
        }
    }

    /// Reads what [`Seen::put`] wrote.
    pub fn take(input: &mut Reader<'_>) -> Result<Seen, Damage> {
        let mut seen = Seen::default();
        for _ in 0..input.take_count()? {
            let first = input.take()?;
            let last = first
                .checked_add(input.take()?)
                .ok_or(Damage("a range of windows has no end"))?;
            let before = seen.runs.last_key_value();
            if before.is_some_and(|(_, run)| first <= run.last) {
                return Err(Damage("ranges of windows are out of order"));
            }
            seen.runs.insert(first, Run { last, step: 1 });
            seen.settle(first);
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
            let mut seen = Seen::default();
            for &number in &numbers {
                seen.insert(number);
            }
            let mut bytes = Vec::new();
            seen.put(&mut bytes);
            let read = Seen::take(&mut Reader::new(&bytes)).unwrap();
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
        let mut seen = Seen::default();
        of_agent(40, 2160).for_each(|number| seen.insert(number));
        assert_eq!(seen.runs.len(), 1);
        let mut bytes = Vec::new();
        seen.put(&mut bytes);
        let read = Seen::take(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(read, seen);
    }

    #[test]
    fn each_start_of_an_agent_is_a_run_and_what_comes_late_leaves_none() {
        let mut seen = Seen::default();
        let numbers: Vec<_> = of_agent(40, 500).chain(of_agent(9_007, 500)).collect();
        // A spool that is replayed beside what is new.
        let (late, new): (Vec<_>, Vec<_>) = numbers.iter().partition(|&&number| number / 7 % 5 < 2);
        new.into_iter()
            .chain(late)
            .for_each(|&number| seen.insert(number));
        assert_eq!(seen.runs.len(), 2);
        assert!(numbers.iter().all(|&number| seen.contains(number)));
        assert!(numbers.iter().all(|&number| !seen.contains(number + 1)));
    }

    #[test]
    fn ranges_that_meet_become_one() {
        let mut seen = Seen::default();
        [1, 3, 2].into_iter().for_each(|number| seen.insert(number));
        assert_eq!(seen.runs.len(), 1);
    }
}
