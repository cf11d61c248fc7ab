//! Queries to the recorder: merged profiles over ranges of time.

use super::accounting::Accounting;
use super::{Part, Recorder};
use host::time::MonotonicTime;
use profile::{
    Coverage, Dictionary, Info, Profile, Quality, Query, QueryRunner, SampleKey, Timestamp, Value,
    Withholding,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Rows read before the lock is let go, so that the symbolizer gets its turn. At 0.3 to 0.6 µs a
/// row (see
/// `tests::collection_of_a_large_machine`) it waits a tenth of a second at most.
const ROWS_PER_LOCK: usize = 200_000;

/// Overlap of a window and a range of time that does not count. Unit: nanoseconds.
///
/// Ends of windows are shown to the millisecond, and the wall clock may have been corrected by less
/// since: a range from one such end to another means the windows between them and not their
/// neighbours, which hold some microseconds of it.
const OVERLAP_MIN: u64 = 1_000_000;

/// Why a question has no answer.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum QueryError {
    /// The one who asked has gone.
    #[error("the query was cancelled")]
    Cancelled,
}

/// A merged profile and what it covers.
pub struct RecorderAnswer {
    /// The profile. `info.start_unix_ns` is left 0: the recorder knows no wall time.
    pub profile: Profile,
    /// Time and windows it was made of.
    pub covered: Covered,
    /// From this time to the end it is known when each sample was taken; `None` when it is not
    /// known for any, or was not asked for. `profile.timestamps.start_unix_ns` is the same time,
    /// and is left 0 until [`RecorderAnswer::date`] sets it.
    pub times_from: Option<MonotonicTime>,
}

impl RecorderAnswer {
    /// Says in wall time when the profile starts, at `start`, and when its times do. `unix_ns`: of
    /// a moment, nanoseconds since the Unix epoch.
    pub fn date(&mut self, start: MonotonicTime, unix_ns: impl Fn(MonotonicTime) -> i64) {
        self.profile.info.start_unix_ns = unix_ns(start);
        if let Some(from) = self.times_from {
            self.profile.timestamps.start_unix_ns = unix_ns(from);
        }
    }
}

/// A query.
#[derive(Clone, Copy, Debug)]
pub struct RecorderQuery<'q> {
    /// Which samples.
    pub query: &'q Query,
    /// Whether the times of samples are wanted too: for as much of the span as they are known,
    /// without a gap up to its end.
    pub times: bool,
    /// What the answer must withhold. Empty for a caller on the host itself.
    pub withhold: &'q Withholding,
}

impl<'q> From<&'q Query> for RecorderQuery<'q> {
    fn from(query: &'q Query) -> Self {
        RecorderQuery {
            query,
            times: false,
            withhold: Withholding::nothing(),
        }
    }
}

/// Answers what is asked over `span`, letting go of the lock between windows.
///
/// A collection or downsampling in between makes the work done worthless; it is then done again
/// with the lock held throughout.
///
/// # Errors
/// [`QueryError::Cancelled`] soon after `cancel` is set.
pub fn query<'q>(
    recorder: &RwLock<Recorder>,
    span: WindowRange,
    asked: impl Into<RecorderQuery<'q>>,
    cancel: &AtomicBool,
) -> Result<RecorderAnswer, QueryError> {
    let asked = asked.into();
    if let WindowRange::Time(from, to) = span
        && let Some(answer) = by_slices(recorder, (from, to), asked, cancel, ROWS_PER_LOCK)?
    {
        return Ok(answer);
    }
    read(recorder).answer(span, asked, cancel)
}

/// Collects the times of samples part by part, from the newest backwards, as far as they are known.
struct Backwards {
    wanted: bool,
    from: Option<MonotonicTime>,
    end: MonotonicTime,
    dropped: u64,
}

impl Backwards {
    fn new(wanted: bool) -> Backwards {
        Backwards {
            wanted,
            from: None,
            end: MonotonicTime(0),
            dropped: 0,
        }
    }

    /// Adds the part before those added so far.
    fn take(&mut self, runner: &mut QueryRunner<'_>, dict: &Dictionary, part: &Part) {
        self.wanted &= part.times.are_known();
        if !self.wanted {
            return;
        }
        self.from = Some(part.start);
        self.end = self.end.max(part.end);
        self.dropped = self.dropped.saturating_add(part.times.refused());
        let keys = part.block.keys();
        for timestamp in part.times.iter(part.start) {
            if let Some(&key) = keys.get(timestamp.row as usize) {
                runner.add_timestamp(
                    dict,
                    Timestamp {
                        at_ns: timestamp.time.0,
                        key,
                        weight: timestamp.weight,
                    },
                );
            }
        }
    }

