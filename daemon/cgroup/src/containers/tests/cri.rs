//! Tests the Container Runtime Interface against a fake server. Its answers are written out field
//! by field, numbered as in the published protocol, including fields that nobody reads.

use super::*;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::body::Body;
use tonic::server::NamedService;

const POD: &str = "ffff456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const LIST: &str = "/runtime.v1.RuntimeService/ListContainers";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const POD_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const IMAGE: &str = "/runtime.v1.ImageService/ImageStatus";

/// A field of bytes: text, or a message.
fn field(number: u32, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut bytes);
    prost::encoding::encode_varint(content.len() as u64, &mut bytes);
    bytes.extend_from_slice(content);
    bytes
}

/// An entry of a map.
fn entry(number: u32, key: &str, value: &str) -> Vec<u8> {
    field(number, [field(1, key), field(2, value)].concat())
}

fn number(number: u32, value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3), &mut bytes);
    prost::encoding::encode_varint(value, &mut bytes);
    bytes
}

fn listed() -> Vec<u8> {
    let container = [
        field(1, ID),
        field(2, POD),
        field(3, field(1, "server")),
        number(6, 1),
        number(7, 1_700_000_000_000_000_000),
    ];
    field(1, container.concat())
}

fn container_status() -> Vec<u8> {
    let image = [
        field(1, "sha256:abcd"),
        field(18, "registry.example/web:1.4"),
    ];
    let status = [
        field(1, ID),
        field(2, [field(1, "server"), number(2, 3)].concat()),
        number(3, 1),
        field(8, image.concat()),
        field(9, "registry.example/web@sha256:abcd"),
        entry(12, "io.kubernetes.pod.name", "web-0"),
        entry(12, "team", "blue"),
        entry(13, "annotation", "x"),
        field(15, field(1, "/cpu")),
    ];
    field(1, status.concat())
}

fn pod_status() -> Vec<u8> {
    let metadata = [
        field(1, "web-0"),
        field(2, "2ab5d5c4-9f2c-4f4e-8a1e-0123456789ab"),
        field(3, "shop"),
    ];
    let status = [
        field(1, POD),
        field(2, metadata.concat()),
        entry(7, "app", "web"),
        entry(7, "team", "red"),
    ];
    field(1, status.concat())
}

fn image_status() -> Vec<u8> {
    let info = r#"{"chainID":"x","imageSpec":{"config":{"Labels":{"built":"today","team":"x"}}}}"#;
    [field(1, field(1, "sha256:abcd")), entry(2, "info", info)].concat()
}

/// Answers by path; the code of gRPC where there is no answer.
type Answers = BTreeMap<&'static str, Result<Vec<u8>, u32>>;

fn node() -> Answers {
    BTreeMap::from([
        (LIST, Ok(listed())),
        (STATUS, Ok(container_status())),
        (POD_STATUS, Ok(pod_status())),
        (IMAGE, Ok(image_status())),
    ])
}

#[derive(Clone)]
struct Recorded<const IMAGES: bool>(Arc<Answers>);

impl NamedService for Recorded<false> {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl NamedService for Recorded<true> {
    const NAME: &'static str = "runtime.v1.ImageService";
}

impl<const IMAGES: bool> tower::Service<hyper::Request<Body>> for Recorded<IMAGES> {
    type Response = hyper::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: hyper::Request<Body>) -> Self::Future {
        let answers = Arc::clone(&self.0);
        Box::pin(async move {
            let path = request.uri().path().to_owned();
            let question = request.into_body().collect().await.unwrap().to_bytes();
            // A request for something that is not on this node gets an error.
            let asked = String::from_utf8_lossy(&question);
            let here = asked.contains(ID) || asked.contains(POD) || path == IMAGE;
            let unknown = Err(5);
            let answer = match here || path == LIST {
                true => answers.get(path.as_str()).unwrap_or(&Err(12)),
                false => &unknown,
            };
            let (code, message) = match answer {
                Ok(message) if path != LIST || here => (0, message.clone()),
                Ok(_) => (0, Vec::new()),
                Err(code) => (*code, Vec::new()),
            };
            let mut frame = vec![0];
            frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
            frame.extend_from_slice(&message);
            let mut trailers = hyper::HeaderMap::new();
            trailers.insert("grpc-status", code.to_string().parse().unwrap());
            let body = Full::new(Bytes::from(frame)).with_trailers(async { Some(Ok(trailers)) });
            let response = hyper::Response::builder()
                .header("content-type", "application/grpc")
                .body(Body::new(body));
            Ok(response.unwrap())
        })
    }
}

