//! How a profile is drawn: the meaning of widths, and the heading.

use crate::report::Report;
use crate::terminal::Out;
use profile::Info;
use profile::formats::Measure;

/// How a profile is to be written.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Look {
    /// Unit of widths and counts: samples, or their weight [default: count; weight for `off-cpu`,
    /// for events sampled by rate and for what other senders sent]
    #[arg(long, value_enum, help_heading = "Output")]
    pub measure: Option<MeasureBy>,
    /// Mark kernel `_[k]`, JIT `_[j]` and inlined `_[i]` functions in folded stacks
    #[arg(long, help_heading = "Output")]
    pub annotate: bool,
    /// Draw the flame graph with the root at the top
    #[arg(long, help_heading = "Output")]
    pub icicle: bool,
    /// Title of the flame graph [default: derived from the event]
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub title: Option<String>,
    /// The report of `--format top`.
    #[command(flatten)]
    pub report: Report,
    /// Functions with different source lines are separate.
    #[arg(skip)]
    pub lines: bool,
    /// Where it is shown; `None`: in a file.
    #[arg(skip)]
    pub shown: Option<Out>,
}

impl Look {
    /// The meaning of widths in a profile of this kind.
    pub fn measure(&self, info: &Info) -> MeasureBy {
        self.measure.unwrap_or_else(|| measure_of(info))
    }

    /// The heading of a flame graph of this kind.
    pub fn title(&self, info: &Info) -> String {
        self.title.clone().unwrap_or_else(|| title_of(info))
    }
}

/// The meaning of widths where nobody says it.
pub fn measure_of(info: &Info) -> MeasureBy {
    // A wait of a second and one of a microsecond are one sample each; a sample of an event by rate
    // stands for as many as there were.
    match info.has_variable_weight() {
        true => MeasureBy::Weight,
        false => MeasureBy::Count,
    }
}

/// What a profile is of, as a heading.
pub fn title_of(info: &Info) -> String {
    match info.event.as_str() {
        profile::OFF_CPU => "Time off the CPU".to_owned(),
        event if info.is_cpu_time() || event.is_empty() => "CPU profile".to_owned(),
        event => format!("Profile of {event}"),
    }
}

/// See [`Look::measure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MeasureBy {
    /// Number of samples
    Count,
    /// Weight of samples: CPU time, time waited, or what the event counts
    Weight,
}

impl From<MeasureBy> for Measure {
    fn from(by: MeasureBy) -> Measure {
        match by {
            MeasureBy::Count => Measure::Count,
            MeasureBy::Weight => Measure::Weight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_says_the_heading_and_what_widths_stand_for() {
        use MeasureBy::{Count, Weight};
        for (event, unit, period, title, measure) in [
            ("cpu-clock", "nanoseconds", 1, "CPU profile", Count),
            ("off-cpu", "nanoseconds", 1, "Time off the CPU", Weight),
            (
                "page-faults",
                "page-faults",
                1,
                "Profile of page-faults",
                Count,
            ),
            ("cycles", "cycles", 0, "Profile of cycles", Weight),
            ("", "", 0, "CPU profile", Count),
        ] {
            let info = Info {
                event: event.to_owned(),
                unit: unit.to_owned(),
                period,
                ..Info::default()
            };
            let look = Look::default();
            assert_eq!(
                (look.title(&info).as_str(), look.measure(&info)),
                (title, measure)
            );
            let asked = Look {
                measure: Some(MeasureBy::Count),
                title: Some("mine".to_owned()),
                ..look
            };
            assert_eq!(
                (asked.title(&info).as_str(), asked.measure(&info)),
                ("mine", MeasureBy::Count)
            );
        }
    }
}
