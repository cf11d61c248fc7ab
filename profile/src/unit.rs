//! Units of weights, and the coarser units for answers over a large fleet.
//!
//! A weight has 64 bits, and many formats read it as signed: in nanoseconds that is 292 CPU-years,
//! which 1,000 hosts of 16 busy CPUs exceed in a week. A larger sum is given in a unit a thousand
//! times larger, which can express 292,000 CPU-years. Agents and stores use only the finer unit.

use crate::coverage::Coverage;
use crate::sample::Value;

/// CPU time, or time waited.
pub const TIME: &str = "nanoseconds";

/// Each unit that has a coarser one, [`COARSER_BY`] times as large.
const COARSER: [(&str, &str); 2] = [(TIME, "microseconds"), ("cycles", "kilocycles")];

/// How many of a unit one of its coarser one is.
pub const COARSER_BY: u64 = 1000;

/// The largest weight that every format can hold: most read it as a signed number. Larger sums are
/// given in the coarser unit.
pub const WEIGHT_MAX: u64 = i64::MAX as u64;

/// The coarser unit of a unit; `None`: it has none.
pub fn coarser(unit: &str) -> Option<&'static str> {
    let mut known = COARSER.iter();
    known.find(|(fine, _)| *fine == unit).map(|pair| pair.1)
}

/// The unit that agents weigh in, and how many of it one of `unit` is.
pub fn base(unit: &str) -> (&str, u64) {
    match COARSER.iter().find(|(_, coarse)| *coarse == unit) {
        Some((fine, _)) => (fine, COARSER_BY),
        None => (unit, 1),
    }
}

/// How many nanoseconds one of a unit is; `None` of a unit that is no time.
pub fn time_unit_ns(unit: &str) -> Option<u64> {
    let (base, by) = base(unit);
    (base == TIME).then_some(by)
}

/// True for units of time.
pub fn is_time(unit: &str) -> bool {
    time_unit_ns(unit).is_some()
}

/// A weight in the coarser unit, rounded to the nearest: it is off by half of that unit at most. A
/// sum that ended at the largest number stays there ([`Value::is_capped`]): nobody knows what it
/// is.
pub fn rescaled(weight: u64) -> u64 {
    if weight == u64::MAX {
        return weight;
    }
    weight / COARSER_BY + u64::from(weight % COARSER_BY >= COARSER_BY / 2)
}

impl Value {
    /// The same in the coarser unit.
    pub fn rescaled(self) -> Value {
        Value {
            count: self.count,
            weight: rescaled(self.weight),
        }
    }
}

impl Coverage {
    /// The same with its times in the coarser unit.
    pub fn rescaled(self) -> Coverage {
        Coverage {
            expected_ns: rescaled(self.expected_ns),
            estimated_ns: rescaled(self.estimated_ns),
            taken_ns: rescaled(self.taken_ns),
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Profile, equalize};
    use crate::{LabelSetId, SampleKey, StackEnd, StackId};

    #[test]
    fn units_know_their_coarser_one_and_back() {
        assert_eq!(coarser("nanoseconds"), Some("microseconds"));
        assert_eq!(coarser("microseconds"), None);
        assert_eq!(coarser("page-faults"), None);
        assert_eq!(base("microseconds"), ("nanoseconds", 1000));
        assert_eq!(base("kilocycles"), ("cycles", 1000));
        assert_eq!(base("page-faults"), ("page-faults", 1));
        let times = ["nanoseconds", "microseconds", "kilocycles", ""].map(time_unit_ns);
        assert_eq!(times, [Some(1), Some(1000), None, None]);
    }

    #[test]
    fn weights_are_rounded_to_the_nearest() {
        let of = [0, 499, 500, 1499, 1500, u64::MAX - 1].map(rescaled);
        assert_eq!(of, [0, 0, 1, 1, 2, 18_446_744_073_709_552]);
    }

    #[test]
    fn a_sum_that_is_not_known_stays_so() {
        assert_eq!(rescaled(u64::MAX), u64::MAX);
    }

    fn profile(unit: &str, weight: u64) -> Profile {
        let mut profile = Profile::default();
        unit.clone_into(&mut profile.info.unit);
        profile.info.period = 10_101_010;
        let key = SampleKey {
            labels: LabelSetId::default(),
            stack: StackId::EMPTY,
            end: StackEnd::Complete,
        };
        profile.add(key, Value { count: 2, weight });
        profile
    }

    #[test]
    fn the_finer_of_two_profiles_takes_the_unit_of_the_coarser() {
        let units = |left: &Profile, right: &Profile| {
            let unit = |profile: &Profile| (profile.info.unit.clone(), profile.total().weight);
            [unit(left), unit(right)]
        };
        let of = |unit: &str, weight| (unit.to_owned(), weight);
        let mut fine = profile("nanoseconds", 7_600);
        let mut coarse = profile("microseconds", 90);
        equalize(&mut fine, &mut coarse);
        let both = [of("microseconds", 8), of("microseconds", 90)];
        assert_eq!(units(&fine, &coarse), both);
        assert_eq!((fine.info.period, coarse.info.period), (10_101, 10_101_010));
        let mut fine = profile("cycles", 7_600);
        equalize(&mut coarse, &mut fine);
        let both = [of("microseconds", 90), of("cycles", 7_600)];
        assert_eq!(units(&coarse, &fine), both);
    }
}
