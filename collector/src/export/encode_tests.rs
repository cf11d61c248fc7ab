//! Tests of requests: attributes, values and ids, and the rules of OpenTelemetry for any profile.

use super::super::conformance::problems;
use super::*;
use profile::{SampleKey, UnnamedReason};
use proptest::prelude::*;

const ID: &str = "0123456789abcdef0123456789abcdef01234567";

fn read(profile: profile::Profile) -> Read {
    Read {
        piece: Piece {
            run: (170_000_000, 170_000_006),
            host: "eu-1".to_owned(),
            host_id: "m-1".to_owned(),
        },
        profile,
    }
}

fn cpu() -> profile::Profile {
    profile::Profile {
        info: Info {
            event: "cpu-clock".to_owned(),
            unit: NANOSECONDS.to_owned(),
            period: 10,
            ..Info::default()
        },
        ..profile::Profile::default()
    }
}

fn add(of: &mut profile::Profile, labels: &[(&str, &str)], frames: &[FrameRef<'_>], value: Value) {
    let frames: Vec<_> = frames
        .iter()
        .map(|frame| of.dict.intern_frame(*frame))
        .collect();
    let key = SampleKey {
        labels: of.dict.intern_labels(labels.iter().copied()),
        stack: of.dict.stacks.intern(frames),
        end: StackEnd::Complete,
    };
    of.add(key, value);
}

fn labels() -> Vec<String> {
    ["service", "unit", "comm"].map(str::to_owned).to_vec()
}

fn named(function: &str) -> FrameRef<'_> {
    FrameRef {
        function,
        module: "app",
        ..FrameRef::default()
    }
}

/// Attributes of the only resource.
fn resource(of: profile::Profile) -> BTreeMap<String, AnyValue> {
    let (decoded, problems) = problems(&request(&[read(of)], &labels()).request);
    assert_eq!(problems, Vec::<String>::new());
    let (resource, _) = &decoded.resources[0];
    let attributes = resource.resource.iter().flat_map(|own| &own.attributes);
    attributes
        .map(|pair| (pair.key.clone(), pair.value.clone().expect("a value")))
        .collect()
}

#[test]
fn labels_have_the_names_of_the_conventions() {
    let mut profile = cpu();
    let value = Value {
        count: 1,
        weight: 10,
    };
    let set = [
        ("host", "eu-1"),
        ("unit", "api.service"),
        ("container", "c0ffee"),
        ("image", "api:7"),
        ("pid", "42"),
        ("comm", "api"),
        ("pod.label/app", "shop"),
        ("zone", "a"),
        // Somebody's label of the same name as a convention's.
        ("host.name", "another"),
    ];
    add(&mut profile, &set, &[named("main")], value);
    let found = resource(profile);
    for (name, value) in [
        ("service.name", "api.service"),
        ("host.name", "eu-1"),
        ("host.id", "m-1"),
        ("systemd.unit", "api.service"),
        ("container.id", "c0ffee"),
        ("container.image.name", "api:7"),
        ("process.executable.name", "api"),
        ("k8s.pod.label.app", "shop"),
        ("zone", "a"),
    ] {
        assert_eq!(found[name], text(value), "{name}");
    }
    assert_eq!(found["process.pid"].int_value, Some(42));
    assert_eq!(found.len(), 10);
}

#[test]
fn a_service_is_told_by_the_program_where_nothing_names_one() {
    let service = |set: &[(&str, &str)]| {
        let mut profile = cpu();
        let value = Value {
            count: 1,
            weight: 10,
        };
        add(&mut profile, set, &[named("main")], value);
        let service = resource(profile)["service.name"].clone();
        service.string_value.expect("a text")
    };
    assert_eq!(service(&[("service.name", "own"), ("unit", "u")]), "own");
    assert_eq!(service(&[("comm", "bash"), ("unit", "u")]), "u");
    assert_eq!(service(&[("container", "c")]), "unknown_service");
}

#[test]
fn counts_are_counts_and_what_weighs_differently_is_time() {
    let mut profile = cpu();
    let lost = FrameRef {
        kind: FrameKind::Synthetic,
        function: "[lost]",
        ..FrameRef::default()
    };
    add(
        &mut profile,
        &[],
        &[named("main")],
        Value {
            count: 3,
            weight: 30,
        },
    );
    add(
        &mut profile,
        &[],
        &[lost],
        Value {
            count: 2,
            weight: 33,
        },
    );
    let encoded = request(&[read(profile)], &labels());
    let (decoded, problems) = problems(&encoded.request);
    assert_eq!(problems, Vec::<String>::new());
    let strings = &decoded.tables.string_table;
    let profiles = decoded.resources[0].1.iter();
    let profiles: Vec<_> = profiles
        .map(|(profile, samples)| {
            let of = profile.sample_type.expect("a type");
            let name = [of.type_strindex, of.unit_strindex].map(|at| &*strings[at as usize]);
            (name, samples[0].values[0], profile.period)
        })
        .collect();
    let expected = [
        (["samples", "count"], 3, 10),
        (["cpu", "nanoseconds"], 33, 10),
    ];
    assert_eq!(profiles, expected);
    assert_eq!(encoded.profiles, 2);
}

