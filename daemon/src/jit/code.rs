//! What code lay where, and when: names of generated code by address and time.
//!
//! Runtimes write code, move it, free it and write other code in its place, so an address has a name only
//! together with a time. Every piece of code is kept with when it came and when it went, and pieces that
//! went stay until the last sample that could be theirs has its name. A jitdump tells both to the
//! nanosecond; of a perf map it is known only between which two readings a line was written. Where several
//! pieces are possible at a time and none is certain, nothing is made up: [`Found::Unsure`].
//!
//! Pure, and bounded in memory: what is refused at the bound is counted.

use crate::time::Mono;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Pieces that went and are kept for samples that have no name yet, of one process. Unit: pieces. A
/// runtime that writes its code anew 1,000 times a second needs 20,000 for two windows. Beyond it the
/// oldest are forgotten.
pub const GONE_MAX: usize = 32_768;

/// Longest piece that is found by its address alone. Unit: bytes. Longer ones that went are few and looked
/// through one by one.
const SHORT_BYTES_MAX: u64 = 64 << 10;

/// Longer pieces that went and are kept. Unit: pieces.
const LONG_GONE_MAX: usize = 256;

/// Memory of one piece beside its code. Unit: bytes: key and value, and the slack of the tree's nodes,
/// which are between half full and full.
const PIECE_BYTES: usize = 88;

/// Memory of one code beside its name and lines. Unit: bytes: 40, and what the allocator adds to it and to
/// the name.
const CODE_BYTES: usize = 64;

/// Memory of the lines of one code beside the lines themselves. Unit: bytes.
const LINES_BYTES: usize = 48;

/// When something happened: after `after` and not later than `by`; exactly then where both are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    after: Mono,
    by: Mono,
}

impl When {
    /// At a known time.
    pub fn at(time: Mono) -> When {
        When {
            after: time,
            by: time,
        }
    }

    /// After one time and not later than another.
    pub fn between(after: Mono, by: Mono) -> When {
        When {
            after: after.min(by),
            by,
        }
    }

    /// The latest it can have been.
    pub fn by(self) -> Mono {
        self.by
    }

    fn is_exact(self) -> bool {
        self.after == self.by
    }

    /// True when it may have happened by `time`.
    fn may_be_past(self, time: Mono) -> bool {
        if self.is_exact() {
            self.by <= time
        } else {
            self.after < time
        }
    }

    /// True when it has happened by `time` for certain.
    fn is_past(self, time: Mono) -> bool {
        self.by <= time
    }
}

/// Source lines of one code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Names of source files.
    pub files: Box<[Box<str>]>,
    /// Offset from the begin of the code, index of the file, line; sorted by offset.
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
    /// Its source lines, where the runtime told any.
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

/// What lay at an address at a time.
#[derive(Debug)]
pub enum Found<'a> {
    /// This code, at this offset from its begin.
    Code(&'a Code, u64),
    /// One of several, and nothing tells which.
    Unsure,
    /// Nothing that the runtime told of.
    Nothing,
}

impl Found<'_> {
    /// True when both are the same answer.
    pub fn is_same(&self, other: &Found<'_>) -> bool {
        match (self, other) {
            (Found::Code(a, at), Found::Code(b, bt)) => std::ptr::eq(*a, *b) && at == bt,
            (Found::Unsure, Found::Unsure) | (Found::Nothing, Found::Nothing) => true,
            _ => false,
        }
    }
}

#[derive(Clone, Debug)]
struct Piece {
    start: u64,
    end: u64,
    /// Where the code begins: the piece may have lost its begin to later code.
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
    fn may_be_between(&self, from: Mono, until: Mono) -> bool {
        self.piece.born.may_be_past(until) && !self.died.is_past(from)
    }

    fn is_at(&self, time: Mono) -> bool {
        self.piece.born.is_past(time) && !self.died.may_be_past(time)
    }
}

