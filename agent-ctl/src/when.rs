//! Parses and prints times and durations, and is the only place that reads the wall clock.
//!
//! A time is `now`, `5m`, `-5m` or `5 min ago`, `14:03` (the last time it was), `today` or
//! `yesterday` (midnight, or with a time of day), `2026-11-21`, `2026-11-21T14:03[:05]` in local
//! time or with `Z` or an offset, or Unix seconds (`@1763733780` or bare). A range is `A..B` with
//! either side left out. A time of day that ends a range is the first one after its start; an end
//! in the future is now.
//!
//! Printed times have the offset of their zone. A file may count its times from the start of a
//! machine or a program: those are printed as seconds, because they have no date.

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Timestamp, Unit, Zoned};
use profile::formats::is_dateless;
use std::time::Duration;

/// A time or duration that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhenError {
    /// Not a duration.
    #[error(
        "failed to read duration `{0}`: expected a number with us, ms, s, m, h, d, w or y, as in `2d12h`"
    )]
    Duration(String),
    /// A duration that no agent can look back.
    #[error("failed to use duration `{0}`: it is longer than 100 years")]
    TooLong(String),
    /// Not a time.
    #[error(
        "failed to read time `{0}`: expected `now`, an age (`5m`, `5 min ago`), `14:03`, \
         `yesterday 14:03`, `2026-11-21T14:03:00Z` or Unix seconds"
    )]
    Time(String),
    /// Neither an age nor a time.
    #[error(
        "failed to read `{0}`: expected an age (`5m`, `2d12h`, `10 min ago`) or a time (`yesterday`, \
         `14:03`)"
    )]
    Since(String),
    /// Not a range.
    #[error("failed to read range `{0}`: expected `FROM..TO`, as in `-1h..-30m`")]
    Range(String),
    /// The end is not after the start.
    #[error("failed to use range `{0}`: it ends before it starts")]
    Backwards(String),
    /// The start is still to come.
    #[error("failed to use time `{time}`: it is in the future (it is {now} now)")]
    Future {
        /// As it was written.
        time: String,
        /// Now.
        now: String,
    },
}

