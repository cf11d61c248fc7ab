//! What profiles and messages say they hold in memory is what the allocator gave them, for shapes
//! that a hostile sender would choose.
//!
//! The only test of its program, because the allocator counts for all threads.

use prost::Message;
use proto::{ProfileAssembler, chunk_heap_bytes, wire};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Rows of each shape: a message of some hundred KiB.
const ROWS: u32 = 100_000;

/// How much less than what the allocator gave may be said. Unit: of it. What is not counted are
/// heads of tables.
const SLACK: f64 = 0.01;

/// A first chunk with this in it.
fn first(chunk: wire::ProfileChunk) -> wire::ProfileChunk {
    let mut strings = vec![String::new()];
    strings.extend(chunk.strings);
    wire::ProfileChunk {
        info: Some(wire::Info::default()),
        strings,
        last: true,
        ..chunk
    }
}

/// Messages of many small rows of one kind, and of all.
fn shapes() -> Vec<(&'static str, wire::ProfileChunk)> {
    let none = wire::ProfileChunk::default;
    let ids = || (1..=ROWS).collect::<Vec<_>>();
    let ones = |rows| vec![1; rows as usize];
    let frame = |line| wire::Frame {
        line,
        ..wire::Frame::default()
    };
    vec![
        (
            "empty strings",
            wire::ProfileChunk {
                strings: vec![String::new(); ROWS as usize],
                ..none()
            },
        ),
        (
            "strings",
            wire::ProfileChunk {
                strings: ids().iter().map(u32::to_string).collect(),
                ..none()
            },
        ),
        (
            "equal frames",
            wire::ProfileChunk {
                frames: vec![frame(0); ROWS as usize],
                ..none()
            },
        ),
        (
            "frames",
            wire::ProfileChunk {
                frames: ids().into_iter().map(frame).collect(),
                ..none()
            },
        ),
        (
            "stacks and samples",
            wire::ProfileChunk {
                frames: ids().into_iter().map(frame).collect(),
                stack_parents: vec![0; ROWS as usize],
                stack_frames: (0..ROWS).collect(),
                sample_label_sets: vec![0; ROWS as usize],
                sample_stacks: ids(),
                sample_ends: vec![0; ROWS as usize],
                sample_counts: vec![1; ROWS as usize],
                sample_weights: vec![1; ROWS as usize],
                ..none()
            },
        ),
        (
            "empty label sets",
            wire::ProfileChunk {
                label_sets: vec![wire::LabelSet::default(); ROWS as usize],
                ..none()
            },
        ),
        (
            "timestamps",
            wire::ProfileChunk {
                timestamp_deltas_ns: vec![1; ROWS as usize],
                timestamp_label_sets: vec![0; ROWS as usize],
                timestamp_stacks: vec![0; ROWS as usize],
                timestamp_ends: ones(ROWS),
                timestamp_weights: vec![1; ROWS as usize],
                ..none()
            },
        ),
    ]
}

fn held(region: &Region<'_, System>) -> f64 {
    let change = region.change();
    change.bytes_allocated as f64 - change.bytes_deallocated as f64
}

#[test]
fn what_is_held_is_what_is_counted() {
    for (shape, chunk) in shapes() {
        let encoded = first(chunk).encode_to_vec();
        let region = Region::new(ALLOCATOR);
        let message = wire::ProfileChunk::decode(&encoded[..]).unwrap();
        let (given, said) = (held(&region), chunk_heap_bytes(&message) as f64);
        println!(
            "{shape}: {} bytes encoded, {given} as a message",
            encoded.len()
        );
        assert!(
            said >= given * (1.0 - SLACK) && said <= given * (1.0 + SLACK),
            "message of {shape}: {said} said, {given} given"
        );
        let mut assembler = ProfileAssembler::new();
        let region = Region::new(ALLOCATOR);
        // The message is given back with this.
        let before = held(&region);
        assembler.push(message).unwrap();
        let (given, said) = (
            held(&region) - before + given,
            assembler.heap_bytes() as f64,
        );
        println!("{shape}: {given} as a profile");
        assert!(
            said >= given * (1.0 - SLACK) && said <= given * (1.0 + SLACK) + 4096.0,
            "profile of {shape}: {said} said, {given} given"
        );
        let profile = assembler.finish().unwrap();
        assert!(profile.heap_bytes() as f64 <= said);
    }
}
