//! The unwind information of one file: what the sampler needs from it, in plain memory.
//!
//! `fp-files` reads it with bounded positional reads and hands it to the sampler complete. The file
//! is never mapped, so truncating it while it is read or later does no harm. The sampler shares one
//! module among all processes that map the file.

use super::derive::lender::{self, Lender};
use super::rule::{ComputedRow, Rule, Step, step_computed};
use super::section::{Bases, Dialect, SectionRange};
use super::state::{Registers, StackCopy};
use super::table::Table;
use super::{derive, go};
use crate::arch::{self, LINK_REGISTER};
use gimli::{BaseAddresses, EhFrameHdr, LittleEndian, Pointer};
use host::ids::FileOffset;
use profile::StackEnd;
use std::cell::Cell;
use std::path::PathBuf;
use symbolize::budget::{FileBudget, Over};
use symbolize::elf::{self, ElfError, Headers, ReadAt, Section, Segment};
use symbolize::files::Image;
use symbolize::{debug_files, inflate};

/// Largest compressed section of unwind information that is unpacked, and its largest size then.
/// Unit: bytes. Sections that are not compressed are read piece by piece, whatever their size.
const UNPACKED_BYTES_MAX: usize = 32 << 20;

/// Bytes of `.eh_frame_hdr` read: what is looked for is a pointer at its start.
const HEADER_BYTES: u64 = 64;

/// Code that is looked through for what signal handlers return to. Unit: bytes. musl's library has
/// 600 KiB, the kernel's some hundred bytes.
const SIGNAL_RETURN_BYTES_MAX: u64 = 1 << 20;

/// Most places that signal handlers return to. A C library has one or two.
const SIGNAL_RETURNS_MAX: usize = 16;

/// Longest code at the entry of a file that nothing describes: the dynamic linker's, which the
/// kernel enters and which nobody called. Those of glibc and musl have less than 64 bytes.
const ENTRY_BYTES_MAX: u64 = 96;

/// A procedure linkage table that nothing describes: lld writes no unwind information for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Plt {
    start: u64,
    end: u64,
    /// Its entries push before they jump to the dynamic linker.
    lazy: bool,
    /// Where in its first entry that has pushed, if it is the way to the dynamic linker. Static
    /// programs have none.
    pushes_at: Option<u64>,
}

/// The unwind information of a file.
#[derive(Debug, Default)]
pub struct Module {
    segments: Box<[Segment]>,
    tables: Box<[Table]>,
    /// Rows derived from instructions that those do not describe.
    derived: Option<Table>,
    /// The function whose frame is used by code without one of its own.
    lender: Option<Lender>,
    plts: Box<[Plt]>,
    /// Where signal handlers return to, as addresses, where no table says so.
    signal_returns: Box<[u64]>,
    /// The kernel's own code (vdso) without tables, as arm64 has it: no function there calls
    /// another or keeps anything on the stack.
    leaves: bool,
    /// Where the kernel enters it; 0 when it does not.
    entry: u64,
}

/// The code of modules that tests make.
#[cfg(test)]
const TWO_PAGES: Segment = Segment {
    offset: 0,
    file_size: 0x2000,
    address: 0,
    memory_size: 0x2000,
    executable: true,
};

impl Module {
    /// A module of a file with one table.
    #[cfg(test)]
    pub fn of_table(table: Table) -> Module {
        Module {
            segments: [TWO_PAGES].into(),
            tables: [table].into(),
            ..Module::default()
        }
    }

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

    /// Two pages of code in which a signal handler returns to a place.
    #[cfg(test)]
    pub fn of_signal_return(at: u64) -> Module {
        Module {
            segments: [TWO_PAGES].into(),
            signal_returns: [at].into(),
            ..Module::default()
        }
    }

