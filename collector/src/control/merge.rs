//! Merges the profiles of hosts into one: adds the labels of hosts, aligns times, and bounds
//! memory.
//!
//! Merging takes CPU time, so it runs on a blocking thread, one host after the other, as they
//! arrive.

use super::limits::{
    CLOCK_SLACK_NS, RESULT_BYTES_MAX, TIMES_PART, TIMESTAMP_BYTES, TIMESTAMPS_MAX,
};
use crate::ingest::limits::CLOCK_WARNING_NS;
use crate::memory::Reservation;
use profile::{LabelSetId, Profile, SampleKey, Timestamps, Value};
use proto::Rows;
use std::collections::HashMap;

/// How far windows of a recorder may reach beyond the time that was asked for: its coarsest step,
/// with room to spare. Unit: nanoseconds.
const PAST_SLACK_NS: i64 = 3_600_000_000_000;

/// The complete profile of one host, or of another collector's hosts.
pub struct Arrived {
    /// The flight recorder's profile.
    pub past: Option<Profile>,
    /// The capture's profile.
    pub own: Option<Profile>,
    /// Labels of the host that the result is grouped by.
    pub labels: Vec<(String, String)>,
    /// By how much the host's clock is ahead. Unit: nanoseconds.
    pub clock_ahead_ns: i64,
    /// The memory of it, given back when it is merged.
    pub held: Reservation,
}

/// When a fan-out runs, on the collector's clock.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it started. Unit: nanoseconds since the Unix epoch.
    pub started_unix_ns: i64,
    /// The past that was asked for. Unit: nanoseconds.
    pub before_ns: i64,
    /// Now. Unit: nanoseconds since the Unix epoch.
    pub now_unix_ns: i64,
}

/// How large a result may be.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Memory of all results together. Unit: bytes.
    pub memory_bytes: usize,
    /// Most times of samples, past and capture each.
    pub timestamps: usize,
    /// Largest profile, past and capture each. Unit: encoded bytes.
    pub encoded_bytes: usize,
}

impl Bounds {
    /// Bounds for results that may use this much memory together.
    pub fn of(memory_bytes: usize) -> Bounds {
        Bounds {
            memory_bytes,
            timestamps: (memory_bytes / TIMES_PART / TIMESTAMP_BYTES).min(TIMESTAMPS_MAX),
            encoded_bytes: RESULT_BYTES_MAX,
        }
    }
}

/// All that came so far.
pub struct Merged {
    /// The flight recorders' profiles, merged.
    pub past: Option<Profile>,
    /// The captures' profiles, merged.
    pub own: Option<Profile>,
    /// Samples whose times did not fit.
    pub times_shed: u64,
    /// The memory of it.
    pub held: Reservation,
    bounds: Bounds,
}

/// Why a host's profile is not in the result.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// There is no memory for it.
    #[error(
        "no memory to merge the profile of the host: results share {mib} MiB (`query.memory_mib`); \
         capture fewer hosts, or for a shorter time"
    )]
    Memory {
        /// The bound.
        mib: usize,
    },
    /// The client could not accept it.
    #[error(
        "no room to merge the profile of the host: a result may take {mib} MiB; capture fewer \
         hosts, or group by fewer labels"
    )]
    Large {
        /// The bound.
        mib: usize,
    },
    /// It weighs another thing.
    #[error(transparent)]
    Units(#[from] profile::MergeError),
}

impl Merged {
    /// Creates it empty, in memory of `held`.
    pub fn new(held: Reservation, bounds: Bounds) -> Merged {
        Merged {
            past: None,
            own: None,
            times_shed: 0,
            held,
            bounds,
        }
    }

    /// Takes a host in. What its reader must know is added to `notices`. Where there is not room
    /// for all, times are left out; samples never are.
    ///
    /// # Errors
    /// When it cannot be taken; nothing of it is in the result then.
    pub fn take(
        &mut self,
        mut arrived: Arrived,
        span: Span,
        notices: &mut Vec<String>,
    ) -> Result<(), MergeError> {
        set_clock_right(&mut arrived, span, notices);
        let sides = [&mut arrived.past, &mut arrived.own];
        for profile in sides.into_iter().flatten() {
            label(profile, &arrived.labels);
        }
        let merged = self.fit(&mut arrived).and_then(|shed| {
            self.merge(&arrived)?;
            Ok(shed)
        });
        self.settle();
        let shed = merged?;
        if shed > 0 {
            self.times_shed = self.times_shed.saturating_add(shed);
            notices.push(format!(
                "the result has no room for the times of {shed} samples: they are left out"
            ));
        }
        Ok(())
    }

