//! Keys in the database: 64-bit keyed hashes, and the time steps by which rows are stored.

use crate::store::{HostKey, LabelSet, TimeRange};
use profile::{ContentId, FrameRef};
use std::time::Duration;

/// Step in which the start of a window is kept. Unit: nanoseconds.
///
/// That of the agents' windows. Windows shorter than it share a step and stay apart by their
/// origin.
pub(super) const STEP_NS: i64 = 10_000_000_000;
/// Unit: seconds.
pub(super) const STEP_S: i64 = STEP_NS / NS_PER_S;
/// Length of a chunk, by which rows are sorted first. Unit: seconds.
pub(super) const CHUNK_S: i64 = 600;
/// Unit: nanoseconds.
pub(super) const NS_PER_S: i64 = 1_000_000_000;
/// First second that the engine's 32-bit times cannot hold (in 2106).
const SECONDS_END: i64 = 1 << 32;

/// Makes the ids of one database.
///
/// The key is random and of the database: who chooses names of functions or labels cannot choose
/// two that get one id, although ids have 64 bits only.
#[derive(Clone)]
pub(super) struct Keys([u8; 32]);

impl Keys {
    /// From its text: 64 hex digits.
    pub fn parse(text: &str) -> Option<Keys> {
        let mut key = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (byte, at) in key.iter_mut().zip((0..64).step_by(2)) {
            *byte = u8::from_str_radix(&text[at..at + 2], 16).ok()?;
        }
        Some(Keys(key))
    }

    fn hash(&self, domain: u8, parts: &[&[u8]]) -> u64 {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&[domain]);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        let mut id = [0; 8];
        id.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
        // 0 is the empty stack.
        u64::from_le_bytes(id).max(1)
    }

    /// Id of a stack; 0 for the empty one.
    pub fn stack(&self, id: ContentId) -> u64 {
        if id == ContentId::default() {
            return 0;
        }
        self.hash(1, &[&id.0])
    }

    /// Id of a frame.
    pub fn frame(&self, frame: &FrameRef<'_>) -> u64 {
        let kind = [frame.kind as u8, frame.unnamed as u8];
        let line = frame.line.to_le_bytes();
        let texts = [frame.function, frame.module, frame.file].map(str::as_bytes);
        let mut parts: Vec<&[u8]> = vec![&kind, &line, texts[0], texts[1], texts[2]];
        let start_line = frame.start_line.to_le_bytes();
        // Ids of frames without one, or without a first line, are those of before there were any.
        if !frame.system_name.is_empty() || frame.start_line != 0 {
            parts.push(frame.system_name.as_bytes());
        }
        if frame.start_line != 0 {
            parts.push(&start_line);
        }
        self.hash(2, &parts)
    }

    /// Id of a label set with weights in `unit`.
    pub fn series(&self, labels: &LabelSet, unit: &str) -> u64 {
        let mut parts: Vec<&[u8]> = vec![unit.as_bytes()];
        for (name, value) in labels.iter() {
            parts.extend([name.as_bytes(), value.as_bytes()]);
        }
        self.hash(3, &parts)
    }

    /// Id of a host in one boot.
    pub fn host(&self, host: &HostKey) -> u64 {
        self.hash(4, &[host.host_id.as_bytes(), &host.boot_id])
    }
}

/// Distinguishes the rows of one window from those of others with the same series and step: the
/// host, and how far the sequence is ahead of the step's start.
///
/// Agents number windows by the nanosecond of the boot in which they start, so this stays the same
/// for as long as windows are as long as steps, and has few values where they are shorter. It costs
/// next to nothing compressed, where the sequence itself would cost three bytes for each row. Two
/// windows of a host in one step have different ones, whatever numbers they have.
pub(super) fn origin(host: u64, sequence: u64, place: TimeSlot) -> u64 {
    let start_ns = place.step().wrapping_mul(STEP_NS as u64);
    host.wrapping_add(sequence).wrapping_sub(start_ns)
}

/// Where in time a window is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TimeSlot {
    /// Start of the chunk. Unit: seconds since the Unix epoch.
    pub chunk: u32,
    /// Step in the chunk.
    pub slot: u8,
}

impl TimeSlot {
    /// Returns the slot of a window that starts then; `None` where the engine's times do not reach.
    pub fn of(start_unix_ns: i64) -> Option<TimeSlot> {
        let seconds = start_unix_ns.div_euclid(NS_PER_S);
        if seconds >= SECONDS_END {
            return None;
        }
        let chunk = u32::try_from(seconds.div_euclid(CHUNK_S) * CHUNK_S).ok()?;
        let slot = u8::try_from(seconds.rem_euclid(CHUNK_S) / STEP_S).ok()?;
        Some(TimeSlot { chunk, slot })
    }

    /// Number of its step since the epoch.
    pub fn step(self) -> u64 {
        u64::from(self.chunk) / STEP_S as u64 + u64::from(self.slot)
    }

    /// Days since the epoch.
    pub fn day(self) -> u16 {
        (self.chunk / 86_400) as u16
    }
}

/// First day that is kept for an age. Unit: days since the epoch.
pub(super) fn oldest_day(now_unix_ns: i64, age: Duration) -> u16 {
    let age_s = i64::try_from(age.as_secs()).unwrap_or(i64::MAX);
    let oldest_s = (now_unix_ns / NS_PER_S).saturating_sub(age_s);
    u16::try_from(oldest_s.div_euclid(86_400)).unwrap_or(0)
}

