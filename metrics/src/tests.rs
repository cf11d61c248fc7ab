//! Tests the encoding of families.

use super::*;

struct State {
    age_ms: u64,
}

rows! { ROWS: State;
    /// Age.
    Gauge fp_c_ms = |s| s.age_ms;
    /// Read when asked,
    /// on two lines.
    Gauge fp_d{..} = |_| vec![(
        vec![("name".into(), "a\"b\\c\nd".into()), ("n".into(), "1".into())],
        3.into(),
    )];
    /// Nothing to report.
    Gauge fp_e{..} = |_| Vec::new();
}

counted! {
    /// An example.
    struct Own;
    /// Things.
    Counter fp_a_total = things;
    /// Drops.
    Counter fp_b_total{cause} = "x" dropped_x, "y" dropped_y;
    /// Drops that wait.
    Gauge fp_b = waiting;
    /// Time.
    CounterNs fp_f_seconds_total = time_ns;
    /// Times.
    Histogram fp_g_seconds{kind} = "p" times [&[0.1, 1.0]];
}

fn example() -> Vec<Family> {
    let own = Own::default();
    own.things.inc_by(7);
    own.dropped_y.inc();
    own.waiting.set(2);
    own.time_ns.inc_by(1_500_000_000);
    own.times.observe(0.5);
    let mut families = own.families();
    families.extend(gather(ROWS, &State { age_ms: 4 }));
    families
}

#[test]
fn text_is_as_prometheus_reads_it() {
    let expected = r#"# HELP fp_a_total Things.
# TYPE fp_a_total counter
fp_a_total 7
# HELP fp_b Drops that wait.
# TYPE fp_b gauge
fp_b 2
# HELP fp_b_total Drops.
# TYPE fp_b_total counter
fp_b_total{cause="x"} 0
fp_b_total{cause="y"} 1
# HELP fp_c_ms Age.
# TYPE fp_c_ms gauge
fp_c_ms 4
# HELP fp_d Read when asked, on two lines.
# TYPE fp_d gauge
fp_d{name="a\"b\\c\nd",n="1"} 3
# HELP fp_e Nothing to report.
# TYPE fp_e gauge
# HELP fp_f_seconds_total Time.
# TYPE fp_f_seconds_total counter
fp_f_seconds_total 1.5
# HELP fp_g_seconds Times.
# TYPE fp_g_seconds histogram
fp_g_seconds_bucket{kind="p",le="0.1"} 0
fp_g_seconds_bucket{kind="p",le="1"} 1
fp_g_seconds_bucket{kind="p",le="+Inf"} 1
fp_g_seconds_sum{kind="p"} 0.5
fp_g_seconds_count{kind="p"} 1
"#;
    assert_eq!(encode(example(), Format::Text), expected);
}

#[test]
fn open_metrics_has_the_same_numbers_and_no_name_twice() {
    let text = encode(example(), Format::OpenMetrics);
    let found: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("# TYPE") || line.starts_with("fp_b"))
        .collect();
    let expected = [
        "# TYPE fp_a counter",
        "# TYPE fp_b gauge",
        "fp_b 2",
        "# TYPE fp_b_total unknown",
        "fp_b_total{cause=\"x\"} 0",
        "fp_b_total{cause=\"y\"} 1",
        "# TYPE fp_c_ms gauge",
        "# TYPE fp_d gauge",
        "# TYPE fp_e gauge",
        "# TYPE fp_f_seconds counter",
        "# TYPE fp_g_seconds histogram",
    ];
    assert_eq!(found, expected);
    assert!(text.contains("\nfp_a_total 7\n") && text.ends_with("\n# EOF\n"));
}

#[test]
fn the_form_is_the_one_that_was_asked_for() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4";
    assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
    let old = "text/plain;version=0.0.4;q=1,*/*;q=0.1";
    for accept in [Some(old), Some("*/*"), None] {
        assert_eq!(Format::accepted(accept), Format::Text);
    }
}

#[test]
fn numbers_carry_their_labels() {
    let counted: Vec<String> = counted(&example())
        .map(|counted| format!("{} {} {}", counted.name, counted.labels, counted.value))
        .collect();
    let expected = [
        "fp_a_total  7",
        "fp_b_total cause=\"x\" 0",
        "fp_b_total cause=\"y\" 1",
        "fp_b  2",
        "fp_f_seconds_total  1500000000",
        "fp_c_ms  4",
        "fp_d name=\"a\\\"b\\\\c\\nd\",n=\"1\" 3",
    ];
    assert_eq!(counted, expected);
}

#[test]
fn wrong_names_are_found() {
    assert_eq!(problems(&example()), Vec::<String>::new());
    let family = |name: &'static str, help, kind| Family {
        name: name.into(),
        help,
        kind,
        readings: Vec::new(),
    };
    let wrong = [
        family("fp_a", "No sentence", Kind::Counter),
        family("fp_b_total", "Gauge.", Kind::Gauge),
        family("fp-c", "Gauge.", Kind::Gauge),
        family("fp_d_total", "Time.", Kind::CounterNs),
        family("fp_d_total", "Twice.", Kind::Counter),
    ];
    assert_eq!(problems(&wrong).len(), 6);
}
