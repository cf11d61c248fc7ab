//! Tests what formats say about a profile with sums in a coarser unit than agents use.
#![expect(clippy::unwrap_used, reason = "all of it is tests")]

mod support;

use profile::formats::{self, Format, ImportOptions, Measure, Options, pprof};
use profile::{FrameKind, Profile, StackEnd};
use support::{Sample, build};

/// A thousand hosts of 16 CPUs for a year, in microseconds: 27 times what 64 bits of nanoseconds
/// hold.
const FLEET_US: u64 = 16_000 * 365 * 86_400 * 1_000_000;

fn fleet() -> Profile {
    let frame = |name: &str| (FrameKind::Native, name.to_owned(), "app".to_owned());
    let mut profile = build(&[Sample {
        labels: Vec::new(),
        frames: vec![frame("main"), frame("work")],
        end: StackEnd::Complete,
        count: 7,
    }]);
    profile.rescale();
    assert_eq!(profile.info.unit, "microseconds");
    assert_eq!(profile.total().weight, 70_000);
    for value in profile.samples.values_mut() {
        value.weight = FLEET_US;
    }
    profile
}

fn by_weight(format: Format) -> Vec<u8> {
    let options = Options {
        measure: Measure::Weight,
        ..Options::default()
    };
    let mut out = Vec::new();
    formats::write(&fleet(), format, &options, &mut out).unwrap();
    out
}

fn text(format: Format) -> String {
    String::from_utf8(by_weight(format)).unwrap()
}

#[test]
fn pprof_says_cpu_in_microseconds() {
    let bytes = by_weight(Format::Pprof);
    let read = pprof::decode(&bytes, 1 << 20).unwrap();
    assert_eq!(read.info.unit, "microseconds");
    assert_eq!(read.info.period, 10_000);
    assert_eq!(read.total().weight, FLEET_US);
    assert_eq!(read.info.weight_label(), "CPU time");
}

#[test]
fn json_keeps_unit_and_weight() {
    let page = text(Format::Json);
    assert!(
        page.contains(r#""unit":"microseconds","period":10000"#),
        "{page}"
    );
    assert!(page.contains(&format!(r#""weight":{FLEET_US}"#)), "{page}");
}

#[test]
fn speedscope_has_the_unit_by_its_name() {
    let page = text(Format::Speedscope);
    assert!(page.contains(r#""unit":"microseconds""#), "{page}");
    assert!(page.contains(&FLEET_US.to_string()), "{page}");
    let options = ImportOptions {
        bytes_max: 1 << 20,
        profile: None,
    };
    let (back, _) = formats::import(page.as_bytes(), options).unwrap();
    assert_eq!(back.profile.info.unit, "microseconds");
    assert_eq!(back.profile.total().weight, FLEET_US);
}

#[test]
fn svg_counts_microseconds_as_they_are() {
    let page = text(Format::Svg);
    assert!(page.contains("504,576,000,000,000,000 µs"), "{page}");
}

#[test]
fn html_knows_that_the_unit_is_time() {
    let page = text(Format::Html);
    assert!(page.contains(r#""unit":"microseconds""#));
    assert!(page.contains("CPU time"));
}

#[test]
fn a_length_is_told_in_the_unit_that_suits_it() {
    let shown = |value, unit| formats::heatmap::amount(value, Measure::Weight, unit);
    assert_eq!(shown(1_500_000, "microseconds"), "1.5 s");
    assert_eq!(shown(1_500_000, "nanoseconds"), "1.5 ms");
    assert_eq!(shown(1_500_000, "kilocycles"), "1,500,000 kilocycles");
}

#[test]
fn weights_of_time_are_no_events_by_rate() {
    let mut profile = fleet();
    profile.info.period = 0;
    assert!(!profile.info.has_variable_weight());
}

#[test]
fn samples_of_waits_and_of_a_heap_weigh_different_amounts() {
    let info = |event: &str, unit: &str| profile::Info {
        event: event.to_owned(),
        unit: unit.to_owned(),
        period: 1000,
        ..profile::Info::default()
    };
    assert!(info(profile::OFF_CPU, "nanoseconds").has_variable_weight());
    assert!(info("wall", "nanoseconds").has_variable_weight());
    assert!(info("inuse_space", "bytes").has_variable_weight());
    assert!(!info("cycles", "cycles").has_variable_weight());
}

#[test]
fn only_time_on_a_cpu_is_cpu_time() {
    let is = |event: &str| {
        let info = profile::Info {
            event: event.to_owned(),
            unit: "nanoseconds".to_owned(),
            ..profile::Info::default()
        };
        info.is_cpu_time()
    };
    assert!(["", "cpu", "cpu-clock", "task-clock"].into_iter().all(is));
    let others = ["off-cpu", "off_cpu", "wall", "idle_cpu_wait", "samples"];
    assert!(!others.into_iter().any(is));
}
