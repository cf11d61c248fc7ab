//! Tests formats that say when samples were taken, and reading what other tools write.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a panic is the failure"
)]

mod support;

use flate2::Compression;
use flate2::write::GzEncoder;
use inferno::collapse::Collapse;
use profile::formats::{
    self, Fact, Format, Import, ImportError, ImportOptions, Measure, Options, Source, firefox,
    folded, heatmap, html,
};
use profile::heatmap::{Grid, HeatMap};
use profile::text::is_hostile;
use profile::{Profile, Timestamp, key};
use proptest::prelude::*;
use regex::Regex;
use std::collections::BTreeMap;
use std::io::Write;
use support::{PERIOD, build, from_lines, hostile, samples};

/// The profile with a moment for each of its samples, some 37 ms apart.
fn timed(mut profile: Profile) -> Profile {
    profile.timestamps.start_unix_ns = profile.info.start_unix_ns + 500_000_000;
    profile.timestamps.duration_ns = profile.info.duration_ns;
    let mut at_ns = 0;
    for (key, value) in profile.sorted() {
        for _ in 0..value.count {
            let weight = value.weight / value.count;
            profile
                .timestamps
                .list
                .push(Timestamp { at_ns, key, weight });
            at_ns = (at_ns + 37_000_000) % profile.timestamps.duration_ns;
        }
    }
    profile
        .timestamps
        .list
        .sort_by_key(|timestamp| timestamp.at_ns);
    profile
}

fn written(profile: &Profile, format: Format, options: &Options) -> String {
    let mut out = Vec::new();
    formats::write(profile, format, options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn read(bytes: &[u8]) -> Result<(Import, Source), ImportError> {
    let options = ImportOptions {
        bytes_max: 1 << 20,
        profile: None,
    };
    formats::import(bytes, options)
}

fn no_hostile_character(text: &str) {
    let found = text
        .chars()
        .find(|&found| is_hostile(found) && !matches!(found, '\n' | '\t'));
    assert_eq!(found, None);
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).unwrap();
    packed.finish().unwrap()
}

// ---- perf script -------------------------------------------------------------------------------

/// Names that look like other parts of the text, and a frame of most kinds.
fn processes() -> Profile {
    let lines = "comm=my_app,pid=7 main;std::vec<(int)>::push;sys_read@kernel 2
        comm=my_app,pid=7 main;f+0x1;fast@inlined 1
        comm=x,pid=8 handle@jit 1";
    let mut samples = from_lines(lines);
    // Lines of tests cannot hold spaces.
    let labels = samples
        .dict
        .intern_labels([(key::COMM, "my app"), (key::PID, "7")]);
    let changed = samples.sorted();
    samples.samples.clear();
    for (mut key, value) in changed {
        if samples.dict.label(key.labels, key::COMM) == Some("my_app") {
            key.labels = labels;
        }
        samples.add(key, value);
    }
    samples
}

#[test]
fn perf_script_golden() {
    let profile = timed(processes());
    let expected = "\
# 4 samples of cpu-clock · 2023-11-14 22:13:20 – 22:13:30 UTC · 0 records lost · 0 truncated · 0 unnamed
# fleetprof: 4 samples at the times they were taken
# times: seconds since the Unix epoch; periods: nanoseconds; addresses are made up
x 8 1700000000.500000000:   10000000 cpu-clock:
\t    784c51d6bda0 handle (/tmp/perf-0.map)

my app 7 1700000000.537000000:   10000000 cpu-clock:
\tffffffff90a35cb0 sys_read ([kernel.kallsyms])
\t    4f9da31a1080 std::vec<(int)>::push (app)
\t     dec06a71dd0 main (app)

my app 7 1700000000.574000000:   10000000 cpu-clock:
\tffffffff90a35cb0 sys_read ([kernel.kallsyms])
\t    4f9da31a1080 std::vec<(int)>::push (app)
\t     dec06a71dd0 main (app)

my app 7 1700000000.611000000:   10000000 cpu-clock:
\t    6e3591695730 fast (inlined)
\t    6e1bb9bcd6a0 f+0x1+0x0 (app)
\t     dec06a71dd0 main (app)

";
    assert_eq!(
        written(&profile, Format::PerfScript, &Options::default()),
        expected
    );
}

#[test]
fn flamescope_and_stackcollapse_find_events_and_frames() {
    let text = written(&timed(hostile()), Format::PerfScript, &Options::default());
    no_hostile_character(&text);
    // The shapes that both document: the time before a colon, a period, an event; address, name,
    // module.
    let flamescope_event = Regex::new(r" +([0-9.]+): .+?:").unwrap();
    let flamescope_frame = Regex::new(r"^[\t ]*[0-9a-fA-F]+ (.+) \((.*?)\)$").unwrap();
    let flamescope_comm = Regex::new(r"^ *([^0-9]+)").unwrap();
    let collapse_event = Regex::new(r"^(\S.+?)\s+(\d+)/*(\d+)*\s+").unwrap();
    let collapse_name = Regex::new(r":\s*(\d+)*\s+(\S+):\s*$").unwrap();
    let collapse_frame = Regex::new(r"^\s*(\w+)\s*(.+) \((.*)\)").unwrap();
    // As its first versions had them.
    let collapse_old_event = Regex::new(r"^(\S+\s*?\S*?)\s+(\d+)\s").unwrap();
    let collapse_old_frame = Regex::new(r"^\s*(\w+)\s*(.+) \((\S*)\)").unwrap();
    let (mut events, mut frames) = (0, 0);
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        match line.as_bytes().first() {
            None => {}
            Some(b'\t') => {
                frames += 1;
                assert!(flamescope_frame.is_match(line), "{line}");
                assert!(collapse_frame.is_match(line), "{line}");
                assert!(collapse_old_frame.is_match(line), "{line}");
            }
            Some(_) => {
                events += 1;
                let time = &flamescope_event.captures(line).unwrap()[1];
                assert!(time.parse::<f64>().unwrap() > 1.7e9, "{line}");
                assert!(flamescope_comm.is_match(line), "{line}");
                assert!(collapse_event.is_match(line), "{line}");
                assert!(collapse_old_event.is_match(line), "{line}");
                assert_eq!(&collapse_name.captures(line).unwrap()[2], "cpu-clock");
            }
        }
    }
    assert_eq!(events, hostile().total().count);
    assert!(frames > events);
}