    /// Reads what `image`, which ran from `path`, or its separate debug file has: the one `held`
    /// with it, or one in `debug_dirs`; what neither describes is derived from instructions if
    /// `derives` says so. `None` when it is not an image of this architecture or has no unwind
    /// information at all.
    ///
    /// # Errors
    /// When reading it takes more than `budget` has left.
    pub fn read(
        image: &Image,
        held: Option<&Image>,
        path: &[u8],
        (debug_dirs, derives): (&[PathBuf], bool),
        budget: &FileBudget<'_>,
    ) -> Result<Option<Module>, Over> {
        let Ok(headers) = elf::read_headers(image) else {
            return Ok(None);
        };
        let Some(mut module) = Module::of(image, &headers, budget)? else {
            return Ok(None);
        };
        if module.tables.is_empty()
            && let Some((debug, found)) =
                debug_files::find(held, debug_dirs, &headers, image, path, budget)
        {
            let code = Bases {
                code: lowest(&module.segments),
                ..Bases::default()
            };
            let section = found.section(b".debug_frame");
            let table = table(Dialect::Debug, &debug, section, code, budget)?;
            module.tables = table.into_iter().collect();
        }
        if derives {
            module.derive(image, &headers, budget)?;
        }
        let is_vdso = matches!(image, Image::Memory(_));
        module.leaves = LINK_REGISTER.is_some() && is_vdso && module.tables.is_empty();
        let any = !module.tables.is_empty()
            || module.derived.is_some()
            || !module.signal_returns.is_empty()
            || module.leaves;
        Ok(any.then_some(module))
    }

    /// Adds rows derived from instructions that no table describes. If that takes more than
    /// `budget` has left, the module stays as it is.
    ///
    /// # Errors
    /// When the file is to be read later.
    pub fn derive<R: ReadAt + ?Sized>(
        &mut self,
        image: &R,
        headers: &Headers,
        budget: &FileBudget<'_>,
    ) -> Result<(), Over> {
        let base = lowest(&self.segments);
        let pieces = derive::undescribed(headers, &self.tables, base);
        if pieces.is_empty() {
            return Ok(());
        }
        if arch::READS_RUNTIME_CODE {
            match lender::find(image, headers, &self.tables, &pieces, budget) {
                Ok(lender) => self.lender = lender,
                Err(Over::Later) => return Err(Over::Later),
                Err(Over::Memory | Over::Time) => {}
            }
        }
        let begin = derive::EntryPoint::of(image, headers);
        match derive::table(image, &pieces, base, begin, budget) {
            Ok(table) => self.derived = table,
            Err(Over::Later) => return Err(Over::Later),
            Err(Over::Memory | Over::Time) => {}
        }
        Ok(())
    }

