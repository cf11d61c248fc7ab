//! Converts selectors and frame filters from wire form.

use crate::agent;
use profile::{
    FILTERS_MAX, FilterError, FrameFilter, FrameFilterOp, LabelMatcher, MatchOp, Selector,
};

/// Why a request's filters cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// More than [`FILTERS_MAX`] of something. Reported before anything is compiled: the counts
    /// bound the work of one request.
    #[error("failed to use {given} {what}: at most {FILTERS_MAX} are allowed")]
    TooMany {
        /// `matchers`, `frame filters`.
        what: &'static str,
        /// How many were given.
        given: usize,
    },
    /// An operator this version does not know.
    #[error("failed to use the matcher of `{label}`: operator {op} is not known")]
    MatchOp {
        /// Its label.
        label: String,
        /// The number.
        op: i32,
    },
    /// An operator this version does not know.
    #[error("failed to use a frame filter: operator {op} is not known")]
    FilterOp {
        /// The number.
        op: i32,
    },
    /// It cannot be compiled.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// Refuses more than [`FILTERS_MAX`] of `what`.
///
/// # Errors
/// When there are more.
pub fn check_count(what: &'static str, given: usize) -> Result<(), RequestError> {
    if given > FILTERS_MAX {
        return Err(RequestError::TooMany { what, given });
    }
    Ok(())
}

/// The selector of these matchers.
///
/// # Errors
/// When there are too many, or one cannot be used.
pub fn selector(matchers: Vec<agent::LabelMatcher>) -> Result<Selector, RequestError> {
    check_count("matchers", matchers.len())?;
    let matchers: Result<Vec<LabelMatcher>, RequestError> =
        matchers.into_iter().map(matcher).collect();
    Ok(Selector::new(matchers?)?)
}

/// A selector as it is sent.
pub fn matchers(selector: &Selector) -> Vec<agent::LabelMatcher> {
    let to_wire = |matcher: &LabelMatcher| {
        let op = match matcher.op() {
            MatchOp::Equal => agent::MatchOp::Equal,
            MatchOp::NotEqual => agent::MatchOp::NotEqual,
            MatchOp::Regex => agent::MatchOp::Regex,
            MatchOp::NotRegex => agent::MatchOp::NotRegex,
            MatchOp::Subtree => agent::MatchOp::Subtree,
        };
        agent::LabelMatcher {
            label: matcher.label().to_owned(),
            op: op.into(),
            value: matcher.value().to_owned(),
        }
    };
    selector.matchers().iter().map(to_wire).collect()
}

/// These frame filters, in their order.
///
/// # Errors
/// When there are too many, or one cannot be used.
pub fn frame_filters(filters: Vec<agent::FrameFilter>) -> Result<Vec<FrameFilter>, RequestError> {
    check_count("frame filters", filters.len())?;
    filters.into_iter().map(filter).collect()
}

fn matcher(matcher: agent::LabelMatcher) -> Result<LabelMatcher, RequestError> {
    let op = match matcher.op() {
        agent::MatchOp::Equal => MatchOp::Equal,
        agent::MatchOp::NotEqual => MatchOp::NotEqual,
        agent::MatchOp::Regex => MatchOp::Regex,
        agent::MatchOp::NotRegex => MatchOp::NotRegex,
        agent::MatchOp::Subtree => MatchOp::Subtree,
        agent::MatchOp::Unspecified => {
            let (label, op) = (matcher.label, matcher.op);
            return Err(RequestError::MatchOp { label, op });
        }
    };
    Ok(LabelMatcher::new(matcher.label, op, matcher.value)?)
}

fn filter(filter: agent::FrameFilter) -> Result<FrameFilter, RequestError> {
    let op = match filter.op() {
        agent::FrameFilterOp::Keep => FrameFilterOp::Keep,
        agent::FrameFilterOp::Drop => FrameFilterOp::Drop,
        agent::FrameFilterOp::Focus => FrameFilterOp::Focus,
        agent::FrameFilterOp::Collapse => FrameFilterOp::Collapse,
        agent::FrameFilterOp::Unspecified => {
            let op = filter.op;
            return Err(RequestError::FilterOp { op });
        }
    };
    Ok(FrameFilter::new(op, &filter.regex)?)
}
