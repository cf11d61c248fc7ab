//! What a profile covers and what it misses, in one line or as JSON.

use crate::units;
use crate::when::{Clock, rfc3339};
use profile::{Info, Profile, Quality};
use serde::Serialize;
use std::time::Duration;

/// The line that goes with every profile: samples, time covered, what is missing.
pub fn line(profile: &Profile, clock: &Clock) -> String {
    let Info {
        start_unix_ns,
        duration_ns,
        unit,
        quality,
        ..
    } = &profile.info;
    let total = profile.total();
    let covered = units::duration(Duration::from_nanos(*duration_ns));
    let begin = clock.show(*start_unix_ns);
    let end = clock.show_time(end_ns(&profile.info));
    let weight = match unit.as_str() {
        "nanoseconds" => format!("{} CPU", units::weight(total.weight, unit)),
        _ => units::weight(total.weight, unit),
    };
    let samples = units::count(total.count);
    format!(
        "{samples} samples, {weight}, over {covered} ({begin} to {end}); {}",
        missing(quality)
    )
}

/// What is missing, each with its share: always the three that matter, others when there are some.
pub fn missing(quality: &Quality) -> String {
    let Quality {
        taken,
        lost,
        truncated,
        incomplete,
        unnamed,
        folded,
        throttled,
        ..
    } = *quality;
    let share = |part| units::percent(part, taken);
    let mut parts = vec![
        // Records of any kind, most of them no samples: a share of the samples would be a lie.
        format!("{} records lost", units::count(lost)),
        format!("truncated {}", share(truncated)),
        format!("unnamed {}", share(unnamed)),
    ];
    if incomplete > 0 {
        parts.push(format!("incomplete {}", share(incomplete)));
    }
    if folded > 0 {
        parts.push(format!("folded into [other] {}", share(folded)));
    }
    if throttled > 0 {
        parts.push(format!("throttled {} times", units::count(throttled)));
    }
    if quality.malformed > 0 {
        parts.push(format!("malformed {}", units::count(quality.malformed)));
    }
    parts.join(", ")
}

/// End of the time covered.
pub fn end_ns(info: &Info) -> i64 {
    info.start_unix_ns.saturating_add_unsigned(info.duration_ns)
}

/// Facts about a profile as JSON.
#[derive(Serialize)]
pub struct Covered {
    start: String,
    end: String,
    duration_s: f64,
    event: String,
    unit: String,
    samples: u64,
    weight: u64,
    quality: Quality,
}

impl Covered {
    /// The facts of `profile`.
    pub fn of(profile: &Profile) -> Covered {
        let total = profile.total();
        Covered {
            start: rfc3339(profile.info.start_unix_ns),
            end: rfc3339(end_ns(&profile.info)),
            duration_s: profile.info.duration_ns as f64 / 1e9,
            event: profile.info.event.clone(),
            unit: profile.info.unit.clone(),
            samples: total.count,
            weight: total.weight,
            quality: profile.info.quality,
        }
    }
}
