//! Queries: samples of a dictionary in, one filtered and grouped profile out.
//!
//! A [`Query`] is compiled once and says which samples (by label), which frames, and which labels
//! stay. A [`QueryRunner`] is fed (key, value) pairs together with the dictionary of their ids, and
//! builds the answer without an intermediate profile:
//!
//! ```
//! use profile::{FrameFilter, FrameFilterOp, GroupBy, Profile, Query, QueryRunner};
//!
//! let query = Query::new(
//!     r#"unit="nginx.service",cgroup^="/system.slice""#.parse()?,
//!     vec![FrameFilter::new(FrameFilterOp::Focus, "^main$")?],
//!     GroupBy::from_keys(&["comm"]),
//! )?;
//! # let windows = [Profile::default()];
//! # let (dictionary, info) = (&windows[0].dict, windows[0].info.clone());
//! let mut runner = QueryRunner::new(&query);
//! for window in &windows {
//!     for (&key, &value) in &window.samples {
//!         runner.add(dictionary, key, value);
//!     }
//! }
//! let answer = runner.finish(info);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Cost: labels, frames and stacks are evaluated once per id and cached, so a sample with a known
//! key costs two array lookups and one hash insert. Memory: 4 bytes per id of the source's stacks
//! and label sets, 1 byte per string and frame filter, and the answer.

use crate::dictionary::{Dictionary, Remap};
use crate::filter::{FILTERS_MAX, FilterError, FrameFilter, FrameFilterOp, Selector};
use crate::frame::FrameId;
use crate::functions::is_mark;
use crate::labels::LabelSetId;
use crate::later::NamedLater;
use crate::merge::GroupBy;
use crate::outcome::{StackEnd, UnnamedReason};
use crate::profile::{Info, Profile};
use crate::quality::{count_leaf, last_frame, own_leaf};
use crate::sample::{Quality, SampleKey, Value};
use crate::stack::StackId;
use crate::strings::StrId;
use crate::timestamps::{Timestamp, Timestamps};
use crate::withhold::{self, Withholding};

/// A query on a set of samples.
#[derive(Clone, Debug)]
pub struct Query {
    selector: Selector,
    frame_filters: Vec<FrameFilter>,
    group_by: GroupBy,
}

/// Selects every sample, complete, with all labels.
impl Default for Query {
    fn default() -> Self {
        Query {
            selector: Selector::default(),
            frame_filters: Vec::new(),
            group_by: GroupBy::All,
        }
    }
}

impl Query {
    /// A query: samples that `selector` takes, through `frame_filters` in order, grouped.
    ///
    /// # Errors
    /// When there are more than [`FILTERS_MAX`] frame filters.
    pub fn new(
        selector: Selector,
        frame_filters: Vec<FrameFilter>,
        group_by: GroupBy,
    ) -> Result<Query, FilterError> {
        if frame_filters.len() > FILTERS_MAX {
            let given = frame_filters.len();
            return Err(FilterError::TooMany {
                what: "frame filters",
                given,
            });
        }
        Ok(Query {
            selector,
            frame_filters,
            group_by,
        })
    }

    /// Which samples, by label.
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Which samples and frames, by function; in the order they apply.
    pub fn frame_filters(&self) -> &[FrameFilter] {
        &self.frame_filters
    }

    /// Which labels stay.
    pub fn group_by(&self) -> &GroupBy {
        &self.group_by
    }
}

/// Not looked at yet.
const UNSEEN: u32 = u32::MAX;
/// Looked at: its samples are not part of the answer.
const DROPPED: u32 = u32::MAX - 1;

