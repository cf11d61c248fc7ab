//! One ring buffer shared with the kernel: records are read where they lie.
//!
//! The kernel writes records between `data_tail` and `data_head`; what lies there stays as it is
//! until the reader moves the tail. A drain therefore indexes the records of all rings, works on
//! them in place in order of time, and moves each tail once at the end. Only a record that wraps
//! around the end of the buffer is copied (about 0.03 % of them). Source: perf_event_open(2),
//! "MMAP layout".
//!
//! Called by the sampler thread only; neither blocks nor allocates after [`Ring::map`].

use memmap2::{MmapOptions, MmapRaw};
use perf_event_open_sys::bindings::perf_event_mmap_page;
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of `perf_event_header`: type u32, misc u16, size u16.
pub const HEADER_BYTES: usize = 8;

/// The longest record: its size is a u16.
pub const RECORD_BYTES_MAX: usize = u16::MAX as usize;

/// A mapped ring buffer of one perf event.
pub struct Ring {
    map: MmapRaw,
    /// Offset of the data area in the mapping.
    data_offset: usize,
    /// Size of the data area; a power of two.
    data_size: usize,
    /// Where the reader stands: everything before is done with.
    tail: u64,
}

/// Where a record begins, in bytes since the ring was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// What a look at a ring found wrong. The ring is then emptied up to its head.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged;

impl Ring {
    /// Maps the ring of an event. `data_size` must be a power of two of whole pages.
    ///
    /// # Errors
    /// What mmap(2) says: EPERM when the locked-memory allowance is used up.
    pub fn map(event: RawFd, data_size: usize) -> io::Result<Ring> {
        // SAFETY: sysconf takes a number and returns one.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
        if !data_size.is_power_of_two() || data_size < page {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let map = MmapOptions::new().len(page + data_size).map_raw(event)?;
        Ok(Ring {
            map,
            data_offset: page,
            data_size,
            tail: 0,
        })
    }

    fn control(&self) -> *mut perf_event_mmap_page {
        self.map.as_mut_ptr().cast()
    }

    /// Up to where the kernel has written.
    pub fn head(&self) -> Position {
        // SAFETY: the first page of the mapping is the control page, aligned to a page, mapped for
        // as long as `self` lives; both sides use this word atomically.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_head) };
        // ATOMICS: acquire pairs with the kernel's barrier before its store to data_head
        // (`perf_output_put_handle`): record bytes before the head are visible.
        Position(head.load(Ordering::Acquire))
    }

    /// Where the reader stands.
    pub fn tail(&self) -> Position {
        Position(self.tail)
    }

    /// Gives everything before `position` back to the kernel. No record from there may be in use.
    pub fn release(&mut self, position: Position) {
        self.tail = position.0;
        // SAFETY: as in `head`; data_tail is written by this thread only.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_tail) };
        // ATOMICS: release pairs with the kernel's read of data_tail before it writes over the
        // space (control dependency in `__perf_output_begin`): our reads are done before.
        tail.store(position.0, Ordering::Release);
    }

    /// The bytes of the record at `position`, header included; `head` bounds it. A record that
    /// wraps is copied to `scratch`.
    ///
    /// # Errors
    /// [`Damaged`] when the header cannot be: too small, not a multiple of eight, past the head.
    pub fn record<'a>(
        &'a self,
        position: Position,
        head: Position,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], Damaged> {
        let offset = (position.0 as usize) & (self.data_size - 1);
        let left = head.0.wrapping_sub(position.0) as usize;
        if left < HEADER_BYTES || left > self.data_size {
            return Err(Damaged);
        }
        // Records are multiples of eight bytes, so a header never wraps.
        let header = self.bytes(offset, HEADER_BYTES);
        let size = u16::from_ne_bytes([header[6], header[7]]) as usize;
        if size < HEADER_BYTES || size > left || !size.is_multiple_of(8) {
            return Err(Damaged);
        }
        let first = size.min(self.data_size - offset);
        if first == size {
            return Ok(self.bytes(offset, size));
        }
        scratch.clear();
        scratch.extend_from_slice(self.bytes(offset, first));
        scratch.extend_from_slice(self.bytes(0, size - first));
        Ok(scratch)
    }

    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.data_size, "ring access past its end");
        // SAFETY: within the data area by the assertion, which is mapped for as long as `self`
        // lives. The kernel does not write between tail and head, and `release`, which moves the
        // tail, needs `&mut self`: no slice is alive then.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.data_offset + offset), len) }
    }
}

#[cfg(test)]
mod tests {
    //! The kernel's part is played by a second mapping of a memfd (a fake: it says what the kernel
    //! would write).
    use super::*;
    use std::fs::File;
    use std::os::fd::{AsRawFd, FromRawFd};

    const DATA: usize = 4096;

    struct Producer {
        file: File,
        map: MmapRaw,
        head: u64,
    }

    impl Producer {
        fn new() -> Producer {
            // SAFETY: a constant NUL-terminated name; the new descriptor is owned by the file.
            let file = unsafe { File::from_raw_fd(libc::memfd_create(c"ring".as_ptr(), 0)) };
            file.set_len((4096 + DATA) as u64).expect("memfd grows");
            let map = MmapOptions::new()
                .len(4096 + DATA)
                .map_raw(&file)
                .expect("memfd maps");
            Producer { file, map, head: 0 }
        }

        fn write(&mut self, record: &[u8]) {
            for (number, &byte) in record.iter().enumerate() {
                let at = (self.head as usize + number) % DATA;
                // SAFETY: within the data area of a mapping that lives as long as `self`.
                unsafe { *self.map.as_mut_ptr().add(4096 + at) = byte };
            }
            self.head += record.len() as u64;
            let control: *mut perf_event_mmap_page = self.map.as_mut_ptr().cast();
            // SAFETY: the control page of the mapping; aligned to a page.
            let head = unsafe { AtomicU64::from_ptr(&raw mut (*control).data_head) };
            head.store(self.head, Ordering::Release);
        }
    }

    fn record(len: u16, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; len as usize];
        bytes[..4].copy_from_slice(&9u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&0u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    #[test]
    fn a_record_that_wraps_around_the_end_is_read_whole() {
        let mut producer = Producer::new();
        let mut ring = Ring::map(producer.file.as_raw_fd(), DATA).expect("maps");
        let mut scratch = Vec::new();
        for round in 0..20u8 {
            let wanted = record(1000, round);
            producer.write(&wanted);
            let (tail, head) = (ring.tail(), ring.head());
            assert_eq!(ring.record(tail, head, &mut scratch), Ok(&wanted[..]));
            ring.release(head);
        }
    }

    #[test]
    fn a_size_past_the_head_is_damage() {
        let mut producer = Producer::new();
        let ring = Ring::map(producer.file.as_raw_fd(), DATA).expect("maps");
        let mut bytes = record(64, 1);
        bytes[6..8].copy_from_slice(&128u16.to_ne_bytes());
        producer.write(&bytes);
        assert_eq!(
            ring.record(ring.tail(), ring.head(), &mut Vec::new()),
            Err(Damaged)
        );
    }

    #[test]
    fn a_size_of_zero_is_damage() {
        let mut producer = Producer::new();
        let ring = Ring::map(producer.file.as_raw_fd(), DATA).expect("maps");
        producer.write(&[0; 64]);
        assert_eq!(
            ring.record(ring.tail(), ring.head(), &mut Vec::new()),
            Err(Damaged)
        );
    }
}
