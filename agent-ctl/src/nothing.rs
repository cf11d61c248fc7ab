//! Explains why an answer is empty: because of the time, the labels or the functions.
//!
//! It queries only if there is nothing to show. The server folds stacks to one frame, so the
//! answers have a few rows, however long the range is.

use crate::collector::Samples;
use crate::select::symbol;
use crate::source::{Question, Source};
use crate::terminal::clean;
use crate::units;
use crate::when::{Clock, Range};
use anyhow::Result;
use profile::{Profile, TopBy, TopSort};
use proto::agent::{LabelMatcher, MatchOp};
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
    let Samples {
        matchers,
        filters,
        profile_type,
    } = &question.samples;
    if !profile_type.is_empty() {
        return Ok(Some(
            "no samples of this profile type: `agent-ctl profile --type list` lists those that \
             there are"
                .to_owned(),
        ));
    }
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

/// The same, and what the time is about where that excluded every sample.
///
/// # Errors
/// As [`why`].
pub async fn why_or_time(
    source: &mut Source,
    question: &Question,
    clock: &Clock,
) -> Result<String> {
    if let Some(why) = why(source, question).await? {
        return Ok(why);
    }
    let kept = source.kept().await?;
    Ok(of_time(question.range, kept, clock))
}

/// Why a time has no samples: it is before or after what is kept.
fn of_time(range: Range, kept: Option<(i64, i64)>, clock: &Clock) -> String {
    const NOTHING: &str = "no samples in the range";
    let Some((oldest_ns, newest_ns)) = kept.filter(|(oldest, newest)| oldest < newest) else {
        return format!("{NOTHING}: none are kept at all");
    };
    if range.end_ns != 0 && range.end_ns <= oldest_ns {
        return format!(
            "{NOTHING}: the oldest kept are of {}",
            clock.show(oldest_ns)
        );
    }
    if range.start_ns >= newest_ns {
        return format!("{NOTHING}: the newest are of {}", clock.show(newest_ns));
    }
    NOTHING.to_owned()
}

/// The samples of the range that these matchers take, by labels alone.
async fn ask(
    source: &mut Source,
    question: &Question,
    matchers: Vec<LabelMatcher>,
    labels: &[&str],
) -> Result<Profile> {
    let asked = Question {
        samples: Samples::by_labels(matchers),
        group_by: labels.iter().map(|&label| label.to_owned()).collect(),
        max_nodes: 0,
        times: false,
        ..question.clone()
    };
    Ok(source.profile(asked).await?.profile)
}

