//! The formats in which profiles are written, and those from which they are read.
//!
//! [`write()`] handles all of them; features of a single format (differentials, reading) are in its
//! module. Writers stream to any [`Write`]; pass a buffered one. Each writer escapes hostile text
//! as its format requires.

pub mod firefox;
pub mod folded;
pub mod heatmap;
pub mod html;
pub mod import;
mod imported;
pub mod json;
pub mod levels;
mod palette;
pub mod parquet;
pub mod perf_script;
pub mod pprof;
pub mod speedscope;
mod summary;
pub mod svg;
mod timeline;
mod tree;

pub use import::{ImportError, ImportOptions, Source, import};
pub use imported::{Import, Known};
pub use summary::{is_dateless, quality_line};

use crate::dictionary::Dictionary;
use crate::frame::{FrameKind, FrameRef};
use crate::heatmap::Grid;
use crate::labels::LabelSetId;
use crate::outcome::StackEnd;
use crate::profile::Profile;
use crate::sample::Value;
use std::borrow::Cow;
use std::io::Write;

/// A format that a profile can be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// One line a stack: `root;…;leaf count`.
    Folded,
    /// Protocol buffers of pprof, with gzip.
    Pprof,
    /// JSON that speedscope reads.
    Speedscope,
    /// Flame graph as a picture with search and zoom.
    Svg,
    /// Flame graph and table as one page that needs nothing else.
    Html,
    /// The documented JSON for scripts.
    Json,
    /// Processed profile of the Firefox Profiler.
    Firefox,
    /// Text as `perf script` writes it.
    PerfScript,
    /// All that is known of an incident as one page that needs nothing else.
    Bundle,
    /// A table for notebooks and databases.
    Parquet,
}

impl Format {
    /// Every format.
    pub const ALL: [Format; 10] = [
        Format::Folded,
        Format::Pprof,
        Format::Speedscope,
        Format::Svg,
        Format::Html,
        Format::Json,
        Format::Firefox,
        Format::PerfScript,
        Format::Bundle,
        Format::Parquet,
    ];

    /// Its name on the command line; `str::parse` reads it.
    pub fn name(self) -> &'static str {
        match self {
            Format::Folded => "folded",
            Format::Pprof => "pprof",
            Format::Speedscope => "speedscope",
            Format::Svg => "svg",
            Format::Html => "html",
            Format::Json => "json",
            Format::Firefox => "firefox",
            Format::PerfScript => "perf-script",
            Format::Bundle => "bundle",
            Format::Parquet => "parquet",
        }
    }

    /// How a file of it ends, without the first dot.
    pub fn extension(self) -> &'static str {
        match self {
            Format::Folded => "folded",
            Format::Pprof => "pb.gz",
            Format::Speedscope => "speedscope.json",
            Format::Svg => "svg",
            Format::Html => "html",
            Format::Json => "json",
            Format::Firefox => "firefox.json",
            Format::PerfScript => "perf.txt",
            Format::Bundle => "bundle.html",
            Format::Parquet => "parquet",
        }
    }

    /// True when what is written says when samples were taken, where the profile does.
    pub fn has_times(self) -> bool {
        matches!(
            self,
            Format::Json | Format::Firefox | Format::PerfScript | Format::Bundle
        )
    }

    /// The format of a file name, by the longest extension that fits.
    pub fn of_file_name(name: &str) -> Option<Format> {
        let name = name.to_ascii_lowercase();
        let fits = |format: &Format| {
            name.strip_suffix(format.extension())
                .is_some_and(|stem| stem.ends_with('.'))
        };
        Format::ALL
            .into_iter()
            .filter(fits)
            .max_by_key(|format| format.extension().len())
    }

    /// True when it is text that a terminal can show.
    pub fn is_text(self) -> bool {
        !matches!(self, Format::Pprof | Format::Parquet)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(name: &str) -> Result<Format, UnknownFormat> {
        let found = Format::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| UnknownFormat {
            name: name.to_owned(),
        })
    }
}

/// No format has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "failed to use format `{name}`: expected folded, pprof, speedscope, svg, html, json, firefox, \
     perf-script, bundle or parquet"
)]
pub struct UnknownFormat {
    /// What was asked for.
    pub name: String,
}

