//! What kept captures recorded, as profile types: a source of the query engine that reads their
//! files, for one caller.
//!
//! Nothing is copied into a store: a copy would outlive its capture and leave its scope. A capture
//! answers those who may see it, while it is kept, in the time it ran, with exactly what its own
//! export has. One is read at a time. What has no stacks comes from an index of each ([`Indexes`]).
//!
//! | What happens | The answer |
//! |---|---|
//! | a capture is removed while it is asked | is as without it |
//! | one runs | is without it, until it is kept |
//! | a file is damaged | is without it, and names it; the log has why, once |
//! | a scope does not take all of one | is as without it: neither type, label nor range tells |
//! | hosts weighed in other units | each unit is a type of its own |
//! | more than memory or time allow | is the error of every query |

mod ids;
mod index;
mod slots;

pub(super) use ids::profile_type;

use super::kept::{KeptCaptures, is_shown};
use crate::access::Caller;
use crate::evidence::{ProfileKind, ReadError, in_part};
use crate::query::{CapturedTypes, WINDOW_NS, of_samples, whole_steps};
use crate::store::query::{
    AccountSums, Axis, BatchDict, EachBatch, FleetActivity, HostActivity, LabelSums, QueryBudget,
    SampleBatch, SamplesRead, SeriesSums, Units, WindowSource,
};
use crate::store::{
    Exact, HostKey, HostRecord, LabelSet, PROFILE_TYPE, Resolution, Scope, Step, StoreError,
    StoreQueries, TimeRange, is_captured,
};
use hashbrown::{HashMap, HashSet};
use index::{Index, Indexes, Row};
use profile::text::with_causes;
use profile::{
    Coverage, Dictionary, GroupBy, Profile, Quality, Query, QueryRunner, Selector, StackEnd,
    StackId, Timestamps, Value, Waits, unit,
};
use proto::collector::{FleetCaptureInfo, KeptCapture};
use slots::{TIMED_BYTES, each_step};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Samples between looks at whether anybody still waits.
const SLICE: usize = 8192;

/// Memory of a sample in the list for the query engine. Unit: bytes.
const SAMPLE_BYTES: usize = size_of::<(u32, u32, Value)>() + size_of::<(StackId, StackEnd)>();

/// The steps in which captures are known.
const RESOLUTION: Resolution = Resolution {
    step_ns: WINDOW_NS,
    by_service: false,
};

/// The captures that are kept here, as stores for those who ask.
pub(super) struct Captured {
    kept: Arc<KeptCaptures>,
    indexes: Arc<Indexes>,
}

impl Captured {
    /// Those of `kept`.
    pub fn new(kept: Arc<KeptCaptures>) -> Captured {
        let indexes = Arc::default();
        Captured { kept, indexes }
    }
}

impl CapturedTypes for Captured {
    fn is_empty(&self) -> bool {
        self.kept.files().map_or(true, |files| files.size().0 == 0)
    }

    fn seen_by(&self, caller: &Caller, of: Option<&str>) -> Arc<dyn StoreQueries> {
        Arc::new(Exact::new(Arc::new(Source {
            kept: self.kept.clone(),
            indexes: self.indexes.clone(),
            caller: caller.clone(),
            of: of.map(str::to_owned),
        })))
    }
}

/// What one caller may see of them.
struct Source {
    kept: Arc<KeptCaptures>,
    indexes: Arc<Indexes>,
    caller: Caller,
    /// The id of the type that is asked for; all types otherwise, each label set with its own.
    of: Option<String>,
}

/// A capture that is asked about.
struct Found {
    id: u64,
    /// The id of its type.
    of: String,
    /// When it ran.
    span: TimeRange,
}

impl Found {
    /// True when all of it is in a range.
    fn is_within(&self, range: TimeRange) -> bool {
        let own = whole_steps(self.span, WINDOW_NS);
        range.start_unix_ns <= own.start_unix_ns && own.end_unix_ns <= range.end_unix_ns
    }
}

/// When a capture ran, which is never no time at all.
fn span(info: &FleetCaptureInfo) -> TimeRange {
    let elapsed = i64::try_from(info.elapsed_ns).unwrap_or(i64::MAX);
    TimeRange {
        start_unix_ns: info.started_unix_ns,
        end_unix_ns: info.started_unix_ns.saturating_add(elapsed.max(1)),
    }
}