/// Samples by comm and functions, as folded lines say them.
fn by_stack(profile: &Profile) -> BTreeMap<String, u64> {
    let options = Options {
        root_labels: vec![key::COMM.to_owned()],
        ..Options::default()
    };
    let folded = written(profile, Format::Folded, &options);
    let lines = folded.lines().map(|line| line.rsplit_once(' ').unwrap());
    lines
        .map(|(stack, count)| (stack.to_owned(), count.parse().unwrap()))
        .collect()
}

#[test]
fn a_collapser_of_perf_script_counts_what_folded_stacks_say() {
    let profile = timed(from_lines(
        "comm=app,pid=7 main;read;sys_read@kernel 5\ncomm=app,pid=7 main;work 3\ncomm=web,pid=9 main 2",
    ));
    let text = written(&profile, Format::PerfScript, &Options::default());
    let mut collapsed = Vec::new();
    let mut folder = inferno::collapse::perf::Folder::default();
    folder.collapse(text.as_bytes(), &mut collapsed).unwrap();
    let collapsed = String::from_utf8(collapsed).unwrap();
    let found: BTreeMap<String, u64> = collapsed
        .lines()
        .map(|line| line.rsplit_once(' ').unwrap())
        // It counts what the event counts.
        .map(|(stack, weight)| (stack.to_owned(), weight.parse::<u64>().unwrap() / PERIOD))
        .collect();
    assert_eq!(found, by_stack(&profile), "{text}");
}

#[test]
fn perf_script_is_read_back_with_its_times() {
    let profile = timed(processes());
    let text = written(&profile, Format::PerfScript, &Options::default());
    let (import, source) = read(text.as_bytes()).unwrap();
    assert_eq!(
        (source, import.notes),
        (Source::PerfScript, Vec::<String>::new())
    );
    let back = import.profile;
    assert_eq!(by_stack(&back), by_stack(&profile));
    assert_eq!(back.total(), profile.total());
    assert_eq!(
        (back.info.event.as_str(), back.info.unit.as_str()),
        ("cpu-clock", "nanoseconds")
    );
    let times = |profile: &Profile| -> Vec<i64> {
        let timestamps = &profile.timestamps;
        let list = timestamps.list.iter();
        list.map(|at| timestamps.start_unix_ns + at.at_ns as i64)
            .collect()
    };
    assert_eq!(times(&back), times(&profile));
}

