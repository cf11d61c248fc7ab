//! Tests the rows derived from code as compilers and people write it, given as bytes.

use super::runs::Run;
use super::*;
use crate::info::compare::compare;
use std::fs::File;

/// What is derived of code: a line for each run, as place, register that the CFA is counted from
/// and distance, and where the frame pointer was saved.
fn derived(code: &[u8]) -> Vec<String> {
    let mut check = || true;
    let code = Code::new(code, 0x1000, &mut check);
    let Derived { runs, frames } = derive(code, None, &[0]).expect("time");
    let line = |run: &Run| {
        let frame = &frames[usize::from(run.frame)];
        let base = match frame {
            Frame {
                outermost: true, ..
            } => "outermost".to_owned(),
            Frame { sp: Some(sp), .. } => format!("rsp+{sp}"),
            Frame { fp: Some(fp), .. } => format!("rbp+{fp}"),
            Frame {
                other: Some((register, distance)),
                ..
            } => format!("{register:?}+{distance}").to_lowercase(),
            _ => "lost".to_owned(),
        };
        let saved = match frame.saved()[1].1 {
            Value::At(at) => format!(" rbp at cfa-{at}"),
            Value::Same => String::new(),
            Value::Lost => " rbp lost".to_owned(),
        };
        format!("{:#x} {base}{saved}", run.start)
    };
    runs.iter().map(line).collect()
}

#[test]
fn what_is_pushed_and_taken_moves_the_stack_pointer_away_from_the_cfa() {
    // push rbp; push rbx; sub rsp, 24; call [rax]; add rsp, 24; pop rbx; pop rbp; ret
    let code = [
        0x55, 0x53, 0x48, 0x83, 0xec, 0x18, 0xff, 0x10, 0x48, 0x83, 0xc4, 0x18, 0x5b, 0x5d, 0xc3,
    ];
    assert_eq!(
        derived(&code),
        [
            "0x0 rsp+8",
            "0x1 rsp+16 rbp at cfa-16",
            "0x2 rsp+24 rbp at cfa-16",
            "0x6 rsp+48 rbp at cfa-16",
            "0xc rsp+24 rbp at cfa-16",
            "0xd rsp+16 rbp at cfa-16",
            "0xe rsp+8",
        ]
    );
}

#[test]
fn where_the_stack_pointer_is_not_known_the_frame_pointer_leads_to_the_cfa() {
    // push rbp; mov rbp, rsp; sub rsp, rdi; call [rax]; leave; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x29, 0xfc, 0xff, 0x10, 0xc9, 0xc3,
    ];
    assert_eq!(
        derived(&code),
        [
            "0x0 rsp+8",
            "0x1 rsp+16 rbp at cfa-16",
            "0x4 rsp+16 rbp at cfa-16",
            "0x7 rbp+16 rbp at cfa-16",
            "0xa rsp+8",
        ]
    );
}

#[test]
fn where_a_stack_is_realigned_the_register_that_kept_it_leads_to_the_cfa() {
    // mov rax, rsp; and rsp, -32; sub rsp, 64; vzeroupper; mov rsp, rax; ret
    let code = [
        0x48, 0x89, 0xe0, 0x48, 0x83, 0xe4, 0xe0, 0x48, 0x83, 0xec, 0x40, 0xc5, 0xf8, 0x77, 0x48,
        0x89, 0xc4, 0xc3,
    ];
    assert_eq!(
        derived(&code),
        ["0x0 rsp+8", "0x3 rsp+8", "0x7 rax+8", "0x11 rsp+8"]
    );
}

#[test]
fn a_large_frame_that_is_touched_page_by_page_is_as_large_as_it_was_compared_with() {
    // lea r11, [rsp-0x8000]; 1: sub rsp, 0x1000; or qword [rsp], 0; cmp rsp, r11; jne 1b;
    // sub rsp, 8; add rsp, 0x8008; ret
    let code = [
        0x4c, 0x8d, 0x9c, 0x24, 0x00, 0x80, 0xff, 0xff, 0x48, 0x81, 0xec, 0x00, 0x10, 0x00, 0x00,
        0x48, 0x83, 0x0c, 0x24, 0x00, 0x4c, 0x39, 0xdc, 0x75, 0xef, 0x48, 0x83, 0xec, 0x08, 0x48,
        0x81, 0xc4, 0x08, 0x80, 0x00, 0x00, 0xc3,
    ];
    assert_eq!(
        derived(&code),
        [
            "0x0 rsp+8",
            "0x8 r11+32776",
            "0x19 rsp+32776",
            "0x1d rsp+32784",
            "0x24 rsp+8",
        ]
    );
}

