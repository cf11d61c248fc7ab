//! The only place that calls the profile crate's writers and readers.

use crate::exit::{self, fail};
use crate::fleet::Fleet;
use crate::look::{Look, MeasureBy, title_of};
use crate::report;
use crate::terminal::clean;
use anyhow::{Context, Result};
use clap::ValueEnum;
use profile::formats::{self, Annotations, Fact, Import, ImportOptions, Options, Source};
use profile::{Diff, GroupBy, Info, Profile, Query};
use proto::{agent, query};
use std::io::Read;
use std::path::Path;

/// Largest file read, packed and unpacked. Unit: bytes. Far above any profile of an hour; it keeps
/// a packed bomb from taking the machine's memory.
const FILE_BYTES_MAX: u64 = 512 << 20;

/// Formats a profile leaves in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Report for people: functions, or the callers or callees of one
    Top,
    /// Folded stacks, a line each
    Folded,
    /// pprof, gzip-compressed
    Pprof,
    /// JSON for speedscope.app
    Speedscope,
    /// Flame graph as SVG
    Svg,
    /// Flame graph as one HTML file
    Html,
    /// Samples as JSON
    Json,
    /// JSON for profiler.firefox.com
    Firefox,
    /// Text in the format of perf script, for FlameScope and others
    PerfScript,
    /// Incident bundle: flame graph, heat map, table and facts in one HTML file
    Bundle,
    /// Table of samples for notebooks and databases
    Parquet,
}

impl Format {
    /// The format that a file name asks for.
    pub fn of_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?;
        if let Some(found) = formats::Format::of_file_name(name) {
            let mut all = Format::value_variants().iter().copied();
            return all.find(|format| format.to_profile() == Some(found));
        }
        let lower = name.to_ascii_lowercase();
        // Names other tools use for the same.
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| lower.ends_with(suffix));
        if ends(&[".pprof", ".pb", ".pprof.gz"]) {
            return Some(Format::Pprof);
        }
        if ends(&[".collapsed", ".txt"]) {
            return Some(Format::Folded);
        }
        ends(&[".htm"]).then_some(Format::Html)
    }

    /// The format of a file; `None` for the report, which is text for people.
    fn to_profile(self) -> Option<formats::Format> {
        Some(match self {
            Format::Top => return None,
            Format::Folded => formats::Format::Folded,
            Format::Pprof => formats::Format::Pprof,
            Format::Speedscope => formats::Format::Speedscope,
            Format::Svg => formats::Format::Svg,
            Format::Html => formats::Format::Html,
            Format::Json => formats::Format::Json,
            Format::Firefox => formats::Format::Firefox,
            Format::PerfScript => formats::Format::PerfScript,
            Format::Bundle => formats::Format::Bundle,
            Format::Parquet => formats::Format::Parquet,
        })
    }

    /// True for formats that are little without the time of each sample.
    pub fn needs_times(self) -> bool {
        self != Format::Json && self.to_profile().is_some_and(formats::Format::has_times)
    }

    /// Its name, when its bytes are no text.
    pub fn binary(self) -> Option<&'static str> {
        let format = self.to_profile().filter(|format| !format.is_text());
        format.map(formats::Format::name)
    }
}

/// Formats a comparison leaves in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DiffFormat {
    /// Table of functions
    Text,
    /// Folded stacks with two counts, before and after
    Folded,
    /// Flame graph of the second side, coloured by change
    Svg,
    /// Flame graph and table as one HTML file
    Html,
    /// JSON with shares, deltas and errors of functions
    Json,
}

impl DiffFormat {
    /// The format that a file name asks for.
    pub fn of_path(path: &Path) -> Option<DiffFormat> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        match name.rsplit_once('.')?.1 {
            "txt" => Some(DiffFormat::Text),
            "folded" | "collapsed" => Some(DiffFormat::Folded),
            "svg" => Some(DiffFormat::Svg),
            "html" | "htm" => Some(DiffFormat::Html),
            // Not those of another kind of JSON: a comparison has none of them.
            "json" if !name.ends_with(".speedscope.json") && !name.ends_with(".firefox.json") => {
                Some(DiffFormat::Json)
            }
            _ => None,
        }
    }
}