/// Why a profile was not written.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The writer failed.
    #[error("failed to write the profile")]
    Io(#[from] std::io::Error),
    /// The JSON writer failed, which is the writer below it.
    #[error("failed to write JSON")]
    Json(#[from] serde_json::Error),
    /// More than the format can count.
    #[error("failed to write the profile as {format}: its total is larger than 2⁶³")]
    TotalTooLarge {
        /// The format.
        format: Format,
    },
    /// More labels than columns are made for.
    #[error(
        "failed to write {labels} labels as columns, more than {}",
        parquet::LABELS_MAX
    )]
    TooManyLabels {
        /// How many.
        labels: usize,
    },
    /// Stretches of time that have no unit in common.
    #[error("failed to write profiles of several times to one file")]
    Units(#[from] crate::merge::MergeError),
    /// The library that writes Parquet failed.
    #[error("failed to write Parquet")]
    Parquet(#[source] ::parquet::errors::ParquetError),
}

/// Which number of a [`Value`] the width of a frame and the count of a line are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Measure {
    /// Samples.
    #[default]
    Count,
    /// Their weight in the profile's unit: nanoseconds of CPU time.
    Weight,
}

impl Measure {
    fn of(self, value: Value) -> u64 {
        match self {
            Measure::Count => value.count,
            Measure::Weight => value.weight,
        }
    }
}

/// Which kinds of frame are marked in folded stacks: `_[k]`, `_[j]`, `_[i]` after the function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Annotations {
    /// `_[k]` after kernel functions.
    pub kernel: bool,
    /// `_[j]` after generated code.
    pub jit: bool,
    /// `_[i]` after inlined functions.
    pub inlined: bool,
}

impl Annotations {
    /// All three.
    pub const ALL: Annotations = Annotations {
        kernel: true,
        jit: true,
        inlined: true,
    };

    fn suffix(self, kind: FrameKind) -> &'static str {
        match kind {
            FrameKind::Kernel if self.kernel => "_[k]",
            FrameKind::Jit if self.jit => "_[j]",
            FrameKind::Inlined if self.inlined => "_[i]",
            _ => "",
        }
    }
}

/// How a profile is written. Each format takes what applies to it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Heading (svg, html, speedscope).
    pub title: String,
    /// What is counted (folded, svg; first shown in html). Other formats carry both or weight.
    pub measure: Measure,
    /// Marks of frame kinds (folded). The others say the kind in their own way.
    pub annotations: Annotations,
    /// Functions with different source lines are separate, `hot work.c:12` (folded, svg, html,
    /// bundle). If lines are known, pprof, json, speedscope and firefox always contain them.
    pub lines: bool,
    /// Labels with values that become frames below the root, outermost first (folded, svg, html).
    /// Samples without one are under `[no LABEL]`, except lost ones: their process is not known, so
    /// they have no such frame and `[lost]` comes at once. Columns (parquet).
    pub root_labels: Vec<String>,
    /// One profile for each value of this label, largest first (speedscope). Lost samples without
    /// it are the profile `[lost]`.
    pub split_by: Option<String>,
    /// Puts stacks that are known to be cut under a `[truncated]` frame, so that their lost callers
    /// do not look like roots (folded, svg, speedscope, html). Always said in pprof and json.
    pub mark_cut: bool,
    /// Root at the top (svg, first view in html).
    pub icicle: bool,
    /// Most bars kept (html, bundle); the smallest are folded into `[other]`, which the page says.
    pub max_bars: usize,
    /// How time is cut into cells (bundle).
    pub grid: Grid,
    /// What else is known: of the host, of the question, of who wrote the file (bundle).
    pub facts: Vec<Fact>,
}

/// A fact about a profile that is shown with it. Text from outside is escaped when it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// Heading it stands under.
    pub group: String,
    /// What it is.
    pub name: String,
    /// What it says.
    pub value: String,
}

/// Most bars of an HTML page unless asked otherwise: about 4 MB of page. 100,000 bars are 1.4 MB,
/// open in 0.35 s and redraw in 40 ms (2026-11-21, headless Chromium without GPU on 2 shared
/// cores). Fewer hide what is narrow; many more make the page slow to open.
pub const MAX_BARS_DEFAULT: usize = 300_000;

