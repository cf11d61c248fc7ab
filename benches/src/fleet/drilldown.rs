//! What one view of Grafana's Profiles Drilldown asks: the services, their labels, a graph by
//! service and a flame graph.

use anyhow::ensure;
use proto::agent::TimeRange;
use serde_json::json;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

/// Labels whose values are asked for.
const LABELS: [&str; 6] = [
    "service_name",
    "host",
    "unit",
    "namespace",
    "container",
    "comm",
];

/// Asks for all of it, one after the other; returns the bytes of the answers.
///
/// # Errors
/// When an answer is none of success.
pub fn view(address: &str, range: TimeRange) -> anyhow::Result<usize> {
    let (start, end) = (
        range.start_unix_ns / 1_000_000,
        range.end_unix_ns / 1_000_000,
    );
    let matchers = [format!("{{__profile_type__=\"{CPU}\",}}")];
    let times = json!({"matchers": matchers, "start": start, "end": end});
    let of = json!({"profileTypeID": CPU, "labelSelector": "{}", "start": start, "end": end});
    let with = |of: &serde_json::Value, more: serde_json::Value| {
        let mut all = of.clone();
        if let (Some(all), Some(more)) = (all.as_object_mut(), more.as_object()) {
            all.extend(more.clone());
        }
        all
    };
    let mut calls = vec![
        ("GetProfileStats", json!({})),
        (
            "Series",
            with(
                &times,
                json!({"labelNames": ["service_name", "__profile_type__"]}),
            ),
        ),
        ("LabelNames", times.clone()),
    ];
    calls.extend(LABELS.map(|name| ("LabelValues", with(&times, json!({"name": name})))));
    calls.push((
        "SelectSeries",
        with(
            &of,
            json!({"groupBy": ["service_name"], "step": 15, "limit": 10}),
        ),
    ));
    calls.push((
        "SelectMergeStacktraces",
        with(&of, json!({"maxNodes": 16_384})),
    ));
    let mut bytes = 0;
    for (call, body) in calls {
        bytes += post(address, call, &body.to_string())?;
    }
    Ok(bytes)
}

fn post(address: &str, call: &str, body: &str) -> anyhow::Result<usize> {
    let mut stream = TcpStream::connect(address)?;
    write!(
        stream,
        "POST /querier.v1.QuerierService/{call} HTTP/1.1\r\nHost: {address}\r\n\
         Connection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let head = String::from_utf8_lossy(&answer[..answer.len().min(200)]);
    ensure!(
        head.starts_with("HTTP/1.1 200 "),
        "the answer to {call} is {head}"
    );
    Ok(answer.len())
}
