//! Windows that were pushed but are not in a partition's file yet, packed as in the write-ahead
//! log.
//!
//! A window is prepared once: its rows become bytes that go into the log's record and from there,
//! unchanged, into the table of its chunk. Readers take copies of what they need.

use super::block::{Columns, Entry, Run, Sum, decode_sum, each_run, encode_rows, encode_sum};
use super::codec::{Corrupt, Reader, encode_bytes, encode_u64};
use super::meta::{Summary, WindowMeta};
use hashbrown::HashMap;
use std::sync::Arc;

/// Rows of one window in one group of series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowRows {
    /// The group.
    pub group: u32,
    /// How many rows.
    pub entries: u64,
    /// See [`encode_rows`].
    pub rows: Vec<u8>,
    /// Series with what they add up to.
    pub heads: Vec<u8>,
}

impl WindowRows {
    /// Packs rows that are ordered by (series, leaf), each once. `is_lost` says which leaves belong
    /// to lost samples.
    pub fn new(
        group: u32,
        rows: &[Entry],
        period: u64,
        is_lost: impl Fn(u32) -> bool,
    ) -> WindowRows {
        // A row takes four bytes, about, and each series some more.
        let mut packed = Vec::with_capacity(rows.len() * 5 + 16);
        let mut heads = Vec::with_capacity(16);
        encode_rows(&mut packed, rows, period);
        let mut before = 0;
        for run in rows.chunk_by(|left, right| left.series == right.series) {
            encode_u64(&mut heads, (run[0].series - before).into());
            before = run[0].series;
            encode_sum(&mut heads, sum_of(run, &is_lost), period);
        }
        WindowRows {
            group,
            entries: rows.len() as u64,
            rows: packed,
            heads,
        }
    }
}

/// Sum of rows.
pub fn sum_of(rows: &[Entry], is_lost: impl Fn(u32) -> bool) -> Sum {
    let mut sum = Sum::default();
    for row in rows {
        if is_lost(row.leaf) {
            sum.lost += row.value;
        } else {
            sum.taken += row.value;
        }
    }
    sum
}

/// A window ready to be logged and kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepared {
    /// Chunk of its partition.
    pub chunk: u16,
    /// Its start after the chunk's. Unit: nanoseconds.
    pub start: u64,
    /// Its metadata besides its rows.
    pub meta: WindowMeta,
    /// Its rows.
    pub parts: Vec<WindowRows>,
}

impl Prepared {
    /// Size of its packed rows. Unit: bytes.
    pub fn bytes(&self) -> usize {
        let parts = self.parts.iter();
        parts.map(|part| part.rows.len() + part.heads.len()).sum()
    }

    /// Appends the window.
    pub fn encode(&self, out: &mut Vec<u8>) {
        encode_u64(out, self.chunk.into());
        encode_u64(out, self.start);
        self.meta.encode(out);
        encode_u64(out, self.parts.len() as u64);
        for part in &self.parts {
            encode_u64(out, part.group.into());
            encode_u64(out, part.entries);
            encode_bytes(out, &part.rows);
            encode_bytes(out, &part.heads);
        }
    }

    /// Reads what [`Prepared::encode`] wrote.
    pub fn decode(input: &mut Reader<'_>) -> Result<Prepared, Corrupt> {
        let chunk = input.decode_u16()?;
        let start = input.decode_u64()?;
        let meta = WindowMeta::decode(input)?;
        let mut parts = Vec::new();
        for _ in 0..input.decode_count()? {
            parts.push(WindowRows {
                group: input.decode_u32()?,
                entries: input.decode_u64()?,
                rows: input.decode_bytes()?.to_vec(),
                heads: input.decode_bytes()?.to_vec(),
            });
        }
        Ok(Prepared {
            chunk,
            start,
            meta,
            parts,
        })
    }
}

/// Packed rows of one group in one chunk. Clones share them: what is added while a reader has one
/// goes into a copy.
#[derive(Clone, Debug, Default)]
pub struct GroupRows {
    /// Start of the window, length, rows: one after the other.
    rows: Arc<Vec<u8>>,
    /// The same of what series add up to.
    heads: Arc<Vec<u8>>,
    /// Rows in all.
    pub entries: u64,
}

impl GroupRows {
    fn add(&mut self, start: u64, part: &WindowRows) {
        for (own, more) in [(&mut self.rows, &part.rows), (&mut self.heads, &part.heads)] {
            let own = Arc::make_mut(own);
            encode_u64(own, start);
            encode_bytes(own, more);
        }
        self.entries += part.entries;
    }

