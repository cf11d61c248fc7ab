//! Reads windows back as they came, for another store: those of partitions that are not downsampled
//! yet, from their files. What is in memory is not read, so nothing is to be pushed meanwhile.

use super::EmbeddedStore;
use super::chunk::CHUNK_NS;
use super::codec::{Reader, SectionReader};
use super::compact::Unpacker;
use super::dict::Dict;
use super::encode::again::Gathered;
use super::file::FileError;
use super::level::Level;
use super::meta::WindowMeta;
use super::partition::Partition;
use super::read_file::ReadFile;
use super::summaries::{decode_parts, decode_whole};
use super::table::Table;
use crate::store::{LabelSet, NewWindow, Origin, Row, StoreError, TimeRange, WindowAccount};
use crate::sync::read;
use profile::{ContentId, Dictionary, LabelSetId};
use std::collections::HashMap;

/// Takes the windows that start within ten minutes, with what names their stacks.
pub type EachChunk<'e> =
    dyn FnMut(TimeRange, &[NewWindow], &Dictionary) -> Result<(), StoreError> + 'e;

impl EmbeddedStore {
    /// Passes on all windows that are there as they came, oldest first. Returns the ranges of
    /// partitions whose windows are only there added up, or only in the archive.
    ///
    /// # Errors
    /// When a file cannot be read; those of `each`.
    pub fn each_chunk(&self, each: &mut EachChunk<'_>) -> Result<Vec<TimeRange>, StoreError> {
        let mut coarser = Vec::new();
        for partition in self.catalog.readable(|_| true) {
            if partition.level != Level::Windows || partition.object.is_some() {
                coarser.push(TimeRange {
                    start_unix_ns: partition.start,
                    end_unix_ns: partition.end,
                });
                continue;
            }
            let failed = |error: FileError| StoreError::Engine {
                operation: "read windows",
                message: format!("{}: {error}", partition.path.display()),
            };
            let mut reading = Reading::of(&partition).map_err(failed)?;
            let chunks = (partition.end.abs_diff(partition.start)).div_ceil(CHUNK_NS);
            for chunk in 0..chunks as u16 {
                let windows = reading.chunk(&partition, chunk).map_err(failed)?;
                if windows.is_empty() {
                    continue;
                }
                let start = partition.chunk_start(chunk);
                let range = TimeRange {
                    start_unix_ns: start,
                    end_unix_ns: start.saturating_add(CHUNK_NS as i64),
                };
                each(range, &windows, &read(&reading.dict).tables)?;
            }
            partition.close_files();
        }
        Ok(coarser)
    }
}

/// A partition that is being read.
struct Reading {
    dict: std::sync::Arc<std::sync::RwLock<Dict>>,
    /// By stack.
    contents: Vec<ContentId>,
    unpacker: Unpacker,
}

impl Reading {
    fn of(partition: &Partition) -> Result<Reading, FileError> {
        let dict = partition.dict(false)?;
        let contents = read(&dict).tables.content_ids();
        Ok(Reading {
            contents,
            unpacker: Unpacker::new(partition)?,
            dict,
        })
    }

    /// The windows of a chunk.
    fn chunk(&mut self, partition: &Partition, chunk: u16) -> Result<Vec<NewWindow>, FileError> {
        let file = partition.reader()?;
        let (mut opener, mut raw) = (SectionReader::new()?, Vec::new());
        let mut metas: Vec<WindowMeta> = Vec::new();
        file.each_windows(chunk, chunk, |_, body| -> Result<(), FileError> {
            let mut body = Reader::new(body);
            decode_whole(&mut opener, &mut body, &mut raw)?;
            metas.extend(decode_parts(&mut opener, &mut body, &mut raw)?.0);
            Ok(())
        })?;
        let mut gathered = Gathered::default();
        if !metas.is_empty() {
            for range in 0..self.unpacker.tables.ranges(Table::Block) {
                let place = (Table::Block, chunk, range);
                self.unpacker
                    .gather(&file, place, |start| start, &mut gathered)?;
            }
        }
        partition.give_back(ReadFile::Local(file));
        let start = partition.chunk_start(chunk);
        self.windows(&metas, gathered, start)
    }

    /// Windows from their metadata and the rows of the chunk.
    fn windows(
        &self,
        metas: &[WindowMeta],
        gathered: Gathered,
        chunk_start: i64,
    ) -> Result<Vec<NewWindow>, FileError> {
        let dict = read(&self.dict);
        let mut windows: Vec<NewWindow> = metas.iter().map(|meta| window(&dict, meta)).collect();
        // A label set has the name of the host, and a host starts one window at a time.
        let mut by_set: HashMap<(u32, u64), usize> = HashMap::new();
        for (at, meta) in metas.iter().enumerate() {
            let start = meta.range.start_unix_ns.abs_diff(chunk_start);
            for &labels in &meta.label_sets {
                by_set.insert((labels, start), at);
            }
        }
        for moment in gathered.into_bundles().into_values().flatten() {
            let entry = moment.entry;
            let series = dict.series.get(entry.series as usize);
            let leaf = dict.leaves.get(entry.leaf as usize);
            let (Some(series), Some(&(stack, end))) = (series, leaf) else {
                return Err(FileError::Damaged("a row names what is not there".into()));
            };
            let at = by_set.get(&(series.labels.0, moment.start));
            let at = *at.ok_or_else(|| FileError::Damaged("a row has no window".into()))?;
            let (window, sets) = (&mut windows[at], &metas[at].label_sets);
            if let (true, Some(kind)) = (
                window.rows.is_empty(),
                dict.kinds.get(usize::from(series.kind)),
            ) {
                window.event.clone_from(&kind.event);
                window.unit.clone_from(&kind.unit);
                window.period = kind.period;
            }
            let labels = sets.binary_search(&series.labels.0).unwrap_or_default();
            window.rows.push(Row {
                labels: labels as u32,
                stack: self.contents[stack.0 as usize],
                end,
                value: entry.value,
            });
        }
        Ok(windows)
    }
}

/// A window without its rows.
fn window(dict: &Dict, meta: &WindowMeta) -> NewWindow {
    let set = |&id: &u32| {
        let pairs = dict.tables.labels(LabelSetId(id));
        LabelSet::new(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())))
    };
    // Those of a window without accounts are made up.
    let measured = meta
        .accounts
        .iter()
        .filter(|(_, account)| !account.is_unmeasured());
    let accounts = measured.filter_map(|&(labels, account)| {
        let throttling = account.throttling;
        let is_known = throttling.ns > 0 || throttling.used_ns > 0;
        Some(WindowAccount {
            labels: meta.label_sets.binary_search(&labels).ok()? as u32,
            ns: u64::try_from(account.ns).unwrap_or(u64::MAX),
            estimated_ns: u64::try_from(account.estimated_ns).unwrap_or(u64::MAX),
            throttled_ns: is_known.then_some(throttling.ns),
            limit_millicores: throttling.limit_millicores,
        })
    });
    let kind = dict.kinds.first();
    NewWindow {
        origin: Origin {
            host: dict.hosts[meta.host as usize].clone(),
            sequence: meta.sequence,
        },
        range: meta.range,
        event: kind.map(|kind| kind.event.clone()).unwrap_or_default(),
        unit: kind.map(|kind| kind.unit.clone()).unwrap_or_default(),
        period: kind.map_or(0, |kind| kind.period),
        quality: meta.quality,
        label_sets: meta.label_sets.iter().map(set).collect(),
        rows: Vec::new(),
        accounts: accounts.collect(),
        pressure: meta.pressure,
        dropped_before: meta.dropped.clone(),
        stream: None,
    }
}
