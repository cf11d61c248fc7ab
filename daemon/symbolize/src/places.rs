//! Finds the function that contains an address without a symbol, by the unwind information.
//!
//! A stripped file has no names, but mostly a table of where its functions start, for exceptions.
//! One frame per function costs no more than with a name, and the name can be looked up elsewhere
//! later. The table is searched in the file, an entry at a time and its last page at once. Entries
//! that the search read, and the last page, are kept, because addresses come in order.
//!
//! The order of the table and its contents are untrusted. Only a description that says that it
//! covers the address is used; otherwise the place is the address itself.

use super::elf::{Headers, ReadAt};
use super::unnamed_at;
use hashbrown::HashMap;
use host::ids::FileOffset;
use profile::{Dictionary, FrameId, FrameKind, Place, UnnamedReason};
use std::collections::BTreeMap;
use std::ops::Range;

/// Most places of one file kept as frames of one dictionary. Further ones share a frame that says
/// only the file. Programs of a million functions have some thousands with samples in an hour.
const PLACES_MAX: usize = 16_384;

/// Memory per known function: nodes of a B-tree are two thirds full. Unit: bytes.
const FUNCTION_BYTES: usize = size_of::<(u64, u64, FrameId)>() * 3 / 2;

/// Bytes before the entries of the table: version, encodings, where `.eh_frame` is, the number of
/// entries.
const TABLE_HEADER: usize = 12;

/// Entries that are read at once: a page of the file.
const ENTRIES_AT_ONCE: u64 = 512;
const ENTRY_BYTES: usize = 8;

/// The header that all linkers write: version 1, a pointer of 4 bytes relative to its own place, a
/// number of 4 bytes, entries of two of 4 bytes relative to the table.
const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// The table of a file.
#[derive(Clone, Copy)]
struct Table {
    /// Base address of entries.
    address: u64,
    /// Where the entries are in the file.
    offset: u64,
    entries: u64,
}

impl Table {
    fn find<R: ReadAt + ?Sized>(image: &R, headers: &Headers) -> Option<Table> {
        let at = headers.eh_frame_hdr?;
        let mut head = [0; TABLE_HEADER];
        image.read_exact_at(&mut head, at.offset).ok()?;
        let (usual, entries) = (&head[..4], word(&head, 8)?);
        let room = at.file_size.saturating_sub(TABLE_HEADER as u64) / 8;
        (usual == USUAL).then_some(Table {
            address: at.address,
            offset: at.offset.checked_add(TABLE_HEADER as u64)?,
            entries: u64::from(entries).min(room),
        })
    }

    /// The function at `address`: its first address, and the first after it.
    fn function<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        headers: &Headers,
        address: u64,
        seen: &mut Seen,
    ) -> Option<Range<u64>> {
        let starts_before = |start: u32| self.beside(start) <= address;
        let (mut low, mut high) = (0, self.entries);
        while high - low > ENTRIES_AT_ONCE {
            let middle = low + (high - low) / 2;
            let start = match seen.starts.get(&middle) {
                Some(&start) => start,
                None => {
                    let mut entry = [[0; ENTRY_BYTES]];
                    self.read(image, middle, &mut entry)?;
                    let start = word(&entry[0], 0)?;
                    seen.starts.insert(middle, start);
                    start
                }
            };
            match starts_before(start) {
                // The entry before the first that starts behind the address is looked for.
                true => low = middle,
                false => high = middle,
            }
        }
        let len = usize::try_from(high - low).ok()?;
        if seen.first != low || seen.page.len() != len {
            seen.page.clear();
            seen.page.resize(len, [0; ENTRY_BYTES]);
            seen.first = low;
            if self.read(image, low, &mut seen.page).is_none() {
                seen.page.clear();
                return None;
            }
        }
        let is_before = |entry: &[u8; ENTRY_BYTES]| word(entry, 0).is_some_and(starts_before);
        let entry = seen.page[..seen.page.partition_point(is_before)].last()?;
        let start = self.beside(word(entry, 0)?);
        let described = self.beside(word(entry, 4)?);
        // Length, which CIE, where it starts relative to here, how long it is.
        let mut head = [0; 16];
        let mut segments = headers.segments.iter();
        let segment = segments.find(|segment| {
            described >= segment.address && described - segment.address < segment.file_size
        })?;
        let offset = described - segment.address + segment.offset;
        image.read_exact_at(&mut head, offset).ok()?;
        let says = described
            .wrapping_add(8)
            .wrapping_add_signed(i64::from(word(&head, 8)? as i32));
        let length = u64::from(word(&head, 12)?);
        let covers = says == start && address.wrapping_sub(start) < length;
        covers.then_some(start..start.saturating_add(length))
    }

    /// Reads entries from the one of this number on.
    fn read<R: ReadAt + ?Sized>(
        &self,
        image: &R,
        first: u64,
        into: &mut [[u8; ENTRY_BYTES]],
    ) -> Option<()> {
        let offset = self.offset.checked_add(first * ENTRY_BYTES as u64)?;
        image.read_exact_at(into.as_flattened_mut(), offset).ok()
    }

    fn beside(&self, relative: u32) -> u64 {
        self.address.wrapping_add_signed(i64::from(relative as i32))
    }
}

