//! Tests with tables of real programs and handwritten tables.

use super::lines::Source;
use super::values::{Span, Values};
use super::*;
use crate::elf::{self, Headers, Segment};
use std::fs::File;
use std::time::Duration;
use testkit::golang::{Build, build};

fn program(how: Build) -> Option<(File, Headers)> {
    let path = match build(how) {
        Ok(path) => path,
        Err(why) => {
            testkit::skip(why);
            return None;
        }
    };
    let image = File::open(path).expect("a program that was built");
    let headers = elf::read_headers(&image).expect("headers");
    Some((image, headers))
}

fn tables<R: ReadAt + ?Sized>(image: &R, headers: &Headers) -> Option<GoTables> {
    find(image, headers, &FileBudget::default()).expect("within the budget")
}

/// What a list says.
fn spans(bytes: &[u8]) -> Vec<Span> {
    Values::new(bytes, 1).collect()
}

fn span(from: u32, until: u32, value: i32) -> Span {
    Span { from, until, value }
}

#[test]
fn values_change_by_steps_and_hold_for_some_bytes() {
    // From -1 by 1, by 32, by -32.
    let list = [2, 4, 64, 0x85, 0x01, 63, 1, 0];
    let expected = [span(0, 4, 0), span(4, 137, 32), span(137, 138, 0)];
    assert_eq!(spans(&list), expected);
    // Only the first may change nothing.
    assert_eq!(spans(&[0, 3, 0, 9]), [span(0, 3, -1)]);
}

#[test]
fn lists_that_make_no_sense_end() {
    assert_eq!(spans(&[]), []);
    assert_eq!(spans(&[2]), [], "no length");
    assert_eq!(spans(&[0x80; 64]), [], "a number without end");
    assert_eq!(
        spans(&[2, 0xff, 0xff, 0xff, 0xff, 0x0f, 2, 1]).len(),
        1,
        "behind all addresses"
    );
    assert_eq!(spans(&[2; 4000]).len(), 2000);
}

/// Names of a program, by the address of their function.
fn names(image: &File, symbols: &SymbolTable, addresses: &[u64]) -> Vec<Option<String>> {
    let mut hint = 0;
    let name = |&address: &u64| {
        let index = symbols.find(address, &mut hint)?;
        let name = symbols.name(image, index)?;
        Some(String::from_utf8_lossy(&name).into_owned())
    };
    addresses.iter().map(name).collect()
}

/// A name without what the two tables write differently: the ABI that the symbol is of, arguments
/// of generic types, and a dot that some have.
fn alike(name: &str) -> String {
    let name = name.replace('\u{b7}', ".");
    let name = name.strip_suffix(".abi0").unwrap_or(&name);
    let name = name.strip_suffix(".abiinternal").unwrap_or(name);
    match (name.find('['), name.rfind(']')) {
        (Some(from), Some(until)) if from < until => {
            format!("{}[...]{}", &name[..from], &name[until + 1..])
        }
        _ => name.to_owned(),
    }
}

#[test]
fn names_are_those_of_the_symbols() {
    let Some((image, headers)) = program(Build::Whole) else {
        return;
    };
    let budget = FileBudget::default();
    let found = tables(&image, &headers).expect("tables");
    let own = symbols(&image, &found, &budget)
        .expect("sound")
        .expect("functions");
    let listed = SymbolTable::read(&image, &headers, b".symtab", &headers.segments, &budget);
    let listed = listed.expect("sound").expect("symbols");
    let mut addresses = Vec::new();
    let each = found.each(&image, &budget, |function: &Function| {
        addresses.push(function.start);
        Ok::<(), Over>(())
    });
    each.expect("within the budget");
    assert!(addresses.len() > 1000, "{} functions", addresses.len());
    let [own, listed] = [&own, &listed].map(|table| names(&image, table, &addresses));
    let pairs = own.iter().zip(&listed);
    let other: Vec<_> = pairs
        .filter(|(own, listed)| {
            let [own, listed] = [own, listed].map(|name| name.as_deref().map(alike));
            own != listed
        })
        .collect();
    assert!(
        other.is_empty(),
        "{} of {}: {other:?}",
        other.len(),
        addresses.len()
    );
}

