//! Numbers that are measured on stored profiles, for `/metrics`: CPU time by a label, and shares of
//! functions.
//!
//! `read` says what is known of a measure; alerts are judged by the same. A value that is not known
//! for certain is not shown: it is counted instead, and no zero or old number stands in its place.

pub mod limits;
mod read;

pub(crate) use read::{Readings, judged_at, means, readings};

use crate::config::Measure;
use crate::ingest::stopped;
use crate::metrics::Metrics;
use crate::query::Queries;
use crate::sync::lock;
use crate::time::Clock;
use limits::{BREAK_TIMES, CELLS_MAX, MEASURED_GROUPS_MAX, NODES_MAX, QUERY_TIMEOUT, STALE_ROUNDS};
use metrics::{Family, LabelSet, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// What is known of a value: it lies between both, which are equal where nothing is missing.
#[derive(Clone, Debug, PartialEq)]
pub struct Reading {
    /// It is at least this.
    pub low: f64,
    /// It is at most this.
    pub high: f64,
    /// The baseline, where there is one.
    pub baseline: Option<f64>,
    /// So little ran that nothing can be said, and nothing needs to be.
    pub is_idle: bool,
    /// What is missing, in words; empty: nothing.
    pub missing: String,
}

impl Reading {
    /// A value that is known.
    pub fn known(value: f64) -> Reading {
        Reading {
            low: value,
            high: value,
            baseline: None,
            is_idle: false,
            missing: String::new(),
        }
    }

    /// A value of which nothing is known.
    pub fn unknown(missing: &str) -> Reading {
        Reading {
            high: f64::INFINITY,
            missing: missing.to_owned(),
            ..Reading::known(0.0)
        }
    }
}

/// Measures everything again and again; clones share everything.
#[derive(Clone)]
pub struct Measures(Arc<Inner>);

struct Inner {
    measures: Vec<(String, Measure)>,
    interval: Duration,
    queries: Queries,
    clock: Clock,
    metrics: Arc<Metrics>,
    /// By name of the measure; none: it could not be measured.
    latest: Mutex<BTreeMap<String, Option<Latest>>>,
    shutdown: watch::Receiver<bool>,
}

/// What was measured last.
struct Latest {
    at: Instant,
    /// By group.
    values: BTreeMap<String, f64>,
    /// Groups of which too much is missing.
    unknown: u64,
    /// Groups beyond the bound.
    dropped: u64,
}

metrics::rows! { MEASURED: Inner;
    /// CPU time for each second, from the kernel's accounts, by measure and its label.
    Gauge fleetprof_measured_cores{..} = |of| of.values(|measure| measure.function().is_empty(), 1.0);
    /// Part of the samples that have the function in their stack, by measure and its label.
    Gauge fleetprof_measured_share_ratio{..} =
        |of| of.values(|measure| !measure.function().is_empty(), 0.01);
    /// Values not shown because data of hosts is missing or lost, by measure.
    Gauge fleetprof_measured_unknown{measure} = |of| of.counts(|latest| latest.unknown);
    /// Values not shown because the measure has too many, by measure.
    Gauge fleetprof_measured_dropped{measure} = |of| of.counts(|latest| latest.dropped);
}

impl Measures {
    /// Measures these.
    pub fn new(
        (measures, interval): (Vec<(String, Measure)>, Duration),
        queries: Queries,
        clock: Clock,
        metrics: Arc<Metrics>,
        shutdown: watch::Receiver<bool>,
    ) -> Measures {
        Measures(Arc::new(Inner {
            measures,
            interval,
            queries,
            clock,
            metrics,
            latest: Mutex::default(),
            shutdown,
        }))
    }

    /// Measures until the end.
    pub async fn keep(self) {
        if self.0.measures.is_empty() {
            return;
        }
        let mut shutdown = self.0.shutdown.clone();
        loop {
            let started = Instant::now();
            self.round().await;
            let took = started.elapsed();
            let pause = self.0.interval.saturating_sub(took);
            let pause = pause.max(took.saturating_mul(BREAK_TIMES));
            tokio::select! {
                () = stopped(&mut shutdown) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Measures each once.
    pub async fn round(&self) {
        let inner = &self.0;
        for (name, measure) in &inner.measures {
            let (of, now) = (measure.clone(), inner.clock.now_unix_ns());
            let bounds = (NODES_MAX, CELLS_MAX);
            let work = move |store: &dyn crate::store::StoreQueries,
                             limits: &crate::store::Limits| {
                readings(store, &of, now, limits)
            };
            let measured = inner.queries.evaluate(QUERY_TIMEOUT, bounds, work).await;
            let latest = match &measured {
                Ok(readings) => {
                    inner.metrics.measurements.inc();
                    Some(Latest::of(readings))
                }
                Err(_) => {
                    inner.metrics.measurements_failed.inc();
                    None
                }
            };
            let before = lock(&inner.latest).insert(name.clone(), latest);
            if let Err(status) = measured
                && before.is_none_or(|before| before.is_some())
            {
                tracing::warn!(
                    measure = name,
                    error = status.message(),
                    "a measure has no value"
                );
            }
        }
    }

    /// The metrics.
    pub fn families(&self) -> Vec<Family> {
        metrics::gather(MEASURED, &*self.0).collect()
    }
}

impl Latest {
    fn of(readings: &Readings) -> Latest {
        let groups = readings.groups.iter();
        let known = groups.filter(|(_, reading)| reading.missing.is_empty());
        let busy = known.filter(|(_, reading)| !reading.is_idle);
        let mut values: Vec<(&String, f64)> = busy.map(|(group, r)| (group, r.low)).collect();
        values.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(b.0)));
        let dropped = values.len().saturating_sub(MEASURED_GROUPS_MAX);
        values.truncate(MEASURED_GROUPS_MAX);
        let unknown = readings.groups.values();
        Latest {
            at: Instant::now(),
            values: values
                .into_iter()
                .map(|(group, value)| (group.clone(), value))
                .collect(),
            unknown: unknown.filter(|r| !r.missing.is_empty()).count() as u64,
            dropped: dropped as u64,
        }
    }
}

impl Inner {
    /// Reads what is fresh: a number that nobody renews any more would pass for the present.
    fn each<T>(&self, make: impl Fn(&str, &Measure, &Latest) -> Vec<T>) -> Vec<T> {
        let latest = lock(&self.latest);
        let of = |(name, measure): &(String, Measure)| match latest.get(name) {
            Some(Some(latest)) if latest.at.elapsed() < self.interval * STALE_ROUNDS => {
                make(name, measure, latest)
            }
            _ => Vec::new(),
        };
        self.measures.iter().flat_map(of).collect()
    }

    fn values(&self, is_of: fn(&Measure) -> bool, factor: f64) -> Vec<(LabelSet, Value)> {
        self.each(|name, measure, latest| {
            let values = latest.values.iter().filter(|_| is_of(measure));
            values
                .map(|(group, value)| (labels(name, measure, group), Value::Real(value * factor)))
                .collect()
        })
    }

    fn counts(&self, of: fn(&Latest) -> u64) -> Vec<(String, u64)> {
        self.each(|name, _, latest| vec![(name.to_owned(), of(latest))])
    }
}

/// The labels of a group, with names that Prometheus takes.
fn labels(name: &str, measure: &Measure, group: &str) -> LabelSet {
    let mut set: LabelSet = vec![("measure".into(), name.to_owned().into())];
    let mut taken = BTreeSet::from(["measure".to_owned()]);
    let mut add = |label: &str, value: &str| {
        let label = label_name(label);
        // Of two labels whose names become the same, the first counts.
        if taken.insert(label.clone()) {
            set.push((label.into(), value.to_owned().into()));
        }
    };
    // The group first: it tells one number from another.
    if let Some(by) = &measure.by {
        add(by, group);
    }
    for (label, value) in measure.labels(group) {
        if Some(&label) != measure.by.as_ref() {
            add(&label, &value);
        }
    }
    set
}

/// A label's name as Prometheus takes it: small letters, digits and `_`.
fn label_name(label: &str) -> String {
    let plain = |c: char| match c.to_ascii_lowercase() {
        c if c.is_ascii_lowercase() || c.is_ascii_digit() => c,
        _ => '_',
    };
    let name: String = label.chars().map(plain).collect();
    match name.starts_with(|c: char| c.is_ascii_lowercase()) && name != "measure" {
        true => name,
        false => format!("label_{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MeasureEntry;

    fn measure(by: &str, selector: &str) -> Measure {
        let entry = MeasureEntry {
            name: "cpu".to_owned(),
            by: by.to_owned(),
            selector: selector.to_owned(),
            ..MeasureEntry::default()
        };
        entry.parse().expect("valid")
    }

    fn names(set: &LabelSet) -> Vec<(&str, &str)> {
        set.iter()
            .map(|(name, value)| (&**name, &**value))
            .collect()
    }

    #[test]
    fn a_number_has_the_labels_that_are_certain() {
        let of = measure("unit", "zone=a,host=~\"w.*\"");
        let set = labels("cpu", &of, "api.service");
        let expected = [("measure", "cpu"), ("unit", "api.service"), ("zone", "a")];
        assert_eq!(names(&set), expected);
        // What has no unit is a number as well.
        let expected = [("measure", "cpu"), ("unit", ""), ("zone", "a")];
        assert_eq!(names(&labels("cpu", &of, "")), expected);
    }

    #[test]
    fn labels_have_names_that_prometheus_takes() {
        for (label, name) in [
            ("unit", "unit"),
            ("app.kubernetes.io/name", "app_kubernetes_io_name"),
            ("9lives", "label_9lives"),
            ("__name__", "label___name__"),
            ("measure", "label_measure"),
            ("Größe", "gr__e"),
        ] {
            assert_eq!(label_name(label), name);
        }
        let of = measure("a.b", "a_b=x");
        let set = labels("cpu", &of, "y");
        assert_eq!(names(&set), [("measure", "cpu"), ("a_b", "y")]);
    }

    #[test]
    fn what_is_not_known_is_counted_and_not_shown() {
        let idle = Reading {
            is_idle: true,
            ..Reading::known(7.0)
        };
        let groups = BTreeMap::from([
            ("known".to_owned(), Reading::known(2.5)),
            (
                "lost".to_owned(),
                Reading::unknown("the host sends nothing"),
            ),
            ("idle".to_owned(), idle),
        ]);
        let absent = Reading::known(0.0);
        let latest = Latest::of(&Readings { groups, absent });
        assert_eq!(latest.values, BTreeMap::from([("known".to_owned(), 2.5)]));
        assert_eq!((latest.unknown, latest.dropped), (1, 0));
    }

    #[test]
    fn of_too_many_groups_the_largest_stay() {
        let many = MEASURED_GROUPS_MAX + 3;
        let one = |at: usize| (format!("g{at}"), Reading::known(at as f64));
        let groups: BTreeMap<String, Reading> = (0..many).map(one).collect();
        let absent = Reading::known(0.0);
        let latest = Latest::of(&Readings { groups, absent });
        assert_eq!(
            (latest.values.len(), latest.dropped),
            (MEASURED_GROUPS_MAX, 3)
        );
        assert!(!latest.values.contains_key("g2") && latest.values.contains_key("g3"));
    }
}