/// A selector in its parts: what it says of the type, and of labels of samples.
fn parts(selector: &Selector) -> (Selector, Selector) {
    let (of_type, of_labels): (Vec<_>, Vec<_>) = selector
        .matchers()
        .iter()
        .cloned()
        .partition(|matcher| matcher.label() == PROFILE_TYPE);
    // Never more than the selector has.
    let of = |matchers| Selector::new(matchers).unwrap_or_else(|_| selector.clone());
    (of(of_type), of(of_labels))
}

impl Source {
    /// The captures in a range whose type a selector takes; in all time without a range.
    fn found(
        &self,
        range: Option<TimeRange>,
        of_type: &Selector,
    ) -> Result<Vec<Found>, StoreError> {
        let files = self.kept.files();
        let files = files.map_err(|why| StoreError::Unavailable(why.message().to_owned()))?;
        let range = range.map(|range| whole_steps(range, WINDOW_NS));
        let has_scope = self.caller.scope.is_some();
        let kept = files.pick(|kept| {
            let (info, of) = (kept.info.as_ref()?, &kept.profile_type);
            let span = span(info);
            let own = whole_steps(span, WINDOW_NS);
            let overlaps = |range: TimeRange| {
                range.start_unix_ns < own.end_unix_ns && own.start_unix_ns < range.end_unix_ns
            };
            let mut matchers = of_type.matchers().iter();
            let is_asked = is_captured(of)
                && self.of.as_ref().is_none_or(|asked| asked == of)
                && range.is_none_or(overlaps)
                && matchers.all(|matcher| matcher.matches(of));
            // What says who may see it is looked at when nobody waits for the list.
            let facts = || KeptCapture {
                info: Some(FleetCaptureInfo {
                    request: info.request.clone(),
                    ..FleetCaptureInfo::default()
                }),
                selection: kept.selection.clone(),
                filtered: kept.filtered,
                in_part: kept.in_part,
                ..KeptCapture::default()
            };
            is_asked.then(|| {
                let (id, of) = (info.id, of.clone());
                (Found { id, of, span }, has_scope.then(facts))
            })
        });
        let shown = |facts: Option<KeptCapture>| facts.is_none_or(|of| is_shown(&of, &self.caller));
        let kept = kept.into_iter();
        Ok(kept
            .filter_map(|(found, facts)| shown(facts).then_some(found))
            .collect())
    }