/// Why no sample has what one matcher asks for; `None` when some have, or that is not known.
fn mismatch(all: &Profile, matcher: &LabelMatcher) -> Option<String> {
    // What runs most comes first.
    let by = TopBy::Label(matcher.label.clone());
    let rows = all.top(&by, TopSort::Own, usize::MAX).rows;
    let named = rows.iter().map(|row| row.name.as_str());
    let values: Vec<&str> = named.filter(|name| !name.is_empty()).collect();
    let given = matcher.value.as_str();
    if values.is_empty() {
        return matches!(
            matcher.op(),
            MatchOp::Equal | MatchOp::Regex | MatchOp::Subtree
        )
        .then(|| format!("none with the label `{}`", clean(&matcher.label)));
    }
    if values.iter().any(|value| takes(matcher, value)) {
        return None;
    }
    // What a matcher is alike: the text of a pattern without its signs.
    let plain;
    let given = match matcher.op() {
        MatchOp::Equal | MatchOp::Subtree => given,
        MatchOp::Regex => {
            plain = plain_text(given);
            plain.as_str()
        }
        _ => return None,
    };
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

/// True when a value is one that the matcher takes.
fn takes(matcher: &LabelMatcher, value: &str) -> bool {
    let given = matcher.value.as_str();
    match matcher.op() {
        MatchOp::Equal | MatchOp::Unspecified => value == given,
        MatchOp::NotEqual => value != given,
        MatchOp::Subtree => {
            let below = value.strip_prefix(given.trim_end_matches('/'));
            below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        }
        MatchOp::Regex | MatchOp::NotRegex => {
            let pattern = regex::Regex::new(&format!("^(?:{given})$"));
            // One that is not read here was taken by whoever was asked.
            let is_match = pattern.map_or(true, |pattern| pattern.is_match(value));
            is_match == (matcher.op() == MatchOp::Regex)
        }
    }
}

/// A pattern without the signs that are none of a name.
fn plain_text(pattern: &str) -> String {
    let signs = |c: char| "()[]{}?*+|^$\\".contains(c);
    let text: String = pattern
        .replace("(?:", "")
        .chars()
        .filter(|&c| !signs(c))
        .collect();
    text.trim_end_matches('.').to_owned()
}

fn shown(matcher: &LabelMatcher) -> String {
    // As `--container` was written, and not as it is asked.
    let prefix = matcher
        .value
        .strip_prefix("(?:")
        .and_then(|rest| rest.strip_suffix(").*"));
    if let (profile::key::CONTAINER, MatchOp::Regex, Some(prefix)) =
        (matcher.label.as_str(), matcher.op(), prefix)
    {
        return format!("a container id that starts with `{}`", clean(prefix));
    }
    let LabelMatcher { label, value, .. } = matcher;
    let text = format!("{label}{}\"{value}\"", symbol(matcher));
    clean(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{SampleKey, StackId, Value};

    fn matcher(label: &str, op: MatchOp, value: &str) -> LabelMatcher {
        LabelMatcher {
            label: label.to_owned(),
            op: op.into(),
            value: value.to_owned(),
        }
    }

    fn samples() -> Profile {
        let mut profile = Profile::default();
        for unit in ["nginx.service", "redis.service"] {
            let labels = profile
                .dict
                .intern_labels([("unit", unit), ("cgroup", "/system.slice/x")]);
            let key = SampleKey {
                labels,
                stack: StackId::EMPTY,
                end: Default::default(),
            };
            profile.add(
                key,
                Value {
                    count: 1,
                    weight: 1,
                },
            );
        }
        profile
    }

    #[test]
    fn the_nearest_value_is_named_whatever_the_operator() {
        for (op, value, expected) in [
            (
                MatchOp::Equal,
                "ngin.service",
                Some("the nearest is `nginx.service`"),
            ),
            (
                MatchOp::Regex,
                "ngnx.*service",
                Some("the nearest is `nginx.service`"),
            ),
            (MatchOp::Regex, "nginx.*", None),
            (MatchOp::Equal, "nginx.service", None),
            (
                MatchOp::Equal,
                "zzz",
                Some("there are nginx.service, redis.service"),
            ),
            (MatchOp::NotEqual, "nginx.service", None),
        ] {
            let said = mismatch(&samples(), &matcher("unit", op, value));
            match expected {
                Some(expected) => assert!(
                    said.as_ref().is_some_and(|said| said.contains(expected)),
                    "{value}: {said:?}"
                ),
                None => assert_eq!(said, None, "{value}"),
            }
        }
        let below = matcher("cgroup", MatchOp::Subtree, "/system.slice");
        assert_eq!(mismatch(&samples(), &below), None);
        let other = matcher("cgroup", MatchOp::Subtree, "/system.slic");
        let said = mismatch(&samples(), &other).unwrap();
        assert!(said.contains("the nearest is `/system.slice/x`"), "{said}");
    }

    #[test]
    fn a_container_is_named_as_it_was_asked_for() {
        let id = matcher("container", MatchOp::Regex, "(?:3f2a).*");
        assert_eq!(shown(&id), "a container id that starts with `3f2a`");
        assert_eq!(plain_text("(?:3f2a).*"), "3f2a");
    }

    #[test]
    fn a_time_before_and_after_what_is_kept_says_so() {
        const S: i64 = 1_000_000_000;
        const DAY: i64 = 1_763_700_000 * S;
        let clock = Clock::at(DAY + 1000 * S);
        let range = |start_s: i64, end_s: i64| Range {
            start_ns: DAY + start_s * S,
            end_ns: if end_s == 0 { 0 } else { DAY + end_s * S },
        };
        let kept = Some((DAY + 500 * S, DAY + 900 * S));
        let said = of_time(range(100, 200), kept, &clock);
        assert!(said.contains("the oldest kept are of 2025-11-21"), "{said}");
        let said = of_time(range(950, 0), kept, &clock);
        assert!(said.contains("the newest are of"), "{said}");
        assert_eq!(
            of_time(range(600, 700), kept, &clock),
            "no samples in the range"
        );
        assert!(of_time(range(600, 700), None, &clock).ends_with("none are kept at all"));
    }
}