#[test]
fn what_has_no_time_is_spread_and_that_is_said() {
    let profile = from_lines("comm=app main 4");
    let text = written(&profile, Format::PerfScript, &Options::default());
    assert!(
        text.contains("# fleetprof: 4 samples spread evenly"),
        "{text}"
    );
    let (import, _) = read(text.as_bytes()).unwrap();
    let at: Vec<u64> = import
        .profile
        .timestamps
        .list
        .iter()
        .map(|at| at.at_ns)
        .collect();
    assert_eq!(at, [0, 2_500_000_000, 5_000_000_000, 7_500_000_000]);
}

proptest! {
    #[test]
    fn whatever_the_names_perf_script_keeps_every_sample(samples in samples()) {
        let mut samples = samples;
        for sample in &mut samples {
            sample.count %= 5;
        }
        samples.retain(|sample| sample.count > 0);
        let profile = timed(build(&samples));
        let text = written(&profile, Format::PerfScript, &Options::default());
        match read(text.as_bytes()) {
            Ok((import, Source::PerfScript)) => {
                prop_assert_eq!(import.profile.total(), profile.total());
                prop_assert!(import.notes.is_empty(), "{:?}", import.notes);
            }
            Ok((_, source)) => prop_assert!(false, "{source:?}"),
            Err(error) => prop_assert!(samples.is_empty(), "{error}"),
        }
    }

    #[test]
    fn no_bytes_make_a_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes);
        let text: String = bytes.iter().map(|&byte| char::from(b" \t\n0189a:;.[]/()+x#{}\""[byte as usize % 22])).collect();
        let _ = read(text.as_bytes());
    }
}

// ---- Firefox -----------------------------------------------------------------------------------

fn firefox_json(profile: &Profile, measure: Measure) -> serde_json::Value {
    let options = Options {
        measure,
        ..Options::default()
    };
    let text = written(profile, Format::Firefox, &options);
    no_hostile_character(&text);
    serde_json::from_str(&text).unwrap()
}

fn weights(thread: &serde_json::Value) -> i64 {
    let column = thread["samples"]["weight"].as_array().unwrap();
    column.iter().map(|weight| weight.as_i64().unwrap()).sum()
}

