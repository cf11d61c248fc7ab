//! Tests times, ranges and durations as people write them, in zones that change their clocks.

use super::*;

const S: i64 = 1_000_000_000;

/// 2026-11-21 12:00:00 UTC, seen from two hours east.
fn clock() -> Clock {
    Clock {
        now: "2026-11-21T12:00:00Z".parse().unwrap(),
        zone: TimeZone::fixed(jiff::tz::offset(2)),
    }
}

#[track_caller]
fn check(text: &str, expected: &str) {
    assert_eq!(
        clock().parse(text).map(rfc3339).as_deref(),
        Ok(expected),
        "{text}"
    );
}

#[test]
fn every_form_of_time_is_read() {
    check("now", "2026-11-21T12:00:00Z");
    check("1w", "2026-11-14T12:00:00Z");
    check("-1y", "2025-11-21T12:00:00Z");
    check("2d12h", "2026-11-19T00:00:00Z");
    check("99y", "1970-01-01T00:00:00Z");
    check("5m", "2026-11-21T11:55:00Z");
    check("-1h30m", "2026-11-21T10:30:00Z");
    check("90.5s", "2026-11-21T11:58:29.5Z");
    check("-1.5m", "2026-11-21T11:58:30Z");
    check("13:30:05.25", "2026-11-21T11:30:05.25Z");
    check("2026-11-21T11:03:00.125Z", "2026-11-21T11:03:00.125Z");
    check("2026-11-21 11:03:07.5", "2026-11-21T09:03:07.5Z");
    check("14:00", "2026-11-21T12:00:00Z");
    check("13:30:05", "2026-11-21T11:30:05Z");
    check("2026-11-21T11:03:00Z", "2026-11-21T11:03:00Z");
    check("2026-11-21T11:03:00+01:00", "2026-11-21T10:03:00Z");
    check("2026-11-21T11:03", "2026-11-21T09:03:00Z");
    check("2026-11-21 11:03:07", "2026-11-21T09:03:07Z");
    check("2026-11-21", "2026-11-20T22:00:00Z");
    check("10 min ago", "2026-11-21T11:50:00Z");
    check("2 hours ago", "2026-11-21T10:00:00Z");
    check("1 day 2h ago", "2026-11-20T10:00:00Z");
    check("today", "2026-11-20T22:00:00Z");
    check("yesterday", "2026-11-19T22:00:00Z");
    check("yesterday 14:03", "2026-11-20T12:03:00Z");
    check("@1763733780", "2025-11-21T14:03:00Z");
    check("1763733780.5", "2025-11-21T14:03:00.5Z");
}

#[test]
fn a_time_of_day_that_is_not_yet_was_yesterday() {
    check("14:01", "2026-11-20T12:01:00Z");
}

#[test]
fn nonsense_is_refused() {
    for text in [
        "",
        "soon",
        "5",
        "5 parsecs",
        "25:00",
        "2026-13-01",
        "@",
        "@1.2.3",
        "--5m",
        "1.5",
        "14:00.5",
        "1.2.3s",
        "ago",
        "5 ago",
        "soon ago",
        "yesterday noonish",
        "tomorrow",
    ] {
        assert!(clock().parse(text).is_err(), "{text}");
    }
    for text in [
        "",
        "m",
        "5",
        "1h 30m x",
        "-5m",
        "1..2s",
        "9999999999d",
        "inf",
        "1e9s",
    ] {
        assert!(duration(text).is_err(), "{text}");
    }
}

#[test]
fn ranges_may_be_open() {
    let now = clock().now_ns();
    let range = |text| clock().parse_range(text).map(|found| found.range);
    let expected = Range {
        start_ns: now - 3600 * S,
        end_ns: now - 1800 * S,
    };
    assert_eq!(range("-1h..-30m"), Ok(expected));
    assert_eq!(
        range("-5m.."),
        Ok(Range {
            start_ns: now - 300 * S,
            end_ns: 0
        })
    );
    assert_eq!(
        range("..10m"),
        Ok(Range {
            start_ns: 0,
            end_ns: now - 600 * S
        })
    );
    assert_eq!(range("1m..5m"), Err(WhenError::Backwards("1m..5m".into())));
    assert_eq!(range("5m"), Err(WhenError::Range("5m".into())));
}

/// Start and end of a range in UTC, and what is said of it.
fn resolved(clock: &Clock, text: &str) -> (String, String, Vec<String>) {
    let found = clock.parse_range(text).expect("a range");
    let end = match found.range.end_ns {
        0 => "now".to_owned(),
        ns => rfc3339(ns),
    };
    (rfc3339(found.range.start_ns), end, found.notes)
}

