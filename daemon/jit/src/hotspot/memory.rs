//! Reads words and texts of another process's memory, so many and no more.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The memory of a process.
#[derive(Debug)]
pub struct Memory {
    file: File,
    most: (u32, usize),
    /// Reads that are left, and bytes.
    left: Cell<(u32, usize)>,
}

impl Memory {
    /// Opens the memory of a process, for so many reads and bytes.
    ///
    /// # Errors
    /// When the process is gone, or may not be looked at.
    pub fn open(pid: u32, reads: u32, bytes: usize) -> io::Result<Memory> {
        Ok(Memory {
            file: File::open(format!("/proc/{pid}/mem"))?,
            most: (reads, bytes),
            left: Cell::new((reads, bytes)),
        })
    }

    /// Reads so far, and bytes.
    pub fn taken(&self) -> (u32, usize) {
        let (reads, bytes) = self.left.get();
        (self.most.0 - reads, self.most.1 - bytes)
    }

    /// True when no more is read.
    pub fn is_spent(&self) -> bool {
        let (reads, bytes) = self.left.get();
        reads == 0 || bytes == 0
    }

    /// Fills `into` from an address.
    pub fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        let (reads, bytes) = self.left.get();
        let Some(left) = reads.checked_sub(1).zip(bytes.checked_sub(into.len())) else {
            self.left.set((0, 0));
            return None;
        };
        self.left.set(left);
        self.file.read_exact_at(into, at).ok()
    }

    /// So many bytes from an address.
    pub fn bytes(&self, at: u64, len: usize) -> Option<Vec<u8>> {
        if len > self.left.get().1 {
            self.left.set((0, 0));
            return None;
        }
        let mut bytes = vec![0; len];
        self.read(at, &mut bytes).map(|()| bytes)
    }

    /// A word of eight bytes.
    pub fn word(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(at, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// A number of four bytes.
    pub fn int(&self, at: u64) -> Option<i32> {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes)?;
        Some(i32::from_le_bytes(bytes))
    }

    /// A number of two bytes.
    pub fn short(&self, at: u64) -> Option<u16> {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes)?;
        Some(u16::from_le_bytes(bytes))
    }

    /// A text that ends with NUL, of `most` bytes at most. Does not read over the end of a page
    /// that is not needed.
    pub fn text(&self, at: u64, most: usize) -> Option<Box<str>> {
        const PIECE: u64 = 64;
        let mut text = Vec::new();
        while text.len() < most {
            let here = at.checked_add(text.len() as u64)?;
            let piece = self.bytes(here, (PIECE - here % PIECE) as usize)?;
            if let Some(end) = piece.iter().position(|&byte| byte == 0) {
                text.extend_from_slice(&piece[..end]);
                return String::from_utf8(text).ok().map(String::into_boxed_str);
            }
            text.extend_from_slice(&piece);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(reads: u32, bytes: usize) -> Memory {
        Memory::open(std::process::id(), reads, bytes).expect("own memory")
    }

    #[test]
    fn words_and_texts_are_read() {
        let memory = own(100, 4096);
        let word = Box::new(0x1122_3344_5566_7788_u64);
        let at = &raw const *word as u64;
        assert_eq!(memory.word(at), Some(*word));
        assert_eq!(memory.int(at), Some(0x5566_7788));
        assert_eq!(memory.short(at), Some(0x7788));
        let text = c"a text".as_ptr() as u64;
        assert_eq!(memory.text(text, 64).as_deref(), Some("a text"));
        assert_eq!(memory.word(8), None, "nothing is mapped there");
    }

    #[test]
    fn no_more_is_read_than_was_asked_for() {
        let word = Box::new(1_u64);
        let at = &raw const *word as u64;
        let memory = own(1, 4096);
        assert!(memory.word(at).is_some() && memory.is_spent());
        assert_eq!(memory.taken(), (1, 8));
        assert_eq!(memory.word(at), None);
        let memory = own(100, 7);
        assert_eq!(memory.word(at), None);
        assert!(memory.is_spent());
    }
}