#[test]
fn firefox_files_say_their_version_and_have_every_sample() {
    let profile = timed(hostile());
    let json = firefox_json(&profile, Measure::Count);
    assert_eq!(json["meta"]["preprocessedProfileVersion"], firefox::VERSION);
    assert_eq!(json["meta"]["symbolicated"], true);
    let threads = json["threads"].as_array().unwrap();
    let sum: i64 = threads.iter().map(weights).sum();
    assert_eq!(sum as u64, profile.total().count);
    let names: Vec<_> = threads
        .iter()
        .map(|thread| thread["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["app", "</title>;\\x1b]0;x\\x07"]);
    let start = json["meta"]["startTime"].as_f64().unwrap();
    assert_eq!(start, profile.info.start_unix_ns as f64 / 1e6);
}

#[test]
fn firefox_weighs_in_milliseconds_when_time_is_asked_for() {
    let json = firefox_json(&from_lines("comm=a main 7"), Measure::Weight);
    let thread = &json["threads"][0];
    assert_eq!(thread["samples"]["weightType"], "tracing-ms");
    assert_eq!(weights(thread), 70);
    let product = json["meta"]["product"].as_str().unwrap();
    assert!(product.contains("7 samples spread evenly"), "{product}");
}

// ---- heat maps and pages -----------------------------------------------------------------------

fn map(profile: &Profile) -> HeatMap {
    HeatMap::new(&profile.timestamps, Grid::default()).unwrap()
}

#[test]
fn a_heat_map_as_json_has_its_cells() {
    let profile = timed(from_lines("comm=a main 3"));
    let mut out = Vec::new();
    heatmap::write_json(&profile, &map(&profile), &mut out).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r#"{"schema":"fleetprof.heatmap/1","start_unix_ns":1700000000000000000,"column_ns":1000000000,"columns":11,"rows":50,"covered":{"start_unix_ns":1700000000500000000,"duration_ns":10000000000},"event":"cpu-clock","unit":"nanoseconds","total":{"count":3,"weight":30000000},"dropped":0,"cells":[[0,25,1,10000000],[0,26,1,10000000],[0,28,1,10000000]]}"#);
}

#[test]
fn a_heat_map_as_a_picture_says_what_it_shows() {
    let mut profile = timed(hostile());
    profile.timestamps.dropped = 5;
    profile.info.event = "<b>&\u{202e}".to_owned();
    let options = Options {
        title: "<script>alert(1)</script>\x1b".to_owned(),
        ..Options::default()
    };
    let mut out = Vec::new();
    heatmap::write_svg(&profile, &map(&profile), &options, &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    no_hostile_character(&text);
    assert!(!text.contains("<script") && !text.contains("<b>"), "{text}");
    for part in [
        "&lt;script&gt;",
        "41 samples with their times",
        "5 more whose time was not kept",
        "not covered",
        "20 ms",
        "22:13:20",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// What stands between the tags of the page's data.
fn page_data(page: &str) -> serde_json::Value {
    let (_, rest) = page.split_once("id=\"data\">").unwrap();
    let (data, _) = rest.split_once("</script>").unwrap();
    serde_json::from_str(data).unwrap()
}

fn sum(column: &serde_json::Value) -> u64 {
    column
        .as_array()
        .unwrap()
        .iter()
        .map(|value| value.as_u64().unwrap())
        .sum()
}

/// The page loads nothing from elsewhere, and its policy forbids it.
fn stands_alone(page: &str) {
    assert!(page.contains("http-equiv=\"Content-Security-Policy\" content=\"default-src 'none';"));
    let page = page.replace("http://www.w3.org/", "");
    for reference in [
        "http://", "https://", "src=", "href=", "@import", "url(", "fetch(", "import(",
    ] {
        assert!(!page.contains(reference), "{reference}");
    }
    assert_eq!(page.matches("</script>").count(), 2, "data and script");
    no_hostile_character(&page);
}

#[test]
fn a_bundle_stands_alone_and_says_what_is_known() {
    let mut profile = timed(hostile());
    profile.timestamps.dropped = 2;
    let fact = |name: &str, value: &str| Fact {
        group: "</h2><script>".to_owned(),
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let options = Options {
        title: "</title><script>alert(1)</script>".to_owned(),
        facts: vec![
            fact("query", "unit=\"<img onerror=x>\""),
            fact("\x1b", &"x".repeat(1 << 20)),
        ],
        ..Options::default()
    };
    let page = written(&profile, Format::Bundle, &options);
    stands_alone(&page);
    assert!(page.len() < 250_000, "a fact is bounded");
    for text in [
        "unit=\"&lt;img onerror=x&gt;\"",
        "<dt>lost</dt><dd>1</dd>",
        "<dt>not kept</dt><dd>2</dd>",
        "&lt;/h2&gt;&lt;script&gt;",
        "<dt>event</dt><dd>cpu-clock</dd>",
    ] {
        assert!(page.contains(text), "{text}");
    }
    let data = page_data(&page);
    assert_eq!(sum(&data["times"]["count"]), profile.total().count);
    assert_eq!(sum(&data["times"]["weight"]), profile.total().weight);
    assert_eq!(data["times"]["dropped"], 2);
    // Each entry is of a node that has these samples itself.
    let mut by_node: BTreeMap<u64, u64> = BTreeMap::new();
    let (nodes, counts) = (&data["times"]["node"], &data["times"]["count"]);
    for (node, count) in nodes
        .as_array()
        .unwrap()
        .iter()
        .zip(counts.as_array().unwrap())
    {
        *by_node.entry(node.as_u64().unwrap()).or_default() += count.as_u64().unwrap();
    }
    for (node, count) in by_node {
        assert_eq!(data["nodes"]["count"][node as usize], count);
    }
}

#[test]
fn a_bundle_without_times_has_no_heat_map_and_says_so() {
    let page = written(&hostile(), Format::Bundle, &Options::default());
    stands_alone(&page);
    assert!(page_data(&page)["times"].is_null());
    assert!(page.contains("there is no heat map"));
}

#[test]
fn a_bundle_is_bounded_and_says_what_was_folded() {
    let long = "<".repeat(3_000);
    let lines: String = (0..2_000)
        .map(|at| format!("comm=a main;{long}{at} {}\n", 1 + at % 3))
        .collect();
    let profile = timed(from_lines(&lines));
    let page = written(&profile, Format::Bundle, &Options::default());
    assert!(
        page.len() < html::BUNDLE_BYTES_MAX + (1 << 20),
        "{}",
        page.len()
    );
    let data = page_data(&page);
    let (_, quality) = page.split_once("<p id=\"quality\">").unwrap();
    let (quality, _) = quality.split_once("</p>").unwrap();
    assert!(
        quality.contains("smallest bars are folded into [other], "),
        "{quality}"
    );
    assert!(page.contains("<dt>folded</dt>"));
    assert_eq!(sum(&data["nodes"]["count"]), profile.total().count);
    assert_eq!(sum(&data["times"]["count"]), profile.total().count);
}

#[test]
fn a_page_with_a_heat_map_stands_alone() {
    let profile = timed(hostile());
    let mut out = Vec::new();
    html::write_heat_map(&profile, &map(&profile), &Options::default(), &mut out).unwrap();
    let page = String::from_utf8(out).unwrap();
    stands_alone(&page);
    assert!(!page.contains("<details"));
    assert_eq!(
        sum(&page_data(&page)["times"]["count"]),
        profile.total().count
    );
}

#[test]
fn a_query_takes_the_moments_of_the_samples_it_takes() {
    let profile = timed(from_lines("comm=a main;f 3\ncomm=b main;g 2"));
    let selector = "comm=\"a\"".parse().unwrap();
    let query = profile::Query::new(selector, Vec::new(), profile::GroupBy::All).unwrap();
    let part = profile.query(&query);
    let of_a = |key: profile::SampleKey| part.dict.label(key.labels, key::COMM) == Some("a");
    assert_eq!(part.timestamps.list.len(), 3);
    assert!(
        part.timestamps
            .list
            .iter()
            .all(|timestamp| of_a(timestamp.key))
    );
    assert_eq!(part.timestamps.duration_ns, profile.timestamps.duration_ns);
}

// ---- reading -----------------------------------------------------------------------------------

#[test]
fn what_a_file_is_is_told_by_what_is_in_it() {
    let profile = timed(from_lines(
        "comm=app,pid=3 main;work 5\ncomm=app,pid=3 main 2",
    ));
    for (format, source) in [
        (Format::Json, Source::Json),
        (Format::Pprof, Source::Pprof),
        (Format::Speedscope, Source::Speedscope),
        (Format::PerfScript, Source::PerfScript),
        (Format::Folded, Source::Folded),
    ] {
        let mut bytes = Vec::new();
        formats::write(&profile, format, &Options::default(), &mut bytes).unwrap();
        for bytes in [bytes.clone(), packed(&bytes)] {
            let (import, found) = read(&bytes).unwrap_or_else(|error| panic!("{format}: {error}"));
            assert_eq!(found, source, "{format}");
            let total = import.profile.total();
            let expected = profile.total();
            match format {
                // Equal stacks are written once there.
                Format::Speedscope => assert_eq!(total.weight, expected.weight),
                _ => assert_eq!(total.count, expected.count, "{format}"),
            }
            let keeps = matches!(format, Format::Json | Format::PerfScript);
            assert_eq!(!import.profile.timestamps.is_absent(), keeps, "{format}");
        }
    }
}

#[test]
fn what_cannot_be_read_says_what_it_is() {
    for (bytes, expected) in [
        (&b""[..], "empty"),
        (b"\n \n", "empty"),
        (b"\x28\xb5\x2f\xfd\x00", "compressed with zstd"),
        (b"PERFILE2\x00\x00", "unpack it first"),
        (b"hello\nworld\n", "the format is unknown: expected pprof"),
        (b"{\"a\":1}", "not from fleetprof or speedscope"),
        (b"{\"a\":1", "failed to parse JSON"),
        (b"{\"meta\":{},\"threads\":[]}", "Firefox Profiler"),
        (b"<!DOCTYPE html>", "there is no profile in it"),
        (b"a;b 1\nc\n", "line 2 does not end in a count"),
        (b"a;b 1 2\na;c 0 5\n", "two counts"),
        (b"\x1f\x8b\x08\x00", "failed to unpack"),
    ] {
        let error = read(bytes).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let bomb = packed(&vec![b' '; 2 << 20]);
    assert!(matches!(read(&bomb), Err(ImportError::TooLarge { .. })));
}

#[test]
fn of_a_compressed_text_that_is_cut_the_start_is_read() {
    let text: String = (0..5_000)
        .map(|at| format!("main;f{at}x{} 1\n", at * 7919 % 10_007))
        .collect();
    let whole = packed(text.as_bytes());
    let error_or = read(&whole[..whole.len() / 2]);
    match error_or {
        Ok((import, Source::Folded)) => {
            assert!(
                import
                    .notes
                    .iter()
                    .any(|note| note.contains("cut or damaged"))
            );
            assert!(import.profile.total().count > 0);
        }
        // The cut may fall inside the last line's count.
        Err(ImportError::Folded(folded::ReadError::NoCount { .. })) => {}
        other => panic!("{other:?}"),
    }
}
