//! Tests that Go's compiler finds calls in pprof, by the rules of its reader.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use flate2::read::GzDecoder;
use profile::formats::pprof::{self, GoPgo, messages};
use profile::{FrameKind, FrameRef, Profile, SampleKey, StackEnd, Value};
use prost::Message;
use std::collections::BTreeMap;
use std::io::Read;
use support::info;

fn frame(kind: FrameKind, function: &str, line: u32, start_line: u32) -> FrameRef<'_> {
    FrameRef {
        kind,
        function,
        module: "shop",
        file: "/src/shop/main.go",
        line,
        start_line,
        ..FrameRef::default()
    }
}

/// `main.work`, which starts at line 10, calls `main.sum` at 12 and, through the inlined
/// `main.each` of line 30, `main.hash` at 33. C code without lines calls nothing.
fn shop() -> Profile {
    use FrameKind::{Inlined, Native};
    let mut profile = Profile {
        info: info(),
        ..Profile::default()
    };
    let main = frame(Native, "main.main", 5, 3);
    let stacks = [
        (
            vec![
                main,
                frame(Native, "main.work", 12, 10),
                frame(Native, "main.sum", 51, 50),
            ],
            7,
        ),
        (
            vec![
                main,
                frame(Native, "main.work", 12, 10),
                frame(Native, "main.sum", 54, 50),
            ],
            3,
        ),
        (
            vec![
                main,
                frame(Native, "main.work", 14, 10),
                frame(Inlined, "main.each", 33, 30),
                frame(Native, "main.hash", 71, 70),
            ],
            4,
        ),
        (vec![frame(Native, "compress", 0, 0)], 2),
    ];
    for (frames, count) in stacks {
        let frames: Vec<_> = frames
            .into_iter()
            .map(|frame| profile.dict.intern_frame(frame))
            .collect();
        let stack = profile.dict.stacks.intern(frames);
        let key = SampleKey {
            labels: Default::default(),
            stack,
            end: StackEnd::Complete,
        };
        let weight = count * profile.info.period;
        profile.add(key, Value { count, weight });
    }
    profile.info.quality.taken = profile.total().count;
    profile
}

fn written(profile: &Profile) -> messages::Profile {
    let mut packed = Vec::new();
    pprof::write(profile, &mut packed).unwrap();
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    messages::Profile::decode(&bytes[..]).unwrap()
}

/// What `cmd/internal/pgo` of Go takes: the weight of each call by caller, distance of the line
/// from its start, and callee, of the last two locations of each stack. `None` where it refuses the
/// file.
fn calls(profile: &messages::Profile) -> Option<BTreeMap<(String, i64, String), i64>> {
    let text = |at: i64| &profile.string_table[at as usize];
    // It looks for this type, or for that of weights.
    let types = profile.sample_type.iter();
    let mut names = types.map(|of| (text(of.r#type).as_str(), text(of.unit).as_str()));
    let value =
        names.position(|of| [("samples", "count"), ("cpu", "nanoseconds")].contains(&of))?;
    let location = |id: &u64| profile.location.iter().find(|one| one.id == *id).unwrap();
    let function = |id: u64| profile.function.iter().find(|one| one.id == id).unwrap();
    let (mut found, mut has_start_lines) = (BTreeMap::new(), false);
    for sample in &profile.sample {
        let mut caller: Option<(String, i64)> = None;
        for id in sample.location_id.iter().take(2).rev() {
            for line in location(id).line.iter().rev() {
                let function = function(line.function_id);
                has_start_lines |= function.start_line != 0;
                let name = text(function.name).clone();
                if let Some((caller, at)) = caller {
                    *found.entry((caller, at, name.clone())).or_default() += sample.value[value];
                }
                caller = Some((name, line.line - function.start_line));
            }
        }
    }
    has_start_lines.then_some(found)
}

fn call(caller: &str, at: i64, callee: &str, count: i64) -> ((String, i64, String), i64) {
    ((caller.to_owned(), at, callee.to_owned()), count)
}

#[test]
fn calls_are_told_by_their_distance_from_the_first_line_of_the_caller() {
    let found = calls(&written(&shop())).unwrap();
    let expected = [
        call("main.work", 2, "main.sum", 10),
        call("main.work", 4, "main.each", 4),
        call("main.each", 3, "main.hash", 4),
    ];
    assert_eq!(found, BTreeMap::from(expected));
}

#[test]
fn first_lines_come_back() {
    let mut bytes = Vec::new();
    pprof::write(&shop(), &mut bytes).unwrap();
    let back = pprof::decode(&bytes, pprof::DECODE_BYTES_MAX).unwrap();
    assert_eq!(calls(&written(&back)), calls(&written(&shop())));
    assert_eq!(written(&back), written(&shop()));
}

#[test]
fn a_file_says_how_many_functions_have_a_first_line() {
    let message = written(&shop());
    let comments = message.comment.iter();
    let comments: Vec<_> = comments
        .map(|&at| message.string_table[at as usize].as_str())
        .collect();
    let told = "fleetprof first_lines: known of 5 of 6 functions";
    assert!(comments.contains(&told), "{comments:?}");
}

#[test]
fn what_the_compiler_does_not_read_may_be_left_out() {
    let all = calls(&written(&shop()));
    let asked = GoPgo {
        keep_locations: 2,
        aggregate_callees: true,
    };
    let kept = asked.of(&shop()).unwrap();
    assert_eq!(kept.total(), shop().total());
    // Both lines of `main.sum` are one, and nobody calls `main.work`.
    assert_eq!((shop().samples.len(), kept.samples.len()), (4, 3));
    let message = written(&kept);
    assert!(!message.string_table.iter().any(|text| text == "main.main"));
    assert_eq!(calls(&message), all);
    let everything = GoPgo::default().of(&shop()).unwrap();
    assert_eq!(written(&everything), written(&shop()));
}

#[test]
fn a_profile_without_first_lines_is_none_for_the_compiler() {
    let plain = support::from_lines("comm=a main;work 3\n");
    assert_eq!(calls(&written(&plain)), None);
    assert!(GoPgo::default().of(&plain).is_none());
    // One without samples is taken, and changes nothing.
    assert!(GoPgo::default().of(&Profile::default()).is_some());
}
