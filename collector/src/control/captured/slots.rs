//! When in a capture its samples were taken, in the steps that the stores have, too.
//!
//! Samples with times count in the step of their time. Those without (nobody wanted times, or there
//! was no room for them) are spread evenly over the time of the capture, in whole numbers: what
//! the steps have adds up to what the capture has.

use crate::query::WINDOW_NS;
use crate::store::TimeRange;
use hashbrown::HashMap;
use profile::{Info, Profile, SampleKey, Value};

/// Length of a step. Unit: nanoseconds.
const STEP: i64 = WINDOW_NS as i64;

/// Samples between looks at whether anybody still waits.
const SLICE: usize = 4096;

/// Memory for the sum of the times of a sample. Unit: bytes.
pub(super) const TIMED_BYTES: usize = 48;

/// The step of an instant, as its start.
fn step_of(at: i64) -> i64 {
    at.div_euclid(STEP).saturating_mul(STEP)
}

/// Calls `each` with a sample, the start of a step, and what it has there, several times for some.
/// `span`: when the capture ran; all its samples are in it. `check` ends it.
pub(super) fn each_step<E>(
    profile: &Profile,
    span: TimeRange,
    check: impl Fn() -> Result<(), E>,
    mut each: impl FnMut(SampleKey, i64, Value),
) -> Result<(), E> {
    let times = &profile.timestamps;
    let one = |weight| Value { count: 1, weight };
    let mut timed: HashMap<SampleKey, Value> = HashMap::new();
    for slice in times.list.chunks(SLICE) {
        check()?;
        for time in slice {
            *timed.entry(time.key).or_default() += one(time.weight);
        }
    }
    // Times that say more than the sum are not those of it.
    timed.retain(|key, sum| {
        let all = profile.samples.get(key).copied().unwrap_or_default();
        sum.count <= all.count && sum.weight <= all.weight
    });
    let last = span.end_unix_ns.saturating_sub(1).max(span.start_unix_ns);
    for slice in times.list.chunks(SLICE) {
        check()?;
        for time in slice.iter().filter(|time| timed.contains_key(&time.key)) {
            let after = i64::try_from(time.at_ns).unwrap_or(i64::MAX);
            let at = times.start_unix_ns.saturating_add(after);
            let at = at.clamp(span.start_unix_ns, last);
            each(time.key, step_of(at), one(time.weight));
        }
    }
    let sampled = sampled(&profile.info, span);
    for (at, (&key, all)) in profile.samples.iter().enumerate() {
        if at % SLICE == 0 {
            check()?;
        }
        let sum = timed.get(&key).copied().unwrap_or_default();
        let rest = Value {
            count: all.count - sum.count,
            weight: all.weight - sum.weight,
        };
        if rest != Value::default() {
            spread(rest, sampled, &check, |step, value| each(key, step, value))?;
        }
    }
    Ok(())
}

/// When samples were taken: less than the time in which hosts were asked and answered.
fn sampled(info: &Info, span: TimeRange) -> TimeRange {
    let length = i64::try_from(info.duration_ns).unwrap_or(i64::MAX);
    let end = info.start_unix_ns.saturating_add(length);
    let within = TimeRange {
        start_unix_ns: info.start_unix_ns.max(span.start_unix_ns),
        end_unix_ns: end.min(span.end_unix_ns),
    };
    match within.start_unix_ns < within.end_unix_ns {
        true => within,
        false => TimeRange {
            end_unix_ns: span.start_unix_ns.saturating_add(1),
            ..span
        },
    }
}

