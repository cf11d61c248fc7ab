//! Encodes rows of existing blocks again: several parts as one, and times rounded down.

use super::{
    Dict, EncodeError, Entry, HEADS_SHARED, HeadsWriter, SLOTS_MAX, SectionWriter, Tables, Timed,
    at, encode_block, sort_rows,
};
use crate::store::embedded::table::Table;
use std::collections::BTreeMap;

/// A row with the start of its window after the chunk's. Unit: nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Start of its window.
    pub start: u64,
    /// The row.
    pub entry: Entry,
}

/// Rows of neighbouring bundles.
#[derive(Default)]
pub struct Gathered {
    bundles: BTreeMap<u32, Vec<Moment>>,
}

/// Blocks and the heads that belong to them, by bundle and by range of bundles.
#[derive(Default)]
pub struct Again {
    /// See [`super::Encoded::blocks`].
    pub blocks: Vec<(u32, Vec<u8>)>,
    /// See [`super::Encoded::heads`].
    pub heads: Vec<(u32, Vec<u8>)>,
}

impl Gathered {
    /// Takes a row in.
    pub fn add(&mut self, bundle: u32, moment: Moment) {
        self.bundles.entry(bundle).or_default().push(moment);
    }

    /// The rows by bundle.
    pub fn into_bundles(self) -> BTreeMap<u32, Vec<Moment>> {
        self.bundles
    }

    /// The rows as blocks of `table`.
    pub fn encode(self, tables: &Tables, table: Table) -> Result<Again, EncodeError> {
        let mut sealer = SectionWriter::new()?;
        let (mut out, mut heads) = (Again::default(), HeadsWriter::default());
        let mut spare = Vec::new();
        for (bundle, moments) in self.bundles {
            let period = tables.period(table, bundle);
            let mut starts: Vec<u64> = moments.iter().map(|moment| moment.start).collect();
            starts.sort_unstable();
            starts.dedup();
            starts.truncate(SLOTS_MAX);
            let last = starts.len().saturating_sub(1);
            let mut rows: Vec<Timed> = moments
                .into_iter()
                .map(|moment| {
                    let slot = starts.partition_point(|&start| start < moment.start);
                    Timed {
                        entry: moment.entry,
                        slot: slot.min(last) as u16,
                    }
                })
                .collect();
            sort_rows(&mut rows, &mut spare);
            let mut body = Vec::new();
            encode_block(&mut body, &mut sealer, &rows, &starts, period)?;
            out.blocks.push((bundle, body));
            heads.add(
                tables,
                &mut out.heads,
                &mut sealer,
                bundle,
                &rows,
                &starts,
                period,
            )?;
        }
        heads.finish(&mut out.heads, &mut sealer)?;
        Ok(out)
    }
}

impl Tables {
    /// The period of a bundle of a table of blocks.
    pub fn period(&self, table: Table, bundle: u32) -> u64 {
        match table {
            Table::Block | Table::Head => at(&self.group_periods, bundle),
            Table::ServiceBlock | Table::ServiceHead => at(&self.service_periods, bundle),
        }
    }

    /// How many ranges of bundles a table has.
    pub fn ranges(&self, table: Table) -> u32 {
        let bundles = match table {
            Table::Block | Table::Head => self.group_periods.len(),
            Table::ServiceBlock | Table::ServiceHead => self.service_periods.len(),
        };
        (bundles as u32).div_ceil(HEADS_SHARED)
    }
}

/// Groups of a dictionary by series.
pub fn groups_of(dict: &Dict) -> Vec<u32> {
    dict.series.iter().map(|series| series.group).collect()
}