/// Runs one [`Query`] over samples and collects the answer.
pub struct QueryRunner<'q> {
    query: &'q Query,
    /// What the answer must withhold.
    withhold: &'q Withholding,
    /// Source label set → whether it is withheld.
    hidden: Vec<Option<bool>>,
    /// The stack of all that is withheld, once there is some; none where frame filters drop it.
    withheld: Option<Option<StackId>>,
    /// Source label set → answer's label set.
    labels: Vec<u32>,
    /// Source stack → answer's stack.
    stacks: Vec<u32>,
    /// Per frame filter: does the function with this source string id match.
    matches: Vec<Vec<Option<bool>>>,
    /// Per frame filter: does the name match that the frame with this id got later.
    later_matches: Vec<Vec<Option<bool>>>,
    remap: Remap,
    path: Vec<FrameId>,
    counted: Counted,
    answer: Profile,
}

impl<'q> QueryRunner<'q> {
    /// Creates a runner with an empty answer and nothing to withhold.
    pub fn new(query: &'q Query) -> QueryRunner<'q> {
        QueryRunner::withholding(query, Withholding::nothing())
    }

    /// Creates a runner with an answer that shows only the cgroup and the weight of what is
    /// withheld. The query sees no more of it either, so that no filter can find out what is in it.
    pub fn withholding(query: &'q Query, withhold: &'q Withholding) -> QueryRunner<'q> {
        let mut runner = QueryRunner {
            query,
            withhold,
            hidden: Vec::new(),
            withheld: None,
            labels: Vec::new(),
            stacks: Vec::new(),
            matches: vec![Vec::new(); query.frame_filters.len()],
            later_matches: vec![Vec::new(); query.frame_filters.len()],
            remap: Remap::default(),
            path: Vec::new(),
            counted: Counted::default(),
            answer: Profile::default(),
        };
        runner.next_dictionary();
        runner
    }

    /// Adds one sample value with ids of `source`, if the query selects it.
    ///
    /// Every call takes the same dictionary, which may have grown since; before samples of another
    /// one call [`QueryRunner::next_dictionary`].
    ///
    /// # Panics
    /// When the ids are not of `source`.
    pub fn add(&mut self, source: &Dictionary, key: SampleKey, value: Value) {
        let Some(labels) = self.label_set(source, key.labels) else {
            return;
        };
        let Some((stack, end)) = self.stack_of(source, key) else {
            return;
        };
        self.count_one(source, key, value.count);
        self.answer.add(SampleKey { labels, stack, end }, value);
    }

    /// As [`QueryRunner::add`], but kept under `caller`, the sample's stack or a caller of it: for
    /// answers that would have too many stacks. Returns what it is kept under. Frame filters are
    /// not applied.
    ///
    /// # Panics
    /// When the ids are not of `source`.
    pub fn add_folded(
        &mut self,
        source: &Dictionary,
        key: SampleKey,
        caller: StackId,
        value: Value,
    ) -> Option<SampleKey> {
        self.count(source, key, value.count);
        let stack = caller;
        self.add_sum(source, SampleKey { stack, ..key }, value)
    }

    /// Counts samples in the answer's quality, as those they are; what they add up to with others
    /// goes to [`QueryRunner::add_sum`].
    ///
    /// # Panics
    /// When the ids are not of `source`.
    pub fn count(&mut self, source: &Dictionary, key: SampleKey, count: u64) {
        if self.selects(source, key.labels) {
            self.count_one(source, key, count);
        }
    }

    /// Adds what samples that were [counted](QueryRunner::count) add up to. Returns what it is kept
    /// under. Frame filters are not applied.
    ///
    /// # Panics
    /// When the ids are not of `source`.
    pub fn add_sum(
        &mut self,
        source: &Dictionary,
        key: SampleKey,
        sum: Value,
    ) -> Option<SampleKey> {
        let labels = self.label_set(source, key.labels)?;
        let (stack, end) = match self.is_hidden(source, key) {
            true => (self.withheld_stack()?, withhold::END),
            false => {
                let stack = self.remap.stack(source, &mut self.answer.dict, key.stack);
                (stack, key.end)
            }
        };
        let kept = SampleKey { labels, stack, end };
        self.answer.add(kept, sum);
        Some(kept)
    }

    /// Makes room for so many more samples.
    pub fn reserve(&mut self, samples: usize) {
        self.answer.samples.reserve(samples);
    }