    /// Puts the added timestamps into the answer.
    fn finish(self, profile: Profile, covered: Covered) -> RecorderAnswer {
        let mut profile = profile;
        if let Some(from) = self.from {
            let timestamps = &mut profile.timestamps;
            timestamps.duration_ns = self.end.since(from).as_nanos() as u64;
            timestamps.dropped = self.dropped;
            let list = timestamps.list.iter_mut();
            list.for_each(|timestamp| timestamp.at_ns = timestamp.at_ns.saturating_sub(from.0));
        }
        RecorderAnswer {
            profile,
            covered,
            times_from: self.from,
        }
    }
}

/// The recorder to read from. A writer that panicked ends the process; until then reading goes on.
pub fn read(recorder: &RwLock<Recorder>) -> RwLockReadGuard<'_, Recorder> {
    recorder.read().unwrap_or_else(PoisonError::into_inner)
}

/// The query from the newest window backwards, so that windows closed meanwhile are behind it.
/// `None` when windows or ids changed on the way.
pub(super) fn by_slices(
    recorder: &RwLock<Recorder>,
    (from, to): (MonotonicTime, MonotonicTime),
    asked: RecorderQuery<'_>,
    cancel: &AtomicBool,
    rows_per_lock: usize,
) -> Result<Option<RecorderAnswer>, QueryError> {
    let mut runner = QueryRunner::withholding(asked.query, asked.withhold);
    let mut accounting = Accounting::of_query(asked.query);
    let mut times = Backwards::new(asked.times);
    let mut covered = Covered {
        start: from,
        end: from,
        ..Covered::default()
    };
    let mut before = None;
    let mut generation = None;
    loop {
        let recorder = read(recorder);
        if *generation.get_or_insert(recorder.generation) != recorder.generation {
            return Ok(None);
        }
        let mut rows = 0;
        let mut take = |part: &Part, covered: &mut Covered| {
            if cancel.load(Ordering::Relaxed) {
                return Err(QueryError::Cancelled);
            }
            if part.overlaps(from, to) {
                covered.take(part);
                rows += part.block.rows();
                part.block
                    .iter()
                    .for_each(|(key, value)| runner.add(&recorder.dict, key, value));
                times.take(&mut runner, &recorder.dict, part);
                accounting.take(&recorder, part);
            }
            Ok(rows)
        };
        if before.is_none() {
            for part in recorder.open.iter().rev() {
                take(part, &mut covered)?;
            }
        }
        let first = before.unwrap_or(u64::MAX);
        before = Some(0);
        for window in recorder
            .windows
            .iter()
            .rev()
            .skip_while(|w| w.windows.0 >= first)
        {
            if take(&window.whole, &mut covered)? >= rows_per_lock {
                before = Some(window.windows.0);
                break;
            }
        }
        if before == Some(0) {
            let mut profile = runner.finish(recorder.info(&covered));
            profile.info.coverage = accounting.coverage(&profile);
            return Ok(Some(times.finish(profile, covered)));
        }
        drop(recorder);
        std::thread::yield_now();
    }
}

/// The windows or parts to query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowRange {
    /// All windows, including the open one, that overlap this time by a millisecond or more. A
    /// window that only touches it is not included, for example when the range starts where that
    /// window ends.
    Time(MonotonicTime, MonotonicTime),
    /// The closed window of this number.
    Window(u64),
    /// All parts after the first number, up to and including the second.
    Parts(u64, u64),
}

/// What an answer covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Covered {
    /// Start of the first window; the same as `end` when there is none.
    pub start: MonotonicTime,
    /// End of the last window.
    pub end: MonotonicTime,
    /// Windows (or parts) that were added up.
    pub windows: usize,
    /// Windows (or parts) asked for by number that are no longer kept by themselves.
    pub missed: u64,
    /// Weight of one sample at the configured rate; 0 when it varies.
    pub period: u64,
    /// What is missing, over all labels.
    pub quality: Quality,
}

impl Recorder {
    /// Hands every row of `span` to `visit`, window by window.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`] soon after `cancel` is set.
    pub fn scan(
        &self,
        span: WindowRange,
        cancel: &AtomicBool,
        mut visit: impl FnMut(&Dictionary, SampleKey, Value),
    ) -> Result<Covered, QueryError> {
        let mut covered = Covered::default();
        for part in self.select(span, &mut covered.missed) {
            if cancel.load(Ordering::Relaxed) {
                return Err(QueryError::Cancelled);
            }
            covered.take(part);
            for (key, value) in part.block.iter() {
                visit(&self.dict, key, value);
            }
        }
        if let (0, WindowRange::Time(start, _)) = (covered.windows, span) {
            (covered.start, covered.end) = (start, start);
        }
        Ok(covered)
    }

