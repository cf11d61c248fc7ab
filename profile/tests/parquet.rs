//! Parquet files as the library's own reader sees them; that of DuckDB is in
//! `agent-ctl/tests/readers.rs`.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use parquet::schema::printer::print_schema;
use profile::formats::parquet::{LABELS_MAX, ROWS_MAX, Writer, write};
use profile::formats::{FormatError, Options};
use profile::{FrameKind, FrameRef, Profile, SampleKey, StackEnd, StackId, Value};
use std::collections::BTreeMap;
use support::{from_lines, hostile, info};

fn reader(file: Vec<u8>) -> SerializedFileReader<bytes::Bytes> {
    SerializedFileReader::new(file.into()).unwrap()
}

fn file(profile: &Profile, options: &Options) -> SerializedFileReader<bytes::Bytes> {
    let mut out = Vec::new();
    write(profile, options, &mut out).unwrap();
    reader(out)
}

fn rows(file: &SerializedFileReader<bytes::Bytes>) -> Vec<String> {
    let rows = file.get_row_iter(None).unwrap();
    rows.map(|row| row.unwrap().to_string()).collect()
}

fn schema(file: &SerializedFileReader<bytes::Bytes>) -> String {
    let mut text = Vec::new();
    print_schema(&mut text, file.metadata().file_metadata().schema());
    String::from_utf8(text).unwrap()
}

/// A profile whose frames know all there is, with a stack that was cut.
fn detailed() -> Profile {
    let mut profile = Profile {
        info: info(),
        ..Profile::default()
    };
    let dict = &mut profile.dict;
    let main = dict.intern_frame(FrameRef {
        function: "main",
        module: "api",
        file: "src/main.c",
        line: 12,
        ..FrameRef::default()
    });
    let read = dict.intern_frame(FrameRef {
        kind: FrameKind::Kernel,
        function: "sys_read",
        ..FrameRef::default()
    });
    let stack = dict.stacks.intern([main, read]);
    let labels = dict.intern_labels([("unit", "api.service"), ("comm", "api")]);
    let key = SampleKey {
        labels,
        stack,
        end: StackEnd::CopyTooSmall,
    };
    let weight = 30_000_000;
    profile.add(key, Value { count: 3, weight });
    profile
}

#[test]
fn the_schema_is_that_of_the_documentation() {
    insta::assert_snapshot!(schema(&file(&detailed(), &Options::default())));
}

#[test]
fn a_row_has_all_that_is_known_of_a_stack() {
    let file = file(&detailed(), &Options::default());
    insta::assert_snapshot!(rows(&file).join("\n"));
}

#[test]
fn the_unit_and_what_is_missing_are_in_the_metadata() {
    let file = file(&detailed(), &Options::default());
    let pairs = file
        .metadata()
        .file_metadata()
        .key_value_metadata()
        .unwrap();
    let of = |key: &str| {
        let pair = pairs.iter().find(|pair| pair.key == key);
        pair.and_then(|pair| pair.value.clone()).unwrap()
    };
    assert_eq!(of("fleetprof.unit"), "nanoseconds");
    assert_eq!(of("fleetprof.event"), "cpu-clock");
    assert_eq!(of("fleetprof.period"), support::PERIOD.to_string());
    assert!(of("fleetprof.quality").contains("records lost"));
}

/// Own count of each function.
fn leaves(file: &SerializedFileReader<bytes::Bytes>) -> BTreeMap<String, i64> {
    let mut sums = BTreeMap::new();
    for row in file.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let column = |name: &str| {
            let mut columns = row.get_column_iter();
            columns.find(|(found, _)| *found == name).unwrap().1.clone()
        };
        let (Field::ListInternal(stack), Field::Long(count)) = (column("stack"), column("samples"))
        else {
            panic!("another type: {row}");
        };
        let Some(Field::Str(leaf)) = stack.elements().last() else {
            panic!("no leaf: {row}");
        };
        *sums.entry(leaf.clone()).or_default() += count;
    }
    sums
}

