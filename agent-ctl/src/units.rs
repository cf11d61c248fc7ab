//! Formats numbers for people.

pub use profile::text::grouped as count;
use std::time::Duration;

/// `412 B`, `1.4 KiB`, `64 MiB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = UNITS[0];
    for next in &UNITS[1..] {
        if value < 1023.5 {
            break;
        }
        value /= 1024.0;
        unit = next;
    }
    if value < 9.95 {
        format!("{value:.1} {unit}")
    } else {
        format!("{value:.0} {unit}")
    }
}

/// `12 ms`, `4.2 s`, `3 min 20 s`, `2 h 5 min`, `12 d 4 h`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let pair = |large: u64, large_unit: &str, small: u64, small_unit: &str| {
        if small == 0 {
            format!("{large} {large_unit}")
        } else {
            format!("{large} {large_unit} {small} {small_unit}")
        }
    };
    match seconds {
        0 if duration < Duration::from_millis(1) => format!("{} µs", duration.as_micros()),
        0 => format!("{} ms", duration.as_millis()),
        1..=59 => {
            let text = format!("{:.1}", duration.as_secs_f64());
            format!("{} s", text.trim_end_matches(".0"))
        }
        60..=3599 => pair(seconds / 60, "min", seconds % 60, "s"),
        3600..=86_399 => pair(seconds / 3600, "h", seconds / 60 % 60, "min"),
        _ => pair(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

/// `12.3 %`; `-` if the total is 0.
pub fn percent(part: u64, total: u64) -> String {
    if total == 0 {
        "-".to_owned()
    } else {
        format!("{:.1} %", share(part, total) * 100.0)
    }
}

/// `part` of `total`; 0 if the total is 0.
pub fn share(part: u64, total: u64) -> f64 {
    if total == 0 {
        0.0
    } else {
        part as f64 / total as f64
    }
}

/// A second of a time on the wire. Unit: nanoseconds.
pub const SECOND_NS: i64 = 1_000_000_000;

/// Unit of weights that are cycles.
pub const CYCLES: &str = "cycles";

/// A sum of sample weights in its unit, or the coarser one of it: seconds of CPU time, billions of
/// cycles, a plain number otherwise.
pub fn weight(weight: u64, unit: &str) -> String {
    let (base, by) = profile::unit::base(unit);
    let billions = weight as f64 / (1e9 / by as f64);
    match base {
        profile::unit::TIME => format!("{billions:.2} s"),
        CYCLES => format!("{billions:.2} Gc"),
        _ => count(weight),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(
            [0, 1023, 1024, 64 << 20, 1023 << 10, (1 << 20) - 1, u64::MAX].map(bytes),
            [
                "0 B",
                "1023 B",
                "1.0 KiB",
                "64 MiB",
                "1023 KiB",
                "1.0 MiB",
                "16384 PiB"
            ]
        );
    }

    #[test]
    fn durations() {
        let shown = [
            5,
            12_000,
            1_000_000,
            4_200_000,
            200_000_000,
            7_500_000_000,
            1_051_200_000_000,
        ]
        .map(|us| duration(Duration::from_micros(us)));
        assert_eq!(
            shown,
            [
                "5 µs",
                "12 ms",
                "1 s",
                "4.2 s",
                "3 min 20 s",
                "2 h 5 min",
                "12 d 4 h"
            ]
        );
    }

    #[test]
    fn weights_are_told_alike_in_a_unit_and_its_coarser_one() {
        let year = 16_000 * 365 * 86_400;
        assert_eq!(weight(1_234_567_890, "nanoseconds"), "1.23 s");
        assert_eq!(
            weight(year * 1_000_000, "microseconds"),
            "504576000000.00 s"
        );
        assert_eq!(weight(7_000_000, "kilocycles"), "7.00 Gc");
        assert_eq!(weight(7_000, "page-faults"), "7,000");
    }

    #[test]
    fn numbers() {
        assert_eq!(
            (percent(1, 3), percent(1, 0)),
            ("33.3 %".into(), "-".into())
        );
    }
}
