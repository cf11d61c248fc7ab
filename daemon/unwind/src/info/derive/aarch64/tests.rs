//! Tests the rows derived from code as compilers and people write it, given as instructions.

use super::*;
use crate::arch::a64::Effect;

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// What is derived of code that starts with a function: a line for each run, as place, register
/// that the CFA is counted from and distance, and where return address and frame pointer are saved.
fn derived_from(words: &[u32], entry: Option<u32>) -> Vec<String> {
    let (bytes, mut check) = (bytes(words), || true);
    let code = Code::new(&bytes, 0x1000, &mut check).expect("an aligned address");
    let Derived { runs, frames } = derive(code, entry, &[0]);
    let lines = runs.iter().map(|run| {
        let frame = &frames[usize::from(run.frame)];
        let base = match (frame.outermost, frame.sp, frame.fp) {
            (true, ..) => "outermost".to_owned(),
            (false, Some(sp), _) => format!("sp+{sp}"),
            (false, None, Some(fp)) => format!("fp+{fp}"),
            (false, None, None) => "lost".to_owned(),
        };
        let place = |name: &str, value| match value {
            Value::At(at) => format!(" {name} at cfa-{at}"),
            Value::Same => String::new(),
            Value::Lost => format!(" {name} lost"),
        };
        let (lr, fp) = (frame.returns(), frame.frame_pointer());
        format!(
            "{} {base}{}{}",
            run.start / explore::WORD_BYTES,
            place("lr", lr),
            place("fp", fp)
        )
    });
    lines.collect()
}

fn derived(words: &[u32]) -> Vec<String> {
    derived_from(words, None)
}

const RET: u32 = 0xd65f_03c0;
const NOP: u32 = 0xd503_201f;
/// stp x29, x30, [sp, #-32]!
const PUSH: u32 = 0xa9be_7bfd;
/// mov x29, sp
const POINT: u32 = 0x9100_03fd;
/// ldp x29, x30, [sp], #32
const POP: u32 = 0xa8c2_7bfd;
/// blr x3
const CALL: u32 = 0xd63f_0060;
/// brk #0
const BREAK: u32 = 0xd420_0000;

fn branch_to(distance: i32) -> u32 {
    0x1400_0000 | distance.cast_unsigned() & 0x03ff_ffff
}

fn call_to(distance: i32) -> u32 {
    branch_to(distance) | 0x8000_0000
}

#[test]
fn a_function_that_calls_nobody_has_its_return_address_in_the_link_register() {
    // add x0, x0, x1; ret
    assert_eq!(derived(&[0x8b01_0000, RET]), ["0 sp+0"]);
}

#[test]
fn saved_registers_are_found_from_the_first_instruction_to_the_last() {
    assert_eq!(
        derived(&[PUSH, POINT, CALL, POP, RET]),
        [
            "0 sp+0",
            "1 sp+32 lr at cfa-24 fp at cfa-32",
            "2 sp+32 lr at cfa-24 fp at cfa-32",
            "4 sp+0",
        ]
    );
}

#[test]
fn where_the_stack_pointer_is_not_known_the_frame_pointer_leads_to_the_cfa() {
    // sub sp, sp, x1; …; mov sp, x29
    let code = [PUSH, POINT, 0xcb21_63ff, CALL, 0x9100_03bf, POP, RET];
    let lines = derived(&code);
    assert_eq!(lines[3], "3 fp+32 lr at cfa-24 fp at cfa-32");
    assert_eq!(lines.last().map(String::as_str), Some("6 sp+0"));
}

#[test]
fn a_large_frame_is_taken_by_a_number_in_a_register() {
    // mov x12, #0x1010; sub sp, sp, x12; stp x29, x30, [sp]; …; add sp, sp, x12 is written as
    // add sp, sp, #1, lsl #12; add sp, sp, #16
    let code = [
        0xd282_020c,
        0xcb2c_63ff,
        0xa900_7bfd,
        CALL,
        0xa940_7bfd,
        0x9140_07ff,
        0x9100_43ff,
        RET,
    ];
    let lines = derived(&code);
    assert!(lines.contains(&"3 sp+4112 lr at cfa-4104 fp at cfa-4112".to_owned()));
    assert_eq!(lines.last().map(String::as_str), Some("7 sp+0"));
}

#[test]
fn what_lies_behind_a_call_that_does_not_return_is_another_function() {
    // The second is called by nobody, and saves what is saved already.
    let code = [PUSH, POINT, CALL, PUSH, POINT, CALL, POP, RET];
    let lines = derived(&code);
    assert!(lines.contains(&"3 sp+0".to_owned()), "{lines:?}");
    assert!(lines.contains(&"7 sp+0".to_owned()), "{lines:?}");
}

