//! Profiles of other senders: what is taken, refused and answered, and that nothing of it is ever
//! answered as CPU time of agents.

use crate::rig::{LIMIT, NOW, Options, Rig, SECOND, window};
use crate::web::{Reply, raw, send};
use collector::access::{Caller, Role, Scope};
use collector::pyroscope::messages::v1::LabelPair;
use collector::pyroscope::push::v1 as push;
use collector::query::ScopedStore;
use collector::senders::SenderOptions;
use collector::store::{self, Cancel, Limits, OfType, StoreQueries, StoreStatus};
use flate2::Compression;
use flate2::write::GzEncoder;
use profile::formats::pprof::messages::{Function, Line, Location, Profile, Sample, ValueType};
use prost::Message;
use proto::agent::TimeRange;
use proto::collector::{
    DiffRequest, LabelNamesRequest, LabelValuesRequest, OverviewRequest, ProfileTypesRequest,
    Selection, SeriesRequest, TopRequest,
};
use serde_json::json;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;
use tonic::Code;

const HEAP: &str = "memory:inuse_space:bytes:space:bytes";
const SENT_CPU: &str = "sent_cpu:cpu:nanoseconds:cpu:nanoseconds";
const CPU: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

async fn rig() -> Rig {
    with(SenderOptions {
        request_bytes: 1 << 20,
        bytes_per_minute: 100 << 20,
        series: 100,
    })
    .await
}

async fn with(options: SenderOptions) -> Rig {
    let senders = Some(options);
    Rig::with(Options {
        senders,
        ..Options::default()
    })
    .await
}

/// A file of pprof of a minute ago: `main` calls `work`, with a value of each of these types.
fn pprof(types: &[(&str, &str)], values: &[i64], period: (&str, &str)) -> Vec<u8> {
    let mut strings = vec![String::new(), "main".to_owned(), "work".to_owned()];
    let mut named = |(name, unit): (&str, &str)| {
        strings.extend([name.to_owned(), unit.to_owned()]);
        ValueType {
            r#type: strings.len() as i64 - 2,
            unit: strings.len() as i64 - 1,
        }
    };
    let sample_type = types.iter().map(|of| named(*of)).collect();
    let period_type = Some(named(period));
    let function = |id: u64| Function {
        id,
        name: id as i64,
        ..Function::default()
    };
    let location = |id: u64| Location {
        id,
        line: vec![Line {
            function_id: id,
            line: 1,
        }],
        ..Location::default()
    };
    let message = Profile {
        sample_type,
        period_type,
        period: 10_000_000,
        time_nanos: NOW - 60 * SECOND,
        duration_nanos: 10 * SECOND,
        function: vec![function(1), function(2)],
        location: vec![location(1), location(2)],
        sample: vec![Sample {
            location_id: vec![2, 1],
            value: values.to_vec(),
            label: Vec::new(),
        }],
        string_table: strings,
        ..Profile::default()
    };
    message.encode_to_vec()
}

fn heap(bytes: i64) -> Vec<u8> {
    let types = [("inuse_objects", "count"), ("inuse_space", "bytes")];
    pprof(&types, &[3, bytes], ("space", "bytes"))
}

fn cpu() -> Vec<u8> {
    let time = ("cpu", "nanoseconds");
    pprof(&[time], &[70_000_000], time)
}

