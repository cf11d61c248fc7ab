//! What a profile covers and what it misses, in one line or as JSON.

use crate::fleet::{self, Fleet};
use crate::terminal::clean;
use crate::units;
use crate::when::{Clock, Range, rfc3339};
use profile::formats::Known;
use profile::unit::{TIME, base, is_time};
use profile::{Coverage, Info, Profile, Quality, Value, Waits};
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
    let missing = match info.is_waiting() {
        true => waits_missing(info),
        false => missing(&info.quality),
    };
    format!("{}; {missing}", sums(info, total, true, clock))
}

/// How much there is and over which time; `is_samples`: what was counted is known to be samples.
fn sums(info: &Info, total: Value, is_samples: bool, clock: &Clock) -> String {
    let Info { unit, .. } = info;
    let time = time(info, clock);
    let weight = match unit.as_str() {
        _ if is_time(unit) && info.is_waiting() => {
            format!("{} waited", units::weight(total.weight, unit))
        }
        _ if info.is_cpu_time() => format!("{} CPU", units::weight(total.weight, unit)),
        _ if is_time(unit) => {
            let time = units::weight(total.weight, unit);
            format!("{time} of {}", clean(&info.event))
        }
        // What was sampled, where the unit says less: `events`, `calls`.
        _ if info.event.starts_with("tracepoint:") || info.event.starts_with("uprobe:") => {
            format!(
                "{} {} of {}",
                units::count(total.weight),
                clean(unit),
                clean(&info.event)
            )
        }
        "" | "samples" | units::CYCLES => units::weight(total.weight, unit),
        _ if base(unit).0 == units::CYCLES => units::weight(total.weight, unit),
        _ => format!("{} {}", units::count(total.weight), clean(unit)),
    };
    let count = units::count(total.count);
    let what = match (info.is_waiting(), total.count) {
        _ if !is_samples => "in total",
        (true, 1) => "wait",
        (true, _) => "waits",
        (false, 1) => "sample",
        (false, _) => "samples",
    };
    // Without a unit it would be a bare number: most often that of the samples again.
    let weight = match unit.is_empty() {
        true => String::new(),
        false => format!(", {weight}"),
    };
    format!("{count} {what}{weight}, {time}")
}

/// What is missing of waits, and what is an estimate: ends that were not seen first.
fn waits_missing(info: &Info) -> String {
    let Info {
        waits,
        waits_cause,
        quality,
        ..
    } = info;
    let mut parts = Vec::new();
    let seconds = |ns| units::weight(ns, "nanoseconds");
    let count = |count| match count {
        1 => "1 wait".to_owned(),
        more => format!("{} waits", units::count(more)),
    };
    if waits.estimated > 0 {
        let length = seconds(waits.estimated_ns);
        parts.push(format!(
            "{} ({length}) up to the wake-up, an estimate",
            count(waits.estimated)
        ));
    }
    if waits.dropped > 0 {
        let length = seconds(waits.dropped_ns);
        parts.push(format!(
            "{} (at most {length}) dropped",
            count(waits.dropped)
        ));
    }
    if let (Some(last), false) = (parts.last_mut(), waits_cause.is_empty()) {
        last.push_str(&format!(": {}", clean(waits_cause)));
    }
    if parts.is_empty() {
        parts.push("0 dropped".to_owned());
    }
    // One long wait matters more than a thousand short ones.
    let of_time = |ns| units::percent(ns, waits.taken_ns());
    match waits.taken_ns() {
        0 => parts.push(format!(
            "truncated {}",
            units::percent(quality.truncated, quality.taken)
        )),
        _ => parts.push(format!("truncated {} of the time", of_time(waits.cut_ns))),
    }
    if waits.alike > 0 {
        parts.push(format!(
            "callers estimated {} of the time ({} of {} checked were wrong)",
            of_time(waits.alike_ns),
            units::count(waits.alike_wrong),
            units::count(waits.alike_checked)
        ));
    }
    parts.push(format!(
        "unnamed {}",
        units::percent(quality.unnamed, quality.taken)
    ));
    if quality.lost > 0 {
        parts.push(format!("{} records lost", units::count(quality.lost)));
    }
    if quality.folded > 0 {
        parts.push(format!(
            "folded into [other] {}",
            units::percent(quality.folded, quality.taken)
        ));
    }
    parts.join(", ")
}

/// `over 5 min (2026-11-21 14:00:00 to 14:05:00 UTC)`, or that no times are known.
fn time(info: &Info, clock: &Clock) -> String {
    if info.start_unix_ns == 0 && info.duration_ns == 0 {
        return "no times".to_owned();
    }
    let covered = units::duration(Duration::from_nanos(info.duration_ns));
    let range = clock.show_range(info.start_unix_ns, end_ns(info));
    format!("over {covered} ({range})")
}

