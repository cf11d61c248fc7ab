//! The executable mappings of one process, according to the record stream.

use host::ids::{Avma, FileId, FileOffset};
use profile::UnnamedReason;
use std::cell::Cell;
use std::rc::Rc;

/// Executable mappings kept per process. A process has a few hundred; runtimes that map each piece
/// of generated code alone reach thousands. Beyond the bound the mappings of generated code are
/// forgotten first (their addresses are then unknown), then what is new is refused: a program and
/// its libraries are mapped before whatever comes by the thousand. Each is counted.
pub const MAPPINGS_MAX: usize = 8192;

/// First address above user space, with five levels of page tables; kernel addresses are above.
const USER_END: u64 = 1 << 56;

/// What backs a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file, the vdso included.
    File(FileId),
    /// Anonymous or shared executable memory: generated code.
    Jit,
    /// Nothing that can be named.
    Nothing(UnnamedReason),
}

impl Backing {
    /// The file, where it is one.
    pub fn file(self) -> Option<FileId> {
        match self {
            Backing::File(file) => Some(file),
            _ => None,
        }
    }
}

/// Addresses `start..end`, from `file_offset` of what backs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// What is mapped.
    pub backing: Backing,
}

impl Mapping {
    /// True for an address within.
    pub fn holds(&self, address: Avma) -> bool {
        self.start <= address.0 && address.0 < self.end
    }

    /// Offset in the file of an address within.
    pub fn offset_of(&self, address: Avma) -> FileOffset {
        FileOffset(
            address
                .0
                .wrapping_sub(self.start)
                .wrapping_add(self.file_offset),
        )
    }
}

/// Memory of all address spaces together. Unit: bytes. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct SpaceBytes(Rc<Cell<usize>>);

impl SpaceBytes {
    /// Their current memory.
    pub fn get(&self) -> usize {
        self.0.get()
    }
}

/// Mappings sorted by address, without overlap. The kernel reports new mappings only, so a later
/// one replaces what it overlaps.
#[derive(Debug, Default)]
pub struct AddressSpace {
    mappings: Vec<Mapping>,
    /// Its share in `all`.
    bytes: usize,
    all: SpaceBytes,
    /// Number of file mappings added so far: shows whether there is one that was not examined.
    files_added: u32,
    /// Times a mapping took the place of another: what is known of addresses before holds no more.
    replaced: u32,
    /// False when no mapping is of generated code, so that none is looked for at the bound.
    has_generated: bool,
}

impl Clone for AddressSpace {
    fn clone(&self) -> AddressSpace {
        let mut copy = AddressSpace {
            mappings: self.mappings.clone(),
            bytes: 0,
            all: self.all.clone(),
            files_added: self.files_added,
            replaced: self.replaced,
            has_generated: self.has_generated,
        };
        copy.weigh();
        copy
    }
}

impl Drop for AddressSpace {
    fn drop(&mut self) {
        self.mappings = Vec::new();
        self.weigh();
    }
}

impl AddressSpace {
    /// An empty one, which counts in `all`.
    pub fn within(all: &SpaceBytes) -> AddressSpace {
        let mut space = AddressSpace::default();
        space.all = all.clone();
        space
    }

    /// The address space of a process for which there is no room: it rejects every address of user
    /// space.
    pub fn refused(&self) -> AddressSpace {
        let mut space = AddressSpace::within(&self.all);
        space.replaced = self.replaced.wrapping_add(1);
        space.insert(Mapping {
            start: 0,
            end: USER_END,
            file_offset: 0,
            backing: Backing::Nothing(UnnamedReason::Limit),
        });
        space
    }

