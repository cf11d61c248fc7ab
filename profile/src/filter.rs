//! Filters samples by their labels, and samples and frames by function names.
//!
//! Patterns come from clients, so each is bounded in length and in compiled size; the `regex` crate
//! matches in time linear in the text. Results are cached by id in
//! [`QueryRunner`](crate::QueryRunner), so each pattern runs once per distinct name.

use crate::dictionary::Dictionary;
use crate::labels::LabelSetId;
use regex::{Regex, RegexBuilder};

/// Longest pattern taken. Unit: bytes. Longer ones are refused: generated alternations should be
/// several matchers.
pub const PATTERN_LEN_MAX: usize = 4096;

/// Most memory one compiled pattern may take, and most its lazy automaton may. Unit: bytes. Smaller
/// refuses patterns with Unicode classes and counted repetition, such as `\w{1,64}`.
pub const PATTERN_SIZE_MAX: usize = 1 << 20;

/// Most label matchers of a selector, and most frame filters of a query.
pub const FILTERS_MAX: usize = 64;

/// Why a filter cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The pattern is not a regular expression or is too large compiled.
    #[error("failed to compile pattern `{pattern}`: {reason}")]
    Pattern {
        /// The pattern as given.
        pattern: String,
        /// The regex compiler's error.
        reason: String,
    },
    /// The pattern is longer than [`PATTERN_LEN_MAX`].
    #[error("failed to use a pattern of {len} bytes: at most {PATTERN_LEN_MAX} are allowed")]
    PatternTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A matcher that names no label.
    #[error("failed to use a matcher: its label has no name")]
    NoLabel,
    /// A subtree matcher without a path.
    #[error("failed to use matcher `{label}^=\"\"`: a subtree needs a path, `/` for all")]
    NoPath {
        /// The label it was for.
        label: String,
    },
    /// More than [`FILTERS_MAX`].
    #[error("failed to use {given} {what}: at most {FILTERS_MAX} are allowed")]
    TooMany {
        /// `matchers` or `frame filters`.
        what: &'static str,
        /// How many were given.
        given: usize,
    },
}

fn compile(pattern: &str, anchored: bool) -> Result<Regex, FilterError> {
    if pattern.len() > PATTERN_LEN_MAX {
        return Err(FilterError::PatternTooLong { len: pattern.len() });
    }
    let build = |text: &str| {
        RegexBuilder::new(text)
            .size_limit(PATTERN_SIZE_MAX)
            .dfa_size_limit(PATTERN_SIZE_MAX)
            .dot_matches_new_line(true)
            .build()
            .map_err(|error| FilterError::Pattern {
                pattern: pattern.to_owned(),
                reason: last_line(&error),
            })
    };
    // The bare pattern is compiled first even when the anchored one is used: `a)|(b` alone is an
    // error and must not become two halves of the anchors' group.
    let bare = build(pattern)?;
    if anchored {
        build(&format!("^(?:{pattern})$"))
    } else {
        Ok(bare)
    }
}

/// The compiler draws the pattern with a marker over several lines and ends with the reason.
fn last_line(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().next_back().unwrap_or_default();
    last.trim_start_matches("error: ")
        .trim_end_matches('.')
        .to_owned()
}

/// How a [`LabelMatcher`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MatchOp {
    /// The same text. Written `=`.
    Equal,
    /// Not the same text. Written `!=`.
    NotEqual,
    /// The regular expression matches all of the text. Written `=~`.
    Regex,
    /// The regular expression does not match all of the text. Written `!~`.
    NotRegex,
    /// The path itself or a path below it: `/a` takes `/a` and `/a/b`, not `/ab`. Written `^=`.
    Subtree,
}

impl MatchOp {
    /// Every operator.
    pub const ALL: [MatchOp; 5] = [
        MatchOp::Equal,
        MatchOp::NotEqual,
        MatchOp::Regex,
        MatchOp::NotRegex,
        MatchOp::Subtree,
    ];

    /// The operator as it is written in a selector.
    pub fn symbol(self) -> &'static str {
        match self {
            MatchOp::Equal => "=",
            MatchOp::NotEqual => "!=",
            MatchOp::Regex => "=~",
            MatchOp::NotRegex => "!~",
            MatchOp::Subtree => "^=",
        }
    }
}

