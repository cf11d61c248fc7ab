//! The index of the spool: which windows wait, where each is, and which to drop when a limit is
//! reached. It is plain data under a lock that nobody holds while waiting for a disk.
//!
//! A segment is one generation of windows, in order. Its records are on disk, or in memory if
//! writing failed. Limits drop complete segments, oldest first, because the records of a segment
//! share its tables, and half of one would be worth little.

use super::disk::Scanned;
use super::gaps::{Cause, Gaps, SpoolGap};
use super::identity::Identity;
use segment::window::WindowHeader;
use std::collections::VecDeque;
use std::sync::Arc;

/// The newest windows are sent first, as long as no more than these wait; the rest is backlog.
const LIVE_WINDOWS: usize = 3;

/// Where a record is.
#[derive(Clone, Debug)]
pub enum RecordPlace {
    /// In the segment's file.
    Disk {
        /// Start.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Nowhere else.
    Memory(Arc<[u8]>),
}

impl RecordPlace {
    fn memory_bytes(&self) -> u64 {
        match self {
            RecordPlace::Memory(bytes) => bytes.len() as u64,
            RecordPlace::Disk { .. } => 0,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            RecordPlace::Memory(bytes) => bytes.len() as u64,
            RecordPlace::Disk { len, .. } => u64::from(*len),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Sent,
    Done,
}

#[derive(Debug)]
struct Record {
    place: RecordPlace,
    header: WindowHeader,
    state: State,
    /// It was never sent, not even by an earlier run.
    fresh: bool,
}

#[derive(Debug)]
struct Segment {
    id: u64,
    /// Its id while all of it was in memory, which readers of its records may still use.
    was: Option<u64>,
    identity: Arc<Identity>,
    /// Bytes of its file; 0 when it has none.
    disk_bytes: u64,
    /// More records may come.
    open: bool,
    records: Vec<Record>,
}

impl Segment {
    fn unfinished(&self) -> impl Iterator<Item = &Record> {
        let unfinished = |record: &&Record| record.state != State::Done;
        self.records.iter().filter(unfinished)
    }

    fn gap(&self, cause: Cause) -> Option<SpoolGap> {
        let mut sum: Option<SpoolGap> = None;
        for record in self.unfinished() {
            let gap = SpoolGap::of(cause, &record.header);
            match &mut sum {
                Some(sum) => sum.widen(&gap),
                None => sum = Some(gap),
            }
        }
        sum
    }

    fn memory_bytes(&self) -> u64 {
        let bytes = |record: &Record| record.place.memory_bytes();
        self.records.iter().map(bytes).sum()
    }

    /// True when a window waits that is in memory only.
    fn is_stranded(&self) -> bool {
        let in_memory = |record: &Record| matches!(record.place, RecordPlace::Memory(_));
        self.unfinished().any(in_memory)
    }
}

/// The records of a segment that are in memory only: the last ones of it.
#[derive(Debug)]
pub struct Stranded {
    /// The segment.
    pub segment: u64,
    /// The host id and boot that it belongs to.
    pub identity: Arc<Identity>,
    /// Length of its file; none when it has none.
    pub file_len: Option<u64>,
    /// Index of the first record.
    pub first: usize,
    /// They, acknowledged ones too: those behind need their tables.
    pub records: Vec<Arc<[u8]>>,
}

/// Results of finished records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// They had not been done with before.
    pub there: bool,
    /// The segment by the name of its file.
    pub segment: u64,
    /// All of it is done with: its file is to be removed.
    pub remove: bool,
}

/// A record that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Its segment.
    pub segment: u64,
    /// Its place in it.
    pub record: usize,
    /// What it is.
    pub header: WindowHeader,
    /// It is one of the newest.
    pub live: bool,
    /// It was never sent before.
    pub fresh: bool,
}

/// Windows that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Windows not acknowledged yet.
    pub windows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Start of the oldest.
    pub oldest_unix_ns: Option<i64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Index {
    segments: VecDeque<Segment>,
    /// What was dropped.
    pub gaps: Gaps,
    /// Sequence and end of the newest window of this run.
    last: Option<(u64, i64)>,
}

impl Index {
    fn at(&self, id: u64) -> Option<usize> {
        let named = |segment: &Segment| segment.id == id || segment.was == Some(id);
        self.segments.iter().position(named)
    }