    /// Makes room for a host, by leaving out times where it takes that: those of the host first,
    /// how many of which is returned, then those that are there; of each the time before first. Its
    /// memory is held then.
    fn fit(&mut self, arrived: &mut Arrived) -> Result<u64, MergeError> {
        let shed = self.fit_encoded(arrived)?;
        if self.reserve(arrived) {
            return Ok(shed);
        }
        let mut shed = shed + drop_times(&mut arrived.past);
        if self.reserve(arrived) {
            return Ok(shed);
        }
        shed += drop_times(&mut arrived.own);
        if self.reserve(arrived) {
            return Ok(shed);
        }
        let mib = self.bounds.memory_bytes >> 20;
        let mine = (times(&self.past) + times(&self.own)) * TIMESTAMP_BYTES;
        if !self
            .held
            .has_room(arrived.held.bytes().saturating_sub(mine))
        {
            return Err(MergeError::Memory { mib });
        }
        for side in [&mut self.past, &mut self.own] {
            self.times_shed = self.times_shed.saturating_add(drop_times(side));
        }
        self.settle();
        match self.reserve(arrived) {
            true => Ok(shed),
            false => Err(MergeError::Memory { mib }),
        }
    }

    /// Bounds what readers of the result accept, for each side.
    fn fit_encoded(&mut self, arrived: &mut Arrived) -> Result<u64, MergeError> {
        let Bounds {
            timestamps,
            encoded_bytes,
            ..
        } = self.bounds;
        let large = |mine: Rows, theirs: &Option<Profile>| {
            mine.and(rows(theirs)).encoded_bytes_max() > encoded_bytes
        };
        let mut shed = 0;
        let sides = [
            (&mut self.past, &mut arrived.past),
            (&mut self.own, &mut arrived.own),
        ];
        for (mine, theirs) in sides {
            if times(mine) + times(theirs) > timestamps || large(rows(mine), theirs) {
                shed += drop_times(theirs);
            }
            if !large(rows(mine), theirs) {
                continue;
            }
            if large(rows(mine).without_times(), theirs) {
                let mib = encoded_bytes >> 20;
                return Err(MergeError::Large { mib });
            }
            self.times_shed = self.times_shed.saturating_add(drop_times(mine));
        }
        Ok(shed)
    }

    /// Reserves as much memory for a host as it already takes: the merged profile grows by that at
    /// most, except for tables that double.
    fn reserve(&mut self, arrived: &mut Arrived) -> bool {
        let bytes = heap_bytes(&arrived.past) + heap_bytes(&arrived.own);
        arrived.held.settle(bytes);
        self.held.grow(bytes)
    }

    /// Holds what is there.
    fn settle(&mut self) {
        let bytes = heap_bytes(&self.past) + heap_bytes(&self.own);
        self.held.settle(bytes);
    }

    /// Both or neither: units are looked at before anything is added.
    fn merge(&mut self, arrived: &Arrived) -> Result<(), MergeError> {
        let sides = [
            (&mut self.past, &arrived.past),
            (&mut self.own, &arrived.own),
        ];
        for (mine, theirs) in &sides {
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                mine.info.clone().merge(&theirs.info)?;
            }
        }
        for (mine, theirs) in sides {
            if let Some(theirs) = theirs {
                let mine = mine.get_or_insert_with(Profile::default);
                // Times are the most of it: they do not double.
                mine.timestamps
                    .list
                    .reserve_exact(theirs.timestamps.list.len());
                mine.merge(theirs)?;
            }
        }
        Ok(())
    }
}

/// Memory of a profile until it is sent, about: a sample stands in its table and once more in the
/// order it is sent. Unit: bytes.
fn heap_bytes(profile: &Option<Profile>) -> usize {
    profile.as_ref().map_or(0, |profile| {
        let timestamps = profile.timestamps.list.capacity();
        profile.heap_bytes() - profile.timestamps.heap_bytes()
            + timestamps * TIMESTAMP_BYTES
            + profile.samples.len() * size_of::<(SampleKey, Value)>()
    })
}

