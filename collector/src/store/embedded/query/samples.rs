//! Samples added up by dense ids of each partition.

use super::super::block::Block;
use super::super::chunk_slice::ChunkSlice;
use super::super::codec::{Reader, SectionReader};
use super::super::dict::{Dict, NONE};
use super::super::file::FileError;
use super::super::level::Level;
use super::super::partition::{Facts, Partition, View};
use super::super::read_file::ReadFile;
use super::super::reader::StoreReader;
use super::super::summaries::decode_hosts;
use super::super::table::Table;
use super::choice::Choice;
use super::plan::{Plan, Read, covered, plan};
use super::sums::Sums;
use super::{Stop, each_partition, partitions, select, service_answers, slices};
use crate::store::query::{BatchDict, EachBatch, LeafSums, QueryBudget, SampleBatch, SamplesRead};
use crate::store::{StoreError, TimeRange};
use crate::sync::read;
use ::profile::{Dictionary, Info, Query, StackEnd, StackId};
use std::ops::Range;
use std::sync::{Arc, RwLock};

/// Fewer groups than one in so many are looked up one by one; more are found by reading all.
const SCAN_SHARE: usize = 4;

/// One partition's contribution to the answer.
struct Found {
    /// The partition's dictionary.
    dict: Arc<RwLock<Dict>>,
    /// By rollup.
    lists: Vec<LeafSums>,
    /// By kind of samples: some were read.
    kinds: Vec<bool>,
    /// Which data was read.
    read: Read,
}

/// See [`WindowSource::samples`](crate::store::query::WindowSource::samples).
pub fn samples(
    reader: &StoreReader,
    range: TimeRange,
    query: &Query,
    budget: &mut QueryBudget<'_>,
    each: &mut EachBatch<'_, PartitionDict>,
) -> Result<SamplesRead, StoreError> {
    let covered = covered(reader, range);
    let is_one_of_several = partitions(reader, covered).len() > 1;
    let mut used = Read::default();
    each_partition(
        reader,
        covered,
        budget,
        |partition, budget| read_partition(partition, covered, query, budget),
        |found, budget| {
            used |= found.read;
            reader.name_frames(&found.dict, budget.limits);
            let kinds = kinds(&read(&found.dict), &found.kinds, covered);
            let batch = SampleBatch {
                dict: PartitionDict(found.dict),
                lists: found.lists,
                kinds,
                is_one_of_several,
            };
            each(batch, budget)
        },
    )?;
    Ok(SamplesRead {
        covered,
        resolution: used.resolution(),
    })
}

/// The dictionary of a partition, which pushes add to.
pub struct PartitionDict(Arc<RwLock<Dict>>);

impl BatchDict for PartitionDict {
    fn read<T>(&self, look: impl FnOnce(&Dictionary, &[(StackId, StackEnd)]) -> T) -> T {
        let dict = read(&self.0);
        look(&dict.tables, &dict.leaves)
    }
}

/// What is known of the kinds of samples that were read.
fn kinds(dict: &Dict, used: &[bool], range: TimeRange) -> Vec<Info> {
    let used = dict.kinds.iter().zip(used).filter(|(_, used)| **used);
    let kinds = used.map(|(kind, _)| Info {
        start_unix_ns: range.start_unix_ns,
        duration_ns: range.end_unix_ns.abs_diff(range.start_unix_ns),
        event: kind.event.clone(),
        unit: kind.unit.clone(),
        period: kind.period,
        ..Info::default()
    });
    kinds.collect()
}