#[test]
fn behind_the_call_of_a_function_that_never_returns_another_starts() {
    // 0: push rax; call 0x10; nop...; 0x10: hlt; int3...; 0x20: push rbx; pop rbx; ret
    let mut code = [0xcc; 0x23];
    code[..6].copy_from_slice(&[0x50, 0xe8, 0x0a, 0x00, 0x00, 0x00]);
    code[0x06..0x10].fill(0x90);
    code[0x10] = 0xf4;
    code[0x20..].copy_from_slice(&[0x53, 0x5b, 0xc3]);
    assert_eq!(
        derived(&code),
        [
            "0x0 rsp+8",
            "0x1 rsp+16",
            "0x10 rsp+8",
            "0x20 rsp+8",
            "0x21 rsp+16",
            "0x22 rsp+8",
        ]
    );
}

#[test]
fn what_a_computed_jump_leads_to_has_the_frame_of_the_jump() {
    // push rbx; jmp rax; mov eax, 1; pop rbx; ret
    let code = [0x53, 0xff, 0xe0, 0xb8, 0x01, 0x00, 0x00, 0x00, 0x5b, 0xc3];
    assert_eq!(derived(&code), ["0x0 rsp+8", "0x1 rsp+16", "0x9 rsp+8"]);
}

#[test]
fn a_frame_pointer_of_zero_says_that_nobody_called() {
    // xor ebp, ebp; mov rdi, rsp; and rsp, -16; call [rax]; hlt
    let code = [
        0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x83, 0xe4, 0xf0, 0xff, 0x10, 0xf4,
    ];
    let derived = derived(&code);
    assert_eq!(derived[0], "0x0 rsp+8");
    assert!(
        derived[1..].iter().all(|run| run.contains("outermost")),
        "{derived:?}"
    );
}

#[test]
fn nobody_called_what_the_kernel_enters() {
    // pop rsi; call [rax]; ret
    let mut check = || true;
    let code = Code::new(&[0x5e, 0xff, 0x10, 0xc3], 0x1000, &mut check);
    let derived = derive(code, Some(0), &[]).expect("time");
    assert!(!derived.runs.is_empty());
    assert!(derived.frames.iter().all(|frame| frame.outermost));
}

#[test]
fn code_that_contradicts_itself_has_no_rows() {
    // jz over; push rax; over: ret
    assert_eq!(derived(&[0x74, 0x01, 0x50, 0xc3]), [] as [&str; 0]);
}

#[test]
fn rows_of_the_c_library_are_those_that_its_compiler_wrote() {
    const LIBRARIES: [&str; 2] = [
        "/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/libc.so.6",
    ];
    for path in LIBRARIES {
        let Ok(image) = File::open(path) else {
            continue; // Another C library.
        };
        let budget = FileBudget::new(1 << 30, std::time::Duration::from_secs(600));
        let found = compare(&image, &budget).expect("within the budget");
        let found = found.expect("unwind information");
        let (derived, right) = (found.derived as f64, found.right as f64);
        assert!(right >= 0.99 * derived, "{path}: {found:?}");
        assert!(derived >= 0.9 * found.described as f64, "{path}: {found:?}");
    }
}

#[test]
fn no_code_takes_more_than_its_share_of_work() {
    // Jumps into the middle of each other, calls of everything, and pushes without an end.
    let patterns: [&[u8]; 4] = [
        &[0x74, 0xeb],
        &[0xe8, 1, 0, 0],
        &[0x50],
        &[0x0f, 0x84, 3, 0, 0],
    ];
    for pattern in patterns {
        let code: Vec<u8> = pattern.iter().copied().cycle().take(1 << 18).collect();
        let mut checks = 0;
        let mut check = || {
            checks += 1;
            true
        };
        derive(Code::new(&code, 0x1000, &mut check), None, &[0]).expect("it may go on");
        assert!(checks <= (1 << 18) * 4 / 4096 + 1, "{pattern:?}: {checks}");
    }
}

