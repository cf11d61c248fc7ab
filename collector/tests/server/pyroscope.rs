//! Pyroscope's API: what Grafana's data source and Profiles Drilldown send, and what they get.
//!
//! The bodies are those that these programs send, spellings included. The client over three
//! protocols is buf, which speaks with the library that Grafana's backend has.

use crate::program::Program;
use crate::rig::{PushStream, Rig, channel, hello, labels, starting, window};
use crate::web::{Reply, frames, get, raw, send};
use collector::pyroscope::messages::v1 as messages;
use collector::pyroscope::querier::v1 as wire;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use testkit::clock::unix_ns;

const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";
const QUERIER: &str = "/querier.v1.QuerierService";

/// When the first window of a rig starts and the last ends. Unit: milliseconds.
const START_MS: i64 = 1_700_000_000_000 - 3_600_000;
const END_MS: i64 = 1_700_000_000_000;

/// A service of systemd on two hosts, and a container on one of them that has no unit.
async fn filled() -> Rig {
    let rig = Rig::start().await;
    let stacks = ["main;parse;read", "main;parse", "main;write", "idle"];
    for host in ["a", "b"] {
        let mut agent = rig.agent(host).await;
        let mut part = window(1, &stacks);
        part.sample_counts = vec![4, 3, 2, 1];
        let ack = agent.store_part(part, &stacks).await;
        assert_eq!(ack.reason, "");
        let mut part = window(3, &stacks[..1]);
        part.label_sets = vec![labels(&[("container", "c1"), ("comm", "java")])];
        part.facts
            .as_mut()
            .expect("facts")
            .account_label_sets
            .clear();
        part.facts.as_mut().expect("facts").account_ns.clear();
        part.facts
            .as_mut()
            .expect("facts")
            .account_estimated_ns
            .clear();
        let ack = agent.store_part(part, &stacks[..1]).await;
        assert_eq!(ack.reason, "");
    }
    rig
}

/// Drilldown's way: JSON through Grafana's proxy.
async fn json_call(rig: &Rig, method: &str, body: &str) -> (u16, Value) {
    let headers = "Content-Type: application/json\r\n";
    let reply = send(rig, "POST", &format!("{QUERIER}/{method}"), headers, body).await;
    let kind = reply.header("content-type");
    assert_eq!(kind, Some("application/json"), "{method}: {}", reply.head);
    let value = serde_json::from_slice(&reply.body);
    (
        reply.status,
        value.unwrap_or_else(|error| panic!("{method}: {error}")),
    )
}

pub async fn answered(rig: &Rig, method: &str, body: &str) -> Value {
    let (status, value) = json_call(rig, method, body).await;
    assert_eq!(status, 200, "{method} {body}: {value}");
    value
}