#[test]
fn a_function_that_goes_on_as_another_leaves_everything_as_it_was() {
    // b to the second function, which the third calls
    let code = [
        PUSH,
        CALL,
        POP,
        branch_to(2),
        BREAK,
        RET,
        PUSH,
        call_to(-2),
        POP,
        RET,
    ];
    let lines = derived(&code);
    assert!(lines.contains(&"3 sp+0".to_owned()), "{lines:?}");
    // With a frame it contradicts itself.
    let left = [
        PUSH,
        CALL,
        NOP,
        branch_to(2),
        BREAK,
        RET,
        PUSH,
        call_to(-2),
        POP,
        RET,
    ];
    assert!(
        !derived(&left).iter().any(|line| line.starts_with("2 ")),
        "{:?}",
        derived(&left)
    );
}

#[test]
fn the_cases_of_a_switch_have_the_frame_of_its_jump() {
    // br x1; then a case that nothing leads to, which jumps back to what the first part has.
    let code = [
        PUSH,
        POINT,
        // cbz x0, +3
        0xb400_0060,
        // br x1
        0xd61f_0020,
        BREAK,
        POP,
        RET,
        NOP,
        // add x0, x0, x1
        0x8b01_0000,
        branch_to(-4),
    ];
    assert_eq!(
        derived(&code).last().map(String::as_str),
        Some("8 sp+32 lr at cfa-24 fp at cfa-32")
    );
}

#[test]
fn nobody_calls_where_the_kernel_enters() {
    // mov x29, #0; mov x30, #0; mov x0, sp; bl +2; brk
    let code = [
        0xd280_001d,
        0xd280_001e,
        0x9100_03e0,
        call_to(2),
        BREAK,
        RET,
    ];
    let lines = derived_from(&code, Some(0));
    assert!(lines[0].starts_with("0 outermost"), "{lines:?}");
}

#[test]
fn a_return_address_that_was_overwritten_is_nowhere() {
    // blr x3 without saving it first: what comes back there does not return.
    let lines = derived(&[CALL, NOP, BREAK]);
    assert_eq!(lines, ["0 sp+0", "1 sp+0 lr lost"]);
    let mut frame = Frame::ENTERED;
    frame.step(Word(CALL));
    assert_eq!(kind(&frame), Kind::Nothing);
}

#[test]
fn main_is_what_the_first_call_is_given() {
    // adrp x0, +1 page; add x0, x0, #0x34; bl
    let code = bytes(&[0xb000_0000, 0x9100_d000, call_to(4)]);
    assert_eq!(first_argument(&code, 0x40_0000), Some(0x40_1034));
    // bl; adrp x0; add x0
    let late = bytes(&[call_to(4), 0xb000_0000, 0x9100_d000]);
    assert_eq!(first_argument(&late, 0x40_0000), None);
}

#[test]
fn instructions_that_write_a_register_are_told_from_those_that_read_it() {
    let effect = |word| Word(word).effect();
    // ldr x19, [x0]; str x19, [x0]; cmp x19, #1; ccmp x19, #1, #3, eq; mov x19, x0; fmov x19, d0
    assert!(matches!(effect(0xf940_0013), Effect::Load { .. }));
    assert!(matches!(effect(0xf900_0013), Effect::Store(..)));
    assert_eq!(effect(0xf100_067f), Effect::None);
    assert_eq!(effect(0xfa41_0a63), Effect::None);
    assert_eq!(effect(0xaa00_03f3), Effect::Write(19));
    assert_eq!(effect(0x9e66_0013), Effect::Write(19));
    // ldxr w19, [x0]; stxr w19, w1, [x0]; ldar x19, [x0]; stlr x19, [x0]
    assert_eq!(effect(0x885f_7c13), Effect::Write(19));
    assert_eq!(effect(0x8813_7c01), Effect::Write(19));
    assert_eq!(effect(0xc8df_fc13), Effect::Write(19));
    assert_eq!(effect(0xc89f_fc13), Effect::None);
}

proptest::proptest! {
    #[test]
    fn any_code_is_followed_in_bounded_work(
        words in proptest::collection::vec(proptest::num::u32::ANY, 0..200),
        entry in 0u32..200,
    ) {
        let bytes = bytes(&words);
        let mut looks = 0;
        let mut check = || { looks += 1; looks < 100 };
        let code = Code::new(&bytes, 0x1000, &mut check).expect("an aligned address");
        let entry = (entry < words.len() as u32).then_some(entry);
        let Derived { runs, frames } = derive(code, entry, &[]);
        let mut end = 0;
        for run in runs {
            proptest::prop_assert!(end <= run.start && run.start < run.end);
            proptest::prop_assert!(usize::from(run.frame) < frames.len());
            let _ = kind(&frames[usize::from(run.frame)]);
            end = run.end;
        }
    }
}