/// Endings of the formats of a comparison.
pub const DIFF_ENDINGS: &str = ".txt .folded .svg .html .json";

/// What belongs to a profile that is written.
#[derive(Default)]
pub struct Extra {
    /// Labels that stand as frames below the root.
    pub root_labels: Vec<String>,
    /// What an answer of a collector is made of, which JSON has under the key `fleet`.
    pub fleet: Option<Fleet>,
    /// What a bundle says besides.
    pub facts: Vec<Fact>,
}

/// The options of writers of a profile of this kind.
pub fn options(look: &Look, info: &Info, root_labels: Vec<String>, facts: Vec<Fact>) -> Options {
    Options {
        title: look.title(info),
        measure: look.measure(info).into(),
        annotations: if look.annotate {
            Annotations::ALL
        } else {
            Annotations::default()
        },
        root_labels,
        lines: look.lines,
        icicle: look.icicle,
        facts,
        ..Options::default()
    }
}

/// The bytes of a profile in a format.
///
/// # Errors
/// When the writer fails.
pub fn write_with(profile: &Profile, format: Format, look: &Look, extra: Extra) -> Result<Vec<u8>> {
    let mut facts = extra.facts;
    if format == Format::Bundle {
        facts.extend(crate::facts::of_file());
    }
    let Some(to) = format.to_profile() else {
        let place = report::Place {
            shown: look.shown,
            counts: look.measure == Some(MeasureBy::Count),
        };
        return look.report.write(profile, place, &extra.root_labels);
    };
    let options = options(look, &profile.info, extra.root_labels, facts);
    let mut bytes = Vec::new();
    formats::write(profile, to, &options, &mut bytes)?;
    match extra.fleet {
        Some(fleet) if format == Format::Json => with_fleet(&bytes, &fleet),
        _ => Ok(bytes),
    }
}

/// The same on a thread of its own, so that Ctrl-C is heard while a large flame graph is laid out.
///
/// # Errors
/// As [`write_with`].
pub async fn write_on_thread(
    profile: Profile,
    format: Format,
    look: Look,
    extra: Extra,
) -> Result<Vec<u8>> {
    let write = move || write_with(&profile, format, &look, extra);
    tokio::task::spawn_blocking(write).await?
}

/// A JSON object with one key more, before all others.
fn with_fleet(object: &[u8], fleet: &Fleet) -> Result<Vec<u8>> {
    let rest = object
        .strip_prefix(b"{")
        .context("failed to write JSON: the profile is not an object")?;
    let fleet = crate::terminal::json(&fleet.json(), false)?;
    let mut bytes = format!("{{\n\"fleet\": {fleet},").into_bytes();
    bytes.extend_from_slice(rest);
    Ok(bytes)
}

/// The bytes of a comparison; `normalise` scales the first side to the total of the second.
///
/// # Errors
/// When the writer fails, or for text and JSON, which are the command's own.
pub fn write_diff(
    diff: &Diff,
    format: DiffFormat,
    normalise: bool,
    measure: MeasureBy,
) -> Result<Vec<u8>> {
    let options = Options {
        title: format!("{}: what changed", title_of(&diff.after)),
        measure: measure.into(),
        ..Options::default()
    };
    let mut bytes = Vec::new();
    match format {
        DiffFormat::Folded => formats::folded::write_diff(diff, normalise, &options, &mut bytes)?,
        DiffFormat::Svg => formats::svg::write_diff(diff, normalise, &options, &mut bytes)?,
        DiffFormat::Html => formats::html::write_diff(diff, normalise, &options, &mut bytes)?,
        DiffFormat::Text | DiffFormat::Json => anyhow::bail!(
            "failed to write a table: it is not a \
            profile format"
        ),
    }
    Ok(bytes)
}

