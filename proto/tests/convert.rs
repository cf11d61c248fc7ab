//! Profiles survive the wire, and damaged chunks are refused.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use profile::{
    ContentId, Coverage, Dictionary, FrameKind, FrameRef, Info, Profile, Quality, SampleKey,
    StackEnd, StackId, UnnamedReason, Value, Waits,
};
use proptest::prelude::*;
use prost::Message;
use proto::collector::{Definitions, Need};
use proto::convert::{
    AssembleError, CHUNK_BYTES_TARGET, Chunks, ProfileAssembler, STACK_DEPTH_MAX, STRING_BYTES_MAX,
};
use proto::{DefinedTables, Definer, TableAssembler, wire};
use std::collections::BTreeMap;

type OwnedFrame = (u8, u8, String, String, String, String, u32);
type OwnedSample = (Vec<(String, String)>, Vec<OwnedFrame>, u8, u64, u64);

fn build(samples: &[OwnedSample], info: Info) -> Profile {
    let mut profile = Profile {
        info,
        ..Profile::default()
    };
    for (labels, frames, end, count, weight) in samples {
        let labels = profile
            .dict
            .intern_labels(labels.iter().map(|(k, v)| (k.as_str(), v.as_str())));
        let mut stack = profile::StackId::EMPTY;
        for (kind, unnamed, function, system_name, module, file, line) in frames {
            let frame = profile.dict.intern_frame(FrameRef {
                kind: FrameKind::from_u8(*kind).unwrap(),
                unnamed: UnnamedReason::from_u8(*unnamed).unwrap(),
                function,
                system_name,
                module,
                file,
                line: *line,
                start_line: line / 2,
            });
            stack = profile.dict.stacks.child(stack, frame);
        }
        let end = StackEnd::from_u8(*end).unwrap();
        profile.add(
            SampleKey { labels, stack, end },
            Value {
                count: *count,
                weight: *weight,
            },
        );
    }
    profile
}

type Content = BTreeMap<(Vec<(String, String)>, Vec<String>, u8), (u64, u64)>;

/// The samples as text, whatever the ids.
fn content(profile: &Profile) -> Content {
    let mut all = BTreeMap::new();
    for (key, value) in &profile.samples {
        let mut labels: Vec<_> = profile
            .dict
            .labels(key.labels)
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        labels.sort();
        let frames = profile
            .dict
            .stacks
            .leaf_first(key.stack)
            .map(|id| format!("{:?}", profile.dict.frame(id)))
            .collect();
        let old = all.insert((labels, frames, key.end as u8), (value.count, value.weight));
        assert_eq!(old, None, "two keys with the same content");
    }
    all
}

fn assemble(
    chunks: impl IntoIterator<Item = wire::ProfileChunk>,
) -> Result<Profile, AssembleError> {
    let mut assembler = ProfileAssembler::new();
    for chunk in chunks {
        assembler.push(chunk)?;
    }
    assembler.finish()
}

fn any_sample() -> impl Strategy<Value = OwnedSample> {
    let frame = (
        0u8..6,
        0u8..15,
        "[a-d]{1,2}|.{1,9}",
        "[a-d]{0,2}",
        "[x-z]{0,1}",
        "[f]{0,2}",
        0u32..3,
    );
    (
        prop::collection::vec(("[a-c]", "[a-c]{0,1}|.{0,9}"), 0..4),
        prop::collection::vec(frame, 0..6),
        0u8..9,
        0u64..1 << 40,
        any::<u64>(),
    )
}

