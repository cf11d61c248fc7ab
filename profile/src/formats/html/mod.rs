//! Writes a self-contained page that shows a profile: flame graph, table, search, zoom.
//!
//! The page is the viewer of the collector's own page (`collector/ui/src/export`), built into one
//! file, `viewer.html`, with placeholders. It requests nothing over the network and enforces this
//! with a content security policy that allows only the built script to run. The profile is embedded
//! as JSON with `<`, `>`, `&`, control, separator and bidirectional characters escaped, and the
//! script inserts text into the page only as text.
//!
//! The data are the nodes of the merged call tree in depth-first order as columns (depth, name, own
//! samples, own weight), and names as columns (function, module, kind). Bars beyond
//! [`Options::max_bars`] are folded into `[other]` first, smallest first.
//!
//! Three more pages use the same parts. In [`write_heat_map`] a heat map of time selects the range
//! that the flame graph shows. [`write_bundle`] also lists everything known about the profile, and
//! its size is bounded. [`write_diff`] shows what changed between two profiles. Title, quality and
//! facts are part of the page's text, so they can be read without the script. [`read()`] extracts
//! the profile from any of these pages.

mod diff;
mod facts;
mod read;
mod times;

pub use diff::write_diff;
pub use read::{PageError, STACK_FRAMES_MAX, looks_like, read};

use super::json::SafeText;
use super::tree::{Added, Tree, TreeBuilder};
use super::{FormatError, Measure, Options, RootFrame, TRUNCATED_FRAME, quality_line, root_frames};
use crate::Waits;
use crate::frame::{FrameKind, FrameRef};
use crate::heatmap::HeatMap;
use crate::profile::{Info, Profile};
use crate::sample::{Quality, SampleKey, Value};
use crate::text::grouped;
use crate::text::{markup, printable};
use hashbrown::HashMap;
use serde::Serialize;
use std::io::Write;
use times::Times;

/// Most bytes of a bundle's data. Smaller stacks are folded until it fits. A browser opens 32 MB in
/// some seconds, and mail and tickets take files of that size.
pub const BUNDLE_BYTES_MAX: usize = 32 << 20;

/// The built viewer: `npm run build` in `collector/ui` writes it.
const PAGE: &str = include_str!("viewer.html");
/// Delimiters of a placeholder's name.
const PLACE: [&str; 2] = ["<!--fill:", "-->"];

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
    #[serde(flatten)]
    texts: Texts<'a>,
    /// 0: samples, 1: weight, as the page opens.
    measure: u8,
    icicle: bool,
    kinds: Vec<&'static str>,
    modules: Vec<&'a str>,
    names: Names<'a>,
    nodes: Nodes,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<&'a Times>,
    /// The earlier side, when the page is a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<diff::Before>,
    about: About<'a>,
}

/// Facts about the profile for readers of the file, which the page itself does not need.
#[derive(Serialize)]
struct About<'a> {
    start_unix_ns: i64,
    duration_ns: u64,
    event: &'a str,
    period: u64,
    missed: Quality,
    #[serde(skip_serializing_if = "Option::is_none")]
    waits: Option<Waits>,
    #[serde(skip_serializing_if = "str::is_empty")]
    waits_cause: &'a str,
}

/// Where count and weight stand among the values of a node.
#[derive(Clone, Copy)]
struct Columns {
    count: usize,
    weight: usize,
}

/// What the page calls things.
#[derive(Clone, Copy, Serialize)]
struct Texts<'a> {
    unit: &'a str,
    /// What the weight is.
    weighs: &'a str,
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
    let Built { tree, added: _ } = build(profile, options);
    let folded = fold(&tree, &[], profile, None, options, usize::MAX)?;
    write_page(options, &folded.quality, "", &folded.data, out)
}

/// Writes the page with the heat map of the profile's times, from which ranges are picked. Takes
/// what [`write()`] takes.
///
/// # Errors
/// When `out` fails.
pub fn write_heat_map(
    profile: &Profile,
    map: &HeatMap,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let Built { tree, added } = build(profile, options);
    let folded = fold(&tree, &added, profile, Some(map), options, usize::MAX)?;
    write_page(options, &folded.quality, "", &folded.data, out)
}

/// Writes an incident bundle: the page with a heat map where there are times, and what is known of
/// the profile. Takes what [`write()`] takes, and [`Options::grid`] and `facts`.
///
/// # Errors
/// When `out` fails.
pub fn write_bundle(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let map = HeatMap::new(&profile.timestamps, options.grid);
    let Built { tree, added } = build(profile, options);
    let folded = fold(
        &tree,
        &added,
        profile,
        map.as_ref().ok(),
        options,
        BUNDLE_BYTES_MAX,
    )?;
    let facts = facts::html(profile, &map, folded.gone.as_deref(), &options.facts);
    write_page(options, &folded.quality, &facts, &folded.data, out)
}

/// A page's tree with as many bars as have room.
struct Folded {
    data: Vec<u8>,
    quality: String,
    /// Describes what was folded into `[other]`.
    gone: Option<String>,
}

