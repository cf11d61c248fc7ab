//! The unwind information of one file: what the sampler needs of it, in plain memory.
//!
//! Read by `fp-files` with bounded positional reads and handed to the sampler whole; never mapped,
//! so a file cut short while it is read or later cannot harm. The sampler shares one module among all
//! processes that map the file.

use super::rule::{Rule, step_computed};
use super::state::{Registers, StackCopy};
use super::table::{self, Bases, Dialect, RowContext, Table};
use crate::ids::FileOffset;
use crate::symbolize::debug_files;
use crate::symbolize::elf::{self, Headers, ReadAt, Section, Segment};
use crate::symbolize::files::Image;
use crate::symbolize::inflate;
use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use profile::StackEnd;
use std::path::PathBuf;

/// Largest section of unwind information read. Unit: bytes. Browsers have about 20 MB, the largest
/// programs known 60.
const SECTION_BYTES_MAX: usize = 64 << 20;

/// Length of an entry of a procedure linkage table.
const PLT_ENTRY_BYTES: u64 = 16;

/// Longest code at the entry of a file that nothing describes: the dynamic linker's, which the kernel
/// enters and which nobody called. Those of glibc and musl have less than 64 bytes.
const ENTRY_BYTES_MAX: u64 = 96;

/// A procedure linkage table that nothing describes: lld writes no unwind information for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plt {
    start: u64,
    end: u64,
    /// Its entries push before they jump to the dynamic linker.
    lazy: bool,
    /// Its first entry is the way to the dynamic linker. Static programs have none.
    leads: bool,
}

/// The unwind information of a file.
#[derive(Debug, Default)]
pub struct Module {
    segments: Box<[Segment]>,
    tables: Box<[Table]>,
    plts: Box<[Plt]>,
    /// Where the kernel enters it; 0 when it does not.
    entry: u64,
}

impl Module {
    /// A module that describes nothing and takes about `bytes`.
    #[cfg(test)]
    pub fn of_size(bytes: usize) -> Module {
        let segment = Segment {
            offset: 0,
            file_size: 0,
            address: 0,
            memory_size: 0,
            executable: true,
        };
        Module {
            segments: vec![segment; bytes / size_of::<Segment>()].into(),
            ..Module::default()
        }
    }

    /// Reads what `image`, which ran from `path`, or its separate debug file has: the one `held` with it,
    /// or one in `debug_dirs`.
    /// `None` when it is not an image of this architecture or has no unwind information at all.
    pub fn read(
        image: &Image,
        held: Option<&Image>,
        path: &[u8],
        debug_dirs: &[PathBuf],
    ) -> Option<Module> {
        let headers = elf::read_headers(image).ok()?;
        let mut module = Module::of(image, &headers)?;
        if module.tables.is_empty()
            && let Some((debug, found)) = debug_files::find(held, debug_dirs, &headers, image, path)
        {
            let code = Bases {
                code: lowest(&module.segments),
                ..Bases::default()
            };
            module.tables = debug_frame(&debug, &found, code).into_iter().collect();
        }
        (!module.tables.is_empty()).then_some(module)
    }

