//! Flame graphs as SVG, drawn by `inferno`.
//!
//! Frames have the colours of the collector's page: see `palette.rs`. Text is escaped as in folded
//! stacks, which leaves no character that XML forbids.

use super::folded::{diff_tree, text_tree_seen};
use super::palette::{self, Rgb};
use super::summary::side_line;
use super::tree::Tree;
use super::{Annotations, Format, FormatError, Measure, Options, quality_line};
use crate::diff::Diff;
use crate::frame::FrameKind;
use crate::profile::{Info, Profile};
use crate::text::{markup, printable};
use crate::unit::time_unit_ns;
use inferno::flamegraph::color::{BackgroundColor, BasicPalette, Color, PaletteMap};
use inferno::flamegraph::{self, Direction, Palette, TextTruncateDirection};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::Write;

/// Narrowest bar drawn. Unit: percent of the width. A third of a pixel on a wide screen; narrower
/// ones only make the file large and stay visible as their callers' width.
const MIN_WIDTH_PERCENT: f64 = 0.02;

/// Writes a flame graph. Takes [`Options::title`], `measure`, `lines`, `root_labels`, `mark_cut`,
/// `icicle`.
///
/// # Errors
/// When `out` fails or the total is beyond 2⁶³.
pub fn write(
    profile: &Profile,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let options = &Options {
        annotations: Annotations::ALL,
        ..options.clone()
    };
    let samples = profile.sorted().into_iter();
    let samples = samples.map(|(key, value)| (key, [options.measure.of(value)]));
    // A name that several modules have is drawn as that of the first.
    let looks: RefCell<HashMap<String, Rgb>> = RefCell::default();
    let tree = text_tree_seen(&profile.dict, samples, options, |text, frame| {
        if looks.borrow().contains_key(text) {
            return;
        }
        let colour = palette::colour(frame.kind, frame.module, frame.function);
        looks.borrow_mut().insert(text.to_owned(), colour);
    });
    let mut lines = Vec::new();
    collect(&tree, |path, own| lines.push(format!("{path} {}", own[0])));
    let subtitle = quality_line(&profile.info);
    draw(
        lines,
        tree.nodes[0].total[0],
        colours(&tree, options.root_labels.len(), &looks.into_inner()),
        subtitle,
        &profile.info,
        options,
        out,
    )
}

/// Writes a flame graph of the second profile in which red grew and blue shrank. What vanished has
/// no width: draw the diff of the swapped profiles to see it.
///
/// With `normalise` the first profile is scaled to the total of the second. Takes the options that
/// [`write()`] takes.
///
/// # Errors
/// When `out` fails or a total is beyond 2⁶³.
pub fn write_diff(
    diff: &Diff,
    normalise: bool,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let options = &Options {
        annotations: Annotations::ALL,
        ..options.clone()
    };
    let tree = diff_tree(diff, normalise, options);
    let mut lines = Vec::new();
    collect(&tree, |path, own| {
        lines.push(format!("{path} {} {}", own[0], own[1]))
    });
    let [before, after] = tree.nodes[0].total;
    check_total(before)?;
    let compared = if normalise { "shares" } else { "sums" };
    let subtitle = format!(
        "before: {} · after: {} · {compared} compared: red grew, blue shrank",
        side_line(&diff.before),
        side_line(&diff.after)
    );
    draw(lines, after, None, subtitle, &diff.after, options, out)
}

fn collect<const N: usize>(tree: &Tree<String, N>, mut line: impl FnMut(&str, [u64; N])) {
    let mut text = String::new();
    let done: Result<(), std::convert::Infallible> = tree.for_each_stack(|path, node| {
        text.clear();
        for (at, name) in path.iter().enumerate() {
            if at > 0 {
                text.push(';');
            }
            text.push_str(name);
        }
        line(&text, node.own);
        Ok(())
    });
    let Ok(()) = done;
}

