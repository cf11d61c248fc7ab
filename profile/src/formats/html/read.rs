//! Reads a page back: the tree that is embedded in it.
//!
//! The page is untrusted. Its data is one JSON value of columns of equal length; reading it takes a
//! small multiple of the file's size in memory. Labels are frames in it and stay frames. The times
//! of samples are only present as cells and are left out.

use super::KIND_LABEL;
use crate::Waits;
use crate::formats::{Import, Known};
use crate::frame::{FrameId, FrameKind, FrameRef};
use crate::outcome::StackEnd;
use crate::profile::{Info, Profile};
use crate::sample::{Quality, SampleKey, Value};
use crate::stack::StackId;
use serde::Deserialize;

/// Most frames of one stack.
pub const STACK_FRAMES_MAX: usize = 8_192;

/// Text before the data.
const BEFORE_DATA: &str = "<script type=\"application/json\" id=\"data\">";

/// Why a page is no profile.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// It is not of ours, or was cut.
    #[error("failed to read the page: there is no profile in it")]
    NoData,
    /// The data is damaged, or of another version.
    #[error("failed to parse the data of the page")]
    Parse(#[from] serde_json::Error),
    /// Columns that do not go together.
    #[error("failed to read the page: node {at} has {what}")]
    Node {
        /// 0-based.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

#[derive(Deserialize)]
struct Data {
    unit: String,
    modules: Vec<String>,
    names: Names,
    nodes: Nodes,
    /// Absent in pages of older versions.
    about: Option<About>,
    times: Option<serde::de::IgnoredAny>,
    before: Option<serde::de::IgnoredAny>,
}

#[derive(Deserialize)]
struct Names {
    function: Vec<String>,
    module: Vec<usize>,
    kind: Vec<u8>,
}

#[derive(Deserialize)]
struct Nodes {
    depth: Vec<usize>,
    name: Vec<usize>,
    count: Vec<u64>,
    weight: Vec<u64>,
}

#[derive(Deserialize)]
struct About {
    start_unix_ns: i64,
    duration_ns: u64,
    event: String,
    period: u64,
    missed: Quality,
    #[serde(default)]
    waits: Waits,
    #[serde(default)]
    waits_cause: String,
}

/// True for bytes that start as a page does.
pub fn looks_like(bytes: &[u8]) -> bool {
    let begin = &bytes[..bytes.len().min(64)];
    begin.to_ascii_lowercase().starts_with(b"<!doctype html")
}

/// Reads a page.
///
/// # Errors
/// When there is no profile in it, or its data is damaged.
pub fn read(bytes: &[u8]) -> Result<Import, PageError> {
    let text = String::from_utf8_lossy(bytes);
    let (_, after) = text.split_once(BEFORE_DATA).ok_or(PageError::NoData)?;
    // Nothing in the data is written with a `<`.
    let (json, _) = after.split_once("</script>").ok_or(PageError::NoData)?;
    let data: Data = serde_json::from_str(json)?;
    let mut profile = Profile::default();
    let frames = frames(&data, &mut profile);
    let Nodes {
        depth,
        name,
        count,
        weight,
    } = &data.nodes;
    let mut path: Vec<StackId> = Vec::new();
    for (at, &depth) in depth.iter().enumerate() {
        let refuse = |what| PageError::Node { at, what };
        let column = |column: &[u64]| column.get(at).copied().ok_or(refuse("no value"));
        let value = Value {
            count: column(count)?,
            weight: column(weight)?,
        };
        if depth != 0 && depth > path.len() || depth > STACK_FRAMES_MAX {
            return Err(refuse("no caller"));
        }
        let frame = name.get(at).and_then(|&name| frames.get(name));
        let &frame = frame.ok_or(refuse("no name"))?;
        // The root stands for all and has no frame.
        let stack = match depth.checked_sub(1) {
            None => StackId::EMPTY,
            Some(caller) => profile.dict.stacks.child(path[caller], frame),
        };
        path.truncate(depth);
        path.push(stack);
        if value == Value::default() {
            continue;
        }
        let leaf = profile.dict.frame(frame);
        let is_lost = leaf.kind == FrameKind::Synthetic && leaf.function == crate::LOST_FRAME;
        let key = SampleKey {
            labels: Default::default(),
            stack,
            end: match is_lost {
                true => StackEnd::Lost,
                false => StackEnd::Complete,
            },
        };
        profile.add(key, value);
    }
    Ok(finish(profile, data))
}

/// Frames by the number of their name.
fn frames(data: &Data, profile: &mut Profile) -> Vec<FrameId> {
    let names = data.names.function.iter().enumerate();
    names
        .map(|(at, function)| {
            let module = data.names.module.get(at);
            let module = module.and_then(|&module| data.modules.get(module));
            let kind = match data.names.kind.get(at) {
                Some(&KIND_LABEL) | None => FrameKind::Synthetic,
                Some(&kind) => {
                    let mut all = FrameKind::ALL.into_iter();
                    all.find(|known| *known as u8 == kind).unwrap_or_default()
                }
            };
            profile.dict.intern_frame(FrameRef {
                kind,
                function,
                module: module.map_or("", String::as_str),
                ..FrameRef::default()
            })
        })
        .collect()
}

fn finish(mut profile: Profile, data: Data) -> Import {
    let mut notes = Vec::new();
    if data.before.is_some() {
        notes.push("the page compares two profiles: only the second one was read".to_owned());
    }
    if data.times.is_some() {
        notes.push(
            "the page has sample times only as cells of its heat map: they are left \
            out"
            .to_owned(),
        );
    }
    let unit = data.unit;
    let Some(about) = data.about else {
        profile.info.unit = unit;
        return Import::new(profile, notes).count_truncated();
    };
    profile.info = Info {
        start_unix_ns: about.start_unix_ns,
        duration_ns: about.duration_ns,
        event: about.event,
        unit,
        period: about.period,
        quality: about.missed,
        waits: about.waits,
        waits_cause: about.waits_cause,
        ..Info::default()
    };
    Import {
        profile,
        notes,
        known: Known::ALL,
    }
}
