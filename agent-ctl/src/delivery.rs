//! Delivers a capture: writes its file, writes the time before into a second file if the two cannot
//! be added, and prints what the reader should know.

use crate::exit;
use crate::facts;
use crate::group_by;
use crate::look::{Look, MeasureBy};
use crate::output::{deliver, is_stdout};
use crate::render::{self, Format};
use crate::terminal::clean;
use crate::when::Clock;
use crate::{loss, summary, units};
use anyhow::Result;
use profile::Profile;
use profile::formats::Fact;
use proto::agent::{CaptureInfo, CaptureProgress, CaptureState};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Result of a capture.
#[derive(Default)]
pub struct Captured {
    /// The time before it.
    pub past: Option<Profile>,
    /// The capture itself.
    pub profile: Option<Profile>,
    /// How it went.
    pub result: CaptureInfo,
}

/// How a profile is written.
pub enum Rendering {
    /// As a file.
    Profile(Format),
    /// By instruction, as this writes it.
    Instructions(WriteProfile),
}

/// Writes a profile as bytes.
pub type WriteProfile = Box<dyn Fn(&Profile) -> Result<Vec<u8>>>;

/// Where the profile goes, and how.
pub struct Delivery<'a> {
    /// How it is written.
    pub rendering: &'a Rendering,
    /// Its file, `-` for standard output.
    pub output: &'a Path,
    /// How it looks.
    pub look: Look,
    /// Labels that stand as root frames.
    pub labels: Vec<String>,
    /// What a bundle says besides.
    pub facts: Vec<Fact>,
    /// Notes only what the reader must know.
    pub quiet: bool,
}

impl Delivery<'_> {
    /// The same, with more for a bundle to say.
    pub fn with_facts(&self, more: Vec<Fact>) -> Self {
        let mut facts = self.facts.clone();
        facts.extend(more);
        Delivery {
            look: self.look.clone(),
            labels: self.labels.clone(),
            facts,
            ..*self
        }
    }

    /// Writes what there is and says what it is.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn deliver(&self, captured: &Captured, clock: &Clock) -> Result<u8> {
        let mut look = self.look.clone();
        let mut code = match captured.result.state() {
            CaptureState::Complete => exit::OK,
            _ => exit::PARTIAL,
        };
        let current = captured.profile.clone().unwrap_or_default();
        let mut apart = None;
        let mut total = current;
        if let Some(past) = &captured.past {
            let rates_differ = past.info.period != total.info.period;
            let mut merged = past.clone();
            // Time on a CPU and time off it have one unit and no sum.
            let is_same = past.info.event == total.info.event
                || past.samples.is_empty()
                || total.samples.is_empty();
            match merged.merge(&total) {
                Ok(()) if is_same => {
                    total = merged;
                    if rates_differ && look.measure(&total.info) == MeasureBy::Count {
                        look.measure = Some(MeasureBy::Weight);
                        self.note(
                            "widths and counts show weight: the time before the capture was \
                             sampled at another rate",
                        );
                    }
                }
                Ok(()) | Err(_) => apart = Some(past),
            }
        }
        let written = match total.samples.is_empty() {
            true => {
                // An agent says it in a notice, with the reason.
                let is_said = |notice: &String| {
                    notice == "nothing was sampled" || notice.starts_with("none of the ")
                };
                if !captured.result.notices.iter().any(is_said) {
                    note!("agent-ctl: no samples: nothing written");
                }
                code = exit::PARTIAL;
                Ok(())
            }
            false => self.write(&total, self.output, &look, (clock, &captured.result)),
        };
        if let Err(error) = written {
            // What was lost, or ended it early, may be why: of a function there may be no sample.
            self.note_result(&captured.result);
            if let Some(why) = loss::of_profile(&total) {
                loss::note(&why);
            }
            return Err(error);
        }
        // An agent says how far lines are known, in a notice; an older one does not know of them.
        if look.lines && !total.samples.is_empty() && total.dict.frames.iter().all(|f| f.line == 0)
        {
            note!("agent-ctl: no frame has a source line: no debug information, or an older agent");
        }
        if let Some(past) = apart {
            code = self.write_apart(past, (clock, &captured.result))?.max(code);
        }
        self.note_result(&captured.result);
        if let Some(why) = loss::of_profile(&total) {
            loss::note(&why);
            code = exit::PARTIAL;
        }
        Ok(code)
    }

    /// The past by another event: in a file of its own.
    fn write_apart(&self, past: &Profile, of: (&Clock, &CaptureInfo)) -> Result<u8> {
        if past.samples.is_empty() {
            self.note("the flight recorder has no samples from the time before");
            return Ok(exit::OK);
        }
        match past_path(self.output) {
            Some(path) => {
                self.write(past, &path, &self.look, of)?;
                Ok(exit::OK)
            }
            None => {
                let event = clean(&past.info.event).into_owned();
                note!(
                    "agent-ctl: the time before was sampled with {event}, which cannot be added to \
                     the capture's event: skipped\ngive a file with -o to write it to a second file"
                );
                Ok(exit::PARTIAL)
            }
        }
    }

    fn write(
        &self,
        profile: &Profile,
        output: &Path,
        look: &Look,
        (clock, result): (&Clock, &CaptureInfo),
    ) -> Result<()> {
        let bytes = match self.rendering {
            Rendering::Instructions(write) => write(profile)?,
            Rendering::Profile(format) => {
                let labels = group_by::root_labels(&self.labels, profile);
                let mut facts = self.facts.clone();
                facts.extend(facts::of_capture(result));
                let extra = render::Extra {
                    root_labels: labels,
                    fleet: None,
                    facts,
                };
                render::write_with(profile, *format, look, extra)?
            }
        };
        deliver(output, &bytes)?;
        let place = match is_stdout(output) {
            true => String::new(),
            false => format!("{}: ", clean(&output.to_string_lossy())),
        };
        self.note(&format!("{place}{}", summary::line(profile, clock)));
        Ok(())
    }

    /// What it cost, and what its reader must know.
    fn note_result(&self, result: &CaptureInfo) {
        if let Some(progress) = &result.progress {
            self.note(&cost_text(progress));
        }
        for notice in &result.notices {
            note!("agent-ctl: {}", clean(notice));
        }
        if !result.error.is_empty() {
            let elapsed = units::duration(Duration::from_nanos(result.elapsed_ns));
            note!("agent-ctl: ended after {elapsed}: {}", clean(&result.error));
        }
    }

    fn note(&self, text: &str) {
        if !self.quiet {
            note!("{text}");
        }
    }
}