/// Cached parts of a table that are likely to be needed again.
#[derive(Default)]
struct Seen {
    /// Starts of functions relative to the table, by the number of their entry: those that searches
    /// read, at most one of [`ENTRIES_AT_ONCE`].
    starts: HashMap<u64, u32>,
    /// The entries that were read at once, and the number of the first.
    page: Vec<[u8; ENTRY_BYTES]>,
    first: u64,
}

/// Where the function at an address starts, as the table of the file says, if one is described
/// there.
pub fn function_start<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    address: u64,
) -> Option<u64> {
    let mut seen = Seen::default();
    let table = Table::find(image, headers)?;
    let function = table.function(image, headers, address, &mut seen)?;
    Some(function.start)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

/// Places of one file, as frames of one dictionary.
pub struct Places {
    /// In hexadecimal.
    build_id: Box<str>,
    /// Looked for with the first place; `Some(None)` when there is none.
    table: Option<Option<Table>>,
    seen: Seen,
    /// Functions by their first address: the first address after each, and its frame.
    functions: BTreeMap<u64, (u64, FrameId)>,
    /// Frames of addresses that no description covers, by offset in the file.
    frames: HashMap<u64, FrameId>,
}

impl Places {
    /// Places of a file, if something identifies the file.
    pub fn of(headers: &Headers) -> Option<Places> {
        let digits = profile::build_id_text(&headers.build_id);
        profile::is_build_id(&digits).then(|| Places {
            build_id: digits.into(),
            table: None,
            seen: Seen::default(),
            functions: BTreeMap::new(),
            frames: HashMap::new(),
        })
    }

    /// The build id of the file.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// The frame of a place without a name; none when there is no room for it. `image` is the
    /// executable, when it is there as it was mapped: without it the place is the address.
    pub fn frame<'i, R: ReadAt + ?Sized + 'i>(
        &mut self,
        image: impl FnOnce() -> Option<&'i R>,
        headers: &Headers,
        offset: FileOffset,
        why: (&str, UnnamedReason),
        dict: &mut Dictionary,
    ) -> Option<FrameId> {
        if let Some(&frame) = self.frames.get(&offset.0) {
            return Some(frame);
        }
        let address = headers.address_of(offset.0)?;
        let before = self.functions.range(..=address).next_back();
        if let Some((_, &(end, frame))) = before
            && address < end
        {
            return Some(frame);
        }
        if self.frames.len() + self.functions.len() >= PLACES_MAX {
            return None;
        }
        let function = image().and_then(|image| {
            let table = self
                .table
                .get_or_insert_with(|| Table::find(image, headers));
            (*table)?.function(image, headers, address, &mut self.seen)
        });
        let place = Place {
            build_id: &self.build_id,
            address: function.as_ref().map_or(address, |function| function.start),
        };
        let frame = unnamed_at(dict, FrameKind::Native, why, &place.to_string());
        match function {
            Some(function) => drop(self.functions.insert(function.start, (function.end, frame))),
            None => drop(self.frames.insert(offset.0, frame)),
        }
        Some(frame)
    }

    /// Drops every frame id held.
    pub fn forget_frames(&mut self) {
        self.frames.clear();
        self.functions.clear();
    }

    /// Memory held, in bytes.
    pub fn heap_bytes(&self) -> usize {
        let seen = self.seen.starts.allocation_size() + self.seen.page.capacity() * ENTRY_BYTES;
        let functions = self.functions.len() * FUNCTION_BYTES;
        self.build_id.len() + self.frames.allocation_size() + functions + seen
    }
}

#[cfg(test)]
mod tests {
    use super::super::elf::read_headers;
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    /// A program of the distribution: its image, and where its functions start and end by its own
    /// unwind information, read by another reader.
    fn shell() -> (Vec<u8>, Headers, Vec<(u64, u64)>) {
        use gimli::{BaseAddresses, EhFrame, LittleEndian, UnwindSection};
        let image = fs::read("/bin/sh").unwrap();
        let headers = read_headers(&image[..]).unwrap();
        let section = headers.section(b".eh_frame").unwrap().clone();
        let bytes = &image[section.offset as usize..][..section.size as usize];
        let frames = EhFrame::new(bytes, LittleEndian);
        let bases = BaseAddresses::default().set_eh_frame(section.address);
        let mut entries = frames.entries(&bases);
        let mut functions = Vec::new();
        while let Some(entry) = entries.next().unwrap() {
            if let gimli::CieOrFde::Fde(fde) = entry {
                let fde = fde.parse(EhFrame::cie_from_offset).unwrap();
                functions.push((fde.initial_address(), fde.len()));
            }
        }
        (image, headers, functions)
    }

    #[test]
    fn every_address_of_a_function_is_at_its_start() {
        let (image, headers, functions) = shell();
        let table = Table::find(&image[..], &headers).unwrap();
        assert!(functions.len() > 50);
        let mut seen = Seen::default();
        for (start, length) in functions {
            for address in [start, start + length / 2, start + length - 1] {
                let found = table.function(&image[..], &headers, address, &mut seen);
                assert_eq!(found, Some(start..start + length), "{address:#x}");
            }
        }
    }

    #[test]
    fn an_address_that_nothing_describes_is_its_own_place() {
        let (image, headers, mut functions) = shell();
        functions.sort_unstable();
        let table = Table::find(&image[..], &headers).unwrap();
        let described = |address| {
            let covers =
                |(start, length): &(u64, u64)| address >= *start && address < start + length;
            functions.iter().any(covers)
        };
        let ends = functions.iter().map(|(start, length)| start + length);
        let gaps: Vec<u64> = ends.filter(|&end| !described(end)).collect();
        assert!(!gaps.is_empty());
        let mut seen = Seen::default();
        for address in gaps {
            let found = table.function(&image[..], &headers, address, &mut seen);
            assert_eq!(found, None);
        }
    }

    #[test]
    fn two_addresses_of_a_function_are_one_frame_that_says_where_it_is() {
        let (image, headers, functions) = shell();
        let (start, _) = functions
            .into_iter()
            .find(|(_, length)| *length > 8)
            .unwrap();
        let mut places = Places::of(&headers).unwrap();
        let mut dict = Dictionary::default();
        let mut frame = |address: u64| {
            let offset = FileOffset(headers.offset_of(address).unwrap());
            let why = ("sh", UnnamedReason::NoSymbols);
            places
                .frame(|| Some(&image[..]), &headers, offset, why, &mut dict)
                .unwrap()
        };
        let (first, second) = (frame(start + 1), frame(start + 7));
        assert_eq!(first, second);
        let found = dict.frame(first);
        assert_eq!(found.function, "[sh]");
        assert_eq!(found.place().unwrap().address, start);
        assert_eq!(
            found.place().unwrap().build_id.len(),
            headers.build_id.len() * 2
        );
    }

    #[test]
    fn what_has_brackets_of_its_own_gets_no_others() {
        let (_, headers, functions) = shell();
        let mut places = Places::of(&headers).unwrap();
        let mut dict = Dictionary::default();
        let offset = FileOffset(headers.offset_of(functions[0].0).unwrap());
        let why = ("[vdso]", UnnamedReason::NotInSymbols);
        let frame = places.frame(|| None::<&[u8]>, &headers, offset, why, &mut dict);
        assert_eq!(dict.frame(frame.unwrap()).function, "[vdso]");
    }

    #[test]
    fn places_of_one_file_are_bounded() {
        let (_, headers, _) = shell();
        let code = headers.segments.iter().find(|segment| segment.executable);
        let code = code.unwrap();
        let mut places = Places::of(&headers).unwrap();
        let mut dict = Dictionary::default();
        let mut made = 0;
        for at in 0..PLACES_MAX as u64 + 100 {
            let offset = FileOffset(code.offset + at);
            let why = ("sh", UnnamedReason::NoSymbols);
            made += usize::from(
                places
                    .frame(|| None::<&[u8]>, &headers, offset, why, &mut dict)
                    .is_some(),
            );
        }
        assert!(made <= PLACES_MAX);
        assert!(places.heap_bytes() < 1 << 20);
    }

    /// An image that counts how often it is read.
    struct Counted<'a>(&'a [u8], std::cell::Cell<u32>);

    impl ReadAt for Counted<'_> {
        fn read_exact_at(&self, into: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.1.set(self.1.get() + 1);
            self.0.read_exact_at(into, offset)
        }

        fn read_some_at(&self, into: &mut [u8], offset: u64) -> std::io::Result<usize> {
            self.1.set(self.1.get() + 1);
            self.0.read_some_at(into, offset)
        }
    }

    #[test]
    fn addresses_in_order_cost_a_reading_for_each_function_and_one_for_each_page() {
        let (image, headers, mut functions) = shell();
        functions.sort_unstable();
        let counted = Counted(&image, std::cell::Cell::new(0));
        let mut places = Places::of(&headers).unwrap();
        let mut dict = Dictionary::default();
        for (start, length) in &functions {
            for address in [*start, start + length - 1] {
                let offset = FileOffset(headers.offset_of(address).unwrap());
                let why = ("sh", UnnamedReason::NoSymbols);
                places.frame(|| Some(&counted), &headers, offset, why, &mut dict);
            }
        }
        let pages = functions.len().div_ceil(ENTRIES_AT_ONCE as usize);
        let most = functions.len() + 2 * pages + 2;
        assert!(
            counted.1.get() as usize <= most,
            "{} of {most}",
            counted.1.get()
        );
    }

    proptest! {
        #[test]
        fn a_damaged_table_never_gives_a_function_that_does_not_cover_the_address(
            damage in prop::collection::vec((0usize..1 << 16, any::<u8>()), 1..200),
            address in any::<u32>(),
        ) {
            let (mut image, headers, functions) = shell();
            let at = headers.eh_frame_hdr.unwrap();
            for (place, byte) in damage {
                let place = at.offset as usize + TABLE_HEADER + place % (at.file_size as usize - TABLE_HEADER);
                if let Some(slot) = image.get_mut(place) {
                    *slot = byte;
                }
            }
            if let Some(table) = Table::find(&image[..], &headers) {
                let address = u64::from(address) % (1 << 20);
                let found = table.function(&image[..], &headers, address, &mut Seen::default());
                if let Some(start) = found.map(|function| function.start) {
                    // What the table leads to is as the compiler wrote it.
                    let covers = |(first, len): &(u64, u64)| start == *first && address - start < *len;
                    prop_assert!(functions.iter().any(covers));
                }
            }
        }
    }
}