/// Reads a profile from a file of any kind that is known; `-` is standard input. What was left out
/// of it is said.
///
/// # Errors
/// When it cannot be read, is too large, or no profile.
pub fn read(path: &Path) -> Result<Import> {
    let (import, _) = read_one(path, None)?;
    for note in &import.notes {
        note!("{}: {}", clean(&path.to_string_lossy()), clean(note));
    }
    Ok(import)
}

/// The same with what it was found to be; of several profiles in a file, `which` is taken.
///
/// # Errors
/// As [`read`].
pub fn read_one(path: &Path, which: Option<usize>) -> Result<(Import, Source)> {
    let shown = path.display();
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => std::io::stdin()
            .lock()
            .take(FILE_BYTES_MAX + 1)
            .read_to_end(&mut bytes),
        false => {
            let file = std::fs::File::open(path);
            let file = file.with_context(|| format!("failed to open `{shown}`"))?;
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)
        }
    };
    read.with_context(|| format!("failed to read `{shown}`"))?;
    let refused = |error: &dyn std::error::Error| {
        let text = profile::text::with_causes(error);
        fail(
            exit::USAGE,
            format!("failed to read `{shown}` as a profile: {text}"),
        )
    };
    if perf_data::is_perf_data(&bytes) {
        let options = perf_data::Options {
            bytes_max: FILE_BYTES_MAX as usize,
            event: which,
            local: true,
        };
        let import = perf_data::read(&bytes, options).map_err(|error| refused(&error))?;
        return Ok((import, Source::PerfData));
    }
    let options = ImportOptions {
        bytes_max: FILE_BYTES_MAX,
        profile: which,
    };
    formats::import(&bytes, options).map_err(|error| refused(&error))
}

/// The query that selects in a profile at hand what an agent would have selected.
///
/// # Errors
/// When a matcher or pattern is malformed.
pub fn query(
    matchers: &[agent::LabelMatcher],
    filters: &[agent::FrameFilter],
    group_by: GroupBy,
) -> Result<Query> {
    let selector = query::selector(matchers.to_vec())?;
    let frames = query::frame_filters(filters.to_vec())?;
    Ok(Query::new(selector, frames, group_by)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_tell_the_format() {
        for (name, expected) in [
            ("a.svg", Some(Format::Svg)),
            ("A.SVG", Some(Format::Svg)),
            ("x/cpu.pb.gz", Some(Format::Pprof)),
            ("a.pprof", Some(Format::Pprof)),
            ("a.speedscope.json", Some(Format::Speedscope)),
            ("a.json", Some(Format::Json)),
            ("a.folded", Some(Format::Folded)),
            ("a.html", Some(Format::Html)),
            ("a.bundle.html", Some(Format::Bundle)),
            ("a.perf.txt", Some(Format::PerfScript)),
            ("a.parquet", Some(Format::Parquet)),
            ("a.firefox.json", Some(Format::Firefox)),
            ("a.txt", Some(Format::Folded)),
            ("a", None),
            ("a.gz", None),
        ] {
            assert_eq!(Format::of_path(Path::new(name)), expected, "{name}");
        }
    }

    #[test]
    fn file_names_tell_the_format_of_a_comparison() {
        for (name, expected) in [
            ("d.svg", Some(DiffFormat::Svg)),
            ("D.HTML", Some(DiffFormat::Html)),
            ("d.json", Some(DiffFormat::Json)),
            ("d.folded", Some(DiffFormat::Folded)),
            ("d.txt", Some(DiffFormat::Text)),
            ("d.pb.gz", None),
            ("d.speedscope.json", None),
            ("d", None),
        ] {
            assert_eq!(DiffFormat::of_path(Path::new(name)), expected, "{name}");
        }
    }
}
