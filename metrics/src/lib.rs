//! The daemon's own numbers: what it took, dropped and cost, by cause.
//!
//! A stage registers its families at start, with all their label sets, and keeps the [`Metric`]s
//! in a struct of its own; counting is one relaxed add, fit for the sampler thread. What is cheaper
//! to look up than to keep is a closure that runs when somebody asks. Rendered as Prometheus text
//! (exposition format 0.0.4) and as the counters of GetStatus.
#![forbid(unsafe_code)]

mod http;
mod own_cost;

pub use http::{Health, ServeError, serve};
pub use own_cost::{OwnCost, ThreadCost, register_own_cost, thread_cpu_ns};

use host::sync::lock;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// What a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows. Its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A counter kept in nanoseconds and shown in seconds. Its name ends in `_seconds_total`.
    CounterNs,
    /// A gauge kept in nanoseconds and shown in seconds. Its name ends in `_seconds`.
    GaugeNs,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Counter | Kind::CounterNs => "counter",
            Kind::Gauge | Kind::GaugeNs => "gauge",
        }
    }
}

/// One number. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Metric(Arc<AtomicU64>);

impl Metric {
    /// Counts one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Counts `n`. Wraps around after 2⁶⁴, as Prometheus expects of counters.
    pub fn add(&self, n: u64) {
        // Relaxed: nothing else is read by what this number says.
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets it: for gauges, and for counters kept elsewhere.
    pub fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Labels of one number with their values, in the order they are shown.
pub type LabelSet = Vec<(&'static str, String)>;

/// What a closure yields: label sets and their numbers.
pub type Readings = Vec<(LabelSet, u64)>;

enum Source {
    Cells(Vec<(LabelSet, Metric)>),
    Reader(Box<dyn Fn() -> Readings + Send + Sync>),
}

struct Family {
    help: &'static str,
    kind: Kind,
    sources: Vec<Source>,
}

/// A counter as GetStatus shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Name of the family.
    pub name: &'static str,
    /// Labels as `k="v",…`; empty when there are none.
    pub labels: String,
    /// Value.
    pub value: u64,
}

/// Every family of the daemon, by name.
#[derive(Default)]
pub struct Registry {
    families: Mutex<BTreeMap<&'static str, Family>>,
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Adds a number without labels. The same name again gives the same number.
    pub fn metric(&self, name: &'static str, help: &'static str, kind: Kind) -> Metric {
        self.one(name, help, kind, LabelSet::new())
    }

    /// Adds a number for each of `values` of one label, in their order:
    /// `family_by("fleetprof_dropped_total", "…", Kind::Counter, "cause", ["ring", "throttle"])`.
    pub fn family_by<V: ToString>(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        label: &'static str,
        values: impl IntoIterator<Item = V>,
    ) -> Vec<Metric> {
        let sets = values
            .into_iter()
            .map(|value| vec![(label, value.to_string())]);
        self.family(name, help, kind, sets)
    }

    /// Adds a number for each label set, in their order. A set that is there already gives the
    /// number that is there; `help` and `kind` of the first registration stay.
    pub fn family(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        sets: impl IntoIterator<Item = LabelSet>,
    ) -> Vec<Metric> {
        sets.into_iter()
            .map(|set| self.one(name, help, kind, set))
            .collect()
    }

    /// Adds a closure that is called whenever the numbers are asked for, on the thread that asks.
    pub fn read(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        reader: impl Fn() -> Readings + Send + Sync + 'static,
    ) {
        self.with_family(name, help, kind, |family| {
            family.sources.push(Source::Reader(Box::new(reader)));
        });
    }

    /// As [`Registry::read`], for one number without labels.
    pub fn read_one(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        reader: impl Fn() -> u64 + Send + Sync + 'static,
    ) {
        self.read(name, help, kind, move || vec![(LabelSet::new(), reader())]);
    }

    fn one(&self, name: &'static str, help: &'static str, kind: Kind, set: LabelSet) -> Metric {
        self.with_family(name, help, kind, |family| {
            let cells = family.sources.iter_mut().find_map(|source| match source {
                Source::Cells(cells) => Some(cells),
                Source::Reader(_) => None,
            });
            let Some(cells) = cells else {
                let metric = Metric::default();
                family
                    .sources
                    .push(Source::Cells(vec![(set, metric.clone())]));
                return metric;
            };
            if let Some((_, metric)) = cells.iter().find(|(known, _)| *known == set) {
                return metric.clone();
            }
            let metric = Metric::default();
            cells.push((set, metric.clone()));
            metric
        })
    }

    fn with_family<T>(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        f: impl FnOnce(&mut Family) -> T,
    ) -> T {
        let mut families = self.lock();
        f(families.entry(name).or_insert_with(|| Family {
            help,
            kind,
            sources: Vec::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        // A reader that panicked has changed nothing here.
        lock(&self.families)
    }

    /// Everything as Prometheus text, families by name.
    pub fn render(&self) -> String {
        let mut out = String::new();
        for (name, family) in self.lock().iter() {
            let help = escape(family.help, false);
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "# HELP {name} {help}\n# TYPE {name} {}",
                family.kind.word()
            );
            family.each(|set, value| {
                out.push_str(name);
                if !set.is_empty() {
                    let _ = write!(out, "{{{}}}", labels_text(set));
                }
                let _ = match family.kind {
                    Kind::Counter | Kind::Gauge => writeln!(out, " {value}"),
                    Kind::CounterNs | Kind::GaugeNs => {
                        let (whole, rest) = (value / 1_000_000_000, value % 1_000_000_000);
                        writeln!(out, " {whole}.{rest:09}")
                    }
                };
            });
        }
        out
    }

    /// Every counter, times apart: those are in GetStatus by themselves.
    pub fn counters(&self) -> Vec<Counted> {
        let mut counters = Vec::new();
        for (&name, family) in self.lock().iter().filter(|(_, f)| f.kind == Kind::Counter) {
            family.each(|set, value| {
                counters.push(Counted {
                    name,
                    labels: labels_text(set),
                    value,
                });
            });
        }
        counters
    }

    /// What is wrong with names and help, a sentence each; for tests that register every stage.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        for (name, family) in self.lock().iter() {
            let suffix = match family.kind {
                Kind::Counter => "_total",
                Kind::CounterNs => "_seconds_total",
                Kind::Gauge => "",
                Kind::GaugeNs => "_seconds",
            };
            let total = name.ends_with("_total");
            if !name.ends_with(suffix) || (family.kind.word() == "gauge" && total) {
                problems.push(format!(
                    "`{name}` has the wrong ending for a {:?}",
                    family.kind
                ));
            }
            if !is_name(name) {
                problems.push(format!("`{name}` is not a name Prometheus takes"));
            }
            if !family.help.ends_with('.') {
                problems.push(format!("the help of `{name}` is not a sentence"));
            }
            family.each(|set, _| {
                for (label, _) in set.iter().filter(|(label, _)| !is_name(label)) {
                    problems.push(format!("label `{label}` of `{name}` is not a name"));
                }
            });
        }
        problems
    }
}

impl Family {
    fn each(&self, mut f: impl FnMut(&LabelSet, u64)) {
        for source in &self.sources {
            match source {
                Source::Cells(cells) => cells.iter().for_each(|(set, metric)| f(set, metric.get())),
                Source::Reader(reader) => reader().iter().for_each(|(set, value)| f(set, *value)),
            }
        }
    }
}

fn labels_text(set: &LabelSet) -> String {
    let pairs: Vec<String> = set
        .iter()
        .map(|(label, value)| format!("{label}=\"{}\"", escape(value, true)))
        .collect();
    pairs.join(",")
}

/// Escapes as the exposition format says: backslash and newline, in label values quotes too.
fn escape(text: &str, quotes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '"' if quotes => out.push_str("\\\""),
            c => out.push(c),
        }
    }
    out
}