/// A table of one function, `f`, with depth 0, then 16: header, names, units, files, values,
/// functions. Its layout depends on the magic number; `text` is the address of the code.
fn written(magic: u32, text: u64) -> Vec<u8> {
    let layout = Layout::of(magic).expect("a layout");
    let words = if layout == Layout::Addresses { 7 } else { 8 };
    let first: u64 = 8 + words * 8;
    let names = b"f\0\0\0\0\0\0\0";
    let values = [0, 2, 4, 32, 12, 0, 0, 0];
    let starts = [0, 8, 8, 8, 16].map(|at: u64| first + at);
    let mut bytes = magic.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0, 1, 8]);
    let mut header = vec![1u64, 0];
    if layout != Layout::Addresses {
        header.push(text);
    }
    header.extend_from_slice(&starts);
    bytes.extend(header.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend_from_slice(names);
    bytes.extend_from_slice(&values);
    let list = 3 * layout.address_bytes();
    let place = list.next_multiple_of(8);
    let mut push = |wide: bool, value: u64| match wide {
        true => bytes.extend_from_slice(&value.to_le_bytes()),
        false => bytes.extend_from_slice(&(value as u32).to_le_bytes()),
    };
    let wide = layout == Layout::Addresses;
    let entry = if wide { text } else { 0 };
    push(wide, entry);
    push(wide, place);
    push(wide, entry + 16);
    (list..place).step_by(4).for_each(|_| push(false, 0));
    push(wide, entry);
    // Name, arguments, defers, depths, files, lines, number of further lists, unit.
    for word in [0, 0, 0, 1, 0, 0, 0, 0] {
        push(false, word);
    }
    if layout == Layout::StartLines {
        push(false, 7);
    }
    // Number, flags, padding, number of data.
    bytes.extend_from_slice(&[0, functions::WRITES_SP, 0, 0]);
    bytes.resize(bytes.len().next_multiple_of(8) + 8, 0);
    bytes
}

/// Headers of an image that is nothing but data, for code elsewhere.
fn headers_of(bytes: &[u8], code: u64) -> Headers {
    let segment = |address, len, executable| Segment {
        offset: 0,
        file_size: len,
        address,
        memory_size: len,
        executable,
    };
    Headers {
        is_64: true,
        machine: 62,
        entry: 0,
        segments: vec![
            segment(code, 0x1000, true),
            segment(0x50_0000, bytes.len() as u64, false),
        ],
        eh_frame_hdr: None,
        dynamic: None,
        go_note: true,
        sections: Vec::new(),
        build_id: Box::default(),
    }
}

const MAGICS: [u32; 3] = [0xffff_fffa, 0xffff_fff0, 0xffff_fff1];

#[test]
fn each_layout_is_read() {
    for magic in MAGICS {
        let bytes = written(magic, 0x40_0000);
        let headers = headers_of(&bytes, 0x40_0000);
        let found = tables(&bytes[..], &headers).unwrap_or_else(|| panic!("{magic:#x}"));
        let (mut seen, budget) = (Vec::new(), FileBudget::default());
        let each = found.each(&bytes[..], &budget, |function: &Function| {
            seen.push(*function);
            Ok::<(), Over>(())
        });
        each.expect("within the budget");
        let [function] = &seen[..] else {
            panic!("{magic:#x}: {seen:?}");
        };
        assert_eq!((function.start, function.end), (0x40_0000, 0x40_0010));
        assert_eq!((function.name, function.depths), (0, 1));
        assert_eq!(function.flags, functions::WRITES_SP);
        let start_line = if magic == MAGICS[2] { 7 } else { 0 };
        assert_eq!(function.start_line, start_line);
        let mut lists = values::Lists::new(&bytes[..], &found, &budget);
        let list = lists.at(function.depths).expect("within the budget");
        let list: Vec<Span> = list.expect("a list").collect();
        assert_eq!(list, [span(0, 4, 0), span(4, 16, 16)]);
    }
}

#[test]
fn what_contradicts_itself_is_no_table() {
    for magic in MAGICS {
        let good = written(magic, 0x40_0000);
        let words = if magic == MAGICS[0] { 7 } else { 8 };
        let refused = |bytes: &[u8], code: u64, why: &str| {
            let headers = headers_of(bytes, code);
            assert!(tables(bytes, &headers).is_none(), "{magic:#x}: {why}");
        };
        refused(&good, 0x80_0000, "the code is elsewhere");
        let with = |word: usize, value: u64| {
            let mut bytes = good.clone();
            bytes[8 + word * 8..16 + word * 8].copy_from_slice(&value.to_le_bytes());
            bytes
        };
        refused(&with(0, 0), 0x40_0000, "no function");
        refused(&with(0, 1 << 40), 0x40_0000, "too many functions");
        refused(&with(0, 1000), 0x40_0000, "functions that do not fit");
        refused(&with(words - 1, 0), 0x40_0000, "parts out of order");
        refused(
            &with(words - 1, u64::MAX),
            0x40_0000,
            "parts behind the end",
        );
        refused(&good[..good.len() / 2], 0x40_0000, "a file that ends early");
        for byte in [4, 6, 7] {
            let mut bytes = good.clone();
            bytes[byte] ^= 4;
            refused(&bytes, 0x40_0000, "another architecture");
        }
    }
}