proptest! {
    #[test]
    fn content_survives_the_wire(
        samples in prop::collection::vec(any_sample(), 0..40),
        target in 1usize..4000,
        start in any::<i64>(),
        taken in any::<u64>(),
    ) {
        let info = Info {
            start_unix_ns: start,
            duration_ns: 10_000_000_000,
            event: "cpu-clock".into(),
            unit: "nanoseconds".into(),
            period: 10_101_010,
            quality: Quality { taken, lost: 3, malformed: 9, ..Quality::default() },
            coverage: Coverage { expected_ns: taken, windows: 7, ..Coverage::default() },
            waits: Waits { estimated: taken, alike_wrong: 2, ..Waits::default() },
            waits_cause: "its switch was lost".into(),
        };
        let profile = build(&samples, info);
        let encoded: Vec<Vec<u8>> =
            Chunks::with_target(&profile, target).map(|chunk| chunk.encode_to_vec()).collect();
        let chunks = encoded.iter().map(|bytes| wire::ProfileChunk::decode(&bytes[..]).unwrap());
        let back = assemble(chunks).unwrap();
        prop_assert_eq!(&back.info, &profile.info);
        prop_assert_eq!(content(&back), content(&profile));
        prop_assert_eq!(back.total(), profile.total());
    }

    #[test]
    fn moments_survive_the_wire_in_order(
        samples in prop::collection::vec(any_sample(), 1..10),
        times in prop::collection::vec((0u64..1 << 50, any::<prop::sample::Index>()), 0..60),
        target in 1usize..2000,
        dropped in any::<u64>(),
    ) {
        let mut profile = build(&samples, Info::default());
        let rows = profile.sorted();
        profile.timestamps.start_unix_ns = 77;
        profile.timestamps.duration_ns = 1 << 50;
        profile.timestamps.dropped = dropped;
        profile.timestamps.list = times
            .iter()
            .map(|(at_ns, row)| {
                let (key, value) = *row.get(&rows);
                profile::Timestamp { at_ns: *at_ns, key, weight: value.weight }
            })
            .collect();
        profile.timestamps.list.sort();
        let back = assemble(Chunks::with_target(&profile, target)).unwrap();
        let text = |profile: &Profile| -> Vec<_> {
            let of = |at: &profile::Timestamp| {
                let mut one = Profile { dict: profile.dict.clone(), ..Profile::default() };
                one.add(at.key, Value { count: 1, weight: at.weight });
                (at.at_ns, content(&one))
            };
            profile.timestamps.list.iter().map(of).collect()
        };
        prop_assert_eq!(text(&back), text(&profile));
        let facts = |m: &profile::Timestamps| (m.start_unix_ns, m.duration_ns, m.dropped);
        prop_assert_eq!(facts(&back.timestamps), facts(&profile.timestamps));
    }

    /// What a profile weighs at most is never less than what it does weigh.
    #[test]
    fn a_profile_weighs_no_more_than_its_rows_say(
        samples in prop::collection::vec(any_sample(), 0..40),
        times in prop::collection::vec((any::<u64>(), any::<prop::sample::Index>()), 0..60),
        start in any::<i64>(),
        counter in any::<u64>(),
    ) {
        let quality = Quality {
            taken: counter, idle: counter, lost: counter, throttled: counter, folded: counter,
            truncated: counter, depth_limit: counter, unnamed: counter, malformed: counter,
            lost_samples: counter, reduced: counter, lost_late: counter,
        };
        let coverage = Coverage {
            expected_ns: counter, estimated_ns: counter, expected_samples: counter, taken_ns: counter,
            windows: counter, windows_unmeasured: counter,
        };
        let waits = Waits {
            complete: counter, complete_ns: counter, estimated: counter, estimated_ns: counter,
            ongoing: counter, ongoing_ns: counter, dropped: counter, dropped_ns: counter,
            alike: counter, alike_ns: counter, cut: counter, cut_ns: counter,
            alike_checked: counter, alike_wrong: counter,
        };
        let mut profile = build(&samples, Info {
            start_unix_ns: start, duration_ns: counter, event: "e".repeat(300), unit: "u".repeat(300),
            period: counter, quality, coverage, waits, waits_cause: "c".repeat(300),
        });
        let rows = profile.sorted();
        profile.timestamps.duration_ns = counter;
        profile.timestamps.dropped = counter;
        if !rows.is_empty() {
            profile.timestamps.list = times.iter().map(|(at_ns, row)| {
                let (key, value) = *row.get(&rows);
                profile::Timestamp { at_ns: *at_ns, key, weight: value.weight }
            }).collect();
            profile.timestamps.list.sort();
        }
        let encoded: usize = Chunks::new(&profile).map(|chunk| chunk.encoded_len()).sum();
        let most = proto::Rows::of(&profile);
        prop_assert!(encoded <= most.encoded_bytes_max());
        prop_assert!(most.without_times().encoded_bytes_max() <= most.encoded_bytes_max());
    }

    /// Whatever is damaged in one chunk, the assembler answers; it never panics.
    #[test]
    fn damaged_bytes_are_refused_or_taken_but_never_panic(
        samples in prop::collection::vec(any_sample(), 1..10),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let profile = build(&samples, Info::default());
        let mut bytes = Chunks::new(&profile).next().unwrap().encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(chunk) = wire::ProfileChunk::decode(&bytes[..])
            && let Ok(profile) = assemble([chunk])
        {
            // What was taken is complete: every id leads somewhere.
            let _ = content(&profile);
        }
    }
}