fn series(name: &str, labels: &[(&str, &str)], raw_profile: Vec<u8>) -> push::RawProfileSeries {
    let pair = |name: &str, value: &str| LabelPair {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let mut pairs = vec![pair("__name__", name)];
    pairs.extend(labels.iter().map(|(name, value)| pair(name, value)));
    push::RawProfileSeries {
        labels: pairs,
        samples: vec![push::RawSample {
            raw_profile,
            id: String::new(),
        }],
    }
}

async fn pushed(rig: &Rig, series: push::RawProfileSeries) -> Reply {
    let body = push::PushRequest {
        series: vec![series],
    };
    post(
        rig,
        &gzip(&body.encode_to_vec()),
        "Content-Encoding: gzip\r\n",
    )
    .await
}

async fn post(rig: &Rig, body: &[u8], headers: &str) -> Reply {
    let head = format!(
        "POST /push.v1.PusherService/Push HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/proto\r\n{headers}Content-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    raw(rig.http, &[head.as_bytes(), body].concat()).await
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).expect("packed");
    packed.finish().expect("packed")
}

async fn ingested(rig: &Rig, query: &str, body: &[u8]) -> Reply {
    let head = format!(
        "POST /ingest?{query} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    raw(rig.http, &[head.as_bytes(), body].concat()).await
}

fn hour() -> Option<TimeRange> {
    Some(TimeRange {
        start_unix_ns: NOW - 3600 * SECOND,
        end_unix_ns: NOW,
    })
}

fn of(profile_type: &str) -> Option<Selection> {
    Some(Selection {
        range: hour(),
        profile_type: profile_type.to_owned(),
        ..Selection::default()
    })
}

/// Name and own weight of the functions of a type.
async fn top(rig: &Rig, profile_type: &str) -> Vec<(String, u64)> {
    let request = TopRequest {
        selection: of(profile_type),
        ..TopRequest::default()
    };
    let answer = rig.queries().await.top(request).await.expect("an answer");
    let rows = answer.into_inner().rows.into_iter();
    rows.filter(|row| row.self_weight > 0)
        .map(|row| (row.name, row.self_weight))
        .collect()
}

async fn types(rig: &Rig) -> Vec<String> {
    let request = ProfileTypesRequest { range: hour() };
    let answer = rig.queries().await.profile_types(request).await;
    answer.expect("an answer").into_inner().ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_type_is_answered_alone_and_the_cpu_of_agents_without_any() {
    let rig = rig().await;
    let mut agent = rig.agent("a").await;
    agent
        .store_part(window(350, &["main;agent"]), &["main;agent"])
        .await;
    let before = (top(&rig, "").await, rig.open.queries.kept().expect("kept"));
    for (name, profile) in [("memory", heap(4096)), ("process_cpu", cpu())] {
        let reply = pushed(&rig, series(name, &[("service_name", "shop")], profile)).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(reply.header("content-type"), Some("application/proto"));
    }
    assert_eq!(
        types(&rig).await,
        ["memory:inuse_objects:count:space:bytes", HEAP, SENT_CPU]
    );
    let own = |weight| [("work".to_owned(), weight)];
    assert_eq!(top(&rig, HEAP).await, own(4096));
    assert_eq!(top(&rig, SENT_CPU).await, own(70_000_000));
    assert!(top(&rig, CPU).await.is_empty(), "that name is of agents");
    assert!(top(&rig, "memory:other:bytes:space:bytes").await.is_empty());
    let after = (top(&rig, "").await, rig.open.queries.kept().expect("kept"));
    assert_eq!(after, before, "nothing of it is CPU of agents");
}

/// What `SelectMergeProfile` answers to who asks for Go's compiler.
async fn for_go(rig: &Rig, profile_type: &str) -> Reply {
    let body = json!({
        "profile_typeID": profile_type,
        "label_selector": "{}",
        "start": (NOW - 3600 * SECOND) / 1_000_000,
        "end": NOW / 1_000_000,
        "stackTraceSelector": {"goPgo": {"keepLocations": 1, "aggregateCallees": true}},
    });
    let path = "/querier.v1.QuerierService/SelectMergeProfile";
    let headers = "Content-Type: application/json\r\n";
    send(rig, "POST", path, headers, &body.to_string()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_compiler_of_go_gets_what_has_first_lines_and_a_reason_otherwise() {
    let rig = rig().await;
    let mut agent = rig.agent("a").await;
    agent
        .store_part(window(350, &["main;agent"]), &["main;agent"])
        .await;
    let mut sent = Profile::decode(&cpu()[..]).expect("pprof");
    for function in &mut sent.function {
        function.start_line = 40;
    }
    let sent = series(
        "process_cpu",
        &[("service_name", "shop")],
        sent.encode_to_vec(),
    );
    assert_eq!(pushed(&rig, sent).await.status, 200);
    let reply = for_go(&rig, SENT_CPU).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let found: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(
        found["function"].as_array().map(Vec::len),
        Some(1),
        "the leaf: {found}"
    );
    assert_eq!(found["function"][0]["startLine"], "40");
    assert!(
        found["location"][0]["line"][0].get("line").is_none(),
        "{found}"
    );
    let refused = for_go(&rig, CPU).await;
    assert_eq!(refused.status, 400);
    let text = refused.text();
    let what_to_do = [
        "failed_precondition",
        "agent-ctl capture --lines",
        "symbols.go_lines",
    ];
    assert!(what_to_do.iter().all(|part| text.contains(part)), "{text}");
}

/// Their disk has a bound of its own, so its size has a number, and the store of agents keeps its
/// own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn numbers_of_their_store_are_next_to_those_of_agents() {
    let rig = rig().await;
    let reply = pushed(&rig, series("memory", &[("service_name", "shop")], heap(1))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = send(&rig, "GET", "/metrics", "", "").await;
    let text = reply.text();
    let has = |line: &str| text.lines().any(|of| of == line);
    assert!(
        has("fleetprof_store_windows_total{outcome=\"stored\",store=\"senders\"} 2"),
        "{text}"
    );
    assert!(has("fleetprof_store_bytes 4096"), "{text}");
    let mut queries = rig.queries().await;
    let status = queries.status(proto::collector::StatusRequest {}).await;
    let status = status.expect("a status").into_inner();
    let of_agents = metrics::counted(&rig.store.metrics())
        .filter(|counted| counted.name == "fleetprof_store_bytes")
        .map(|counted| counted.value)
        .sum::<u64>();
    assert_eq!(status.store_bytes, of_agents);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_question_without_a_type_reaches_what_senders_sent() {
    let rig = rig().await;
    let reply = pushed(&rig, series("memory", &[("service_name", "shop")], heap(1))).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let mut queries = rig.queries().await;
    let names = LabelNamesRequest { selection: of("") };
    let names = queries.label_names(names).await.expect("an answer");
    assert_eq!(names.into_inner().names, [""; 0]);
    let values = LabelValuesRequest {
        selection: of(""),
        name: "__profile_type__".to_owned(),
        ..LabelValuesRequest::default()
    };
    let values = queries.label_values(values).await.expect("an answer");
    assert_eq!(values.into_inner().values, [""; 0]);
    let line = SeriesRequest {
        selection: of(""),
        ..SeriesRequest::default()
    };
    let line = queries.series(line).await.expect("an answer").into_inner();
    assert!(line.lines.iter().all(|line| line.total_weight == 0));
    assert!(top(&rig, "").await.is_empty());
    let hosts = proto::collector::HostsRequest { range: hour() };
    let hosts = queries.hosts(hosts).await.expect("an answer");
    assert!(hosts.into_inner().hosts.is_empty(), "a sender is no host");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_cannot_leave_its_type() {
    let rig = rig().await;
    for (name, profile) in [("memory", heap(4096)), ("process_cpu", cpu())] {
        pushed(&rig, series(name, &[("service_name", "shop")], profile)).await;
    }
    for selector in [
        r#"__profile_type__=~".*""#,
        r#"__profile_type__!="x""#,
        r#"service_name="shop""#,
    ] {
        let request = TopRequest {
            selection: of(HEAP).map(|selection| Selection {
                selector: selector.to_owned(),
                ..selection
            }),
            ..TopRequest::default()
        };
        let answer = rig.queries().await.top(request).await.expect("an answer");
        let quality = answer.into_inner().quality.expect("a quality");
        assert_eq!(quality.total_weight, 4096, "{selector}");
        assert_eq!(quality.unit, "bytes", "{selector}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_of_agents_alone_refuses_a_type() {
    let rig = rig().await;
    let mut queries = rig.queries().await;
    let overview = OverviewRequest {
        selection: of(HEAP),
        ..OverviewRequest::default()
    };
    let refused = queries.overview(overview).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    let cgroups = proto::collector::CgroupsRequest {
        selection: of(HEAP),
    };
    let refused = queries.cgroups(cgroups).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
    let diff = DiffRequest {
        before: of(HEAP),
        after: of(SENT_CPU),
        ..DiffRequest::default()
    };
    let refused = queries.diff(diff).await.expect_err("refused");
    assert!(refused.message().contains("different profile types"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scope_applies_to_what_senders_sent() {
    let rig = rig().await;
    for service in ["own", "other"] {
        let labels = [("service_name", service)];
        let bytes = if service == "own" { 5 } else { 7 };
        pushed(&rig, series("memory", &labels, heap(bytes))).await;
    }
    let senders = rig.open.senders.as_ref().expect("a store").queries.clone();
    let scope = Scope::parse("service_name=own").expect("a scope");
    let eve = Caller {
        name: "eve".to_owned(),
        role: Role::Viewer,
        scope: Some(scope),
    };
    let heap = OfType::new(senders, HEAP).expect("an id");
    let seen = ScopedStore::new(Arc::new(heap), &eve, NOW);
    let selection = store::Scope {
        range: store::TimeRange {
            start_unix_ns: NOW - 3600 * SECOND,
            end_unix_ns: NOW,
        },
        selector: "".parse().expect("everything"),
    };
    let limits = Limits {
        hosts: None,
        waiting: true,
        reports: true,
        cancel: Cancel::default(),
        deadline: Instant::now() + LIMIT,
        memory_bytes: 64 << 20,
        nodes: 1000,
        lines: 1000,
    };
    let totals = seen.totals(&selection, &[], &limits).expect("totals");
    assert_eq!(totals.quality.total.weight, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_lets_nobody_in_says_so() {
    let rig = Rig::start().await;
    let reply = pushed(&rig, series("memory", &[], heap(1))).await;
    assert_eq!(reply.status, 501, "{}", reply.text());
    let reply = ingested(&rig, "name=a", b"main 1").await;
    assert_eq!(reply.status, 501, "{}", reply.text());
    let request = TopRequest {
        selection: of(HEAP),
        ..TopRequest::default()
    };
    let refused = rig.queries().await.top(request).await.expect_err("refused");
    assert!(refused.message().contains("senders.enabled"));
    assert_eq!(types(&rig).await, [""; 0]);
}

/// A request of Parca's clients, as bytes of its fields.
#[derive(Clone, PartialEq, prost::Message)]
struct WriteRaw {
    /// Names the tenant; the collector ignores it.
    #[prost(string, tag = "1")]
    tenant: String,
    #[prost(message, repeated, tag = "2")]
    series: Vec<RawSeries>,
    #[prost(bool, tag = "3")]
    normalized: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawSeries {
    #[prost(message, optional, tag = "1")]
    labels: Option<Labels>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<RawFile>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Labels {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<LabelPair>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RawFile {
    #[prost(bytes = "vec", tag = "1")]
    raw_profile: Vec<u8>,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parcas_call_takes_the_same() {
    let rig = rig().await;
    let pair = |name: &str, value: &str| LabelPair {
        name: name.to_owned(),
        value: value.to_owned(),
    };
    let request = WriteRaw {
        tenant: "t".to_owned(),
        series: vec![RawSeries {
            labels: Some(Labels {
                labels: vec![pair("__name__", "memory"), pair("node", "eu-1")],
            }),
            samples: vec![RawFile {
                raw_profile: gzip(&heap(21)),
            }],
        }],
        normalized: true,
    };
    let mut client = tonic::client::Grpc::new(rig.channel().await);
    client.ready().await.expect("a connection");
    let path = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw";
    let codec = proto::PieceCodec::<WriteRaw, ()>::default();
    let path = path.parse().expect("a path");
    let done = client
        .unary(tonic::Request::new(request), path, codec)
        .await;
    done.expect("taken");
    assert_eq!(top(&rig, HEAP).await, [("work".to_owned(), 21)]);
    assert_eq!(rig.metrics.sent_write_raw.get(), 2, "objects and space");
}

/// Each takes three bytes of the request and a hundred when it is decoded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_of_very_many_labels_is_refused_before_it_is_decoded() {
    let rig = rig().await;
    let mut many = series("memory", &[], heap(1));
    many.labels
        .extend(vec![LabelPair::default(); (64 << 10) + 1]);
    let reply = pushed(&rig, many).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(
        reply.text().contains("more than 65536 series, labels"),
        "{}",
        reply.text()
    );
    assert_eq!(rig.metrics.sent_too_large.get(), 1);
}

/// It is read by the transport, which refuses it before anything else sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_transport_refuses_is_counted() {
    let rig = rig().await;
    let mut client = tonic::client::Grpc::new(rig.channel().await);
    client.ready().await.expect("a connection");
    let path = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw";
    let path = path.parse().expect("a path");
    let request = WriteRaw {
        tenant: "t".repeat(2 << 20),
        ..WriteRaw::default()
    };
    let codec = proto::PieceCodec::<WriteRaw, ()>::default();
    let refused = client
        .unary(tonic::Request::new(request), path, codec)
        .await
        .expect_err("it is too large");
    assert_eq!(refused.code(), tonic::Code::OutOfRange, "{refused}");
    assert_eq!(rig.metrics.sent_too_large.get(), 1);
    let reply = post(&rig, &vec![0; 2 << 20], "").await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(rig.metrics.sent_too_large.get(), 2);
    let reply = post(&rig, b"", "Content-Encoding: br\r\n").await;
    assert_eq!(reply.status, 501, "{}", reply.text());
    assert_eq!(rig.metrics.sent_malformed.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_stalls_is_over_before_its_time() {
    let rig = rig().await;
    let head = format!(
        "POST /ingest?name=a HTTP/1.1\r\nHost: {}\r\nContent-Length: 100\r\n\r\nmain",
        rig.http
    );
    let reply = raw(rig.http, head.as_bytes()).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("ended early"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_counts_once() {
    let rig = rig().await;
    for _ in 0..3 {
        let reply = pushed(&rig, series("memory", &[("service_name", "s")], heap(7))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(top(&rig, HEAP).await, [("work".to_owned(), 7)]);
    assert_eq!(rig.metrics.sent_push.get(), 2, "objects and space");
    assert_eq!(rig.metrics.sent_repeated.get(), 4);
    // Another instance that says the same is another series.
    let labels = [("service_name", "s"), ("instance", "2")];
    pushed(&rig, series("memory", &labels, heap(7))).await;
    assert_eq!(top(&rig, HEAP).await, [("work".to_owned(), 14)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_call_takes_pprof_and_folded_stacks() {
    let rig = rig().await;
    let (from, until) = (NOW / SECOND - 60, NOW / SECOND - 50);
    let times = format!("from={from}&until={until}");
    let name = "name=shop%7Bregion%3Deu%7D";
    let reply = ingested(
        &rig,
        &format!("{name}&{times}&format=pprof&spyName=nodespy&sampleRate=334"),
        &gzip(&heap(50)),
    )
    .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = ingested(&rig, &format!("{name}&{times}"), b"main;a 2\nmain;b 3\n").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let own = |name: &str, weight| (name.to_owned(), weight);
    assert_eq!(top(&rig, HEAP).await, [own("work", 50)]);
    let found = top(&rig, SENT_CPU).await;
    assert_eq!(found, [own("b", 30_000_000), own("a", 20_000_000)]);
    let values = LabelValuesRequest {
        selection: of(HEAP),
        name: "pyroscope_spy".to_owned(),
        ..LabelValuesRequest::default()
    };
    let values = rig.queries().await.label_values(values).await;
    assert_eq!(values.expect("an answer").into_inner().values, ["nodespy"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_older_call_takes_a_form() {
    let rig = rig().await;
    let mut body = b"--x\r\nContent-Disposition: form-data; name=\"profile\"; \
        filename=\"profile.pprof\"\r\n\r\n"
        .to_vec();
    body.extend(gzip(&heap(9)));
    body.extend(b"\r\n--x--\r\n");
    let form = |body: Vec<u8>| {
        let head = format!(
            "POST /pyroscope/ingest?name=shop HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
             Content-Type: multipart/form-data; boundary=x\r\nContent-Length: {}\r\n\r\n",
            rig.http,
            body.len()
        );
        [head.into_bytes(), body].concat()
    };
    let reply = raw(rig.http, &form(body)).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(top(&rig, HEAP).await, [("work".to_owned(), 9)]);
    let before =
        b"--x\r\nContent-Disposition: form-data; name=\"prev_profile\"\r\n\r\n\r\n--x--\r\n";
    let reply = raw(rig.http, &form(before.to_vec())).await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("prev_profile"), "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_refused_with_a_sentence_and_counted() {
    let rig = rig().await;
    let check = |reply: Reply, status: u16, expected: &str| {
        let text = reply.text();
        assert_eq!(reply.status, status, "{text}");
        assert!(text.contains(expected), "{text}");
        assert_eq!(reply.header("content-type"), Some("application/json"));
    };
    let mut nameless = series("memory", &[], heap(1));
    nameless.labels.clear();
    check(pushed(&rig, nameless).await, 400, "__name__");
    let twice = series("memory", &[("a", "1"), ("a", "2")], heap(1));
    check(pushed(&rig, twice).await, 400, "there twice");
    let torn = series("memory", &[], heap(1)[..40].to_vec());
    check(pushed(&rig, torn).await, 400, "pprof");
    let mut nowhere = Profile::decode(&heap(1)[..]).expect("a message");
    nowhere.sample[0].location_id = vec![77];
    let nowhere = series("memory", &[], nowhere.encode_to_vec());
    check(pushed(&rig, nowhere).await, 400, "no location `77`");
    let mut negative = Profile::decode(&heap(1)[..]).expect("a message");
    negative.sample[0].value = vec![-1, -1];
    let negative = series("memory", &[], negative.encode_to_vec());
    check(pushed(&rig, negative).await, 400, "negative");
    for (at, expected) in [(NOW + 3600 * SECOND, "in the future"), (1, "older")] {
        let mut odd = Profile::decode(&heap(1)[..]).expect("a message");
        odd.time_nanos = at;
        let odd = series("memory", &[], odd.encode_to_vec());
        check(pushed(&rig, odd).await, 400, expected);
    }
    assert_eq!(rig.metrics.sent_malformed.get(), 5);
    assert_eq!(rig.metrics.sent_rejected.get(), 2);
    assert_eq!(types(&rig).await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bombs_are_refused_before_they_are_unpacked() {
    let rig = rig().await;
    let bomb = gzip(&vec![0; 32 << 20]);
    let reply = post(&rig, &bomb, "Content-Encoding: gzip\r\n").await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let reply = ingested(&rig, "name=a&format=pprof", &bomb).await;
    assert_eq!(reply.status, 413, "{}", reply.text());
    let inner = series("memory", &[], gzip(&vec![0; 32 << 20]));
    let reply = pushed(&rig, inner).await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("16777216 bytes"), "{}", reply.text());
    let reply = ingested(&rig, "name=a", &vec![b'a'; 2 << 20]).await;
    assert_eq!(reply.status, 413, "{}", reply.text());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sender_has_bounds_of_rate_and_series() {
    let rig = with(SenderOptions {
        request_bytes: 1 << 20,
        bytes_per_minute: 1 << 10,
        series: 3,
    })
    .await;
    let reply = ingested(&rig, "name=a", b"main 1").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = ingested(&rig, "name=a", "main;b 1\n".repeat(200).as_bytes()).await;
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert!(reply.header("retry-after").is_some(), "{}", reply.head);
    for name in ["b", "c"] {
        assert_eq!(
            ingested(&rig, &format!("name={name}"), b"main 1")
                .await
                .status,
            200
        );
    }
    let reply = ingested(&rig, "name=d", b"main 1").await;
    assert_eq!(reply.status, 429, "{}", reply.text());
    assert!(
        reply.text().contains("sender_series_max"),
        "{}",
        reply.text()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grafana_lists_and_draws_the_types_of_senders() {
    let rig = rig().await;
    let mut agent = rig.agent("a").await;
    agent
        .store_part(window(350, &["main;agent"]), &["main;agent"])
        .await;
    pushed(
        &rig,
        series("memory", &[("service_name", "shop")], heap(4096)),
    )
    .await;
    let call = async |method: &str, body: String| {
        let path = format!("/querier.v1.QuerierService/{method}");
        let reply = send(
            &rig,
            "POST",
            &path,
            "Content-Type: application/json\r\n",
            &body,
        )
        .await;
        assert_eq!(reply.status, 200, "{method}: {}", reply.text());
        serde_json::from_slice::<serde_json::Value>(&reply.body).expect("JSON")
    };
    let (start, end) = ((NOW - 3600 * SECOND) / 1_000_000, NOW / 1_000_000);
    let range = format!(r#""start":{start},"end":{end}"#);
    let types = call("ProfileTypes", format!("{{{range}}}")).await;
    let ids = types["profileTypes"].as_array().expect("types").iter();
    let ids: Vec<_> = ids.map(|of| of["ID"].as_str().expect("an id")).collect();
    assert_eq!(ids, ["memory:inuse_objects:count:space:bytes", HEAP, CPU]);
    let both = r#""labelNames":["service_name","__profile_type__"]"#;
    let series = call("Series", format!("{{{range},{both}}}")).await;
    let series = series["labelsSet"].to_string();
    assert!(series.contains("shop") && series.contains(HEAP), "{series}");
    for (of, total, name) in [(HEAP, "4096", "work"), (CPU, "", "agent")] {
        let asked = format!(r#"{{{range},"profileTypeID":"{of}","labelSelector":"{{}}"}}"#);
        let found = call("SelectMergeStacktraces", asked).await;
        let graph = &found["flamegraph"];
        assert!(graph["names"].to_string().contains(name), "{of}: {graph}");
        let is_total = total.is_empty() || graph["total"] == total;
        assert!(is_total, "{of}: {graph}");
    }
}

/// Queries for labels so far.
async fn label_queries(rig: &Rig) -> u64 {
    let metrics = crate::web::get(rig, "/metrics").await.text();
    let name = "fleetprof_collector_query_duration_seconds_count{kind=\"labels\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(name));
    count.expect("the histogram").parse().expect("a number")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_labels_ask_once_however_many_types_there_are() {
    let rig = rig().await;
    for (name, service) in [("memory", "shop"), ("wall", "shop"), ("block", "cart")] {
        let labels = [("service_name", service), (name, "x")];
        let reply = pushed(&rig, series(name, &labels, heap(4096))).await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    let (start, end) = ((NOW - 3600 * SECOND) / 1_000_000, NOW / 1_000_000);
    let call = async |method: &str, more: &str| {
        let path = format!("/querier.v1.QuerierService/{method}");
        let body = format!(r#"{{"start":{start},"end":{end}{more}}}"#);
        let headers = "Content-Type: application/json\r\n";
        let reply = send(&rig, "POST", &path, headers, &body).await;
        assert_eq!(reply.status, 200, "{method}: {}", reply.text());
        serde_json::from_slice::<serde_json::Value>(&reply.body).expect("JSON")
    };
    // The types, agents, other senders: three queries for six types.
    for (method, more) in [
        ("ProfileTypes", ""),
        ("LabelNames", ""),
        ("LabelValues", r#","name":"service_name""#),
    ] {
        let before = label_queries(&rig).await;
        call(method, more).await;
        assert_eq!(label_queries(&rig).await - before, 3, "{method}");
    }
    // Still each type has its own labels and services alone.
    let names = |answer: serde_json::Value| {
        let names = answer["names"].as_array().expect("names").iter();
        let names = names.map(|name| name.as_str().expect("a text").to_owned());
        names.collect::<Vec<_>>()
    };
    let of = |id: &str| format!(r#","matchers":["{{__profile_type__=\"{id}\"}}"]"#);
    let block = "block:inuse_space:bytes:space:bytes";
    let found = names(call("LabelNames", &of(block)).await);
    assert!(found.contains(&"block".to_owned()), "{found:?}");
    assert!(!found.contains(&"memory".to_owned()), "{found:?}");
    for (matchers, expected) in [
        (of(HEAP), vec!["shop"]),
        (of(block), vec!["cart"]),
        (
            r#","matchers":["{__name__=~\"wall|block\"}"]"#.to_owned(),
            vec!["cart", "shop"],
        ),
    ] {
        let asked = format!(r#","name":"service_name"{matchers}"#);
        assert_eq!(
            names(call("LabelValues", &asked).await),
            expected,
            "{matchers}"
        );
    }
    let asked = r#","name":"__name__","matchers":["{service_name=\"cart\"}"]"#;
    assert_eq!(names(call("LabelValues", asked).await), ["block"]);
    let both = r#","labelNames":["service_name","__profile_type__"]"#;
    let found = call("Series", both).await;
    let sets = found["labelsSet"].as_array().expect("sets");
    let pairs = sets.iter().map(|set| {
        let value = |name: &str| {
            let mut labels = set["labels"].as_array().expect("labels").iter();
            let found = labels.find(|label| label["name"] == name).expect(name);
            found["value"].as_str().expect("a text").to_owned()
        };
        (value("service_name"), value("__profile_type__"))
    });
    let pairs: Vec<_> = pairs.collect();
    assert_eq!(pairs.len(), 6, "{pairs:?}");
    for (service, id) in &pairs {
        assert_eq!(service == "cart", id.starts_with("block:"), "{pairs:?}");
    }
}