/// A range in complete steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Unit: seconds since the Unix epoch; a multiple of the step.
    pub start_s: i64,
    /// Unit: seconds since the Unix epoch; a multiple of the step.
    pub end_s: i64,
    /// The requested range, widened to complete steps.
    pub covered: TimeRange,
}

impl Span {
    /// `range` widened to complete steps of `step_ns`; `None` if nothing can be in it.
    pub fn of(range: TimeRange, step_ns: i64) -> Option<Span> {
        let (start, end) = (range.start_unix_ns, range.end_unix_ns);
        if start >= end {
            return None;
        }
        let down = |at: i64| at.div_euclid(step_ns).checked_mul(step_ns);
        let up = |at: i64| {
            let floor = down(at)?;
            if floor == at {
                Some(at)
            } else {
                floor.checked_add(step_ns)
            }
        };
        let covered = TimeRange {
            start_unix_ns: down(start).unwrap_or(start),
            end_unix_ns: up(end).unwrap_or(end),
        };
        let start_s = covered
            .start_unix_ns
            .div_euclid(NS_PER_S)
            .clamp(0, SECONDS_END - 1);
        let end_s = (covered.end_unix_ns / NS_PER_S).clamp(0, SECONDS_END - 1);
        Some(Span {
            start_s: start_s / STEP_S * STEP_S,
            end_s,
            covered,
        })
    }

    /// The same with time before and after it.
    pub fn widened(self, before_s: i64, after_s: i64) -> Span {
        Span {
            start_s: (self.start_s - before_s).max(0),
            end_s: (self.end_s + after_s).min(SECONDS_END - 1),
            ..self
        }
    }

    /// Condition on `chunk` and `slot`.
    pub fn of_steps(self) -> String {
        format!(
            "{} AND toUnixTimestamp(chunk) + slot * {STEP_S} >= {} \
             AND toUnixTimestamp(chunk) + slot * {STEP_S} < {}",
            self.of_chunks(),
            self.start_s,
            self.end_s
        )
    }

    /// Condition on `chunk` alone.
    pub fn of_chunks(self) -> String {
        format!(
            "chunk >= toDateTime({}, 'UTC') AND chunk < toDateTime({}, 'UTC')",
            self.start_s / CHUNK_S * CHUNK_S,
            self.end_s
        )
    }

    /// Condition on `day`.
    pub fn of_days(self) -> String {
        format!(
            "day >= toDate({}) AND day <= toDate({})",
            self.start_s / 86_400,
            self.end_s / 86_400
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::parse(&"7f".repeat(32)).unwrap()
    }

    #[test]
    fn keys_are_64_hex_digits() {
        for text in ["", "7f", &"7g".repeat(32), &"é".repeat(32)] {
            assert!(Keys::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn windows_in_a_row_share_an_origin() {
        // As agents number them: by the nanosecond of the boot.
        let (host, booted) = (1 << 63, 1_768_478_400 * NS_PER_S - 7_654_321_987);
        let of = |number: i64| {
            let sequence = 1_234_567_891 + number * STEP_NS;
            origin(
                host,
                sequence as u64,
                TimeSlot::of(booted + sequence).unwrap(),
            )
        };
        assert!((0..1000).all(|number| of(number) == of(0)));
    }

    #[test]
    fn short_windows_of_a_step_have_origins_of_their_own_that_come_again() {
        let booted = 1_768_478_400 * NS_PER_S;
        let of = |number: i64| {
            let sequence = number * STEP_NS / 5;
            origin(7, sequence as u64, TimeSlot::of(booted + sequence).unwrap())
        };
        let distinct: std::collections::BTreeSet<u64> = (0..5000).map(of).collect();
        assert_eq!(distinct.len(), 5);
        // Numbered one by one they have as well.
        let place = TimeSlot::of(booted).unwrap();
        assert_ne!(origin(7, 1, place), origin(7, 2, place));
    }

    #[test]
    fn text_cut_elsewhere_is_another_series() {
        let set = |pairs: &[(&str, &str)]| {
            LabelSet::new(pairs.iter().map(|&(n, v)| (n.to_owned(), v.to_owned())))
        };
        let (left, right) = (set(&[("ab", "c")]), set(&[("a", "bc")]));
        assert_ne!(keys().series(&left, "u"), keys().series(&right, "u"));
        assert_ne!(keys().series(&left, "u"), keys().series(&left, "v"));
    }

    #[test]
    fn ranges_are_widened_to_steps_and_never_overflow() {
        let span = |start_unix_ns, end_unix_ns| {
            let range = TimeRange {
                start_unix_ns,
                end_unix_ns,
            };
            Span::of(range, STEP_NS)
        };
        let of = span(15 * NS_PER_S, 15 * NS_PER_S + 1).unwrap();
        assert_eq!((of.start_s, of.end_s), (10, 20));
        let of = span(i64::MIN, i64::MAX).unwrap();
        assert_eq!((of.start_s, of.end_s), (0, SECONDS_END - 1));
        assert_eq!(span(5, 5), None);
        assert_eq!(span(i64::MAX, i64::MIN), None);
    }

    #[test]
    fn times_out_of_reach_have_no_place() {
        for start in [i64::MIN, -1, SECONDS_END * NS_PER_S, i64::MAX] {
            assert_eq!(TimeSlot::of(start), None, "{start}");
        }
        let place = TimeSlot::of(1_799 * NS_PER_S).unwrap();
        assert_eq!((place.chunk, place.slot), (1200, 59));
    }
}
