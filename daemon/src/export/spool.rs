//! The index of the spool: which windows wait, where each is, and what is given up when a bound is
//! reached. Plain data under a lock that nobody holds while waiting for a disk.
//!
//! A segment is one generation of windows, in order. Its records are on disk, or in memory where the
//! disk took nothing. Bounds drop whole segments, oldest first: the records of a segment share their
//! tables, and half of one would be worth little.

use super::disk::Scanned;
use super::gaps::{Cause, Gap, Gaps};
use super::identity::Identity;
use super::tap::About;
use std::collections::VecDeque;
use std::sync::Arc;

/// The newest windows are sent first, as long as no more than these wait; the rest is backlog.
const LIVE_WINDOWS: usize = 3;

/// Where a record is.
#[derive(Clone, Debug)]
pub enum Place {
    /// In the segment's file.
    Disk {
        /// Begin.
        offset: u64,
        /// Length.
        len: u32,
    },
    /// Nowhere else.
    Memory(Arc<[u8]>),
}

impl Place {
    fn memory_bytes(&self) -> u64 {
        match self {
            Place::Memory(bytes) => bytes.len() as u64,
            Place::Disk { .. } => 0,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Place::Memory(bytes) => bytes.len() as u64,
            Place::Disk { len, .. } => u64::from(*len),
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
    place: Place,
    about: About,
    state: State,
    /// It was never sent, not even by an earlier run.
    fresh: bool,
}

#[derive(Debug)]
struct Segment {
    id: u64,
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

    fn gap(&self, cause: Cause) -> Option<Gap> {
        let mut sum: Option<Gap> = None;
        for record in self.unfinished() {
            let gap = Gap::of(cause, &record.about);
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
}

/// A record that is to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Its segment.
    pub segment: u64,
    /// Its place in it.
    pub record: usize,
    /// What it is.
    pub about: About,
    /// It is one of the newest.
    pub live: bool,
    /// It was never sent before.
    pub fresh: bool,
}

/// What waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Waiting {
    /// Windows not acknowledged yet.
    pub windows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Begin of the oldest.
    pub oldest_unix_ns: Option<i64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Index {
    segments: VecDeque<Segment>,
    /// What was given up.
    pub gaps: Gaps,
}

impl Index {
    /// Takes in a segment that an earlier run left. Returns false when nothing in it waits.
    pub fn add_found(&mut self, id: u64, scanned: &Scanned, len: u64) -> bool {
        let mut lost = None;
        if scanned.damaged {
            // How many windows were in what cannot be read is not known: one at least.
            let end = scanned
                .records
                .last()
                .map_or(0, |last| last.about.end_unix_ns);
            lost = Some(Gap {
                cause: Cause::Damaged,
                start_unix_ns: end,
                end_unix_ns: end,
                windows: 1,
                samples: 0,
            });
        }
        if let Some(lost) = lost {
            self.gaps.add(lost);
        }
        let Some(identity) = &scanned.identity else {
            return false;
        };
        if scanned.records.iter().all(|record| record.acked) {
            return false;
        }
        let records = scanned.records.iter().map(|found| Record {
            place: Place::Disk {
                offset: found.offset,
                len: found.len,
            },
            about: found.about,
            state: match found.acked {
                true => State::Done,
                false => State::Waiting,
            },
            fresh: false,
        });
        let segment = Segment {
            id,
            identity: Arc::new(identity.clone()),
            disk_bytes: len,
            open: false,
            records: records.collect(),
        };
        // Windows that came while the directory could not be used are newer.
        let at = self.segments.partition_point(|known| known.id < id);
        self.segments.insert(at, segment);
        true
    }

    /// Begins a segment.
    pub fn begin(&mut self, id: u64, identity: &Arc<Identity>, disk_bytes: u64) {
        self.segments.push_back(Segment {
            id,
            identity: Arc::clone(identity),
            disk_bytes,
            open: true,
            records: Vec::new(),
        });
    }

    /// Adds a record to the newest segment.
    pub fn push(&mut self, place: Place, about: About) {
        if let Some(segment) = self.segments.back_mut() {
            if let Place::Disk { offset, len } = place {
                segment.disk_bytes = offset + u64::from(len);
            }
            segment.records.push(Record {
                place,
                about,
                state: State::Waiting,
                fresh: true,
            });
        }
    }

    /// No more records come to a segment. Returns true when it is to be removed.
    pub fn close(&mut self, id: u64) -> bool {
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.id == id) else {
            return false;
        };
        segment.open = false;
        self.finished(id)
    }

    /// Takes a segment out when it is closed and all of it acknowledged; true when it was.
    fn finished(&mut self, id: u64) -> bool {
        let finished = |segment: &Segment| {
            segment.id == id && !segment.open && segment.unfinished().next().is_none()
        };
        match self.segments.iter().position(finished) {
            Some(at) => self.segments.remove(at).is_some(),
            None => false,
        }
    }

    /// Gives up closed segments until `need` more bytes of disk are within `max_bytes` and nothing is
    /// older than `oldest_unix_ns`. Returns the segments whose files are to be removed.
    pub fn make_room(&mut self, need: u64, max_bytes: u64, oldest_unix_ns: i64) -> Vec<u64> {
        let mut removed = Vec::new();
        let mut at = 0;
        while at < self.segments.len() {
            let segment = &self.segments[at];
            let newest = segment
                .records
                .iter()
                .map(|record| record.about.end_unix_ns);
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

    /// Gives up closed segments that hold memory until `need` more bytes of it are within `max`.
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

    /// Gives up what waits of a segment whose bytes are damaged, from one record on. Returns the
    /// records, and whether the segment's file is to be removed.
    pub fn damaged(&mut self, id: u64, from: usize) -> (Vec<u32>, bool) {
        let Some(at) = self.segments.iter().position(|segment| segment.id == id) else {
            return (Vec::new(), false);
        };
        let segment = &mut self.segments[at];
        let mut lost = Vec::new();
        for (number, record) in segment.records.iter_mut().enumerate().skip(from) {
            if record.state != State::Done {
                lost.push(number as u32);
                self.gaps.add(Gap::of(Cause::Damaged, &record.about));
                record.state = State::Done;
            }
        }
        self.release_gaps();
        (lost, self.finished(id))
    }

    fn give_up(&mut self, at: usize, cause: Cause) -> Option<u64> {
        let segment = self.segments.remove(at)?;
        if let Some(gap) = segment.gap(cause) {
            self.gaps.add(gap);
        }
        self.release_gaps();
        (segment.disk_bytes > 0).then_some(segment.id)
    }

    fn release_gaps(&mut self) {
        let segments = &self.segments;
        self.gaps.release_unless(|sequence| {
            let mut all = segments.iter().flat_map(Segment::unfinished);
            all.any(|record| record.about.sequence == sequence)
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

    fn take(&mut self, at: usize, record: usize, live: bool) -> Option<Picked> {
        let segment = self.segments.get_mut(at)?;
        let found = segment.records.get_mut(record)?;
        found.state = State::Sent;
        Some(Picked {
            segment: segment.id,
            record,
            about: found.about,
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

    /// Whose windows wait beside those of `identity`, oldest first.
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

    /// What was sent and not answered waits again.
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

    /// A record that was picked and not sent waits again, unless it was given up.
    pub fn unsend_one(&mut self, id: u64, record: usize) {
        let segment = self.segments.iter_mut().find(|segment| segment.id == id);
        let found = segment.and_then(|segment| segment.records.get_mut(record));
        if let Some(found) = found.filter(|found| found.state == State::Sent) {
            found.state = State::Waiting;
        }
    }

    /// Where a record is; none when it was given up.
    pub fn place(&self, id: u64, record: usize) -> Option<Place> {
        let segment = self.segments.iter().find(|segment| segment.id == id)?;
        Some(segment.records.get(record)?.place.clone())
    }

    /// A record is done with. Returns whether it was there, and whether its segment's file is to be
    /// removed.
    pub fn done(&mut self, id: u64, record: usize) -> (bool, bool) {
        let Some(segment) = self.segments.iter_mut().find(|segment| segment.id == id) else {
            return (false, false);
        };
        let Some(found) = segment.records.get_mut(record) else {
            return (false, false);
        };
        let was_there = found.state != State::Done;
        found.state = State::Done;
        // What is in memory stays: records behind it need its tables.
        (was_there, self.finished(id))
    }

    /// Bytes of all files.
    pub fn disk_bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.disk_bytes).sum()
    }

    /// Bytes of records that are in memory only.
    pub fn memory_bytes(&self) -> u64 {
        self.segments.iter().map(Segment::memory_bytes).sum()
    }

    /// What waits.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting::default();
        for record in self.segments.iter().flat_map(Segment::unfinished) {
            waiting.windows += 1;
            waiting.bytes += record.place.bytes();
            let start = record.about.start_unix_ns;
            let oldest = waiting.oldest_unix_ns.get_or_insert(start);
            *oldest = (*oldest).min(start);
        }
        waiting
    }

    /// Windows that wait and are in memory only.
    pub fn only_in_memory(&self) -> u64 {
        let records = self.segments.iter().flat_map(Segment::unfinished);
        records
            .filter(|record| matches!(record.place, Place::Memory(_)))
            .count() as u64
    }
}
