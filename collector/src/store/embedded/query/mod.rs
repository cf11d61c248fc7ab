//! Reads data for the query engine. Partitions are read one after the other, each as of one
//! instant; a damaged one is left out and named in the answer's quality.

mod accounted;
mod activity;
mod choice;
mod labels;
mod plan;
mod samples;
mod series;
mod steps;
mod sums;
mod totals;

use super::EmbeddedStore;
use super::chunk::CHUNK_NS;
use super::chunk_slice::ChunkSlice;
use super::codec::Corrupt;
use super::dict::Dict;
use super::file::FileError;
use super::partition::Partition;
use super::reader::StoreReader;
use crate::store::query::{
    AccountSums, Axis, EachBatch, FleetActivity, LabelSums, QueryBudget, SamplesRead, SeriesSums,
    WindowSource,
};
use crate::store::{HostRecord, LabelSet, Scope, StoreError, TimeRange};
use crate::sync::{lock, read};
use ::profile::{GroupBy, LabelSetId, Query, Selector, StrId};
use hashbrown::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl WindowSource for EmbeddedStore {
    type Dict = samples::PartitionDict;

    fn kept(&self) -> Result<Option<TimeRange>, StoreError> {
        let mut kept: Option<TimeRange> = None;
        for (_, boot) in read(&self.catalog.host_index).iter() {
            let range = kept.get_or_insert(TimeRange {
                start_unix_ns: boot.first_start(),
                end_unix_ns: boot.last_end(),
            });
            range.start_unix_ns = range.start_unix_ns.min(boot.first_start());
            range.end_unix_ns = range.end_unix_ns.max(boot.last_end());
        }
        Ok(kept)
    }

    fn covered(&self, range: TimeRange) -> TimeRange {
        plan::covered(&self.reader, range)
    }

    fn step_ns(&self, range: TimeRange) -> u64 {
        plan::level_of(&self.reader, range).step_ns()
    }

    fn host_records(&self, _budget: &mut QueryBudget<'_>) -> Result<Vec<HostRecord>, StoreError> {
        Ok(lock(&self.catalog.hosts)
            .records
            .values()
            .cloned()
            .collect())
    }

    fn activity(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<FleetActivity, StoreError> {
        activity::activity(&self.reader, scope, budget)
    }

    fn unreadable(&self, range: TimeRange) -> Vec<String> {
        activity::damaged(&self.reader, range)
    }

    fn not_kept(
        &self,
        range: TimeRange,
        labels: &[&str],
        _stacks: bool,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Option<(String, i64)>, StoreError> {
        labels::not_kept(&self.reader, range, labels, budget)
    }

    fn label_names(
        &self,
        scope: &Scope,
        budget: &mut QueryBudget<'_>,
    ) -> Result<Vec<String>, StoreError> {
        labels::names(&self.reader, scope, budget)
    }

    fn label_values(
        &self,
        scope: &Scope,
        name: &str,
        prefix: &str,
        limit: usize,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(Vec<String>, bool), StoreError> {
        labels::values(&self.reader, scope, name, prefix, limit, budget)
    }

    fn series(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<SeriesSums, StoreError> {
        series::series(&self.reader, scope, group_by, axis, budget)
    }

    fn accounted(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        axis: Axis,
        budget: &mut QueryBudget<'_>,
    ) -> Result<AccountSums, StoreError> {
        accounted::accounted(&self.reader, scope, group_by, axis, budget)
    }

    fn totals(
        &self,
        scope: &Scope,
        group_by: &GroupBy,
        budget: &mut QueryBudget<'_>,
    ) -> Result<LabelSums, StoreError> {
        totals::totals(&self.reader, scope, group_by, budget)
    }

    fn samples(
        &self,
        range: TimeRange,
        query: &Query,
        budget: &mut QueryBudget<'_>,
        each: &mut EachBatch<'_, Self::Dict>,
    ) -> Result<SamplesRead, StoreError> {
        samples::samples(&self.reader, range, query, budget, each)
    }
}

/// Subject of the issue that the archive does not answer queries.
const ARCHIVE_READS: &str = "archive reads";

fn left_out(text: &str) -> String {
    format!("answers leave archived partitions out, and say so: {text}")
}

/// Why a partition was not read to its end.
#[derive(Debug)]
pub enum Stop {
    /// The query ends.
    Query(StoreError),
    /// The file is at fault.
    File(FileError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Query(error)
    }
}

impl From<FileError> for Stop {
    fn from(error: FileError) -> Stop {
        Stop::File(error)
    }
}

impl From<Corrupt> for Stop {
    fn from(damage: Corrupt) -> Stop {
        Stop::File(damage.into())
    }
}

/// The slices of a partition in a range.
pub fn slices(partition: &Partition, range: TimeRange) -> Vec<ChunkSlice> {
    let range = plan::widened(partition, range);
    let (from, to) = (range.start_unix_ns, range.end_unix_ns);
    if from >= to {
        return Vec::new();
    }
    let (first, first_into) = partition.chunk_of(from);
    let (last, last_into) = partition.chunk_of(to - 1);
    (first..=last)
        .map(|chunk| {
            let start = if chunk == first { first_into } else { 0 };
            let end = if chunk == last {
                last_into + 1
            } else {
                CHUNK_NS
            };
            let whole = start == 0 && end == CHUNK_NS;
            ChunkSlice {
                chunk,
                part: (!whole).then_some((start, end)),
            }
        })
        .collect()
}

/// Partitions with time of the range, oldest first.
pub fn partitions(reader: &StoreReader, range: TimeRange) -> Vec<Arc<Partition>> {
    reader.catalog.readable(|partition| {
        partition.start < range.end_unix_ns && range.start_unix_ns < partition.end
    })
}

/// Runs `one` on each partition of a range. What it returns for a partition goes to `done`; a
/// damaged partition is left out and named.
pub fn each_partition<T>(
    reader: &StoreReader,
    range: TimeRange,
    budget: &mut QueryBudget<'_>,
    one: impl FnMut(&Arc<Partition>, &mut QueryBudget<'_>) -> Result<T, Stop>,
    done: impl FnMut(T, &mut QueryBudget<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let all = partitions(reader, range);
    each_of(reader, all, budget, one, done)
}

/// As [`each_partition`], of these partitions.
fn each_of<T>(
    reader: &StoreReader,
    all: Vec<Arc<Partition>>,
    budget: &mut QueryBudget<'_>,
    mut one: impl FnMut(&Arc<Partition>, &mut QueryBudget<'_>) -> Result<T, Stop>,
    mut done: impl FnMut(T, &mut QueryBudget<'_>) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    reader.catalog.check_open()?;
    let (mut archived_read, mut all_read) = (false, true);
    for partition in all {
        budget.check()?;
        if partition.damaged.load(Ordering::Acquire) {
            continue;
        }
        let is_archived = partition.object.is_some();
        match read_current(reader, partition, |partition| one(partition, budget)) {
            Ok(Some(found)) => {
                archived_read |= is_archived;
                done(found, budget)?;
            }
            Ok(None) => {}
            Err((_, Stop::Query(error))) => return Err(error),
            Err((partition, Stop::File(FileError::Damaged(text)))) => {
                reader.catalog.mark_damaged(&partition, &text);
            }
            // The others answer, and the answer says which does not.
            Err((partition, Stop::File(FileError::Archive(text)))) => {
                let name = partition.path.file_name().unwrap_or_default();
                budget.leave_out(format!("{} in the archive", name.display()));
                all_read = false;
                reader
                    .catalog
                    .report_issue(ARCHIVE_READS, Some(left_out(&text)));
            }
            Err((partition, Stop::File(error))) => {
                return Err(reader
                    .catalog
                    .file_error("read a partition", &partition, error));
            }
        }
    }
    if archived_read && all_read {
        reader.catalog.report_issue(ARCHIVE_READS, None);
    }
    Ok(())
}

/// Reads a partition, or what took its place while it was read. `None`: it was removed meanwhile,
/// for its age or the disk budget.
fn read_current<T>(
    reader: &StoreReader,
    mut partition: Arc<Partition>,
    mut one: impl FnMut(&Arc<Partition>) -> Result<T, Stop>,
) -> Result<Option<T>, (Arc<Partition>, Stop)> {
    loop {
        reader.catalog.use_partition(&partition);
        let counters = &reader.catalog.counters;
        counters.partitions_read.inc();
        let is_loaded = partition.dict_in_memory().is_some();
        let done = one(&partition);
        reader.note_connected(&partition);
        if !is_loaded {
            reader.note_loaded(&partition);
        }
        let stop = match done {
            Ok(found) => return Ok(Some(found)),
            Err(stop @ Stop::File(_)) => stop,
            Err(stop) => return Err((partition, stop)),
        };
        // Its file went because the archive has it.
        if !matches!(stop, Stop::File(FileError::Damaged(_)))
            && partition.object.is_none()
            && let Some(archived) = reader.catalog.archived_as(&partition)
        {
            partition = archived;
            continue;
        }
        if partition.object.is_some() {
            return Err((partition, stop));
        }
        // A level is never left for a finer one, so this ends.
        match read(&reader.catalog.partitions)
            .get(&partition.start)
            .cloned()
        {
            None if !matches!(stop, Stop::File(FileError::Damaged(_))) => return Ok(None),
            Some(current) if current.level > partition.level => partition = current,
            _ => return Err((partition, stop)),
        }
    }
}

/// By label set: whether the selector takes it. Each distinct value is matched once.
pub fn select(dict: &Dict, selector: &Selector) -> Vec<bool> {
    let strings = &dict.tables.strings;
    let mut taken = vec![true; dict.tables.label_sets.len()];
    for matcher in selector.matchers() {
        let name = strings.find(matcher.label());
        let mut known: HashMap<StrId, bool> = HashMap::new();
        for (slot, pairs) in taken.iter_mut().zip(dict.tables.label_sets.iter()) {
            if !*slot {
                continue;
            }
            let found = name.and_then(|name| pairs.iter().find(|&&(own, _)| own == name));
            let value = found.map_or(StrId::EMPTY, |&(_, value)| value);
            *slot = *known
                .entry(value)
                .or_insert_with(|| matcher.matches(strings.get(value)));
        }
    }
    taken
}

/// The labels of a set that are kept, as text.
pub fn kept_labels(dict: &Dict, labels: LabelSetId, group_by: &GroupBy) -> LabelSet {
    let pairs = dict
        .tables
        .labels(labels)
        .filter(|(name, _)| group_by.keeps(name));
    LabelSet::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

/// True when the rollup by service answers for the labels of selector and grouping.
pub fn service_answers(dict: &Dict, selector: &Selector, group_by: &GroupBy) -> bool {
    let GroupBy::Keys(keys) = group_by else {
        return false;
    };
    let asked = selector.matchers().iter().map(|matcher| matcher.label());
    asked
        .chain(keys.iter().map(String::as_str))
        .all(|label| dict.service_has(label))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_cut_into_whole_chunks_and_parts_of_chunks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.sqlite");
        let minute = 60_000_000_000;
        let partition = Partition::create(
            path,
            folder.path().join("log"),
            (0, 36 * 10 * minute),
            &[],
            None,
        )
        .unwrap();
        let range = |from: i64, to: i64| TimeRange {
            start_unix_ns: from * minute,
            end_unix_ns: to * minute,
        };
        let part = |chunk, from: u64, to: u64| ChunkSlice {
            chunk,
            part: Some((from * minute as u64, to * minute as u64)),
        };
        let whole = |chunk| ChunkSlice { chunk, part: None };
        assert_eq!(slices(&partition, range(-5, 10)), [whole(0)]);
        assert_eq!(
            slices(&partition, range(5, 25)),
            [part(0, 5, 10), whole(1), part(2, 0, 5)]
        );
        assert_eq!(slices(&partition, range(12, 13)), [part(1, 2, 3)]);
        assert_eq!(slices(&partition, range(13, 13)), []);
        assert_eq!(slices(&partition, range(400, 500)), []);
    }
}
