//! Parses a perf map: text lines in, code by address out.
//!
//! Pure: the bytes are fed as they were appended to the file, in pieces of any size. A line is
//! `start size name` with hexadecimal numbers (`0x` allowed). A later entry overrides an earlier
//! one where they overlap, because a runtime that reuses memory appends a new entry. Lines that
//! make no sense are counted and skipped. An unfinished last line waits for its end.

use super::code::{CodeMap, Lines, When};
use profile::names;
use std::ops::Range;

/// Longest line looked at. Unit: bytes. What is longer is one line that makes no sense.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Reads one perf map, fed in pieces of any size as the file grows.
#[derive(Debug, Default)]
pub struct MapReader {
    /// Start of a line that is not completely written yet.
    partial: Vec<u8>,
    /// True inside a line that is too long, until its end.
    skipping: bool,
    skipped: u64,
    /// Addresses of the code to use; `None`: all of it.
    within: Option<Vec<Range<u64>>>,
}

impl MapReader {
    /// Creates a reader that may start in the middle of a line.
    pub fn within_a_line() -> MapReader {
        MapReader {
            skipping: true,
            ..MapReader::default()
        }
    }

    /// Restricts it to code at these addresses.
    pub fn only(mut self, within: Vec<Range<u64>>) -> MapReader {
        self.within = Some(within);
        self
    }

    /// Starts from scratch with a file that was rewritten.
    pub fn restart(&mut self) {
        let within = self.within.take();
        *self = MapReader {
            within,
            ..MapReader::default()
        };
    }

    fn counts(&self, start: u64, end: u64) -> bool {
        let holds = |range: &Range<u64>| range.start <= start && end <= range.end;
        self.within
            .as_ref()
            .is_none_or(|within| within.iter().any(holds))
    }

    /// Feeds the next bytes of the file, written at `read`.
    pub fn feed(&mut self, mut bytes: &[u8], read: When, code: &mut CodeMap) {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (line, rest) = bytes.split_at(end);
            bytes = &rest[1..];
            if std::mem::take(&mut self.skipping) {
                self.partial.clear();
                continue;
            }
            if self.partial.is_empty() {
                self.line(line, read, code);
            } else {
                let mut whole = std::mem::take(&mut self.partial);
                whole.extend_from_slice(line);
                self.line(&whole, read, code);
                whole.clear();
                self.partial = whole;
            }
        }
        if self.skipping {
            return;
        }
        if self.partial.len() + bytes.len() > LINE_BYTES_MAX {
            self.partial = Vec::new();
            self.skipping = true;
            self.skipped += 1;
        } else {
            self.partial.extend_from_slice(bytes);
        }
    }

    fn line(&mut self, line: &[u8], read: When, code: &mut CodeMap) {
        match parse_line(line) {
            Some((start, end, _)) if !self.counts(start, end) => {}
            Some((start, end, name)) if name.ends_with(SCRATCH) => {
                code.unload(start..end, read);
            }
            // What is refused at the bound the map of code counts.
            Some((start, end, name)) => {
                code.load(start..end, &names::harmless(name), Lines::default(), read);
            }
            None if line.trim_ascii().is_empty() => {}
            None => self.skipped += 1,
        }
    }

    /// Lines skipped since the last call.
    pub fn take_skipped(&mut self) -> u64 {
        std::mem::take(&mut self.skipped)
    }

    /// Heap memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.partial.capacity()
    }
}

/// How HotSpot's list calls memory that its compiler works in while the list is written. It never
/// runs, and what is put there next would go by its name until the next list.
const SCRATCH: &[u8] = b" temporary CodeBuffer";

/// Start, end and name of a line; `None` when it makes no sense.
pub fn parse_line(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let (start, rest) = word(line)?;
    let (size, rest) = word(rest)?;
    let name = rest.trim_ascii();
    let (start, size) = (number(start)?, number(size)?);
    let end = start.checked_add(size)?;
    (size > 0 && !name.is_empty()).then_some((start, end, name))
}