/// The reference for relative times and times of day.
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
        if let Some(age) = text.strip_suffix(" ago") {
            return Ok(self.ago_ns(spoken_duration(age).map_err(|_| error())?));
        }
        if let Some(time) = self.of_named_day(text) {
            return time.ok_or_else(error);
        }
        if let Some(seconds) = unix_seconds(text) {
            return Ok(seconds);
        }
        if let Ok(time) = text.parse::<Timestamp>() {
            return Ok(nanoseconds(time));
        }
        if let Some(time) = time_of_day(text) {
            let found = self.last(time).ok_or_else(error)?;
            return Ok(nanoseconds(found.timestamp()));
        }
        text.parse::<DateTime>()
            .ok()
            .and_then(|time| self.civil(time))
            .ok_or_else(error)
    }

    /// `today` and `yesterday`, at midnight or at a time of day; `None`: names neither.
    fn of_named_day(&self, text: &str) -> Option<Option<i64>> {
        let (word, time) = text.split_once(' ').unwrap_or((text, "00:00"));
        let today = self.now.to_zoned(self.zone.clone()).date();
        let day = match word {
            "today" => Some(today),
            "yesterday" => today.yesterday().ok(),
            _ => return None,
        };
        let time = time_of_day(time);
        Some(
            day.zip(time)
                .and_then(|(day, time)| self.civil(day.to_datetime(time))),
        )
    }

    fn civil(&self, time: DateTime) -> Option<i64> {
        time.to_zoned(self.zone.clone())
            .ok()
            .map(|zoned| nanoseconds(zoned.timestamp()))
    }

    /// Every moment of a day at which clocks show `time`, in order: two where clocks go back; where
    /// they skip it, the moment that they show instead.
    fn moments(&self, day: Date, time: Time) -> Vec<Zoned> {
        let ambiguous = self.zone.to_ambiguous_zoned(day.to_datetime(time));
        let both = match ambiguous.offset() {
            AmbiguousOffset::Fold { .. } => vec![ambiguous.clone().earlier(), ambiguous.later()],
            _ => vec![ambiguous.compatible()],
        };
        both.into_iter().filter_map(Result::ok).collect()
    }

    /// The last time that clocks showed `time`.
    fn last(&self, time: Time) -> Option<Zoned> {
        let today = self.now.to_zoned(self.zone.clone()).date();
        let days = [today.yesterday().ok(), Some(today)];
        let moments = days.into_iter().flatten();
        let mut moments = moments.flat_map(|day| self.moments(day, time));
        moments.rfind(|found| found.timestamp() <= self.now)
    }

    /// The first time after `from` that clocks show `time`: on the same day, or on the next one
    /// where that is no later than today.
    fn next(&self, from: Timestamp, time: Time) -> Option<Timestamp> {
        let day = from.to_zoned(self.zone.clone()).date();
        let today = self.now.to_zoned(self.zone.clone()).date();
        let after = |found: &Zoned| found.timestamp() > from;
        // Nearly a day that is not over: an end before the start, or a start in an hour that clocks
        // skip.
        let is_mistaken = |found: &Zoned| {
            let length = found.timestamp().duration_since(from);
            found.timestamp() > self.now && length > SignedDuration::from_hours(23)
        };
        let same = self.moments(day, time).into_iter().find(after);
        let next = || {
            let moments = self.moments(day.tomorrow().ok()?, time);
            moments
                .into_iter()
                .find(|found| after(found) && found.date() <= today && !is_mistaken(found))
        };
        same.or_else(next).map(|found| found.timestamp())
    }

    /// Reads the start of a range; what its writer should know of it is added to `notes`.
    ///
    /// # Errors
    /// When it is no time, or in the future.
    pub fn start(&self, text: &str, notes: &mut Vec<String>) -> Result<i64, WhenError> {
        let start_ns = self.parse(text)?;
        if start_ns > self.now_ns() {
            return Err(WhenError::Future {
                time: text.trim().to_owned(),
                now: self.show(self.now_ns()),
            });
        }
        let today = self.now.to_zoned(self.zone.clone()).date();
        if time_of_day(text).is_some() && self.zoned(start_ns).date() != today {
            notes.push(format!(
                "`{}` is {}, yesterday: today that time is in the future",
                text.trim(),
                self.show(start_ns)
            ));
        }
        Ok(start_ns)
    }

    /// Reads the end of a range that starts at `start_ns`, 0 if that is not known; 0 is now.
    /// `range` is the range as errors show it.
    ///
    /// # Errors
    /// When it is no time, or before the start.
    pub fn end(
        &self,
        start_ns: i64,
        text: &str,
        range: &str,
        notes: &mut Vec<String>,
    ) -> Result<i64, WhenError> {
        let end_ns = match time_of_day(text) {
            Some(time) if start_ns != 0 => {
                let next = self.next(timestamp(start_ns), time);
                let next = next.ok_or_else(|| WhenError::Backwards(range.to_owned()))?;
                nanoseconds(next)
            }
            // Nearly everybody who says 14:05 at 14:04:30 means now, and not yesterday.
            Some(time) if self.is_soon(time) => return Ok(0),
            _ => self.parse(text)?,
        };
        let ahead_ns = end_ns.saturating_sub(self.now_ns());
        if ahead_ns <= 0 {
            return Ok(end_ns);
        }
        if ahead_ns > SOON_NS {
            notes.push(format!(
                "`{}` is {}, which is in the future: the range ends now",
                text.trim(),
                self.show(end_ns)
            ));
        }
        Ok(0)
    }

    /// True for a time of day that is less than [`SOON_NS`] ahead.
    fn is_soon(&self, time: Time) -> bool {
        let soon = self.now_ns().saturating_add(SOON_NS);
        let day = timestamp(soon).to_zoned(self.zone.clone()).date();
        self.moments(day, time)
            .iter()
            .map(|found| nanoseconds(found.timestamp()))
            .any(|found| found > self.now_ns() && found <= soon)
    }

    /// Reads `A..B`. A side left out is the oldest time kept, or now.
    ///
    /// # Errors
    /// When a side is no time, the start is in the future, or the range ends before it starts.
    pub fn parse_range(&self, text: &str) -> Result<Resolved, WhenError> {
        let (from, to) = text
            .split_once("..")
            .ok_or_else(|| WhenError::Range(text.to_owned()))?;
        let mut notes = Vec::new();
        let start_ns = match from.trim() {
            "" => 0,
            from => self.start(from, &mut notes)?,
        };
        let end_ns = match to.trim() {
            "" => 0,
            to => self.end(start_ns, to, text, &mut notes)?,
        };
        let range = Range { start_ns, end_ns }.check(text)?;
        Ok(Resolved { range, notes })
    }

    /// Date, time to the second and zone, in local time: `2026-11-21 14:03:05 +01:00`, or `UTC`
    /// there. A time without a date is seconds: `2454.100 s`.
    pub fn show(&self, unix_ns: i64) -> String {
        self.format(unix_ns, "%Y-%m-%d %H:%M:%S")
    }

    /// Time of day to the second without its zone, for an axis that says it once.
    pub fn show_bare_time(&self, unix_ns: i64) -> String {
        match is_dateless(unix_ns) {
            true => format!("{:.1} s", unix_ns as f64 / 1e9),
            false => self.zoned(unix_ns).strftime("%H:%M:%S").to_string(),
        }
    }

    /// The zone of a time: `+01:00`, or `UTC` there; nothing for a time without a date.
    pub fn zone(&self, unix_ns: i64) -> String {
        let offset = self.zoned(unix_ns).offset();
        match (is_dateless(unix_ns), offset.is_zero()) {
            (true, _) => String::new(),
            (false, true) => "UTC".to_owned(),
            (false, false) => self.zoned(unix_ns).strftime("%:z").to_string(),
        }
    }

    /// The same without the date.
    pub fn show_time(&self, unix_ns: i64) -> String {
        self.format(unix_ns, "%H:%M:%S")
    }

    /// Both ends of a range, with the date and the zone once where they are the same:
    /// `2026-11-21 14:03:05 to 14:08:05 +01:00`.
    pub fn show_range(&self, start_ns: i64, end_ns: i64) -> String {
        let (start, end) = (self.zoned(start_ns), self.zoned(end_ns));
        if is_dateless(start_ns) || start.offset() != end.offset() {
            return format!("{} to {}", self.show(start_ns), self.show(end_ns));
        }
        let start_text = start.strftime("%Y-%m-%d %H:%M:%S");
        match start.date() == end.date() {
            true => format!("{start_text} to {}", self.show_time(end_ns)),
            false => format!("{start_text} to {}", self.show(end_ns)),
        }
    }

    fn format(&self, unix_ns: i64, format: &str) -> String {
        if is_dateless(unix_ns) {
            return format!("{:.3} s", unix_ns as f64 / 1e9);
        }
        let shown = self.zoned(unix_ns).strftime(format).to_string();
        format!("{shown} {}", self.zone(unix_ns))
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

/// A range that was read, and what its writer should know of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// It.
    pub range: Range,
    /// How times were taken that can be understood in two ways; a sentence each.
    pub notes: Vec<String>,
}