    /// Adds a segment of an earlier run. Returns false if nothing in it waits.
    pub fn add_found(&mut self, id: u64, scanned: &Scanned) -> bool {
        let Some(identity) = &scanned.identity else {
            return false;
        };
        if scanned.records.iter().all(|&(_, acked)| acked) {
            return false;
        }
        let records = scanned.records.iter().map(|(found, acked)| Record {
            place: RecordPlace::Disk {
                offset: found.offset,
                len: found.len,
            },
            header: found.header,
            state: match acked {
                true => State::Done,
                false => State::Waiting,
            },
            fresh: false,
        });
        let segment = Segment {
            id,
            was: None,
            identity: Arc::new(identity.clone()),
            disk_bytes: scanned.bytes,
            open: false,
            records: records.collect(),
        };
        // Windows that came while the directory could not be used are newer.
        let at = self.segments.partition_point(|known| known.id < id);
        self.segments.insert(at, segment);
        true
    }

    /// Starts a segment.
    pub fn start_segment(&mut self, id: u64, identity: &Arc<Identity>, disk_bytes: u64) {
        self.segments.push_back(Segment {
            id,
            was: None,
            identity: Arc::clone(identity),
            disk_bytes,
            open: true,
            records: Vec::new(),
        });
    }

    /// Adds a record to the newest segment.
    pub fn push(&mut self, place: RecordPlace, header: WindowHeader) {
        self.last = Some((header.sequence, header.end_unix_ns));
        if let Some(segment) = self.segments.back_mut() {
            if let RecordPlace::Disk { offset, len } = place {
                segment.disk_bytes = offset + u64::from(len);
            }
            segment.records.push(Record {
                place,
                header,
                state: State::Waiting,
                fresh: true,
            });
        }
    }

    /// No more records come to a segment. Returns true when it is to be removed.
    pub fn close(&mut self, id: u64) -> bool {
        let Some(at) = self.at(id) else {
            return false;
        };
        self.segments[at].open = false;
        self.finished(at)
    }

    /// Removes a segment if it is closed and completely acknowledged, and returns whether it was.
    fn finished(&mut self, at: usize) -> bool {
        let segment = &self.segments[at];
        let finished = !segment.open && segment.unfinished().next().is_none();
        finished && self.segments.remove(at).is_some()
    }

    /// Drops closed segments until `need` more bytes of disk are within `max_bytes` and nothing is
    /// older than `oldest_unix_ns`. Returns the segments with files to remove.
    pub fn make_room(&mut self, need: u64, max_bytes: u64, oldest_unix_ns: i64) -> Vec<u64> {
        let mut removed = Vec::new();
        let mut at = 0;
        while at < self.segments.len() {
            let segment = &self.segments[at];
            let newest = segment
                .records
                .iter()
                .map(|record| record.header.end_unix_ns);
            let aged = newest.max().is_some_and(|end| end < oldest_unix_ns);
            let over = self.disk_bytes() + need > max_bytes && segment.disk_bytes > 0;
            let cause = match (aged, over) {
                (true, _) => Cause::SpoolAge,
                (false, true) => Cause::SpoolBytes,
                (false, false) => {
                    at += 1;
                    continue;
                }
            };
            if segment.open {
                break;
            }
            removed.extend(self.give_up(at, cause));
        }
        removed
    }

    /// Drops closed segments in memory until `need` more bytes of it are within `max`.
    pub fn make_memory(&mut self, need: u64, max: u64) -> (bool, Vec<u64>) {
        let mut removed = Vec::new();
        while self.memory_bytes() + need > max {
            let holds = |segment: &Segment| !segment.open && segment.memory_bytes() > 0;
            let Some(at) = self.segments.iter().position(holds) else {
                return (false, removed);
            };
            removed.extend(self.give_up(at, Cause::DiskFull));
        }
        (true, removed)
    }

    /// Drops the waiting records of a segment with damaged bytes, starting at one record. Returns
    /// the records.
    pub fn damaged(&mut self, id: u64, from: usize) -> Option<(Vec<u32>, Done)> {
        let at = self.at(id)?;
        let segment = &mut self.segments[at];
        let mut lost = Vec::new();
        for (number, record) in segment.records.iter_mut().enumerate().skip(from) {
            if record.state != State::Done {
                lost.push(number as u32);
                self.gaps.add(SpoolGap::of(Cause::Damaged, &record.header));
                record.state = State::Done;
            }
        }
        self.release_gaps();
        let done = Done {
            there: !lost.is_empty(),
            segment: self.segments[at].id,
            remove: self.finished(at),
        };
        Some((lost, done))
    }