fn rows(profile: &Option<Profile>) -> Rows {
    profile.as_ref().map_or_else(Rows::default, Rows::of)
}

fn times(profile: &Option<Profile>) -> usize {
    let list = profile.as_ref().map(|profile| &profile.timestamps.list);
    list.map_or(0, Vec::len)
}

/// Leaves out when samples were taken: how many there were.
fn drop_times(profile: &mut Option<Profile>) -> u64 {
    let timestamps = profile.as_mut().map(|profile| &mut profile.timestamps);
    timestamps.map_or(0, Timestamps::shed)
}

/// Moves the times of a host to the collector's clock.
fn set_clock_right(arrived: &mut Arrived, span: Span, notices: &mut Vec<String>) {
    let ahead = arrived.clock_ahead_ns;
    let ahead = if ahead.unsigned_abs() >= CLOCK_WARNING_NS.unsigned_abs() {
        let seconds = ahead.unsigned_abs() as f64 / 1e9;
        let side = if ahead > 0 { "ahead of" } else { "behind" };
        notices.push(format!(
            "the clock of the host is {seconds:.1} s {side} the collector's: its sample times were \
             corrected"
        ));
        ahead
    } else {
        0
    };
    let from = span.started_unix_ns.saturating_sub(CLOCK_SLACK_NS);
    if let Some(own) = &mut arrived.own {
        set_right(own, ahead, (from, span.now_unix_ns), notices);
    }
    let from = span
        .started_unix_ns
        .saturating_sub(span.before_ns)
        .saturating_sub(PAST_SLACK_NS);
    if let Some(past) = &mut arrived.past {
        set_right(past, ahead, (from, span.now_unix_ns), notices);
    }
}

/// Moves a profile's times by what the host's clock is ahead. Times that are not of this capture
/// all the same would stretch the result over years: they are left out.
fn set_right(
    profile: &mut Profile,
    ahead_ns: i64,
    (from, until): (i64, i64),
    notices: &mut Vec<String>,
) {
    let until = until.saturating_add(CLOCK_SLACK_NS);
    let within = |start: i64, duration: u64| {
        let end = i128::from(start) + i128::from(duration);
        start >= from && end <= i128::from(until)
    };
    let info = &mut profile.info;
    let mut wrong = false;
    if info.start_unix_ns != 0 || info.duration_ns != 0 {
        info.start_unix_ns = info.start_unix_ns.saturating_sub(ahead_ns);
        if !within(info.start_unix_ns, info.duration_ns) {
            (info.start_unix_ns, info.duration_ns) = (0, 0);
            wrong = true;
        }
    }
    let timestamps = &mut profile.timestamps;
    if !timestamps.is_absent() {
        timestamps.start_unix_ns = timestamps.start_unix_ns.saturating_sub(ahead_ns);
        let last = timestamps
            .list
            .last()
            .map_or(0, |timestamp| timestamp.at_ns);
        if !within(timestamps.start_unix_ns, timestamps.duration_ns.max(last)) {
            *timestamps = Timestamps::default();
            wrong = true;
        }
    }
    if wrong {
        notices.push(
            "the clock of the host is wrong: the times of its samples are left \
            out"
            .to_owned(),
        );
    }
}