/// The file for the past, next to that of the capture: `db.past.svg` for `db.svg`. `None` for
/// standard output.
fn past_path(output: &Path) -> Option<PathBuf> {
    if is_stdout(output) {
        return None;
    }
    let name = output.file_name()?.to_str()?;
    let name = match name.split_once('.') {
        Some((stem, endings)) => format!("{stem}.past.{endings}"),
        None => format!("{name}.past"),
    };
    Some(output.with_file_name(name))
}

/// `cost 41 ms of CPU time (0.4 % of a CPU) and 310 KiB in the agent`.
fn cost_text(progress: &CaptureProgress) -> String {
    let mut text = format!(
        "cost {} of CPU time ({} of a CPU) and {} in the agent",
        units::duration(Duration::from_nanos(progress.cpu_ns)),
        units::percent(progress.cpu_ns, progress.elapsed_ns),
        units::bytes(progress.bytes)
    );
    let all = progress.samples_all;
    if all > progress.samples {
        let (all, current) = (units::count(all), units::count(progress.samples));
        text.push_str(&format!("; {current} of {all} samples matched"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_past_goes_beside_the_capture() {
        for (output, expected) in [
            ("db.svg", Some("db.past.svg")),
            ("/tmp/x/db.pb.gz", Some("/tmp/x/db.past.pb.gz")),
            ("db", Some("db.past")),
            ("-", None),
        ] {
            assert_eq!(past_path(Path::new(output)), expected.map(PathBuf::from));
        }
    }

    #[test]
    fn cost_is_told_in_a_line() {
        let progress = CaptureProgress {
            elapsed_ns: 12_400_000_000,
            samples: 11_964,
            samples_all: 20_000,
            cpu_ns: 50_000_000,
            bytes: 310 << 10,
            ..CaptureProgress::default()
        };
        assert_eq!(
            cost_text(&progress),
            "cost 50 ms of CPU time (0.4 % of a CPU) and 310 KiB in the agent; \
             11,964 of 20,000 samples matched"
        );
    }
}
