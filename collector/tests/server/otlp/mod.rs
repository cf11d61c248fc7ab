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
        request_bytes: 4 << 20,
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

/// The store remembers a bounded number of profiles of each series. What is beyond it must neither
/// be taken for something else nor make others be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_of_thousands_of_profiles_of_a_series_is_stored() {
    const PROFILES: u64 = 6000;
    let rig = rig().await;
    let of_type = field(1, &[1 << 3, 1, 2 << 3, 2]);
    let sample = field(2, &field(4, &[1]));
    let profile = |number: u64| {
        // Four each two seconds, of which two start together.
        let at = (NOW - 3000 * SECOND) as u64 + number / 4 * 2_000_000_000 + number % 4 / 2;
        let time = [&[3 << 3 | 1][..], &at.to_le_bytes()].concat();
        field(2, &[of_type.clone(), sample.clone(), time].concat())
    };
    for from in (0..PROFILES).step_by(1000) {
        let profiles: Vec<u8> = (from..from + 1000).flat_map(profile).collect();
        let export = Export {
            resource_profiles: vec![field(2, &profiles)],
            dictionary: [field(5, b""), field(5, b"inuse_space"), field(5, b"bytes")].concat(),
        };
        let body = prost::Message::encode_to_vec(&export);
        let reply = post(&rig, PROTO, &body, "").await;
        assert_eq!(reply.status, 200, "{}", reply.text());
    }
    assert_eq!(rig.metrics.sent_otlp.get(), PROFILES);
    assert_eq!(rig.metrics.sent_repeated.get(), 0);
}

/// What takes some bytes where it is referred to again would fill the memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_requests_that_say_large_ones_are_refused() {
    let rig = rig().await;
    // Type and samples of one value.
    let of_type = field(1, &[1 << 3, 1, 2 << 3, 1]);
    let sample = field(2, &[&[1 << 3, 1][..], &field(4, &[1])].concat());
    let request = |resource: &[u8], profile: &[u8], tables: &[Vec<u8>]| {
        let scope = field(2, &field(2, profile));
        prost::Message::encode_to_vec(&Export {
            resource_profiles: vec![[resource, &scope].concat()],
            dictionary: tables.concat(),
        })
    };
    let count = [field(5, b""), field(5, b"count")].concat();
    // A stack of 8000 locations, again and again.
    let stacks = [
        field(2, b""),
        field(7, b""),
        field(7, &field(1, &[0; 8000])),
    ]
    .concat();
    let profile = [of_type.clone(), sample.repeat(5000)].concat();
    let deep = request(b"", &profile, &[count.clone(), stacks]);
    // Labels of a resource on each of many sets of labels: an attribute of a sample makes one.
    let pair = |number: u8| {
        field(
            1,
            &[
                field(1, &[b'a' + number]),
                field(2, &field(1, &[b'v'; 4000])),
            ]
            .concat(),
        )
    };
    let resource = field(1, &(0..20).flat_map(pair).collect::<Vec<u8>>());
    let key = field(5, b"own");
    let attribute = |number: u32| {
        let value = field(2, &field(1, number.to_string().as_bytes()));
        field(6, &[&[1 << 3, 2][..], &value].concat())
    };
    let attributes: Vec<u8> = (0..500).flat_map(attribute).collect();
    let with_own = |number: u32| {
        let mut index = Vec::new();
        prost::encoding::encode_varint(number.into(), &mut index);
        field(2, &[field(2, &index), field(4, &[1])].concat())
    };
    let samples: Vec<u8> = (0..500).flat_map(with_own).collect();
    let profile = [of_type.clone(), samples].concat();
    let scope = field(2, &field(2, &profile).repeat(4));
    let labelled = prost::Message::encode_to_vec(&Export {
        resource_profiles: vec![[resource, scope].concat()],
        dictionary: [count.clone(), key, attributes].concat(),
    });
    // Attributes, of which none says anything.
    let empty = request(&field(1, &field(1, b"").repeat(500_000)), b"", &[]);
    // Samples, of which none says anything.
    let samples = request(b"", &field(2, b"").repeat(500_000), &[]);
    // Profiles, of which each becomes a window.
    let one = field(2, &[of_type, sample].concat());
    let profiles = prost::Message::encode_to_vec(&Export {
        resource_profiles: vec![field(2, &one.repeat(20_000))],
        dictionary: Vec::new(),
    });
    for (body, expected) in [
        (deep, "8388608"),
        (labelled, "67108864 bytes"),
        (empty.repeat(3), "1048576 attributes"),
        (samples.repeat(3), "1048576 samples"),
        (profiles, "more than 16384"),
    ] {
        let packed = gzip(&body);
        let reply = post(&rig, PROTO, &packed, "Content-Encoding: gzip\r\n").await;
        assert_eq!(reply.status, 413, "{expected}: {}", reply.text());
        assert!(reply.text().contains(expected), "{}", reply.text());
    }
    assert_eq!(rig.metrics.sent_otlp.get(), 0);
}

/// A field with its length in front.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag << 3 | 2];
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed.write_all(bytes).expect("packed");
    packed.finish().expect("packed")
}
