//! What captures recorded as profile types: over our own calls, downloads and Pyroscope's API, with
//! the sums of the capture's own export.

use crate::captures::{fleet, request};
use crate::pyroscope::{answered, decoded, graph};
use crate::rig::{LIMIT, NOW, Rig, SECOND, window};
use crate::web::get;
use collector::pyroscope::querier::v1 as pyroscope;
use proto::agent::TimeRange;
use proto::collector::{
    CgroupsRequest, DeleteFleetCaptureRequest, LabelNamesRequest, LabelValuesRequest,
    ProfileTypesRequest, Selection, SeriesRequest, TopRequest,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use testkit::fake::control::{ConnectedAgent, Does};
use tonic::Code;

const WAITS: &str = "captured:off_cpu:nanoseconds:off_cpu:nanoseconds";
/// Agents of these tests weigh everything in time.
const SWITCHES: &str = "captured:tracepoint/sched/sched_switch:nanoseconds:\
                        tracepoint/sched/sched_switch:nanoseconds";
const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const MS: i64 = 1_000_000;

/// Captures an event on all hosts, with all labels; its number.
async fn captured(rig: &Rig, event: &str) -> u64 {
    let mut asked = request("", LIMIT);
    let capture = asked.capture.as_mut().expect("one");
    capture.event = event.to_owned();
    capture.group_by = vec!["*".to_owned()];
    let result = rig.capture(asked).await.result;
    assert!(result.kept, "{result:?}");
    result.id
}

/// Two hosts whose waits were captured a minute ago, and the number of the capture.
async fn filled() -> (Rig, Vec<ConnectedAgent>, u64) {
    let rig = Rig::start().await;
    let fleet = fleet(&rig, 2, |at| Does::Answers(4 + at as u64)).await;
    let id = captured(&rig, "off-cpu").await;
    rig.clock.fetch_add(60 * SECOND, Ordering::Relaxed);
    (rig, fleet, id)
}

fn range() -> Option<TimeRange> {
    Some(TimeRange {
        start_unix_ns: NOW - 3600 * SECOND,
        end_unix_ns: NOW + 100 * SECOND,
    })
}

fn of(profile_type: &str) -> Option<Selection> {
    Some(Selection {
        range: range(),
        profile_type: profile_type.to_owned(),
        ..Selection::default()
    })
}

async fn types(rig: &Rig) -> Vec<String> {
    let request = ProfileTypesRequest { range: range() };
    let answer = rig.queries().await.profile_types(request).await;
    answer.expect("an answer").into_inner().ids
}

/// The folded stacks of a download.
async fn folded(rig: &Rig, path: &str) -> BTreeMap<String, i64> {
    let reply = get(rig, path).await;
    assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    let text = reply.text();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .map(|(stack, count)| (stack.to_owned(), count.parse().expect("a count")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn types_are_there_while_captures_of_them_are_kept() {
    let (rig, _fleet, id) = filled().await;
    assert_eq!(types(&rig).await, [WAITS]);
    captured(&rig, "tracepoint:sched:sched_switch").await;
    rig.clock.fetch_add(30 * SECOND, Ordering::Relaxed);
    assert_eq!(types(&rig).await, [WAITS, SWITCHES]);
    let delete = DeleteFleetCaptureRequest { id };
    rig.captures().await.delete(delete).await.expect("deleted");
    assert_eq!(types(&rig).await, [SWITCHES]);
    let early = ProfileTypesRequest {
        range: Some(TimeRange {
            start_unix_ns: NOW - 3600 * SECOND,
            end_unix_ns: NOW - 1800 * SECOND,
        }),
    };
    let answer = rig.queries().await.profile_types(early).await;
    assert_eq!(answer.expect("an answer").into_inner().ids, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_without_captures_lists_none() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    agent.store_part(window(350, &["main"]), &["main"]).await;
    assert_eq!(types(&rig).await, [""; 0]);
    let found = answered(&rig, "ProfileTypes", "").await;
    let found = found["profileTypes"].as_array().expect("types").len();
    assert_eq!(found, 1, "CPU alone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sums_are_those_of_the_captures_own_export() {
    let (rig, _fleet, id) = filled().await;
    let own = folded(&rig, &format!("/api/capture.folded?id={id}")).await;
    assert_eq!(own.values().sum::<i64>(), 90, "{own:?}");
    let by_type = format!("/api/profile.folded?from=0&type={WAITS}");
    assert_eq!(folded(&rig, &by_type).await, own);
    let request = pyroscope::SelectMergeStacktracesRequest {
        profile_type_id: WAITS.to_owned(),
        label_selector: "{}".to_owned(),
        start: NOW / MS - 3_600_000,
        end: NOW / MS + 60_000,
        ..pyroscope::SelectMergeStacktracesRequest::default()
    };
    let found: pyroscope::SelectMergeStacktracesResponse =
        decoded(&rig, "SelectMergeStacktraces", &request).await;
    assert_eq!(graph(found.flamegraph.expect("a flame graph")), own);
    let request = TopRequest {
        selection: of(WAITS),
        ..TopRequest::default()
    };
    let top = rig.queries().await.top(request).await.expect("an answer");
    let top = top.into_inner();
    let rows = top.rows.iter().map(|row| row.self_weight).sum::<u64>();
    let quality = top.quality.expect("a quality");
    assert_eq!((rows, quality.hosts), (90, 2));
    let request = SeriesRequest {
        selection: of(WAITS),
        group_by: vec!["host".to_owned()],
        ..SeriesRequest::default()
    };
    let series = rig
        .queries()
        .await
        .series(request)
        .await
        .expect("an answer");
    let lines = series.into_inner().lines;
    let lines: Vec<_> = lines
        .iter()
        .map(|line| (line.labels["host"].as_str(), line.total_weight))
        .collect();
    assert_eq!(lines, [("web-001", 50), ("web-000", 40)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_captured_is_never_cpu_of_agents() {
    let (rig, _fleet, _) = filled().await;
    let cpu = async || {
        let request = TopRequest {
            selection: of(""),
            ..TopRequest::default()
        };
        let top = rig.queries().await.top(request).await.expect("an answer");
        top.into_inner().quality.expect("a quality").total_count
    };
    let before = cpu().await;
    assert!(before > 0, "agents sent some");
    captured(&rig, "cpu-clock").await;
    assert_eq!(cpu().await, before);
    let refused = CgroupsRequest {
        selection: of(WAITS),
    };
    let refused = rig.queries().await.cgroups(refused).await;
    assert_eq!(refused.expect_err("refused").code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completion_knows_the_labels_of_captures() {
    let (rig, _fleet, _) = filled().await;
    let mut queries = rig.queries().await;
    let names = LabelNamesRequest {
        selection: of(WAITS),
    };
    let names = queries.label_names(names).await.expect("an answer");
    assert_eq!(names.into_inner().names, ["comm", "host", "region"]);
    let values = LabelValuesRequest {
        selection: of(WAITS),
        name: "host".to_owned(),
        ..LabelValuesRequest::default()
    };
    let values = queries.label_values(values).await.expect("an answer");
    assert_eq!(values.into_inner().values, ["web-000", "web-001"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grafana_finds_types_labels_and_series_of_captures() {
    let (rig, _fleet, _) = filled().await;
    captured(&rig, "tracepoint:sched:sched_switch").await;
    rig.clock.fetch_add(30 * SECOND, Ordering::Relaxed);
    let (start, end) = (NOW / MS - 3_600_000, NOW / MS + 100_000);
    let times = format!(r#""start":{start},"end":{end}"#);
    let found = answered(&rig, "ProfileTypes", &format!("{{{times}}}")).await;
    let found = found["profileTypes"].as_array().expect("types");
    let ids: Vec<_> = found.iter().map(|of| of["ID"].as_str()).collect();
    assert_eq!(ids, [Some(WAITS), Some(SWITCHES), Some(CPU)]);
    let matcher = format!(r#"{{__profile_type__=\"{WAITS}\",}}"#);
    let body = format!(r#"{{"name":"host","matchers":["{matcher}"],{times}}}"#);
    let hosts = answered(&rig, "LabelValues", &body).await;
    assert_eq!(hosts, json!({"names": ["web-000", "web-001"]}));
    let body = format!(r#"{{"name":"service_name","matchers":["{matcher}"],{times}}}"#);
    let services = answered(&rig, "LabelValues", &body).await;
    assert_eq!(
        services,
        json!({"names": ["api"]}),
        "by the labels of agents"
    );
    let body = format!(r#"{{"matchers":["{matcher}"],{times}}}"#);
    let names = answered(&rig, "LabelNames", &body).await;
    for name in ["host", "comm", "service_name", "__profile_type__"] {
        let names = names["names"].as_array().expect("names");
        assert!(names.contains(&json!(name)), "{name}: {names:?}");
    }
    let body = format!(
        r#"{{"labelNames":["service_name","__profile_type__"],"matchers":["{matcher}"],{times}}}"#
    );
    let series = answered(&rig, "Series", &body).await;
    let pair = |name: &str, value: &str| json!({"name": name, "value": value});
    let labels = [pair("__profile_type__", WAITS), pair("service_name", "api")];
    assert_eq!(series, json!({"labelsSet": [{"labels": labels}]}));
    let body = format!(
        r#"{{"profileTypeID":"{WAITS}","labelSelector":"{{}}","step":20,"groupBy":["host"],{times}}}"#
    );
    let series = answered(&rig, "SelectSeries", &body).await;
    let series = series["series"].as_array().expect("series");
    let values = series.iter().map(|line| {
        let points = line["points"].as_array().expect("points");
        let values = points.iter().filter_map(|point| point["value"].as_f64());
        values.sum::<f64>()
    });
    assert_eq!(values.collect::<Vec<_>>(), [40.0, 50.0]);
}
