//! Encodes the table of a chunk for a partition's file: blocks and heads of groups, the rollup by
//! service, and the data of windows.
//!
//! Heads have the sum of each series, for the complete chunk and for each window, so that lines
//! over time need no block. Heads of many groups share a row, because most are short.

pub mod again;

use super::block::{
    Entry, SLOTS_MAX, Sum, Timed, decode_starts, decode_sum, encode_block, encode_starts,
    encode_sum, sort_rows,
};
use super::codec::{Corrupt, Reader, SectionReader, SectionWriter, encode_signed, encode_u64};
use super::dict::{Bundles, Dict};
use super::memtable::ChunkRows;
use super::meta::Summary;
use profile::{StackEnd, Value};
use std::collections::BTreeMap;

/// Number of groups with heads in one row. Smaller reads less for one container; larger has fewer
/// rows.
pub const HEADS_SHARED: u32 = 128;

/// Step of the rollup by service. Unit: nanoseconds.
pub const SERVICE_STEP_NS: u64 = 60_000_000_000;

/// Rows of a partition's file, each with its bundle (or range of bundles).
#[derive(Default)]
pub struct Encoded {
    /// Blocks by group.
    pub blocks: Vec<(u32, Vec<u8>)>,
    /// Heads by range of groups.
    pub heads: Vec<(u32, Vec<u8>)>,
    /// Blocks by service.
    pub service_blocks: Vec<(u32, Vec<u8>)>,
    /// Heads by range of services.
    pub service_heads: Vec<(u32, Vec<u8>)>,
    /// Summary and windows.
    pub windows: Vec<u8>,
    /// Rows that went in.
    pub entries: u64,
}

