//! The metrics of a program: its numbers by name, each with a description.
//!
//! A stage counts in a [`Counter`] or in an atomic of its own: one relaxed add without a lookup,
//! cheap enough for the sampler thread. [`counted!`] declares such numbers, [`rows!`] says how to
//! read numbers stored elsewhere. Nothing is registered: each request reads all of them into
//! [`Family`]s, which [`encode`] hands to prometheus-client, and [`counted()`] to Status over gRPC.
//!
//! A [`Histogram`] takes a lock for each value, so it is only for what happens a few times a
//! second.
#![forbid(unsafe_code)]

mod encode;
mod http;
mod own_cost;
mod table;

pub use encode::{Format, encode};
pub use http::{Families, Health, ServeError, asked_format, serve};
pub use own_cost::{OwnCost, ThreadCost, thread_cpu_ns};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::histogram::Histogram;
pub use table::{Row, each, gather, one};

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that goes up and down. Clones share it.
pub type Gauge = prometheus_client::metrics::gauge::Gauge<u64, AtomicU64>;

/// Bounds for writes that reach the disk (fsync). Unit: seconds. An NVMe disk takes 0.1 ms, a
/// rotating one 10 ms; a disk that takes a second is in trouble.
pub const DISK_SECONDS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];

/// Bounds for calls that somebody waits for. Unit: seconds. 60 s is where clients give up.
pub const CALL_SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// A histogram with these bounds.
pub fn histogram(bounds: &[f64]) -> Histogram {
    Histogram::new(bounds.iter().copied())
}

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows. Its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A counter kept in nanoseconds and shown in seconds. Its name ends in `_seconds_total`.
    CounterNs,
    /// How often values lay between bounds, in seconds. Its name ends in `_seconds`.
    Histogram,
}

/// Labels of one number with their values, in the order they are shown.
pub type LabelSet = Vec<(Cow<'static, str>, Cow<'static, str>)>;

/// A number as it was read.
#[derive(Clone, Debug)]
pub enum Value {
    /// The value of a counter or a gauge.
    Number(u64),
    /// The value of a gauge that is not of whole numbers.
    Real(f64),
    /// Shared with who counts in it.
    Histogram(Histogram),
}

impl From<u64> for Value {
    fn from(number: u64) -> Value {
        Value::Number(number)
    }
}

impl From<&AtomicU64> for Value {
    fn from(number: &AtomicU64) -> Value {
        // Relaxed: nothing else is read by what this number says.
        Value::Number(number.load(Ordering::Relaxed))
    }
}

impl From<&Counter> for Value {
    fn from(counter: &Counter) -> Value {
        Value::Number(counter.get())
    }
}

impl From<&Gauge> for Value {
    fn from(gauge: &Gauge) -> Value {
        Value::Number(gauge.get())
    }
}

impl From<&Histogram> for Value {
    fn from(histogram: &Histogram) -> Value {
        Value::Histogram(histogram.clone())
    }
}

/// Numbers of one name.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name.
    pub name: Cow<'static, str>,
    /// A sentence on it.
    pub help: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Each label set with its number; none if there is nothing to report.
    pub readings: Vec<(LabelSet, Value)>,
}

/// A number as Status shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Name of the family.
    pub name: String,
    /// Labels as `k="v",…`; empty when there are none.
    pub labels: String,
    /// Value.
    pub value: u64,
}

/// The whole numbers of `families`.
pub fn counted(families: &[Family]) -> impl Iterator<Item = Counted> {
    families.iter().flat_map(|family| {
        let numbers = family.readings.iter();
        numbers.filter_map(|(labels, value)| match value {
            Value::Number(value) => Some(Counted {
                name: family.name.clone().into_owned(),
                labels: labels_text(labels),
                value: *value,
            }),
            Value::Real(_) | Value::Histogram(_) => None,
        })
    })
}

fn labels_text(set: &LabelSet) -> String {
    let pairs: Vec<String> = set
        .iter()
        .map(|(label, value)| {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            format!("{label}=\"{}\"", value.replace('\n', "\\n"))
        })
        .collect();
    pairs.join(",")
}

/// Problems of names and help texts, one sentence each; for tests that read every family.
pub fn problems(families: &[Family]) -> Vec<String> {
    let mut problems = Vec::new();
    for (at, family) in families.iter().enumerate() {
        let name = &*family.name;
        let suffix = match family.kind {
            Kind::Counter => "_total",
            Kind::CounterNs => "_seconds_total",
            Kind::Gauge => "",
            Kind::Histogram => "_seconds",
        };
        let total = name.ends_with("_total") && family.kind == Kind::Gauge;
        if !name.ends_with(suffix) || total {
            problems.push(format!(
                "`{name}` has the wrong ending for a {:?}",
                family.kind
            ));
        }
        let labels = family.readings.iter().flat_map(|(labels, _)| labels);
        for name in labels.map(|(label, _)| &**label).chain([name]) {
            if !is_name(name) {
                problems.push(format!("`{name}` is not a name Prometheus takes"));
            }
        }
        // prometheus-client escapes no sentence in OpenMetrics.
        if !family.help.ends_with('.') || family.help.contains(['\\', '\n']) {
            problems.push(format!("the help of `{name}` is not a sentence"));
        }
        if families[..at].iter().any(|other| other.name == family.name) {
            problems.push(format!("`{name}` is there twice"));
        }
    }
    problems
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests;