#[test]
fn code_without_a_symbol_is_a_place_in_a_build() {
    let mut profile = cpu();
    let place = format!("{ID}+0x4a20");
    let frame = FrameRef {
        function: "[libshop.so]",
        system_name: &place,
        module: "libshop.so",
        unnamed: UnnamedReason::NoSymbols,
        ..FrameRef::default()
    };
    add(
        &mut profile,
        &[],
        &[named("main"), frame],
        Value {
            count: 1,
            weight: 10,
        },
    );
    let (decoded, _) = problems(&request(&[read(profile)], &labels()).request);
    let tables = decoded.tables;
    let location = tables.location_table.iter().find(|of| of.address > 0);
    let location = location.expect("a place");
    assert_eq!((location.address, location.lines.len()), (0x4a20, 0));
    let mapping = &tables.mapping_table[location.mapping_index as usize];
    let file = &tables.string_table[mapping.filename_strindex as usize];
    let build = &tables.attribute_table[mapping.attribute_indices[0] as usize];
    assert_eq!(file, "libshop.so");
    assert_eq!(tables.string_table[build.key_strindex as usize], BUILD_ID);
    assert_eq!(build.value, Some(text(ID)));
}

#[test]
fn a_profile_has_the_same_id_when_it_is_sent_again_and_no_other_has() {
    let of = |end: i64, unit: &str| {
        let mut profile = cpu();
        add(
            &mut profile,
            &[("unit", unit)],
            &[named("main")],
            Value {
                count: 1,
                weight: 10,
            },
        );
        let mut read = read(profile);
        read.piece.run.1 = end;
        let (decoded, _) = problems(&request(&[read], &labels()).request);
        decoded.resources[0].0.scope_profiles[0].profiles[0].clone()
    };
    let id = |bytes: Bytes| ProfileId::decode(bytes).expect("an id").profile_id;
    let first = id(of(170_000_006, "a"));
    assert_eq!(first, id(of(170_000_006, "a")));
    assert_ne!(first, id(of(170_000_005, "a")));
    assert_ne!(first, id(of(170_000_006, "b")));
}

/// A frame of these choices.
fn frame(choice: (u8, u8, u8, u8), place: &str) -> FrameRef<'_> {
    let (kind, function, file, named) = choice;
    let kind = FrameKind::ALL[usize::from(kind) % FrameKind::ALL.len()];
    let is_unnamed = named == 0;
    FrameRef {
        kind,
        unnamed: match is_unnamed {
            true => UnnamedReason::NoSymbols,
            false => UnnamedReason::No,
        },
        function: ["main", "work", "[libshop.so]"][usize::from(function) % 3],
        system_name: if is_unnamed { place } else { "" },
        module: ["", "app", "libshop.so"][usize::from(function) % 3],
        file: ["", "a.c", "B.java"][usize::from(file) % 3],
        line: u32::from(file),
        start_line: u32::from(file / 2),
    }
}

proptest! {
    #[test]
    fn every_request_follows_the_rules_and_loses_nothing(
        samples in prop::collection::vec(
            (
                prop::collection::vec(any::<(u8, u8, u8, u8)>(), 0..6),
                prop::collection::vec((0usize..8, 0usize..3), 0..4),
                0u8..3,
                0u64..5,
                prop::option::of(0u64..90),
            ),
            1..30,
        ),
        hosts in 1usize..3,
    ) {
        const NAMES: [&str; 8] =
            ["host", "unit", "thread", "context", "comm", "pid", "zone", "service.name"];
        let places = [format!("{ID}+0x10"), format!("{ID}+0x20"), "no place".to_owned()];
        let mut profile = cpu();
        for (frames, pairs, end, count, weight) in samples {
            let frames = frames.iter();
            let frames = frames.map(|of| frame(*of, &places[usize::from(of.2) % 3]));
            let frames: Vec<_> = frames.map(|frame| profile.dict.intern_frame(frame)).collect();
            let pairs = pairs.iter().map(|&(name, value)| (NAMES[name], ["a", "7", "c"][value]));
            let key = SampleKey {
                labels: profile.dict.intern_labels(pairs),
                stack: profile.dict.stacks.intern(frames),
                end: [StackEnd::Complete, StackEnd::DepthLimit, StackEnd::Lost][usize::from(end)],
            };
            profile.add(key, Value { count, weight: weight.unwrap_or(count * 10) });
        }
        let total = profile.total().weight;
        let reads: Vec<Read> = (0..hosts)
            .map(|number| {
                let mut read = read(profile.clone());
                read.piece.host = format!("h{number}");
                read
            })
            .collect();
        let encoded = request(&reads, &labels());
        prop_assume!(total > 0);
        let (decoded, problems) = problems(&encoded.request);
        prop_assert_eq!(problems, Vec::<String>::new());
        let mut sum = 0;
        for (profile, samples) in decoded.resources.iter().flat_map(|(_, all)| all) {
            let of = profile.sample_type.expect("a type").type_strindex;
            let each = match &*decoded.tables.string_table[of as usize] {
                "samples" => profile.period,
                _ => 1,
            };
            sum += samples.iter().map(|sample| sample.values[0] * each).sum::<i64>();
        }
        prop_assert_eq!(sum as u64, total * hosts as u64);
    }
}
