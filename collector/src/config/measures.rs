//! What is measured on stored samples: an entry of `measures`, and the quantity that alerts have
//! in common with it.

use super::alerts::{OVER_MAX_S, as_time, is_plain_name, seconds, text, written};
use config::{Field, Item, Items, Kind, Value, parse_seconds};
use profile::{FrameFilter, FrameFilterOp, LabelMatcher, MatchOp, Selector};
use serde::Serialize;
use std::collections::BTreeMap;

/// Most measures.
const MEASURES_MAX: usize = 32;

pub(super) static MEASURES: Items = Items {
    what: "measure",
    max: MEASURES_MAX,
    fields: MEASURE_FIELDS,
    example: MEASURES_EXAMPLE,
};

const MEASURES_EXAMPLE: &str = "\
measures:
  - name: cpu
    by: unit
  - name: api-malloc
    selector: unit=\"api.service\"
    function: malloc
    by: host
    over: 5m
";

const MEASURE_FIELDS: &[Field] = &[
    Field {
        name: "name",
        kind: Kind::Text(64),
        required: true,
        default: "",
        doc: "Value of the label `measure`: letters, digits, `_`, `.` and `-`.",
    },
    Field {
        name: "selector",
        kind: Kind::Text(1024),
        required: false,
        default: "the complete fleet",
        doc: "Samples that it is about, as in every query.",
    },
    Field {
        name: "function",
        kind: Kind::Text(512),
        required: false,
        default: "CPU time for each second, in cores",
        doc: "Measures the share of the samples that have this function in their stack: its exact \
              name, or a pattern between slashes (`/^je_.*alloc$/`).",
    },
    Field {
        name: "by",
        kind: Kind::Text(128),
        required: false,
        default: "one value for the selection",
        doc: "A label, such as `unit`, `container` or `host`: each of its values has a number of \
              its own, the 1,000 largest at most.",
    },
    Field {
        name: "over",
        kind: Kind::Duration(10, OVER_MAX_S),
        required: false,
        default: "1m",
        doc: "The value is the mean over this time.",
    },
];

/// An entry of `measures`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MeasureEntry {
    /// Its name.
    pub name: String,
    /// Its samples.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub selector: String,
    /// The function of a share; empty: cores.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub function: String,
    /// The label of its groups; empty: none.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// What a value is the mean of. Unit: seconds.
    #[serde(serialize_with = "as_time")]
    pub over: u64,
}

impl Default for MeasureEntry {
    fn default() -> MeasureEntry {
        MeasureEntry {
            name: String::new(),
            selector: String::new(),
            function: String::new(),
            by: String::new(),
            over: 60,
        }
    }
}

impl MeasureEntry {
    /// From what was admitted by [`MEASURES`].
    pub(super) fn of(item: Item) -> MeasureEntry {
        let mut entry = MeasureEntry::default();
        for (name, value) in item {
            let Value::Text(text) = value else { continue };
            match name.as_str() {
                "name" => entry.name = text,
                "selector" => entry.selector = text,
                "function" => entry.function = text,
                "by" => entry.by = text,
                "over" => entry.over = parse_seconds(&text).unwrap_or(0),
                _ => {}
            }
        }
        entry
    }

    /// As [`MEASURES`] admits it.
    pub(super) fn item(&self) -> Item {
        written([
            text("name", &self.name),
            text("selector", &self.selector),
            text("function", &self.function),
            text("by", &self.by),
            seconds("over", self.over),
        ])
    }

    /// What it measures.
    ///
    /// # Errors
    /// Which key is wrong, and what to write.
    pub fn parse(&self) -> Result<Measure, String> {
        if !is_plain_name(&self.name) {
            return Err("`name` needs letters, digits, `_`, `.` and `-`".to_owned());
        }
        let quantity = match self.function.as_str() {
            "" => Quantity::Cores,
            function => Quantity::of_function(function)?,
        };
        Measure::new(quantity, &self.selector, &self.by, self.over)
    }
}

/// What is measured.
#[derive(Clone, Debug)]
pub enum Quantity {
    /// CPU time for each second.
    Cores,
    /// Percent of the samples with a function in their stack. The filter keeps these samples.
    Share {
        /// The function as it was written.
        function: String,
        /// Keeps its samples.
        filter: FrameFilter,
    },
}

impl Quantity {
    /// The share of a function: its exact name, or a pattern between slashes.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub fn of_function(function: &str) -> Result<Quantity, String> {
        Ok(Quantity::Share {
            function: function.to_owned(),
            filter: filter(function)?,
        })
    }
}

