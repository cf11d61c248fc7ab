//! JSON for speedscope: one or several sampled profiles that share their frames.
//!
//! Weights are the profile's own (nanoseconds of CPU time). Equal stacks are written once with the
//! sum of their weights, in the order of frames: there is no time axis, so use the view "left
//! heavy". A key of our own, `fleetprofCounts`, says how many samples a weight stands for; other
//! readers ignore it.

mod read;

pub use read::{LABEL, PROFILES_NAMED, STACK_FRAMES_MAX, SpeedscopeError, read};

use super::tree::TreeBuilder;
use super::{FormatError, Options, quality_line, root_frames};
use crate::frame::FrameRef;
use crate::outcome::StackEnd;
use crate::profile::Profile;
use crate::sample::{SampleKey, Value};
use crate::text::printable;
use crate::unit::is_time;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;

/// The schema a file names; also how a reader knows the format.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

/// Name of the exporter in our own files.
const EXPORTER: &str = "fleetprof";

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: String,
    exporter: &'static str,
    #[serde(rename = "activeProfileIndex")]
    active_profile_index: usize,
    shared: Shared<'a>,
    profiles: Vec<Sampled<'a>>,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: &'a [Frame],
}

#[derive(Serialize, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    file: String,
    #[serde(skip_serializing_if = "is_zero")]
    line: u32,
}

fn is_zero(line: &u32) -> bool {
    *line == 0
}

#[derive(Serialize)]
struct Sampled<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: String,
    unit: &'a str,
    #[serde(rename = "startValue")]
    start_value: u64,
    #[serde(rename = "endValue")]
    end_value: u64,
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
    /// Samples that each weight stands for, which the format has no place for.
    #[serde(rename = "fleetprofCounts")]
    counts: Vec<u64>,
}

/// Writes the profile. Takes [`Options::title`], `split_by`, `mark_cut`, `annotations`.
///
/// # Errors
/// When `out` fails.
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    // The format has our units of time, by the same names.
    let unit = match profile.info.unit.as_str() {
        unit if is_time(unit) => unit,
        _ => "none",
    };
    let options = &Options {
        root_labels: Vec::new(),
        ..options.clone()
    };
    let mut frames: Vec<Frame> = Vec::new();
    let mut frame_ids: hashbrown::HashMap<Frame, usize> = hashbrown::HashMap::new();
    let mut profiles = Vec::new();
    for (name, samples) in split(profile, options) {
        let mut builder = TreeBuilder::new(&profile.dict);
        for (key, value) in samples {
            let roots =
                root_frames(&profile.dict, options, key.labels, key.end).map(|root| Frame {
                    name: root.text(),
                    ..Frame::default()
                });
            let values = [value.weight, value.count];
            builder.add(key, values, roots, |frame| describe(frame, options));
        }
        let tree = builder.finish();
        let mut ids = vec![0];
        for frame in &tree.names[1..] {
            ids.push(*frame_ids.entry(frame.clone()).or_insert_with(|| {
                frames.push(frame.clone());
                frames.len() - 1
            }));
        }
        let (mut stacks, mut weights, mut path) = (Vec::new(), Vec::new(), Vec::new());
        let mut counts = Vec::new();
        for node in &tree.nodes[1..] {
            path.truncate(node.depth as usize - 1);
            path.push(ids[node.name as usize]);
            if node.own[0] > 0 {
                stacks.push(path.clone());
                weights.push(node.own[0]);
                counts.push(node.own[1]);
            }
        }
        profiles.push(Sampled {
            kind: "sampled",
            name,
            unit,
            start_value: 0,
            end_value: tree.nodes[0].total[0],
            samples: stacks,
            weights,
            counts,
        });
    }
    let file = File {
        schema: SCHEMA,
        name: printable(&format!(
            "{}: {}",
            options.title,
            quality_line(&profile.info)
        ))
        .into_owned(),
        exporter: EXPORTER,
        active_profile_index: 0,
        shared: Shared { frames: &frames },
        profiles,
    };
    serde_json::to_writer(&mut *out, &file)?;
    out.write_all(b"\n")?;
    Ok(())
}

type Samples = Vec<(SampleKey, Value)>;

/// The samples under the name of each profile; the largest first, names of equal size in order.
fn split(profile: &Profile, options: &Options) -> Vec<(String, Samples)> {
    let Some(key) = &options.split_by else {
        return vec![(printable(&options.title).into_owned(), profile.sorted())];
    };
    let mut parts: BTreeMap<String, (u64, Samples)> = BTreeMap::new();
    for (sample, value) in profile.sorted() {
        let name = match profile.dict.label(sample.labels, key) {
            Some(value) => printable(value).into_owned(),
            None if sample.end == StackEnd::Lost => crate::LOST_FRAME.to_owned(),
            None => format!("[no {key}]"),
        };
        let (total, samples) = parts.entry(name).or_default();
        *total = total.saturating_add(value.weight);
        samples.push((sample, value));
    }
    let mut parts: Vec<_> = parts.into_iter().collect();
    parts.sort_by_key(|(_, (total, _))| std::cmp::Reverse(*total));
    let mut parts: Vec<_> = parts
        .into_iter()
        .map(|(name, (_, samples))| (name, samples))
        .collect();
    if parts.is_empty() {
        // A file without a profile is refused by its readers.
        parts.push((printable(&options.title).into_owned(), Vec::new()));
    }
    parts
}

fn describe(frame: FrameRef<'_>, options: &Options) -> Frame {
    let file = if frame.file.is_empty() {
        frame.module
    } else {
        frame.file
    };
    let mut name = printable(frame.function).into_owned();
    name.push_str(options.annotations.suffix(frame.kind));
    Frame {
        name,
        file: printable(file).into_owned(),
        line: frame.line,
    }
}
