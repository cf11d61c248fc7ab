//! Rewrites a partition's file with coarser data. The new file replaces the finer one.
//!
//! The new file is built next to the old one in small steps and gets its name when it is complete
//! and on disk. From then on it is the partition: a start that finds both removes the finer one.
//! Numbers of windows, records of the log and hosts are copied, so repeated windows are still
//! recognized. Minutes and ten minutes keep the dictionary and all ids. At the level of service
//! hours, samples have only their service's label, so label sets and series change; ids of stacks
//! stay.
//!
//! Minutes and ten minutes keep the dictionary and all ids. At the level of service hours samples
//! have no label but their service's, so label sets and series are others; ids of stacks stay.

use super::chunk::{HOUR_CHUNKS, HOURS_FROM};
use super::codec::{Reader, SectionReader, SectionWriter};
use super::compact::{Unpacker, step_of, windows_of};
use super::dict::Dict;
use super::dict_version::DictVersion;
use super::encode::Tables;
use super::encode::again::{Gathered, Moment, groups_of};
use super::file::{FileError, PartitionFile, Replacement};
use super::level::Level;
use super::meta::{Account, Summary};
use super::partition::Partition;
use super::partition_log::new_generation;
use super::summaries::{ChunkWindows, decode_hosts};
use super::table::Table;
use crate::store::LabelSet;
use crate::sync::read;
use profile::{LabelSetId, StackId, Throttling};
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

/// A step of the work.
#[derive(Clone, Copy, Debug)]
enum Unit {
    /// A range of bundles of a chunk.
    Range(Table, u16, u32),
    /// What is kept of the windows of a chunk; of the chunks of an hour, where those are one.
    Windows(u16),
    /// Sums of an hour, as they are.
    CopyHour(u16),
    /// Sums of an hour, as series of their own.
    ServiceHour(u16),
}

/// A partition that is being downsampled.
pub struct Downsampling {
    /// The partition.
    pub partition: Arc<Partition>,
    /// What it is made to.
    pub level: Level,
    /// What was in the old file when the work started.
    pub records: BTreeMap<u16, u64>,
    from: PartitionFile,
    into: PartitionFile,
    unpacker: Unpacker,
    services: Option<Services>,
    units: VecDeque<Unit>,
    valid_hours: Vec<u16>,
}

/// What ids of the finer partition are in one of service hours.
struct Services {
    tables: Tables,
    /// By series, which are the services before: their group.
    groups: Vec<u32>,
    /// By label set: the label set of the host, or of the service, in the new dictionary.
    hosts: BTreeMap<u32, u32>,
    services: Vec<u32>,
}

impl Downsampling {
    /// Starts. `None` when something is not in the file, or its hours are not added up.
    pub fn start(partition: Arc<Partition>, level: Level) -> Result<Option<Self>, FileError> {
        // Before the state of the file is fixed: what is flushed in between shows at the end.
        let records = partition.flushed_records();
        let from = PartitionFile::open(&partition.path)?;
        from.begin()?;
        let valid_hours = from.hours_valid()?;
        let parts = from.chunk_parts()?;
        let same_chunks = parts.keys().eq(records.keys());
        let added_up = from.hours()?.len() == valid_hours.len();
        if !partition.is_flushed() || !same_chunks || (level == Level::ServiceHours && !added_up) {
            return Ok(None);
        }
        let unpacker = Unpacker::new(&partition)?;
        let path = level.path(&partition.path);
        // Other ids, another generation: the log of the finer file is of no use to this one.
        let generation = match level {
            Level::ServiceHours => new_generation(),
            _ => partition.generation,
        };
        let mut into =
            PartitionFile::create_replacement(&path, &partition.service_labels, generation, &from)?;
        into.copy_records(&from)?;
        let mut units = VecDeque::new();
        let mut services = None;
        if level == Level::ServiceHours {
            let dict = partition.dict(false)?;
            services = Some(Services::new(&partition, &read(&dict), &from, &mut into)?);
            for &hour in &valid_hours {
                units.extend([Unit::ServiceHour(hour), Unit::Windows(hour * HOUR_CHUNKS)]);
            }
        } else {
            into.copy_dict(&from)?;
            for &chunk in parts.keys() {
                for table in [Table::Block, Table::ServiceBlock] {
                    let ranges = 0..unpacker.tables.ranges(table);
                    units.extend(ranges.map(|range| Unit::Range(table, chunk, range)));
                }
                units.push_back(Unit::Windows(chunk));
            }
            units.extend(valid_hours.iter().map(|&hour| Unit::CopyHour(hour)));
        }
        Ok(Some(Downsampling {
            partition,
            level,
            records,
            from,
            into,
            unpacker,
            services,
            units,
            valid_hours,
        }))
    }

