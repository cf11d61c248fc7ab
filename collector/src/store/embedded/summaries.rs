//! The data in a file about the windows of a chunk: a summary of the chunk, and its parts.
//!
//! There are three sections: the summary of the complete chunk; the windows one by one; and, where
//! data is downsampled, summaries of parts of the chunk instead of windows, with their starts.
//! Either of the last two may be empty, so windows that arrive late are stored next to what was
//! downsampled before.

use super::chunk::CHUNK_NS;
use super::codec::{Corrupt, Reader, SectionReader, SectionWriter, encode_u64};
use super::level::Level;
use super::meta::{Summary, WindowMeta};
use std::collections::BTreeMap;

/// Metadata of the windows of one chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkWindows {
    /// All of them.
    pub whole: Summary,
    /// One by one, as far as they are.
    pub windows: Vec<WindowMeta>,
    /// Added up, by their start after the chunk's. Unit: nanoseconds.
    pub parts: BTreeMap<u64, Summary>,
}

/// Reads the summary of the complete chunk; the rest of `body` is for [`decode_parts`].
pub fn decode_whole(
    opener: &mut SectionReader,
    body: &mut Reader<'_>,
    raw: &mut Vec<u8>,
) -> Result<Summary, Corrupt> {
    opener.open(body, raw)?;
    Summary::decode(&mut Reader::new(raw))
}

/// As [`decode_whole`], of its hosts alone.
pub fn decode_hosts(
    opener: &mut SectionReader,
    body: &mut Reader<'_>,
    raw: &mut Vec<u8>,
) -> Result<Summary, Corrupt> {
    opener.open(body, raw)?;
    Summary::decode_hosts(&mut Reader::new(raw))
}

/// Reads what the chunk is made of.
pub fn decode_parts(
    opener: &mut SectionReader,
    body: &mut Reader<'_>,
    raw: &mut Vec<u8>,
) -> Result<(Vec<WindowMeta>, BTreeMap<u64, Summary>), Corrupt> {
    opener.open(body, raw)?;
    let mut input = Reader::new(raw);
    let mut windows = Vec::new();
    for _ in 0..input.decode_count()? {
        windows.push(WindowMeta::decode(&mut input)?);
    }
    let mut parts = BTreeMap::new();
    if !body.is_empty() {
        opener.open(body, raw)?;
        let mut input = Reader::new(raw);
        for _ in 0..input.decode_count()? {
            let start = input.decode_u64()?;
            parts.insert(start, Summary::decode(&mut input)?);
        }
    }
    Ok((windows, parts))
}

impl ChunkWindows {
    /// Adds what a file has of a chunk.
    pub fn add(&mut self, opener: &mut SectionReader, body: &[u8]) -> Result<(), Corrupt> {
        let (mut body, mut raw) = (Reader::new(body), Vec::new());
        self.whole.merge(decode_whole(opener, &mut body, &mut raw)?);
        let (windows, parts) = decode_parts(opener, &mut body, &mut raw)?;
        self.windows.extend(windows);
        for (start, part) in parts {
            self.parts.entry(start).or_default().merge(part);
        }
        Ok(())
    }

    /// Rounds times down to the resolution of a level; `chunk_start` is since the Unix epoch.
    pub fn downsample(&mut self, level: Level, chunk_start: i64) {
        match level {
            Level::Windows => {}
            Level::Minutes => {
                let floor = |into: u64| into - into % level.step_ns();
                for (start, part) in std::mem::take(&mut self.parts) {
                    self.parts.entry(floor(start)).or_default().merge(part);
                }
                for window in self.windows.drain(..) {
                    let into = window.range.start_unix_ns.saturating_sub(chunk_start);
                    let into = into.max(0).unsigned_abs() % CHUNK_NS;
                    self.parts.entry(floor(into)).or_default().add(&window);
                }
            }
            Level::TenMinutes | Level::ServiceHours => {
                self.windows.clear();
                self.parts.clear();
            }
        }
        self.whole.settle();
        self.parts.values_mut().for_each(Summary::settle);
    }