/// Divides a value over steps by time. What the first of them have together is rounded down, so the
/// sum of all is the value.
fn spread<E>(
    value: Value,
    over: TimeRange,
    check: impl Fn() -> Result<(), E>,
    mut each: impl FnMut(i64, Value),
) -> Result<(), E> {
    let until = |at: i64| u128::from(at.abs_diff(over.start_unix_ns));
    let length = until(over.end_unix_ns).max(1);
    let (mut before, mut from) = (Value::default(), over.start_unix_ns);
    for number in 0usize.. {
        if number % SLICE == SLICE - 1 {
            check()?;
        }
        let step = step_of(from);
        let to = step.saturating_add(STEP).min(over.end_unix_ns);
        let share = |all: u64| (u128::from(all) * until(to) / length) as u64;
        let sum = Value {
            count: share(value.count),
            weight: share(value.weight),
        };
        let part = Value {
            count: sum.count - before.count,
            weight: sum.weight - before.weight,
        };
        if part != Value::default() {
            each(step, part);
        }
        if to >= over.end_unix_ns {
            break;
        }
        (before, from) = (sum, to);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{FrameRef, StackEnd, StackId, Timestamp};
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    const SECOND: i64 = 1_000_000_000;

    fn seconds(from: i64, to: i64) -> TimeRange {
        TimeRange {
            start_unix_ns: from * SECOND,
            end_unix_ns: to * SECOND,
        }
    }

    /// A capture of one stack, from second `from` to `to` by its agents.
    fn captured(value: Value, (from, to): (i64, i64), times: &[(i64, u64)]) -> Profile {
        let mut profile = Profile::default();
        let frame = profile.dict.intern_frame(FrameRef::default());
        let key = SampleKey {
            labels: profile.dict.intern_labels([("comm", "c")]),
            stack: profile.dict.stacks.child(StackId::EMPTY, frame),
            end: StackEnd::Complete,
        };
        profile.add(key, value);
        profile.info.start_unix_ns = from * SECOND;
        profile.info.duration_ns = ((to - from) * SECOND) as u64;
        profile.timestamps.start_unix_ns = from * SECOND;
        let list = times.iter().map(|&(second, weight)| Timestamp {
            at_ns: ((second - from) * SECOND) as u64,
            key,
            weight,
        });
        profile.timestamps.list = list.collect();
        profile
    }

    /// Count and weight by second of the step's start.
    fn steps(profile: &Profile, span: TimeRange) -> Vec<(i64, u64, u64)> {
        let mut sums: BTreeMap<i64, Value> = BTreeMap::new();
        let all = each_step(
            profile,
            span,
            || Ok::<_, Infallible>(()),
            |_, step, value| *sums.entry(step / SECOND).or_default() += value,
        );
        all.expect("nobody ends it");
        let sums = sums.into_iter();
        sums.map(|(step, sum)| (step, sum.count, sum.weight))
            .collect()
    }

    fn value(count: u64, weight: u64) -> Value {
        Value { count, weight }
    }

    #[test]
    fn samples_count_in_the_step_of_their_time() {
        let profile = captured(value(3, 60), (105, 125), &[(105, 10), (112, 20), (119, 30)]);
        let found = steps(&profile, seconds(104, 126));
        assert_eq!(found, [(100, 1, 10), (110, 2, 50)]);
    }

    #[test]
    fn samples_without_times_are_spread_evenly_and_none_is_lost() {
        let profile = captured(value(1, 101), (105, 125), &[]);
        let found = steps(&profile, seconds(104, 126));
        assert_eq!(found, [(100, 0, 25), (110, 0, 50), (120, 1, 26)]);
    }

    #[test]
    fn where_some_times_were_left_out_the_rest_is_spread() {
        let profile = captured(value(3, 30), (100, 120), &[(101, 10)]);
        assert_eq!(
            steps(&profile, seconds(100, 120)),
            [(100, 2, 20), (110, 1, 10)]
        );
    }

    #[test]
    fn times_that_say_more_than_the_sum_are_not_believed() {
        let profile = captured(value(2, 20), (100, 120), &[(101, 900)]);
        assert_eq!(
            steps(&profile, seconds(100, 120)),
            [(100, 1, 10), (110, 1, 10)]
        );
    }

    #[test]
    fn a_capture_is_within_the_time_it_ran_whatever_its_agents_say() {
        let early = captured(value(2, 20), (5, 15), &[(5, 10)]);
        assert_eq!(steps(&early, seconds(100, 120)), [(100, 2, 20)]);
        let mut endless = captured(value(1, 20), (0, 1), &[]);
        endless.info.start_unix_ns = i64::MIN;
        endless.info.duration_ns = u64::MAX;
        assert_eq!(steps(&endless, seconds(100, 110)), [(100, 1, 20)]);
        let late = captured(value(1, 20), (900, 990), &[(910, 20)]);
        assert_eq!(steps(&late, seconds(100, 120)), [(110, 1, 20)]);
    }
}
