//! Tests packed rules against what gimli says about the same files.

use super::super::rule::Rule;
use super::super::table::Table;
use super::*;
use crate::info::rule::Expressions;
use gimli::CieOrFde;
use std::fs::File;
use symbolize::elf;

fn table(bytes: &[u8], bases: Bases) -> Option<Table> {
    let table = Table::of_bytes(Dialect::Eh, bytes, bases, &FileBudget::default());
    table.expect("within the budget")
}

/// Every row of every function of a program, from the section as it is in the file.
#[test]
fn every_row_of_a_program_leads_to_the_rule_that_gimli_gives() {
    let program = std::env::current_exe().expect("a program");
    let image = File::open(program).expect("the program's file");
    let headers = elf::read_headers(&image).expect("headers");
    let found = headers.section(b".eh_frame").expect("unwind information");
    let mut bytes = vec![0; found.size as usize];
    image.read_exact_at(&mut bytes, found.offset).expect("read");
    let bases = Bases {
        section: found.address,
        ..Bases::default()
    };
    let table = table(&bytes, bases).expect("functions");
    let mut section = EhFrame::new(&bytes, LittleEndian);
    section.set_address_size(8);
    section.set_vendor(arch::CFI_VENDOR);
    let at = BaseAddresses::default().set_eh_frame(found.address);
    let mut context = UnwindContext::new_in();
    let (mut checked, mut functions) = (0, 0);
    let mut entries = section.entries(&at);
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let function = partial.parse(EhFrame::cie_from_offset).expect("a function");
        functions += 1;
        let mut rows = function.rows(&section, &at, &mut context).expect("rows");
        while let Ok(Some(row)) = rows.next_row() {
            let facts = RowFacts {
                signal: function.is_signal_trampoline(),
                return_register: function.cie().return_address_register().0,
                section: &bytes,
            };
            let expected = kind_of_row(row, facts, &mut Expressions::default());
            for address in [row.start_address(), row.end_address() - 1] {
                let expected = expected.rule(address);
                assert_eq!(table.rule(address), expected, "at {address:#x}");
            }
            checked += 1;
        }
        let end = function.end_address();
        if !table.begins_at(end) {
            assert_eq!(table.rule(end), None);
        }
    }
    assert!(checked > 10_000, "{checked} rows");
    assert!(
        table.heap_bytes() * 10 < bytes.len() * 7,
        "{} of {} bytes, {functions} functions",
        table.heap_bytes(),
        bytes.len()
    );
}

fn entry(content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_le_bytes(), content].concat()
}

/// The column of the return address, and the stack pointer's number, as they are written.
const RETURNS: u8 = arch::RETURN_COLUMN as u8;
const SP: u8 = arch::number::SP as u8;

/// Version 1, no augmentation, factors 1 and -8; CFA sp + 8, return address below it.
const HEAD: [u8; 14] = [
    0,
    0,
    0,
    0,
    1,
    0,
    1,
    0x78,
    RETURNS,
    0x0c,
    SP,
    8,
    0x80 | RETURNS,
    1,
];

/// A function of 64 bytes, described behind `bytes` by the head at its start.
fn function(bytes: &[u8], start: u64, instructions: &[u8]) -> Vec<u8> {
    let back = bytes.len() as u32 + 4;
    let function = [
        &back.to_le_bytes()[..],
        &start.to_le_bytes(),
        &64u64.to_le_bytes(),
        instructions,
    ];
    entry(&function.concat())
}

/// An `.eh_frame` with a head of this many bytes of instructions that `functions` share.
fn shared_head(head_bytes: usize, functions: u64) -> Vec<u8> {
    // "The CFA is at rsp + 16", again and again.
    let instructions = [0x0e, 16].repeat(head_bytes / 2);
    let mut bytes = entry(&[&HEAD[..], &instructions].concat());
    for number in 0..functions {
        bytes.extend(function(&bytes, 0x1000 + number * 64, &[]));
    }
    bytes
}

#[test]
fn a_head_of_megabytes_is_evaluated_for_none_of_its_functions() {
    assert!(table(&shared_head(15 << 20, 1000), Bases::default()).is_none());
    let bearable = shared_head(HEAD_BYTES_MAX - 100, 1000);
    let table = table(&bearable, Bases::default()).expect("functions");
    assert_eq!(table.functions(), 1000);
}

#[test]
fn functions_described_alike_are_kept_once() {
    let place = SectionRange {
        offset: 0,
        len: u64::MAX,
        ends_at_zero: false,
    };
    let bytes = shared_head(2000, 1000);
    let budget = FileBudget::default();
    let packed = pack(Dialect::Eh, &*bytes, place, Bases::default(), &budget);
    let packed = packed.expect("within the budget");
    assert_eq!((packed.rows.len(), packed.kinds.len()), (3, 2));
    // The functions lie side by side: nothing but their starts, and the end of the last.
    assert_eq!(packed.index.len(), 1001);
}

#[test]
fn rows_far_into_a_function_are_found() {
    let mut bytes = entry(&HEAD);
    // CFA rsp + 16 from byte 1 on, rsp + 24 from byte 0x20001 on.
    let instructions = [0x41, 0x0e, 16, 0x04, 0, 0, 2, 0, 0x0e, 24];
    let back = bytes.len() as u32 + 4;
    let start_and_length = [0x1000u64.to_le_bytes(), 0x30000u64.to_le_bytes()].concat();
    let content = [&back.to_le_bytes()[..], &start_and_length, &instructions].concat();
    bytes.extend(entry(&content));
    let table = table(&bytes, Bases::default()).expect("a function");
    let rule = |into: u64| table.rule(0x1000 + into);
    let expected = [0, 8, 16].map(|more| Some(Rule::return_address_at(more)));
    assert_eq!([rule(0), rule(1), rule(0x20001)], expected);
    assert_eq!(rule(0x20000), expected[1]);
    assert_eq!(rule(0x2ffff), expected[2]);
}