    /// Reads what an image itself has. `None` when it is not an image of this architecture.
    ///
    /// # Errors
    /// When reading it takes more than `budget` has left.
    pub fn of<R: ReadAt + ?Sized>(
        image: &R,
        headers: &Headers,
        budget: &FileBudget<'_>,
    ) -> Result<Option<Module>, Over> {
        if !headers.is_64 || headers.machine != arch::ELF_MACHINE {
            return Ok(None);
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
        let go = go::table(image, headers, bases.code, budget)?;
        let eh_frame = eh_frame(image, headers, bases, budget)?;
        // In a Go program it repeats what Go's own tables say, except for what the Go runtime does.
        let section = headers.section(b".debug_frame").filter(|_| go.is_none());
        let debug_frame = table(Dialect::Debug, image, section, bases, budget)?;
        let tables = [go, eh_frame, debug_frame].into_iter().flatten();
        let plts = [
            (&b".plt"[..], true),
            (b".plt.sec", false),
            (b".plt.got", false),
            (b".iplt", false),
        ];
        let plts = plts.iter().filter_map(|&(name, lazy)| {
            let section = headers.section(name)?;
            let (start, end) = (section.address, section.address.checked_add(section.size)?);
            let mut first = [0; 8];
            let read = image.read_exact_at(&mut first, section.offset).is_ok();
            let pushes_at = arch::plt_pushes_at(&first).filter(|_| lazy && read);
            Some(Plt {
                start,
                end,
                lazy,
                pushes_at,
            })
        });
        Ok(Some(Module {
            tables: tables.collect(),
            plts: plts.collect(),
            signal_returns: signal_returns(image, headers, budget)?,
            derived: None,
            lender: None,
            leaves: false,
            segments,
            entry: headers.entry,
        }))
    }

    /// All tables, what was derived last.
    fn all_tables(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().chain(&self.derived)
    }

    /// Number of functions that are described.
    pub fn functions(&self) -> usize {
        self.all_tables().map(Table::functions).sum()
    }

    /// Memory held. Unit: bytes.
    pub fn heap_bytes(&self) -> usize {
        let tables: usize = self.all_tables().map(Table::heap_bytes).sum();
        tables
            + self.lender.as_ref().map_or(0, Lender::heap_bytes)
            + size_of_val(&*self.segments)
            + size_of_val(&*self.tables)
            + size_of_val(&*self.plts)
            + size_of_val(&*self.signal_returns)
    }

    /// The address (SVMA) that the executable segment states for a place in the file. Linkers put
    /// two segments on one page, and optimizers write several segments with code.
    fn address_of(&self, offset: FileOffset) -> Option<u64> {
        let holds = |segment: &&Segment| offset.0.wrapping_sub(segment.offset) < segment.file_size;
        let segment = self.segments.iter().find(holds)?;
        Some(offset.0 - segment.offset + segment.address)
    }

    /// The rule of a place in the file: of an instruction, or of the last byte of a call.
    pub fn rule(&self, offset: FileOffset) -> Rule {
        let Some(address) = self.address_of(offset) else {
            return Rule::UNKNOWN;
        };
        let rule = self
            .signal_rule(address)
            .or_else(|| self.described(address))
            .or_else(|| self.plt_rule(address))
            .or_else(|| self.entered_rule(address))
            .or_else(|| self.entry_rule(address))
            .or_else(|| self.leaves.then(Rule::at_first_instruction))
            .unwrap_or(Rule::UNKNOWN);
        Rule {
            lent: self.lender.is_some() && (rule.derived || rule == Rule::UNKNOWN),
            ..rule
        }
    }

    /// The function whose frame is used by code without one of its own.
    pub fn lender(&self) -> Option<&Lender> {
        self.lender.as_ref()
    }

    /// The rule of an address (SVMA) by the tables alone.
    pub fn described(&self, address: u64) -> Option<Rule> {
        self.all_tables().find_map(|table| table.rule(address))
    }

    /// Start of the function that contains a place in the file, as an address (SVMA), if a table
    /// says so.
    pub fn function_start(&self, offset: FileOffset) -> Option<u64> {
        let address = self.address_of(offset)?;
        let mut tables = self.all_tables();
        tables.find_map(|table| table.function_start(address))
    }

    /// A return address that is the first of a function was put there by hand (makecontext does
    /// it): nobody called, and the stack starts there.
    fn entered_rule(&self, address: u64) -> Option<Rule> {
        let begins = |table: &Table| table.begins_at(address.wrapping_add(1));
        self.tables.iter().any(begins).then_some(Rule::ENTERED)
    }

    /// Code at the entry: the kernel started the stack there, and no return address is on it.
    fn entry_rule(&self, address: u64) -> Option<Rule> {
        let into = address.wrapping_sub(self.entry);
        (self.entry != 0 && into < ENTRY_BYTES_MAX).then_some(Rule::OUTERMOST)
    }

    /// True in a function that a signal handler returns to, and before it: that is where its call
    /// would be, and nobody called.
    fn is_signal_return(&self, address: u64) -> bool {
        let inside = |&start: &u64| address.wrapping_add(1).wrapping_sub(start) <= 8;
        self.signal_returns.iter().any(inside)
    }

    fn signal_rule(&self, address: u64) -> Option<Rule> {
        self.is_signal_return(address).then_some(Rule {
            step: Step::Computed,
            signal: true,
            entered: true,
            ..Rule::UNKNOWN
        })
    }

    fn plt_rule(&self, address: u64) -> Option<Rule> {
        let plt = self
            .plts
            .iter()
            .find(|plt| plt.start <= address && address < plt.end)?;
        let pushed = arch::plt_pushed(address - plt.start, plt.pushes_at, plt.lazy);
        Some(pushed.map_or(Rule::at_first_instruction(), Rule::return_address_at))
    }

    /// The caller's registers by the row of a place in the file, for rules that
    /// are computed each time. `operations` is what expressions may still cost.
    ///
    /// # Errors
    /// How the stack ends.
    pub fn compute(
        &self,
        offset: FileOffset,
        registers: &Registers,
        stack: &StackCopy<'_>,
        operations: &Cell<u32>,
    ) -> Result<Registers, StackEnd> {
        let address = self.address_of(offset).ok_or(StackEnd::NoUnwindInfo)?;
        if self.is_signal_return(address) {
            let row = ComputedRow::signal_return();
            return step_computed(&row, &[], registers, stack, operations);
        }
        let mut computed = self
            .all_tables()
            .filter_map(|table| table.compute(address, registers, stack, operations));
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

/// Addresses that signal handlers return to, if only instructions show them.
fn signal_returns<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    budget: &FileBudget<'_>,
) -> Result<Box<[u64]>, Over> {
    let Some(begin) = arch::SIGNAL_RETURN else {
        return Ok(Box::default());
    };
    let mut found = Vec::new();
    let mut left = SIGNAL_RETURN_BYTES_MAX;
    for segment in headers.segments.iter().filter(|segment| segment.executable) {
        let len = segment.file_size.min(left) as usize;
        left -= len as u64;
        let _charge = budget.charge(len)?;
        budget.reads(len)?;
        let mut code = vec![0; len];
        let read = image.read_some_at(&mut code, segment.offset).unwrap_or(0);
        for at in (0..read).step_by(4) {
            let here = code[..read].get(at..at + begin.len());
            if here == Some(&begin[..]) && found.len() < SIGNAL_RETURNS_MAX {
                found.push(segment.address.wrapping_add(at as u64));
            }
        }
    }
    Ok(found.into())
}

fn eh_frame<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
    bases: Bases,
    budget: &FileBudget<'_>,
) -> Result<Option<Table>, Over> {
    if let Some(section) = headers.section(b".eh_frame") {
        let bases = Bases {
            section: section.address,
            ..bases
        };
        return table(Dialect::Eh, image, Some(section), bases, budget);
    }
    let Some((place, section)) = eh_frame_by_segment(image, headers) else {
        return Ok(None);
    };
    let bases = Bases { section, ..bases };
    Table::read(Dialect::Eh, image, place, bases, budget)
}

/// Where `.eh_frame` of an image without section headers is, and its address, found the way the C
/// library finds it: a program header leads to `.eh_frame_hdr`, which leads to `.eh_frame`. Its
/// length stands nowhere.
fn eh_frame_by_segment<R: ReadAt + ?Sized>(
    image: &R,
    headers: &Headers,
) -> Option<(SectionRange, u64)> {
    let found = headers.eh_frame_hdr?;
    let mut header = vec![0; found.file_size.min(HEADER_BYTES) as usize];
    image.read_exact_at(&mut header, found.offset).ok()?;
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
    let place = SectionRange {
        offset: segment.offset.checked_add(into)?,
        len: segment.file_size - into,
        ends_at_zero: true,
    };
    Some((place, address))
}

/// The table of a section, unpacked where it is compressed. `None` where there is no such section,
/// or nothing in it.
fn table<R: ReadAt + ?Sized>(
    dialect: Dialect,
    image: &R,
    section: Option<&Section>,
    bases: Bases,
    budget: &FileBudget<'_>,
) -> Result<Option<Table>, Over> {
    let Some(section) = section else {
        return Ok(None);
    };
    if !section.compressed {
        let place = SectionRange {
            offset: section.offset,
            len: section.size,
            ends_at_zero: false,
        };
        return Table::read(dialect, image, place, bases, budget);
    }
    match inflate::content(image, section, true, UNPACKED_BYTES_MAX, budget) {
        Ok(bytes) => Table::of_bytes(dialect, &bytes, bases, budget),
        Err(ElfError::TooLarge) => Err(Over::Memory),
        Err(ElfError::Over(over)) => Err(over),
        Err(_) => Ok(None),
    }
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
        let [whole, bare] = [&headers, &bare].map(|headers| {
            let module = Module::of(&image, headers, &FileBudget::default());
            module
                .expect("within the budget")
                .expect("an image of this machine")
        });
        let [described] = &*bare.tables else {
            panic!("not one table")
        };
        assert!(described.heap_bytes() > 10_000);
        assert_eq!(described.heap_bytes(), whole.tables[0].heap_bytes());
        for segment in &whole.segments {
            for offset in (segment.offset..segment.offset + segment.file_size).step_by(997) {
                let address = segment.address + (offset - segment.offset);
                if whole.plt_rule(address).is_none() {
                    let rules = [&whole, &bare].map(|m| m.rule(FileOffset(offset)));
                    assert_eq!(rules[0], rules[1], "at {address:#x}");
                }
            }
        }
    }