    /// The profile of a capture, with its index; none where it was removed, or cannot be read. Its
    /// memory is held; whoever drops it releases `profile.heap_bytes()`.
    fn read(
        &self,
        of: &Found,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Option<(Profile, Arc<Index>)>, StoreError> {
        let files = self.kept.files();
        let files = files.map_err(|why| StoreError::Unavailable(why.message().to_owned()))?;
        let gone = || budget.check().is_err();
        let mut profile = match files.read(of.id, ProfileKind::Captured, budget.left(), gone) {
            Ok(profile) => profile,
            Err(ReadError::Unknown { .. }) => return Ok(None),
            Err(ReadError::Cancelled) => return Err(StoreError::Cancelled),
            Err(error @ ReadError::Memory { .. }) => {
                return Err(StoreError::TooLarge(error.to_string()));
            }
            Err(error) => {
                if files.get(of.id).is_none() {
                    return Ok(None);
                }
                if self.indexes.is_news(of.id) {
                    tracing::warn!(
                        "answers for profile types are without a capture: {}",
                        with_causes(&error)
                    );
                }
                budget.leave_out(format!("capture {}", of.id));
                return Ok(None);
            }
        };
        finer(&mut profile);
        budget.hold(profile.heap_bytes())?;
        let index = match self.indexes.get(of.id) {
            Some(known) => known,
            None => {
                let index = Arc::new(Index::of(&profile, of.span, budget)?);
                self.indexes.keep(of.id, &index);
                index
            }
        };
        Ok(Some((profile, index)))
    }

    /// Calls `each` with the captures of a scope, what they have by labels, and the part of the
    /// selector that is of labels.
    fn each_index(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
        mut each: impl FnMut(
            &Found,
            (&Index, &Selector),
            &mut QueryBudget<'_>,
        ) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let (of_type, of_labels) = parts(&scope.selector);
        for of in self.found(Some(scope.range), &of_type)? {
            budget.check()?;
            let index = match self.indexes.get(of.id) {
                Some(known) => known,
                None => {
                    let Some((profile, index)) = self.read(&of, budget)? else {
                        continue;
                    };
                    budget.release(profile.heap_bytes());
                    index
                }
            };
            budget.hold(index.bytes)?;
            each(&of, (&index, &of_labels), budget)?;
            budget.release(index.bytes);
        }
        Ok(())
    }

    /// The labels of a row that stay. Where all types are asked for, the type is one of them.
    fn kept_labels(&self, of: &Found, row: &Row, by: &GroupBy) -> LabelSet {
        let pairs = row.labels.iter().filter(|(name, _)| by.keeps(name));
        let pairs = pairs.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let keeps_type = self.of.is_none() && by.keeps(PROFILE_TYPE);
        let own = keeps_type.then(|| (PROFILE_TYPE.to_owned(), of.of.clone()));
        LabelSet::new(pairs.chain(own))
    }
}

/// Weighs a capture that needed a coarser unit in the unit of its type. What does not fit is at the
/// largest number, of which every answer says that it is none.
fn finer(profile: &mut Profile) {
    let (base, times) = unit::base(&profile.info.unit);
    if times == 1 {
        return;
    }
    profile.info.unit = base.to_owned();
    profile.info.period = profile.info.period.saturating_mul(times);
    for value in profile.samples.values_mut() {
        value.weight = value.weight.saturating_mul(times);
    }
    for time in &mut profile.timestamps.list {
        time.weight = time.weight.saturating_mul(times);
    }
}

/// Leaves what of a capture is in a range. What was missed, and how waits were spread, is known of
/// all of it alone.
fn cut(
    profile: &mut Profile,
    span: TimeRange,
    range: TimeRange,
    budget: &mut QueryBudget<'_>,
) -> Result<(), StoreError> {
    let held = profile.samples.len() * 2 * TIMED_BYTES;
    budget.hold(held)?;
    let mut samples = HashMap::new();
    each_step(
        profile,
        span,
        || budget.check(),
        |key, step, value| {
            if range.start_unix_ns <= step && step < range.end_unix_ns {
                *samples.entry(key).or_default() += value;
            }
        },
    )?;
    profile.samples = samples;
    profile.info.quality = Quality::default();
    profile.info.waits = Waits::default();
    let start = span.start_unix_ns.max(range.start_unix_ns);
    let end = span.end_unix_ns.min(range.end_unix_ns);
    profile.info.start_unix_ns = start;
    profile.info.duration_ns = u64::try_from(end.saturating_sub(start)).unwrap_or(0);
    budget.release(held);
    Ok(())
}

/// What a query takes of a profile.
fn asked(
    profile: &Profile,
    query: &Query,
    budget: &QueryBudget<'_>,
) -> Result<Profile, StoreError> {
    let mut runner = QueryRunner::new(query);
    for slice in profile.sorted().chunks(SLICE) {
        budget.check()?;
        for &(key, value) in slice {
            runner.add(&profile.dict, key, value);
        }
    }
    Ok(runner.finish(profile.info.clone()))
}

/// The names of a batch, which nobody adds to.
struct Names(Dictionary, Vec<(StackId, StackEnd)>);

impl BatchDict for Names {
    fn read<T>(&self, look: impl FnOnce(&Dictionary, &[(StackId, StackEnd)]) -> T) -> T {
        look(&self.0, &self.1)
    }
}

/// A profile as a batch of the query engine.
fn batch(profile: Profile) -> SampleBatch<Names> {
    let sorted = profile.sorted();
    let mut leaves: Vec<_> = sorted.iter().map(|(key, _)| (key.stack, key.end)).collect();
    leaves.sort_unstable();
    leaves.dedup();
    let (mut labels, mut list) = (Vec::new(), Vec::with_capacity(sorted.len()));
    for (key, value) in sorted {
        if labels.last() != Some(&key.labels) {
            labels.push(key.labels);
        }
        let leaf = leaves.partition_point(|leaf| *leaf < (key.stack, key.end));
        list.push((labels.len() as u32 - 1, leaf as u32, value));
    }
    SampleBatch {
        dict: Names(profile.dict, leaves),
        lists: vec![(labels, list)],
        kinds: vec![profile.info],
        is_one_of_several: false,
    }
}

impl WindowSource for Source {
    type Dict = Names;

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        let spans = self.found(None, &Selector::default())?.into_iter();
        let spans = spans.map(|of| whole_steps(of.span, WINDOW_NS));
        Ok(spans.reduce(|all, one| TimeRange {
            start_unix_ns: all.start_unix_ns.min(one.start_unix_ns),
            end_unix_ns: all.end_unix_ns.max(one.end_unix_ns),
        }))
    }

