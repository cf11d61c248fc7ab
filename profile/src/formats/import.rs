//! Reads a profile of any tool. The content decides which format it is.
//!
//! The bytes are untrusted. Their unpacked size is bounded; each reader bounds depth, names and
//! counts, and reports what it left out.

use super::imported::{Import, Known};
use super::{folded, html, json, perf_script, pprof, speedscope};
use crate::profile::{Info, Profile};
use flate2::read::MultiGzDecoder;
use std::borrow::Cow;
use std::io::Read;

/// What a file was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The JSON of [`json`].
    Json,
    /// pprof.
    Pprof,
    /// JSON of speedscope.
    Speedscope,
    /// Text of `perf script`.
    PerfScript,
    /// What `perf record` wrote, which is read outside of this crate.
    PerfData,
    /// Folded stacks.
    Folded,
    /// A page that [`html`] wrote.
    Page,
}

impl Source {
    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Source::Json => "JSON of fleetprof",
            Source::Pprof => "pprof",
            Source::Speedscope => "speedscope",
            Source::PerfScript => "perf script text",
            Source::PerfData => "recording of perf",
            Source::Folded => "folded stacks",
            Source::Page => "page of fleetprof",
        }
    }
}

/// How files are read.
#[derive(Clone, Copy, Debug)]
pub struct ImportOptions {
    /// Most bytes that a file may have, and unpack to.
    pub bytes_max: u64,
    /// Which profile of a file of several is taken, 1-based (speedscope).
    pub profile: Option<usize>,
}