/// Adds up what one partition has.
fn read_partition(
    partition: &Arc<Partition>,
    range: TimeRange,
    query: &Query,
    budget: &mut QueryBudget<'_>,
) -> Result<Found, Stop> {
    let dict = partition.dict_for(budget.limits)?;
    let slices = slices(partition, range);
    let mut found = Found {
        dict: Arc::clone(&dict),
        lists: Vec::new(),
        kinds: Vec::new(),
        read: Read {
            level: partition.level,
            ..Read::default()
        },
    };
    let (Some(first), Some(last)) = (slices.first(), slices.last()) else {
        return Ok(found);
    };
    let choose = || {
        let dict = read(&dict);
        let taken = select(&dict, query.selector());
        let choose = |table| Choice::new(&dict, &taken, query.group_by(), table);
        let by_group = choose(Table::Block);
        let answers = service_answers(&dict, query.selector(), query.group_by());
        // At the level of service hours services are the series.
        let by_service = (answers && partition.level != Level::ServiceHours)
            .then(|| choose(Table::ServiceBlock));
        (by_group, by_service, dict.leaves.len(), dict.kinds.len())
    };
    let chunks = (first.chunk, last.chunk);
    let (view, chosen) = partition.view(
        budget.limits,
        chunks,
        |_| Facts::None,
        choose,
        |(by_group, ..), group| by_group.wants(group),
    )?;
    let (by_group, by_service, leaves, kinds) = chosen;
    found.kinds.resize(kinds, false);
    if by_group.chosen == 0 {
        view.close(partition);
        return Ok(found);
    }
    budget.hold(view.heap_bytes())?;
    let planned = SectionReader::new()
        .map_err(FileError::from)
        .and_then(|mut opener| {
            let complete = complete(partition, &view.file, &mut opener, &slices)?;
            let services = |slice: &ChunkSlice| {
                by_service.is_some() && (slice.is_of_minutes() || complete.contains(&slice.chunk))
            };
            let plan = plan(partition, &view.file, &slices, services, true)?;
            Ok((opener, complete, plan))
        });
    let (opener, complete, plan) = match planned {
        Ok(planned) => planned,
        Err(error) => {
            view.close(partition);
            return Err(error.into());
        }
    };
    let mut reader = Reading {
        view: &view,
        opener,
        complete: &complete,
        block: Block::default(),
        room: Room::default(),
        kinds: &mut found.kinds,
        read: &mut found.read,
    };
    let mut lists = Vec::new();
    let mut all_read = Ok(());
    for choice in [by_service.as_ref(), Some(&by_group)].into_iter().flatten() {
        let mut sums = Sums::new(choice.sample_of.len(), leaves, choice.period());
        all_read = budget
            .hold(sums.heap_bytes())
            .map_err(Stop::from)
            .and_then(|()| reader.read(choice, &plan, &slices, &mut sums, budget));
        if all_read.is_err() {
            break;
        }
        lists.push((choice.sample_of.clone(), sums.into_list()));
    }
    budget.release(view.heap_bytes());
    view.close(partition);
    all_read?;
    found.lists = lists;
    Ok(found)
}

/// Chunks of which a slice has a part, and the file nothing else: what they add up to is read then,
/// and not when it was. The last minutes of a fleet are such a part, and so are its first ones.
fn complete(
    partition: &Partition,
    file: &ReadFile,
    opener: &mut SectionReader,
    slices: &[ChunkSlice],
) -> Result<Vec<u16>, FileError> {
    let mut complete = Vec::new();
    if partition.level != Level::Windows {
        return Ok(complete);
    }
    let mut raw = Vec::new();
    for slice in slices {
        let Some(part) = slice.part_from(partition.chunk_start(slice.chunk)) else {
            continue;
        };
        let mut is_complete = true;
        file.each_windows(
            slice.chunk,
            slice.chunk,
            |_, body| -> Result<(), FileError> {
                let all = decode_hosts(opener, &mut Reader::new(body), &mut raw)?;
                is_complete &= all.is_within(part);
                Ok(())
            },
        )?;
        if is_complete {
            complete.push(slice.chunk);
        }
    }
    Ok(complete)
}

/// Reads blocks of one partition.
struct Reading<'r> {
    view: &'r View,
    opener: SectionReader,
    /// Chunks of which the file has nothing beyond their slice.
    complete: &'r [u16],
    block: Block,
    room: Room,
    kinds: &'r mut Vec<bool>,
    read: &'r mut Read,
}

