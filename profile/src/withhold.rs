//! Withholds stacks that a host keeps to itself: those of processes that selectors name. They are
//! counted but not shown.
//!
//! A withheld sample keeps its weight and the labels of its cgroup, so totals stay correct. Its
//! stack is the single frame `[withheld]`, and names of processes and threads, which may be
//! anything, are removed. If it is uncertain whether a sample is selected, it is withheld.

use crate::dictionary::Dictionary;
use crate::filter::{FilterError, LabelMatcher, Selector};
use crate::frame::{FrameKind, FrameRef};
use crate::labels::{LabelSetId, key};
use crate::outcome::StackEnd;
use crate::selector::SelectorError;
use crate::stack::StackId;

/// The frame that stands for a stack that is withheld.
pub const FRAME: &str = "[withheld]";

/// The frame that stands for who ended a wait, where that is withheld.
pub const WAKER: &str = "[woken by a withheld thread]";

/// The shown end of a withheld stack.
pub const END: StackEnd = StackEnd::Complete;

/// Most selectors. Each label set is held against all of them once per window.
pub const SELECTORS_MAX: usize = 64;

/// Prefix of the path of a cgroup without a name.
const UNKNOWN_CGROUP: &str = "[unknown cgroup";

/// Labels that a container has only once its runtime was asked.
const TOLD: [&str; 4] = [key::CONTAINER_NAME, key::IMAGE, key::POD, key::NAMESPACE];

/// Why selectors are not what can be withheld.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WithholdError {
    /// One is no selector.
    #[error(transparent)]
    Selector(#[from] SelectorError),
    /// One takes everything.
    #[error("an empty selector matches every process: write `cgroup^=\"/\"` to withhold all")]
    Empty,
    /// A selector uses a label that a process can choose itself.
    #[error(
        "a process can change its own `{label}` and escape: select by cgroup, unit, slice, \
         container, image, pod or namespace"
    )]
    Chosen {
        /// The label.
        label: String,
    },
    /// Too many.
    #[error(transparent)]
    Filter(#[from] FilterError),
}

/// What is withheld.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Withholding {
    selectors: Vec<Selector>,
}

static NOTHING: Withholding = Withholding {
    selectors: Vec::new(),
};

impl Withholding {
    /// Nothing is withheld: for who asks on the host itself.
    pub fn nothing() -> &'static Withholding {
        &NOTHING
    }

    /// Everything is withheld.
    pub fn everything() -> Withholding {
        Withholding {
            selectors: vec![Selector::default()],
        }
    }

    /// What selectors name, written as text.
    ///
    /// # Errors
    /// The first that cannot be, by its place.
    pub fn parse<S: AsRef<str>>(texts: &[S]) -> Result<Withholding, (usize, WithholdError)> {
        let mut selectors = Vec::with_capacity(texts.len());
        for (at, text) in texts.iter().enumerate() {
            selectors.push(read(text.as_ref()).map_err(|error| (at, error))?);
        }
        if selectors.len() > SELECTORS_MAX {
            let error = FilterError::TooMany {
                what: "selectors",
                given: selectors.len(),
            };
            return Err((SELECTORS_MAX, error.into()));
        }
        Ok(Withholding { selectors })
    }

    /// True when nothing is withheld.
    pub fn is_empty(&self) -> bool {
        self.selectors.is_empty()
    }

    /// True when samples of this label set are withheld. Evaluates again at each call.
    ///
    /// # Panics
    /// When `labels` is not of `dict`.
    pub fn hides(&self, dict: &Dictionary, labels: LabelSetId) -> bool {
        self.hides_labels(|name| dict.label(labels, name))
    }

    /// True when samples with such labels are withheld: `value` has the value of a label by its
    /// name.
    pub fn hides_labels<'v>(&self, value: impl Fn(&str) -> Option<&'v str>) -> bool {
        if self.is_empty() {
            return false;
        }
        // A sample of an unknown cgroup may be one that has to be withheld.
        if value(key::CGROUP).is_none_or(|path| path.starts_with(UNKNOWN_CGROUP)) {
            return true;
        }
        let is_container = value(key::CONTAINER).is_some();
        let untold = is_container && TOLD.iter().all(|name| value(name).is_none());
        let meets = |matcher: &LabelMatcher| {
            let name = matcher.label();
            // Who the container is may come with the next answer of its runtime.
            untold && is_told(name) || matcher.matches(value(name).unwrap_or(""))
        };
        let mut selectors = self.selectors.iter();
        selectors.any(|selector| selector.matchers().iter().all(meets))
    }

    /// Whether a label of a sample that is withheld stays.
    pub fn keeps(label: &str) -> bool {
        key::is_of_cgroup(label)
    }

    /// The frame, in a dictionary.
    pub fn stack(dict: &mut Dictionary) -> StackId {
        synthetic(dict, StackId::EMPTY, FRAME)
    }
}

fn read(text: &str) -> Result<Selector, WithholdError> {
    let selector: Selector = text.parse()?;
    if selector.is_empty() {
        return Err(WithholdError::Empty);
    }
    for matcher in selector.matchers() {
        if !key::is_of_cgroup(matcher.label()) {
            let label = matcher.label().to_owned();
            return Err(WithholdError::Chosen { label });
        }
    }
    Ok(selector)
}

fn is_told(label: &str) -> bool {
    TOLD.contains(&label)
        || label.starts_with(key::CONTAINER_LABEL)
        || label.starts_with(key::POD_LABEL)
}

/// A stack with one more frame, which is no code.
pub(crate) fn synthetic(dict: &mut Dictionary, caller: StackId, function: &str) -> StackId {
    let frame = dict.intern_frame(FrameRef {
        kind: FrameKind::Synthetic,
        function,
        ..FrameRef::default()
    });
    dict.stacks.child(caller, frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(texts: &[&str]) -> Withholding {
        Withholding::parse(texts).unwrap()
    }

    #[test]
    fn a_process_cannot_choose_what_selects_it() {
        for (text, says) in [
            ("comm=vault", "a process can change its own `comm`"),
            ("unit=a,thread=b", "a process can change its own `thread`"),
            ("", "an empty selector matches every process"),
            ("unit", "failed to parse selector"),
        ] {
            let (at, error) = Withholding::parse(&["unit=a", text]).unwrap_err();
            assert_eq!(at, 1);
            assert!(error.to_string().contains(says), "{error}");
        }
        let many = vec!["unit=a"; SELECTORS_MAX + 1];
        assert!(Withholding::parse(&many).is_err());
    }

    #[test]
    fn what_cannot_be_told_is_withheld() {
        let withheld = of(&["namespace=bank", "unit=vault.service"]);
        let hides = |labels: &[(&'static str, &'static str)]| {
            withheld.hides_labels(|name| {
                let mut all = labels.iter();
                all.find(|(label, _)| *label == name)
                    .map(|&(_, value)| value)
            })
        };
        assert!(!hides(&[(key::CGROUP, "/a")]));
        assert!(hides(&[]), "no cgroup");
        assert!(hides(&[(key::CGROUP, "[unknown cgroup 7]")]));
        let container = [(key::CGROUP, "/k/c"), (key::CONTAINER, "c")];
        assert!(hides(&container), "its runtime has not answered");
        let told = [&container[..], &[(key::NAMESPACE, "shop")]].concat();
        assert!(!hides(&told));
        let told = [&container[..], &[(key::NAMESPACE, "bank")]].concat();
        assert!(hides(&told));
    }
}