    /// The same with the `most` files alone that were met first, and how many mappings have none
    /// any more; `None` when it has no more files.
    pub fn with_first_files(&self, most: usize) -> Option<(AddressSpace, u64)> {
        let files = self.mappings.iter().filter_map(|it| it.backing.file());
        let mut files: Vec<FileId> = files.collect();
        files.sort_unstable();
        files.dedup();
        // Ids are given in the order of meeting.
        let first_given_up = *files.get(most)?;
        let mut space = self.clone();
        space.replaced = self.replaced.wrapping_add(1);
        let mut given_up = 0;
        for mapping in &mut space.mappings {
            if mapping
                .backing
                .file()
                .is_some_and(|file| file >= first_given_up)
            {
                mapping.backing = Backing::Nothing(UnnamedReason::Limit);
                given_up += 1;
            }
        }
        Some((space, given_up))
    }

    /// Counts what it takes now.
    fn weigh(&mut self) {
        let bytes = self.mappings.capacity() * size_of::<Mapping>();
        let all = &self.all.0;
        all.set((all.get() + bytes).saturating_sub(self.bytes));
        self.bytes = bytes;
    }

    /// Finds the mapping that holds `address`.
    pub fn find(&self, address: Avma) -> Option<&Mapping> {
        let after = self
            .mappings
            .partition_point(|mapping| mapping.start <= address.0);
        let mapping = self.mappings[..after].last()?;
        mapping.holds(address).then_some(mapping)
    }

    /// True when something is mapped in this range.
    pub fn overlaps(&self, range: std::ops::Range<u64>) -> bool {
        let before = self
            .mappings
            .partition_point(|mapping| mapping.start < range.end);
        let last = self.mappings[..before].last();
        last.is_some_and(|last| range.start < last.end)
    }

    /// Adds a mapping over whatever was there. Returns false when the bound refused it or others.
    ///
    /// Cost: a search and a shift of what lies above. A process that keeps mapping beyond the bound
    /// costs a search each time.
    pub fn insert(&mut self, new: Mapping) -> bool {
        if new.start >= new.end {
            return true;
        }
        if matches!(new.backing, Backing::File(_)) {
            self.files_added = self.files_added.wrapping_add(1);
        }
        let mut forgot = false;
        if self.mappings.len() >= MAPPINGS_MAX {
            forgot = self.forget_generated();
        }
        let first = self.mappings.partition_point(|old| old.end <= new.start);
        let last = self.mappings.partition_point(|old| old.start < new.end);
        if first == last && self.mappings.len() >= MAPPINGS_MAX {
            return false;
        }
        if first != last {
            self.replaced = self.replaced.wrapping_add(1);
        }
        // What is left of the first and the last overlapped mapping on either side of the new one.
        let before = self.mappings[first..last]
            .first()
            .filter(|old| old.start < new.start);
        let before = before.map(|old| Mapping {
            end: new.start,
            ..*old
        });
        let after = self.mappings[first..last]
            .last()
            .filter(|old| old.end > new.end);
        let after = after.map(|old| Mapping {
            start: new.end,
            file_offset: old.file_offset.wrapping_add(new.end - old.start),
            ..*old
        });
        let at = first + usize::from(before.is_some());
        let pieces = before.into_iter().chain([new]).chain(after);
        self.mappings.splice(first..last, pieces);
        self.has_generated |= new.backing == Backing::Jit;
        // Cutting a mapping in two made too many. The old mapping is gone all the same, so the new
        // one is not kept, and as little as possible around it.
        let surplus = self.mappings.len().saturating_sub(MAPPINGS_MAX);
        self.mappings.drain(at..at + surplus);
        self.weigh();
        surplus == 0 && !forgot
    }

    /// Forgets the mappings of generated code; false when there are none.
    fn forget_generated(&mut self) -> bool {
        if !std::mem::take(&mut self.has_generated) {
            return false;
        }
        let before = self.mappings.len();
        self.mappings
            .retain(|mapping| mapping.backing != Backing::Jit);
        self.mappings.len() < before
    }

    /// Times a mapping took the place of another.
    pub fn replaced(&self) -> u32 {
        self.replaced
    }

    /// Mappings of files added so far.
    pub fn files_added(&self) -> u32 {
        self.files_added
    }

    /// Number of mappings.
    pub fn len(&self) -> usize {
        self.mappings.len()
    }

