//! The one place that calls the profile crate's writers and readers.

use crate::exit::{self, fail};
use anyhow::Result;
use profile::Profile;
use std::path::Path;

/// Formats a profile leaves in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
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
}

impl Format {
    /// The format that a file name asks for.
    pub fn of_path(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        let ends = |suffixes: &[&str]| suffixes.iter().any(|suffix| name.ends_with(suffix));
        if ends(&[".pb.gz", ".pprof", ".pb", ".pprof.gz"]) {
            Some(Format::Pprof)
        } else if ends(&[".speedscope.json", ".speedscope"]) {
            Some(Format::Speedscope)
        } else if ends(&[".folded", ".collapsed", ".txt"]) {
            Some(Format::Folded)
        } else if ends(&[".svg"]) {
            Some(Format::Svg)
        } else if ends(&[".html", ".htm"]) {
            Some(Format::Html)
        } else if ends(&[".json"]) {
            Some(Format::Json)
        } else {
            None
        }
    }

    /// True when the bytes are no text.
    pub fn is_binary(self) -> bool {
        self == Format::Pprof
    }
}

/// The bytes of a profile in a format.
///
/// # Errors
/// When the writer fails.
pub fn write(profile: &Profile, format: Format, title: &str) -> Result<Vec<u8>> {
    let _ = (profile, title);
    Err(fail(exit::FAILURE, format!("failed to write {format:?}: not in this build")))
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
            ("a", None),
            ("a.gz", None),
        ] {
            assert_eq!(Format::of_path(Path::new(name)), expected, "{name}");
        }
    }
}