    /// True when the query's selector takes samples of this label set. Remembered per id.
    ///
    /// # Panics
    /// When `labels` is not of `source`, the dictionary given to [`QueryRunner::add`].
    pub fn selects(&mut self, source: &Dictionary, labels: LabelSetId) -> bool {
        self.label_set(source, labels).is_some()
    }

    /// Forgets what is known of the source's ids: the samples that follow are of another
    /// dictionary. The answer so far stays.
    pub fn next_dictionary(&mut self) {
        self.labels.clear();
        self.hidden.clear();
        self.stacks.clear();
        self.matches.iter_mut().for_each(Vec::clear);
        self.later_matches.iter_mut().for_each(Vec::clear);
        // Frame filters make stacks that are not of the source, and so does what is withheld.
        let is_first = self.query.frame_filters.is_empty()
            && self.withhold.is_empty()
            && self.answer.dict.stacks.is_empty();
        self.remap = match is_first {
            true => Remap::of_first().shown(),
            false => Remap::default().shown(),
        };
        self.counted.next_dictionary();
    }

    /// Adds when a sample was taken, when the query takes it. In any order; at another time than
    /// those of [`QueryRunner::add`], to which it adds nothing. What time they cover the caller
    /// says in the answer.
    ///
    /// # Panics
    /// When the ids are not of `source`.
    pub fn add_timestamp(&mut self, source: &Dictionary, timestamp: Timestamp) {
        let Some(labels) = self.label_set(source, timestamp.key.labels) else {
            return;
        };
        let Some((stack, end)) = self.stack_of(source, timestamp.key) else {
            return;
        };
        let key = SampleKey { labels, stack, end };
        self.answer
            .timestamps
            .list
            .push(Timestamp { key, ..timestamp });
    }

    /// Samples so far with a leaf that got its name later.
    pub fn named_later(&self) -> NamedLater {
        self.counted.named_later()
    }

    /// Ends the query.
    ///
    /// `info` describes the time and source that were asked for. The parts of its quality that were
    /// missed before samples had labels (idle, lost, late, throttled, malformed, reduced) are kept
    /// as they are: they cannot be divided among selections. The counts of samples (taken, lost
    /// samples, folded, truncated, depth limit, unnamed) are those of the samples that were kept,
    /// before frame filters changed their stacks.
    pub fn finish(self, info: Info) -> Profile {
        let quality = self.counted.quality().of_selection(info.quality);
        let mut answer = self.answer;
        answer
            .timestamps
            .list
            .sort_by_key(|timestamp| timestamp.at_ns);
        answer.info = Info { quality, ..info };
        answer
    }

    /// Whether the labels of a set are withheld, which is asked once for each.
    fn hides(&mut self, source: &Dictionary, id: LabelSetId) -> bool {
        !self.withhold.is_empty()
            && *slot(&mut self.hidden, id.0, None)
                .get_or_insert_with(|| self.withhold.hides(source, id))
    }

    /// Whether the stack of a sample is withheld. What was lost has none.
    fn is_hidden(&mut self, source: &Dictionary, key: SampleKey) -> bool {
        key.end != StackEnd::Lost && self.hides(source, key.labels)
    }

    fn count_one(&mut self, source: &Dictionary, key: SampleKey, count: u64) {
        match self.is_hidden(source, key) {
            true => self.counted.add_withheld(count),
            false => self.counted.add(source, key, count),
        }
    }

    fn stack_of(&mut self, source: &Dictionary, key: SampleKey) -> Option<(StackId, StackEnd)> {
        match self.is_hidden(source, key) {
            true => Some((self.withheld_stack()?, withhold::END)),
            false => Some((self.stack(source, key.stack)?, key.end)),
        }
    }

