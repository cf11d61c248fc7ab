//! A page that shows a profile and needs nothing else: flame graph, table, search, zoom.
//!
//! The page asks for nothing over the network and says so to the browser by a content security
//! policy. The profile is embedded as JSON in which `<`, `>`, `&`, control, separator and
//! bidirectional characters are escaped, and the script puts text into the page as text only.
//!
//! Data: nodes of the merged call tree in depth-first order as columns (depth, name, own samples, own
//! weight), names as columns (function, module, kind). Bars beyond [`Options::max_bars`] are folded
//! into `[other]` before, smallest first.

use super::json::SafeText;
use super::summary::grouped;
use super::tree::{Tree, TreeBuilder};
use super::{FormatError, Measure, Options, RootFrame, TRUNCATED_FRAME, quality_line, root_frames};
use crate::frame::{FrameKind, FrameRef};
use crate::sample::Profile;
use crate::text::printable;
use serde::Serialize;
use std::io::Write;

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Kind number of a frame that stands for the value of a label; others are [`FrameKind`]'s.
const KIND_LABEL: u8 = 6;

#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Name {
    function: String,
    module: String,
    kind: u8,
}

#[derive(Serialize)]
struct Data<'a> {
    title: &'a str,
    quality: &'a str,
    unit: &'a str,
    /// 0: samples, 1: weight, as the page opens.
    measure: u8,
    icicle: bool,
    kinds: Vec<&'static str>,
    modules: Vec<&'a str>,
    names: Names<'a>,
    nodes: Nodes,
}

#[derive(Serialize)]
struct Names<'a> {
    function: Vec<&'a str>,
    module: Vec<u32>,
    kind: Vec<u8>,
}

#[derive(Serialize, Default)]
struct Nodes {
    depth: Vec<u32>,
    name: Vec<u32>,
    count: Vec<u64>,
    weight: Vec<u64>,
}

/// Writes the page. Takes [`Options::title`], `measure`, `root_labels`, `mark_cut`, `icicle` and
/// `max_bars`.
///
/// # Errors
/// When `out` fails.
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let (tree, gone) = build(profile, options);
    let mut quality = quality_line(&profile.info);
    if gone > 0 {
        let gone = grouped(gone as u64);
        quality.push_str(&format!(
            " · the {gone} smallest bars are folded into [other]"
        ));
    }
    let title = printable(&options.title);
    let unit = printable(&profile.info.unit);
    let data = data(&tree, &title, &quality, &unit, options);

    // The template is split, not searched again after each insertion: nothing inserted is a marker.
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        let (marker, after) = after.split_once("}}").unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        match marker {
            "title" => out.write_all(html_text(&title).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "script" => out.write_all(SCRIPT.as_bytes())?,
            "data" => {
                let mut json = serde_json::Serializer::with_formatter(&mut *out, SafeText);
                data.serialize(&mut json)?;
            }
            _ => {}
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    Ok(())
}

fn build(profile: &Profile, options: &Options) -> (Tree<Name, 2>, usize) {
    let mut builder = TreeBuilder::new(&profile.dict);
    let synthetic = |function: &str| Name {
        function: function.to_owned(),
        module: String::new(),
        kind: FrameKind::Synthetic as u8,
    };
    // The first value decides which bars are the smallest.
    let order = |count, weight| match options.measure {
        Measure::Count => [count, weight],
        Measure::Weight => [weight, count],
    };
    for (key, value) in profile.sorted() {
        let roots =
            root_frames(&profile.dict, options, key.labels, key.end).map(|root| match root {
                RootFrame::Truncated => synthetic(TRUNCATED_FRAME),
                RootFrame::Label(..) => Name {
                    function: printable(&root.text()).into_owned(),
                    module: String::new(),
                    kind: KIND_LABEL,
                },
            });
        builder.add(
            key,
            order(value.count, value.weight),
            roots,
            |frame: FrameRef<'_>| Name {
                function: printable(frame.function).into_owned(),
                module: printable(frame.module).into_owned(),
                kind: frame.kind as u8,
            },
        );
    }
    let mut tree = builder.finish();
    let gone = tree.prune(options.max_bars, synthetic(crate::OTHER_FRAME));
    (tree, gone)
}

fn data<'a>(
    tree: &'a Tree<Name, 2>,
    title: &'a str,
    quality: &'a str,
    unit: &'a str,
    options: &Options,
) -> Data<'a> {
    let mut modules: Vec<&str> = tree.names.iter().map(|name| name.module.as_str()).collect();
    modules.sort_unstable();
    modules.dedup();
    let module = |name: &Name| modules.partition_point(|&known| known < name.module.as_str());
    let names = Names {
        function: tree
            .names
            .iter()
            .map(|name| name.function.as_str())
            .collect(),
        module: tree.names.iter().map(|name| module(name) as u32).collect(),
        kind: tree.names.iter().map(|name| name.kind).collect(),
    };
    let (count, weight) = match options.measure {
        Measure::Count => (0, 1),
        Measure::Weight => (1, 0),
    };
    let nodes = Nodes {
        depth: tree.nodes.iter().map(|node| node.depth).collect(),
        name: tree.nodes.iter().map(|node| node.name).collect(),
        count: tree.nodes.iter().map(|node| node.own[count]).collect(),
        weight: tree.nodes.iter().map(|node| node.own[weight]).collect(),
    };
    Data {
        title,
        quality,
        unit,
        measure: u8::from(options.measure == Measure::Weight),
        icicle: options.icicle,
        kinds: FrameKind::ALL
            .iter()
            .map(|kind| kind.word())
            .chain(["label"])
            .collect(),
        modules,
        names,
        nodes,
    }
}

pub(super) fn html_text(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