#[test]
fn chunks_stay_near_their_target() {
    let samples: Vec<OwnedSample> = (0..40_000u32)
        .map(|n| {
            let frame = |i: u32| {
                (
                    0,
                    0,
                    format!("function_{n}_{i}"),
                    String::new(),
                    "lib.so".into(),
                    "".into(),
                    n,
                )
            };
            (
                vec![("pid".into(), n.to_string())],
                (0..3).map(frame).collect(),
                0,
                1,
                u64::MAX,
            )
        })
        .collect();
    let profile = build(&samples, Info::default());
    let sizes: Vec<usize> = Chunks::new(&profile)
        .map(|chunk| chunk.encoded_len())
        .collect();
    let (sum, most) = (
        sizes.iter().sum::<usize>(),
        proto::Rows::of(&profile).encoded_bytes_max(),
    );
    assert!(sum <= most && most <= 2 * sum, "{sum} and at most {most}");
    assert!(sizes.len() > 10, "{sizes:?}");
    assert!(
        sizes
            .iter()
            .all(|&size| size < CHUNK_BYTES_TARGET + STRING_BYTES_MAX),
        "{sizes:?}"
    );
}

#[test]
fn small_rows_weigh_in_memory_what_they_take_there() {
    let chunk = wire::ProfileChunk {
        frames: vec![wire::Frame::default(); 1000],
        timestamp_weights: vec![1; 1000],
        ..wire::ProfileChunk::default()
    };
    assert_eq!(chunk.encoded_len(), 2 * 1000 + 1000 + 4);
    assert!(proto::chunk_heap_bytes(&chunk) >= (28 + 8) * 1000);
}

#[test]
fn a_monstrous_name_is_cut_at_a_character() {
    let name = format!("x{}", "é".repeat(STRING_BYTES_MAX));
    let profile = build(
        &[(
            vec![],
            vec![(0, 0, name, "".into(), "".into(), "".into(), 0)],
            0,
            1,
            1,
        )],
        Info::default(),
    );
    let back = assemble(Chunks::new(&profile)).unwrap();
    let (key, _) = back.sorted()[0];
    let frame = back.dict.stacks.leaf_first(key.stack).next().unwrap();
    assert_eq!(back.dict.frame(frame).function.len(), STRING_BYTES_MAX - 1);
}

/// A sound single chunk: one frame, one stack, one label set, one sample.
fn sound() -> wire::ProfileChunk {
    wire::ProfileChunk {
        info: Some(wire::Info::default()),
        strings: ["", "main", "comm", "cat"].map(String::from).to_vec(),
        frames: vec![wire::Frame {
            function: 1,
            ..Default::default()
        }],
        stack_parents: vec![0],
        stack_frames: vec![0],
        label_sets: vec![wire::LabelSet {
            key_values: vec![2, 3],
        }],
        sample_label_sets: vec![1],
        sample_stacks: vec![1],
        sample_ends: vec![0],
        sample_counts: vec![7],
        sample_weights: vec![70],
        last: true,
        ..wire::ProfileChunk::default()
    }
}

#[track_caller]
fn check(damage: impl FnOnce(&mut wire::ProfileChunk), expected: AssembleError) {
    let mut chunk = sound();
    damage(&mut chunk);
    assert_eq!(assemble([chunk]).err(), Some(expected));
}