/// The code of one process. See the head of this file.
#[derive(Debug)]
pub struct CodeMap {
    /// What lies there now, by first address, without overlap.
    live: BTreeMap<u64, Piece>,
    /// What went, by first address, in order of its end; short pieces.
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

    /// Takes at most about this from now on; what is there stays.
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

    /// Whatever lay in the range went at `when`.
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

    /// Code that begins at `from` moved to `to` at `when`. Returns false when nothing begins there.
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

    /// Takes over a list of all code there is, made from nothing: what it does not list any more went, what
    /// it lists anew came, both at `when`.
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

    /// What lay at an address at a time.
    pub fn find(&self, address: u64, at: Mono) -> Found<'_> {
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
                Some(_) => return Found::Unsure,
            }
        }
        possible.map_or(Found::Nothing, |piece| found(piece, address))
    }

    /// What lay at an address during all of `from..=until`; `None` when it changed, or may have.
    pub fn steady(&self, address: u64, from: Mono, until: Mono) -> Option<Found<'_>> {
        match self.live_at(address) {
            Some(piece) if piece.born.is_past(from) => Some(found(piece, address)),
            Some(piece) if piece.born.may_be_past(until) => None,
            _ => {
                let mut others = self.gone_between(address, from, until);
                others.next().is_none().then_some(Found::Nothing)
            }
        }
    }

    /// The code that was the first to be listed at an address after `at` and by `by`, for a time at which
    /// nothing is known to have lain there: a runtime that gathers what it writes tells of code after it ran
    /// it. Only of code whose time is not exact; where it is, nothing lay there.
    pub fn soon(&self, address: u64, at: Mono, by: Mono) -> Found<'_> {
        let gone = self.gone_between(address, at, by).map(|gone| &gone.piece);
        let all = gone.chain(self.live_at(address));
        let listed = all.filter(|piece| {
            let born = piece.born;
            !born.is_exact() && born.by > at && born.by <= by
        });
        let first = listed.min_by_key(|piece| piece.born.by);
        first.map_or(Found::Nothing, |piece| found(piece, address))
    }

    /// Forgets what went before `time`: no sample of then will be asked for.
    pub fn forget_before(&mut self, time: Mono) {
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
    fn gone_between(&self, address: u64, from: Mono, until: Mono) -> impl Iterator<Item = &Gone> {
        let below = address.saturating_sub(SHORT_BYTES_MAX);
        let short = self.gone.range(below..=address).flat_map(move |(_, all)| {
            // In order of their ends, and so of their begins: those before are over, those after are
            // not there yet.
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
        let mut ends: Vec<Mono> = all.map(|gone| gone.died.by).collect();
        let half = ends.len() / 2;
        let (_, &mut middle, _) = ends.select_nth_unstable(half);
        let before = self.gone_count;
        self.forget_before(middle);
        if self.gone_count > GONE_MAX / 2 {
            // All went at one time.
            self.forget_before(Mono(middle.0.saturating_add(1)));
        }
        self.forgotten += (before - self.gone_count) as u64;
    }
}

fn found(piece: &Piece, address: u64) -> Found<'_> {
    Found::Code(&piece.code, address.wrapping_sub(piece.base))
}

/// What is freed with the last piece of a code.
fn last_bytes(piece: &Piece) -> usize {
    match Arc::strong_count(&piece.code) {
        1 => piece.code.heap_bytes(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(time: u64) -> When {
        When::at(Mono(time))
    }

    fn between(after: u64, by: u64) -> When {
        When::between(Mono(after), Mono(by))
    }

    fn map() -> CodeMap {
        CodeMap::new(1 << 20)
    }

    fn load(map: &mut CodeMap, range: Range<u64>, name: &str, when: When) {
        assert!(map.load(range, name, Lines::default(), when));
    }

    fn name<'a>(found: &Found<'a>) -> &'a str {
        match found {
            Found::Code(code, _) => &code.name,
            Found::Unsure => "?",
            Found::Nothing => "-",
        }
    }

    fn at_times(map: &CodeMap, address: u64, times: &[u64]) -> String {
        let names = times
            .iter()
            .map(|&time| name(&map.find(address, Mono(time))));
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn an_address_has_the_name_of_its_time() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "first", at(10));
        load(&mut map, 0x1000..0x1100, "second", at(20));
        load(&mut map, 0x1000..0x1100, "third", at(30));
        assert_eq!(
            at_times(&map, 0x1080, &[9, 10, 19, 20, 29, 30, 99]),
            "- first first second second third third"
        );
    }

    #[test]
    fn code_that_moved_keeps_its_name_at_both_places() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "walker", at(10));
        assert!(map.relocate(0x1000, 0x5000, 0x100, at(20)));
        load(&mut map, 0x1000..0x1010, "settler", at(30));
        assert_eq!(at_times(&map, 0x1000, &[15, 25, 35]), "walker - settler");
        assert_eq!(at_times(&map, 0x5000, &[15, 25, 35]), "- walker walker");
        assert!(!map.relocate(0x9000, 0x1000, 1, at(40)));
    }

    #[test]
    fn between_two_readings_of_a_map_only_one_name_is_no_guess() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "old", between(0, 10));
        assert_eq!(at_times(&map, 0x1000, &[5, 10, 15]), "old old old");
        load(&mut map, 0x1000..0x1100, "new", between(20, 30));
        assert_eq!(at_times(&map, 0x1000, &[20, 25, 30]), "old ? new");
        load(&mut map, 0x1000..0x1100, "newer", between(30, 40));
        assert_eq!(at_times(&map, 0x1000, &[15, 30, 35, 41]), "old new ? newer");
    }

    #[test]
    fn the_same_function_written_again_is_no_doubt() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "same", between(0, 10));
        load(&mut map, 0x1000..0x1080, "same", between(10, 20));
        assert_eq!(at_times(&map, 0x1000, &[15]), "same");
    }

    #[test]
    fn a_list_of_all_code_ends_what_it_does_not_list() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "stays", between(0, 10));
        load(&mut map, 0x2000..0x2100, "goes", between(0, 10));
        let mut newer = CodeMap::new(1 << 20);
        load(&mut newer, 0x1000..0x1100, "stays", at(50));
        load(&mut newer, 0x3000..0x3100, "comes", at(50));
        map.succeed(newer, between(10, 50));
        assert_eq!(at_times(&map, 0x1000, &[11, 30, 60]), "stays stays stays");
        assert_eq!(at_times(&map, 0x2000, &[10, 30, 60]), "goes goes -");
        assert_eq!(at_times(&map, 0x3000, &[10, 30, 60]), "- comes comes");
    }

    #[test]
    fn what_did_not_change_in_a_window_is_steady() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "old", at(10));
        load(&mut map, 0x2000..0x2100, "young", at(50));
        load(&mut map, 0x1080..0x1100, "over", at(60));
        let steady = |address, from, until| {
            let found = map.steady(address, Mono(from), Mono(until));
            found.map_or("changes", |found| name(&found))
        };
        assert_eq!(steady(0x1000, 20, 90), "old");
        assert_eq!(steady(0x1080, 20, 90), "changes");
        assert_eq!(steady(0x1080, 60, 90), "over");
        assert_eq!(steady(0x2000, 20, 90), "changes");
        assert_eq!(steady(0x2000, 20, 49), "-");
        assert_eq!(steady(0x9000, 20, 90), "-");
    }

    #[test]
    fn code_listed_late_is_found_for_the_time_before_and_only_so_long() {
        let mut map = map();
        load(&mut map, 0x1000..0x1100, "first", between(20, 30));
        load(&mut map, 0x1000..0x1100, "second", between(30, 40));
        load(&mut map, 0x2000..0x2100, "exact", at(30));
        let soon = |address, time, by| name(&map.soon(address, Mono(time), Mono(by))).to_owned();
        assert_eq!(at_times(&map, 0x1000, &[10]), "-");
        assert_eq!(soon(0x1000, 10, 40), "first");
        assert_eq!(soon(0x1000, 10, 29), "-");
        assert_eq!(soon(0x2000, 10, 40), "-", "then nothing lay there");
    }

    #[test]
    fn lines_are_found_by_offset() {
        let mut map = map();
        let lines = Lines {
            files: ["a.js".into(), "b.js".into()].into(),
            rows: [(0, 0, 7), (0x10, 1, 9)].into(),
        };
        map.load(0x1000..0x1100, "f", lines, at(1));
        map.relocate(0x1000, 0x4000, 0x100, at(2));
        let Found::Code(code, offset) = map.find(0x4012, Mono(3)) else {
            panic!("it is there");
        };
        assert_eq!(code.place(offset), Some(("b.js", 9)));
        assert_eq!(code.place(0), Some(("a.js", 7)));
    }

    #[test]
    fn memory_is_bounded_and_what_is_refused_is_counted() {
        let mut map = CodeMap::new(100_000);
        for number in 0..10_000u64 {
            let start = 0x1000 + number * 16;
            map.load(
                start..start + 16,
                &format!("f{number}"),
                Lines::default(),
                at(number),
            );
        }
        assert!(map.heap_bytes() <= 100_000 && map.is_full());
        assert_eq!(map.dropped().0 as usize + map.len(), 10_000);
        assert_eq!(at_times(&map, 0x1000, &[10]), "f0");
    }

    #[test]
    fn code_that_changes_for_ever_takes_no_more_memory() {
        let mut map = CodeMap::new(16 << 20);
        let mut most = 0;
        for time in 1..200_000u64 {
            load(
                &mut map,
                0x1000..0x1100,
                if time % 2 == 0 { "even" } else { "odd" },
                at(time),
            );
            if time % 1000 == 0 {
                map.forget_before(Mono(time.saturating_sub(500)));
            }
            most = most.max(map.heap_bytes());
        }
        assert!(most < 1 << 20, "{most}");
        for time in 0..100_000u64 {
            load(
                &mut map,
                0x1000..0x1100,
                &format!("f{time}"),
                at(200_000 + time),
            );
        }
        assert!(map.gone_count <= GONE_MAX && map.dropped().1 > 0);
        map.forget_before(Mono(u64::MAX));
        map.unload(0..u64::MAX, at(400_000));
        map.forget_before(Mono(u64::MAX));
        assert_eq!(map.heap_bytes(), 0);
    }

    proptest! {
        #[test]
        fn exact_times_equal_painting_every_address_at_every_time(
            events in prop::collection::vec((0u64..120, 1u64..50, 0u64..4), 0..50),
        ) {
            let mut map = map();
            let mut painted: Vec<Vec<Option<String>>> = vec![vec![None; 200]];
            for (time, &(start, len, kind)) in events.iter().enumerate() {
                let when = at(time as u64 + 1);
                let mut now = painted.last().cloned().unwrap_or_default();
                if kind == 0 {
                    map.unload(start..start + len, when);
                    now[start as usize..(start + len) as usize].fill(None);
                } else {
                    let name = format!("n{time}");
                    load(&mut map, start..start + len, &name, when);
                    now[start as usize..(start + len) as usize].fill(Some(name));
                }
                painted.push(now);
            }
            for (time, row) in painted.iter().enumerate() {
                for (address, expected) in row.iter().enumerate() {
                    let found = map.find(address as u64, Mono(time as u64));
                    prop_assert_eq!(name(&found), expected.as_deref().unwrap_or("-"));
                    if let Some(steady) = map.steady(address as u64, Mono(time as u64), Mono(99)) {
                        let later = painted[time..].iter().all(|row| &row[address] == expected);
                        prop_assert!(later);
                        prop_assert!(steady.is_same(&found));
                    }
                }
            }
        }
    }
}