    /// Memory held, in bytes.
    pub fn bytes(&self) -> usize {
        self.rows.capacity() + self.heads.capacity() + size_of::<GroupRows>()
    }

    /// The rows of each series in each window with a `wanted` start, passed together with the
    /// start.
    pub fn each_run(
        &self,
        period: u64,
        wanted: impl Fn(u64) -> bool,
        mut run: impl FnMut(u64, Run<'_>),
    ) -> Result<(), Corrupt> {
        let mut columns = Columns::default();
        let mut input = Reader::new(&self.rows);
        while !input.is_empty() {
            let start = input.decode_u64()?;
            let rows = input.decode_bytes()?;
            if wanted(start) {
                each_run(rows, period, &mut columns, |of_series| {
                    run(start, of_series)
                })?;
            }
        }
        Ok(())
    }

    /// What each series adds up to in each window, with the start of the window.
    pub fn each_head(
        &self,
        period: u64,
        mut head: impl FnMut(u64, u32, Sum),
    ) -> Result<(), Corrupt> {
        let mut input = Reader::new(&self.heads);
        while !input.is_empty() {
            let start = input.decode_u64()?;
            let mut heads = Reader::new(input.decode_bytes()?);
            let mut series = 0u32;
            while !heads.is_empty() {
                series = series
                    .checked_add(heads.decode_u32()?)
                    .ok_or(Corrupt("an id is too large"))?;
                head(start, series, decode_sum(&mut heads, period)?);
            }
        }
        Ok(())
    }
}

/// Everything of one chunk.
#[derive(Debug, Default)]
pub struct ChunkRows {
    /// By group.
    pub groups: HashMap<u32, GroupRows>,
    /// All windows; readers share them.
    pub windows: Vec<Arc<WindowMeta>>,
    /// The same added up; copied by the next window that comes while a reader has it.
    pub summary: Arc<Summary>,
    /// Number of the first record of the log that is in it.
    pub first_record: u64,
    /// Number of the last.
    pub last_record: u64,
    /// When the first window came, by the caller's clock.
    pub started_unix_ns: i64,
    /// When the last one did.
    pub touched_unix_ns: i64,
    /// Memory held, in bytes; an estimate.
    pub bytes: usize,
}

impl ChunkRows {
    /// Adds a window of a record; returns by how many bytes the table grew.
    pub fn add(&mut self, record: u64, now_unix_ns: i64, window: Prepared) -> usize {
        if self.windows.is_empty() {
            self.first_record = record;
            self.started_unix_ns = now_unix_ns;
        }
        self.last_record = record;
        self.touched_unix_ns = now_unix_ns;
        let mut grown = size_of::<WindowMeta>()
            + window.meta.accounts.len() * size_of::<(u32, super::meta::Account)>()
            + window.meta.label_sets.len() * 4;
        for part in &window.parts {
            let rows = self.groups.entry(part.group).or_default();
            let before = rows.bytes();
            rows.add(window.start, part);
            // A copy that a reader made necessary has less room to grow.
            grown += rows.bytes().saturating_sub(before);
        }
        Arc::make_mut(&mut self.summary).add(&window.meta);
        self.windows.push(Arc::new(window.meta));
        self.bytes += grown;
        grown
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::Value;

    #[test]
    fn rows_and_sums_of_windows_come_back() {
        let row = |series, leaf, count| Entry {
            series,
            leaf,
            value: Value {
                count,
                weight: count * 7,
            },
        };
        let rows = [row(2, 1, 3), row(2, 4, 1), row(5, 1, 9)];
        let part = WindowRows::new(1, &rows, 7, |leaf| leaf == 4);
        let mut group = GroupRows::default();
        group.add(0, &part);
        group.add(10, &part);
        let mut found = Vec::new();
        let all = |_| true;
        group
            .each_run(7, all, |start, run| {
                found.extend(run.entries().map(|entry| (start, entry)));
            })
            .unwrap();
        assert_eq!(found.len(), 6);
        assert_eq!(found[5], (10, rows[2]));
        let mut heads = Vec::new();
        group
            .each_head(7, |start, series, sum| {
                heads.push((start, series, sum.taken.count, sum.lost.count));
            })
            .unwrap();
        assert_eq!(
            heads,
            [(0, 2, 3, 1), (0, 5, 9, 0), (10, 2, 3, 1), (10, 5, 9, 0)]
        );
    }
}