#[test]
fn an_end_belongs_to_the_day_of_the_start() {
    let shown = |text| resolved(&clock(), text);
    // It is 14:00 there.
    let (start, end, notes) = shown("13:00..13:30");
    assert_eq!(
        (start.as_str(), end.as_str(), notes.len()),
        ("2026-11-21T11:00:00Z", "2026-11-21T11:30:00Z", 0)
    );
    // Over midnight.
    let (start, end, notes) = shown("23:50..00:10");
    assert_eq!(
        (start.as_str(), end.as_str()),
        ("2026-11-20T21:50:00Z", "2026-11-20T22:10:00Z")
    );
    assert_eq!(
        notes,
        ["`23:50` is 2026-11-20 23:50:00 +02:00, yesterday: today that time is in the future"]
    );
    let (_, end, _) = shown("2026-11-19T08:00..09:00");
    assert_eq!(end, "2026-11-19T07:00:00Z");
    let backwards = clock().parse_range("13:30..13:00");
    assert!(matches!(backwards, Err(WhenError::Backwards(_))));
}

#[test]
fn an_end_some_minutes_after_midnight_belongs_to_a_start_before_it() {
    let clock = Clock {
        now: "2026-11-21T00:05:00Z".parse().expect("a time"),
        zone: TimeZone::UTC,
    };
    let (start, end, _) = resolved(&clock, "23:50..00:10");
    assert_eq!(
        (start.as_str(), end.as_str()),
        ("2026-11-20T23:50:00Z", "now")
    );
}

#[test]
fn an_end_in_the_future_is_now_and_a_start_there_is_refused() {
    let shown = |text| resolved(&clock(), text);
    let (_, end, notes) = shown("13:58..14:01");
    assert_eq!((end.as_str(), notes.len()), ("now", 0));
    let (_, end, notes) = shown("13:58..14:30");
    assert_eq!(end, "now");
    assert!(notes[0].contains("in the future"), "{notes:?}");
    let (_, end, _) = shown("-1h..2027-01-01");
    assert_eq!(end, "now");
    // Alone it is what nearly everybody means by it.
    assert_eq!(shown("..14:01").1, "now");
    assert_eq!(shown("..14:30").1, "2026-11-20T12:30:00Z");
    let error = clock().parse_range("2027-01-01..").unwrap_err().to_string();
    assert_eq!(
        error,
        "failed to use time `2027-01-01`: it is in the future (it is 2026-11-21 14:00:00 +02:00 now)"
    );
}

/// Zones, and moments next to their midnights and changes of clocks.
fn clocks() -> Vec<Clock> {
    let berlin = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").expect("a zone");
    let new_york = TimeZone::posix("EST5EDT,M3.2.0,M11.1.0").expect("a zone");
    // Half an hour of it.
    let lord_howe = TimeZone::posix("<+1030>-10:30<+11>-11,M10.1.0,M4.1.0").expect("a zone");
    let mut clocks = Vec::new();
    for (zone, days) in [
        (
            TimeZone::UTC,
            ["2026-11-22T00:00:00Z", "2026-03-29T00:00:00Z"],
        ),
        (berlin, ["2026-03-29T01:00:00Z", "2026-10-25T01:00:00Z"]),
        (new_york, ["2026-03-08T07:00:00Z", "2026-11-01T06:00:00Z"]),
        (lord_howe, ["2026-04-04T15:00:00Z", "2026-10-03T15:30:00Z"]),
    ] {
        for day in days {
            let change: Timestamp = day.parse().expect("a time");
            for minutes in (-26 * 60..26 * 60).step_by(13) {
                let off = SignedDuration::from_secs(minutes * 60 + 7);
                clocks.push(Clock {
                    now: change.checked_add(off).expect("a time"),
                    zone: zone.clone(),
                });
            }
        }
    }
    clocks
}

