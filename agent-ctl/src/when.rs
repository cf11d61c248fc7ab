//! Times and durations as people write them, and the only place that reads the wall clock.
//!
//! A time is `now`, `5m` or `-5m` (ago), `14:03` (the last time it was), `2026-11-21`,
//! `2026-11-21T14:03[:05]` in local time or with `Z` or an offset, or Unix seconds (`@1763733780` or
//! bare). A range is `A..B` with either side left out.

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Unit, Zoned};
use std::time::Duration;

/// A time or duration that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhenError {
    /// Not a duration.
    #[error(
        "failed to read duration `{0}`: expected a number with ms, s, m, h, d, w or y, as in `2d12h`"
    )]
    Duration(String),
    /// A duration that no agent can look back.
    #[error("failed to use duration `{0}`: it is longer than 100 years")]
    TooLong(String),
    /// Not a time.
    #[error(
        "failed to read time `{0}`: expected `now`, an age (`5m`), `14:03`, \
         `2026-11-21T14:03:00Z` or Unix seconds"
    )]
    Time(String),
    /// Not a range.
    #[error("failed to read range `{0}`: expected `FROM..TO`, as in `-1h..-30m`")]
    Range(String),
    /// The end is not after the begin.
    #[error("failed to use range `{0}`: it ends before it begins")]
    Backwards(String),
}

/// What relative times and times of day are counted from.
#[derive(Clone, Debug)]
pub struct Clock {
    now: Timestamp,
    zone: TimeZone,
}

impl Clock {
    /// This machine's clock and time zone.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the wall clock"
    )]
    pub fn local() -> Clock {
        let now =
            Timestamp::try_from(std::time::SystemTime::now()).unwrap_or(Timestamp::UNIX_EPOCH);
        Clock {
            now,
            zone: TimeZone::system(),
        }
    }

    /// Another machine's clock, shown in this machine's time zone.
    pub fn at(unix_ns: i64) -> Clock {
        Clock {
            now: timestamp(unix_ns),
            zone: TimeZone::system(),
        }
    }

    /// Now, in nanoseconds since the Unix epoch.
    pub fn now_ns(&self) -> i64 {
        nanoseconds(self.now)
    }

    /// This long ago, in nanoseconds since the Unix epoch.
    pub fn ago_ns(&self, age: Duration) -> i64 {
        let age_ns = i64::try_from(age.as_nanos()).unwrap_or(i64::MAX);
        // Nobody kept anything before 1970, and 0 has a meaning of its own.
        self.now_ns().saturating_sub(age_ns).max(1)
    }

    /// Reads a time; nanoseconds since the Unix epoch.
    ///
    /// # Errors
    /// When `text` is none of the forms above.
    pub fn parse(&self, text: &str) -> Result<i64, WhenError> {
        let text = text.trim();
        let error = || WhenError::Time(text.to_owned());
        if text == "now" {
            return Ok(self.now_ns());
        }
        if let Ok(age) = duration(text.strip_prefix('-').unwrap_or(text)) {
            return Ok(self.ago_ns(age));
        }
        if let Some(seconds) = unix_seconds(text) {
            return Ok(seconds);
        }
        if let Ok(time) = text.parse::<Timestamp>() {
            return Ok(nanoseconds(time));
        }
        // With a fraction of a second a time of day is longer; a date has no `.` without one.
        let of_day = text.split('.').next().unwrap_or(text);
        if of_day.len() <= 8
            && let Ok(time) = text.parse::<Time>()
        {
            let here = self.now.to_zoned(self.zone.clone());
            let mut day = here.date();
            if time > here.time() {
                day = day.yesterday().map_err(|_| error())?;
            }
            return self.civil(day.to_datetime(time)).ok_or_else(error);
        }
        text.parse::<DateTime>()
            .ok()
            .and_then(|time| self.civil(time))
            .ok_or_else(error)
    }

    fn civil(&self, time: DateTime) -> Option<i64> {
        time.to_zoned(self.zone.clone())
            .ok()
            .map(|zoned| nanoseconds(zoned.timestamp()))
    }

    /// Reads `A..B`. A side left out is the oldest time kept, or now.
    ///
    /// # Errors
    /// When a side is no time, or the range ends before it begins.
    pub fn parse_range(&self, text: &str) -> Result<Range, WhenError> {
        let (from, to) = text
            .split_once("..")
            .ok_or_else(|| WhenError::Range(text.to_owned()))?;
        let side = |text: &str| {
            if text.trim().is_empty() {
                Ok(0)
            } else {
                self.parse(text)
            }
        };
        Range {
            start_ns: side(from)?,
            end_ns: side(to)?,
        }
        .check(text)
    }

    /// Date and time to the second, in local time: `2026-11-21 14:03:05`.
    pub fn show(&self, unix_ns: i64) -> String {
        self.zoned(unix_ns)
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string()
    }

    /// Time of day to the second, in local time: `14:03:05`.
    pub fn show_time(&self, unix_ns: i64) -> String {
        self.zoned(unix_ns).strftime("%H:%M:%S").to_string()
    }

    fn zoned(&self, unix_ns: i64) -> Zoned {
        timestamp(unix_ns).to_zoned(self.zone.clone())
    }
}

