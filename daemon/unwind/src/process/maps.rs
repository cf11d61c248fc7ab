//! Parses `/proc/PID/maps` as bytes, because anybody can choose the paths.
//!
//! Pure: a reader in, mappings out. A path may contain bytes that are not UTF-8, blanks and words
//! such as ` (deleted)`; the kernel writes a newline in it as `\012` (seq_path in
//! fs/proc/task_mmu.c) and escapes nothing else. A line that makes no sense is skipped. The number
//! of mappings is bounded by what an address space may hold.

use super::space::MAPPINGS_MAX;
use std::io::{BufRead, Read};
use std::ops::Range;

/// Longest line read. Unit: bytes. A path has at most 4,096, each of which may be escaped to four.
const LINE_BYTES_MAX: u64 = 20 << 10;

/// A mapping from `/proc/PID/maps`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file.
    pub file_offset: u64,
    /// Major and minor number of the file's device.
    pub device: (u32, u32),
    /// Inode of the file; 0 for memory.
    pub inode: u64,
    /// True for a copy of one's own, as loaders map programs.
    pub private: bool,
    /// Path, a word such as `[vdso]`, or nothing.
    pub path: Box<[u8]>,
}

impl Map {
    /// True when a file lies behind it: all other names are the kernel's words.
    pub fn is_file(&self) -> bool {
        self.path.starts_with(b"/")
    }

    /// True for the process's own memory, which nobody else has and nothing else is behind: its
    /// stacks, and what it asked for.
    pub fn is_own_memory(&self) -> bool {
        let named = [&b"[stack]"[..], b"[anon:"];
        let own = self.path.is_empty() || named.iter().any(|name| self.path.starts_with(name));
        own && self.private && self.inode == 0
    }
}

/// The executable mappings in the order of their addresses: at most [`MAPPINGS_MAX`] of files and
/// as many of memory. Reading ends early where it fails.
pub fn executable(from: impl BufRead) -> Vec<Map> {
    let (mut found, mut files, mut memory) = (Vec::new(), 0, 0);
    each_line(from, |line| {
        let Some(map) = is_executable(line).then(|| parse(line)).flatten() else {
            return;
        };
        let kept = if map.is_file() {
            &mut files
        } else {
            &mut memory
        };
        if *kept < MAPPINGS_MAX {
            *kept += 1;
            found.push(map);
        }
    });
    found
}

/// Every mapping of a file, and whether it is executable. Reading ends early where it fails.
pub fn files(from: impl BufRead, mut each: impl FnMut(Map, bool)) {
    each_line(from, |line| {
        if let Some(map) = parse(line).filter(Map::is_file) {
            each(map, is_executable(line));
        }
    });
}

/// The process's own memory that it may read and write: the mapping that holds an address, and at
/// most `max` others of its size, those that follow it first, as the stacks of threads are. None
/// when the address is in no such mapping.
pub fn alike(from: impl BufRead, address: u64, max: usize) -> Vec<Range<u64>> {
    let mut own: Vec<Range<u64>> = Vec::new();
    each_line(from, |line| {
        let rights = line.split(|&byte| byte == b' ').nth(1);
        let used = rights.is_some_and(|rights| rights.starts_with(b"rw"));
        if let Some(map) = parse(line).filter(|map| used && map.is_own_memory()) {
            own.push(map.start..map.end);
        }
    });
    let size = |range: &Range<u64>| range.end - range.start;
    let Some(at) = own.iter().position(|range| range.contains(&address)) else {
        return Vec::new();
    };
    own.rotate_left(at);
    let wanted = size(&own[0]);
    own.retain(|range| size(range) == wanted);
    own.truncate(max.saturating_add(1));
    own
}

/// Every mapping's addresses, and whether they are executable. Reading ends early where it fails.
pub fn ranges(from: impl BufRead, mut each: impl FnMut(Range<u64>, bool)) {
    each_line(from, |line| {
        let first = line.split(|&byte| byte == b' ').next();
        if let Some((start, end)) = first.and_then(range) {
            each(start..end, is_executable(line));
        }
    });
}

fn each_line(mut from: impl BufRead, mut each: impl FnMut(&[u8])) {
    let mut line = Vec::with_capacity(256);
    loop {
        line.clear();
        let read = from.by_ref().take(LINE_BYTES_MAX);
        match { read }.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => each(line.strip_suffix(b"\n").unwrap_or(&line)),
        }
    }
}

fn is_executable(line: &[u8]) -> bool {
    let rights = line.split(|&byte| byte == b' ').nth(1);
    rights.is_some_and(|rights| rights.get(2) == Some(&b'x'))
}

fn range(text: &[u8]) -> Option<(u64, u64)> {
    let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
    let (start, end) = std::str::from_utf8(text).ok()?.split_once('-')?;
    Some((hex(start)?, hex(end)?)).filter(|(start, end)| start < end)
}