    /// Answers `query` over `span`. For long spans [`query`] is kinder to the writer.
    ///
    /// # Errors
    /// [`QueryError::Cancelled`] soon after `cancel` is set.
    pub fn query(
        &self,
        span: WindowRange,
        query: &Query,
        cancel: &AtomicBool,
    ) -> Result<RecorderAnswer, QueryError> {
        self.answer(span, query.into(), cancel)
    }

    fn answer(
        &self,
        span: WindowRange,
        asked: RecorderQuery<'_>,
        cancel: &AtomicBool,
    ) -> Result<RecorderAnswer, QueryError> {
        let mut runner = QueryRunner::withholding(asked.query, asked.withhold);
        let mut accounting = match span {
            // Accounts are of complete windows: parts cannot be held against them.
            WindowRange::Parts(..) => Accounting::none(),
            WindowRange::Time(..) | WindowRange::Window(_) => Accounting::of_query(asked.query),
        };
        let mut times = Backwards::new(asked.times);
        let mut covered = Covered::default();
        for part in self.select(span, &mut covered.missed).into_iter().rev() {
            if cancel.load(Ordering::Relaxed) {
                return Err(QueryError::Cancelled);
            }
            covered.take(part);
            for (key, value) in part.block.iter() {
                runner.add(&self.dict, key, value);
            }
            times.take(&mut runner, &self.dict, part);
            accounting.take(self, part);
        }
        if let (0, WindowRange::Time(start, _)) = (covered.windows, span) {
            (covered.start, covered.end) = (start, start);
        }
        let mut profile = runner.finish(self.info(&covered));
        profile.info.coverage = accounting.coverage(&profile);
        Ok(times.finish(profile, covered))
    }

    fn info(&self, covered: &Covered) -> Info {
        Info {
            start_unix_ns: 0,
            duration_ns: covered.end.since(covered.start).as_nanos() as u64,
            event: self.event.clone(),
            unit: self.unit.clone(),
            period: covered.period,
            quality: covered.quality,
            coverage: Coverage::default(),
            ..Info::default()
        }
    }

    /// The event sampled and the unit of weights.
    pub fn event(&self) -> (&str, &str) {
        (&self.event, &self.unit)
    }

    pub(super) fn select(&self, span: WindowRange, missed: &mut u64) -> Vec<&Part> {
        let windows = || self.windows.iter().map(|window| &window.whole);
        match span {
            WindowRange::Time(from, to) => windows()
                .chain(&self.open)
                .filter(|part| part.overlaps(from, to))
                .collect(),
            WindowRange::Window(number) => {
                // From the back: clients ask for what has just closed.
                let found = self
                    .windows
                    .iter()
                    .rev()
                    .find(|w| w.windows == (number, number));
                *missed = u64::from(found.is_none());
                found.map(|window| &window.whole).into_iter().collect()
            }
            WindowRange::Parts(after, upto) => {
                let wanted = |part: &&Part| part.parts.0 > after && part.parts.1 <= upto;
                let recent = windows().rev().take_while(|part| part.parts.1 > after);
                let mut parts: Vec<&Part> = recent.filter(wanted).collect();
                // If the newest window is used completely, its parts must not be used as well.
                let whole = parts.first().map_or(0, |part| part.parts.1);
                let rest = self.recent.iter().chain(&self.open);
                parts.extend(rest.filter(wanted).filter(|part| part.parts.0 > whole));
                parts.sort_unstable_by_key(|part| part.parts);
                let found: u64 = parts
                    .iter()
                    .map(|part| part.parts.1 - part.parts.0 + 1)
                    .sum();
                *missed = upto.saturating_sub(after).saturating_sub(found);
                parts
            }
        }
    }
}

impl Part {
    /// True when the range asks for this part; see [`OVERLAP_MIN`]. What is itself shorter than
    /// that, the range or a part that has just started, has to lie in the other.
    pub(super) fn overlaps(&self, from: MonotonicTime, to: MonotonicTime) -> bool {
        let length = |from: MonotonicTime, to: MonotonicTime| to.0.saturating_sub(from.0);
        let overlap = length(self.start.max(from), self.end.min(to));
        let shorter = length(self.start, self.end).min(length(from, to));
        overlap > 0 && overlap >= shorter.min(OVERLAP_MIN)
    }
}

impl Covered {
    pub(super) fn take(&mut self, part: &Part) {
        if self.windows == 0 {
            (self.start, self.end, self.period) = (part.start, part.end, part.period);
        }
        self.windows += 1;
        self.start = self.start.min(part.start);
        self.end = self.end.max(part.end);
        if part.period != self.period {
            self.period = 0;
        }
        self.quality += part.quality;
    }
}