/// RFC 3339 in UTC to the millisecond, for JSON.
pub fn rfc3339(unix_ns: i64) -> String {
    let time = timestamp(unix_ns);
    time.round(Unit::Millisecond).unwrap_or(time).to_string()
}

/// A range of wall time. Unit: nanoseconds since the Unix epoch; begin 0 is the oldest kept, end 0
/// is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Begin, included.
    pub start_ns: i64,
    /// End, not included.
    pub end_ns: i64,
}

impl Range {
    /// Refuses a range that ends before it begins.
    ///
    /// # Errors
    /// When it does; `text` is what the user wrote.
    pub fn check(self, text: &str) -> Result<Range, WhenError> {
        if self.end_ns != 0 && self.end_ns <= self.start_ns {
            return Err(WhenError::Backwards(text.to_owned()));
        }
        Ok(self)
    }
}

impl From<Range> for proto::agent::TimeRange {
    fn from(range: Range) -> Self {
        proto::agent::TimeRange {
            start_unix_ns: range.start_ns,
            end_unix_ns: range.end_ns,
        }
    }
}

/// Reads a duration: numbers with units, largest first or not: `90s`, `1h30m`, `1.5h`, `2d12h`, `1w`,
/// `250ms`. A year has 365 days.
///
/// # Errors
/// When there is no number, no unit, something else, or more than 100 years.
pub fn duration(text: &str) -> Result<Duration, WhenError> {
    let error = || WhenError::Duration(text.to_owned());
    let mut rest = text.trim();
    let mut seconds = 0.0;
    if rest.is_empty() {
        return Err(error());
    }
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .ok_or_else(error)?;
        let (number, after) = rest.split_at(digits);
        let letters = after
            .find(|c: char| !c.is_ascii_lowercase())
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let scale = match unit {
            "ms" => 0.001,
            "s" | "sec" => 1.0,
            "m" | "min" => 60.0,
            "h" => 3600.0,
            "d" => DAY_S,
            "w" => 7.0 * DAY_S,
            "y" => 365.0 * DAY_S,
            _ => return Err(error()),
        };
        seconds += number.parse::<f64>().map_err(|_| error())? * scale;
        rest = after;
    }
    const CENTURY_S: f64 = 100.0 * 366.0 * DAY_S;
    if seconds > CENTURY_S {
        return Err(WhenError::TooLong(text.to_owned()));
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| error())
}

/// Unit: seconds.
const DAY_S: f64 = 86_400.0;

/// `@1763733780`, or bare with nine digits and more: fewer is more likely a duration without unit.
fn unix_seconds(text: &str) -> Option<i64> {
    let digits = text.strip_prefix('@').unwrap_or(text);
    if digits.len() == text.len() && digits.split('.').next().unwrap_or("").len() < 9 {
        return None;
    }
    if !digits.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let (whole, part) = digits.split_once('.').unwrap_or((digits, ""));
    let nanos = format!("{part:0<9}").get(..9)?.parse::<i64>().ok()?;
    whole
        .parse::<i64>()
        .ok()?
        .checked_mul(1_000_000_000)?
        .checked_add(nanos)
}

fn timestamp(unix_ns: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(unix_ns)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn nanoseconds(time: Timestamp) -> i64 {
    i64::try_from(time.as_nanosecond()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
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
        let range = |text| clock().parse_range(text);
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
    }
}