    /// Appends the sections.
    pub fn encode(&self, sealer: &mut SectionWriter, out: &mut Vec<u8>) -> std::io::Result<()> {
        let mut raw = Vec::new();
        self.whole.encode(&mut raw);
        sealer.seal(out, &raw)?;
        raw.clear();
        encode_u64(&mut raw, self.windows.len() as u64);
        self.windows
            .iter()
            .for_each(|window| window.encode(&mut raw));
        sealer.seal(out, &raw)?;
        if !self.parts.is_empty() {
            raw.clear();
            encode_u64(&mut raw, self.parts.len() as u64);
            for (&start, part) in &self.parts {
                encode_u64(&mut raw, start);
                part.encode(&mut raw);
            }
            sealer.seal(out, &raw)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::Sum;
    use super::*;
    use crate::store::TimeRange;
    use profile::{Quality, Value};

    const SECOND: u64 = 1_000_000_000;

    fn window(host: u32, start_s: i64) -> WindowMeta {
        let count = start_s as u64 + 1;
        WindowMeta {
            host,
            sequence: count,
            range: TimeRange {
                start_unix_ns: 600_000_000_000 + start_s * SECOND as i64,
                end_unix_ns: 600_000_000_000 + (start_s + 10) * SECOND as i64,
            },
            host_labels: 1,
            quality: Quality {
                idle: count,
                ..Quality::default()
            },
            pressure: None,
            sum: Sum {
                taken: Value {
                    count,
                    weight: 2 * count,
                },
                ..Sum::default()
            },
            accounts: Vec::new(),
            label_sets: vec![host],
            dropped: None,
        }
    }

    fn of(windows: Vec<WindowMeta>) -> ChunkWindows {
        let mut whole = Summary::default();
        windows.iter().for_each(|window| whole.add(window));
        whole.settle();
        ChunkWindows {
            whole,
            windows,
            parts: BTreeMap::new(),
        }
    }

    fn sealed(chunk: &ChunkWindows) -> Vec<u8> {
        let mut out = Vec::new();
        chunk
            .encode(&mut SectionWriter::new().unwrap(), &mut out)
            .unwrap();
        out
    }

    #[test]
    fn parts_of_parts_are_the_parts_of_all() {
        let (first, late) = (
            of(vec![window(0, 0), window(1, 65), window(0, 70)]),
            of(vec![window(1, 50), window(2, 590)]),
        );
        let mut opener = SectionReader::new().unwrap();
        let chunk_start = 600_000_000_000;
        let mut at_once = ChunkWindows::default();
        at_once.add(&mut opener, &sealed(&first)).unwrap();
        at_once.add(&mut opener, &sealed(&late)).unwrap();
        let mut all = at_once.whole.clone();
        all.settle();
        at_once.downsample(Level::Minutes, chunk_start);
        assert_eq!(at_once.whole, all);
        let starts: Vec<u64> = at_once.parts.keys().map(|start| start / SECOND).collect();
        assert_eq!(starts, [0, 60, 540]);

        let mut by_steps = ChunkWindows::default();
        by_steps.add(&mut opener, &sealed(&first)).unwrap();
        by_steps.downsample(Level::Minutes, chunk_start);
        let first = sealed(&by_steps);
        let mut by_steps = ChunkWindows::default();
        by_steps.add(&mut opener, &first).unwrap();
        by_steps.add(&mut opener, &sealed(&late)).unwrap();
        by_steps.downsample(Level::Minutes, chunk_start);
        assert_eq!(by_steps, at_once);

        by_steps.downsample(Level::TenMinutes, chunk_start);
        assert!(by_steps.parts.is_empty());
        let mut back = ChunkWindows::default();
        back.add(&mut opener, &sealed(&by_steps)).unwrap();
        assert_eq!(back.whole, all);
    }
}
