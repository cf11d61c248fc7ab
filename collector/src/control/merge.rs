//! From the profiles of hosts to one: labels of hosts put on, times made to fit together, memory kept.
//!
//! Merging is work: it runs on a blocking thread, one host after the other, as they come.

use super::limits::{CLOCK_SLACK_NS, MOMENTS_MAX};
use super::memory::Held;
use crate::ingest::limits::CLOCK_WARNING_NS;
use crate::query::profile_bytes;
use profile::{LabelSetId, Moment, Moments, Profile};
use std::collections::HashMap;

/// How far windows of a recorder may reach beyond the time that was asked for: its coarsest step, with room to
/// spare. Unit: nanoseconds.
const PAST_SLACK_NS: i64 = 3_600_000_000_000;

/// What came of one host, or of another collector's share, whole.
pub struct Arrived {
    /// Of the flight recorder.
    pub past: Option<Profile>,
    /// Of the capture.
    pub own: Option<Profile>,
    /// Labels of the host that the result is grouped by.
    pub labels: Vec<(String, String)>,
    /// By how much the host's clock is ahead. Unit: nanoseconds.
    pub clock_ahead_ns: i64,
    /// The memory of it, given back when it is merged.
    pub held: Held,
}

/// When a fan-out runs, on the collector's clock.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// When it began. Unit: nanoseconds since the Unix epoch.
    pub began_unix_ns: i64,
    /// The past that was asked for. Unit: nanoseconds.
    pub before_ns: i64,
    /// Now. Unit: nanoseconds since the Unix epoch.
    pub now_unix_ns: i64,
}

/// All that came so far.
pub struct Merged {
    /// Of the flight recorders.
    pub past: Option<Profile>,
    /// Of the captures.
    pub own: Option<Profile>,
    /// Hosts whose times found no room.
    pub without_times: usize,
    /// The memory of it.
    pub held: Held,
}

/// Why a host's profile is not in the result.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    /// It does not fit.
    #[error(
        "its profile found no room beside the others: results have {mib} MiB (`query.memory_mib`); capture \
         fewer hosts, for a shorter time, or without times"
    )]
    Memory {
        /// The bound.
        mib: usize,
    },
    /// It weighs another thing.
    #[error(transparent)]
    Units(#[from] profile::MergeError),
}

impl Merged {
    /// Nothing yet, in memory of `held`.
    pub fn new(held: Held) -> Merged {
        Merged {
            past: None,
            own: None,
            without_times: 0,
            held,
        }
    }

    /// Takes a host in. What its reader must know is added to `notices`.
    ///
    /// # Errors
    /// When it cannot be; nothing of it is in the result then.
    pub fn take(
        &mut self,
        mut arrived: Arrived,
        span: Span,
        mib: usize,
        notices: &mut Vec<String>,
    ) -> Result<(), MergeError> {
        let ahead = arrived.clock_ahead_ns;
        let ahead = if ahead.unsigned_abs() >= CLOCK_WARNING_NS.unsigned_abs() {
            let seconds = ahead.unsigned_abs() as f64 / 1e9;
            let side = if ahead > 0 { "ahead of" } else { "behind" };
            notices.push(format!(
                "its clock is {seconds:.1} s {side} the collector's: its times were moved by as much"
            ));
            ahead
        } else {
            0
        };
        let begin = span.began_unix_ns;
        if let Some(own) = &mut arrived.own {
            let from = begin.saturating_sub(CLOCK_SLACK_NS);
            set_right(own, ahead, (from, span.now_unix_ns), notices);
            label(own, &arrived.labels);
        }
        if let Some(past) = &mut arrived.past {
            let from = begin
                .saturating_sub(span.before_ns)
                .saturating_sub(PAST_SLACK_NS);
            set_right(past, ahead, (from, span.now_unix_ns), notices);
            label(past, &arrived.labels);
        }
        self.fit(&mut arrived, notices);
        let bytes = [&arrived.past, &arrived.own].map(|one| one.as_ref().map_or(0, heap_bytes));
        if !self.held.grow(bytes[0].saturating_add(bytes[1])) {
            return Err(MergeError::Memory { mib });
        }
        let merged = self.merge(&arrived);
        arrived.held.shrink_to(0);
        let bytes = [&self.past, &self.own].map(|one| one.as_ref().map_or(0, heap_bytes));
        self.held.shrink_to(bytes[0].saturating_add(bytes[1]));
        merged
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
                mine.get_or_insert_with(Profile::default).merge(theirs)?;
            }
        }
        Ok(())
    }

    /// Leaves the times of a host out that find no room.
    fn fit(&mut self, arrived: &mut Arrived, notices: &mut Vec<String>) {
        let Some(own) = &mut arrived.own else {
            return;
        };
        let mine = self.own.as_ref().map_or(0, |own| own.moments.list.len());
        let theirs = own.moments.list.len();
        if mine + theirs > MOMENTS_MAX {
            own.moments.list = Vec::new();
            own.moments.dropped = own.moments.dropped.saturating_add(theirs as u64);
            self.without_times += 1;
            notices.push(format!(
                "the times of its samples are left out: a result has {MOMENTS_MAX} at most"
            ));
        }
    }
}

/// Memory of a profile, times included, about. Unit: bytes.
fn heap_bytes(profile: &Profile) -> usize {
    profile_bytes(profile) + profile.moments.list.len() * size_of::<Moment>()
}