#[test]
fn damage_is_named() {
    let id = |table, id| AssembleError::Id { table, id };
    assert_eq!(
        assemble([sound()]).unwrap().total(),
        Value {
            count: 7,
            weight: 70
        }
    );
    check(|c| c.info = None, AssembleError::NoInfo);
    check(|c| c.last = false, AssembleError::Incomplete);
    check(|c| c.strings[0] = "x".into(), AssembleError::FirstString);
    check(|c| c.frames[0].function = 4, id("strings", 4));
    check(|c| c.frames[0].kind = 256, id("frame kinds", 256));
    check(|c| c.frames[0].unnamed = 200, id("unnamed reasons", 200));
    check(|c| c.stack_frames[0] = 1, id("frames", 1));
    check(|c| c.stack_parents[0] = 1, id("stacks", 1));
    check(
        |c| c.stack_parents.clear(),
        AssembleError::Columns { table: "stacks" },
    );
    check(
        |c| c.label_sets[0].key_values.truncate(1),
        AssembleError::Columns {
            table: "label sets",
        },
    );
    check(
        |c| c.label_sets[0].key_values[1] = u32::MAX,
        id("strings", u32::MAX),
    );
    check(|c| c.sample_label_sets[0] = 2, id("label sets", 2));
    check(|c| c.sample_stacks[0] = 2, id("stacks", 2));
    check(|c| c.sample_ends[0] = 99, id("stack ends", 99));
    check(
        |c| c.sample_counts.push(1),
        AssembleError::Columns { table: "samples" },
    );
}

#[test]
fn order_of_chunks_is_kept() {
    let open = || wire::ProfileChunk {
        last: false,
        ..sound()
    };
    assert_eq!(
        assemble([open(), sound()]).err(),
        Some(AssembleError::LateInfo)
    );
    assert_eq!(
        assemble([sound(), sound()]).err(),
        Some(AssembleError::AfterEnd)
    );
    assert_eq!(assemble([]).err(), Some(AssembleError::Incomplete));
    // A refused chunk cannot be made up for by a good one.
    let mut assembler = ProfileAssembler::new();
    assembler
        .push(wire::ProfileChunk {
            info: None,
            ..sound()
        })
        .unwrap_err();
    assert_eq!(assembler.push(sound()), Err(AssembleError::AfterEnd));
    assert!(assembler.finish().is_err());
}

#[test]
fn a_frame_without_a_system_name_is_as_small_as_before_there_were_any() {
    let with = |system_name| wire::Frame {
        function: 1,
        system_name,
        ..Default::default()
    };
    assert_eq!(with(0).encoded_len() + 2, with(2).encoded_len());
    assert_eq!(with(0).encode_to_vec(), [0x18, 1]);
    check(
        |c| c.frames[0].system_name = 9,
        AssembleError::Id {
            table: "strings",
            id: 9,
        },
    );
}

#[test]
fn a_system_name_that_is_the_function_is_none() {
    let mut chunk = sound();
    chunk.frames[0].system_name = 1;
    let profile = assemble([chunk]).unwrap();
    assert_eq!(content(&profile), content(&assemble([sound()]).unwrap()));
}

#[test]
fn doubled_rows_meet_in_one_key() {
    let mut chunk = sound();
    chunk.strings.push("main".into());
    chunk.frames.push(wire::Frame {
        function: 4,
        ..Default::default()
    });
    chunk.stack_parents.push(0);
    chunk.stack_frames.push(1);
    chunk.label_sets.push(wire::LabelSet {
        key_values: vec![2, 3, 2, 1, 1, 0],
    });
    chunk.sample_label_sets.push(2);
    chunk.sample_stacks.push(2);
    chunk.sample_ends.push(0);
    chunk.sample_counts.push(1);
    chunk.sample_weights.push(1);
    let profile = assemble([chunk]).unwrap();
    assert_eq!(profile.samples.len(), 1);
    assert_eq!(
        profile.total(),
        Value {
            count: 8,
            weight: 71
        }
    );
}