/// Puts labels on every sample.
fn label(profile: &mut Profile, labels: &[(String, String)]) {
    if labels.is_empty() {
        return;
    }
    let dict = &mut profile.dict;
    let mut known: HashMap<LabelSetId, LabelSetId> = HashMap::new();
    let mut with = |id: LabelSetId| {
        *known.entry(id).or_insert_with(|| {
            let own = dict.labels(id);
            let own: Vec<_> = own.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            // If names are equal, the first wins: nothing that an agent sends replaces what its
            // host is.
            let all = labels.iter().chain(&own);
            dict.intern_labels(all.map(|(name, value)| (name.as_str(), value.as_str())))
        })
    };
    let samples = std::mem::take(&mut profile.samples);
    let mut moved = Vec::with_capacity(samples.len());
    for (mut key, value) in samples {
        key.labels = with(key.labels);
        moved.push((key, value));
    }
    for timestamp in &mut profile.timestamps.list {
        timestamp.key.labels = with(timestamp.key.labels);
    }
    for (key, value) in moved {
        profile.add(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryPool;
    use profile::{FrameRef, StackEnd, StackId, Timestamp};
    use proptest::prelude::*;
    use std::sync::Arc;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const SECOND: i64 = 1_000_000_000;
    const SPAN: Span = Span {
        started_unix_ns: NOW - 10 * SECOND,
        before_ns: 0,
        now_unix_ns: NOW,
    };

    /// Ten seconds of a host, a sample of `function` each second with its time.
    fn host(function: &str, start: i64) -> Profile {
        let mut profile = Profile::default();
        let frame = profile.dict.intern_frame(FrameRef {
            function,
            ..FrameRef::default()
        });
        let key = SampleKey {
            labels: profile.dict.intern_labels([("comm", function)]),
            stack: profile.dict.stacks.child(StackId::EMPTY, frame),
            end: StackEnd::Complete,
        };
        for second in 0..10 {
            profile.add(
                key,
                Value {
                    count: 1,
                    weight: 7,
                },
            );
            profile.timestamps.list.push(Timestamp {
                at_ns: second * SECOND as u64,
                key,
                weight: 7,
            });
        }
        profile.info.unit = "nanoseconds".to_owned();
        (profile.info.start_unix_ns, profile.info.duration_ns) = (start, 10 * SECOND as u64);
        profile.timestamps.start_unix_ns = start;
        profile.timestamps.duration_ns = 10 * SECOND as u64;
        profile
    }

    fn merged(memory: &Arc<MemoryPool>) -> Merged {
        Merged::new(memory.reserve(), Bounds::of(memory.bytes_max()))
    }

    fn memory(bytes: usize) -> Arc<MemoryPool> {
        MemoryPool::new(bytes, Arc::default(), |m| &m.control_bytes)
    }

    fn arrived(own: Profile, memory: &Arc<MemoryPool>) -> Arrived {
        Arrived {
            past: None,
            own: Some(own),
            labels: vec![("host".to_owned(), "web-1".to_owned())],
            clock_ahead_ns: 0,
            held: memory.reserve(),
        }
    }

    #[test]
    fn hosts_become_one_profile_with_their_labels_on_it() {
        let memory = memory(1 << 20);
        let mut merged = merged(&memory);
        let mut notices = Vec::new();
        let mut lies = host("a", NOW - 9 * SECOND);
        lies.dict.intern_labels([("host", "another")]);
        for one in [lies, host("b", NOW - 10 * SECOND)] {
            merged
                .take(arrived(one, &memory), SPAN, &mut notices)
                .expect("room");
        }
        let own = merged.own.expect("a profile");
        assert_eq!(own.total().count, 20);
        assert_eq!(own.timestamps.list.len(), 20);
        assert_eq!(own.timestamps.start_unix_ns, NOW - 10 * SECOND);
        for key in own.samples.keys() {
            assert_eq!(own.dict.label(key.labels, "host"), Some("web-1"));
        }
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn a_clock_that_is_known_to_be_wrong_is_set_right() {
        let memory = memory(1 << 20);
        let mut merged = merged(&memory);
        let mut notices = Vec::new();
        let mut late = arrived(host("a", NOW + 90 * SECOND), &memory);
        late.clock_ahead_ns = 100 * SECOND;
        merged.take(late, SPAN, &mut notices).expect("room");
        let own = merged.own.expect("a profile");
        assert_eq!(own.timestamps.start_unix_ns, NOW - 10 * SECOND);
        assert_eq!(own.info.start_unix_ns, NOW - 10 * SECOND);
        assert_eq!(notices.len(), 1);
    }

    #[test]
    fn times_of_another_time_are_left_out_and_the_samples_are_not() {
        for start in [1, i64::MIN, i64::MAX, NOW - 3600 * SECOND] {
            let memory = memory(1 << 20);
            let mut merged = merged(&memory);
            let mut notices = Vec::new();
            merged
                .take(arrived(host("a", start), &memory), SPAN, &mut notices)
                .expect("room");
            merged
                .take(
                    arrived(host("b", NOW - 10 * SECOND), &memory),
                    SPAN,
                    &mut notices,
                )
                .expect("room");
            let own = merged.own.expect("a profile");
            assert_eq!((own.total().count, own.timestamps.list.len()), (20, 10));
            assert_eq!(own.info.start_unix_ns, NOW - 10 * SECOND);
            assert_eq!(own.info.duration_ns, 10 * SECOND as u64);
            assert_eq!(notices.len(), 1);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_whole() {
        let bare = |function: &str| {
            let mut bare = host(function, NOW - 10 * SECOND);
            bare.timestamps.list = Vec::new();
            bare
        };
        let memory = memory(heap_bytes(&Some(bare("a"))) * 3);
        let mut merged = merged(&memory);
        let mut notices = Vec::new();
        let mut taken = 0;
        let mut take =
            |function: &str| merged.take(arrived(bare(function), &memory), SPAN, &mut notices);
        // The first fits; of different ones there is an end.
        for function in ["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"] {
            match take(function) {
                Ok(()) => taken += 10,
                Err(error) => assert!(matches!(error, MergeError::Memory { .. }), "{error}"),
            }
        }
        let own = merged.own.expect("a profile");
        assert!(taken > 0 && taken < 70, "{taken}");
        assert_eq!(own.total().count, taken);
    }

    #[test]
    fn another_unit_adds_nothing_of_either_side() {
        let memory = memory(1 << 20);
        let mut merged = merged(&memory);
        let mut notices = Vec::new();
        merged
            .take(
                arrived(host("a", NOW - 10 * SECOND), &memory),
                SPAN,
                &mut notices,
            )
            .expect("room");
        let mut cycles = host("b", NOW - 10 * SECOND);
        cycles.info.unit = "cycles".to_owned();
        let mut other = arrived(cycles, &memory);
        other.past = Some(host("c", NOW - 10 * SECOND));
        let refused = merged.take(other, SPAN, &mut notices);
        assert!(matches!(refused, Err(MergeError::Units(_))));
        assert!(merged.past.is_none());
        assert_eq!(merged.own.expect("a profile").total().count, 10);
    }

    /// One of `functions` in order, with times of so many of its samples.
    fn sampled(functions: &[u8], times: usize) -> Profile {
        let mut profile = host("main", NOW - 10 * SECOND);
        for (at, function) in functions.iter().enumerate() {
            let text = "f".repeat(usize::from(*function) + 1);
            let frame = profile.dict.intern_frame(FrameRef {
                function: &text,
                ..FrameRef::default()
            });
            let key = SampleKey {
                labels: profile.dict.intern_labels([("comm", text.as_str())]),
                stack: profile.dict.stacks.child(StackId::EMPTY, frame),
                end: StackEnd::Complete,
            };
            let weight = u64::from(*function);
            profile.add(key, Value { count: 1, weight });
            if at < times {
                let at_ns = 10 * SECOND as u64 - 1;
                profile
                    .timestamps
                    .list
                    .push(Timestamp { at_ns, key, weight });
            }
        }
        profile
    }

    fn encoded(profile: &Profile) -> usize {
        let chunks = proto::Chunks::new(profile);
        chunks
            .map(|chunk| prost::Message::encoded_len(&chunk))
            .sum()
    }

    proptest! {
        /// Whatever comes: what is asked of readers stays within its bounds, of the hosts that are
        /// taken no sample is missing, and every time is there or counted.
        #[test]
        fn times_give_way_and_samples_do_not(
            hosts in prop::collection::vec(
                (prop::collection::vec(any::<u8>(), 0..60), 0usize..60, any::<bool>()),
                1..8,
            ),
            memory_bytes in 1usize << 12..1 << 16,
            timestamps in 0usize..120,
            encoded_bytes in 500usize..12_000,
        ) {
            let memory = memory(memory_bytes);
            let bounds = Bounds { memory_bytes, timestamps, encoded_bytes };
            let mut merged = Merged::new(memory.reserve(), bounds);
            let mut expected = [Value::default(); 2];
            let mut offered = 0;
            for (functions, times, with_past) in &hosts {
                let profile = sampled(functions, *times);
                let (total, list) = (profile.total(), profile.timestamps.list.len() as u64);
                let mut one = arrived(profile.clone(), &memory);
                one.past = with_past.then_some(profile);
                if merged.take(one, SPAN, &mut Vec::new()).is_ok() {
                    expected[0] += total;
                    offered += list;
                    if *with_past {
                        expected[1] += total;
                        offered += list;
                    }
                }
                let bytes = heap_bytes(&merged.past) + heap_bytes(&merged.own);
                prop_assert_eq!(merged.held.bytes(), bytes);
                // Tables that doubled may be beyond it once.
                prop_assert!(bytes <= 2 * memory_bytes, "{bytes} of {memory_bytes}");
                for side in [&merged.past, &merged.own].into_iter().flatten() {
                    prop_assert!(side.timestamps.list.len() <= timestamps);
                    prop_assert!(encoded(side) <= encoded_bytes);
                }
            }
            let total = |side: &Option<Profile>| side.as_ref().map(Profile::total).unwrap_or_default();
            prop_assert_eq!([total(&merged.own), total(&merged.past)], expected);
            let sides = [&merged.past, &merged.own].into_iter().flatten();
            let (kept, dropped) = sides.fold((0, 0), |(kept, dropped), side| {
                (kept + side.timestamps.list.len() as u64, dropped + side.timestamps.dropped)
            });
            prop_assert_eq!(kept + dropped, offered);
            prop_assert_eq!(dropped, merged.times_shed);
        }
    }

    #[test]
    fn the_times_of_the_past_are_bounded_as_those_of_the_capture() {
        let memory = memory(1 << 20);
        let bounds = Bounds {
            timestamps: 15,
            ..Bounds::of(1 << 20)
        };
        let mut merged = Merged::new(memory.reserve(), bounds);
        let mut notices = Vec::new();
        for function in ["a", "b"] {
            let mut one = arrived(host(function, NOW - 10 * SECOND), &memory);
            one.past = Some(host(function, NOW - 10 * SECOND));
            merged.take(one, SPAN, &mut notices).expect("room");
        }
        assert_eq!(merged.times_shed, 20);
        for side in [merged.past, merged.own] {
            let side = side.expect("a profile");
            assert_eq!(side.total().count, 20);
            let timestamps = &side.timestamps;
            assert_eq!((timestamps.list.len(), timestamps.dropped), (10, 10));
        }
        assert_eq!(notices.len(), 1, "{notices:?}");
        assert!(
            notices[0].contains("the times of 20 samples"),
            "{notices:?}"
        );
    }

    #[test]
    fn times_that_are_there_give_way_to_a_host_that_comes() {
        let one = || host("a", NOW - 10 * SECOND);
        let mut bare = host("b", NOW - 10 * SECOND);
        bare.timestamps.list = Vec::new();
        // Room for one with its times and one without, not for both before they are merged.
        let bytes =
            heap_bytes(&Some(one())) + 2 * heap_bytes(&Some(bare.clone())) - TIMESTAMP_BYTES;
        let memory = memory(bytes);
        let mut merged = merged(&memory);
        merged.bounds.timestamps = 100;
        let mut notices = Vec::new();
        let first = arrived(one(), &memory);
        merged.take(first, SPAN, &mut notices).expect("room");
        merged
            .take(arrived(bare, &memory), SPAN, &mut notices)
            .expect("room for samples");
        let own = merged.own.as_ref().expect("a profile");
        assert_eq!((own.total().count, own.timestamps.list.len()), (20, 0));
        assert_eq!((own.timestamps.dropped, merged.times_shed), (10, 10));
    }

    #[test]
    fn what_no_reader_would_take_is_refused_and_what_is_there_stays() {
        let memory = memory(1 << 20);
        let bare = Rows::of(&host("a", NOW)).without_times();
        let encoded_bytes = bare.encoded_bytes_max();
        let bounds = Bounds {
            encoded_bytes,
            ..Bounds::of(1 << 20)
        };
        let mut merged = Merged::new(memory.reserve(), bounds);
        let mut notices = Vec::new();
        for function in ["a", "b"] {
            let mut one = arrived(host(function, NOW - 10 * SECOND), &memory);
            one.labels = Vec::new();
            let taken = merged.take(one, SPAN, &mut notices);
            assert_eq!(taken.is_ok(), function == "a", "{taken:?}");
        }
        let own = merged.own.as_ref().expect("a profile");
        assert_eq!((own.total().count, own.timestamps.list.len()), (10, 0));
        assert_eq!(merged.times_shed, 10);
    }
}
