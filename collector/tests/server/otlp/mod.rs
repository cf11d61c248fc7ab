//! Profiles of OpenTelemetry: each layout, made by OpenTelemetry's own classes (`make.py`), over
//! HTTP in both codecs and over gRPC.

use crate::rig::{NOW, Options, Rig, SECOND};
use crate::web::{Reply, raw};
use collector::senders::SenderOptions;
use flate2::Compression;
use flate2::write::GzEncoder;
use proto::agent::TimeRange;
use proto::collector::{LabelValuesRequest, ProfileTypesRequest, Selection, TopRequest};
use std::io::Write;

const CPU: &str = "sent_cpu:cpu:nanoseconds:cpu:nanoseconds";
const WAITS: &str = "off_cpu:off_cpu:nanoseconds::";
const HEAP: &str = "memory:inuse_space:bytes:space:bytes";

const PROTO: &str = "application/x-protobuf";
const JSON: &str = "application/json";

async fn rig() -> Rig {
    let senders = SenderOptions {
        request_bytes: 1 << 20,
        bytes_per_minute: 100 << 20,
        series: 100,
    };
    Rig::with(Options {
        senders: Some(senders),
        ..Options::default()
    })
    .await
}

async fn post(rig: &Rig, kind: &str, body: &[u8], headers: &str) -> Reply {
    let head = format!(
        "POST /v1development/profiles HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: {kind}\r\n{headers}Content-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    raw(rig.http, &[head.as_bytes(), body].concat()).await
}

fn of(profile_type: &str) -> Option<Selection> {
    Some(Selection {
        range: Some(TimeRange {
            start_unix_ns: NOW - 3600 * SECOND,
            end_unix_ns: NOW,
        }),
        profile_type: profile_type.to_owned(),
        ..Selection::default()
    })
}

/// Functions of a type with their own and total weight, ordered by name.
async fn top(rig: &Rig, profile_type: &str) -> Vec<(String, u64, u64)> {
    let request = TopRequest {
        selection: of(profile_type),
        ..TopRequest::default()
    };
    let answer = rig.queries().await.top(request).await.expect("an answer");
    let rows = answer.into_inner().rows.into_iter();
    let mut rows: Vec<_> = rows
        .map(|row| (row.name, row.self_weight, row.total_weight))
        .collect();
    rows.sort();
    rows
}

async fn values(rig: &Rig, name: &str) -> Vec<String> {
    let request = LabelValuesRequest {
        selection: of(CPU),
        name: name.to_owned(),
        ..LabelValuesRequest::default()
    };
    let answer = rig.queries().await.label_values(request).await;
    answer.expect("an answer").into_inner().values
}

/// What every layout says.
async fn check(rig: &Rig) {
    let request = ProfileTypesRequest {
        range: of("").and_then(|selection| selection.range),
    };
    let types = rig.queries().await.profile_types(request).await;
    assert_eq!(
        types.expect("an answer").into_inner().ids,
        [HEAP, WAITS, CPU]
    );
    let stack = |own: u64| {
        let rows = ["handle", "inner", "libshop.so+0x1234", "outer", "vfs_read"];
        rows.map(|name| {
            let is_leaf = name == "vfs_read";
            (name.to_owned(), if is_leaf { own } else { 0 }, own)
        })
    };
    // Three samples of 10 ms of this stack, and one of a shorter one.
    let mut cpu = stack(30_000_000);
    cpu[0].2 += 10_000_000;
    (cpu[2].1, cpu[2].2) = (10_000_000, 40_000_000);
    assert_eq!(top(rig, CPU).await, cpu);
    assert_eq!(top(rig, WAITS).await, stack(1200));
    assert_eq!(top(rig, HEAP).await, stack(4096));
    assert_eq!(top(rig, "").await, [], "nothing of it is CPU of agents");
    for (name, expected) in [
        ("service_name", &["shop"][..]),
        ("service.name", &["shop"]),
        ("container.id", &["c0ffee"]),
        ("host", &["eu-1"]),
        ("otel.scope.name", &["profiler"]),
        ("thread.name", &["worker"]),
        ("thread.id", &[]),
        ("process.pid", &[]),
    ] {
        assert_eq!(values(rig, name).await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_layout_is_stored() {
    let rig = rig().await;
    let reply = post(&rig, PROTO, include_bytes!("1.10.pb"), "").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some(PROTO));
    assert!(reply.body.is_empty(), "nothing to say");
    check(&rig).await;
    assert_eq!(rig.metrics.sent_otlp_new.get(), 1);
    assert_eq!(rig.metrics.sent_otlp.get(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_layout_before_is_told_apart_and_its_sender_hears_of_it() {
    let rig = rig().await;
    let reply = post(&rig, PROTO, include_bytes!("1.9.pb"), "").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert!(reply.text().contains("decoded as OTLP profiles 1.9"));
    check(&rig).await;
    assert_eq!(rig.metrics.sent_otlp_1_9.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn earlier_ones_are_refused_with_what_is_needed() {
    let rig = rig().await;
    let reply = post(&rig, PROTO, include_bytes!("1.7.pb"), "").await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert!(reply.text().contains("OTLP 1.7 or earlier"));
    assert_eq!(rig.metrics.sent_otlp_old.get(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attributes_may_refer_to_the_table_of_strings() {
    let rig = rig().await;
    let body = gzip(include_bytes!("strindex.pb"));
    let reply = post(&rig, PROTO, &body, "Content-Encoding: gzip\r\n").await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    check(&rig).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn json_says_the_same_in_the_names_of_both_releases() {
    let text = include_str!("1.10.json");
    let older = text
        .replace("\"samples\":", "\"sample\":")
        .replace("\"lines\":", "\"line\":");
    assert_ne!(text, older);
    for text in [text, &older] {
        let rig = rig().await;
        let reply = post(&rig, JSON, text.as_bytes(), "").await;
        assert_eq!(reply.status, 200, "{}", reply.text());
        assert_eq!(
            (reply.header("content-type"), &reply.text()[..]),
            (Some(JSON), "{}")
        );
        check(&rig).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_exported_again_counts_once() {
    let rig = rig().await;
    for _ in 0..2 {
        let reply = post(&rig, PROTO, include_bytes!("1.10.pb"), "").await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    check(&rig).await;
    assert_eq!(rig.metrics.sent_repeated.get(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_takes_the_same() {
    let rig = rig().await;
    let mut client = tonic::client::Grpc::new(rig.channel().await);
    client.ready().await.expect("a connection");
    let path = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";
    let message = Export::decoded(include_bytes!("1.9.pb"));
    let codec = proto::PieceCodec::<Export, Exported>::default();
    let request = tonic::Request::new(message);
    let answer = client
        .unary(request, path.parse().expect("a path"), codec)
        .await;
    let answer = answer.expect("taken").into_inner();
    assert!(answer.partial.expect("a word").message.contains("1.9"));
    check(&rig).await;
}

/// The request and the answer as bytes and words.
#[derive(Clone, PartialEq, prost::Message)]
struct Export {
    #[prost(bytes = "vec", repeated, tag = "1")]
    resource_profiles: Vec<Vec<u8>>,
    #[prost(bytes = "vec", tag = "2")]
    dictionary: Vec<u8>,
}

impl Export {
    fn decoded(bytes: &[u8]) -> Export {
        prost::Message::decode(bytes).expect("a request")
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct Exported {
    #[prost(message, optional, tag = "1")]
    partial: Option<Partial>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Partial {
    #[prost(string, tag = "2")]
    message: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_refused_in_the_codec_of_the_request() {
    let rig = rig().await;
    let without_tables = Export {
        dictionary: Vec::new(),
        ..Export::decoded(include_bytes!("1.10.pb"))
    };
    let body = prost::Message::encode_to_vec(&without_tables);
    let reply = post(&rig, PROTO, &body, "").await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    assert_eq!(reply.header("content-type"), Some(PROTO));
    let reply = post(&rig, JSON, b"{\"resourceProfiles\":7}", "").await;
    assert_eq!(reply.status, 400, "{}", reply.text());
    let said: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(said["code"], 3);
    let reply = post(&rig, "text/plain", b"", "").await;
    assert_eq!(reply.status, 415, "{}", reply.text());
    let bomb = gzip(&vec![0; 8 << 20]);
    let reply = post(&rig, PROTO, &bomb, "Content-Encoding: gzip\r\n").await;
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert_eq!(rig.metrics.sent_malformed.get(), 3);
    assert_eq!(rig.metrics.sent_too_large.get(), 1);
    assert_eq!(rig.metrics.sent_otlp.get(), 0);
}

/// A stack of some bytes that many samples refer to would fill the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_requests_that_say_large_ones_are_refused() {
    let rig = rig().await;
    let field = |tag: u8, content: &[u8]| {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    };
    let stack = field(1, &[0; 8000]);
    let dictionary = [
        field(2, b""),
        field(5, b""),
        field(5, b"count"),
        field(7, b""),
        field(7, &stack),
    ]
    .concat();
    // Type, and samples of one value, each of that stack.
    let sample = field(2, &[&[1 << 3, 1][..], &field(4, &[1])].concat());
    let profile = [field(1, &[1 << 3, 1, 2 << 3, 1]), sample.repeat(5000)].concat();
    let export = Export {
        resource_profiles: vec![field(2, &field(2, &profile))],
        dictionary,
    };
    let body = prost::Message::encode_to_vec(&export);
    assert!(body.len() < 1 << 20);
    let reply = post(&rig, PROTO, &body, "").await;
    assert_eq!(reply.status, 413, "{}", reply.text());
    assert!(reply.text().contains("8388608"), "{}", reply.text());
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).expect("packed");
    packed.finish().expect("packed")
}