fn is_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_lowercase())
        && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Registry {
        let registry = Registry::new();
        registry
            .metric("fp_a_total", "Things.", Kind::Counter)
            .add(7);
        let dropped =
            registry.family_by("fp_b_total", "Drops.", Kind::Counter, "cause", ["x", "y"]);
        dropped[1].inc();
        registry
            .metric("fp_c_seconds", "Age.", Kind::GaugeNs)
            .set(1_500_000_000);
        registry.read("fp_d", "Read when asked.", Kind::Gauge, || {
            vec![(
                vec![("name", "a\"b\\c\nd".to_owned()), ("n", "1".to_owned())],
                3,
            )]
        });
        registry
    }

    #[test]
    fn text_is_as_prometheus_reads_it() {
        let expected = r#"# HELP fp_a_total Things.
# TYPE fp_a_total counter
fp_a_total 7
# HELP fp_b_total Drops.
# TYPE fp_b_total counter
fp_b_total{cause="x"} 0
fp_b_total{cause="y"} 1
# HELP fp_c_seconds Age.
# TYPE fp_c_seconds gauge
fp_c_seconds 1.500000000
# HELP fp_d Read when asked.
# TYPE fp_d gauge
fp_d{name="a\"b\\c\nd",n="1"} 3
"#;
        assert_eq!(example().render(), expected);
    }

    #[test]
    fn counters_carry_their_labels() {
        let counters: Vec<String> = example()
            .counters()
            .iter()
            .map(|counted| format!("{} {} {}", counted.name, counted.labels, counted.value))
            .collect();
        let expected = [
            "fp_a_total  7",
            "fp_b_total cause=\"x\" 0",
            "fp_b_total cause=\"y\" 1",
        ];
        assert_eq!(counters, expected);
    }

    #[test]
    fn the_same_label_set_is_the_same_number() {
        let registry = example();
        registry.family_by("fp_b_total", "", Kind::Counter, "cause", ["y", "z"])[0].inc();
        let text = registry.render();
        assert!(
            text.contains("fp_b_total{cause=\"y\"} 2\nfp_b_total{cause=\"z\"} 0\n"),
            "{text}"
        );
        assert!(text.contains("# HELP fp_b_total Drops.\n"));
    }

    #[test]
    fn wrong_names_are_found() {
        assert_eq!(example().problems(), Vec::<String>::new());
        let registry = Registry::new();
        registry.metric("fp_a", "No sentence", Kind::Counter);
        registry.metric("fp_b_total", "Gauge.", Kind::Gauge);
        registry.metric("fp-c", "Gauge.", Kind::Gauge);
        registry.metric("fp_d_total", "Time.", Kind::CounterNs);
        assert_eq!(registry.problems().len(), 5);
    }
}
