//! Section `metrics`: what the daemon serves to scrapers.

use super::Config;
use config::{Key, Kind, Reload, Value, as_text, put_word, socket_address, word};
use serde::Serialize;

/// By what CPU time stands in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CpuMetrics {
    /// Not at all.
    #[default]
    None,
    /// By systemd unit.
    Unit,
    /// By systemd unit and container.
    Container,
}

const CPU: &[(CpuMetrics, &str)] = &[
    (CpuMetrics::None, "none"),
    (CpuMetrics::Unit, "unit"),
    (CpuMetrics::Container, "container"),
];

/// Section `metrics`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Metrics {
    /// Address to listen on; `None`: it does not listen.
    pub listen: Option<std::net::SocketAddr>,
    /// By what CPU time stands in them.
    pub cpu_by: CpuMetrics,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            listen: Some(([127, 0, 0, 1], 9095).into()),
            cpu_by: CpuMetrics::None,
        }
    }
}

/// The key `metrics.listen`.
pub(super) const fn listen_key() -> Key<Config> {
    Key {
        path: "metrics.listen",
        kind: Kind::LoopbackOrNull,
        unit: "",
        reload: Reload::Restart,
        doc: "Address to serve /metrics and /healthz over HTTP; null: do not serve them. There is \
            no authentication, so it must be on loopback.",
        get: |c| {
            c.metrics
                .listen
                .map_or(Value::Null, |at| Value::Text(at.to_string()))
        },
        put: |c, v| c.metrics.listen = as_text(&v).and_then(socket_address),
    }
}

/// The key `metrics.cpu_by`.
pub(super) const fn cpu_by_key() -> Key<Config> {
    Key {
        path: "metrics.cpu_by",
        kind: Kind::Word(&["none", "unit", "container"]),
        unit: "",
        reload: Reload::Live,
        doc: "CPU time in /metrics by systemd unit, or by unit and container, as the kernel \
            accounts it: fleetprof_unit_cpu_seconds_total. Each of up to 1,000 is a series of \
            its own; the rest is fleetprof_unit_cpu_rest_seconds_total.",
        get: |c| word(&c.metrics.cpu_by, CPU),
        put: |c, v| put_word(&mut c.metrics.cpu_by, &v, CPU),
    }
}
