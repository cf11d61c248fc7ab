//! What a profile covers and what it misses, in one line or as JSON.

use crate::fleet::{self, Fleet};
use crate::units;
use crate::when::{Clock, rfc3339};
use profile::{Coverage, Info, Profile, Quality, Value};
use serde::Serialize;
use std::time::Duration;

/// The line that goes with every profile: samples, time covered, what is missing.
pub fn line(profile: &Profile, clock: &Clock) -> String {
    of(&profile.info, profile.total(), clock)
}

/// The same of an answer of a collector that is no profile.
pub fn fleet_line(fleet: &Fleet, clock: &Clock) -> String {
    let mut info = Info {
        unit: fleet.unit().to_owned(),
        ..Info::default()
    };
    fleet.describe(&mut info);
    of(&info, fleet.total(), clock)
}

fn of(info: &Info, total: Value, clock: &Clock) -> String {
    let Info {
        start_unix_ns,
        duration_ns,
        unit,
        quality,
        ..
    } = info;
    let covered = units::duration(Duration::from_nanos(*duration_ns));
    let begin = clock.show(*start_unix_ns);
    let end = clock.show_time(end_ns(info));
    let weight = match unit.as_str() {
        "nanoseconds" if info.is_waiting() => {
            format!("{} waited", units::weight(total.weight, unit))
        }
        "nanoseconds" => format!("{} CPU", units::weight(total.weight, unit)),
        _ => units::weight(total.weight, unit),
    };
    let samples = units::count(total.count);
    format!(
        "{samples} samples, {weight}, over {covered} ({begin} to {end}); {}",
        missing(quality)
    )
}

/// `99.2 % of 41.30 s CPU that the kernel accounts`, and what was not measured. Nothing when nothing is
/// known.
pub fn coverage(coverage: &Coverage) -> Option<String> {
    let share = coverage.share()? * 100.0;
    let measured = units::weight(coverage.measured_ns(), "nanoseconds");
    let mut text = format!("{share:.1} % of {measured} CPU that the kernel accounts");
    if coverage.estimated_ns > 0 {
        let rest = units::weight(coverage.estimated_ns, "nanoseconds");
        text.push_str(&format!(", {rest} more not measured"));
    }
    Some(text)
}

/// What is missing, each with its share: always the three that matter, others when there are some.
pub fn missing(quality: &Quality) -> String {
    let Quality {
        taken,
        lost,
        truncated,
        depth_limit,
        unnamed,
        folded,
        throttled,
        reduced,
        lost_samples,
        ..
    } = *quality;
    let share = |part| units::percent(part, taken);
    let mut parts = vec![
        match lost_samples {
            0 => "0 lost".to_owned(),
            _ => format!(
                "{} lost ({})",
                units::count(lost_samples),
                units::percent(lost_samples, taken.saturating_add(lost_samples))
            ),
        },
        match depth_limit {
            0 => format!("truncated {}", share(truncated)),
            // The unwinder could not go on with the others: `doctor` and `status` say why.
            _ => format!(
                "truncated {} ({} by the depth limit)",
                share(truncated),
                share(depth_limit)
            ),
        },
        format!("unnamed {}", share(unnamed)),
    ];
    if lost > 0 {
        // Records of any kind, most of them no samples: a share of the samples would be a lie.
        parts.push(format!("{} records lost", units::count(lost)));
    }
    if folded > 0 {
        parts.push(format!("folded into [other] {}", share(folded)));
    }
    if reduced > 0 {
        // It is counted for the whole host, whatever was selected of it.
        parts.push(match reduced > taken {
            true => format!(
                "{} of the host's taken by a reduced budget",
                units::count(reduced)
            ),
            false => format!("taken by a reduced budget {}", share(reduced)),
        });
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
    coverage: Coverage,
    coverage_share: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<fleet::Json>,
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
            coverage: profile.info.coverage,
            coverage_share: profile.info.coverage.share(),
            fleet: None,
        }
    }

    /// The facts of an answer of a collector that is no profile.
    pub fn of_fleet(fleet: &Fleet) -> Covered {
        let mut profile = Profile::default();
        fleet.describe(&mut profile.info);
        let total = fleet.total();
        Covered {
            unit: fleet.unit().to_owned(),
            samples: total.count,
            weight: total.weight,
            ..Covered::of(&profile).with(Some(fleet))
        }
    }

    /// With what an answer of a collector is made of.
    pub fn with(self, fleet: Option<&Fleet>) -> Covered {
        let fleet = fleet.map(Fleet::json);
        Covered { fleet, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_samples_are_a_share_of_what_there_was() {
        let quality = Quality {
            taken: 90,
            lost_samples: 10,
            ..Quality::default()
        };
        let text = missing(&quality);
        assert_eq!(text, "10 lost (10.0 %), truncated 0.0 %, unnamed 0.0 %");
    }

    #[test]
    fn truncated_is_said_with_the_part_of_the_depth_limit() {
        let quality = Quality {
            taken: 200,
            truncated: 30,
            depth_limit: 10,
            ..Quality::default()
        };
        let text = missing(&quality);
        let expected = "0 lost, truncated 15.0 % (5.0 % by the depth limit), unnamed 0.0 %";
        assert_eq!(text, expected);
    }

    #[test]
    fn coverage_is_said_of_what_was_measured() {
        let found = coverage(&Coverage {
            expected_ns: 50_000_000_000,
            estimated_ns: 10_000_000_000,
            taken_ns: 49_000_000_000,
            ..Coverage::default()
        });
        let expected = "97.5 % of 40.00 s CPU that the kernel accounts, 10.00 s more not measured";
        assert_eq!(found.as_deref(), Some(expected));
        assert_eq!(coverage(&Coverage::default()), None);
    }
}