#[test]
fn what_an_entry_of_length_zero_ends_is_said_by_the_caller() {
    let mut bytes = entry(&HEAD);
    bytes.extend(function(&bytes, 0x1000, &[]));
    bytes.extend_from_slice(&[0; 4]);
    bytes.extend(function(&bytes, 0x2000, &[]));
    let functions = |ends_at_zero| {
        let (offset, len) = (0, bytes.len() as u64);
        let place = SectionRange {
            offset,
            len,
            ends_at_zero,
        };
        let budget = FileBudget::default();
        let table = Table::read(Dialect::Eh, &*bytes, place, Bases::default(), &budget);
        table
            .expect("within the budget")
            .map(|table| table.functions())
    };
    assert_eq!([functions(true), functions(false)], [Some(1), Some(2)]);
}

#[test]
fn what_names_an_address_is_not_taken_and_what_looks_like_it_is() {
    let check = |instructions: &[u8], expected| {
        assert_eq!(names_an_address(instructions), expected, "{instructions:?}");
    };
    check(&[0x41, 0x01, 0, 0, 0, 0, 0, 0, 0, 0], true);
    check(&[0x0f, 2, 0x77, 1, 0x01, 0, 0, 0, 0], true);
    // One byte further; the return address in its usual place; an expression.
    check(&[0x02, 1, 0x0e, 16], false);
    check(&[0x90, 1, 0x41, 0x0e, 1], false);
    check(&[0x10, 6, 2, 0x77, 1, 0x0a], false);
    // What is cut off or unknown is left to whoever evaluates it.
    check(&[0x41, 0x0f, 200, 1], false);
    check(&[0x3f, 1], false);
}

/// The last register that calls keep.
const LAST_KEPT: u8 = arch::PLACES[arch::PLACES.len() - 1] as u8;

/// So many rows of one function, all with another CFA and with registers that are a distance from
/// it.
fn computed_rows(rows: u32, registers: u8) -> Vec<u8> {
    let mut instructions: Vec<u8> = (0..registers)
        .flat_map(|at| [0x14, LAST_KEPT - at, 2])
        .collect();
    for row in 0..rows {
        instructions.extend([0x41, 0x0e, row as u8 | 0x80, (row >> 7) as u8 & 0x7f]);
    }
    let mut bytes = entry(&HEAD);
    bytes.extend(function(&bytes, 0x1000, &instructions));
    bytes
}

#[test]
fn rows_that_are_computed_each_time_are_counted_and_charged_once() {
    let bytes = computed_rows(1000, 1);
    let budget = FileBudget::default();
    let table = Table::of_bytes(Dialect::Eh, &bytes, Bases::default(), &budget);
    let table = table.expect("within the budget").expect("a function");
    let least = 1000 * size_of::<crate::info::rule::ComputedRow>();
    assert!(table.heap_bytes() > least, "{}", table.heap_bytes());
    // The kinds, their numbers and the window; the same rows as keys of a table would be more.
    let most = table.heap_bytes() + WINDOW_BYTES + 20_000;
    let held = budget.most_held();
    assert!((table.heap_bytes()..most).contains(&held), "{held}");
}

#[test]
fn more_rows_that_are_computed_each_time_than_any_file_has_are_refused() {
    let budget = FileBudget::default();
    let bytes = computed_rows(4000, 16);
    let table = Table::of_bytes(Dialect::Eh, &bytes, Bases::default(), &budget);
    assert!(matches!(table, Err(Over::Memory)), "{table:?}");
}

#[test]
fn what_long_expressions_take_is_charged_before_much_of_it_is_read() {
    let mut bytes = entry(&HEAD);
    for number in 0..200u8 {
        // "The CFA is what this gives": a number, and nothing 60,000 times.
        let mut expression = vec![0x08, number];
        expression.resize(60 << 10, 0x96);
        let instructions = [&[0x0f, 0x80, 0xe0, 0x03][..], &expression].concat();
        bytes.extend(function(
            &bytes,
            0x1000 + u64::from(number) * 64,
            &instructions,
        ));
    }
    let budget = FileBudget::new(1 << 20, symbolize::budget::FILE_CPU_MAX);
    let place = SectionRange {
        offset: 0,
        len: bytes.len() as u64,
        ends_at_zero: false,
    };
    let seen = Seen {
        bytes: &bytes,
        to: std::cell::Cell::new(0),
    };
    let packed = pack(Dialect::Eh, &seen, place, Bases::default(), &budget);
    assert!(matches!(packed, Err(Over::Memory)));
    assert!(seen.to.get() < 2 << 20, "read up to {}", seen.to.get());
}

/// An image that notes up to where it was read.
struct Seen<'a> {
    bytes: &'a [u8],
    to: std::cell::Cell<u64>,
}

impl ReadAt for Seen<'_> {
    fn read_exact_at(&self, to: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.bytes.read_exact_at(to, offset)
    }

    fn read_some_at(&self, to: &mut [u8], offset: u64) -> std::io::Result<usize> {
        self.to.set(self.to.get().max(offset + to.len() as u64));
        self.bytes.read_some_at(to, offset)
    }
}