fn check_total(total: u64) -> Result<(), FormatError> {
    // The drawing library counts in signed numbers.
    if i64::try_from(total).is_err() {
        return Err(FormatError::TotalTooLarge {
            format: Format::Svg,
        });
    }
    Ok(())
}

fn draw(
    lines: Vec<String>,
    total: u64,
    mut colours: Option<PaletteMap>,
    subtitle: String,
    info: &Info,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    check_total(total)?;
    let is_diff = colours.is_none();
    if total == 0 {
        return write_empty(&options.title, &subtitle, out);
    }
    let mut style = flamegraph::Options::default();
    style.title = printable(&options.title).into_owned();
    style.subtitle = Some(subtitle);
    style.count_name = printable(options.measure.word(&info.unit)).into_owned();
    let unit_ns = time_unit_ns(&info.unit).filter(|_| options.measure == Measure::Weight);
    if let Some(unit_ns) = unit_ns {
        // Ten digits are a riddle.
        style.factor = unit_ns as f64 / 1e3;
        style.count_name = "µs".to_owned();
    }
    style.direction = if options.icicle {
        Direction::Inverted
    } else {
        Direction::Straight
    };
    style.colors = Palette::Basic(BasicPalette::Red);
    style.palette_map = colours.as_mut();
    style.deterministic = true;
    // Bars that did not change are nearly white in a differential, which needs a darker ground.
    let ground = if is_diff { 222 } else { 250 };
    style.bgcolors = Some(BackgroundColor::Flat(Color {
        r: ground,
        g: ground,
        b: ground,
    }));
    style.min_width = MIN_WIDTH_PERCENT;
    style.text_truncate_direction = TextTruncateDirection::Right;
    // Our lines come in the order of frames, in which equal callers are neighbours. Order of text
    // is not that (`a b` sorts between `a` and `a;c`), and is what the library would check; it
    // takes the lines of a flame chart, last first, as they are.
    style.flame_chart = true;
    flamegraph::from_lines(
        &mut style,
        lines.iter().rev().map(String::as_str),
        &mut *out,
    )?;
    // The library ends in the middle of a line.
    out.write_all(b"\n")?;
    Ok(())
}

/// A picture that says that there is nothing to draw.
fn write_empty(title: &str, subtitle: &str, out: &mut impl Write) -> Result<(), FormatError> {
    let (title, subtitle) = (xml(title), xml(subtitle));
    writeln!(
        out,
        r##"<?xml version="1.0" standalone="no"?>
<svg version="1.1" width="1200" height="120" viewBox="0 0 1200 120" xmlns="http://www.w3.org/2000/svg">
<rect width="1200" height="120" fill="#fafafa"/>
<g font-family="monospace" font-size="12" text-anchor="middle">
<text x="600" y="30" font-size="17">{title}</text>
<text x="600" y="54">{subtitle}</text>
<text x="600" y="90">no samples</text>
</g>
</svg>"##
    )?;
    Ok(())
}

fn xml(text: &str) -> String {
    markup(&printable(text))
}

/// A colour for each text that frames of the tree have; `labels` levels above the root are labels.
fn colours<const N: usize>(
    tree: &Tree<String, N>,
    labels: usize,
    looks: &HashMap<String, Rgb>,
) -> Option<PaletteMap> {
    let mut is_function = vec![false; tree.names.len()];
    for node in &tree.nodes {
        is_function[node.name as usize] |= node.depth as usize > labels;
    }
    let mut map = PaletteMap::default();
    let mut insert = |name: &str, (r, g, b): Rgb| map.insert(name, Color { r, g, b });
    insert("", palette::of_root());
    for (name, is_function) in tree.names.iter().zip(is_function).skip(1) {
        let colour = match (is_function, looks.get(name)) {
            (true, Some(&known)) => known,
            // Roots that are no frame of the profile: `[truncated]`.
            (true, None) => palette::colour(FrameKind::Synthetic, "", name),
            (false, _) => palette::of_label(),
        };
        insert(name, colour);
    }
    Some(map)
}