/// Why a chunk could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The table in memory is not what was put in: a fault of this program.
    #[error("failed to encode the table in memory: it is damaged: {0}")]
    Corrupt(#[from] Corrupt),
    /// zstd got no memory.
    #[error(transparent)]
    Zstd(#[from] std::io::Error),
}

/// The data for encoding from a dictionary: a copy, so that nobody waits for a flush.
pub struct Tables {
    group_periods: Vec<u64>,
    service_periods: Vec<u64>,
    services: Vec<u32>,
    lost: Vec<bool>,
}

impl Tables {
    /// Copies what is needed.
    pub fn of(dict: &Dict) -> Tables {
        let periods = |bundles: &Bundles| {
            let bundles = bundles.iter();
            bundles
                .map(|bundle| period(dict, Some(bundle.kind)))
                .collect()
        };
        Tables {
            group_periods: periods(&dict.groups),
            service_periods: periods(&dict.services),
            services: dict.series.iter().map(|series| series.service).collect(),
            lost: dict
                .leaves
                .iter()
                .map(|&(_, end)| end == StackEnd::Lost)
                .collect(),
        }
    }

    fn is_lost(&self, leaf: u32) -> bool {
        self.lost.get(leaf as usize).is_some_and(|lost| *lost)
    }
}

fn at(periods: &[u64], bundle: u32) -> u64 {
    periods.get(bundle as usize).copied().unwrap_or(0)
}

/// Encodes a chunk.
pub fn encode_chunk(dict: &Tables, chunk: &ChunkRows) -> Result<Encoded, EncodeError> {
    let mut sealer = SectionWriter::new()?;
    let mut out = Encoded::default();
    let mut groups: Vec<u32> = chunk.groups.keys().copied().collect();
    groups.sort_unstable();
    let mut services = Services::default();
    let mut heads = HeadsWriter::default();
    let (mut rows, mut spare): (Vec<Timed>, Vec<Timed>) = Default::default();
    for group in groups {
        let period = at(&dict.group_periods, group);
        let packed = &chunk.groups[&group];
        let mut starts: Vec<u64> = Vec::new();
        packed.each_head(period, |start, _, _| starts.push(start))?;
        starts.sort_unstable();
        starts.dedup();
        starts.truncate(SLOTS_MAX);
        rows.clear();
        rows.reserve(packed.entries as usize);
        let (mut last, mut slot) = (None, 0);
        let all = |_| true;
        packed.each_run(period, all, |start, run| {
            if last != Some(start) {
                last = Some(start);
                slot = starts.partition_point(|&known| known < start);
                slot = slot.min(starts.len().saturating_sub(1));
            }
            let slot = slot as u16;
            rows.extend(run.entries().map(|entry| Timed { entry, slot }));
        })?;
        sort_rows(&mut rows, &mut spare);
        let mut body = Vec::new();
        encode_block(&mut body, &mut sealer, &rows, &starts, period)?;
        out.entries += rows.len() as u64;
        out.blocks.push((group, body));
        services.add(dict, &rows, &starts, period);
        heads.add(
            dict,
            &mut out.heads,
            &mut sealer,
            group,
            &rows,
            &starts,
            period,
        )?;
    }
    heads.finish(&mut out.heads, &mut sealer)?;
    services.encode(dict, &mut out, &mut sealer)?;
    encode_windows(chunk, &mut out.windows, &mut sealer)?;
    Ok(out)
}

/// The period of a kind; 0 when it is not known.
pub fn period(dict: &Dict, kind: Option<u16>) -> u64 {
    kind.and_then(|kind| dict.kinds.get(usize::from(kind)))
        .map_or(0, |kind| kind.period)
}

fn encode_windows(
    chunk: &ChunkRows,
    out: &mut Vec<u8>,
    sealer: &mut SectionWriter,
) -> Result<(), EncodeError> {
    let mut summary = Summary::clone(&chunk.summary);
    summary.settle();
    let mut raw = Vec::new();
    summary.encode(&mut raw);
    sealer.seal(out, &raw)?;
    raw.clear();
    encode_u64(&mut raw, chunk.windows.len() as u64);
    for window in &chunk.windows {
        window.encode(&mut raw);
    }
    sealer.seal(out, &raw)?;
    Ok(())
}

/// Rows of the rollup by service while groups are encoded, packed, because the complete chunk of a
/// fleet passes through it.
#[derive(Default)]
struct Services {
    packed: BTreeMap<u32, Vec<u8>>,
}

impl Services {
    fn add(&mut self, dict: &Tables, rows: &[Timed], starts: &[u64], period: u64) {
        for run in rows.chunk_by(|left, right| left.entry.series == right.entry.series) {
            let Some(&service) = dict.services.get(run[0].entry.series as usize) else {
                continue;
            };
            let packed = self.packed.entry(service).or_default();
            // Rows come by leaf, then by time: equal (leaf, minute) are neighbours.
            let minute = |row: &Timed| starts[usize::from(row.slot)] / SERVICE_STEP_NS;
            let same = |left: &Timed, right: &Timed| {
                left.entry.leaf == right.entry.leaf && minute(left) == minute(right)
            };
            for equal in run.chunk_by(same) {
                let mut value = Value::default();
                equal.iter().for_each(|row| value += row.entry.value);
                encode_u64(packed, equal[0].entry.leaf.into());
                encode_u64(packed, minute(&equal[0]));
                encode_u64(packed, value.count);
                encode_signed(
                    packed,
                    value.weight.wrapping_sub(value.count.wrapping_mul(period)) as i64,
                );
            }
        }
    }

    fn encode(
        self,
        dict: &Tables,
        out: &mut Encoded,
        sealer: &mut SectionWriter,
    ) -> Result<(), EncodeError> {
        let mut heads = HeadsWriter::default();
        let (mut rows, mut spare) = (Vec::new(), Vec::new());
        for (service, packed) in self.packed {
            let period = at(&dict.service_periods, service);
            rows.clear();
            let (mut input, mut minutes) = (Reader::new(&packed), 0);
            while !input.is_empty() {
                let leaf = input.decode_u32()?;
                let slot = input.decode_u16()?;
                let count = input.decode_u64()?;
                let beyond = input.decode_signed()? as u64;
                let weight = count.wrapping_mul(period).wrapping_add(beyond);
                minutes = minutes.max(slot + 1);
                rows.push(Timed {
                    entry: Entry {
                        series: service,
                        leaf,
                        value: Value { count, weight },
                    },
                    slot,
                });
            }
            sort_rows(&mut rows, &mut spare);
            let starts: Vec<u64> = (0..minutes)
                .map(|minute| u64::from(minute) * SERVICE_STEP_NS)
                .collect();
            let mut body = Vec::new();
            encode_block(&mut body, sealer, &rows, &starts, period)?;
            out.service_blocks.push((service, body));
            heads.add(
                dict,
                &mut out.service_heads,
                sealer,
                service,
                &rows,
                &starts,
                period,
            )?;
        }
        heads.finish(&mut out.service_heads, sealer)
    }
}

/// Collects heads of neighbouring bundles.
#[derive(Default)]
struct HeadsWriter {
    range: u32,
    bundles: u64,
    before: u32,
    totals: Vec<u8>,
    times: Vec<u8>,
}

impl HeadsWriter {
    #[expect(
        clippy::too_many_arguments,
        reason = "one bundle as it was encoded, and where to"
    )]
    fn add(
        &mut self,
        dict: &Tables,
        out: &mut Vec<(u32, Vec<u8>)>,
        sealer: &mut SectionWriter,
        bundle: u32,
        rows: &[Timed],
        starts: &[u64],
        period: u64,
    ) -> Result<(), EncodeError> {
        if bundle / HEADS_SHARED != self.range {
            std::mem::take(self).finish(out, sealer)?;
            self.range = bundle / HEADS_SHARED;
        }
        self.bundles += 1;
        for section in [&mut self.totals, &mut self.times] {
            encode_u64(section, (bundle - self.before).into());
        }
        self.before = bundle;
        encode_starts(&mut self.times, starts);
        let runs = || rows.chunk_by(|left, right| left.entry.series == right.entry.series);
        for section in [&mut self.totals, &mut self.times] {
            encode_u64(section, runs().count() as u64);
        }
        let mut before = 0;
        let mut by_slot: Vec<Option<Sum>> = vec![None; starts.len()];
        for run in runs() {
            let series = run[0].entry.series;
            for section in [&mut self.totals, &mut self.times] {
                encode_u64(section, (series - before).into());
            }
            before = series;
            by_slot.fill(None);
            for of_leaf in run.chunk_by(|left, right| left.entry.leaf == right.entry.leaf) {
                let lost = dict.is_lost(of_leaf[0].entry.leaf);
                for row in of_leaf {
                    let slot = by_slot[usize::from(row.slot)].get_or_insert_default();
                    let part = if lost {
                        &mut slot.lost
                    } else {
                        &mut slot.taken
                    };
                    *part += row.entry.value;
                }
            }
            let mut total = Sum::default();
            by_slot.iter().flatten().for_each(|&sum| total += sum);
            encode_sum(&mut self.totals, total, period);
            let filled = || {
                let slots = by_slot.iter().enumerate();
                slots.filter_map(|(slot, sum)| Some((slot, (*sum)?)))
            };
            encode_u64(&mut self.times, filled().count() as u64);
            let mut slot_before = 0;
            for (slot, sum) in filled() {
                encode_u64(&mut self.times, (slot - slot_before) as u64);
                slot_before = slot;
                encode_sum(&mut self.times, sum, period);
            }
        }
        Ok(())
    }

    fn finish(
        self,
        out: &mut Vec<(u32, Vec<u8>)>,
        sealer: &mut SectionWriter,
    ) -> Result<(), EncodeError> {
        if self.bundles == 0 {
            return Ok(());
        }
        let mut body = Vec::new();
        for section in [self.totals, self.times] {
            let mut raw = Vec::with_capacity(section.len() + 4);
            encode_u64(&mut raw, self.bundles);
            raw.extend_from_slice(&section);
            sealer.seal(&mut body, &raw)?;
        }
        out.push((self.range, body));
        Ok(())
    }
}