/// Part of what was asked for by which an answer may be longer without a word: the last window of a
/// few minutes is not worth one.
const WIDER_PART: i64 = 10;

/// `asked 500 ms, complete windows: 5 s`, if an answer covers more time than requested, because it
/// consists of complete windows.
pub fn widened(asked: Range, (start_ns, end_ns): (i64, i64), clock: &Clock) -> Option<String> {
    let until_ns = match asked.end_ns {
        0 => clock.now_ns(),
        end_ns => end_ns,
    };
    let asked_ns = until_ns.saturating_sub(asked.start_ns);
    let covered_ns = end_ns.saturating_sub(start_ns);
    let length = |ns: i64| units::duration(Duration::from_nanos(ns.unsigned_abs()));
    let more_ns = covered_ns.saturating_sub(asked_ns);
    (asked_ns > 0 && more_ns > asked_ns / WIDER_PART).then(|| {
        format!(
            "asked {}, complete windows: {}",
            length(asked_ns),
            length(covered_ns)
        )
    })
}

/// The line of a profile that was read from a file, which may say nothing of what it misses.
pub fn line_of_file(profile: &Profile, known: Known, clock: &Clock) -> String {
    let total = profile.total();
    if known.lost {
        return of(&profile.info, total, clock);
    }
    let quality = &profile.info.quality;
    let share = |known: bool, part| match known || part > 0 {
        true => units::percent(part, quality.taken),
        false => "-".to_owned(),
    };
    let lost = match quality.lost_samples {
        0 => "-".to_owned(),
        lost => units::count(lost),
    };
    format!(
        "{}; {lost} lost, truncated {}, unnamed {}",
        sums(&profile.info, total, known.samples, clock),
        share(known.truncated, quality.truncated),
        share(known.unnamed, quality.unnamed)
    )
}