    /// True when no mapping is known.
    pub fn is_empty(&self) -> bool {
        self.mappings.is_empty()
    }

    /// Every mapping in order of address.
    pub fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mapping(start: u64, end: u64, file: u32) -> Mapping {
        Mapping {
            start,
            end,
            file_offset: 0,
            backing: Backing::File(FileId(file)),
        }
    }

    #[test]
    fn a_mapping_in_the_middle_of_another_splits_it_and_keeps_offsets() {
        let mut space = AddressSpace::default();
        space.insert(Mapping {
            file_offset: 0x1000,
            ..mapping(0x10_0000, 0x20_0000, 1)
        });
        space.insert(mapping(0x14_0000, 0x15_0000, 2));
        let tail = space
            .find(Avma(0x15_0000))
            .expect("tail of the first mapping");
        assert_eq!(tail.offset_of(Avma(0x15_0000)), FileOffset(0x5_1000));
        assert_eq!(
            space.find(Avma(0x14_8000)).map(|found| found.backing),
            Some(Backing::File(FileId(2)))
        );
    }

    #[test]
    fn generated_code_is_forgotten_first_at_the_bound() {
        let mut space = AddressSpace::default();
        space.insert(mapping(0x1000, 0x2000, 7));
        for page in 0..MAPPINGS_MAX as u64 + 10 {
            let start = 0x10_0000 + page * 0x2000;
            space.insert(Mapping {
                backing: Backing::Jit,
                ..mapping(start, start + 0x1000, 0)
            });
        }
        assert!(space.iter().count() <= MAPPINGS_MAX);
        assert!(space.find(Avma(0x1800)).is_some());
    }

    #[test]
    fn at_the_bound_files_that_were_first_stay_and_new_ones_are_refused() {
        let mut space = AddressSpace::default();
        let page = |number: u64| mapping(number * 0x1000, (number + 1) * 0x1000, number as u32);
        // From the top down, as the kernel places them: a program's libraries come first.
        for number in (1..=MAPPINGS_MAX as u64).rev() {
            assert!(space.insert(page(2 * number)));
        }
        assert!(!space.insert(page(1)));
        assert!(space.find(Avma(MAPPINGS_MAX as u64 * 0x2000)).is_some());
        assert!(space.find(Avma(0x1800)).is_none());
        assert!(
            space.insert(page(2)),
            "in the place of another there is room"
        );
    }

    #[test]
    fn at_the_bound_a_mapping_over_another_hides_it_even_when_it_is_refused() {
        let mut space = AddressSpace::default();
        for number in 0..MAPPINGS_MAX as u64 {
            space.insert(mapping(
                number * 0x4000,
                number * 0x4000 + 0x3000,
                number as u32,
            ));
        }
        assert!(!space.insert(mapping(0x1000, 0x2000, 77)));
        assert_eq!(space.iter().count(), MAPPINGS_MAX);
        assert!(space.find(Avma(0x800)).is_some());
        assert!(space.find(Avma(0x1800)).is_none());
        assert!(space.find(Avma(0x4800)).is_some());
    }

    proptest! {
        #[test]
        fn the_last_mapping_of_an_address_wins(
            inserted in proptest::collection::vec((0u64..200, 1u64..60), 1..60)
        ) {
            let mut space = AddressSpace::default();
            let mut model = vec![None; 300];
            for (number, &(start, len)) in inserted.iter().enumerate() {
                let new = Mapping { file_offset: start * 7, ..mapping(start, start + len, number as u32) };
                space.insert(new);
                for (at, slot) in model.iter_mut().enumerate().skip(start as usize).take(len as usize) {
                    *slot = Some((number as u32, start * 7 + at as u64 - start));
                }
            }
            for (at, expected) in model.iter().enumerate() {
                let found = space.find(Avma(at as u64)).map(|mapping| {
                    let Backing::File(file) = mapping.backing else { panic!("only files here") };
                    (file.0, mapping.offset_of(Avma(at as u64)).0)
                });
                prop_assert_eq!(found, *expected);
            }
        }
    }
}
