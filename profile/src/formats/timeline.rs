//! A profile as events in order of time, for formats that know nothing else.
//!
//! Samples with a stored time are placed at it. The others are spread evenly over the time before
//! the first stored time, or over all of the profile's time: equal stacks next to each other, so
//! that nothing looks like an observed order. Writers say how many of each there are.

use crate::profile::Profile;
use crate::sample::{SampleKey, Value};
use crate::unit::time_unit_ns;
use hashbrown::HashMap;

/// About the most events that samples without a moment become. Beyond, each stands for several
/// samples, and their sums stay right. A million events are some 100 MB of text.
pub(super) const SPREAD_EVENTS_MAX: u64 = 1_000_000;

/// Time that an event is given where nothing is known of any time. Unit: nanoseconds.
const EVENT_NS: u64 = 1_000_000;

/// Samples of one key at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Unit: nanoseconds since [`Timeline::start_unix_ns`].
    pub at_ns: u64,
    pub key: SampleKey,
    pub value: Value,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Timeline {
    /// Start, nanoseconds since the Unix epoch.
    pub start_unix_ns: i64,
    /// Oldest first.
    pub events: Vec<Event>,
    /// Samples that stand at their own time.
    pub timed: u64,
    /// Samples that were spread.
    pub spread: u64,
}

impl Timeline {
    pub fn of(profile: &Profile) -> Timeline {
        let (info, timestamps) = (&profile.info, &profile.timestamps);
        let mut timed: HashMap<SampleKey, Value> = HashMap::new();
        for timestamp in &timestamps.list {
            *timed.entry(timestamp.key).or_default() += Value {
                count: 1,
                weight: timestamp.weight,
            };
        }
        let rest: Vec<(SampleKey, Value)> = profile
            .sorted()
            .into_iter()
            .map(|(key, value)| {
                let known = timed.get(&key).copied().unwrap_or_default();
                let left = Value {
                    count: value.count.saturating_sub(known.count),
                    weight: value.weight.saturating_sub(known.weight),
                };
                (key, left)
            })
            .filter(|(_, left)| left.count > 0)
            .collect();
        let start = match timestamps.is_absent() {
            true => info.start_unix_ns,
            false => info.start_unix_ns.min(timestamps.start_unix_ns),
        };
        let behind = |at: i64| u64::try_from(i128::from(at) - i128::from(start)).unwrap_or(0);
        let mut timeline = Timeline {
            start_unix_ns: start,
            ..Timeline::default()
        };
        // What the recorder had no times of any more is older than what it has; what found no room
        // for its time may be of any.
        let room = match behind(timestamps.start_unix_ns) {
            before if before > 0 && !timestamps.is_absent() && timestamps.dropped == 0 => before,
            _ => info.duration_ns,
        };
        timeline.spread(&rest, room, time_unit_ns(&info.unit));
        let first = behind(timestamps.start_unix_ns);
        for timestamp in &timestamps.list {
            timeline.timed += 1;
            timeline.events.push(Event {
                at_ns: first.saturating_add(timestamp.at_ns),
                key: timestamp.key,
                value: Value {
                    count: 1,
                    weight: timestamp.weight,
                },
            });
        }
        timeline.events.sort_by_key(|event| event.at_ns);
        timeline
    }

    fn spread(&mut self, rest: &[(SampleKey, Value)], room_ns: u64, unit_ns: Option<u64>) {
        let total = rest.iter().fold(Value::default(), |mut sum, &(_, value)| {
            sum += value;
            sum
        });
        self.spread = total.count;
        let samples_each = total.count.div_ceil(SPREAD_EVENTS_MAX).max(1);
        let count = |value: &Value| value.count.div_ceil(samples_each);
        let events: u64 = rest.iter().map(|(_, value)| count(value)).sum();
        let room_ns = match (room_ns, unit_ns) {
            (0, Some(unit_ns)) => total.weight.saturating_mul(unit_ns),
            (0, None) => events.saturating_mul(EVENT_NS),
            (room, _) => room,
        };
        let part = |whole: u64, at: u64, of: u64| {
            let to = u128::from(whole) * u128::from(at) / u128::from(of.max(1));
            u64::try_from(to).unwrap_or(u64::MAX)
        };
        let mut before = 0;
        for &(key, value) in rest {
            let own = count(&value);
            for at in 0..own {
                let share = |whole| part(whole, at + 1, own) - part(whole, at, own);
                self.events.push(Event {
                    at_ns: part(room_ns, before + at, events),
                    key,
                    value: Value {
                        count: share(value.count),
                        weight: share(value.weight),
                    },
                });
            }
            before += own;
        }
    }

