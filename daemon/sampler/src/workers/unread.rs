//! The order in which files' unwind information is read: files at which walks stopped come before
//! files that were only seen. While many new programs start, most files are never walked through.

use host::ids::FileId;
use std::collections::VecDeque;

/// Files that wait. Beyond it a file is asked for again by the unwinder.
const UNREAD_MAX: usize = 4096;

/// See the file. Each file waits once.
#[derive(Default)]
pub struct Unread {
    missed: VecDeque<FileId>,
    seen: VecDeque<FileId>,
}

impl Unread {
    /// A file was seen in a process that has samples. False when it cannot wait.
    pub fn saw(&mut self, file: FileId) -> bool {
        if self.missed.contains(&file) || self.seen.contains(&file) {
            return true;
        }
        let fits = self.len() < UNREAD_MAX;
        if fits {
            self.seen.push_back(file);
        }
        fits
    }

    /// A walk stopped at a file. False when it cannot wait.
    pub fn missed(&mut self, file: FileId) -> bool {
        if self.missed.contains(&file) {
            return true;
        }
        match self.seen.iter().position(|&seen| seen == file) {
            Some(at) => drop(self.seen.remove(at)),
            // Whoever was only seen gives way.
            None if self.len() >= UNREAD_MAX && self.seen.pop_back().is_none() => return false,
            None => {}
        }
        self.missed.push_back(file);
        true
    }

    /// The file to read now.
    pub fn pop(&mut self) -> Option<FileId> {
        self.missed.pop_front().or_else(|| self.seen.pop_front())
    }

    /// True when nothing waits.
    pub fn is_empty(&self) -> bool {
        self.missed.is_empty() && self.seen.is_empty()
    }

    fn len(&self) -> usize {
        self.missed.len() + self.seen.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(mut unread: Unread) -> Vec<u32> {
        std::iter::from_fn(|| unread.pop())
            .map(|file| file.0)
            .collect()
    }

    #[test]
    fn what_walks_stopped_at_is_read_first_and_all_of_it_once() {
        let mut unread = Unread::default();
        for file in 1..=4 {
            assert!(unread.saw(FileId(file)));
        }
        for file in [3, 9, 2, 3] {
            assert!(unread.missed(FileId(file)));
        }
        assert!(unread.saw(FileId(9)));
        assert_eq!(read(unread), [3, 9, 2, 1, 4]);
    }

    #[test]
    fn what_was_only_seen_gives_way() {
        let mut unread = Unread::default();
        for file in 0..UNREAD_MAX as u32 {
            assert!(unread.saw(FileId(file)));
        }
        assert!(!unread.saw(FileId(1 << 20)));
        assert!(unread.missed(FileId(1 << 20)));
        let order = read(unread);
        assert_eq!((order.len(), order[0], order[1]), (UNREAD_MAX, 1 << 20, 0));
    }

    #[test]
    fn what_walks_stopped_at_has_a_bound() {
        let mut unread = Unread::default();
        assert!((0..UNREAD_MAX as u32).all(|file| unread.missed(FileId(file))));
        assert!(!unread.missed(FileId(1 << 20)));
        assert!(unread.missed(FileId(0)), "it waits already");
    }
}