    /// The stack of what is withheld, as the frame filters leave it.
    fn withheld_stack(&mut self) -> Option<StackId> {
        *self.withheld.get_or_insert_with(|| {
            let keeps = |filter: &FrameFilter| match filter.op() {
                FrameFilterOp::Keep | FrameFilterOp::Focus => filter.matches(withhold::FRAME),
                FrameFilterOp::Drop => !filter.matches(withhold::FRAME),
                FrameFilterOp::Collapse => true,
            };
            let kept = self.query.frame_filters.iter().all(keeps);
            kept.then(|| Withholding::stack(&mut self.answer.dict))
        })
    }

    fn label_set(&mut self, source: &Dictionary, id: LabelSetId) -> Option<LabelSetId> {
        let hides = self.hides(source, id);
        let slot = slot(&mut self.labels, id.0, UNSEEN);
        if *slot == UNSEEN && hides {
            let (selector, group) = (&self.query.selector, &self.query.group_by);
            let kept = |name: &str| source.label(id, name).filter(|_| Withholding::keeps(name));
            let matches = selector
                .matchers()
                .iter()
                .all(|matcher| matcher.matches(kept(matcher.label()).unwrap_or("")));
            *slot = match matches {
                true => {
                    let kept = source.labels(id);
                    let kept =
                        kept.filter(|(name, _)| Withholding::keeps(name) && group.keeps(name));
                    self.answer.dict.intern_labels(kept).0
                }
                false => DROPPED,
            };
        }
        if *slot == UNSEEN {
            *slot = if self.query.selector.matches(source, id) {
                self.query
                    .group_by
                    .project(source, &mut self.answer.dict, id)
                    .0
            } else {
                DROPPED
            };
        }
        (*slot != DROPPED).then_some(LabelSetId(*slot))
    }

    fn stack(&mut self, source: &Dictionary, id: StackId) -> Option<StackId> {
        if self.query.frame_filters.is_empty() {
            return Some(self.remap.stack(source, &mut self.answer.dict, id));
        }
        let known = *slot(&mut self.stacks, id.0, UNSEEN);
        if known != UNSEEN {
            return (known != DROPPED).then_some(StackId(known));
        }
        let mut path = std::mem::take(&mut self.path);
        source.stacks.root_first(id, &mut path);
        let found = if self.filter(source, &mut path) {
            path.iter().fold(StackId::EMPTY, |stack, &frame| {
                let frame = self.remap.frame(source, &mut self.answer.dict, frame);
                self.answer.dict.stacks.child(stack, frame)
            })
        } else {
            StackId(DROPPED)
        };
        self.path = path;
        self.stacks[id.0 as usize] = found.0;
        (found.0 != DROPPED).then_some(found)
    }

    /// Applies the frame filters in order to `path`, root first; false when the stack is dropped.
    fn filter(&mut self, source: &Dictionary, path: &mut Vec<FrameId>) -> bool {
        let memos = self.matches.iter_mut().zip(&mut self.later_matches);
        for (filter, (memo, later)) in self.query.frame_filters.iter().zip(memos) {
            // Remembered per text, which many frames (lines, modules) share.
            let mut text_matches = |text: StrId| {
                *slot(memo, text.0, None)
                    .get_or_insert_with(|| filter.matches(source.strings.get(text)))
            };
            let mut matches = |frame: FrameId| {
                if let Some(name) = source.later.function(frame) {
                    return *slot(later, frame.0, None).get_or_insert_with(|| filter.matches(name));
                }
                let frame = source.frames.get(frame);
                text_matches(frame.function)
                    // If the frame has no name, this is a place, and its digits could match words.
                    || frame.system_name != StrId::EMPTY
                        && frame.unnamed == UnnamedReason::No
                        && text_matches(frame.system_name)
            };
            match filter.op() {
                FrameFilterOp::Keep => {
                    if !path.iter().any(|&frame| matches(frame)) {
                        return false;
                    }
                }
                FrameFilterOp::Drop => {
                    if path.iter().any(|&frame| matches(frame)) {
                        return false;
                    }
                }
                FrameFilterOp::Focus => match path.iter().position(|&frame| matches(frame)) {
                    Some(outermost) => drop(path.drain(..outermost)),
                    None => return false,
                },
                FrameFilterOp::Collapse => {
                    let mut in_run = false;
                    path.retain(|&frame| {
                        let follows = std::mem::replace(&mut in_run, matches(frame));
                        !(follows && in_run)
                    });
                }
            }
        }
        true
    }
}