    /// A note about the times for readers.
    pub fn note(&self) -> String {
        use crate::text::grouped;
        match (self.timed, self.spread) {
            (timed, 0) => format!("{} samples at the times they were taken", grouped(timed)),
            (0, spread) => format!(
                "{} samples spread evenly over the time covered: when each was taken is not known",
                grouped(spread)
            ),
            (timed, spread) => format!(
                "{} samples at the times they were taken, {} others spread evenly: when each was \
                 taken is not known",
                grouped(timed),
                grouped(spread)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FrameKind, FrameRef, StackEnd, StackId, Timestamp};

    fn profile(stacks: &[(&str, u64)]) -> Profile {
        let mut profile = Profile::default();
        profile.info.start_unix_ns = 1_000;
        profile.info.duration_ns = 100;
        for &(function, count) in stacks {
            let frame = profile.dict.intern_frame(FrameRef {
                kind: FrameKind::Native,
                function,
                ..FrameRef::default()
            });
            let key = SampleKey {
                labels: Default::default(),
                stack: profile.dict.stacks.child(StackId::EMPTY, frame),
                end: StackEnd::Complete,
            };
            let weight = count * 10 + 1;
            profile.add(key, Value { count, weight });
        }
        profile
    }

    fn times(timeline: &Timeline) -> Vec<(u64, u64, u64)> {
        let all = timeline.events.iter();
        all.map(|event| (event.at_ns, event.value.count, event.value.weight))
            .collect()
    }

    #[test]
    fn without_moments_samples_are_spread_and_sums_stay() {
        let timeline = Timeline::of(&profile(&[("a", 3), ("b", 1)]));
        assert_eq!(
            times(&timeline),
            [(0, 1, 10), (25, 1, 10), (50, 1, 11), (75, 1, 11)]
        );
        assert_eq!((timeline.timed, timeline.spread), (0, 4));
    }

    #[test]
    fn what_has_no_moment_stands_before_those_that_have() {
        let mut profile = profile(&[("a", 3)]);
        let (key, _) = profile.sorted()[0];
        profile.timestamps.start_unix_ns = 1_080;
        profile.timestamps.duration_ns = 20;
        profile.timestamps.list = vec![Timestamp {
            at_ns: 5,
            key,
            weight: 10,
        }];
        let timeline = Timeline::of(&profile);
        assert_eq!(times(&timeline), [(0, 1, 10), (40, 1, 11), (85, 1, 10)]);
        assert_eq!((timeline.timed, timeline.spread), (1, 2));
    }

    #[test]
    fn many_samples_share_events() {
        let count = SPREAD_EVENTS_MAX * 3 + 1;
        let timeline = Timeline::of(&profile(&[("a", count), ("b", 1)]));
        assert!(timeline.events.len() as u64 <= SPREAD_EVENTS_MAX + 2);
        let sum: u64 = timeline.events.iter().map(|event| event.value.count).sum();
        let weight: u64 = timeline.events.iter().map(|event| event.value.weight).sum();
        assert_eq!((sum, weight), (count + 1, count * 10 + 12));
    }

    #[test]
    fn numbers_at_their_limits_do_not_overflow() {
        let mut profile = profile(&[("a", 1)]);
        let (key, _) = profile.sorted()[0];
        profile.info.start_unix_ns = i64::MIN;
        profile.info.duration_ns = u64::MAX;
        profile.samples.insert(
            key,
            Value {
                count: u64::MAX,
                weight: u64::MAX,
            },
        );
        profile.timestamps.start_unix_ns = i64::MAX;
        profile.timestamps.duration_ns = u64::MAX;
        profile.timestamps.list = vec![Timestamp {
            at_ns: u64::MAX,
            key,
            weight: u64::MAX,
        }];
        let timeline = Timeline::of(&profile);
        assert_eq!(timeline.spread, u64::MAX - 1);
    }
}
