//! The quality line: what a profile covers and what it misses, in one line for people.

use crate::profile::Info;
use crate::sample::Waits;
use crate::text::grouped;
use std::fmt::Write as _;

/// Times before are no dates: no kernel with perf events ran before 2000. They are counted from the
/// start of a machine or of a program. Unit: nanoseconds since the Unix epoch.
const DATES_FROM_NS: i64 = 946_684_800 * 1_000_000_000;

/// True for a time that is counted from something else than the Unix epoch.
pub fn is_dateless(unix_ns: i64) -> bool {
    (0..DATES_FROM_NS).contains(&unix_ns)
}

/// What a side of a comparison is made of: samples taken, and samples lost.
pub(super) fn side_line(info: &Info) -> String {
    let (taken, lost) = (info.quality.taken, info.quality.lost_samples);
    format!("{} samples, {} lost", grouped(taken), grouped(lost))
}

/// One line: samples, event, time range in UTC, and what is missing. Causes that are always worth
/// knowing stand even at 0, the others only when they happened.
pub fn quality_line(info: &Info) -> String {
    let quality = &info.quality;
    let mut line = format!("{} samples", grouped(quality.taken));
    if !info.event.is_empty() {
        let _ = write!(line, " of {}", crate::text::printable(&info.event));
    }
    let has_times = info.start_unix_ns != 0 || info.duration_ns != 0;
    if has_times && is_dateless(info.start_unix_ns) {
        let start = info.start_unix_ns as f64 * 1e-9;
        let end = start + info.duration_ns as f64 * 1e-9;
        let _ = write!(line, " · {start:.3} s – {end:.3} s");
    } else if has_times {
        let start = info.start_unix_ns.div_euclid(1_000_000_000);
        let length = i64::try_from(info.duration_ns / 1_000_000_000).unwrap_or(i64::MAX);
        let end = start.saturating_add(length);
        let (from, to) = (utc(start), utc(end));
        let same_day = from.split(' ').next() == to.split(' ').next();
        let to = if same_day {
            to.split(' ').next_back().unwrap_or(&to)
        } else {
            &to
        };
        let _ = write!(line, " · {from} – {to} UTC");
    }
    let _ = write!(line, " · {} records lost", grouped(quality.lost));
    for (count, word) in [
        (quality.truncated, "truncated"),
        (quality.unnamed, "unnamed"),
    ] {
        let _ = write!(line, " · {} {word}", percent(count, quality.taken));
        if word == "truncated" && quality.depth_limit > 0 {
            let share = percent(quality.depth_limit, quality.taken);
            let _ = write!(line, " ({share} by the depth limit)");
        }
    }
    for (count, word) in [
        (quality.lost_samples, "samples lost"),
        (quality.throttled, "throttled"),
        (quality.folded, "folded"),
        (quality.malformed, "malformed"),
        (quality.reduced, "reduced"),
    ] {
        if count > 0 {
            let _ = write!(line, " · {} {word}", grouped(count));
        }
    }
    if info.waits != Waits::default() {
        waits(&mut line, info);
    }
    if let Some(share) = info.coverage.share() {
        let _ = write!(line, " · coverage {:.1} %", share * 100.0);
    }
    line
}

/// How far waits and their stacks are known: those that are estimates or missing.
fn waits(line: &mut String, info: &Info) {
    let waits = &info.waits;
    let seconds = |ns: u64| format!("{:.3} s", ns as f64 * 1e-9);
    let cause = match crate::text::printable(&info.waits_cause) {
        cause if cause.is_empty() => String::new(),
        cause => format!(", {cause}"),
    };
    if waits.estimated > 0 {
        let (count, length) = (grouped(waits.estimated), seconds(waits.estimated_ns));
        let _ = write!(
            line,
            " · {count} waits ({length}) end at their wake-up{cause}"
        );
    }
    if waits.dropped > 0 {
        let (count, length) = (grouped(waits.dropped), seconds(waits.dropped_ns));
        let _ = write!(line, " · {count} waits (at most {length}) dropped{cause}");
    }
    for (ns, what) in [
        (waits.cut_ns, "of the time under cut stacks"),
        (
            waits.alike_ns,
            "of the time under stacks with estimated callers",
        ),
    ] {
        if ns > 0 {
            let _ = write!(line, " · {} {what}", percent(ns, waits.taken_ns()));
        }
    }
}

fn percent(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return format!("{part}");
    }
    format!("{:.1} %", part as f64 * 100.0 / whole as f64)
}

/// `YYYY-MM-DD hh:mm:ss` of seconds since the Unix epoch, in the proleptic Gregorian calendar.
pub(super) fn utc(seconds: i64) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Days are counted from 1 March of year 0, so that the leap day ends a year; 146,097 days are
    // four centuries.
    let days = days + 719_468;
    let (era, day_of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 {
        month_from_march + 3
    } else {
        month_from_march - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::Coverage;
    use crate::sample::Quality;

    #[test]
    fn times_are_calendar_times() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00"),
            (-1, "1969-12-31 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (951_868_800, "2000-03-01 00:00:00"),
            (1_795_222_720, "2026-11-21 00:58:40"),
            (4_107_542_400, "2100-03-01 00:00:00"),
        ] {
            assert_eq!(utc(seconds), expected);
        }
    }

    #[test]
    fn the_line_says_what_is_missing() {
        let info = Info {
            start_unix_ns: 1_795_222_720_500_000_000,
            duration_ns: 300_000_000_000,
            event: "cpu-clock".into(),
            unit: "nanoseconds".into(),
            period: 0,
            coverage: Coverage::default(),
            waits: crate::Waits::default(),
            waits_cause: String::new(),
            quality: Quality {
                taken: 12_345,
                lost: 3,
                truncated: 246,
                depth_limit: 123,
                throttled: 1,
                ..Quality::default()
            },
        };
        assert_eq!(
            quality_line(&info),
            "12,345 samples of cpu-clock · 2026-11-21 00:58:40 – 01:03:40 UTC · 3 records lost · \
             2.0 % truncated (1.0 % by the depth limit) · 0 unnamed · 1 throttled"
        );
    }

    #[test]
    fn an_empty_profile_has_a_line_too() {
        assert_eq!(
            quality_line(&Info::default()),
            "0 samples · 0 records lost · 0 truncated · 0 unnamed"
        );
    }

    #[test]
    fn extreme_times_do_not_overflow() {
        let info = Info {
            start_unix_ns: i64::MIN,
            duration_ns: u64::MAX,
            ..Info::default()
        };
        assert!(quality_line(&info).contains("UTC"));
    }
}