/// Reads heads: `head` gets series, start after the chunk's, and sum; with `whole` the complete
/// chunk as one. `period` gives the period by bundle.
pub fn each_head(
    opener: &mut SectionReader,
    body: &[u8],
    whole: bool,
    period: impl Fn(u32) -> u64,
    mut head: impl FnMut(u32, u64, Sum),
) -> Result<(), Corrupt> {
    let mut body = Reader::new(body);
    let mut raw = Vec::new();
    if !whole {
        opener.skip(&mut body)?;
    }
    opener.open(&mut body, &mut raw)?;
    let mut input = Reader::new(&raw);
    let (mut bundle, mut starts) = (0u32, Vec::new());
    let step = |id: u32, by: u32| id.checked_add(by).ok_or(Corrupt("an id is too large"));
    for _ in 0..input.decode_count()? {
        bundle = step(bundle, input.decode_u32()?)?;
        let period = period(bundle);
        if !whole {
            decode_starts(&mut input, &mut starts)?;
        }
        let mut series = 0u32;
        for _ in 0..input.decode_count()? {
            series = step(series, input.decode_u32()?)?;
            if whole {
                head(series, 0, decode_sum(&mut input, period)?);
                continue;
            }
            let mut slot = 0usize;
            for _ in 0..input.decode_count()? {
                slot = slot.saturating_add(input.decode_u64()? as usize);
                let start = *starts.get(slot).ok_or(Corrupt("a window is not there"))?;
                head(series, start, decode_sum(&mut input, period)?);
            }
        }
    }
    Ok(())
}
