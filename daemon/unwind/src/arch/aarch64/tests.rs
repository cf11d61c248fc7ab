//! Tests what is specific to arm64.

use super::*;

#[test]
fn a_signed_address_leads_where_it_led_before_it_was_signed() {
    assert_eq!(code_address(0x0000_aaaa_1234_5678), 0x0000_aaaa_1234_5678);
    assert_eq!(code_address(0x00f5_aaaa_1234_5678), 0x0000_aaaa_1234_5678);
    assert_eq!(code_address(0xbf2a_ffff_8123_4560), 0x0000_ffff_8123_4560);
}

#[test]
fn the_way_to_the_dynamic_linker_pushes_and_no_other_entry_does() {
    let push = 0xa9bf_7bf0u32.to_le_bytes();
    let (bti, adrp) = (0xd503_245fu32.to_le_bytes(), 0x9000_0110u32.to_le_bytes());
    let first = |words: [[u8; 4]; 2]| {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&words[0]);
        bytes[4..].copy_from_slice(&words[1]);
        plt_pushes_at(&bytes)
    };
    assert_eq!(first([push, adrp]), Some(4));
    assert_eq!(first([bti, push]), Some(8));
    assert_eq!(first([adrp, adrp]), None);
    let pushed = [0, 4, 8, 28, 32, 36].map(|at| plt_pushed(at, Some(8), true));
    assert_eq!(pushed, [None, None, Some(8), Some(8), None, None]);
}

#[test]
fn a_frame_of_go_begins_with_its_return_address() {
    let frame = |cfa, returns_at, frame_pointer_at| GoFrame {
        cfa,
        returns_at,
        frame_pointer_at,
    };
    assert_eq!(go_frame(0, false), Some(frame(0, None, None)));
    assert_eq!(go_frame(32, false), Some(frame(32, Some(-4), Some(-5))));
    // What a signal struck has its return address between that frame and its own.
    assert_eq!(go_frame(32, true), Some(frame(48, Some(-6), Some(-7))));
}