    /// Reads what an image itself has. `None` when it is not an image of this architecture.
    pub fn of<R: ReadAt + ?Sized>(image: &R, headers: &Headers) -> Option<Module> {
        const EM_X86_64: u16 = 62;
        if !headers.is_64 || headers.machine != EM_X86_64 {
            return None;
        }
        let segments: Box<[Segment]> = headers
            .segments
            .iter()
            .filter(|segment| segment.executable)
            .copied()
            .collect();
        let bases = Bases {
            code: lowest(&segments),
            text: headers.section(b".text").map_or(0, |text| text.address),
            ..Bases::default()
        };
        let tables = eh_frame(image, headers, bases)
            .into_iter()
            .chain(debug_frame(image, headers, bases));
        let plts = [
            (&b".plt"[..], true),
            (b".plt.sec", false),
            (b".plt.got", false),
            (b".iplt", false),
        ];
        let plts = plts.iter().filter_map(|&(name, lazy)| {
            let section = headers.section(name)?;
            let (start, end) = (section.address, section.address.checked_add(section.size)?);
            // `push [rip + GOT + 8]` begins the way to the dynamic linker and nothing else.
            let mut first = [0; 2];
            let read = image.read_exact_at(&mut first, section.offset).is_ok();
            let leads = lazy && read && first == [0xff, 0x35];
            Some(Plt {
                start,
                end,
                lazy,
                leads,
            })
        });
        Some(Module {
            tables: tables.collect(),
            plts: plts.collect(),
            segments,
            entry: headers.entry,
        })
    }

    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        let tables: usize = self.tables.iter().map(Table::heap_bytes).sum();
        tables
            + size_of_val(&*self.segments)
            + size_of_val(&*self.tables)
            + size_of_val(&*self.plts)
    }

    /// The address (SVMA) that the executable segment states for a place in the file. Linkers put
    /// two segments on one page, and optimizers write several segments with code.
    fn address_of(&self, offset: FileOffset) -> Option<u64> {
        let holds = |segment: &&Segment| offset.0.wrapping_sub(segment.offset) < segment.file_size;
        let segment = self.segments.iter().find(holds)?;
        Some(offset.0 - segment.offset + segment.address)
    }

    /// The rule of a place in the file: of an instruction, or of the last byte of a call.
    pub fn rule(&self, offset: FileOffset, context: &mut RowContext) -> Rule {
        let Some(address) = self.address_of(offset) else {
            return Rule::UNKNOWN;
        };
        let mut described = self.tables.iter().filter_map(|table| {
            table.with_row(address, context, |row, facts| {
                Rule::of_row(row, facts, address)
            })
        });
        described
            .next()
            .or_else(|| self.plt_rule(address))
            .or_else(|| self.entered_rule(address))
            .or_else(|| self.entry_rule(address))
            .unwrap_or(Rule::UNKNOWN)
    }

    /// A return address that is the first of a function was put there by hand (makecontext does it):
    /// nobody called, and the stack begins there.
    fn entered_rule(&self, address: u64) -> Option<Rule> {
        let begins = |table: &Table| table.begins_at(address.wrapping_add(1));
        self.tables.iter().any(begins).then_some(Rule::ENTERED)
    }

    /// Code at the entry: the kernel began the stack there, and no return address is on it.
    fn entry_rule(&self, address: u64) -> Option<Rule> {
        let into = address.wrapping_sub(self.entry);
        (self.entry != 0 && into < ENTRY_BYTES_MAX).then_some(Rule::OUTERMOST)
    }

    fn plt_rule(&self, address: u64) -> Option<Rule> {
        let plt = self
            .plts
            .iter()
            .find(|plt| plt.start <= address && address < plt.end)?;
        let at = address - plt.start;
        let into = at % PLT_ENTRY_BYTES;
        // An entry jumps (6 bytes), pushes (5 bytes) and jumps to the first entry, which pushes too.
        let pushed = if plt.leads && at < PLT_ENTRY_BYTES {
            if into >= 6 { 16 } else { 8 }
        } else if plt.lazy && into >= 11 {
            8
        } else {
            0
        };
        Some(Rule::return_address_at(pushed))
    }

    /// The caller's registers by the row of a place in the file, for rules that
    /// are computed each time.
    ///
    /// # Errors
    /// How the stack ends.
    pub fn compute(
        &self,
        offset: FileOffset,
        registers: &Registers,
        stack: &StackCopy<'_>,
        context: &mut RowContext,
    ) -> Result<Registers, StackEnd> {
        let address = self.address_of(offset).ok_or(StackEnd::NoUnwindInfo)?;
        let mut computed = self.tables.iter().filter_map(|table| {
            table.with_row(address, context, |row, facts| {
                step_computed(row, facts, registers, stack)
            })
        });
        computed.next().ok_or(StackEnd::NoUnwindInfo)?
    }
}

fn lowest(segments: &[Segment]) -> u64 {
    segments
        .iter()
        .map(|segment| segment.address)
        .min()
        .unwrap_or(0)
}

fn eh_frame<R: ReadAt + ?Sized>(image: &R, headers: &Headers, bases: Bases) -> Option<Table> {
    let Some(section) = headers.section(b".eh_frame") else {
        return eh_frame_by_segment(image, headers, bases);
    };
    let bytes = content(image, section)?;
    let header = headers.section(b".eh_frame_hdr");
    let header_bytes = header.and_then(|header| content(image, header));
    let bases = Bases {
        section: section.address,
        header: header.map_or(0, |header| header.address),
        ..bases
    };
    Table::new(Dialect::Eh, &bytes, header_bytes.as_deref(), bases)
}