/// The data of a page with as many bars as have room.
fn fold(
    whole: &Tree<Name, 2>,
    added: &[Added],
    profile: &Profile,
    map: Option<&HeatMap>,
    options: &Options,
    bytes_max: usize,
) -> Result<Folded, FormatError> {
    let unit = printable(&profile.info.unit);
    let weighs = printable(profile.info.weight_label());
    let mut bars = options.max_bars;
    loop {
        let mut tree = whole.clone();
        let gone = tree.prune(bars, synthetic(crate::OTHER_FRAME));
        let times = map.map(|map| Times::new(map, profile, &tree, added));
        let gone = (gone > 0).then(|| {
            let (gone, weight) = (grouped(gone as u64), folded_share(&tree));
            format!("the {gone} smallest bars are folded into [other]{weight}")
        });
        let mut quality = quality_line(&profile.info);
        if let Some(gone) = &gone {
            quality.push_str(&format!(" · {gone}"));
        }
        let fits = times.as_ref().is_none_or(Times::fits);
        if fits || bars == 0 {
            let texts = Texts {
                unit: &unit,
                weighs: &weighs,
            };
            let (count, weight) = match options.measure {
                Measure::Count => (0, 1),
                Measure::Weight => (1, 0),
            };
            let at = Columns { count, weight };
            let mut page = data(&tree, at, texts, &profile.info, options);
            page.times = times.as_ref();
            let data = serialized(&page)?;
            if data.len() <= bytes_max || bars == 0 {
                return Ok(Folded {
                    data,
                    quality,
                    gone,
                });
            }
        }
        bars = bars.min(tree.nodes.len() - 1) / 2;
    }
}

/// How much stands under `[other]` because of folding and otherwise, of all.
fn folded_share(tree: &Tree<Name, 2>) -> String {
    let other = |node: &&super::tree::Node<2>| {
        let name = &tree.names[node.name as usize];
        name.function == crate::OTHER_FRAME && name.kind == FrameKind::Synthetic as u8
    };
    let sum: f64 = tree
        .nodes
        .iter()
        .filter(other)
        .map(|node| node.own[0] as f64)
        .sum();
    let all = tree.nodes[0].total[0];
    match all {
        0 => String::new(),
        _ => format!(", {:.1} % of all", sum * 100.0 / all as f64),
    }
}

fn write_page(
    options: &Options,
    quality: &str,
    facts: &str,
    data: &[u8],
    out: &mut impl Write,
) -> Result<(), FormatError> {
    // The template is split, not searched again after each insertion: nothing inserted is a place.
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once(PLACE[0]) {
        let (place, after) = after.split_once(PLACE[1]).unwrap_or((after, ""));
        out.write_all(before.as_bytes())?;
        match place {
            "title" => out.write_all(markup(&printable(&options.title)).as_bytes())?,
            "quality" => out.write_all(markup(&printable(quality)).as_bytes())?,
            "facts" => out.write_all(facts.as_bytes())?,
            "data" => out.write_all(data)?,
            _ => {}
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())?;
    Ok(())
}

/// The data of a page as it stands there.
fn serialized(data: &Data<'_>) -> Result<Vec<u8>, FormatError> {
    let mut bytes = Vec::new();
    let mut json = serde_json::Serializer::with_formatter(&mut bytes, SafeText);
    data.serialize(&mut json)?;
    Ok(bytes)
}

/// The name of a frame.
fn name_of(frame: FrameRef<'_>, options: &Options) -> Name {
    Name {
        function: printable(&super::called(frame, options)).into_owned(),
        module: printable(frame.module).into_owned(),
        kind: frame.kind as u8,
    }
}

impl RootFrame<'_> {
    fn name(self) -> Name {
        match self {
            RootFrame::Truncated => synthetic(TRUNCATED_FRAME),
            RootFrame::Label(..) => Name {
                function: printable(&self.text()).into_owned(),
                module: String::new(),
                kind: KIND_LABEL,
            },
        }
    }
}

fn synthetic(function: &str) -> Name {
    Name {
        function: function.to_owned(),
        module: String::new(),
        kind: FrameKind::Synthetic as u8,
    }
}

/// A tree and where each moment of the profile stands in it.
struct Built {
    tree: Tree<Name, 2>,
    added: Vec<Added>,
}

fn build(profile: &Profile, options: &Options) -> Built {
    let mut builder = TreeBuilder::new(&profile.dict);
    // The first value decides which bars are the smallest.
    let order = |count, weight| match options.measure {
        Measure::Count => [count, weight],
        Measure::Weight => [weight, count],
    };
    let mut known: HashMap<SampleKey, Added> = HashMap::new();
    let mut add = |key: SampleKey, value: Value| {
        let roots = root_frames(&profile.dict, options, key.labels, key.end).map(RootFrame::name);
        let values = order(value.count, value.weight);
        builder.add(key, values, roots, |frame| name_of(frame, options))
    };
    for (key, value) in profile.sorted() {
        known.insert(key, add(key, value));
    }
    let timestamps = profile.timestamps.list.iter();
    let added = timestamps
        .map(|timestamp| {
            let key = timestamp.key;
            // A moment without its sample adds nothing to the total.
            *known
                .entry(key)
                .or_insert_with(|| add(key, Value::default()))
        })
        .collect();
    Built {
        tree: builder.finish(),
        added,
    }
}

fn data<'a, const N: usize>(
    tree: &'a Tree<Name, N>,
    at: Columns,
    texts: Texts<'a>,
    info: &'a Info,
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
    let Columns { count, weight } = at;
    let nodes = Nodes {
        depth: tree.nodes.iter().map(|node| node.depth).collect(),
        name: tree.nodes.iter().map(|node| node.name).collect(),
        count: tree.nodes.iter().map(|node| node.own[count]).collect(),
        weight: tree.nodes.iter().map(|node| node.own[weight]).collect(),
    };
    Data {
        texts,
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
        times: None,
        before: None,
        about: About {
            start_unix_ns: info.start_unix_ns,
            duration_ns: info.duration_ns,
            event: &info.event,
            period: info.period,
            missed: info.quality,
            waits: Some(info.waits).filter(|waits| *waits != Waits::default()),
            waits_cause: &info.waits_cause,
        },
    }
}