#[test]
fn a_time_of_day_is_the_last_one_in_every_zone_and_at_every_hour() {
    const DAY_NS: i64 = 86_400 * S;
    for clock in clocks() {
        for minute in (0..24 * 60).step_by(31) {
            let text = format!("{:02}:{:02}", minute / 60, minute % 60);
            let found = clock.parse(&text).expect("a time");
            let back = clock.now_ns() - found;
            // A day with a change of clocks has an hour more.
            assert!((0..=DAY_NS + 3600 * S).contains(&back), "{clock:?} {text}");
            let shown = clock.zoned(found).strftime("%H:%M").to_string();
            let skipped = shown != text;
            if skipped {
                let before = clock.zoned(found - 3600 * S).offset();
                assert_ne!(before, clock.zoned(found).offset(), "{clock:?} {text}");
                continue;
            }
            // No later moment looked the same: clocks change by full half hours.
            let mut later = found + 1800 * S;
            while later <= clock.now_ns() {
                let again = clock.zoned(later).strftime("%H:%M").to_string();
                assert_ne!(again, text, "{clock:?}");
                later += 1800 * S;
            }
        }
    }
}

#[test]
fn two_times_of_day_are_a_range_that_lies_between_them_or_an_error() {
    let mut ranges = 0;
    for clock in clocks().iter().step_by(7) {
        for from in (0..24 * 60).step_by(47) {
            for length in [1, 5, 59, 12 * 60, 23 * 60] {
                let of_day = |minute: i64| format!("{:02}:{:02}", minute / 60 % 24, minute % 60);
                let text = format!("{}..{}", of_day(from), of_day(from + length));
                let Ok(Resolved { range, .. }) = clock.parse_range(&text) else {
                    continue;
                };
                ranges += 1;
                let end_ns = match range.end_ns {
                    0 => clock.now_ns(),
                    ns => ns,
                };
                assert!(range.start_ns <= clock.now_ns(), "{clock:?} {text}");
                assert!(end_ns >= range.start_ns, "{clock:?} {text}");
                assert!(end_ns <= clock.now_ns(), "{clock:?} {text}");
                // Clocks that change make it an hour longer or shorter.
                let minutes = (end_ns - range.start_ns) / (60 * S);
                assert!(minutes <= length + 60, "{clock:?} {text}: {minutes}");
            }
        }
    }
    assert!(ranges > 1000, "{ranges}");
}

#[test]
fn times_are_shown_with_their_zone() {
    let at = clock().now_ns();
    assert_eq!(clock().show(at), "2026-11-21 14:00:00 +02:00");
    assert_eq!(clock().show_time(at), "14:00:00 +02:00");
    let range = |from, to| clock().show_range(from, to);
    assert_eq!(
        range(at, at + 60 * S),
        "2026-11-21 14:00:00 to 14:01:00 +02:00"
    );
    assert_eq!(
        range(at - 86_400 * S, at),
        "2026-11-20 14:00:00 to 2026-11-21 14:00:00 +02:00"
    );
    let utc = Clock {
        zone: TimeZone::UTC,
        ..clock()
    };
    assert_eq!(utc.show(at), "2026-11-21 12:00:00 UTC");
    // Since a machine started, in the text of perf.
    assert_eq!(
        range(2_454 * S, 2_474 * S + S / 4),
        "2454.000 s to 2474.250 s"
    );
}

#[test]
fn an_age_may_have_a_minus() {
    assert_eq!(age("-5m"), Ok(Duration::from_secs(300)));
    assert_eq!(age("5m"), Ok(Duration::from_secs(300)));
    assert!(age("--5m").is_err());
}

#[test]
fn a_duration_beyond_all_use_is_said_to_be_too_long() {
    let text = "99999999d";
    assert_eq!(duration(text), Err(WhenError::TooLong(text.into())));
}

#[test]
fn durations_add_up() {
    assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
    assert_eq!(duration("2d12h"), Ok(Duration::from_secs(60 * 3600)));
    assert_eq!(duration("1w"), Ok(Duration::from_secs(7 * 86_400)));
    assert_eq!(duration("1y"), Ok(Duration::from_secs(365 * 86_400)));
    assert_eq!(duration("1y2w"), Ok(Duration::from_secs(379 * 86_400)));
    assert_eq!(duration("1.5s250ms"), Ok(Duration::from_millis(1750)));
    assert_eq!(duration("100us"), Ok(Duration::from_micros(100)));
    assert_eq!(duration("100µs"), Ok(Duration::from_micros(100)));
}

#[test]
fn since_takes_an_age_and_a_time() {
    assert_eq!(since("-5m"), Ok(Since::Age(Duration::from_secs(300))));
    for text in ["yesterday", "14:03", "10 min ago", "2026-11-21"] {
        assert_eq!(since(text), Ok(Since::Time(text.to_owned())), "{text}");
    }
    assert_eq!(since("soon"), Err(WhenError::Since("soon".to_owned())));
}