/// The table of an image without section headers, found the way the C library finds it: a program
/// header leads to `.eh_frame_hdr`, which leads to `.eh_frame`. Its length stands nowhere.
fn eh_frame_by_segment<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    bases: Bases,
) -> Option<Table> {
    let found = headers.eh_frame_hdr?;
    let header = read(image, found.offset, found.file_size)?;
    let known = BaseAddresses::default().set_eh_frame_hdr(found.address);
    let parsed = EhFrameHdr::new(&header, LittleEndian)
        .parse(&known, 8)
        .ok()?;
    let Pointer::Direct(address) = parsed.eh_frame_ptr() else {
        return None;
    };
    let mut segments = headers.segments.iter();
    let segment =
        segments.find(|segment| address.wrapping_sub(segment.address) < segment.file_size)?;
    let into = address - segment.address;
    let rest = segment.file_size - into;
    let bytes = read(
        image,
        segment.offset.checked_add(into)?,
        rest.min(SECTION_BYTES_MAX as u64),
    )?;
    let bases = Bases {
        section: address,
        header: found.address,
        ..bases
    };
    let end = table::end_of_entries(&bytes);
    Table::new(Dialect::Eh, &bytes[..end], Some(&header), bases)
}

fn read<R: ReadAt + ?Sized>(image: &R, offset: u64, size: u64) -> Option<Vec<u8>> {
    if size == 0 || size > SECTION_BYTES_MAX as u64 {
        return None;
    }
    let mut bytes = vec![0; size as usize];
    image.read_exact_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn debug_frame<R: ReadAt + ?Sized>(image: &R, headers: &Headers, bases: Bases) -> Option<Table> {
    let bytes = content(image, headers.section(b".debug_frame")?)?;
    Table::new(Dialect::Debug, &bytes, None, bases)
}

fn content<R: ReadAt + ?Sized>(image: &R, section: &Section) -> Option<Box<[u8]>> {
    let bytes = inflate::content(image, section, true, SECTION_BYTES_MAX).ok()?;
    (!bytes.is_empty()).then(|| bytes.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn without_section_headers_the_same_functions_are_described() {
        let program = std::env::current_exe().expect("a program");
        let image = File::open(program).expect("the program's file");
        let headers = elf::read_headers(&image).expect("headers");
        let bare = Headers {
            sections: Vec::new(),
            ..headers.clone()
        };
        let (Some(whole), Some(bare)) = (Module::of(&image, &headers), Module::of(&image, &bare))
        else {
            panic!("not an image of this machine")
        };
        let [described] = &*bare.tables else {
            panic!("not one table")
        };
        assert!(described.heap_bytes() > 10_000);
        assert_eq!(described.heap_bytes(), whole.tables[0].heap_bytes());
        let mut context = RowContext::new_in();
        for segment in &whole.segments {
            for offset in (segment.offset..segment.offset + segment.file_size).step_by(997) {
                let address = segment.address + (offset - segment.offset);
                if whole.plt_rule(address).is_none() {
                    let rules = [&whole, &bare].map(|m| m.rule(FileOffset(offset), &mut context));
                    assert_eq!(rules[0], rules[1], "at {address:#x}");
                }
            }
        }
    }

    #[test]
    fn the_kernel_enters_the_dynamic_linker_and_nobody_called_it() {
        let Ok(image) = File::open("/lib64/ld-linux-x86-64.so.2") else {
            return; // Another C library.
        };
        let headers = elf::read_headers(&image).expect("headers");
        let Some(module) = Module::of(&image, &headers) else {
            panic!("not an image of this machine")
        };
        let holds =
            |segment: &&Segment| headers.entry.wrapping_sub(segment.address) < segment.file_size;
        let segment = module
            .segments
            .iter()
            .find(holds)
            .expect("code at the entry");
        // Its first call is there: `mov %rsp,%rdi; call _dl_start`.
        let call = FileOffset(headers.entry + 7 - segment.address + segment.offset);
        let mut context = RowContext::new_in();
        assert_eq!(module.rule(call, &mut context), Rule::OUTERMOST);
        // What follows the entry is described.
        let later = FileOffset(call.0 + ENTRY_BYTES_MAX);
        assert_ne!(module.rule(later, &mut context), Rule::OUTERMOST);
    }
}