    /// Where the new file is while it has no name.
    pub fn temporary(&self) -> PathBuf {
        self.path().with_extension("new")
    }

    /// The name of the new file.
    pub fn path(&self) -> PathBuf {
        self.level.path(&self.partition.path)
    }

    /// Goes on; `go_on` is asked before each step. Returns whether everything is written.
    pub fn work(&mut self, mut go_on: impl FnMut() -> bool) -> Result<bool, FileError> {
        while let Some(&unit) = self.units.front() {
            if !go_on() {
                return Ok(false);
            }
            match unit {
                Unit::Range(table, chunk, range) => self.range(table, chunk, range)?,
                Unit::Windows(chunk) => self.windows(chunk)?,
                Unit::CopyHour(hour) => self.into.copy_hour(&self.from, hour)?,
                Unit::ServiceHour(hour) => self.service_hour(hour)?,
            }
            self.units.pop_front();
        }
        Ok(true)
    }

    /// Makes the new file durable; it has no name yet.
    pub fn into_durable(mut self) -> Result<Written, FileError> {
        if self.level != Level::ServiceHours {
            let hours = self.from.hours()?;
            for &hour in &self.valid_hours {
                if let Some(&parts) = hours.get(&hour) {
                    self.into.hour_is_added_up(hour, parts)?;
                }
            }
        }
        self.from.end();
        self.into
            .make_durable(&self.level.path(&self.partition.path))?;
        Ok(Written {
            partition: self.partition,
            level: self.level,
            records: self.records,
        })
    }

    fn range(&mut self, table: Table, chunk: u16, range: u32) -> Result<(), FileError> {
        let step = step_of(table, self.level);
        let mut gathered = Gathered::default();
        self.unpacker.gather(
            &self.from,
            (table, chunk, range),
            |start| start - start % step,
            &mut gathered,
        )?;
        let again = gathered.encode(&self.unpacker.tables, table)?;
        self.into.add_blocks(&Replacement {
            table,
            chunk,
            range,
            parts: 0,
            blocks: again.blocks,
            heads: again.heads,
        })
    }

    fn windows(&mut self, chunk: u16) -> Result<(), FileError> {
        let mut opener = SectionReader::new()?;
        let mut windows = windows_of(&self.from, &mut opener, chunk)?;
        if let Some(services) = &self.services {
            for other in chunk + 1..chunk + HOUR_CHUNKS {
                let more = windows_of(&self.from, &mut opener, other)?;
                windows.whole.merge(more.whole);
            }
            windows.whole = services.summary(windows.whole);
        }
        windows.downsample(self.level, self.partition.chunk_start(chunk));
        if windows == ChunkWindows::default() {
            return Ok(());
        }
        let mut body = Vec::new();
        windows.encode(&mut SectionWriter::new()?, &mut body)?;
        self.into.add_windows(chunk, body)
    }

    fn service_hour(&mut self, hour: u16) -> Result<(), FileError> {
        let Some(services) = &self.services else {
            return Ok(());
        };
        let mut gathered = Gathered::default();
        for range in 0..self.unpacker.tables.ranges(Table::ServiceBlock) {
            let mut of_range = Gathered::default();
            let place = (Table::ServiceBlock, HOURS_FROM + hour, range);
            self.unpacker
                .gather(&self.from, place, |_| 0, &mut of_range)?;
            // A service is a series now, and stored with those of its group.
            for (service, moments) in of_range.into_bundles() {
                let group = services.groups.get(service as usize).copied();
                let group =
                    group.ok_or_else(|| FileError::Damaged("a service is not there".into()))?;
                for Moment { start, entry } in moments {
                    gathered.add(group, Moment { start, entry });
                }
            }
        }
        let again = gathered.encode(&services.tables, Table::Block)?;
        self.into.add_blocks(&Replacement {
            table: Table::Block,
            chunk: hour * HOUR_CHUNKS,
            range: 0,
            parts: 0,
            blocks: again.blocks,
            heads: again.heads,
        })
    }
}

/// A file that is complete and durable and has no name yet.
pub struct Written {
    /// What it is of.
    pub partition: Arc<Partition>,
    /// What it is.
    pub level: Level,
    /// What the finer file had.
    pub records: BTreeMap<u16, u64>,
}