    /// Segments with records only in memory, oldest first.
    pub fn stranded(&self) -> Vec<Stranded> {
        let stranded = self.segments.iter().filter(|segment| segment.is_stranded());
        let records = |segment: &Segment| {
            let bytes = |record: &Record| match &record.place {
                RecordPlace::Memory(bytes) => Some(Arc::clone(bytes)),
                RecordPlace::Disk { .. } => None,
            };
            let records: Vec<_> = segment.records.iter().filter_map(bytes).collect();
            Stranded {
                segment: segment.id,
                identity: Arc::clone(&segment.identity),
                file_len: (segment.disk_bytes > 0).then_some(segment.disk_bytes),
                first: segment.records.len() - records.len(),
                records,
            }
        };
        stranded.map(records).collect()
    }

    /// The first of these records are in the file of segment `id` now, at these offsets. Returns
    /// which of the segment were acknowledged meanwhile; none when all of it was, and it is gone.
    pub fn landed(&mut self, stranded: &Stranded, id: u64, offsets: &[u64]) -> Option<Vec<u32>> {
        let at = self.at(stranded.segment)?;
        let segment = &mut self.segments[at];
        if segment.id != id {
            segment.was = Some(segment.id);
            segment.id = id;
        }
        let landed = segment.records.iter_mut().skip(stranded.first);
        for ((record, bytes), &offset) in landed.zip(&stranded.records).zip(offsets) {
            let len = bytes.len() as u32;
            record.place = RecordPlace::Disk { offset, len };
            segment.disk_bytes = offset + u64::from(len);
        }
        let numbered = segment.records.iter().enumerate().skip(stranded.first);
        let done = numbered.filter(|(_, record)| record.state == State::Done);
        Some(done.map(|(number, _)| number as u32).collect())
    }

    fn give_up(&mut self, at: usize, cause: Cause) -> Option<u64> {
        let segment = self.segments.remove(at)?;
        if let Some(gap) = segment.gap(cause) {
            self.gaps.add(gap);
        }
        self.release_gaps();
        (segment.disk_bytes > 0).then_some(segment.id)
    }

    /// Lets other windows report gaps that were bound to a window that does not wait any more.
    pub fn release_gaps(&mut self) {
        let segments = &self.segments;
        self.gaps.release_unless(|sequence| {
            let mut all = segments.iter().flat_map(Segment::unfinished);
            all.any(|record| record.header.sequence == sequence)
        });
    }

    /// Takes the next record of `identity` to send: one of the newest, else, with `backlog`, the
    /// oldest that waits.
    pub fn pick(&mut self, identity: &Identity, backlog: bool) -> Option<Picked> {
        let mut newest = Vec::with_capacity(LIVE_WINDOWS);
        'segments: for (at, segment) in self.segments.iter().enumerate().rev() {
            if *segment.identity != *identity {
                continue;
            }
            for record in (0..segment.records.len()).rev() {
                if newest.len() >= LIVE_WINDOWS {
                    break 'segments;
                }
                newest.push((at, record));
            }
        }
        let waits = |&(at, record): &(usize, usize)| {
            self.segments[at].records[record].state == State::Waiting
        };
        // Oldest first among the newest.
        if let Some((at, record)) = newest.into_iter().rev().find(waits) {
            return self.take(at, record, true);
        }
        if !backlog {
            return None;
        }
        let of_host = self
            .segments
            .iter()
            .enumerate()
            .filter(|(_, segment)| *segment.identity == *identity);
        let (at, record) = of_host.into_iter().find_map(|(at, segment)| {
            let waits = |record: &Record| record.state == State::Waiting;
            Some((at, segment.records.iter().position(waits)?))
        })?;
        self.take(at, record, false)
    }

    /// Takes a window of `identity` by its number, if it waits.
    pub fn pick_window(&mut self, identity: &Identity, sequence: u64) -> Option<Picked> {
        let is_it = |it: &Record| it.state == State::Waiting && it.header.sequence == sequence;
        let mut of_host = self.segments.iter().enumerate();
        let (at, record) = of_host.find_map(|(at, segment)| {
            let own = *segment.identity == *identity;
            Some((at, own.then(|| segment.records.iter().position(is_it))??))
        })?;
        self.take(at, record, true)
    }

