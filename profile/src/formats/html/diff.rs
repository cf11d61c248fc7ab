//! Writes a page that shows what changed between two profiles: one flame graph of both, coloured by
//! change, and as wide as the wider side.

use super::{Columns, Texts, data, name_of, serialized, synthetic, write_page};
use crate::diff::Diff;
use crate::formats::summary::side_line;
use crate::formats::tree::TreeBuilder;
use crate::formats::{FormatError, Options, RootFrame, root_frames};
use crate::text::grouped;
use crate::text::printable;
use serde::Serialize;
use std::io::Write;

/// Own values of the first profile by node, in the order of the page's nodes.
///
/// They are what was counted: the page scales them, since small counts that are scaled and rounded
/// add up to something else.
#[derive(Serialize)]
pub(super) struct Before {
    /// To the total of the second profile.
    scaled: bool,
    count: Vec<u64>,
    weight: Vec<u64>,
}

/// Where both sides stand among the values of a node. The first value decides which bars are the
/// smallest: it is the sum of both, so that what vanished is folded no sooner than what is new.
const AFTER: Columns = Columns {
    count: 1,
    weight: 2,
};
const BEFORE: Columns = Columns {
    count: 3,
    weight: 4,
};

/// Writes the page. With `normalise` the first profile is scaled to the total of the second, so
/// that shares are compared. Takes what [`super::write()`] takes.
///
/// # Errors
/// When `out` fails.
pub fn write_diff(
    diff: &Diff,
    normalise: bool,
    options: &Options,
    out: &mut impl Write,
) -> Result<(), FormatError> {
    let mut builder = TreeBuilder::new(&diff.dict);
    for sample in &diff.samples {
        let (key, after) = (sample.key, sample.change.after);
        let before = sample.change.before;
        let roots = root_frames(&diff.dict, options, key.labels, key.end).map(RootFrame::name);
        let size = options.measure.of(before);
        let size = size.saturating_add(options.measure.of(after));
        let values = [size, after.count, after.weight, before.count, before.weight];
        builder.add(key, values, roots, |frame| name_of(frame, options));
    }
    let mut tree = builder.finish();
    let gone = tree.prune(options.max_bars, synthetic(crate::OTHER_FRAME));
    let column = |at: usize| tree.nodes.iter().map(|node| node.own[at]).collect();
    let before = Before {
        scaled: normalise,
        count: column(BEFORE.count),
        weight: column(BEFORE.weight),
    };
    let compared = if normalise { "shares" } else { "sums" };
    let mut quality = format!(
        "before: {} · after: {} · {compared} compared: red grew, blue shrank, grey is within chance",
        side_line(&diff.before),
        side_line(&diff.after)
    );
    if gone > 0 {
        let gone = grouped(gone as u64);
        quality.push_str(&format!(
            " · the {gone} smallest bars are folded into [other]"
        ));
    }
    let texts = Texts {
        unit: &printable(&diff.after.unit),
        weighs: &printable(diff.after.weight_label()),
    };
    let mut page = data(&tree, AFTER, texts, &diff.after, options);
    page.before = Some(before);
    write_page(options, &quality, "", &serialized(&page)?, out)
}