impl Reading<'_> {
    /// Adds up what `choice` takes: services where they answer, groups for the rest and for memory.
    fn read(
        &mut self,
        choice: &Choice,
        plan: &Plan,
        slices: &[ChunkSlice],
        sums: &mut Sums,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), Stop> {
        let service = choice.table == Table::ServiceBlock;
        for slice in if service { &plan.services } else { &plan.own } {
            self.read_slice(choice, *slice, sums, budget)?;
        }
        if service {
            return Ok(());
        }
        for mem in &self.view.chunks {
            let Some(slice) = slices.iter().find(|slice| slice.chunk == mem.chunk) else {
                continue;
            };
            for (group, rows) in &mem.groups {
                budget.check()?;
                let period = choice.period_of(*group);
                let mut any = false;
                let wanted = |start| slice.has(start);
                rows.each_run(period, wanted, |_, run| {
                    let kept = choice.kept(run.series);
                    if kept != NONE {
                        any = true;
                        sums.add_run(kept, &run, period);
                    }
                })?;
                if any {
                    self.read.windows = true;
                    self.note_kind(choice, *group);
                }
            }
        }
        Ok(())
    }

    fn note_kind(&mut self, choice: &Choice, bundle: u32) {
        let kind = choice.kinds.get(bundle as usize).copied();
        if let Some(used) = kind.and_then(|kind| self.kinds.get_mut(usize::from(kind))) {
            *used = true;
        }
    }

    fn read_slice(
        &mut self,
        choice: &Choice,
        slice: ChunkSlice,
        sums: &mut Sums,
        budget: &mut QueryBudget<'_>,
    ) -> Result<(), Stop> {
        let file = &self.view.file;
        if choice.chosen * SCAN_SHARE > choice.bundles.len() {
            let all = (0, 1 << 32);
            file.each_blob(
                choice.table,
                slice.chunk,
                all,
                |bundle| choice.wants(bundle),
                |bundle, body| self.add_block(choice, bundle, slice, body, sums, budget),
            )?;
            return Ok(());
        }
        let chosen = choice
            .bundles
            .iter()
            .enumerate()
            .filter(|(_, chosen)| **chosen);
        for (bundle, _) in chosen {
            let only = (bundle as u32, bundle as u64 + 1);
            file.each_blob(
                choice.table,
                slice.chunk,
                only,
                |_| true,
                |bundle, body| self.add_block(choice, bundle, slice, body, sums, budget),
            )?;
        }
        Ok(())
    }

    fn add_block(
        &mut self,
        choice: &Choice,
        bundle: u32,
        slice: ChunkSlice,
        body: &[u8],
        sums: &mut Sums,
        budget: &QueryBudget<'_>,
    ) -> Result<(), Stop> {
        budget.check()?;
        let period = choice.period_of(bundle);
        let part = slice.part.filter(|_| !self.complete.contains(&slice.chunk));
        self.block.read(&mut self.opener, body, period, part)?;
        let (mut start, mut any) = (0, false);
        for &(series, end) in &self.block.series {
            let kept = choice.kept(series);
            if kept != NONE {
                let of = (kept, period);
                any |= add_series(&self.block, start..end, of, &mut self.room, sums);
            }
            start = end;
        }
        if any {
            self.note_kind(choice, bundle);
            match choice.table {
                Table::ServiceBlock => self.read.note_service(slice),
                _ => self.read.windows = true,
            }
        }
        Ok(())
    }
}

/// Room for columns of what is added up.
#[derive(Default)]
struct Room {
    leaves: Vec<u32>,
    counts: Vec<u64>,
}

/// Adds rows of one series of a block; says whether there was one.
fn add_series(
    block: &Block,
    rows: Range<usize>,
    (kept, period): (u32, u64),
    room: &mut Room,
    sums: &mut Sums,
) -> bool {
    let rows = || {
        let values = block.leaves[rows.clone()]
            .iter()
            .zip(&block.values[rows.clone()]);
        let all = values.zip(&block.present[rows.clone()]);
        all.filter(|(_, present)| **present).map(|(row, _)| row)
    };
    if !block.plain {
        rows().for_each(|(&leaf, &value)| sums.add(kept, leaf, value));
        return rows().next().is_some();
    }
    room.leaves.clear();
    room.counts.clear();
    for (&leaf, value) in rows() {
        room.leaves.push(leaf);
        room.counts.push(value.count);
    }
    sums.add_counts(kept, &room.leaves, &room.counts, period);
    !room.leaves.is_empty()
}