/// `99.2 % of 41.30 s CPU that the kernel accounts`, and what was not measured. Nothing when
/// nothing is known.
///
/// `unit` is the unit of the weights that `coverage` belongs to. If it is a unit of time, the times
/// of `coverage` are in it too; otherwise they are in nanoseconds.
pub fn coverage(coverage: &Coverage, unit: &str) -> Option<String> {
    let share = coverage.share()? * 100.0;
    let unit = if is_time(unit) { unit } else { TIME };
    let measured = units::weight(coverage.measured_ns(), unit);
    let mut text = format!("{share:.1} % of {measured} CPU that the kernel accounts");
    if coverage.estimated_ns > 0 {
        let rest = units::weight(coverage.estimated_ns, unit);
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
        // It is counted for the complete host, whatever was selected.
        parts.push(match reduced > taken {
            true => format!(
                "{} of the host's taken at reduced quality (CPU budget)",
                units::count(reduced)
            ),
            false => format!("taken at reduced quality (CPU budget) {}", share(reduced)),
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
pub struct ProfileFacts {
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
    waits: Option<Waits>,
    #[serde(skip_serializing_if = "String::is_empty")]
    waits_cause: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<fleet::Json>,
}

impl ProfileFacts {
    /// The facts of `profile`.
    pub fn of(profile: &Profile) -> ProfileFacts {
        let total = profile.total();
        ProfileFacts {
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
            waits: (profile.info.waits != Waits::default()).then_some(profile.info.waits),
            waits_cause: profile.info.waits_cause.clone(),
            fleet: None,
        }
    }

    /// The facts of an answer of a collector that is no profile.
    pub fn of_fleet(fleet: &Fleet) -> ProfileFacts {
        let mut profile = Profile::default();
        fleet.describe(&mut profile.info);
        let total = fleet.total();
        ProfileFacts {
            unit: fleet.unit().to_owned(),
            samples: total.count,
            weight: total.weight,
            ..ProfileFacts::of(&profile).with(Some(fleet))
        }
    }

    /// With what an answer of a collector is made of.
    pub fn with(self, fleet: Option<&Fleet>) -> ProfileFacts {
        let fleet = fleet.map(Fleet::json);
        ProfileFacts { fleet, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_of_more_time_than_was_asked_for_says_so() {
        const S: i64 = 1_000_000_000;
        let clock = Clock::at(1000 * S);
        let said = |start_ns, end_ns, covered| widened(Range { start_ns, end_ns }, covered, &clock);
        let half = said(900 * S, 900 * S + S / 2, (895 * S, 900 * S));
        assert_eq!(half.as_deref(), Some("asked 500 ms, complete windows: 5 s"));
        let to_now = said(998 * S, 0, (990 * S, 1000 * S));
        assert_eq!(to_now.as_deref(), Some("asked 2 s, complete windows: 10 s"));
        // A window at the edge of minutes is not worth a word, nor is an answer of less.
        assert_eq!(said(700 * S, 1000 * S, (695 * S, 1000 * S)), None);
        assert_eq!(said(700 * S, 1000 * S, (990 * S, 1000 * S)), None);
        // Everything up to an end.
        assert_eq!(said(0, 900 * S, (890 * S, 900 * S)), None);
    }

    #[test]
    fn a_file_without_times_or_a_unit_is_not_said_to_have_them() {
        let mut profile = Profile::default();
        let key = profile::SampleKey {
            labels: Default::default(),
            stack: Default::default(),
            end: Default::default(),
        };
        profile.add(
            key,
            Value {
                count: 7,
                weight: 7,
            },
        );
        profile.info.quality.taken = 7;
        let clock = Clock::at(1);
        let folded = Known::default();
        assert_eq!(
            line_of_file(&profile, folded, &clock),
            "7 in total, no times; - lost, truncated -, unnamed -"
        );
        let perf = Known {
            unnamed: true,
            ..Known::SAMPLES
        };
        // Since the machine started.
        (profile.info.start_unix_ns, profile.info.duration_ns) =
            (2_454_000_000_000, 20_000_000_000);
        profile.info.unit = "nanoseconds".to_owned();
        assert_eq!(
            line_of_file(&profile, perf, &clock),
            "7 samples, 0.00 s CPU, over 20 s (2454.000 s to 2474.000 s); - lost, truncated -, unnamed 0.0 %"
        );
    }

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
    fn waits_whose_end_was_not_seen_come_first_with_the_cause() {
        let info = Info {
            event: profile::OFF_CPU.to_owned(),
            unit: "nanoseconds".to_owned(),
            waits: Waits {
                complete: 10,
                complete_ns: 1_000_000_000,
                estimated: 10_468,
                estimated_ns: 3_000_000_000,
                dropped: 1,
                dropped_ns: 20_000_000,
                cut: 2,
                cut_ns: 40_000_000,
                ..Waits::default()
            },
            waits_cause: "CPU 1 reports no switches from idle".to_owned(),
            ..Info::default()
        };
        assert_eq!(
            waits_missing(&info),
            "10,468 waits (3.00 s) up to the wake-up, an estimate, 1 wait (at most 0.02 s) dropped: CPU 1 \
             reports no switches from idle, truncated 1.0 % of the time, unnamed -"
        );
        let seen = Info {
            waits: Waits::default(),
            waits_cause: String::new(),
            ..info
        };
        let text = waits_missing(&seen);
        assert_eq!(text, "0 dropped, truncated -, unnamed -");
    }

    #[test]
    fn what_was_counted_is_named() {
        let weight = |event: &str, unit: &str| {
            let info = Info {
                event: event.to_owned(),
                unit: unit.to_owned(),
                duration_ns: 1,
                ..Info::default()
            };
            let total = Value {
                count: 14,
                weight: 32_265,
            };
            let line = of(&info, total, &Clock::at(0));
            line.split(", over").next().map(str::to_owned)
        };
        for (event, unit, expected) in [
            ("page-faults", "faults", "14 samples, 32,265 faults"),
            (
                "context-switches",
                "switches",
                "14 samples, 32,265 switches",
            ),
            (
                "tracepoint:block:block_rq_issue",
                "events",
                "14 samples, 32,265 events of tracepoint:block:block_rq_issue",
            ),
            ("cpu-clock", "nanoseconds", "14 samples, 0.00 s CPU"),
            ("wall", "nanoseconds", "14 samples, 0.00 s of wall"),
            (
                "tracepoint:a:b",
                "calls\x1b[2J",
                "14 samples, 32,265 calls\\x1b[2J of tracepoint:a:b",
            ),
        ] {
            assert_eq!(weight(event, unit).as_deref(), Some(expected));
        }
    }

    #[test]
    fn coverage_is_said_of_what_was_measured() {
        let found = Coverage {
            expected_ns: 50_000_000_000,
            estimated_ns: 10_000_000_000,
            taken_ns: 49_000_000_000,
            ..Coverage::default()
        };
        let expected = "97.5 % of 40.00 s CPU that the kernel accounts, 10.00 s more not measured";
        assert_eq!(coverage(&found, "nanoseconds").as_deref(), Some(expected));
        let rescaled = coverage(&found.rescaled(), "microseconds");
        assert_eq!(rescaled.as_deref(), Some(expected));
        assert_eq!(coverage(&Coverage::default(), "nanoseconds"), None);
    }
}
