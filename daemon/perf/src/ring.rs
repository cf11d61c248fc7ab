//! One ring buffer shared with the kernel. Records are read in place.
//!
//! The kernel writes records between `data_tail` and `data_head`, and does not change them until
//! the reader moves the tail. So a drain indexes the records of all rings, works on them in place
//! in order of time, and moves each tail once at the end. Only a record that wraps around the end
//! of the buffer is copied (about 0.03 % of them). Source: perf_event_open(2), "MMAP layout".
//!
//! Samples may contain copies of stacks, so rings and [`Scratch`] are excluded from core dumps.
//!
//! Called by the sampler thread only. Neither blocks nor allocates after [`Ring::map`].

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};
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
    /// Position of the reader: everything before it was processed.
    tail: u64,
}

/// Where a record starts, in bytes since the ring was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position(pub u64);

/// Damage found by the scan of a ring. The ring is then emptied up to its head.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged;

impl Ring {
    /// Maps the ring of an event. `data_size` must be a power of two of full pages.
    ///
    /// # Errors
    /// What mmap(2) says: EPERM when the locked-memory allowance is used up.
    pub fn map(event: RawFd, data_size: usize) -> io::Result<Ring> {
        let page = checked_page(data_size)?;
        let map = MmapOptions::new().len(page + data_size).map_raw(event)?;
        Ring::over(map, page, data_size)
    }

    /// A ring in memory that no kernel fills: for benches and tests, which [`Ring::write`] to it.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn in_memory(data_size: usize) -> io::Result<Ring> {
        let page = checked_page(data_size)?;
        Ring::over(MmapMut::map_anon(page + data_size)?.into(), page, data_size)
    }

    fn over(map: MmapRaw, page: usize, data_size: usize) -> io::Result<Ring> {
        map.advise(Advice::DontDump)?;
        Ok(Ring {
            map,
            data_offset: page,
            data_size,
            tail: 0,
        })
    }

    /// Size of the data area.
    pub fn size(&self) -> usize {
        self.data_size
    }

    /// Plays the kernel's part in a ring [in memory](Ring::in_memory): writes a record behind the
    /// head. False when there is no room.
    pub fn write(&mut self, record: &[u8]) -> bool {
        // SAFETY: as in `head`; the field is a word that only this thread uses in such a ring.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_tail) };
        // SAFETY: as above.
        let head = unsafe { AtomicU64::from_ptr(&raw mut (*self.control()).data_head) };
        let at = head.load(Ordering::Relaxed);
        let used = at - tail.load(Ordering::Relaxed);
        if used as usize + record.len() > self.data_size {
            return false;
        }
        let offset = at as usize & (self.data_size - 1);
        let (first, rest) = record.split_at(record.len().min(self.data_size - offset));
        // SAFETY: both places are within the data area: `first` ends at its end at most, and `rest`
        // is shorter than the area because the whole record is. `&mut self`: no slice of it is
        // alive.
        unsafe {
            let data = self.map.as_mut_ptr().add(self.data_offset);
            std::ptr::copy_nonoverlapping(first.as_ptr(), data.add(offset), first.len());
            std::ptr::copy_nonoverlapping(rest.as_ptr(), data, rest.len());
        }
        // ATOMICS: release as the kernel's store; `head` acquires it.
        head.store(at + record.len() as u64, Ordering::Release);
        true
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

    /// Position of the reader.
    pub fn tail(&self) -> Position {
        Position(self.tail)
    }

    /// Returns everything before `position` to the kernel. No record in it may be in use.
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
        scratch: &'a mut Scratch,
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
        let whole = &mut scratch.0[..size];
        whole[..first].copy_from_slice(self.bytes(offset, first));
        whole[first..].copy_from_slice(self.bytes(0, size - first));
        Ok(whole)
    }

    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        assert!(offset + len <= self.data_size, "ring access past its end");
        // SAFETY: within the data area by the assertion, which is mapped for as long as `self`
        // lives. The kernel does not write between tail and head, and `release`, which moves the
        // tail, needs `&mut self`: no slice is alive then.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr().add(self.data_offset + offset), len) }
    }
}

/// Room for one record that wraps, in a mapping of its own: the heap is in core dumps, and keeps
/// what was written to it after it is given back.
pub struct Scratch(MmapMut);

impl Scratch {
    /// Maps it.
    ///
    /// # Errors
    /// What mmap(2) says.
    pub fn new() -> io::Result<Scratch> {
        let map = MmapMut::map_anon(RECORD_BYTES_MAX)?;
        map.advise(Advice::DontDump)?;
        Ok(Scratch(map))
    }
}

/// Size of a page, when `data_size` can be that of a ring.
fn checked_page(data_size: usize) -> io::Result<usize> {
    // SAFETY: sysconf takes a number and returns one.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    if !data_size.is_power_of_two() || data_size < page {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: usize = 4096;

    fn ring_with(records: &[Vec<u8>]) -> Ring {
        let mut ring = Ring::in_memory(DATA).expect("maps");
        for record in records {
            assert!(ring.write(record));
        }
        ring
    }

    fn record(len: u16, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; len as usize];
        bytes[..4].copy_from_slice(&9u32.to_ne_bytes());
        bytes[4..6].copy_from_slice(&0u16.to_ne_bytes());
        bytes[6..8].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    fn first_record(ring: &Ring) -> Result<Vec<u8>, Damaged> {
        let mut scratch = Scratch::new().expect("maps");
        let record = ring.record(ring.tail(), ring.head(), &mut scratch);
        record.map(<[u8]>::to_vec)
    }

    #[test]
    fn a_record_that_wraps_around_the_end_is_read_whole() {
        let mut ring = Ring::in_memory(DATA).expect("maps");
        for round in 0..20u8 {
            let wanted = record(1000, round);
            assert!(ring.write(&wanted));
            assert_eq!(first_record(&ring), Ok(wanted));
            ring.release(ring.head());
        }
    }

    #[test]
    fn a_size_past_the_head_is_damage() {
        let mut bytes = record(64, 1);
        bytes[6..8].copy_from_slice(&128u16.to_ne_bytes());
        assert_eq!(first_record(&ring_with(&[bytes])), Err(Damaged));
    }

    #[test]
    fn a_size_of_zero_is_damage() {
        assert_eq!(first_record(&ring_with(&[vec![0; 64]])), Err(Damaged));
    }

    #[test]
    fn rings_and_scratch_are_left_out_of_core_dumps() {
        let ring = Ring::in_memory(DATA).expect("maps");
        let scratch = Scratch::new().expect("maps");
        for address in [ring.map.as_ptr() as usize, scratch.0.as_ptr() as usize] {
            assert!(flags_of(address).split(' ').any(|flag| flag == "dd"));
        }
    }

    /// The kernel's flags of the mapping with this address.
    fn flags_of(address: usize) -> String {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("readable");
        let mut inside = false;
        for line in text.lines() {
            let range = line.split(' ').next().and_then(|word| word.split_once('-'));
            let hex = |text| usize::from_str_radix(text, 16).ok();
            if let Some((Some(start), Some(end))) = range.map(|(a, b)| (hex(a), hex(b))) {
                inside = (start..end).contains(&address);
            } else if let (true, Some(flags)) = (inside, line.strip_prefix("VmFlags: ")) {
                return flags.to_owned();
            }
        }
        panic!("no mapping at {address:x}");
    }
}