/// A table of `count` functions of one byte each, with values of its own for each.
fn many(count: u32) -> Vec<u8> {
    let mut bytes = written(MAGICS[2], 0x40_0000);
    let part = |bytes: &[u8], word: usize| u64_at(bytes, 8 + word * 8).expect("a part") as usize;
    let at = part(&bytes, 7);
    bytes[8..16].copy_from_slice(&u64::from(count).to_le_bytes());
    bytes.truncate(at);
    // The list, then 44 bytes of each function.
    let list = count * 8 + 4;
    for number in 0..count {
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.extend_from_slice(&(list + number * 44).to_le_bytes());
    }
    bytes.extend_from_slice(&count.to_le_bytes());
    for number in 0..count {
        let words = [
            number,
            0,
            0,
            0,
            number.wrapping_mul(0x9e37_79b9),
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

#[test]
fn a_table_of_many_functions_stays_within_its_budget() {
    let bytes = many(60_000);
    let mut headers = headers_of(&bytes, 0x40_0000);
    headers.segments[0].memory_size = 1 << 20;
    let budget = FileBudget::new(4 << 20, Duration::from_secs(20));
    let found = find(&bytes[..], &headers, &budget).expect("within the budget");
    let found = found.expect("a table that makes sense");
    let all = symbols(&bytes[..], &found, &budget).expect("within the budget");
    assert_eq!(all.map(|all| all.len()), Some(60_000));
    assert!(budget.most_held() <= 4 << 20);
    let budget = FileBudget::new(512 << 10, Duration::from_secs(20));
    let refused = symbols(&bytes[..], &found, &budget).expect_err("sixteen bytes for each");
    assert!(refused.is_over_budget());
}

/// Where a function of this name is.
fn function(image: &File, found: &GoTables, wanted: &str) -> Function {
    let budget = FileBudget::default();
    let table = symbols(image, found, &budget)
        .expect("sound")
        .expect("functions");
    let (mut own, mut hint) = (None, 0);
    let each = found.each(image, &budget, |function: &Function| {
        let index = table.find(function.start, &mut hint).expect("itself");
        if table.name(image, index).expect("a name") == wanted.as_bytes() {
            own = Some(*function);
        }
        Ok::<(), Over>(())
    });
    each.expect("within the budget");
    own.expect(wanted)
}

#[test]
fn lines_are_those_of_the_source() {
    let text = std::fs::read_to_string(testkit::workload::source("orders.go"));
    let text = text.expect("the source");
    let line = |start: &str| text.lines().position(|line| line.starts_with(start));
    for how in Build::ALL {
        let Some((image, headers)) = program(how) else {
            return;
        };
        let budget = FileBudget::default();
        let found = tables(&image, &headers).expect("tables");
        let source = Source::new(&image, &headers, found, false, &budget);
        let source = source.expect("within the budget");
        for (name, start) in [
            ("main.serve", "func serve("),
            ("main.main", "func main()"),
            ("main.nested", "func nested("),
        ] {
            let own = function(&image, &found, name);
            let calls = source
                .calls(&image, own.start, &budget)
                .expect("within the budget");
            let [call] = &calls[..] else {
                panic!("{how:?}: {name}: {calls:?}");
            };
            assert!(call.file.ends_with("orders.go"), "{call:?}");
            let expected = line(start).expect("a function") as u32 + 1;
            assert_eq!((&*call.function, call.line), (name, expected), "{how:?}");
            let start_line = match found.layout {
                Layout::StartLines => expected,
                _ => 0,
            };
            assert_eq!(call.start_line, start_line, "{how:?}: {name}");
        }
        assert_eq!(source.calls(&image, 8, &budget), Ok(Vec::new()), "no code");
    }
}

#[test]
fn inlined_calls_stand_above_what_they_were_inlined_into() {
    let text = std::fs::read_to_string(testkit::workload::source("orders.go"));
    let text = text.expect("the source");
    let line = |start: &str| {
        1 + text
            .lines()
            .position(|line| line.starts_with(start))
            .expect(start)
    };
    let starts =
        ["func (l *Ledger) Post(", "func fee(", "func rounded("].map(|start| line(start) as u32);
    for how in Build::ALL {
        let Some((image, headers)) = program(how) else {
            return;
        };
        let budget = FileBudget::default();
        let found = tables(&image, &headers).expect("tables");
        let source = Source::new(&image, &headers, found, true, &budget);
        let source = source.expect("within the budget");
        let own = function(&image, &found, "main.(*Ledger).Post");
        let mut seen = Vec::new();
        for address in own.start..own.end {
            let calls = source
                .calls(&image, address, &budget)
                .expect("within the budget");
            assert_eq!(calls[0].function, "main.(*Ledger).Post");
            let names: Vec<String> = calls.iter().map(|call| call.function.clone()).collect();
            let starts: &[u32] = match found.layout {
                Layout::StartLines => &starts,
                _ => &[0; 3],
            };
            let whole = calls.iter().zip(starts).all(|(call, &start_line)| {
                call.line > 0 && call.file.ends_with("orders.go") && call.start_line == start_line
            });
            seen.push((names.join(" "), whole));
        }
        for expected in [
            "main.(*Ledger).Post main.fee",
            "main.(*Ledger).Post main.fee main.rounded",
        ] {
            let is = |(names, whole): &(String, bool)| names == expected && *whole;
            assert!(seen.iter().any(is), "{how:?}: {expected}: {seen:?}");
        }
    }
}

/// A table of the function `f`, which starts at line 7. Its first four bytes are of line 8; the
/// rest is of line 21 of `g`, which starts at line 20 and was inlined there. Behind the table is
/// the tree.
fn with_inlined() -> (Vec<u8>, Part) {
    let mut bytes = written(MAGICS[2], 0x40_0000);
    let values = u64_at(&bytes, 8 + 6 * 8).expect("a part") as usize;
    bytes[values - 8..values].copy_from_slice(b"f\0g\0\0\0\0\0");
    // Depths, then at 8 numbers of inlined calls, at 13 lines.
    let lists = [
        0, 2, 4, 32, 12, 0, 0, 0, 0, 4, 2, 12, 0, 18, 4, 26, 12, 0, 0, 0, 0, 0, 0, 0,
    ];
    bytes.truncate(values);
    bytes.extend_from_slice(&lists);
    let functions = bytes.len() as u64;
    bytes[8 + 7 * 8..16 + 7 * 8].copy_from_slice(&functions.to_le_bytes());
    // The list of functions, and its padding.
    let mut words = vec![0, 16, 16, 0];
    // Entry, name, arguments, defers, depths, files, lines, number of further lists, unit, start.
    words.extend([0, 0, 0, 0, 1, 0, 13, 3, 0, 7]);
    words.push(u32::from_le_bytes([0, 0, 0, 4]));
    // Further lists, then data, of which the last is where the tree is.
    words.extend([0, 0, 8, u32::MAX, u32::MAX, u32::MAX, 0]);
    // The tree: function, name, instruction of the caller, start.
    let tree = words.len() as u64 * 4;
    words.extend([0, 2, 2, 20]);
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    let trees = Part {
        at: functions + tree,
        len: 16,
    };
    (bytes, trees)
}

#[test]
fn a_first_line_is_of_the_function_that_the_line_is_of() {
    let (bytes, trees) = with_inlined();
    let headers = headers_of(&bytes, 0x40_0000);
    let found = tables(&bytes[..], &headers).expect("tables");
    let budget = FileBudget::default();
    let mut source = Source::new(&bytes[..], &headers, found, false, &budget).expect("sound");
    let lines = |source: &Source, address| {
        let calls = source.calls(&bytes[..], address, &budget).expect("sound");
        let calls = calls.into_iter();
        calls
            .map(|call| (call.function, call.line, call.start_line))
            .collect::<Vec<_>>()
    };
    let named = |name: &str, line, start_line| (name.to_owned(), line, start_line);
    assert_eq!(lines(&source, 0x40_0000), [named("f", 8, 7)]);
    // Which function line 21 is of is not known.
    assert_eq!(lines(&source, 0x40_0004), [named("f", 21, 0)]);
    assert!(!source.has_start_lines());
    source.trees = Some(trees);
    let both = [named("f", 8, 7), named("g", 21, 20)];
    assert_eq!(lines(&source, 0x40_0004), both);
    assert!(source.has_start_lines());
    // A tree that ends early.
    source.trees = Some(Part { len: 8, ..trees });
    assert_eq!(lines(&source, 0x40_0004), [named("f", 21, 0)]);
}
