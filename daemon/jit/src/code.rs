//! The history of generated code: names by address and time.
//!
//! Runtimes write code, move it, free it and write other code in its place, so an address has a
//! name only together with a time. For each piece of code the table keeps when it appeared and when
//! it went; pieces that went are kept until the last sample that could be theirs is named. A
//! jitdump gives both times to the nanosecond. For a perf map it is only known between which two
//! readings a line was written. If several pieces are possible at a time and none is certain, the
//! answer is [`CodeLookup::Unsure`] rather than a guess.
//!
//! Pure, and bounded in memory: what is rejected at the bound is counted.

use host::time::MonotonicTime;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pieces that went and are kept for samples that have no name yet, of one process. Unit: pieces. A
/// runtime that rewrites its code 1,000 times a second needs 20,000 for two windows. Beyond it
/// the oldest are forgotten.
pub const GONE_MAX: usize = 32_768;

/// Longest piece that is found by its address alone. Unit: bytes. Longer ones that went are few and
/// looked through one by one.
const SHORT_BYTES_MAX: u64 = 64 << 10;

/// Longer pieces that went and are kept. Unit: pieces.
const LONG_GONE_MAX: usize = 256;

/// Memory of one piece in addition to its code. Unit: bytes: key and value, and the slack of the
/// tree's nodes, which are between half full and full.
const PIECE_BYTES: usize = 88;

/// Memory of one code in addition to its name and lines. Unit: bytes: 40, plus the allocator's
/// overhead for it and the name.
const CODE_BYTES: usize = 64;

/// Memory of the lines of one code in addition to the lines themselves. Unit: bytes.
const LINES_BYTES: usize = 48;

/// When something happened: after `after` and not later than `by`; exactly then where both are
/// equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    after: MonotonicTime,
    by: MonotonicTime,
}

impl When {
    /// At a known time.
    pub fn at(time: MonotonicTime) -> When {
        When {
            after: time,
            by: time,
        }
    }

    /// After one time and not later than another.
    pub fn between(after: MonotonicTime, by: MonotonicTime) -> When {
        When {
            after: after.min(by),
            by,
        }
    }

    /// The latest it can have been.
    pub fn by(self) -> MonotonicTime {
        self.by
    }

    fn is_exact(self) -> bool {
        self.after == self.by
    }

    /// True when it may have happened by `time`.
    fn may_be_past(self, time: MonotonicTime) -> bool {
        if self.is_exact() {
            self.by <= time
        } else {
            self.after < time
        }
    }

    /// True when it has happened by `time` for certain.
    fn is_past(self, time: MonotonicTime) -> bool {
        self.by <= time
    }
}

/// Source lines of one code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Names of source files.
    pub files: Box<[Box<str>]>,
    /// Offset from the start of the code, index of the file, line; sorted by offset.
    pub rows: Box<[(u32, u32, u32)]>,
}

impl Lines {
    fn heap_bytes(&self) -> usize {
        let files: usize = self.files.iter().map(|file| file.len() + 16).sum();
        LINES_BYTES + files + self.rows.len() * 12
    }
}

/// A piece of generated code, wherever it lies.
#[derive(Debug)]
pub struct Code {
    /// Its name as the runtime wrote it, made harmless.
    pub name: Box<str>,
    /// Its source lines, if the runtime wrote any.
    lines: Option<Box<Lines>>,
}

impl Code {
    /// Source file and line of an offset within.
    pub fn place(&self, offset: u64) -> Option<(&str, u32)> {
        let lines = self.lines.as_deref()?;
        let after = lines.rows.partition_point(|row| u64::from(row.0) <= offset);
        let &(_, file, line) = lines.rows.get(after.checked_sub(1)?)?;
        Some((lines.files.get(file as usize)?, line))
    }

    fn heap_bytes(&self) -> usize {
        let lines = self.lines.as_deref().map_or(0, Lines::heap_bytes);
        CODE_BYTES + self.name.len() + lines
    }
}

/// The code at an address at a time.
#[derive(Debug)]
pub enum CodeLookup<'a> {
    /// This code, at this offset from its start.
    Code(&'a Code, u64),
    /// One of several, and it is unknown which.
    Unsure,
    /// Nothing that the runtime reported.
    Nothing,
}