    fn covered(&self, range: TimeRange) -> TimeRange {
        whole_steps(range, WINDOW_NS)
    }

    fn step_ns(&self, _range: TimeRange) -> u64 {
        WINDOW_NS
    }

    /// None: what hosts are and do is not in captures.
    fn host_records(&self, _budget: &mut QueryBudget<'_>) -> Result<Vec<HostRecord>, StoreError> {
        Ok(Vec::new())
    }

    /// A capture is a window of each of its hosts, or of one where hosts are not told apart.
    fn activity(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<FleetActivity, StoreError> {
        let mut fleet = FleetActivity::default();
        let range = self.covered(scope.range);
        self.each_index(scope, budget, |of, (index, selector), _| {
            let missed = match (of.is_within(range), self.caller.sees_parts_of_hosts()) {
                (true, false) => index.quality,
                (true, true) => of_samples(index.quality),
                (false, _) => Quality::default(),
            };
            for (number, name) in index.hosts(range, selector).into_iter().enumerate() {
                let host_id = match name {
                    "" => format!("capture {}", of.id),
                    name => name.to_owned(),
                };
                let boot_id = [0; 16];
                let host = fleet.hosts.entry(HostKey { host_id, boot_id });
                let HostActivity { inside, .. } = host.or_default();
                inside.windows += 1;
                if number == 0 {
                    inside.sampling += missed;
                }
            }
            Ok(())
        })?;
        Ok(fleet)
    }

    fn label_names(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Vec<String>, StoreError> {
        let mut names: BTreeSet<String> = BTreeSet::new();
        let range = self.covered(scope.range);
        self.each_index(scope, budget, |_, (index, selector), _| {
            for row in index.rows(range, selector) {
                let own_type = self.of.is_none().then_some(PROFILE_TYPE);
                for name in row.labels.iter().map(|(name, _)| name).chain(own_type) {
                    if !names.contains(name) {
                        names.insert(name.to_owned());
                    }
                }
            }
            Ok(())
        })?;
        Ok(names.into_iter().collect())
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(Vec<String>, bool), StoreError> {
        let mut values = BTreeSet::new();
        let range = self.covered(scope.range);
        let (of_type, of_labels) = parts(&scope.selector);
        if name == PROFILE_TYPE && of_labels.is_empty() {
            // Their files need not be read.
            let found = self.found(Some(range), &of_type)?;
            values.extend(found.into_iter().map(|of| of.of));
        } else {
            self.each_index(scope, budget, |of, (index, selector), budget| {
                for row in index.rows(range, selector) {
                    let value = match name {
                        PROFILE_TYPE => of.of.as_str(),
                        name => row.labels.get(name),
                    };
                    if !value.is_empty() && !values.contains(value) {
                        budget.hold(value.len() + 64)?;
                        values.insert(value.to_owned());
                    }
                }
                Ok(())
            })?;
        }
        values.retain(|value| value.starts_with(prefix));
        let more = values.len() > limit;
        Ok((values.into_iter().take(limit).collect(), more))
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<SeriesSums, StoreError> {
        let mut sums = SeriesSums {
            lines: HashMap::new(),
            total: Value::default(),
            units: Units::default(),
            resolution: RESOLUTION,
            steps: vec![Step::default(); axis.steps],
        };
        let (range, all) = (scope.range, Selector::default());
        // A host that was captured several times in a step is one of its hosts.
        let mut known: HashSet<(usize, String)> = HashSet::new();
        self.each_index(scope, budget, |of, (index, selector), budget| {
            let hosts = index.hosts(range, selector);
            if hosts.is_empty() {
                return Ok(());
            }
            let told_apart = hosts.len() as u64;
            sums.units.add(&index.unit)?;
            for row in index.rows(range, selector) {
                let labels = self.kept_labels(of, row, group_by);
                if !sums.lines.contains_key(&labels) {
                    budget.hold(axis.steps * size_of::<u64>())?;
                }
                let line = sums.lines.entry(labels);
                let line = line.or_insert_with(|| vec![0; axis.steps]);
                for (step, value) in row.steps(range) {
                    sums.total += *value;
                    if let Some(sum) = line.get_mut(axis.step_of(*step)) {
                        *sum = sum.saturating_add(value.weight);
                    }
                }
            }
            // A step is of all that was captured, whatever is selected of it.
            let mut touched = BTreeSet::new();
            for row in index.rows(range, &all) {
                for (at, value) in row.steps(range) {
                    let Some(step) = sums.steps.get_mut(axis.step_of(*at)) else {
                        continue;
                    };
                    step.weight = step.weight.saturating_add(value.weight);
                    if row.is_lost {
                        step.lost_weight = step.lost_weight.saturating_add(value.weight);
                    }
                    touched.insert(*at);
                }
            }
            for at in touched {
                let number = axis.step_of(at);
                let ran = at.saturating_add(WINDOW_NS as i64).min(of.span.end_unix_ns);
                let ran = ran.abs_diff(at.max(of.span.start_unix_ns));
                if let Some(step) = sums.steps.get_mut(number) {
                    let all_ran = ran.saturating_mul(told_apart);
                    step.covered_ns = step.covered_ns.saturating_add(all_ran);
                    for host in &hosts {
                        let host = (number, (*host).to_owned());
                        if !known.contains(&host) {
                            budget.hold(size_of_val(&host) + host.1.len())?;
                            known.insert(host);
                            step.hosts += 1;
                        }
                    }
                }
            }
            Ok(())
        })?;
        Ok(sums)
    }

    /// # Errors
    /// Always: no kernel accounts for what was captured.
    fn accounted(
        &self,
        _scope: &Scope,
        _group_by: &GroupBy,
        _axis: Axis,
        _budget: &mut QueryBudget<'_>,
    ) -> Result<AccountSums, StoreError> {
        let text =
            "the kernel's accounting is of the CPU time of hosts: ask without a profile type";
        Err(StoreError::TooLarge(text.to_owned()))
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        budget: &mut QueryBudget<'_>,
    ) -> Result<LabelSums, StoreError> {
        let mut sums = LabelSums {
            rows: HashMap::new(),
            units: Units::default(),
            resolution: RESOLUTION,
        };
        let range = scope.range;
        self.each_index(scope, budget, |of, (index, selector), budget| {
            for row in index.rows(range, selector) {
                sums.units.add(&index.unit)?;
                let labels = self.kept_labels(of, row, group_by);
                if !sums.rows.contains_key(&labels) {
                    budget.hold(size_of::<Row>() + 128)?;
                }
                let sum = sums.rows.entry(labels).or_default();
                let value = match row.is_lost {
                    true => &mut sum.lost,
                    false => &mut sum.taken,
                };
                for (_, step) in row.steps(range) {
                    *value += *step;
                }
            }
            Ok(())
        })?;
        Ok(sums)
    }

    /// All captures as one batch: they are added up one after the other, with the labels that stay,
    /// and only the sum is held.
    fn samples(
        &self,
        range: TimeRange,
        query: &Query,
        budget: &mut QueryBudget<'_>,
        each: &mut EachBatch<'_, Names>,
    ) -> Result<SamplesRead, StoreError> {
        let range = self.covered(range);
        let (of_type, of_labels) = parts(query.selector());
        let of_samples = Query::new(of_labels, Vec::new(), query.group_by().clone());
        // It has no more matchers than the query, and no filters.
        let of_samples = of_samples.map_err(|error| StoreError::TooLarge(error.to_string()))?;
        let mut merged = Profile::default();
        let mut held = 0;
        for of in self.found(Some(range), &of_type)? {
            budget.check()?;
            let Some((mut profile, _)) = self.read(&of, budget)? else {
                continue;
            };
            let mut own = profile.heap_bytes();
            if self.caller.sees_parts_of_hosts() {
                // Both are there for a moment.
                budget.hold(own)?;
                profile = in_part(profile);
                own *= 2;
            }
            if !of.is_within(range) {
                cut(&mut profile, of.span, range, budget)?;
            }
            profile.timestamps = Timestamps::default();
            profile.info.coverage = Coverage::default();
            let taken = asked(&profile, &of_samples, budget)?;
            budget.hold(taken.heap_bytes())?;
            if !taken.samples.is_empty() {
                merged.merge(&taken)?;
            }
            budget.release(own + taken.heap_bytes());
            let grown = merged.heap_bytes();
            budget.hold(grown.saturating_sub(held))?;
            held = grown;
        }
        if !merged.samples.is_empty() {
            budget.hold(merged.samples.len() * SAMPLE_BYTES)?;
            each(batch(merged), budget)?;
        }
        Ok(SamplesRead {
            covered: range,
            resolution: RESOLUTION,
        })
    }
}

#[cfg(test)]
#[path = "captured_tests.rs"]
mod tests;
