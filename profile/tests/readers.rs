//! Tests what other programs read from our files: inferno from folded stacks, the Firefox
//! Profiler's tables in its JSON.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use flate2::read::GzDecoder;
use inferno::flamegraph;
use profile::formats::{self, Format, Options, folded, pprof};
use profile::text::printable;
use profile::{Diff, GroupBy, OFF_CPU, Profile, key};
use regex::Regex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use support::{from_lines, hostile};

fn text(profile: &Profile, format: Format, options: &Options) -> String {
    let mut out = Vec::new();
    formats::write(profile, format, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// What `flamegraph.pl`'s format becomes: the sum of all samples, and for each name those of its
/// bars.
fn drawn(folded: &str) -> (u64, BTreeMap<String, u64>) {
    let mut options = flamegraph::Options::default();
    options.min_width = 0.0;
    let mut svg = Vec::new();
    flamegraph::from_reader(&mut options, folded.as_bytes(), &mut svg).unwrap();
    let svg = String::from_utf8(svg).unwrap();
    let total = Regex::new(r#"total_samples="(\d+)""#).unwrap();
    let total = total.captures(&svg).unwrap()[1].parse().unwrap();
    let title = Regex::new(r"<title>([^<]*) \(([0-9,]+) samples, [^()]*%\)</title>").unwrap();
    let mut bars: BTreeMap<String, u64> = BTreeMap::new();
    for found in title.captures_iter(&svg) {
        let mut name = found[1].to_owned();
        for (entity, character) in [
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&quot;", "\""),
            ("&apos;", "'"),
            ("&amp;", "&"),
        ] {
            name = name.replace(entity, character);
        }
        *bars.entry(name).or_default() += found[2].replace(',', "").parse::<u64>().unwrap();
    }
    (total, bars)
}

/// The same from the lines themselves: a bar for each place in the tree of calls.
fn lines(folded: &str) -> (u64, BTreeMap<String, u64>) {
    let mut all = 0;
    let mut bars: BTreeMap<String, u64> = BTreeMap::new();
    for line in folded.lines() {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        let count: u64 = count.parse().unwrap();
        all += count;
        for frame in stack.split(';') {
            *bars.entry(frame.to_owned()).or_default() += count;
        }
    }
    bars.insert("all".to_owned(), all);
    (all, bars)
}

#[test]
fn inferno_draws_every_folded_line_whatever_the_names() {
    let options = Options {
        root_labels: vec![key::COMM.to_owned()],
        ..Options::default()
    };
    let folded = text(&hostile(), Format::Folded, &options);
    assert_eq!(drawn(&folded), lines(&folded), "{folded}");
    assert_eq!(drawn(&folded).0, hostile().total().count);
}

#[test]
fn inferno_draws_a_differential_as_wide_as_the_second_side() {
    let before = from_lines("comm=a main;f 5\ncomm=a main;gone 2");
    let after = from_lines("comm=a main;f 7\ncomm=a main;new 4");
    let diff = Diff::new(&before, &after, &GroupBy::Keys(Vec::new())).unwrap();
    let mut out = Vec::new();
    folded::write_diff(&diff, false, &Options::default(), &mut out).unwrap();
    let (total, bars) = drawn(&String::from_utf8(out).unwrap());
    assert_eq!(total, 11);
    let bar = |name: &str| bars.get(name).copied();
    assert_eq!(
        (bar("main"), bar("f"), bar("new")),
        (Some(11), Some(7), Some(4))
    );
}

/// Samples of a thread by their stack, root first, as the tables of a thread say them.
///
/// It reads version 55 of the format: `samples.stack` → `stackTable` (`prefix`, `frame`) →
/// `frameTable.func` → `funcTable.name` → `stringArray`; all columns of a table are as long as its
/// `length`.
fn by_stack(thread: &Value) -> BTreeMap<String, u64> {
    for table in ["samples", "stackTable", "frameTable", "funcTable"] {
        let length = thread[table]["length"].as_u64().unwrap() as usize;
        for (name, column) in thread[table].as_object().unwrap() {
            let long = column.as_array().map(Vec::len);
            assert!(
                long.is_none_or(|long| long == length),
                "{table}.{name}: {long:?} of {length}"
            );
        }
    }
    let at = |table: &str, column: &str, row: u64| &thread[table][column][row as usize];
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for row in 0..thread["samples"]["length"].as_u64().unwrap() {
        let mut stack = at("samples", "stack", row).as_u64();
        let mut names = Vec::new();
        while let Some(this) = stack {
            let frame = at("stackTable", "frame", this).as_u64().unwrap();
            let func = at("frameTable", "func", frame).as_u64().unwrap();
            let name = at("funcTable", "name", func).as_u64().unwrap();
            names.push(thread["stringArray"][name as usize].as_str().unwrap());
            let before = at("stackTable", "prefix", this).as_u64();
            assert!(
                before.is_none_or(|before| before < this),
                "a caller comes before its callee"
            );
            stack = before;
        }
        names.reverse();
        let weight = at("samples", "weight", row).as_u64().unwrap();
        *found.entry(names.join("\n")).or_default() += weight;
    }
    found
}

#[test]
fn the_tables_of_the_firefox_profiler_lead_to_every_stack() {
    let profile = hostile();
    let json: Value =
        serde_json::from_str(&text(&profile, Format::Firefox, &Options::default())).unwrap();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for thread in json["threads"].as_array().unwrap() {
        for (stack, count) in by_stack(thread) {
            *found.entry(stack).or_default() += count;
        }
    }
    let mut expected: BTreeMap<String, u64> = BTreeMap::new();
    for (key, value) in profile.sorted() {
        let frames = profile.dict.stacks.leaf_first(key.stack);
        let name = |id| {
            let frame = profile.dict.frame(id);
            let name = printable(frame.function).into_owned();
            match frame.module.is_empty() || name.starts_with('[') {
                true => name,
                false => format!("{name} ({})", frame.module),
            }
        };
        let mut names: Vec<String> = frames.map(name).collect();
        if key.end.is_truncated() {
            names.push("[truncated]".to_owned());
        }
        names.reverse();
        *expected.entry(names.join("\n")).or_default() += value.count;
    }
    assert_eq!(found, expected);
}

#[test]
fn time_off_the_cpu_is_nowhere_called_cpu_time() {
    let mut profile = from_lines("comm=a main;read 3");
    profile.info.event = OFF_CPU.to_owned();
    let page = text(&profile, Format::Html, &Options::default());
    assert!(page.contains(r#""unit":"nanoseconds","weighs":"Time waited""#));
    let mut file = Vec::new();
    pprof::write(&profile, &mut file).unwrap();
    let mut unpacked = Vec::new();
    GzDecoder::new(&file[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    let has = |word: &[u8]| unpacked.windows(word.len()).any(|part| part == word);
    assert!(has(b"off_cpu") && !has(b"\x03cpu"));
    let back = pprof::decode(&file, 1 << 20).unwrap();
    assert_eq!(
        (&back.info.event, &back.info.unit),
        (&profile.info.event, &profile.info.unit)
    );
    assert_eq!(back.total(), profile.total());
}
