//! Tests that images of all kinds, including damaged ones, do no harm and are read correctly.

use super::budget::FileBudget;
use super::*;
use elf::{Headers, Segment, SymbolTable};
use proptest::prelude::*;
use std::sync::OnceLock;

fn program() -> Option<&'static [u8]> {
    static PROGRAM_BYTES: OnceLock<Option<Vec<u8>>> = OnceLock::new();
    let build = || {
        let dir = TempDir::new().expect("temporary directory");
        let path = build(dir.path(), "program", PROGRAM, &["-g"])?;
        Some(fs::read(path).expect("reads"))
    };
    PROGRAM_BYTES.get_or_init(build).as_deref()
}

proptest! {
    #[test]
    fn images_do_no_harm(
        headers in any::<bool>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let Some(program) = program() else { return Ok(()) };
        let mut bytes = program.to_vec();
        // The interesting numbers are at both ends: file and program headers, section headers.
        let len = bytes.len();
        for (place, value) in damage {
            let place = place.index(if headers { 1024 } else { len });
            let place = if value & 1 == 0 { place } else { len - 1 - place };
            bytes[place] = value;
        }
        bytes.truncate(cut.map_or(len, |cut| cut.index(len)));
        let Ok(headers) = elf::read_headers(&*bytes) else { return Ok(()) };
        let budget = FileBudget::default();
        let table = SymbolTable::read(&*bytes, &headers, b".symtab", &headers.segments, &budget);
        prop_assert!(budget.most_held() <= 16 * len);
        if let Ok(Some(table)) = table {
            for index in 0..table.len() as u32 {
                table.name(&*bytes, index);
            }
            let mut hint = 0;
            for offset in (0..len as u64).step_by(16) {
                headers.address_of(offset).and_then(|address| table.find(address, &mut hint));
            }
        }
        if let Ok(Some(lines)) = lines::LineSource::new(&*bytes, &headers, true, 1 << 20) {
            let _ = lines.places(&[0x1150, 0x1160], |_, _| ());
        }
    }

    #[test]
    fn notes_do_no_harm(notes in prop::collection::vec(any::<u8>(), 0..200), align in 0u64..9) {
        elf::find_build_id(&notes, align);
    }
}

/// A program with debug information in which so many inlined functions lie within each other.
fn nested(depth: usize) -> String {
    format!(
        r#"
int hot(void);
int main(void) {{ return hot(); }}
__asm__(
    ".file 1 \"nested.c\"\n"
    ".globl hot\n.type hot, %function\n"
    "hot: .loc 1 3\nnop\nnop\nnop\nnop\nnop\nnop\nnop\nret\n.size hot, .-hot\n"
    ".pushsection .debug_line,\"\",%progbits\n4: .popsection\n"
    ".pushsection .debug_abbrev,\"\",%progbits\n"
    "3: .byte 1,0x11,1,0x11,1,0x12,7,0x10,0x17,0,0, 2,0x2e,1,0x11,1,0x12,7,3,8,0,0\n"
    ".byte 3,0x1d,1,0x11,1,0x12,7,3,8,0,0, 0\n"
    ".popsection\n"
    ".pushsection .debug_info,\"\",%progbits\n"
    ".long 2f-1f\n"
    "1: .short 4\n.long 3b\n.byte 8\n"
    ".byte 1\n.quad hot\n.quad 8\n.long 4b\n"
    ".byte 2\n.quad hot\n.quad 8\n.asciz \"hot\"\n"
    ".rept {depth}\n.byte 3\n.quad hot\n.quad 8\n.asciz \"in\"\n.endr\n"
    ".fill {depth}+2\n"
    "2: .popsection\n");
"#
    )
}

#[test]
fn inlined_functions_nested_without_end_do_not_reach_the_library() {
    let dir = TempDir::new().expect("temporary directory");
    let outcome = |depth: usize| {
        let path = build(dir.path(), "nested", &nested(depth), &[])?;
        let offset = offset_of(&path, "hot");
        // Half of what the symbolizer's thread has.
        let thread = std::thread::Builder::new().stack_size(1 << 20);
        let work = move || {
            let bytes = fs::read(&path).expect("reads");
            let headers = elf::read_headers(&*bytes).expect("is ELF");
            let address = headers.address_of(offset.0).expect("is code");
            let lines = lines::LineSource::new(&*bytes, &headers, true, 16 << 20)?;
            let mut frames = 0;
            lines
                .expect("has debug information")
                .places(&[address], |_, places| frames = places.len())?;
            Ok(frames)
        };
        let thread = thread.spawn(work).expect("starts");
        Some(thread.join().expect("does not panic"))
    };
    // The unit and the function are levels too.
    let Some(taken) = outcome(254) else { return };
    let taken: Result<usize, lines::LinesError> = taken;
    assert_eq!(taken.ok(), Some(255));
    for depth in [255, 10_000] {
        let refused = outcome(depth)
            .expect("builds")
            .map_err(|error| error.to_string());
        assert_eq!(
            refused,
            Err("failed to use the debug information".to_owned())
        );
    }
}