#[test]
fn size_and_depth_are_bounded() {
    let mut small = ProfileAssembler::with_limit(16);
    assert_eq!(
        small.push(sound()),
        Err(AssembleError::TooLarge { limit: 16 })
    );
    let mut chunk = sound();
    chunk.stack_parents = (0..=u32::from(STACK_DEPTH_MAX)).collect();
    chunk.stack_frames = vec![0; usize::from(STACK_DEPTH_MAX) + 1];
    assert_eq!(assemble([chunk]).err(), Some(AssembleError::TooDeep));
}

#[test]
fn a_frame_without_function_gets_a_name() {
    let mut chunk = sound();
    chunk.frames[0].function = 0;
    let profile = assemble([chunk]).unwrap();
    assert_eq!(
        profile.dict.frame(profile::FrameId(0)).function,
        "[unknown]"
    );
}

fn tables_alone(chunk: wire::ProfileChunk) -> wire::ProfileChunk {
    wire::ProfileChunk {
        info: None,
        strings: chunk.strings,
        frames: chunk.frames,
        stack_parents: chunk.stack_parents,
        stack_frames: chunk.stack_frames,
        ..wire::ProfileChunk::default()
    }
}

fn of(tables: wire::ProfileChunk) -> Definitions {
    Definitions {
        tables: Some(tables),
        ..Definitions::default()
    }
}

/// The contents of all stacks that came.
fn contents(tables: DefinedTables) -> Vec<ContentId> {
    let frames = tables.dict.frame_content_ids();
    let mut ids = vec![ContentId::default()];
    ids.extend(tables.known);
    for (caller, frame) in tables.nodes {
        ids.push(ids[caller as usize].child(frames[frame.0 as usize]));
    }
    ids
}

proptest! {
    #[test]
    fn tables_give_the_same_content_ids(
        samples in prop::collection::vec(any_sample(), 0..8),
        target in 1usize..400,
    ) {
        let profile = build(&samples, Info::default());
        let mut assembler = TableAssembler::new(1 << 20, false);
        for chunk in Chunks::with_target(&profile, target) {
            assembler.push(&of(tables_alone(chunk))).unwrap();
        }
        let found = contents(assembler.finish().unwrap());
        prop_assert_eq!(found, profile.dict.content_ids());
    }
}

#[test]
fn tables_come_without_samples_and_within_their_bound() {
    let mut assembler = TableAssembler::new(1 << 20, false);
    assert_eq!(
        assembler.push(&of(sound())),
        Err(AssembleError::NotATable { found: "samples" })
    );
    assert_eq!(
        assembler.push(&of(tables_alone(sound()))),
        Err(AssembleError::AfterEnd)
    );
    assert!(assembler.finish().is_err());

    let mut assembler = TableAssembler::new(4, false);
    let limit = AssembleError::TooLarge { limit: 4 };
    assert_eq!(assembler.push(&of(tables_alone(sound()))), Err(limit));
}

/// A definer to whose collector windows 1 and 2 are on their way, with the first and the last
/// stack.
fn definer(dict: &Dictionary) -> Definer {
    let mut definer = Definer::new(true);
    let last = StackId(dict.stacks.len() as u32 - 1);
    definer.sent(1, [StackId(1)].into_iter());
    definer.sent(2, [StackId(1), last].into_iter());
    definer
}

/// Known stacks and others that come for the last stack.
fn comes(definer: &mut Definer, dict: &Dictionary, need: Need) -> (usize, usize) {
    let ids = dict.content_ids();
    let content = |stack: StackId| ids[stack.0 as usize];
    let last = StackId(dict.stacks.len() as u32 - 1);
    let messages = definer.define(dict, content, &need, &[last], 64);
    let mut tables = TableAssembler::new(1 << 20, true);
    for (at, message) in messages.iter().enumerate() {
        assert_eq!(message.more, at + 1 < messages.len());
        tables.push(message).unwrap();
    }
    let tables = tables.finish().unwrap();
    let came = (tables.known.len(), tables.nodes.len());
    assert!(contents(tables).contains(&content(last)));
    came
}