/// `7f00-7f01 r-xp 00001000 fe:00 1234      /path`.
fn parse(line: &[u8]) -> Option<Map> {
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let (start, end) = range(fields.next()?)?;
    let mut word = || std::str::from_utf8(fields.next()?).ok();
    let rights = word()?;
    let half = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let file_offset = u64::from_str_radix(word()?, 16).ok()?;
    let (major, minor) = word()?.split_once(':')?;
    let (device, inode) = ((half(major)?, half(minor)?), word()?.parse().ok()?);
    Some(Map {
        start,
        end,
        file_offset,
        device,
        inode,
        private: rights.as_bytes().get(3) == Some(&b'p'),
        path: unescape(fields.next().unwrap_or_default().trim_ascii_start()),
    })
}

fn unescape(path: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let [first, tail @ ..] = rest {
        match rest.strip_prefix(br"\012") {
            Some(after) => {
                out.push(b'\n');
                rest = after;
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &[u8], expected: Option<(u64, u64, u64, &[u8])>) {
        let found = executable(line);
        let found: Vec<_> = found
            .iter()
            .map(|map| (map.start, map.end, map.file_offset, &*map.path))
            .collect();
        assert_eq!(found, Vec::from_iter(expected), "{}", line.escape_ascii());
    }

    #[test]
    fn executable_mappings_are_read_and_others_left() {
        check(
            b"55d0-55d8 r-xp 00002000 fe:00 42                  /usr/bin/cat\n",
            Some((0x55d0, 0x55d8, 0x2000, b"/usr/bin/cat")),
        );
        check(b"55d0-55d8 rw-p 00002000 fe:00 42   /usr/bin/cat\n", None);
        check(
            b"7ffd-7fff r-xp 00000000 00:00 0      [vdso]\n",
            Some((0x7ffd, 0x7fff, 0, b"[vdso]")),
        );
        check(
            b"10-20 rwxp 00000000 00:00 0 \n",
            Some((0x10, 0x20, 0, b"")),
        );
    }

    #[test]
    fn ranges_are_told_with_their_right_to_be_run() {
        let mut told = Vec::new();
        let text = b"10-20 r-xp 0 fe:00 7   /a b\nnonsense\n30-40 rw-p 0 0:0 0 [stack]\n9-8 r-xp\n";
        ranges(&text[..], |range, executable| {
            told.push((range, executable))
        });
        assert_eq!(told, [(0x10..0x20, true), (0x30..0x40, false)]);
    }

    #[test]
    fn own_memory_of_the_same_size_is_alike() {
        let text = b"10-20 rw-p 0 0:0 0 \n20-30 rw-p 0 0:0 7 /a\n30-40 rw-p 0 0:0 0 \n\
            40-60 rw-p 0 0:0 0 \n60-70 rw-p 0 0:0 0 [anon:x]\n70-80 rw-s 0 0:0 0 \n\
            80-90 ---p 0 0:0 0 \n";
        let of = |address, max| alike(&text[..], address, max);
        assert_eq!(of(0x38, 9), [0x30..0x40, 0x60..0x70, 0x10..0x20]);
        assert_eq!(of(0x38, 1), [0x30..0x40, 0x60..0x70]);
        assert_eq!(of(0x48, 9), std::slice::from_ref(&(0x40..0x60)));
        assert_eq!(of(0x28, 9), []);
        assert_eq!(of(0x78, 9), []);
    }

    #[test]
    fn a_path_may_hold_any_bytes() {
        check(
            b"10-20 r-xp 0 fe:00 7   /srv/caf\xe9 bar/a b\n",
            Some((0x10, 0x20, 0, b"/srv/caf\xe9 bar/a b")),
        );
        check(
            b"10-20 r-xp 0 fe:00 7   /tmp/a\\012b (deleted)\n",
            Some((0x10, 0x20, 0, b"/tmp/a\nb (deleted)")),
        );
    }

    #[test]
    fn a_line_that_makes_no_sense_costs_only_itself() {
        let text = b"nonsense\n\n20-10 r-xp 0 0:0 0 /turned\n10-20 r-xp 0 0:0 1 /good\n10-20 r-xp";
        check(text, Some((0x10, 0x20, 0, b"/good")));
        let long = [&vec![b'x'; 50_000][..], b"\n10-20 r-xp 0 0:0 1 /good\n"].concat();
        check(&long, Some((0x10, 0x20, 0, b"/good")));
    }

    #[test]
    fn memory_does_not_crowd_out_files() {
        let mut text = String::new();
        for number in 0..MAPPINGS_MAX + 10 {
            let start = 0x1000 * (number + 1);
            text += &format!("{start:x}-{:x} r-xp 00000000 00:00 0 \n", start + 0x1000);
        }
        text += "7f0000000000-7f0000001000 r-xp 00000000 fe:00 9 /lib/last.so\n";
        let found = executable(text.as_bytes());
        assert_eq!(found.len(), MAPPINGS_MAX + 1);
        assert_eq!(
            found.last().map(|map| &*map.path),
            Some(&b"/lib/last.so"[..])
        );
    }
}
