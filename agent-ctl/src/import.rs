//! `agent-ctl import`: reads a profile of another tool and writes it in any format.

use crate::exit::{self, fail};
use crate::facts;
use crate::group_by;
use crate::output::Output;
use crate::render::{self, Format};
use crate::select::{Frames, Labels};
use crate::summary;
use crate::terminal::{Out, clean};
use crate::when::Clock;
use anyhow::Result;
use profile::formats::Known;
use profile::{GroupBy, Profile, key};
use std::path::PathBuf;

/// Reads a profile of another tool and writes it in any format.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The format is detected from the content: perf.data, perf script text, folded stacks, pprof, \
speedscope or JSON of agent-ctl; all but perf.data plain or gzip. Sample times are kept if the \
file has them. Notes about what was skipped or assumed go to standard error. `diff` and \
`heatmap` read the same files.

Functions in perf.data get names from the files of this machine that have the recorded build ID, \
and from its kernel if that still runs since the recording. perf need not be installed.

Examples:
  agent-ctl import perf.data -o perf.html
  agent-ctl import out.perf -o out.json && agent-ctl heatmap out.json
  agent-ctl import trace.speedscope.json --profile 2 -o trace.pb.gz
  agent-ctl import cpu.pb.gz --keep '^malloc' --format folded")]
pub struct Args {
    /// File to read, `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Number of the profile in the file (speedscope) or of the event (perf.data), from 1
    /// [default: all of them together; the first event]
    #[arg(
        long,
        value_name = "N",
        value_parser = crate::number::any::<usize>(),
        help_heading = "Samples"
    )]
    profile: Option<usize>,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to group samples by, `*` for all, `none` for none; in text and flame graphs they
    /// become root frames [default: `comm` in text and flame graphs, all in pprof, JSON and
    /// parquet]
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    #[command(flatten)]
    output: Output,
    /// Suppress the notes about what was read and skipped
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Runs the command.
pub async fn run(out: &Out, mut args: Args) -> Result<u8> {
    let format = args.output.format(out)?;
    let matchers = args.labels.matchers()?;
    let filters = args.frames.filters()?;
    // On a thread of its own, so that Ctrl-C is heard while a large file is read or drawn.
    let work = move || -> Result<(Args, Vec<u8>, Profile, Known)> {
        let (import, source) = render::read_one(&args.file, args.profile)?;
        let group_by = group_by(&args.group_by, format, &import.profile);
        let group = match group_by.as_slice() {
            [all] if all == "*" => GroupBy::All,
            labels => GroupBy::Keys(labels.to_vec()),
        };
        // What a file says it misses is of all its samples: a part of them says what it says
        // itself.
        let profile = match matchers.is_empty() && filters.is_empty() {
            true => import.profile.group_by(&group),
            false => {
                let query = render::query(&matchers, &filters, group)?;
                import.profile.query(&query)
            }
        };
        let shown = args.file.to_string_lossy().into_owned();
        if !args.quiet {
            note!("{}: {}", clean(&shown), source.name());
            for note in &import.notes {
                note!("{}: {}", clean(&shown), clean(note));
            }
        }
        let mut facts = facts::of_selection(&args.labels, &args.frames, &matchers);
        facts.push(facts::fact("Query", "file", shown));
        facts.push(facts::fact("Query", "file is", source.name()));
        let notes = import.notes.iter();
        facts.extend(notes.map(|note| facts::fact("Query", "note", note)));
        let extra = render::Extra {
            root_labels: group_by::root_labels(&group_by, &profile),
            fleet: None,
            facts,
        };
        let bytes = match profile.samples.is_empty() {
            true => Vec::new(),
            false => render::write_with(&profile, format, &args.output.look, extra)?,
        };
        Ok((args, bytes, profile, import.known))
    };
    let (args, bytes, profile, known) = tokio::task::spawn_blocking(work).await??;
    if profile.samples.is_empty() {
        note!("agent-ctl: no samples match: nothing written");
        return Ok(exit::PARTIAL);
    }
    args.output.deliver(&bytes)?;
    if !args.quiet {
        note!(
            "{}",
            summary::line_of_file(&profile, known, &Clock::local())
        );
    }
    Ok(exit::OK)
}

/// The labels to keep: what was asked for, or what suits the format.
fn group_by(requested: &[String], format: Format, profile: &Profile) -> Vec<String> {
    match requested {
        [none] if none == "none" => Vec::new(),
        [] if format == Format::Top => Vec::new(),
        [] if matches!(
            format,
            Format::Pprof | Format::Json | Format::Firefox | Format::PerfScript | Format::Parquet
        ) =>
        {
            vec!["*".to_owned()]
        }
        [] => {
            let has = |label| {
                profile
                    .samples
                    .keys()
                    .any(|key| profile.dict.label(key.labels, label).is_some())
            };
            let named = [key::COMM, profile::formats::speedscope::LABEL];
            let named = named.into_iter().find(|&label| has(label));
            named.map(str::to_owned).into_iter().collect()
        }
        _ => requested.to_vec(),
    }
}

/// The error of options that only go with an agent.
pub fn not_of_file(option: &str) -> anyhow::Error {
    fail(
        exit::USAGE,
        format!(
            "failed to use {option}: samples in a file have their own times\nuse --pick FROM..TO \
             to select a part"
        ),
    )
}