impl CodeLookup<'_> {
    /// True when both are the same answer.
    pub fn is_same(&self, other: &CodeLookup<'_>) -> bool {
        match (self, other) {
            (CodeLookup::Code(a, at), CodeLookup::Code(b, bt)) => std::ptr::eq(*a, *b) && at == bt,
            (CodeLookup::Unsure, CodeLookup::Unsure)
            | (CodeLookup::Nothing, CodeLookup::Nothing) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    end: u64,
    /// Where the code starts: the piece may have lost its start to later code.
    base: u64,
    code: Arc<Code>,
    born: When,
}

#[derive(Debug)]
struct Gone {
    piece: Piece,
    died: When,
}

impl Gone {
    fn may_be_between(&self, from: MonotonicTime, until: MonotonicTime) -> bool {
        self.piece.born.may_be_past(until) && !self.died.is_past(from)
    }

    fn is_at(&self, time: MonotonicTime) -> bool {
        self.piece.born.is_past(time) && !self.died.may_be_past(time)
    }
}

/// The code of one process. See the head of this file.
#[derive(Debug)]
pub struct CodeMap {
    /// Current code, by first address, without overlap.
    live: BTreeMap<u64, Piece>,
    /// Removed code, by first address, in order of its end; short pieces.
    gone: BTreeMap<u64, Vec<Gone>>,
    gone_count: usize,
    /// Long ones, in order of their end.
    long_gone: Vec<Gone>,
    bytes: usize,
    bytes_max: usize,
    refused: u64,
    forgotten: u64,
}

impl CodeMap {
    /// An empty map that takes at most about `bytes_max` bytes of memory.
    pub fn new(bytes_max: usize) -> CodeMap {
        CodeMap {
            live: BTreeMap::new(),
            gone: BTreeMap::new(),
            gone_count: 0,
            long_gone: Vec::new(),
            bytes: 0,
            bytes_max,
            refused: 0,
            forgotten: 0,
        }
    }

    /// Sets an approximate bound on its memory from now on; existing entries stay.
    pub fn set_bytes_max(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Code that came at `when`, over whatever lay there. Listed again unchanged it is what it was.
    /// Returns false when the bound refused it.
    pub fn load(&mut self, range: Range<u64>, name: &str, lines: Lines, when: When) -> bool {
        if range.is_empty() {
            return true;
        }
        let known = self.live.get(&range.start);
        if known.is_some_and(|known| {
            known.end == range.end && known.base == range.start && &*known.code.name == name
        }) && lines.rows.is_empty()
        {
            return true;
        }
        let code = Arc::new(Code {
            name: name.into(),
            lines: (!lines.rows.is_empty()).then(|| Box::new(lines)),
        });
        if self.bytes + PIECE_BYTES + code.heap_bytes() > self.bytes_max {
            // What lay there is gone all the same.
            self.unload(range, when);
            self.refused += 1;
            return false;
        }
        self.bytes += code.heap_bytes();
        self.place(range, code, when);
        true
    }

    /// Removes all code in the range at `when`.
    pub fn unload(&mut self, range: Range<u64>, when: When) {
        let Range { start, end } = range;
        let below = self.live.range(..start).next_back();
        let first = below.filter(|(_, piece)| piece.end > start);
        let first = first.map_or(start, |(&first, _)| first);
        while let Some((&at, _)) = self.live.range(first..end).next() {
            let Some(piece) = self.live.remove(&at) else {
                return;
            };
            self.bytes -= PIECE_BYTES;
            let (from, to) = (piece.start.max(start), piece.end.min(end));
            if piece.start < from {
                self.add_live(Piece {
                    end: from,
                    ..piece.clone()
                });
            }
            if to < piece.end {
                self.add_live(Piece {
                    start: to,
                    ..piece.clone()
                });
            }
            self.bury(
                Piece {
                    start: from,
                    end: to,
                    ..piece
                },
                when,
            );
            if at < start {
                // Its rest below the range would be met again.
                return self.unload(start.max(to)..end.max(to), when);
            }
        }
    }

    /// Code that starts at `from` moved to `to` at `when`. Returns false when nothing starts there.
    pub fn relocate(&mut self, from: u64, to: u64, len: u64, when: When) -> bool {
        let Some(piece) = self.live.get(&from) else {
            return false;
        };
        let (code, len) = (Arc::clone(&piece.code), len.max(1));
        let Some(end) = to.checked_add(len) else {
            return false;
        };
        self.unload(from..from.saturating_add(len), when);
        self.place(to..end, code, when);
        true
    }

    /// Adopts a newly made list of all existing code: code that it no longer lists went, and code
    /// that it newly lists came, both at `when`.
    pub fn succeed(&mut self, newer: CodeMap, when: When) {
        let went: Vec<Range<u64>> = self
            .live
            .values()
            .filter(|old| {
                let same = newer.live.get(&old.start);
                !same.is_some_and(|new| new.end == old.end && new.code.name == old.code.name)
            })
            .map(|old| old.start..old.end)
            .collect();
        for range in went {
            self.unload(range, when);
        }
        self.refused += newer.refused;
        for (start, piece) in newer.live {
            if self.live.contains_key(&start) {
                continue;
            }
            if self.bytes + PIECE_BYTES + piece.code.heap_bytes() > self.bytes_max {
                self.refused += 1;
                continue;
            }
            self.bytes += piece.code.heap_bytes();
            self.place(piece.start..piece.end, piece.code, when);
        }
    }

    /// The code at an address at a time.
    pub fn find(&self, address: u64, at: MonotonicTime) -> CodeLookup<'_> {
        let live = self.live_at(address);
        if let Some(piece) = live
            && piece.born.is_past(at)
        {
            return found(piece, address);
        }
        let mut possible = live.filter(|piece| piece.born.may_be_past(at));
        for gone in self.gone_between(address, at, at) {
            if gone.is_at(at) {
                return found(&gone.piece, address);
            }
            match possible {
                None => possible = Some(&gone.piece),
                Some(other) if other.code.name == gone.piece.code.name => {}
                Some(_) => return CodeLookup::Unsure,
            }
        }
        possible.map_or(CodeLookup::Nothing, |piece| found(piece, address))
    }

    /// The code at an address during all of `from..=until`; `None` if it changed, or may have.
    pub fn steady(
        &self,
        address: u64,
        from: MonotonicTime,
        until: MonotonicTime,
    ) -> Option<CodeLookup<'_>> {
        match self.live_at(address) {
            Some(piece) if piece.born.is_past(from) => Some(found(piece, address)),
            Some(piece) if piece.born.may_be_past(until) => None,
            _ => {
                let mut others = self.gone_between(address, from, until);
                others.next().is_none().then_some(CodeLookup::Nothing)
            }
        }
    }

    /// The code that was first listed at an address after `at` and before or at `by`, for a time at
    /// which no code is known there: a runtime that buffers its output reports code after running
    /// it. Only for code without an exact time; with an exact time, nothing was there.
    pub fn soon(&self, address: u64, at: MonotonicTime, by: MonotonicTime) -> CodeLookup<'_> {
        let gone = self.gone_between(address, at, by).map(|gone| &gone.piece);
        let all = gone.chain(self.live_at(address));
        let listed = all.filter(|piece| {
            let born = piece.born;
            !born.is_exact() && born.by > at && born.by <= by
        });
        let first = listed.min_by_key(|piece| piece.born.by);
        first.map_or(CodeLookup::Nothing, |piece| found(piece, address))
    }

    /// Forgets what went before `time`: no sample of then will be asked for.
    pub fn forget_before(&mut self, time: MonotonicTime) {
        let mut freed = 0;
        let mut count = 0;
        let mut stays = |gone: &Gone| {
            let stays = !gone.died.is_past(time);
            if !stays {
                freed += PIECE_BYTES + last_bytes(&gone.piece);
                count += 1;
            }
            stays
        };
        self.long_gone.retain(&mut stays);
        let long = self.long_gone.len();
        self.gone.retain(|_, pieces| {
            pieces.retain(&mut stays);
            !pieces.is_empty()
        });
        self.bytes = self.bytes.saturating_sub(freed);
        self.gone_count = long + self.gone.values().map(Vec::len).sum::<usize>();
    }

    /// Pieces of code that are there now.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// True when there is none.
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// True when code was refused at the bound.
    pub fn is_full(&self) -> bool {
        self.refused > 0
    }

    /// Code refused at the bound, and pieces that went and were forgotten before their time.
    pub fn dropped(&self) -> (u64, u64) {
        (self.refused, self.forgotten)
    }

    /// Memory held, in bytes, about.
    pub fn heap_bytes(&self) -> usize {
        self.bytes
    }

    /// Every piece that is there now: its range and its code.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &Code)> {
        self.live
            .values()
            .map(|piece| (piece.start..piece.end, &*piece.code))
    }

    fn live_at(&self, address: u64) -> Option<&Piece> {
        let (_, piece) = self.live.range(..=address).next_back()?;
        (address < piece.end).then_some(piece)
    }

    /// Pieces that went and may have been at the address at some time of `from..=until`.
    fn gone_between(
        &self,
        address: u64,
        from: MonotonicTime,
        until: MonotonicTime,
    ) -> impl Iterator<Item = &Gone> {
        let below = address.saturating_sub(SHORT_BYTES_MAX);
        let short = self.gone.range(below..=address).flat_map(move |(_, all)| {
            // In order of their ends, and so of their starts: those before are over, those after
            // are not there yet.
            let first = all.partition_point(|gone| gone.died.is_past(from));
            all[first..]
                .iter()
                .take_while(move |gone| gone.piece.born.may_be_past(until))
        });
        let long = self.long_gone.iter();
        let long = long.filter(move |gone| gone.may_be_between(from, until));
        let covers = move |gone: &&Gone| gone.piece.end > address && gone.piece.start <= address;
        short.chain(long).filter(covers)
    }

    fn place(&mut self, range: Range<u64>, code: Arc<Code>, born: When) {
        self.unload(range.clone(), born);
        self.add_live(Piece {
            start: range.start,
            end: range.end,
            base: range.start,
            code,
            born,
        });
    }

    fn add_live(&mut self, piece: Piece) {
        self.bytes += PIECE_BYTES;
        self.live.insert(piece.start, piece);
    }

    fn bury(&mut self, piece: Piece, died: When) {
        if piece.start >= piece.end {
            return;
        }
        if self.gone_count >= GONE_MAX {
            self.forget_oldest();
        }
        self.bytes += PIECE_BYTES;
        self.gone_count += 1;
        let long = piece.end - piece.start > SHORT_BYTES_MAX;
        let start = piece.start;
        let gone = Gone { piece, died };
        if !long {
            self.gone.entry(start).or_default().push(gone);
            return;
        }
        if self.long_gone.len() >= LONG_GONE_MAX {
            let oldest = self.long_gone.remove(0);
            self.bytes = self
                .bytes
                .saturating_sub(PIECE_BYTES + last_bytes(&oldest.piece));
            self.gone_count -= 1;
            self.forgotten += 1;
        }
        self.long_gone.push(gone);
    }

    /// Forgets the older half of what went: a search for the oldest one each time would be dear.
    fn forget_oldest(&mut self) {
        let all = self.gone.values().flatten().chain(&self.long_gone);
        let mut ends: Vec<MonotonicTime> = all.map(|gone| gone.died.by).collect();
        let half = ends.len() / 2;
        let (_, &mut middle, _) = ends.select_nth_unstable(half);
        let before = self.gone_count;
        self.forget_before(middle);
        if self.gone_count > GONE_MAX / 2 {
            // All went at one time.
            self.forget_before(MonotonicTime(middle.0.saturating_add(1)));
        }
        self.forgotten += (before - self.gone_count) as u64;
    }
}

fn found(piece: &Piece, address: u64) -> CodeLookup<'_> {
    CodeLookup::Code(&piece.code, address.wrapping_sub(piece.base))
}

/// Memory that is freed with the last piece of a code.
fn last_bytes(piece: &Piece) -> usize {
    match Arc::strong_count(&piece.code) {
        1 => piece.code.heap_bytes(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