fn word(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let line = line.trim_ascii_start();
    let end = line.iter().position(|byte| byte.is_ascii_whitespace())?;
    Some(line.split_at(end))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits
        .strip_prefix(b"0x")
        .or(digits.strip_prefix(b"0X"))
        .unwrap_or(digits);
    // `from_str_radix` would take a sign too.
    let plain = !digits.is_empty() && digits.iter().all(u8::is_ascii_hexdigit);
    plain.then(|| u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::super::code::CodeLookup;
    use super::*;
    use host::time::MonotonicTime;
    use profile::names::NAME_BYTES_MAX;
    use proptest::prelude::*;

    /// A map as it is after it was read.
    struct Read {
        reader: MapReader,
        code: CodeMap,
    }

    impl Read {
        fn new(bytes_max: usize) -> Read {
            Read {
                reader: MapReader::default(),
                code: CodeMap::new(bytes_max),
            }
        }

        fn feed(&mut self, bytes: &[u8]) {
            self.reader
                .feed(bytes, When::at(MonotonicTime(1)), &mut self.code);
        }

        fn find(&self, address: u64) -> Option<&str> {
            match self.code.find(address, MonotonicTime(2)) {
                CodeLookup::Code(code, _) => Some(&*code.name),
                _ => None,
            }
        }

        fn take_skipped(&mut self) -> u64 {
            self.reader.take_skipped()
        }

        fn heap_bytes(&self) -> usize {
            self.reader.heap_bytes() + self.code.heap_bytes()
        }
    }

    fn map(content: &str) -> Read {
        let mut map = Read::new(1 << 20);
        map.feed(content.as_bytes());
        map
    }

    #[test]
    fn lines_give_ranges() {
        let map = map("1000 10 first\n0x2000 0x20 JS:*second file.js:1\r\n");
        assert_eq!(map.find(0xfff), None);
        assert_eq!(map.find(0x1000), Some("first"));
        assert_eq!(map.find(0x100f), Some("first"));
        assert_eq!(map.find(0x1010), None);
        assert_eq!(map.find(0x201f), Some("JS:*second file.js:1"));
    }

    #[test]
    fn memory_that_a_compiler_works_in_is_no_code() {
        let map = map("1000 100 f\n1000 40 C1 temporary CodeBuffer\n");
        assert_eq!((map.find(0x1000), map.find(0x1040)), (None, Some("f")));
    }

    #[test]
    fn broken_lines_are_skipped_and_counted() {
        let broken = "zz 10 a\n1000\n1000 10\n1000 10 \n-1000 10 b\nffffffffffffffff 2 c\n1000 0 d\n0x 1 e\n";
        let mut map = map(&format!("{broken}\n\n3000 10 good\n"));
        assert_eq!(
            (map.code.len(), map.take_skipped(), map.take_skipped()),
            (1, 8, 0)
        );
        assert_eq!(map.find(0x3001), Some("good"));
    }

    #[test]
    fn a_half_line_waits_for_its_end() {
        let mut map = map("1000 10 fir");
        assert_eq!(map.find(0x1000), None);
        map.feed(b"st\n2000 1");
        map.feed(b"0 second\n");
        assert_eq!(
            (map.find(0x1000), map.find(0x200f)),
            (Some("first"), Some("second"))
        );
        assert_eq!(map.take_skipped(), 0);
    }

    #[test]
    fn a_later_entry_wins_where_they_overlap() {
        let map = map("1000 100 outer\n1040 10 inner\n10f0 20 right\nff0 20 left\n");
        let found = [
            0xff0, 0x100f, 0x1010, 0x1040, 0x1050, 0x10ef, 0x10f0, 0x110f,
        ]
        .map(|a| map.find(a));
        let expected = [
            "left", "left", "outer", "inner", "outer", "outer", "right", "right",
        ];
        assert_eq!(found, expected.map(Some));
        assert_eq!(map.find(0x1110), None);
    }

    #[test]
    fn hostile_names_are_made_harmless() {
        let mut map = Read::new(1 << 20);
        map.feed(b"1000 10 a\x1b[31m\x00\xff;<b>\n");
        assert_eq!(map.find(0x1000), Some("a\u{fffd}[31m\u{fffd}\u{fffd};<b>"));
        map.feed(format!("2000 10 {}\n", "\u{1}x".repeat(30_000)).as_bytes());
        let name = map.find(0x2000).expect("is listed");
        assert!(name.len() <= NAME_BYTES_MAX && name.ends_with('…'));
    }

    #[test]
    fn a_line_without_end_takes_no_memory() {
        let mut map = map("1000 10 before\n");
        for _ in 0..100 {
            map.feed(&[b'x'; 10_000]);
        }
        assert!(map.heap_bytes() < 2 * LINE_BYTES_MAX);
        map.feed(b"\n2000 10 after\n");
        assert_eq!(
            (map.find(0x1000), map.find(0x2000)),
            (Some("before"), Some("after"))
        );
        assert_eq!(map.take_skipped(), 1);
    }

    #[test]
    fn a_full_map_keeps_what_it_has() {
        let mut map = Read::new(10_000);
        for index in 0..10_000u64 {
            map.feed(format!("{:x} 10 name{index}\n", 0x1000 + index * 16).as_bytes());
        }
        assert!(map.code.is_full() && map.heap_bytes() < 20_000);
        assert_eq!(map.find(0x1000), Some("name0"));
    }

    proptest! {
        #[test]
        fn ranges_equal_painting_every_address(
            entries in prop::collection::vec((0u64..200, 1u64..60), 0..60),
            cut in 1usize..40,
        ) {
            let mut painted = [None; 300];
            let mut content = String::new();
            for (index, &(start, size)) in entries.iter().enumerate() {
                content.push_str(&format!("{start:x} {size:x} n{index}\n"));
                painted[start as usize..(start + size) as usize].fill(Some(index));
            }
            let mut map = Read::new(1 << 20);
            content.as_bytes().chunks(cut).for_each(|piece| map.feed(piece));
            for (address, expected) in painted.iter().enumerate() {
                let expected = expected.map(|index| format!("n{index}"));
                prop_assert_eq!(map.find(address as u64), expected.as_deref());
            }
        }

        #[test]
        fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut map = Read::new(4096);
            bytes.chunks(7).for_each(|piece| map.feed(piece));
            map.find(0);
        }
    }
}
