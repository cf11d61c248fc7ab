//! Windows as agents send them, of one sample a stack, and their stacks.

use crate::numbering;
use profile::{ContentId, Dictionary, FrameRef};
use proto::collector as wire;

/// What the collector's clock says. Unit: nanoseconds.
pub const NOW: i64 = 1_700_000_000_000_000_000;

/// Unit: nanoseconds.
pub const SECOND: i64 = 1_000_000_000;

/// Stacks as a dictionary: `a;b` is `a` calling `b`.
pub fn dictionary(stacks: &[&str]) -> Dictionary {
    let mut dict = Dictionary::default();
    for stack in stacks {
        let frames: Vec<_> = stack
            .split(';')
            .map(|function| {
                dict.intern_frame(FrameRef {
                    function,
                    module: "app",
                    ..FrameRef::default()
                })
            })
            .collect();
        dict.stacks.intern(frames);
    }
    dict
}

/// The hash of a stack.
pub fn hash(stack: &str) -> ContentId {
    *dictionary(&[stack]).content_ids().last().expect("a stack")
}

/// Stacks as an answer to a Need.
pub fn tables(stacks: &[&str]) -> proto::wire::ProfileChunk {
    let profile = profile::Profile {
        dict: dictionary(stacks),
        ..profile::Profile::default()
    };
    let mut chunks = proto::Chunks::with_target(profile, usize::MAX);
    let mut chunk = chunks.next().expect("a chunk");
    chunk.info = None;
    chunk
}

/// Start of window `number` of an hour that ends at [`NOW`]. Unit: nanoseconds.
pub fn start(number: u64) -> i64 {
    NOW - 3600 * SECOND + number as i64 * 10 * SECOND
}

/// The sequence of window `number`.
pub fn sequence(number: u64) -> u64 {
    sequence_at(start(number))
}

/// The sequence of a window that starts then.
pub fn sequence_at(start_unix_ns: i64) -> u64 {
    numbering::sequence(0, start_unix_ns - NOW)
}

/// Window `number`, complete and with a dictionary of its own: one sample of each stack, in unit
/// `web.service`.
pub fn window(number: u64, stacks: &[&str]) -> wire::WindowPart {
    let ids = 1..=stacks.len() as u32;
    wire::WindowPart {
        sequence: sequence(number),
        last: true,
        new_dictionary: true,
        label_sets: vec![labels(&[
            ("cgroup", "/system.slice/web.service"),
            ("unit", "web.service"),
            ("host", "a lie"),
        ])],
        stack_hashes: stacks.iter().flat_map(|stack| hash(stack).0).collect(),
        sample_label_sets: vec![1; stacks.len()],
        sample_stacks: ids.collect(),
        sample_counts: vec![1; stacks.len()],
        facts: Some(facts(number)),
        ..wire::WindowPart::default()
    }
}

/// A label set.
pub fn labels(pairs: &[(&str, &str)]) -> wire::Labels {
    let pairs = pairs.iter().flat_map(|&(name, value)| [name, value]);
    wire::Labels {
        names_values: pairs.map(str::to_owned).collect(),
    }
}

/// Facts of window `number`, of ten seconds.
pub fn facts(number: u64) -> wire::WindowFacts {
    wire::WindowFacts {
        start_unix_ns: start(number),
        duration_ns: 10 * SECOND as u64,
        event: "cpu-clock".to_owned(),
        unit: "nanoseconds".to_owned(),
        period: 10,
        account_label_sets: vec![1],
        account_ns: vec![40],
        account_estimated_ns: vec![0],
        ..wire::WindowFacts::default()
    }
}

/// The same window at another time.
///
/// # Panics
/// When it is not complete.
pub fn starting(start_unix_ns: i64, mut part: wire::WindowPart) -> wire::WindowPart {
    part.sequence = sequence_at(start_unix_ns);
    part.facts.as_mut().expect("facts").start_unix_ns = start_unix_ns;
    part
}