/// A quantity of a selection, for each value of a label, as the mean over some time.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Its samples.
    pub selector: Selector,
    /// What is measured.
    pub quantity: Quantity,
    /// The label whose values are measured apart.
    pub by: Option<String>,
    /// What a value is the mean of. Unit: nanoseconds.
    pub over_ns: i64,
}

impl Measure {
    /// Reads the keys that alerts and measures have in common.
    ///
    /// # Errors
    /// Which key is wrong, and what to write.
    pub fn new(
        quantity: Quantity,
        selector: &str,
        by: &str,
        over_s: u64,
    ) -> Result<Measure, String> {
        let selector: Selector = match selector {
            "" => Selector::default(),
            text => text
                .parse()
                .map_err(|error| format!("`selector` is invalid: {error}"))?,
        };
        if by == "*" {
            return Err("`by` is `*`: name one label".to_owned());
        }
        Ok(Measure {
            selector,
            quantity,
            by: (!by.is_empty()).then(|| by.to_owned()),
            over_ns: i64::try_from(over_s.saturating_mul(1_000_000_000)).unwrap_or(i64::MAX),
        })
    }

    /// `cores` or `percent`.
    pub fn unit(&self) -> &'static str {
        match self.quantity {
            Quantity::Cores => "cores",
            Quantity::Share { .. } => "percent",
        }
    }

    /// The function of a share; empty: it is on cores.
    pub fn function(&self) -> &str {
        match &self.quantity {
            Quantity::Cores => "",
            Quantity::Share { function, .. } => function,
        }
    }

    /// The labels of a group: what the selector says of it with `=`, and the group.
    pub fn labels(&self, group: &str) -> BTreeMap<String, String> {
        let matchers = self.selector.matchers().iter();
        let equal = matchers.filter(|m| m.op() == MatchOp::Equal && !m.value().is_empty());
        let mut labels: BTreeMap<String, String> = equal
            .map(|m| (m.label().to_owned(), m.value().to_owned()))
            .collect();
        if let Some(by) = &self.by
            && !group.is_empty()
        {
            labels.insert(by.clone(), group.to_owned());
        }
        labels
    }

    /// Selects the samples of a group.
    pub fn selector_of(&self, group: &str) -> String {
        let mut matchers = self.selector.matchers().to_vec();
        if let Some(by) = &self.by
            && let Ok(matcher) = LabelMatcher::new(by.as_str(), MatchOp::Equal, group)
        {
            matchers.push(matcher);
        }
        let matchers: Vec<String> = matchers.iter().map(|m| format!("{m}")).collect();
        matchers.join(",")
    }
}

/// Keeps the samples with a function: its exact name, or a pattern between slashes.
fn filter(function: &str) -> Result<FrameFilter, String> {
    let pattern = match function.strip_prefix('/').and_then(|f| f.strip_suffix('/')) {
        Some(pattern) if !pattern.is_empty() => pattern.to_owned(),
        _ => format!("^{}$", escaped(function)),
    };
    FrameFilter::new(FrameFilterOp::Keep, &pattern)
        .map_err(|error| format!("`function` is invalid: {error}"))
}

/// A name as a pattern that takes it alone. Other punctuation stays as it is: an escaped `<` would
/// be the start of a word.
fn escaped(name: &str) -> String {
    let mut pattern = String::new();
    for c in name.chars() {
        if r"\.+*?()|[]{}^$#&-~".contains(c) {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_its_exact_name_or_a_pattern() {
        let keeps = |function: &str, name: &str| filter(function).expect("valid").matches(name);
        assert!(keeps("malloc", "malloc") && !keeps("malloc", "je_malloc"));
        assert!(keeps("a::b<c>(d)", "a::b<c>(d)") && keeps("/alloc/", "je_malloc"));
        assert!(filter("/(/").is_err());
    }

    #[test]
    fn what_is_wrong_is_named_with_its_key() {
        type Case<'a> = (&'static str, &'a dyn Fn(&mut MeasureEntry));
        let cases: [Case<'_>; 4] = [
            ("`name`", &|of| of.name = "a b".into()),
            ("`selector`", &|of| of.selector = "unit=~\"(\"".into()),
            ("`function`", &|of| of.function = "/(/".into()),
            ("`by`", &|of| of.by = "*".into()),
        ];
        for (key, change) in cases {
            let mut entry = MeasureEntry {
                name: "cpu".to_owned(),
                ..MeasureEntry::default()
            };
            assert!(entry.parse().is_ok());
            change(&mut entry);
            let why = entry.parse().expect_err(key);
            assert!(why.starts_with(key), "{why}");
        }
    }
}