impl Services {
    /// Writes the dictionary of service hours and says what ids become.
    fn new(
        partition: &Partition,
        dict: &Dict,
        from: &PartitionFile,
        into: &mut PartitionFile,
    ) -> Result<Services, FileError> {
        let service_labels = &partition.service_labels;
        let mut own = Dict::new(service_labels, false);
        for kind in &dict.kinds {
            own.kind(kind.clone());
        }
        // In the order they had, so that their ids stay.
        for at in 0..dict.tables.frames.len() {
            let frame = dict.tables.frame(profile::FrameId(at as u32));
            own.tables.intern_frame(frame);
        }
        for (_, parent, frame) in dict.tables.stacks.iter() {
            own.tables.stacks.child(parent, frame);
        }
        for &(stack, end) in &dict.leaves {
            own.leaf(StackId(stack.0), end);
        }
        for host in &dict.hosts {
            own.host(host);
        }
        for service in dict.services.iter() {
            let labels = own.labels(&text_of(dict, service.labels.0));
            own.series(labels, service.kind);
        }
        let sets = 0..dict.tables.label_sets.len() as u32;
        let services = sets.map(|labels| {
            let text = service_of(&text_of(dict, labels), service_labels);
            own.labels(&text).0
        });
        let services: Vec<u32> = services.collect();
        let mut moved = Services {
            tables: Tables::of(&own),
            groups: groups_of(&own),
            hosts: BTreeMap::new(),
            services,
        };
        let (mut opener, mut raw) = (SectionReader::new()?, Vec::new());
        from.each_windows(0, HOURS_FROM, |_, body| -> Result<(), FileError> {
            let whole = decode_hosts(&mut opener, &mut Reader::new(body), &mut raw)?;
            for &(_, labels) in whole.hosts.keys() {
                moved
                    .hosts
                    .entry(labels)
                    .or_insert_with(|| own.labels(&text_of(dict, labels)).0);
            }
            Ok(())
        })?;
        let (mut entries, mut contents) = (Vec::new(), Vec::new());
        own.encode_delta(
            DictVersion::EMPTY,
            own.version(),
            &mut entries,
            &mut contents,
        );
        let (mut sealer, mut sealed, mut nothing) = (SectionWriter::new()?, Vec::new(), Vec::new());
        sealer.seal(&mut sealed, &entries)?;
        sealer.seal(&mut nothing, &contents)?;
        into.add_dict(&sealed, &nothing)?;
        Ok(moved)
    }

    /// Makes a summary with the label sets of the new dictionary. Each cgroup's account keeps only
    /// what the cgroup has alone, because the accounts of a service are added up.
    fn summary(&self, finer: Summary) -> Summary {
        let service = |labels: u32| self.services.get(labels as usize).copied().unwrap_or(0);
        let mut summary = Summary::default();
        for ((host, labels), of_host) in finer.hosts {
            let labels = self.hosts.get(&labels).copied().unwrap_or(0);
            let mut one = Summary::default();
            one.hosts.insert((host, labels), of_host);
            summary.merge(one);
        }
        for (labels, account) in finer.accounts {
            let alone_ns = account.ns - account.below_ns;
            *summary.accounts.entry(service(labels)).or_default() += Account {
                ns: alone_ns,
                estimated_ns: account.estimated_ns - account.below_estimated_ns,
                throttling: alone(account.throttling, alone_ns),
                ..Account::default()
            };
        }
        summary
            .label_sets
            .extend(finer.label_sets.into_iter().map(service));
        summary
    }
}

/// The throttling of a cgroup without what the cgroups below it used, which is added up with it. A
/// limit above cgroups of other services keeps what it holds: without it, everything would seem to
/// have been withheld.
fn alone(throttling: Throttling, alone_ns: i128) -> Throttling {
    let alone_ns = u64::try_from(alone_ns).unwrap_or(0);
    Throttling {
        used_ns: match throttling.ns > 0 && alone_ns == 0 {
            true => throttling.used_ns,
            false => throttling.used_ns.min(alone_ns),
        },
        ..throttling
    }
}

fn text_of(dict: &Dict, labels: u32) -> LabelSet {
    if labels as usize >= dict.tables.label_sets.len() {
        return LabelSet::default();
    }
    let pairs = dict.tables.labels(LabelSetId(labels));
    LabelSet::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
}

/// The label that a sample of these labels is added up under.
fn service_of(labels: &LabelSet, service_labels: &[String]) -> LabelSet {
    let found = service_labels
        .iter()
        .map(|label| (label.clone(), labels.get(label).to_owned()))
        .find(|(_, value)| !value.is_empty());
    LabelSet::new(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn throttling(ns: u64, used_ns: u64) -> Throttling {
        Throttling {
            ns,
            used_ns,
            limit_millicores: 200,
        }
    }

    #[test]
    fn a_limit_over_a_unit_is_held_against_all_of_the_unit_once() {
        // The unit has the limit and runs 10 itself; the 90 of a cgroup below are added up with it.
        assert_eq!(alone(throttling(300, 100), 10), throttling(300, 10));
        assert_eq!(alone(throttling(0, 90), 90), throttling(0, 90));
    }

    #[test]
    fn a_limit_over_cgroups_of_other_services_keeps_what_it_holds() {
        assert_eq!(alone(throttling(300, 100), 0), throttling(300, 100));
        assert_eq!(alone(Throttling::default(), 5), Throttling::default());
    }
}
