//! Encodes families as text with prometheus-client, as OpenMetrics 1.0 or as Prometheus' text
//! 0.0.4.

use super::{Family, Kind, Value};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::fmt;

/// A form of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' text, version 0.0.4: what people and promtool read.
    Text,
    /// OpenMetrics 1.0: what Prometheus asks for.
    OpenMetrics,
}

impl Format {
    /// The form for who sends this `Accept` header: OpenMetrics where it is named, as all client
    /// libraries of Prometheus do.
    pub fn accepted(accept: Option<&str>) -> Format {
        let kinds = accept.into_iter().flat_map(|accept| accept.split(','));
        let mut names = kinds.map(|kind| kind.split(';').next().unwrap_or_default().trim());
        match names.any(|name| name.eq_ignore_ascii_case("application/openmetrics-text")) {
            true => Format::OpenMetrics,
            false => Format::Text,
        }
    }

    /// Its `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Text => prometheus_text::CONTENT_TYPE,
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Everything as text, families by name.
pub fn encode(mut families: Vec<Family>, format: Format) -> String {
    families.sort_by(|a, b| a.name.cmp(&b.name));
    let mut registry = Registry::default();
    let mut out = String::new();
    registry.register_collector(Box::new(Gathered { families, format }));
    // Writing to a String cannot fail.
    let _ = match format {
        Format::Text => prometheus_text::encode(&mut out, &registry),
        Format::OpenMetrics => text::encode(&mut out, &registry),
    };
    out
}

#[derive(Debug)]
struct Gathered {
    families: Vec<Family>,
    format: Format,
}

impl Collector for Gathered {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let names: BTreeSet<&str> = self.families.iter().map(|family| &*family.name).collect();
        for family in &self.families {
            let (name, metric_type) = match family.kind {
                Kind::Gauge => (&*family.name, MetricType::Gauge),
                Kind::Histogram => (&*family.name, MetricType::Histogram),
                Kind::Counter | Kind::CounterNs => {
                    // The encoder adds `_total` again.
                    let bare = family.name.trim_end_matches("_total");
                    // In OpenMetrics a counter takes the name without its ending. Where a gauge has
                    // that one (`…_pins` and `…_pins_total`), its kind is left open.
                    match self.format == Format::OpenMetrics && names.contains(bare) {
                        true => (&*family.name, MetricType::Unknown),
                        false => (bare, MetricType::Counter),
                    }
                }
            };
            let mut encoder = encoder.encode_descriptor(name, family.help, None, metric_type)?;
            for (labels, value) in &family.readings {
                let encoder = encoder.encode_family(labels)?;
                encode_value(encoder, value, family.kind, metric_type)?;
            }
        }
        Ok(())
    }
}

fn encode_value(
    mut encoder: MetricEncoder,
    value: &Value,
    kind: Kind,
    metric_type: MetricType,
) -> fmt::Result {
    match value {
        Value::Histogram(histogram) => histogram.encode(encoder),
        Value::Number(ns) if kind == Kind::CounterNs => {
            let seconds = *ns as f64 / 1e9;
            encoder.encode_counter::<NoLabelSet, f64, f64>(&seconds, None)
        }
        Value::Number(value) if metric_type == MetricType::Counter => {
            encoder.encode_counter::<NoLabelSet, u64, f64>(value, None)
        }
        Value::Number(value) => encoder.encode_gauge(value),
        Value::Real(value) => encoder.encode_gauge(value),
    }
}