#[test]
fn hostile_names_are_read_back_as_they_are() {
    let profile = hostile();
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    for (key, value) in &profile.samples {
        let leaf = profile.dict.stacks.leaf_first(key.stack).next();
        let name = leaf.map_or("[unknown]", |leaf| profile.dict.frame(leaf).function);
        *expected.entry(name.to_owned()).or_default() += value.count as i64;
    }
    assert_eq!(leaves(&file(&profile, &Options::default())), expected);
}

#[test]
fn a_stack_without_frames_is_a_list_of_one() {
    let mut profile = Profile::default();
    let key = SampleKey {
        labels: Default::default(),
        stack: StackId::EMPTY,
        end: StackEnd::NoUserStack,
    };
    profile.add(
        key,
        Value {
            count: 2,
            weight: 2,
        },
    );
    let leaves = leaves(&file(&profile, &Options::default()));
    assert_eq!(leaves, BTreeMap::from([("[unknown]".to_owned(), 2)]));
}

#[test]
fn rows_beyond_a_group_go_into_the_next() {
    let mut profile = Profile::default();
    let frame = profile.dict.intern_frame(FrameRef {
        function: "f",
        ..FrameRef::default()
    });
    let stack = profile.dict.stacks.intern([frame]);
    for number in 0..ROWS_MAX + 3 {
        let pid = number.to_string();
        let labels = profile.dict.intern_labels([("pid", pid.as_str())]);
        let end = StackEnd::Complete;
        profile.add(
            SampleKey { labels, stack, end },
            Value {
                count: 1,
                weight: 1,
            },
        );
    }
    let file = file(&profile, &Options::default());
    let groups = file.metadata().row_groups();
    let rows: Vec<i64> = groups.iter().map(|group| group.num_rows()).collect();
    assert_eq!(rows, [ROWS_MAX as i64, 3]);
}

#[test]
fn stretches_of_time_are_told_apart_by_their_rows() {
    let mut out = Vec::new();
    let mut writer = Writer::new(&mut out, vec!["comm".to_owned()]).unwrap();
    let mut profile = from_lines("comm=a,unit=u main;f 5");
    writer.add(&profile).unwrap();
    profile.info.start_unix_ns += 10_000_000_000;
    writer.add(&profile).unwrap();
    let info = writer.finish().unwrap();
    assert_eq!(info.duration_ns, 20_000_000_000);
    insta::assert_snapshot!(rows(&reader(out)).join("\n"));
}

#[test]
fn units_are_never_mixed_and_sums_never_overflow() {
    let mut writer = Writer::new(Vec::new(), Vec::new()).unwrap();
    let mut profile = from_lines("- main;f 1");
    writer.add(&profile).unwrap();
    profile.info.unit = "cycles".to_owned();
    assert!(matches!(writer.add(&profile), Err(FormatError::Units(_))));
    profile.info.unit = "nanoseconds".to_owned();
    for value in profile.samples.values_mut() {
        value.weight = i64::MAX as u64;
    }
    let added = writer.add(&profile);
    assert!(matches!(added, Err(FormatError::TotalTooLarge { .. })));
}

#[test]
fn a_label_named_like_a_column_gets_another_name() {
    let mut profile = detailed();
    let key = *profile.samples.keys().next().unwrap();
    let labels = [("stack", "a"), ("label.stack", "b")];
    let labels = profile.dict.intern_labels(labels);
    profile.samples = [(
        SampleKey { labels, ..key },
        Value {
            count: 1,
            weight: 1,
        },
    )]
    .into();
    let row = rows(&file(&profile, &Options::default())).remove(0);
    let named = "label.stack: \"b\", label.label.stack: \"a\", stack: [\"main\", \"sys_read\"]";
    assert!(row.contains(named), "{row}");
}

#[test]
fn asked_labels_are_columns_and_too_many_are_refused() {
    let options = Options {
        root_labels: vec!["pod".to_owned(), "*".to_owned()],
        ..Options::default()
    };
    let text = schema(&file(&detailed(), &options));
    assert!(text.contains("BYTE_ARRAY pod (STRING)"), "{text}");
    assert!(!text.contains('*'), "{text}");
    let labels = (0..=LABELS_MAX).map(|number| number.to_string()).collect();
    let writer = Writer::new(Vec::new(), labels);
    assert!(matches!(
        writer.err(),
        Some(FormatError::TooManyLabels { .. })
    ));
}