impl Default for Options {
    fn default() -> Self {
        Options {
            title: "CPU profile".to_owned(),
            measure: Measure::default(),
            annotations: Annotations::default(),
            lines: false,
            root_labels: Vec::new(),
            split_by: None,
            mark_cut: true,
            icicle: false,
            max_bars: MAX_BARS_DEFAULT,
            grid: Grid::default(),
            facts: Vec::new(),
        }
    }
}

/// Writes `profile` in `format`.
///
/// The same samples give the same text, whatever the order they were collected in.
///
/// # Errors
/// When `out` fails, or the total is beyond what the format can count.
pub fn write(
    profile: &Profile,
    format: Format,
    options: &Options,
    out: &mut (impl Write + Send),
) -> Result<(), FormatError> {
    match format {
        Format::Folded => folded::write(profile, options, out),
        Format::Pprof => pprof::write(profile, out),
        Format::Speedscope => speedscope::write(profile, options, out),
        Format::Svg => svg::write(profile, options, out),
        Format::Html => html::write(profile, options, out),
        Format::Json => json::write(profile, out),
        Format::Firefox => firefox::write(profile, options, out),
        Format::PerfScript => perf_script::write(profile, options, out),
        Format::Bundle => html::write_bundle(profile, options, out),
        Format::Parquet => parquet::write(profile, options, out),
    }
}

/// Name of the frame over stacks that are known to be cut.
pub const TRUNCATED_FRAME: &str = "[truncated]";

/// A frame between the root and the first frame of a stack.
enum RootFrame<'a> {
    /// The value of a label; `None` when the sample lacks it.
    Label(&'a str, Option<&'a str>),
    /// [`TRUNCATED_FRAME`].
    Truncated,
}

impl RootFrame<'_> {
    fn text(&self) -> String {
        match self {
            RootFrame::Label(_, Some(value)) => (*value).to_owned(),
            RootFrame::Label(key, None) => format!("[no {key}]"),
            RootFrame::Truncated => TRUNCATED_FRAME.to_owned(),
        }
    }
}

fn root_frames<'a>(
    dict: &'a Dictionary,
    options: &'a Options,
    labels: LabelSetId,
    end: StackEnd,
) -> impl Iterator<Item = RootFrame<'a>> {
    let labels = options.root_labels.iter().filter_map(move |key| {
        let value = dict.label(labels, key);
        let shown = value.is_some() || end != StackEnd::Lost;
        shown.then_some(RootFrame::Label(key.as_str(), value))
    });
    let cut = (options.mark_cut && end.is_truncated()).then_some(RootFrame::Truncated);
    labels.chain(cut)
}

/// What a frame is called: its function, with the source line where that is known and wanted.
fn called<'a>(frame: FrameRef<'a>, options: &Options) -> Cow<'a, str> {
    if !options.lines || frame.line == 0 {
        return frame.function.into();
    }
    let file = frame.file.rsplit('/').next().unwrap_or_default();
    format!("{} {file}:{}", frame.function, frame.line).into()
}

/// A frame that stands for a stack without frames.
fn no_frames() -> FrameRef<'static> {
    FrameRef {
        kind: FrameKind::Synthetic,
        function: "[unknown]",
        ..FrameRef::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let error = "flame".parse::<Format>().unwrap_err().to_string();
        assert!(
            Format::ALL
                .iter()
                .all(|format| error.contains(format.name())),
            "{error}"
        );
    }

    #[test]
    fn the_longest_extension_wins() {
        for (name, expected) in [
            ("a.json", Some(Format::Json)),
            ("a.speedscope.json", Some(Format::Speedscope)),
            ("a.PB.GZ", Some(Format::Pprof)),
            ("a.firefox.json", Some(Format::Firefox)),
            ("a.perf.txt", Some(Format::PerfScript)),
            ("a.bundle.html", Some(Format::Bundle)),
            ("a.html", Some(Format::Html)),
            ("json", None),
            ("a.txt", None),
        ] {
            assert_eq!(Format::of_file_name(name), expected, "{name}");
        }
    }
}