fn four_deep() -> Dictionary {
    let mut dict = Dictionary::default();
    let frames = ["main", "work", "read", "copy"].map(|function| {
        dict.intern_frame(FrameRef {
            function,
            ..FrameRef::default()
        })
    });
    dict.stacks.intern(frames);
    dict
}

fn need(sequence: u64, all_callers: bool) -> Need {
    Need {
        sequence,
        stacks: Vec::new(),
        all_callers,
    }
}

#[test]
fn callers_come_until_a_window_with_them_is_stored() {
    let dict = four_deep();
    let mut of = definer(&dict);
    // Window 1 is not answered yet.
    assert_eq!(comes(&mut of, &dict, need(9, false)), (0, 4));
    of.answered(&dict, 1, false);
    assert_eq!(comes(&mut of, &dict, need(9, false)), (0, 4));
    of.sent(3, [StackId(2)].into_iter());
    of.answered(&dict, 3, true);
    assert_eq!(comes(&mut of, &dict, need(9, false)), (1, 2));
    of.answered(&dict, 2, true);
    assert_eq!(comes(&mut of, &dict, need(9, false)), (1, 0));
}

#[test]
fn what_is_not_asked_for_of_a_window_is_known() {
    let dict = four_deep();
    assert_eq!(comes(&mut definer(&dict), &dict, need(2, false)), (1, 3));
}

#[test]
fn all_callers_come_when_the_collector_knows_none_and_in_a_new_dictionary() {
    let dict = four_deep();
    let mut of = definer(&dict);
    of.answered(&dict, 1, true);
    assert_eq!(comes(&mut of, &dict, need(2, true)), (0, 4));
    of.answered(&dict, 2, true);
    assert_eq!(comes(&mut of, &dict, need(9, false)), (1, 0));
    of.start_dictionary();
    assert_eq!(comes(&mut of, &dict, need(9, false)), (0, 4));
    // A collector of an older version.
    let mut of = Definer::new(false);
    of.sent(1, [StackId(4)].into_iter());
    of.answered(&dict, 1, true);
    assert_eq!(comes(&mut of, &dict, need(9, false)), (0, 4));
}

#[test]
fn known_stacks_come_first_whole_and_only_where_they_are_taken() {
    let known = |bytes: usize| Definitions {
        known_stacks: vec![7; bytes],
        ..Definitions::default()
    };
    let not_here = AssembleError::NotATable {
        found: "known stacks",
    };
    let mut older = TableAssembler::new(1 << 20, false);
    assert_eq!(older.push(&known(16)), Err(not_here.clone()));
    let torn = AssembleError::Columns {
        table: "known stacks",
    };
    let mut assembler = TableAssembler::new(1 << 20, true);
    assert_eq!(assembler.push(&known(17)), Err(torn));
    let mut assembler = TableAssembler::new(1 << 20, true);
    assembler.push(&of(tables_alone(sound()))).unwrap();
    assert_eq!(assembler.push(&known(16)), Err(not_here));
    let mut assembler = TableAssembler::new(100, true);
    assembler.push(&known(64)).unwrap();
    let limit = AssembleError::TooLarge { limit: 100 };
    assert_eq!(assembler.push(&known(64)), Err(limit));
}

#[test]
fn the_frames_beyond_a_known_stack_are_counted_and_bounded() {
    let chain = |frames: u32| wire::ProfileChunk {
        strings: vec![String::new()],
        frames: vec![wire::Frame::default()],
        stack_parents: (1..=frames).collect(),
        stack_frames: vec![0; frames as usize],
        ..wire::ProfileChunk::default()
    };
    let most = u32::from(STACK_DEPTH_MAX);
    for (frames, fits) in [(3, true), (most, true), (most + 1, false)] {
        let mut assembler = TableAssembler::new(1 << 20, true);
        let taken = assembler.push(&Definitions {
            known_stacks: vec![7; 16],
            ..of(chain(frames))
        });
        assert_eq!(taken.is_ok(), fits);
        if fits {
            assert_eq!(assembler.finish().unwrap().reach, [frames as u16]);
        }
    }
}