/// Moves a profile's times by what the host's clock is ahead. Times that are not of this capture all the same
/// would stretch the result over years: they are left out.
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
    let moments = &mut profile.moments;
    if !moments.is_absent() {
        moments.start_unix_ns = moments.start_unix_ns.saturating_sub(ahead_ns);
        let last = moments.list.last().map_or(0, |moment| moment.at_ns);
        if !within(moments.start_unix_ns, moments.duration_ns.max(last)) {
            *moments = Moments::default();
            wrong = true;
        }
    }
    if wrong {
        notices.push("its clock is wrong: the times of its samples are left out".to_owned());
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
            // Of equal names the first stays: nothing that an agent sends replaces what its host is.
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
    for moment in &mut profile.moments.list {
        moment.key.labels = with(moment.key.labels);
    }
    for (key, value) in moved {
        profile.add(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::memory::Budget;
    use profile::{FrameRef, SampleKey, StackEnd, StackId, Value};
    use std::sync::Arc;

    const NOW: i64 = 1_700_000_000_000_000_000;
    const SECOND: i64 = 1_000_000_000;
    const SPAN: Span = Span {
        began_unix_ns: NOW - 10 * SECOND,
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
            profile.moments.list.push(Moment {
                at_ns: second * SECOND as u64,
                key,
                weight: 7,
            });
        }
        profile.info.unit = "nanoseconds".to_owned();
        (profile.info.start_unix_ns, profile.info.duration_ns) = (start, 10 * SECOND as u64);
        profile.moments.start_unix_ns = start;
        profile.moments.duration_ns = 10 * SECOND as u64;
        profile
    }

    fn budget(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget::new(bytes, Arc::default()))
    }

    fn arrived(own: Profile, budget: &Arc<Budget>) -> Arrived {
        Arrived {
            past: None,
            own: Some(own),
            labels: vec![("host".to_owned(), "web-1".to_owned())],
            clock_ahead_ns: 0,
            held: budget.hold(),
        }
    }

    #[test]
    fn hosts_become_one_profile_with_their_labels_on_it() {
        let budget = budget(1 << 20);
        let mut merged = Merged::new(budget.hold());
        let mut notices = Vec::new();
        let mut lies = host("a", NOW - 9 * SECOND);
        lies.dict.intern_labels([("host", "another")]);
        for one in [lies, host("b", NOW - 10 * SECOND)] {
            merged
                .take(arrived(one, &budget), SPAN, 1, &mut notices)
                .expect("room");
        }
        let own = merged.own.expect("a profile");
        assert_eq!(own.total().count, 20);
        assert_eq!(own.moments.list.len(), 20);
        assert_eq!(own.moments.start_unix_ns, NOW - 10 * SECOND);
        for key in own.samples.keys() {
            assert_eq!(own.dict.label(key.labels, "host"), Some("web-1"));
        }
        assert!(notices.is_empty(), "{notices:?}");
    }

    #[test]
    fn a_clock_that_is_known_to_be_wrong_is_set_right() {
        let budget = budget(1 << 20);
        let mut merged = Merged::new(budget.hold());
        let mut notices = Vec::new();
        let mut late = arrived(host("a", NOW + 90 * SECOND), &budget);
        late.clock_ahead_ns = 100 * SECOND;
        merged.take(late, SPAN, 1, &mut notices).expect("room");
        let own = merged.own.expect("a profile");
        assert_eq!(own.moments.start_unix_ns, NOW - 10 * SECOND);
        assert_eq!(own.info.start_unix_ns, NOW - 10 * SECOND);
        assert_eq!(notices.len(), 1);
    }

    #[test]
    fn times_of_another_time_are_left_out_and_the_samples_are_not() {
        for start in [1, i64::MIN, i64::MAX, NOW - 3600 * SECOND] {
            let budget = budget(1 << 20);
            let mut merged = Merged::new(budget.hold());
            let mut notices = Vec::new();
            merged
                .take(arrived(host("a", start), &budget), SPAN, 1, &mut notices)
                .expect("room");
            merged
                .take(
                    arrived(host("b", NOW - 10 * SECOND), &budget),
                    SPAN,
                    1,
                    &mut notices,
                )
                .expect("room");
            let own = merged.own.expect("a profile");
            assert_eq!((own.total().count, own.moments.list.len()), (20, 10));
            assert_eq!(own.info.start_unix_ns, NOW - 10 * SECOND);
            assert_eq!(own.info.duration_ns, 10 * SECOND as u64);
            assert_eq!(notices.len(), 1);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_whole() {
        let budget = budget(heap_bytes(&host("a", NOW)) * 2);
        let mut merged = Merged::new(budget.hold());
        let mut notices = Vec::new();
        let mut taken = 0;
        let mut take = |function: &str| {
            let one = arrived(host(function, NOW - 10 * SECOND), &budget);
            merged.take(one, SPAN, 1, &mut notices)
        };
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
        let budget = budget(1 << 20);
        let mut merged = Merged::new(budget.hold());
        let mut notices = Vec::new();
        merged
            .take(
                arrived(host("a", NOW - 10 * SECOND), &budget),
                SPAN,
                1,
                &mut notices,
            )
            .expect("room");
        let mut cycles = host("b", NOW - 10 * SECOND);
        cycles.info.unit = "cycles".to_owned();
        let mut other = arrived(cycles, &budget);
        other.past = Some(host("c", NOW - 10 * SECOND));
        let refused = merged.take(other, SPAN, 1, &mut notices);
        assert!(matches!(refused, Err(MergeError::Units(_))));
        assert!(merged.past.is_none());
        assert_eq!(merged.own.expect("a profile").total().count, 10);
    }
}