/// Why bytes are not a profile.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// Nothing in it.
    #[error("the file is empty")]
    Empty,
    /// The compression is damaged from its start.
    #[error("failed to unpack gzip")]
    Unpack(#[source] std::io::Error),
    /// Beyond the limit.
    #[error("the file has more than {limit} bytes, packed or unpacked")]
    TooLarge {
        /// In bytes.
        limit: u64,
    },
    /// Compressed, but not by gzip.
    #[error("the file is compressed with {by}\nunpack it first: only gzip is supported")]
    Compression {
        /// The program.
        by: &'static str,
    },
    /// A file recorded by perf. Reading it takes the files of a machine, which are none of this
    /// crate's business.
    #[error("the file is a recording of perf\nunpack it first: `agent-ctl import` reads perf.data")]
    PerfData,
    /// A format that we write but cannot read.
    #[error(
        "the file is a profile of the Firefox Profiler, which cannot be read\n\
         write it in another format: JSON keeps everything, perf script text keeps times"
    )]
    Firefox,
    /// JSON of somebody else.
    #[error("the file is JSON, but not from fleetprof or speedscope")]
    OtherJson,
    /// Nothing that is known.
    #[error(
        "the format is unknown: expected pprof, JSON of fleetprof, speedscope, perf script text, \
         folded stacks or a page of fleetprof"
    )]
    Unknown,
    /// One of several profiles was asked for in a file that has one.
    #[error("there is no profile `{asked}`: the file is {} and has one profile", kind.name())]
    OneProfile {
        /// What it is.
        kind: Source,
        /// 1-based.
        asked: usize,
    },
    /// See there.
    #[error(transparent)]
    Json(#[from] json::JsonError),
    /// See there.
    #[error(transparent)]
    Pprof(#[from] pprof::DecodeError),
    /// See there.
    #[error(transparent)]
    Speedscope(#[from] speedscope::SpeedscopeError),
    /// See there.
    #[error(transparent)]
    PerfScript(#[from] perf_script::PerfScriptError),
    /// See there.
    #[error(transparent)]
    Folded(#[from] folded::ReadError),
    /// See there.
    #[error(transparent)]
    Page(#[from] html::PageError),
}

/// Reads a profile.
///
/// # Errors
/// When the bytes are none, or beyond a limit.
pub fn import(bytes: &[u8], options: ImportOptions) -> Result<(Import, Source), ImportError> {
    let limit = options.bytes_max;
    if bytes.len() as u64 > limit {
        return Err(ImportError::TooLarge { limit });
    }
    if bytes.is_empty() {
        return Err(ImportError::Empty);
    }
    let (bytes, mut notes) = unpack(bytes, limit)?;
    let source = tell(&bytes)?;
    if let Some(asked) = options.profile.filter(|&asked| asked != 1)
        && !matches!(source, Source::Speedscope | Source::PerfData)
    {
        let kind = source;
        return Err(ImportError::OneProfile { kind, asked });
    }
    let mut import = match source {
        Source::Json => whole(json::read(&bytes)?).knowing(Known::ALL),
        Source::Pprof => {
            let profile = pprof::decode(&bytes, limit)?;
            // Files of ours name their event, and say what it missed.
            match profile.info.event.is_empty() {
                true => Import::new(profile, Vec::new()).knowing(Known {
                    unnamed: true,
                    ..Known::SAMPLES
                }),
                // How waits ended has no place in them.
                false => {
                    let lost = !profile.info.is_waiting();
                    whole(profile).knowing(Known { lost, ..Known::ALL })
                }
            }
        }
        Source::Page => html::read(&bytes)?,
        Source::Speedscope => speedscope::read(&bytes, options.profile)?,
        Source::PerfScript => perf_script::read(&text(&bytes, &mut notes))?,
        Source::PerfData => return Err(ImportError::PerfData),
        Source::Folded => {
            let text = text(&bytes, &mut notes);
            let note = "folded stacks do not say what they count: it is taken for samples";
            notes.push(note.to_owned());
            whole(folded::read(&text, Info::default())?).count_truncated()
        }
    };
    import.notes.extend(notes);
    Ok((import, source))
}

/// A profile with a reader that itself reports what it misses.
fn whole(profile: Profile) -> Import {
    Import {
        profile,
        notes: Vec::new(),
        known: Known::default(),
    }
}

/// Returns the bytes without gzip. If the file ends in the middle, it returns what is there.
fn unpack(bytes: &[u8], limit: u64) -> Result<(Cow<'_, [u8]>, Vec<String>), ImportError> {
    let marks: [(&[u8], &'static str); 4] = [
        (b"\x28\xb5\x2f\xfd", "zstd"),
        (b"BZh", "bzip2"),
        (b"\xfd7zXZ", "xz"),
        (b"PK\x03\x04", "zip"),
    ];
    if let Some(&(_, by)) = marks.iter().find(|(mark, _)| bytes.starts_with(mark)) {
        return Err(ImportError::Compression { by });
    }
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok((Cow::Borrowed(bytes), Vec::new()));
    }
    let mut unpacked = Vec::new();
    let mut reader = MultiGzDecoder::new(bytes).take(limit.saturating_add(1));
    let done = reader.read_to_end(&mut unpacked);
    if unpacked.len() as u64 > limit {
        return Err(ImportError::TooLarge { limit });
    }
    match done {
        Ok(0) => Err(ImportError::Empty),
        Ok(_) => Ok((unpacked.into(), Vec::new())),
        Err(error) if unpacked.is_empty() => Err(ImportError::Unpack(error)),
        Err(error) => {
            // Only complete files are worth anything if they are not text.
            if !is_text(&unpacked) {
                return Err(ImportError::Unpack(error));
            }
            let note = "the compressed file is cut or damaged: what could be unpacked was read";
            Ok((unpacked.into(), vec![note.to_owned()]))
        }
    }
}

/// True for bytes that start as text does.
fn is_text(bytes: &[u8]) -> bool {
    let start = &bytes[..bytes.len().min(4096)];
    !start
        .iter()
        .any(|&byte| byte < 7 || (14..27).contains(&byte))
}

fn tell(bytes: &[u8]) -> Result<Source, ImportError> {
    let trimmed = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let trimmed = trimmed.trim_ascii_start();
    if bytes.starts_with(b"PERFILE2") {
        return Ok(Source::PerfData);
    }
    if trimmed.is_empty() {
        return Err(ImportError::Empty);
    }
    if !is_text(bytes) {
        return Ok(Source::Pprof);
    }
    if trimmed.starts_with(b"{") {
        return tell_json(trimmed);
    }
    if html::looks_like(trimmed) {
        return Ok(Source::Page);
    }
    let text = String::from_utf8_lossy(trimmed);
    if perf_script::looks_like(&text) {
        return Ok(Source::PerfScript);
    }
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
    let counted = line.is_some_and(|line| {
        let count = line.rsplit_once(' ').map_or("", |(_, count)| count);
        count.starts_with(|found: char| found.is_ascii_digit())
    });
    match counted {
        true => Ok(Source::Folded),
        // A small pprof file may have no byte that text has not.
        false if pprof::decode(bytes, bytes.len() as u64).is_ok() => Ok(Source::Pprof),
        false => Err(ImportError::Unknown),
    }
}

/// Detects the kind of JSON by the keys of its object; broken JSON is left to our own reader, which
/// reports where.
fn tell_json(bytes: &[u8]) -> Result<Source, ImportError> {
    #[derive(serde::Deserialize)]
    struct Keys {
        #[serde(rename = "$schema")]
        schema: Option<serde::de::IgnoredAny>,
        #[serde(rename = "schema")]
        own: Option<serde::de::IgnoredAny>,
        shared: Option<serde::de::IgnoredAny>,
        profiles: Option<serde::de::IgnoredAny>,
        meta: Option<serde::de::IgnoredAny>,
        threads: Option<serde::de::IgnoredAny>,
    }
    match serde_json::from_slice::<Keys>(bytes) {
        Ok(keys) if keys.profiles.is_some() && (keys.shared.is_some() || keys.schema.is_some()) => {
            Ok(Source::Speedscope)
        }
        Ok(keys) if keys.own.is_some() => Ok(Source::Json),
        Ok(keys) if keys.meta.is_some() && keys.threads.is_some() => Err(ImportError::Firefox),
        Ok(_) => Err(ImportError::OtherJson),
        Err(_) => Ok(Source::Json),
    }
}

fn text<'b>(bytes: &'b [u8], notes: &mut Vec<String>) -> Cow<'b, str> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let text = String::from_utf8_lossy(bytes);
    if matches!(text, Cow::Owned(_)) {
        notes.push("the text has bytes that are no UTF-8: they are shown as \u{fffd}".to_owned());
    }
    text
}
