//! Explains why an answer is empty: because of the time, the labels or the functions.
//!
//! It queries only if there is nothing to show. The server folds stacks to one frame, so the
//! answers have a few rows, however long the range is.

use crate::collector::Samples;
use crate::select::symbol;
use crate::source::{Question, Source};
use crate::terminal::clean;
use crate::units;
use anyhow::Result;
use profile::Profile;
use proto::agent::{FrameFilter, FrameFilterOp, LabelMatcher, MatchOp};
use std::collections::BTreeSet;

/// Least likeness of a value that is named as the nearest, from 0 to 1: below it is another word.
const ALIKE_MIN: f64 = 0.75;

/// Values named where none is alike.
const VALUES_NAMED: usize = 8;

/// What excluded every sample, as a sentence; `None` when that is the time.
///
/// # Errors
/// When the other side does not answer.
pub async fn why(source: &mut Source, question: &Question) -> Result<Option<String>> {
    let Samples { matchers, filters } = &question.samples;
    if !filters.is_empty() {
        let found = ask(source, question, matchers.clone(), &[]).await?;
        if !found.samples.is_empty() {
            let samples = units::count(found.total().count);
            return Ok(Some(format!(
                "{samples} samples, none left after --keep, --drop and --focus"
            )));
        }
    }
    if matchers.is_empty() {
        return Ok(None);
    }
    let labels: BTreeSet<&str> = matchers.iter().map(|one| one.label.as_str()).collect();
    let labels: Vec<&str> = labels.into_iter().collect();
    let all = ask(source, question, Vec::new(), &labels).await?;
    if all.samples.is_empty() {
        return Ok(None);
    }
    let samples = units::count(all.total().count);
    let reason = matchers.iter().find_map(|one| mismatch(&all, one));
    let reason = reason.unwrap_or_else(|| match matchers.as_slice() {
        [one] => format!("none with {}", shown(one)),
        _ => "none matches the complete selection".to_owned(),
    });
    Ok(Some(format!("{samples} samples, {reason}")))
}

/// The samples of the range that these matchers take, by labels alone.
async fn ask(
    source: &mut Source,
    question: &Question,
    matchers: Vec<LabelMatcher>,
    labels: &[&str],
) -> Result<Profile> {
    let everything = FrameFilter {
        op: FrameFilterOp::Collapse.into(),
        regex: ".*".to_owned(),
    };
    let asked = Question {
        samples: Samples {
            matchers,
            filters: vec![everything],
        },
        group_by: labels.iter().map(|&label| label.to_owned()).collect(),
        max_nodes: 0,
        times: false,
        ..question.clone()
    };
    Ok(source.profile(asked).await?.profile)
}

/// Why no sample has what one matcher asks for; `None` when some have, or that is not known.
fn mismatch(all: &Profile, matcher: &LabelMatcher) -> Option<String> {
    let keys = all.samples.keys();
    let values: BTreeSet<&str> = keys
        .filter_map(|key| all.dict.label(key.labels, &matcher.label))
        .collect();
    let given = matcher.value.as_str();
    if values.is_empty() {
        return matches!(
            matcher.op(),
            MatchOp::Equal | MatchOp::Regex | MatchOp::Subtree
        )
        .then(|| format!("none with the label `{}`", clean(&matcher.label)));
    }
    if matcher.op() != MatchOp::Equal || values.contains(given) {
        return None;
    }
    let alike = |value: &&&str| strsim::jaro_winkler(value, given);
    let nearest = values
        .iter()
        .max_by(|left, right| alike(left).total_cmp(&alike(right)))
        .filter(|value| alike(value) >= ALIKE_MIN);
    let hint = match nearest {
        Some(nearest) => format!("the nearest is `{}`", clean(nearest)),
        None => {
            let named = values.iter().take(VALUES_NAMED);
            let mut named: Vec<_> = named.map(|value| clean(value).into_owned()).collect();
            if values.len() > VALUES_NAMED {
                named.push("…".to_owned());
            }
            format!("there are {}", named.join(", "))
        }
    };
    Some(format!("none with {}: {hint}", shown(matcher)))
}

fn shown(matcher: &LabelMatcher) -> String {
    let LabelMatcher { label, value, .. } = matcher;
    let text = format!("{label}{}\"{value}\"", symbol(matcher));
    clean(&text).into_owned()
}