/// A condition on one label. A label that is missing has the empty value.
#[derive(Clone, Debug)]
pub struct LabelMatcher {
    label: String,
    op: MatchOp,
    value: String,
    /// Set for the two regex operators.
    regex: Option<Regex>,
}

impl LabelMatcher {
    /// Takes any of these values.
    ///
    /// # Errors
    /// See [`LabelMatcher::new`].
    pub fn one_of<'v>(
        label: impl Into<String>,
        values: impl IntoIterator<Item = &'v str>,
    ) -> Result<LabelMatcher, FilterError> {
        let values: Vec<String> = values.into_iter().map(regex::escape).collect();
        LabelMatcher::new(label, MatchOp::Regex, values.join("|"))
    }

    /// Builds a matcher; patterns are compiled here, once.
    ///
    /// # Errors
    /// When the label is empty, the pattern is invalid or over a limit, or a subtree has no path.
    pub fn new(
        label: impl Into<String>,
        op: MatchOp,
        value: impl Into<String>,
    ) -> Result<LabelMatcher, FilterError> {
        let (label, mut value) = (label.into(), value.into());
        if label.is_empty() {
            return Err(FilterError::NoLabel);
        }
        let regex = match op {
            MatchOp::Regex | MatchOp::NotRegex => Some(compile(&value, true)?),
            MatchOp::Subtree if value.is_empty() => return Err(FilterError::NoPath { label }),
            MatchOp::Subtree => {
                value.truncate(value.trim_end_matches('/').len().max(1));
                None
            }
            MatchOp::Equal | MatchOp::NotEqual => None,
        };
        Ok(LabelMatcher {
            label,
            op,
            value,
            regex,
        })
    }

    /// The label it looks at.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// How it compares.
    pub fn op(&self) -> MatchOp {
        self.op
    }

    /// Text, pattern or path it compares with.
    pub fn value(&self) -> &str {
        &self.value
    }

    /// True when a label with this value passes; `""` for a label that is missing.
    pub fn matches(&self, text: &str) -> bool {
        let regex = || {
            self.regex
                .as_ref()
                .is_some_and(|regex| regex.is_match(text))
        };
        match self.op {
            MatchOp::Equal => text == self.value,
            MatchOp::NotEqual => text != self.value,
            MatchOp::Regex => regex(),
            MatchOp::NotRegex => !regex(),
            MatchOp::Subtree if self.value == "/" => text.starts_with('/'),
            MatchOp::Subtree => text
                .strip_prefix(&self.value)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
        }
    }
}

/// Two matchers are equal when they say the same.
impl PartialEq for LabelMatcher {
    fn eq(&self, other: &LabelMatcher) -> bool {
        (&self.label, self.op, &self.value) == (&other.label, other.op, &other.value)
    }
}

/// Conditions on labels that must all hold. The empty selector takes everything.
///
/// Its text form is read by `str::parse` and written by `Display`; see `selector.rs`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selector {
    matchers: Vec<LabelMatcher>,
}

impl Selector {
    /// A selector of these matchers.
    ///
    /// # Errors
    /// When there are more than [`FILTERS_MAX`].
    pub fn new(matchers: Vec<LabelMatcher>) -> Result<Selector, FilterError> {
        if matchers.len() > FILTERS_MAX {
            return Err(FilterError::TooMany {
                what: "matchers",
                given: matchers.len(),
            });
        }
        Ok(Selector { matchers })
    }

    /// The matchers, in the order given.
    pub fn matchers(&self) -> &[LabelMatcher] {
        &self.matchers
    }

    /// True when it takes everything.
    pub fn is_empty(&self) -> bool {
        self.matchers.is_empty()
    }

    /// True when the label set passes. Evaluates again at each call: over many samples use a
    /// [`QueryRunner`](crate::QueryRunner), which asks once per label set.
    ///
    /// # Panics
    /// When `labels` is not of `dict`.
    pub fn matches(&self, dict: &Dictionary, labels: LabelSetId) -> bool {
        self.matchers
            .iter()
            .all(|matcher| matcher.matches(dict.label(labels, &matcher.label).unwrap_or("")))
    }
}

/// What a [`FrameFilter`] does with samples and frames with a matching function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameFilterOp {
    /// Keeps samples with a matching frame.
    Keep,
    /// Drops samples with a matching frame.
    Drop,
    /// Keeps samples with a matching frame and cuts what is above its outermost match, so that the
    /// match becomes the root.
    Focus,
    /// Merges each run of neighbouring matching frames into the outermost (root-most) of the run.
    Collapse,
}