    fn take(&mut self, at: usize, record: usize, live: bool) -> Option<Picked> {
        let segment = self.segments.get_mut(at)?;
        let found = segment.records.get_mut(record)?;
        found.state = State::Sent;
        Some(Picked {
            segment: segment.id,
            record,
            header: found.header,
            live,
            fresh: std::mem::take(&mut found.fresh),
        })
    }

    /// True when windows of `identity` wait that are not among the newest.
    pub fn has_waiting(&self, identity: &Identity) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|segment| {
            *segment.identity == *identity
                && segment
                    .records
                    .iter()
                    .any(|record| record.state == State::Waiting)
        })
    }

    /// The owner of waiting windows other than `identity`, oldest first.
    pub fn other_identity(&self, identity: &Identity) -> Option<Arc<Identity>> {
        let mut segments = self.segments.iter();
        let found = segments.find(|segment| {
            *segment.identity != *identity
                && segment
                    .records
                    .iter()
                    .any(|record| record.state == State::Waiting)
        })?;
        Some(Arc::clone(&found.identity))
    }

    /// Makes unanswered windows wait again.
    pub fn unsend(&mut self, identity: &Identity) {
        for segment in &mut self.segments {
            if *segment.identity != *identity {
                continue;
            }
            for record in &mut segment.records {
                if record.state == State::Sent {
                    record.state = State::Waiting;
                }
            }
        }
    }

    /// The same for all hosts and boots, when no stream is left.
    pub fn unsend_all(&mut self) {
        let records = self.segments.iter_mut().flat_map(|of| &mut of.records);
        for record in records.filter(|record| record.state == State::Sent) {
            record.state = State::Waiting;
        }
    }

    /// A record that was picked and not sent waits again, unless it was given up.
    pub fn unsend_one(&mut self, id: u64, record: usize) {
        let at = self.at(id);
        let found = at.and_then(|at| self.segments[at].records.get_mut(record));
        if let Some(found) = found.filter(|found| found.state == State::Sent) {
            found.state = State::Waiting;
        }
    }

    /// Where a record is, and in which segment's file; none when it was given up.
    pub fn place(&self, id: u64, record: usize) -> Option<(u64, RecordPlace)> {
        let segment = &self.segments[self.at(id)?];
        Some((segment.id, segment.records.get(record)?.place.clone()))
    }

    /// A record is done with; none when its segment was given up.
    pub fn done(&mut self, id: u64, record: usize) -> Option<Done> {
        let at = self.at(id)?;
        let segment = &mut self.segments[at];
        let found = segment.records.get_mut(record)?;
        let there = found.state != State::Done;
        found.state = State::Done;
        // What is in memory stays: records behind it need its tables.
        Some(Done {
            there,
            segment: segment.id,
            remove: self.finished(at),
        })
    }

    /// Bytes of all files.
    pub fn disk_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.disk_bytes).sum()
    }

    /// Bytes of records that are in memory only.
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().map(Segment::memory_bytes).sum()
    }

    /// Windows that wait.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        for record in self.segments.iter().flat_map(Segment::unfinished) {
            waiting.windows += 1;
            waiting.bytes += record.place.bytes();
            let start = record.header.start_unix_ns;
            let oldest = waiting.oldest_unix_ns.get_or_insert(start);
            *oldest = (*oldest).min(start);
        }
        waiting
    }

    /// Windows that wait and are in memory only, as the gap they are when the daemon ends now.
    pub fn only_in_memory(&self) -> Option<SpoolGap> {
        let mut sum: Option<SpoolGap> = None;
        for record in self.segments.iter().flat_map(Segment::unfinished) {
            if matches!(record.place, RecordPlace::Memory(_)) {
                let gap = SpoolGap::of(Cause::DiskFull, &record.header);
                match &mut sum {
                    Some(sum) => sum.widen(&gap),
                    None => sum = Some(gap),
                }
            }
        }
        sum
    }

    /// The text of the file of gaps when it has to be rewritten.
    pub fn take_unsaved_gaps(&mut self, boot: &str) -> Option<String> {
        let memory = self.only_in_memory();
        self.gaps.take_unsaved(boot, memory, self.last)
    }
}