/// The data source's way: protocol buffers.
async fn proto_call(rig: &Rig, method: &str, headers: &str, body: &[u8]) -> Reply {
    let head = format!(
        "POST {QUERIER}/{method} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/proto\r\n{headers}Content-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    raw(rig.http, &[head.as_bytes(), body].concat()).await
}

pub async fn decoded<T: Message + Default>(rig: &Rig, method: &str, request: &impl Message) -> T {
    let reply = proto_call(rig, method, "", &request.encode_to_vec()).await;
    assert_eq!(reply.status, 200, "{method}: {}", reply.text());
    assert_eq!(reply.header("content-type"), Some("application/proto"));
    T::decode(&reply.body[..]).expect("a message")
}

fn stacks_of(selector: &str) -> wire::SelectMergeStacktracesRequest {
    wire::SelectMergeStacktracesRequest {
        profile_type_id: CPU.to_owned(),
        label_selector: selector.to_owned(),
        start: START_MS,
        end: END_MS,
        max_nodes: Some(16_384),
        ..wire::SelectMergeStacktracesRequest::default()
    }
}

/// The folded stacks of a flame graph, read as Grafana's backend does: by level, each bar from the
/// end of the bar before it, a child of the bar above that it lies in. It panics where that does.
fn unfolded(names: &[String], levels: &[Vec<i64>]) -> BTreeMap<String, i64> {
    struct Bar {
        start: i64,
        end: i64,
        path: String,
    }
    assert_eq!(
        names[levels[0][3] as usize], names[0],
        "the root has the first name"
    );
    let mut stacks = BTreeMap::new();
    let mut above: Vec<Bar> = Vec::new();
    for (depth, level) in levels.iter().enumerate() {
        let (mut end, mut bars, mut covered) = (0, Vec::new(), BTreeMap::<usize, i64>::new());
        for bar in level.chunks(4) {
            let [distance, total, own, name] = *bar else {
                panic!("a bar of {} numbers", bar.len());
            };
            assert!(distance >= 0 && own >= 0 && total >= own, "{bar:?}");
            let start = end + distance;
            end = start + total;
            let name = &names[usize::try_from(name).expect("an index")];
            let path = if depth == 0 {
                String::new()
            } else {
                let parent = above
                    .iter()
                    .position(|bar| bar.start <= start && end <= bar.end);
                let parent = parent.expect("a bar above");
                *covered.entry(parent).or_default() += total;
                match above[parent].path.as_str() {
                    "" => name.clone(),
                    path => format!("{path};{name}"),
                }
            };
            if own > 0 {
                assert!(stacks.insert(path.clone(), own).is_none(), "{path} twice");
            }
            bars.push(Bar { start, end, path });
        }
        for (parent, total) in covered {
            assert!(total <= above[parent].end - above[parent].start);
        }
        above = bars;
    }
    stacks
}

pub fn graph(found: wire::FlameGraph) -> BTreeMap<String, i64> {
    let levels: Vec<_> = found.levels.into_iter().map(|level| level.values).collect();
    let stacks = unfolded(&found.names, &levels);
    assert_eq!(stacks.values().sum::<i64>(), found.total);
    assert_eq!(stacks.values().max().copied().unwrap_or(0), found.max_self);
    stacks
}

/// Our own export of a selection.
async fn exported(rig: &Rig, selector: &str) -> BTreeMap<String, i64> {
    let reply = get(rig, &format!("/api/profile.folded?from=0&{selector}")).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = reply.text();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .map(|(stack, count)| (stack.to_owned(), count.parse().expect("a count")))
        .collect()
}

#[tokio::test]
async fn a_page_of_drilldown_is_answered() {
    let rig = filled().await;
    let (start, end) = (START_MS, END_MS);
    let stats = answered(&rig, "GetProfileStats", "{}").await;
    assert_eq!(stats["dataIngested"], true);
    let series = answered(
        &rig,
        "Series",
        &format!(
            r#"{{"start":{start},"end":{end},
                "labelNames":["service_name","__profile_type__"],"matchers":[]}}"#
        ),
    )
    .await;
    let pair = |service: &str| {
        json!({"labels": [
            {"name": "__profile_type__", "value": CPU},
            {"name": "service_name", "value": service},
        ]})
    };
    assert_eq!(
        series,
        json!({"labelsSet": [pair("c1"), pair("web.service")]})
    );
    let matcher = r#"{__profile_type__=\"process_cpu:cpu:nanoseconds:cpu:nanoseconds\",service_name=\"web.service\",}"#;
    let names = answered(
        &rig,
        "LabelNames",
        &format!(r#"{{"matchers":["{matcher}"],"start":{start},"end":{end}}}"#),
    )
    .await;
    let names = names["names"].as_array().expect("names");
    for name in ["service_name", "__profile_type__", "host", "unit"] {
        assert!(names.contains(&json!(name)), "{name}: {names:?}");
    }
    let hosts = answered(
        &rig,
        "LabelValues",
        &format!(r#"{{"name":"host","matchers":["{matcher}"],"start":{start},"end":{end}}}"#),
    )
    .await;
    assert_eq!(hosts, json!({"names": ["a", "b"]}));
}

#[tokio::test]
async fn the_health_check_of_1970_is_answered_with_nothing() {
    let rig = filled().await;
    let check = wire::ProfileTypesRequest {
        start: 1000,
        end: 4000,
    };
    let found: wire::ProfileTypesResponse = decoded(&rig, "ProfileTypes", &check).await;
    assert_eq!(found.profile_types, []);
}

#[tokio::test]
async fn older_versions_ask_without_times_and_without_a_body() {
    let rig = filled().await;
    let reply = proto_call(&rig, "ProfileTypes", "Content-Encoding: gzip\r\n", b"").await;
    let found = wire::ProfileTypesResponse::decode(&reply.body[..]).expect("a message");
    let ids: Vec<_> = found
        .profile_types
        .iter()
        .map(|of| of.id.as_str())
        .collect();
    assert_eq!((reply.status, ids), (200, vec![CPU]));
    assert_eq!(
        answered(&rig, "ProfileTypes", "").await["profileTypes"][0]["ID"],
        CPU
    );
}

#[tokio::test]
async fn variables_of_dashboards_name_the_type_as_a_metric() {
    let rig = filled().await;
    let of = |matcher: &str, name: &str| {
        json!({"name": name, "matchers": [matcher], "start": START_MS, "end": END_MS}).to_string()
    };
    let id = format!("{CPU}{{}}");
    let found = answered(&rig, "LabelValues", &of(&id, "service_name")).await;
    assert_eq!(found, json!({"names": ["c1", "web.service"]}));
    let other = "memory:inuse_space:bytes:space:bytes{}";
    let found = answered(&rig, "LabelValues", &of(other, "service_name")).await;
    assert_eq!(found, json!({}), "nothing of another type");
    let found = answered(&rig, "LabelValues", &of("{}", "__profile_type__")).await;
    assert_eq!(found, json!({"names": [CPU]}));
}

#[tokio::test]
async fn flame_graphs_have_the_stacks_of_our_own_export() {
    let rig = filled().await;
    for (selector, own) in [
        ("{}", "selector="),
        ("", "selector="),
        (
            r#"{service_name="web.service",}"#,
            "selector=unit%3Dweb.service",
        ),
        (r#"{service_name="c1"}"#, "selector=container%3Dc1"),
        (r#"{service_name=~".*", host="a"}"#, "selector=host%3Da"),
        (r#"{service_name!="c1"}"#, "selector=container!%3Dc1"),
    ] {
        let found: wire::SelectMergeStacktracesResponse =
            decoded(&rig, "SelectMergeStacktraces", &stacks_of(selector)).await;
        let found = graph(found.flamegraph.expect("a flame graph"));
        assert!(!found.is_empty(), "{selector}");
        assert_eq!(found, exported(&rig, own).await, "{selector}");
    }
}

#[tokio::test]
async fn a_selection_without_samples_is_a_root_without_value() {
    let rig = filled().await;
    let mut of_other = stacks_of("{}");
    of_other.profile_type_id = "memory:inuse_space:bytes:space:bytes".to_owned();
    let mut of_spans = stacks_of("{}");
    of_spans.span_selector = vec!["00f067aa0ba902b7".to_owned()];
    for request in [stacks_of(r#"{service_name="none"}"#), of_other, of_spans] {
        let found: wire::SelectMergeStacktracesResponse =
            decoded(&rig, "SelectMergeStacktraces", &request).await;
        let found = found.flamegraph.expect("a flame graph");
        assert_eq!(found.names, ["total"]);
        assert_eq!(found.levels[0].values, [0, 0, 0, 0]);
    }
}

#[tokio::test]
async fn series_have_a_point_for_each_step_with_data() {
    let rig = filled().await;
    let request = json!({
        "profile_typeID": CPU, "label_selector": "{}", "start": START_MS, "end": START_MS + 60_000,
        "step": 10, "group_by": ["service_name"], "aggregation": "TIME_SERIES_AGGREGATION_TYPE_SUM",
        "exemplar_type": 2,
    });
    let found = answered(&rig, "SelectSeries", &request.to_string()).await;
    let point = |at: i64, value: i64| {
        let mut point = json!({"timestamp": (START_MS + at * 1000).to_string()});
        if value > 0 {
            point["value"] = json!(value as f64);
        }
        point
    };
    let line = |name: &str, first: i64, second: i64| {
        json!({
            "labels": [{"name": "service_name", "value": name}],
            "points": [point(20, first), point(40, second)],
        })
    };
    // Window 1 is from 10 s to 20 s, window 3 from 30 s to 40 s. Each is of two hosts. A sample is
    // 10 ns.
    assert_eq!(
        found,
        json!({"series": [line("c1", 0, 20), line("web.service", 200, 0)]})
    );
}

#[tokio::test]
async fn a_call_site_keeps_what_it_calls() {
    let rig = filled().await;
    let mut request = stacks_of("{}");
    let site = ["main", "parse"].map(|name| messages::Location {
        name: name.to_owned(),
    });
    request.stack_trace_selector = Some(messages::StackTraceSelector {
        call_site: site.to_vec(),
        ..messages::StackTraceSelector::default()
    });
    let found: wire::SelectMergeStacktracesResponse =
        decoded(&rig, "SelectMergeStacktraces", &request).await;
    let found = graph(found.flamegraph.expect("a flame graph"));
    assert_eq!(
        found.into_keys().collect::<Vec<_>>(),
        ["main;parse", "main;parse;read"]
    );
}

#[tokio::test]
async fn both_diffs_are_of_one_shape_and_say_both_totals() {
    let rig = filled().await;
    let request = wire::DiffRequest {
        left: Some(stacks_of(r#"{service_name="web.service"}"#)),
        right: Some(stacks_of(r#"{service_name="c1"}"#)),
    };
    let found: wire::DiffResponse = decoded(&rig, "Diff", &request).await;
    let found = found.flamegraph.expect("a flame graph");
    assert_eq!(
        (found.left_ticks, found.right_ticks, found.total),
        (200, 20, 220)
    );
    let query = |name: &str| format!("{CPU}%7Bservice_name%3D%22{name}%22%7D");
    let page = get(
        &rig,
        &format!(
            "/pyroscope/render-diff?leftQuery={}&leftFrom={START_MS}&leftUntil={END_MS}\
             &rightQuery={}&rightFrom={START_MS}&rightUntil={END_MS}&max-nodes=16384",
            query("web.service"),
            query("c1")
        ),
    )
    .await;
    assert_eq!(page.status, 200, "{}", page.text());
    let page: Value = serde_json::from_slice(&page.body).expect("JSON");
    assert_eq!(
        (&page["leftTicks"], &page["rightTicks"]),
        (&json!(200), &json!(20))
    );
    assert_eq!(page["flamebearer"]["names"], json!(found.names));
    let levels: Vec<_> = found.levels.iter().map(|level| &level.values).collect();
    assert_eq!(page["flamebearer"]["levels"], json!(levels));
    assert_eq!(
        page["metadata"],
        json!({"format": "double", "spyName": "", "sampleRate": 1_000_000_000, "units": "samples",
            "name": "cpu"})
    );
}

#[tokio::test]
async fn render_has_the_flame_graph_and_a_time_line() {
    let rig = filled().await;
    let path = format!("/pyroscope/render?query={CPU}&from={START_MS}&until={END_MS}&format=json");
    let page = get(&rig, &path).await;
    assert_eq!(page.status, 200, "{}", page.text());
    let page: Value = serde_json::from_slice(&page.body).expect("JSON");
    let names: Vec<String> =
        serde_json::from_value(page["flamebearer"]["names"].clone()).expect("names");
    let levels: Vec<Vec<i64>> =
        serde_json::from_value(page["flamebearer"]["levels"].clone()).expect("levels");
    assert_eq!(unfolded(&names, &levels), exported(&rig, "selector=").await);
    let samples = page["timeline"]["samples"].as_array().expect("samples");
    let sum: u64 = samples.iter().filter_map(Value::as_u64).sum();
    assert_eq!(sum, 220);
    let refused = get(&rig, "/pyroscope/render?query=%7B%7D").await;
    assert_eq!(refused.status, 400);
    assert!(
        refused.text().starts_with(r#"{"code":"invalid_argument""#),
        "{}",
        refused.text()
    );
}

#[tokio::test]
async fn pprof_has_the_weight_first_and_no_sample_without_a_place() {
    let rig = filled().await;
    let request = wire::SelectMergeProfileRequest {
        profile_type_id: CPU.to_owned(),
        label_selector: "{}".to_owned(),
        start: START_MS,
        end: END_MS,
        ..wire::SelectMergeProfileRequest::default()
    };
    let reply = proto_call(&rig, "SelectMergeProfile", "", &request.encode_to_vec()).await;
    let found = profile::formats::pprof::decode(&reply.body, u64::MAX - 1).expect("pprof");
    assert_eq!(found.total().weight, 220);
    let text = answered(
        &rig,
        "SelectMergeProfile",
        &json!({"profile_typeID": CPU, "label_selector": "{}", "start": START_MS, "end": END_MS,
            "maxNodes": 500, "stackTraceSelector": {"call_site": [{"name": "main"}]}})
        .to_string(),
    )
    .await;
    let strings = text["stringTable"].as_array().expect("strings");
    let unit = text["sampleType"][0]["unit"].as_str().expect("an index");
    assert_eq!(
        strings[unit.parse::<usize>().expect("a number")],
        "nanoseconds"
    );
    for sample in text["sample"].as_array().expect("samples") {
        assert!(
            sample["locationId"].is_array() && sample["value"][0].is_string(),
            "{sample}"
        );
    }
    for location in text["location"].as_array().expect("locations") {
        assert!(location["line"].is_array(), "{location}");
    }
}

#[tokio::test]
async fn errors_are_json_with_the_status_of_their_code() {
    let rig = filled().await;
    for (method, body, status, code) in [
        (
            "SelectMergeStacktraces",
            r#"{"profileTypeID":"cpu"}"#,
            400,
            "invalid_argument",
        ),
        (
            "LabelNames",
            r#"{"matchers":["{host"]}"#,
            400,
            "invalid_argument",
        ),
        ("LabelNames", r#"{"start":-1}"#, 400, "invalid_argument"),
        (
            "SelectSeries",
            r#"{"profileTypeID":"a:b:c:d:e","step":0}"#,
            400,
            "invalid_argument",
        ),
        ("AnalyzeQuery", "{}", 501, "unimplemented"),
        ("LabelNames", "{", 400, "invalid_argument"),
    ] {
        let (found, error) = json_call(&rig, method, body).await;
        assert_eq!(
            (found, &error["code"]),
            (status, &json!(code)),
            "{method} {body}"
        );
        assert!(
            error["message"]
                .as_str()
                .is_some_and(|text| !text.is_empty())
        );
    }
    let reply = proto_call(&rig, "LabelValues", "", b"").await;
    assert_eq!(
        (reply.status, reply.header("content-type")),
        (400, Some("application/json"))
    );
    let path = "/vcs.v1.VCSService/GithubApp";
    let reply = send(
        &rig,
        "POST",
        path,
        "Content-Type: application/json\r\n",
        "{}",
    )
    .await;
    assert_eq!(reply.status, 501, "a service that older servers lack");
    assert!(
        reply.text().contains(r#""code":"unimplemented""#),
        "{}",
        reply.text()
    );
}

#[tokio::test]
async fn settings_are_none() {
    let rig = Rig::start().await;
    let path = "/settings.v1.SettingsService/Get";
    let reply = send(
        &rig,
        "POST",
        path,
        "Content-Type: application/json\r\n",
        "{}",
    )
    .await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "{}"));
}

#[tokio::test]
async fn requests_and_answers_may_be_packed() {
    let rig = filled().await;
    let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
    packer
        .write_all(&stacks_of("{}").encode_to_vec())
        .expect("packed");
    let body = packer.finish().expect("packed");
    let headers = "Content-Encoding: gzip\r\n";
    let reply = proto_call(&rig, "SelectMergeStacktraces", headers, &body).await;
    let found = wire::SelectMergeStacktracesResponse::decode(&reply.body[..]).expect("a message");
    assert_eq!(
        graph(found.flamegraph.expect("one")),
        exported(&rig, "selector=").await
    );
    let reply = proto_call(&rig, "ProfileTypes", "Content-Encoding: br\r\n", b"x").await;
    assert_eq!(reply.status, 501, "{}", reply.text());
}

#[tokio::test]
async fn hostile_requests_are_refused_and_nothing_else_ends() {
    let rig = filled().await;
    let mut packer = GzEncoder::new(Vec::new(), Compression::best());
    packer.write_all(&vec![0; 50 << 20]).expect("packed");
    let bomb = packer.finish().expect("packed");
    let reply = proto_call(&rig, "LabelNames", "Content-Encoding: gzip\r\n", &bomb).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let reply = proto_call(&rig, "LabelNames", "", &vec![0; 1 << 20]).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    // A text that is no UTF-8, and a length beyond the end.
    for body in [&b"\x0a\x02\xff\xfe"[..], b"\x0a\xff\xff\xff\xff\x0f"] {
        let reply = proto_call(&rig, "LabelNames", "", body).await;
        assert!(reply.status >= 400, "{}", reply.text());
    }
    for headers in [
        "Connect-Timeout-Ms: 99999999999\r\n",
        "Connect-Timeout-Ms: -1\r\n",
    ] {
        let reply = proto_call(&rig, "ProfileTypes", headers, b"").await;
        assert_eq!(reply.status, 400, "{}", reply.text());
    }
    let (late, most) = (i64::MAX, u64::MAX);
    for (method, body) in [
        (
            "LabelNames",
            format!(r#"{{"start":"{late}","end":"{late}"}}"#),
        ),
        (
            "SelectSeries",
            format!(r#"{{"profileTypeID":"{CPU}","end":"{late}","step":1e-3}}"#),
        ),
        (
            "SelectSeries",
            format!(r#"{{"profileTypeID":"{CPU}","end":"{late}","step":1e300}}"#),
        ),
        (
            "SelectMergeStacktraces",
            format!(r#"{{"profileTypeID":"{CPU}","maxNodes":"{most}"}}"#),
        ),
        (
            "SelectMergeStacktraces",
            format!(r#"{{"profileTypeID":"{CPU}","maxNodes":"-1"}}"#),
        ),
    ] {
        let (status, answer) = json_call(&rig, method, &body).await;
        assert!(status < 500, "{method} {body}: {answer}");
    }
    let reply = get(&rig, &format!("{QUERIER}/ProfileTypes")).await;
    assert_eq!(reply.status, 405);
    let kind = "Content-Type: application/connect+proto\r\n";
    let reply = send(&rig, "POST", &format!("{QUERIER}/ProfileTypes"), kind, "").await;
    assert_eq!(reply.status, 415);
    assert_eq!(
        answered(&rig, "ProfileTypes", "{}").await["profileTypes"][0]["ID"],
        CPU
    );
    assert_eq!(rig.metrics.queries_running.get(), 0);
}

#[tokio::test]
async fn grpc_web_is_the_same_service() {
    let rig = filled().await;
    let message = stacks_of("{}").encode_to_vec();
    let length = (message.len() as u32).to_be_bytes();
    let body = [&[0][..], &length, &message].concat();
    let head = format!(
        "POST {QUERIER}/SelectMergeStacktraces HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/grpc-web+proto\r\nX-Grpc-Web: 1\r\nContent-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    let reply = raw(rig.http, &[head.as_bytes(), &body].concat()).await;
    let (messages, trailers) = frames(&reply.body);
    assert!(trailers.contains("grpc-status:0"), "{trailers}");
    let found = wire::SelectMergeStacktracesResponse::decode(&messages[0][..]).expect("a message");
    assert_eq!(
        graph(found.flamegraph.expect("one")),
        exported(&rig, "selector=").await
    );
    assert_eq!(rig.metrics.answer_bytes.get(), 0, "its place is free again");
}

/// Windows of the last minutes, for clients with a clock.
async fn pushed(program: &Program) {
    let agent = PushStream::connect(channel(program.grpc).await).await;
    let mut agent = agent.expect("a stream");
    let mut who = hello("web-1", 1);
    who.now_unix_ns = unix_ns();
    agent.hello(who).await;
    let stacks = ["main;read"];
    for ago in [3, 2] {
        let part = starting(unix_ns() - ago * 60_000_000_000, window(0, &stacks));
        let ack = agent.store_part(part, &stacks).await;
        assert_eq!(ack.reason, "");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_over_one_of_connect_grpc_and_grpc_web() {
    answers_buf(|at| vec![PROTOCOLS[at % PROTOCOLS.len()]]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes long: make test-slow"]
async fn every_call_is_answered_over_connect_grpc_and_grpc_web() {
    answers_buf(|_| PROTOCOLS.to_vec()).await;
}

const PROTOCOLS: [&str; 3] = ["connect", "grpc", "grpcweb"];

/// Has buf make every call, which takes it seconds each, over the protocols of its number.
async fn answers_buf(protocols: impl Fn(usize) -> Vec<&'static str>) {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let buf = manifest.join("ui/node_modules/.bin/buf");
    if !buf.exists() {
        testkit::skip("needs the page's packages: `npm ci` in collector/ui");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = Program::start(dir.path());
    pushed(&program).await;
    let end = unix_ns() / 1_000_000;
    let (start, of) = (
        end - 600_000,
        format!(r#""profile_typeID":"{CPU}","label_selector":"{{}}""#),
    );
    let range = format!(r#""start":{start},"end":{end}"#);
    let calls = [
        (
            "querier.v1.QuerierService/ProfileTypes",
            format!("{{{range}}}"),
            CPU,
        ),
        (
            "querier.v1.QuerierService/LabelNames",
            format!("{{{range}}}"),
            "service_name",
        ),
        (
            "querier.v1.QuerierService/LabelValues",
            format!(r#"{{"name":"service_name",{range}}}"#),
            "web.service",
        ),
        (
            "querier.v1.QuerierService/Series",
            format!(r#"{{"labelNames":["service_name"],{range}}}"#),
            "web.service",
        ),
        (
            "querier.v1.QuerierService/SelectSeries",
            format!(r#"{{{of},{range},"step":15}}"#),
            "timestamp",
        ),
        (
            "querier.v1.QuerierService/SelectMergeStacktraces",
            format!("{{{of},{range}}}"),
            "read",
        ),
        (
            "querier.v1.QuerierService/SelectMergeSpanProfile",
            format!(r#"{{{of},{range},"span_selector":["00f067aa0ba902b7"]}}"#),
            "total",
        ),
        (
            "querier.v1.QuerierService/SelectMergeProfile",
            format!("{{{of},{range}}}"),
            "read",
        ),
        (
            "querier.v1.QuerierService/SelectHeatmap",
            format!(r#"{{{of},{range},"step":15,"query_type":1}}"#),
            "counts",
        ),
        (
            "querier.v1.QuerierService/Diff",
            format!(r#"{{"left":{{{of},{range}}},"right":{{{of},{range}}}}}"#),
            "leftTicks",
        ),
        (
            "querier.v1.QuerierService/GetProfileStats",
            "{}".to_owned(),
            "dataIngested",
        ),
        ("settings.v1.SettingsService/Get", "{}".to_owned(), "{}"),
    ];
    let ask = |protocol: &str, (call, body, expected): &(&str, String, &str)| {
        let (address, more) = match protocol {
            "grpc" => (program.grpc, &["--http2-prior-knowledge"][..]),
            _ => (program.http, &[][..]),
        };
        let asked = Command::new(&buf)
            .args(["curl", "--protocol", protocol, "--schema"])
            .arg(manifest.join("proto"))
            .args(more)
            .args(["--data", body])
            .arg(format!("http://{address}/{call}"))
            .output()
            .expect("buf starts");
        let said = String::from_utf8_lossy(&asked.stdout);
        let errors = String::from_utf8_lossy(&asked.stderr);
        assert!(asked.status.success(), "{protocol} {call}: {said}{errors}");
        assert!(said.contains(expected), "{protocol} {call}: {said}");
    };
    for (at, call) in calls.iter().enumerate() {
        for protocol in protocols(at) {
            ask(protocol, call);
        }
    }
    // Its exit status is eight times the code.
    let asked = Command::new(&buf)
        .args(["curl", "--schema"])
        .arg(manifest.join("proto"))
        .args(["--data", r#"{"matchers":["{"]}"#])
        .arg(format!(
            "http://{}/querier.v1.QuerierService/LabelNames",
            program.http
        ))
        .output()
        .expect("buf starts");
    assert_eq!(
        asked.status.code(),
        Some(3 * 8),
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
}