impl Profile {
    /// The answer to `query` over this profile, with the timestamps that it takes. How many of
    /// those that were dropped it would have taken is not known: they all count.
    pub fn query(&self, query: &Query) -> Profile {
        self.asked_by(QueryRunner::new(query))
    }

    /// As [`Profile::query`], by a runner that was fed nothing yet.
    pub fn asked_by(&self, mut runner: QueryRunner<'_>) -> Profile {
        for (key, value) in self.sorted() {
            runner.add(&self.dict, key, value);
        }
        for &timestamp in &self.timestamps.list {
            runner.add_timestamp(&self.dict, timestamp);
        }
        let mut answer = runner.finish(self.info.clone());
        let list = std::mem::take(&mut answer.timestamps.list);
        answer.timestamps = Timestamps {
            start_unix_ns: self.timestamps.start_unix_ns,
            duration_ns: self.timestamps.duration_ns,
            dropped: self.timestamps.dropped,
            list,
        };
        answer
    }
}

/// Samples counted by what their stacks say.
///
/// The leaf of a wait is not the last frame of its stack, so stacks are walked where there are
/// waits. Most dictionaries have none, which is found out once: counting then looks at one frame a
/// sample.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    quality: Quality,
    named_later: NamedLater,
    /// Frames of the dictionary that were looked at.
    frames: usize,
    /// One of them is a mark of waits.
    has_marks: bool,
}

impl Counted {
    /// Counts samples of one key with ids of `source`: the same dictionary every time, which may
    /// have grown, until [`Counted::next_dictionary`] is called.
    ///
    /// # Panics
    /// When the ids are not of `source`.
    pub fn add(&mut self, source: &Dictionary, key: SampleKey, count: u64) {
        let frames = source.frames.as_slice();
        if self.frames < frames.len() {
            let mut new = frames[self.frames..].iter();
            self.has_marks = self.has_marks || new.any(|frame| is_mark(source, *frame));
            self.frames = frames.len();
        }
        let leaf = match self.has_marks {
            true => own_leaf,
            false => last_frame,
        };
        if let Some(later) = count_leaf(&mut self.quality, source, key, count, leaf) {
            let sum = &mut self.named_later[later as usize];
            *sum = sum.saturating_add(count);
        }
    }

    /// Counts withheld samples, of which only the number may be shown.
    pub fn add_withheld(&mut self, count: u64) {
        self.quality.taken = self.quality.taken.saturating_add(count);
    }

    /// The samples that follow are of another dictionary.
    pub fn next_dictionary(&mut self) {
        (self.frames, self.has_marks) = (0, false);
    }

    /// What was counted.
    pub fn quality(&self) -> Quality {
        self.quality
    }

    /// Returns the counted samples with a leaf that got its name later.
    pub fn named_later(&self) -> NamedLater {
        self.named_later
    }
}

impl Quality {
    /// Counted samples of a selection, plus what was missed on the `whole`, which had no labels
    /// yet. See [`QueryRunner::finish`].
    pub fn of_selection(self, whole: Quality) -> Quality {
        // All fields by name, so that adding a field requires a decision here.
        Quality {
            idle: whole.idle,
            lost: whole.lost,
            throttled: whole.throttled,
            malformed: whole.malformed,
            reduced: whole.reduced,
            lost_late: whole.lost_late,
            taken: self.taken,
            folded: self.folded,
            truncated: self.truncated,
            depth_limit: self.depth_limit,
            unnamed: self.unnamed,
            lost_samples: self.lost_samples,
        }
    }
}

fn slot<T: Copy>(table: &mut Vec<T>, id: u32, unseen: T) -> &mut T {
    let id = id as usize;
    if table.len() <= id {
        table.resize((id + 1).next_power_of_two(), unseen);
    }
    &mut table[id]
}