    /// An image of one segment that can be run, with the code at its end.
    #[cfg(target_arch = "aarch64")] // The kernel has tables for its own code elsewhere.
    fn image_of(code: &[u32]) -> Image {
        const HEADERS: usize = 64 + 56;
        let len = (HEADERS + code.len() * 4) as u64;
        let mut bytes = vec![0; HEADERS];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(16, &[3, 0]);
        put(18, &arch::ELF_MACHINE.to_le_bytes());
        put(20, &[1]);
        // e_phoff, e_ehsize, e_phentsize, e_phnum; the segment's type, flags and sizes.
        put(32, &[64]);
        put(52, &[64, 0, 56, 0, 1]);
        put(64, &[1, 0, 0, 0, 5]);
        put(96, &len.to_le_bytes());
        put(104, &len.to_le_bytes());
        bytes.extend(code.iter().flat_map(|word| word.to_le_bytes()));
        Image::Memory(bytes.into())
    }

    #[test]
    #[cfg(target_arch = "aarch64")]
    fn the_kernels_own_code_needs_no_tables() {
        // nop; mov x8, #139; svc #0
        let image = image_of(&[0xd503_201f, 0xd280_1168, 0xd400_0001]);
        let budget = FileBudget::default();
        let module = Module::read(&image, None, b"[vdso]", (&[], true), &budget);
        let module = module.expect("within the budget").expect("a module");
        let [before, inside] = [123, 124].map(|at| module.rule(FileOffset(at)));
        assert!(before.signal && inside.signal, "{before:?} {inside:?}");
        assert_eq!(module.rule(FileOffset(120)), Rule::at_first_instruction());
    }

    #[cfg(target_arch = "x86_64")] // Its entry is known to the byte.
    #[test]
    fn the_kernel_enters_the_dynamic_linker_and_nobody_called_it() {
        let Ok(image) = File::open("/lib64/ld-linux-x86-64.so.2") else {
            return; // Another C library.
        };
        let headers = elf::read_headers(&image).expect("headers");
        let module = Module::of(&image, &headers, &FileBudget::default());
        let module = module
            .expect("within the budget")
            .expect("an image of this machine");
        let holds =
            |segment: &&Segment| headers.entry.wrapping_sub(segment.address) < segment.file_size;
        let segment = module
            .segments
            .iter()
            .find(holds)
            .expect("code at the entry");
        // Its first call is there: `mov %rsp,%rdi; call _dl_start`.
        let call = FileOffset(headers.entry + 7 - segment.address + segment.offset);
        assert_eq!(module.rule(call), Rule::OUTERMOST);
        // What follows the entry is described.
        let later = FileOffset(call.0 + ENTRY_BYTES_MAX);
        assert_ne!(module.rule(later), Rule::OUTERMOST);
    }
}