/// Ends with the test's process.
struct Node {
    dir: TempDir,
}

impl Node {
    fn start(answers: Answers) -> Node {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("socket")).unwrap();
        listener.set_nonblocking(true).unwrap();
        let answers = Arc::new(answers);
        std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                tonic::transport::Server::builder()
                    .add_service(Recorded::<false>(Arc::clone(&answers)))
                    .add_service(Recorded::<true>(answers))
                    .serve_with_incoming(UnixListenerStream::new(listener))
                    .await
            })
        });
        Node { dir }
    }

    fn asking(&self, chosen: &[&str]) -> Asking {
        let path = self.dir.path().join("socket");
        let source = format!("cri:{}", path.display());
        Asking::of(vec![source.parse().unwrap()], chosen)
    }
}

#[test]
fn a_container_in_a_pod_is_told_with_its_pod() {
    let node = Node::start(node());
    for runtime in [Some("containerd"), Some("cri-o"), None] {
        check(
            node.asking(&[]).learn(ID, runtime),
            &[
                "container_name=server",
                "image=registry.example/web:1.4",
                "pod=web-0",
                "namespace=shop",
            ],
        );
    }
}

#[test]
fn chosen_labels_are_those_of_container_pod_and_image() {
    let node = Node::start(node());
    let found = node
        .asking(&["team", "app", "built"])
        .learn(ID, Some("cri-o"));
    check(
        found,
        &[
            "container_name=server",
            "image=registry.example/web:1.4",
            "pod=web-0",
            "namespace=shop",
            // The container's own before its image's.
            "container.label/team=blue",
            "pod.label/team=red",
            "pod.label/app=web",
            "container.label/built=today",
        ],
    );
}

#[test]
fn the_pods_own_container_has_the_pod_alone() {
    let node = Node::start(node());
    let found = node.asking(&[]).learn(POD, Some("containerd"));
    check(found, &["pod=web-0", "namespace=shop"]);
}

#[test]
fn a_container_of_somebody_else_is_unknown() {
    let node = Node::start(node());
    let asking = node.asking(&[]);
    assert_eq!(asking.learn(&"1".repeat(64), Some("containerd")), None);
    let failed = Cause::ALL.iter().map(|&cause| asking.failed(cause));
    assert_eq!(failed.sum::<u64>(), 0, "{:?}", asking.counts);
}

#[test]
fn who_does_not_speak_the_interface_knows_nothing() {
    let node = Node::start(BTreeMap::new());
    let asking = node.asking(&[]);
    assert_eq!(asking.learn(ID, Some("containerd")), None);
    let failed = Cause::ALL.iter().map(|&cause| asking.failed(cause));
    assert_eq!(failed.sum::<u64>(), 0, "{:?}", asking.counts);
}

#[test]
fn without_the_image_the_rest_is_told() {
    let mut answers = node();
    answers.insert(IMAGE, Err(13));
    let node = Node::start(answers);
    let found = node.asking(&["team"]).learn(ID, Some("containerd"));
    assert_eq!(found.unwrap().labels.len(), 2);
}

#[test]
fn failures_are_counted_by_cause() {
    let huge = field(1, vec![0; ANSWER_BYTES_MAX + 1]);
    let cases = [
        (Err(7), Cause::Refused),
        (Ok(huge), Cause::TooLong),
        (Ok(b"\xff\xff\xff".to_vec()), Cause::Broken),
    ];
    for (answer, cause) in cases {
        let mut answers = node();
        answers.insert(STATUS, answer);
        let node = Node::start(answers);
        let asking = node.asking(&[]);
        assert_eq!(asking.learn(ID, Some("containerd")), None);
        assert_eq!(asking.failed(cause), 1, "{:?}", asking.counts);
    }
}

#[test]
fn what_speaks_no_http2_is_broken() {
    let server = Server::start(|mut stream| {
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
    });
    let asking = Asking::of(vec![server.source("cri")], &[]);
    assert_eq!(asking.learn(ID, Some("containerd")), None);
    assert_eq!(asking.failed(Cause::Broken), 1, "{:?}", asking.counts);
}

#[test]
fn who_hangs_is_late() {
    let server = Server::start(|stream| {
        std::mem::forget(stream);
    });
    let asking = Asking::of(vec![server.source("cri")], &[]);
    assert_eq!(asking.learn(ID, Some("containerd")), None);
    assert_eq!(asking.failed(Cause::Late), 1, "{:?}", asking.counts);
}