#[test]
fn what_overlaps_or_is_described_is_no_piece_of_code() {
    let section = |address, size| symbolize::elf::Section {
        name: b".text"[..].into(),
        kind: 1,
        compressed: false,
        executable: true,
        address,
        offset: address,
        size,
        link: 0,
        entry_size: 0,
    };
    let headers = Headers {
        is_64: true,
        machine: 62,
        entry: 0,
        segments: Vec::new(),
        eh_frame_hdr: None,
        dynamic: None,
        go_note: false,
        sections: vec![
            section(0x1000, 0x1000),
            section(0x1000, 0x1000),
            section(0x1800, 0x1000),
            section(u64::MAX - 8, 0x1000),
            section(1 << 40, 0x1000),
        ],
        build_id: Box::default(),
    };
    let pieces = |tables: &[Table]| {
        let pieces = undescribed(&headers, tables, 0x1000).into_iter();
        let places = pieces.map(|piece| (piece.address, piece.len));
        places.collect::<Vec<_>>()
    };
    assert_eq!(pieces(&[]), [(0x1000, 0x1000)]);
    let mut builder = Builder::new();
    let number = builder.number(Kind::Rule(Rule::OUTERMOST));
    let rows = builder.keep(&[(0, number.expect("room"))]).expect("room");
    builder.add(0x100, 0x200, rows);
    builder.add(0x310, 0x10, rows);
    let budget = FileBudget::default();
    let packed = builder.finish(budget.charge(0).expect("room"));
    let table = Table::of(packed.expect("room"), 0x1000).expect("rows");
    assert_eq!(pieces(&[table]), [(0x1000, 0x100), (0x1320, 0xce0)]);
}

#[test]
fn it_stops_where_it_is_told_to() {
    let code = vec![0x90; 1 << 18];
    let mut check = || false;
    assert!(derive(Code::new(&code, 0x1000, &mut check), None, &[0]).is_none());
}

#[test]
fn main_is_what_the_code_at_the_kernels_entry_has_called() {
    // xor ebp, ebp; mov r9, rdx; pop rsi; mov rdx, rsp; and rsp, -16; push rax; push rsp
    let before = [
        0x31, 0xed, 0x49, 0x89, 0xd1, 0x5e, 0x48, 0x89, 0xe2, 0x48, 0x83, 0xe4, 0xf0, 0x50, 0x54,
    ];
    let with = |rest: &[u8]| first_argument(&[&before, rest].concat(), 0x40_1000);
    // mov rdi, 0x4ec478; call [rip + …]: what is linked to one place, as glibc has it.
    let fixed = [
        0x48, 0xc7, 0xc7, 0x78, 0xc4, 0x4e, 0x00, 0xff, 0x15, 0, 0, 0, 0, 0xf4,
    ];
    assert_eq!(with(&fixed), Some(0x4e_c478));
    // mov edi, 0x4ec478; call …
    assert_eq!(
        with(&[0xbf, 0x78, 0xc4, 0x4e, 0x00, 0xe8, 0, 0, 0, 0]),
        Some(0x4e_c478)
    );
    // lea rdi, [rip + 0x100]; call [rip + …]
    let moved = [0x48, 0x8d, 0x3d, 0x00, 0x01, 0, 0, 0xff, 0x15, 0, 0, 0, 0];
    assert_eq!(with(&moved), Some(0x40_1000 + 15 + 7 + 0x100));
}

#[test]
fn code_that_calls_nothing_or_hands_over_something_else_has_no_main() {
    // mov edi, 1; hlt
    assert_eq!(first_argument(&[0xbf, 1, 0, 0, 0, 0xf4], 0x1000), None);
    // mov edi, 1; mov rdi, rsp; call …, as the dynamic linker's own
    let own = [0xbf, 1, 0, 0, 0, 0x48, 0x89, 0xe7, 0xe8, 0, 0, 0, 0];
    assert_eq!(first_argument(&own, 0x1000), None);
    // jmp …
    assert_eq!(
        first_argument(&[0xbf, 1, 0, 0, 0, 0xeb, 0xfe], 0x1000),
        None
    );
    assert_eq!(first_argument(&[], 0x1000), None);
}