fn segment(offset: u64, address: u64, size: u64, executable: bool) -> Segment {
    Segment {
        offset,
        file_size: size,
        address,
        memory_size: size,
        executable,
    }
}

fn headers(segments: Vec<Segment>) -> Headers {
    Headers {
        entry: 0,
        is_64: true,
        machine: 62,
        segments,
        eh_frame_hdr: None,
        dynamic: None,
        go_note: false,
        sections: Vec::new(),
        build_id: Box::default(),
    }
}

#[test]
fn of_two_segments_on_one_page_the_one_with_code_counts() {
    let both = [
        segment(0x1000, 0x1000, 0x800, false),
        segment(0x1400, 0x2400, 0x1000, true),
    ];
    let headers = headers(both.to_vec());
    assert_eq!(headers.address_of(0x1200), Some(0x1200));
    assert_eq!(headers.address_of(0x1500), Some(0x2500));
    assert_eq!(headers.address_of(0x2400), None);
}

#[test]
fn each_of_two_segments_with_code_has_its_own_bias() {
    let both = [
        segment(0x1000, 0x11000, 0x1000, true),
        segment(0x2000, 0x52000, 0x1000, true),
    ];
    let headers = headers(both.to_vec());
    assert_eq!(headers.address_of(0x1010), Some(0x11010));
    assert_eq!(headers.address_of(0x2010), Some(0x52010));
}

/// A symbol table of an image that holds nothing else: (start, size) of functions.
fn table(symbols: &[(u64, u64)], section: &[u8]) -> SymbolTable {
    let mut image = vec![0; 24];
    for (index, &(start, size)) in symbols.iter().enumerate() {
        // st_name, st_info (global function), st_other, st_shndx.
        image.extend_from_slice(&(index as u32 + 1).to_le_bytes());
        image.extend_from_slice(&[0x12, 0, 1, 0]);
        image.extend_from_slice(&start.to_le_bytes());
        image.extend_from_slice(&size.to_le_bytes());
    }
    let section_of = |name: &[u8], kind| elf::Section {
        name: name.into(),
        kind,
        compressed: false,
        executable: false,
        address: 0,
        offset: 0,
        size: image.len() as u64,
        link: 1,
        entry_size: 24,
    };
    let mut headers = headers(vec![segment(0, 0, 0x10000, true)]);
    headers.sections = vec![section_of(section, 2), section_of(b".strtab", 3)];
    let code = headers.segments.clone();
    let table = SymbolTable::read(&*image, &headers, section, &code, &FileBudget::default());
    table.expect("reads").expect("has functions")
}

#[test]
fn an_unsized_symbol_ends_with_its_section() {
    let Some(program) = program() else { return };
    let headers = elf::read_headers(program).expect("headers");
    let code = &headers.segments;
    let budget = FileBudget::default();
    let table = SymbolTable::read(program, &headers, b".symtab", code, &budget);
    let table = table.expect("reads").expect("has functions");
    let init = headers.section(b".init").expect("a section");
    let last = init.address + init.size - 1;
    let name = |address| {
        let index = table.find(address, &mut 0)?;
        table.name(program, index)
    };
    assert_eq!(name(last).as_deref(), Some(&b"_init"[..]));
    assert_eq!(name(last + 1), None);
    // The linkage table follows, which no symbol names.
    let plt = headers.section(b".plt").expect("a section");
    assert_eq!(name(plt.address), None);
}

#[test]
fn unsized_symbols_reach_to_the_next_but_not_in_the_dynamic_table() {
    let symbols = [(0x100, 0), (0x200, 0x10), (0x300, 0x10)];
    let full = table(&symbols, b".symtab");
    let found = [0xff, 0x100, 0x1ff, 0x205, 0x215].map(|at| full.find(at, &mut 0));
    assert_eq!(found, [None, Some(0), Some(0), Some(1), None]);
    let sparse = table(&symbols, b".dynsym");
    assert_eq!(
        [0x100, 0x101, 0x205].map(|at| sparse.find(at, &mut 0)),
        [Some(0), None, Some(1)]
    );
}