impl Resolved {
    /// The range; says the notes on standard error.
    pub fn noted(self) -> Range {
        for note in &self.notes {
            note!("agent-ctl: {note}");
        }
        self.range
    }
}

/// An end of a range that is ahead of the clock by no more is taken for now without a word: a time
/// of day is rounded to the minute by whoever writes it. Unit: nanoseconds.
const SOON_NS: i64 = 60 * 1_000_000_000;

/// A range of wall time. Unit: nanoseconds since the Unix epoch; start 0 is the oldest kept, end 0
/// is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Start, included.
    pub start_ns: i64,
    /// End, not included.
    pub end_ns: i64,
}

impl Range {
    /// Refuses a range that ends before it starts.
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

/// Reads how long ago something was: a duration, with or without a minus before it.
///
/// # Errors
/// As [`duration`].
pub fn age(text: &str) -> Result<Duration, WhenError> {
    let text = text.trim();
    duration(text.strip_prefix('-').unwrap_or(text))
}

/// Reads a duration as it is said: `10 min`, `2 hours`, `1 day`.
fn spoken_duration(text: &str) -> Result<Duration, WhenError> {
    let mut plain = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, unit) = word.split_at(digits.unwrap_or(word.len()));
        plain.push_str(number);
        plain.push_str(match unit {
            "second" | "seconds" | "secs" => "s",
            "minute" | "minutes" | "mins" => "m",
            "hour" | "hours" | "hr" | "hrs" => "h",
            "day" | "days" => "d",
            "week" | "weeks" => "w",
            "year" | "years" => "y",
            unit => unit,
        });
    }
    duration(&plain)
}

/// The start of a range that goes on until now: an age, or a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Since {
    /// So long ago.
    Age(Duration),
    /// At this time, as [`Clock::parse`] reads it.
    Time(String),
}

/// Reads the start of a range that goes on until now.
///
/// # Errors
/// When it is neither an age nor a time.
pub fn since(text: &str) -> Result<Since, WhenError> {
    if let Ok(age) = age(text) {
        return Ok(Since::Age(age));
    }
    // What is malformed is told at once; which time it is depends on whoever is asked.
    let error = |error| match error {
        WhenError::Time(text) => WhenError::Since(text),
        other => other,
    };
    Clock::local().parse(text).map_err(error)?;
    Ok(Since::Time(text.to_owned()))
}

/// A time of day: `14:03`, `14:03:05`, `14:03:05.25`.
fn time_of_day(text: &str) -> Option<Time> {
    let text = text.trim();
    // With a fraction of a second a time of day is longer; a date has no `.` without one.
    let whole = text.split('.').next().unwrap_or(text);
    match whole.len() <= 8 && whole.contains(':') {
        true => text.parse().ok(),
        false => None,
    }
}

/// Reads a duration: numbers with units, largest first or not: `90s`, `1h30m`, `1.5h`, `2d12h`,
/// `1w`, `250ms`, `100us`. A year has 365 days.
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
            .find(|c: char| !c.is_ascii_lowercase() && c != 'µ')
            .unwrap_or(after.len());
        let (unit, after) = after.split_at(letters);
        let scale = match unit {
            "us" | "µs" => 1e-6,
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
mod tests;