impl FrameFilterOp {
    /// Lower-case word, as on the command line.
    pub fn word(self) -> &'static str {
        match self {
            FrameFilterOp::Keep => "keep",
            FrameFilterOp::Drop => "drop",
            FrameFilterOp::Focus => "focus",
            FrameFilterOp::Collapse => "collapse",
        }
    }
}

/// A filter on function names, as people or as their runtime spell them: an unanchored regular
/// expression and what it is for.
#[derive(Clone, Debug)]
pub struct FrameFilter {
    op: FrameFilterOp,
    regex: Regex,
}

impl FrameFilter {
    /// Builds a filter; the pattern is compiled here, once.
    ///
    /// # Errors
    /// When the pattern is invalid or over a limit.
    pub fn new(op: FrameFilterOp, pattern: &str) -> Result<FrameFilter, FilterError> {
        Ok(FrameFilter {
            op,
            regex: compile(pattern, false)?,
        })
    }

    /// What it does.
    pub fn op(&self) -> FrameFilterOp {
        self.op
    }

    /// The pattern as given.
    pub fn pattern(&self) -> &str {
        self.regex.as_str()
    }

    /// True when the function's name matches.
    pub fn matches(&self, function: &str) -> bool {
        self.regex.is_match(function)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(op: MatchOp, value: &str, text: &str) -> bool {
        LabelMatcher::new("label", op, value).unwrap().matches(text)
    }

    #[test]
    fn one_of_some_values_takes_them_alone() {
        for name in ["web-1.example", "a|b", "(x", "größe", "a b"] {
            let matcher = LabelMatcher::one_of("host", [name, "other"]).unwrap();
            assert!(matcher.matches(name) && matcher.matches("other"), "{name}");
            assert!(!matcher.matches("web-12example"), "{name}");
        }
    }

    #[test]
    fn patterns_are_anchored() {
        assert!(check(MatchOp::Regex, "ja.*", "java"));
        assert!(!check(MatchOp::Regex, "ja", "java"));
        assert!(!check(MatchOp::Regex, "a|b", "ab"));
        assert!(check(MatchOp::NotRegex, "ja", "java"));
    }

    #[test]
    fn a_dot_takes_a_newline() {
        assert!(check(MatchOp::Regex, ".*", "a\nb"));
    }

    #[test]
    fn a_missing_label_is_the_empty_text() {
        assert!(check(MatchOp::Equal, "", ""));
        assert!(check(MatchOp::NotEqual, "x", ""));
        assert!(check(MatchOp::Regex, ".*", ""));
        assert!(!check(MatchOp::Regex, ".+", ""));
        assert!(!check(MatchOp::Subtree, "/", ""));
    }

    #[test]
    fn a_subtree_ends_at_path_borders() {
        for (path, text, expected) in [
            ("/a", "/a", true),
            ("/a", "/a/b", true),
            ("/a/", "/a/b", true),
            ("/a", "/ab", false),
            ("/a/b", "/a", false),
            ("/", "/", true),
            ("/", "/a", true),
            ("//", "/a", true),
        ] {
            assert_eq!(
                check(MatchOp::Subtree, path, text),
                expected,
                "{text} below {path}"
            );
        }
    }

    #[test]
    fn a_pattern_cannot_break_out_of_its_anchors() {
        let error = LabelMatcher::new("comm", MatchOp::Regex, "a)|(b").unwrap_err();
        assert!(matches!(error, FilterError::Pattern { .. }), "{error}");
    }

    #[test]
    fn patterns_are_bounded() {
        let long = "a".repeat(PATTERN_LEN_MAX + 1);
        assert_eq!(
            FrameFilter::new(FrameFilterOp::Keep, &long).unwrap_err(),
            FilterError::PatternTooLong {
                len: PATTERN_LEN_MAX + 1
            }
        );
        let large = r"(\w{100}){100}";
        assert!(matches!(
            FrameFilter::new(FrameFilterOp::Keep, large).unwrap_err(),
            FilterError::Pattern { .. }
        ));
    }

    #[test]
    fn a_subtree_needs_a_path() {
        assert!(matches!(
            LabelMatcher::new("cgroup", MatchOp::Subtree, ""),
            Err(FilterError::NoPath { .. })
        ));
    }
}