proptest! {
    #[test]
    fn the_nearest_symbol_that_covers_is_found_whatever_the_hint(
        symbols in prop::collection::btree_map(0u64..400, 1u64..80, 1..12),
        questions in prop::collection::vec((0u64..500, 0usize..20), 1..40),
    ) {
        let symbols: Vec<(u64, u64)> = symbols.into_iter().collect();
        let table = table(&symbols, b".symtab");
        for (address, mut hint) in questions {
            let covers = |&(start, size): &(u64, u64)| (start..start + size).contains(&address);
            let expected = symbols.iter().rposition(covers).map(|index| index as u32);
            prop_assert_eq!(table.find(address, &mut hint), expected);
            prop_assert_eq!(table.find(address, &mut hint), expected);
        }
    }
}

/// A symbol table that is made while it is read: each symbol a function of its own.
struct ManySymbols;

const SYMBOL_BYTES: u64 = 24;

impl elf::ReadAt for ManySymbols {
    fn read_exact_at(&self, to: &mut [u8], offset: u64) -> std::io::Result<()> {
        for (at, symbol) in
            (offset / SYMBOL_BYTES..).zip(to.chunks_exact_mut(SYMBOL_BYTES as usize))
        {
            // The name, a global function, the section it is in.
            symbol[..8].copy_from_slice(&[1, 0, 0, 0, 0x12, 0, 1, 0]);
            symbol[8..16].copy_from_slice(&at.to_le_bytes());
            symbol[16..].copy_from_slice(&1u64.to_le_bytes());
        }
        Ok(())
    }

    fn read_some_at(&self, to: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.read_exact_at(to, offset).map(|()| to.len())
    }
}

#[test]
fn a_budget_holds_as_many_functions_as_it_has_bytes_for() {
    const BYTES: usize = 1 << 20;
    let section = |name: &[u8], size, link| elf::Section {
        name: name.into(),
        kind: 2,
        compressed: false,
        executable: false,
        address: 0,
        offset: 0,
        size,
        link,
        entry_size: SYMBOL_BYTES,
    };
    let read = |functions: u64| {
        let segment = Segment {
            offset: 0,
            file_size: 1 << 30,
            address: 0,
            memory_size: 1 << 30,
            executable: true,
        };
        let headers = Headers {
            is_64: true,
            machine: 62,
            entry: 0,
            segments: vec![segment],
            eh_frame_hdr: None,
            dynamic: None,
            go_note: false,
            sections: vec![
                section(b".strtab", 64, 0),
                section(b".symtab", functions * SYMBOL_BYTES, 0),
            ],
            build_id: Box::default(),
        };
        let budget = FileBudget::new(BYTES, budget::FILE_CPU_MAX);
        let table = SymbolTable::read(
            &ManySymbols,
            &headers,
            b".symtab",
            &headers.segments,
            &budget,
        );
        let functions = table.map(|table| table.map_or(0, |table| table.len()));
        (functions.ok(), budget.most_held())
    };
    // 16 bytes each.
    let most = BYTES / 16;
    assert_eq!(read(most as u64), (Some(most), BYTES));
    assert_eq!(read(most as u64 + 1).0, None);
    let (functions, held) = read(3000);
    assert_eq!((functions, held), (Some(3000), 3000 * 16));
}

/// A function with a symbol in its midst that has neither type nor size.
const MARKED: &str = "__attribute__((noinline)) int work(int turns) {
    __asm__ volatile(\"nop; mark: nop\");
    return turns;
}
int main(int count, char **words) { return work(count) + (words == 0); }
";

#[test]
fn what_tells_code_from_data_on_arm64_is_no_function() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "marked", MARKED, &[]) else {
        return;
    };
    let bytes = fs::read(path).expect("reads");
    let budget = FileBudget::default();
    let mut headers = elf::read_headers(&*bytes).expect("is ELF");
    for (machine, is_function) in [
        (object::elf::EM_X86_64, true),
        (object::elf::EM_AARCH64, false),
    ] {
        headers.machine = machine.0;
        let table = SymbolTable::read(&*bytes, &headers, b".symtab", &headers.segments, &budget);
        let table = table.expect("sound").expect("functions");
        let found = |name: &[u8]| table.named(&*bytes, name, &budget).is_some();
        assert!(found(b"work"), "{machine:?}");
        assert_eq!(found(b"mark"), is_function, "{machine:?}");
    }
}
