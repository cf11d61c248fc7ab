//! The HTTP listener: the page, its guard, gRPC-Web, downloads and metrics.

use crate::memory::Fault;
use crate::rig::{Options, PushStream, Rig, channel, until, window};
use prost::Message;
use proto::collector as wire;
use proto::collector::query_service_client::QueryServiceClient;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

/// An answer.
pub struct Reply {
    /// HTTP status.
    pub status: u16,
    /// Its first lines.
    pub head: String,
    /// What follows.
    pub body: Vec<u8>,
}

impl Reply {
    /// A header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// The body as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends bytes and reads until the server ends the connection.
pub async fn raw(address: SocketAddr, request: &[u8]) -> Reply {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(request).await.expect("sent");
    let mut answer = Vec::new();
    // A server that refuses a request half read resets the connection after its answer.
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut body = answer[end + 4..].to_vec();
    if head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked")
    {
        body = unchunked(&body);
    }
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    Reply {
        status: status.expect("a status"),
        head,
        body,
    }
}

fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    loop {
        let line = rest
            .windows(2)
            .position(|two| two == b"\r\n")
            .expect("a size");
        let size = std::str::from_utf8(&rest[..line]).expect("text");
        let size = usize::from_str_radix(size, 16).expect("hex");
        if size == 0 {
            return body;
        }
        body.extend_from_slice(&rest[line + 2..line + 2 + size]);
        rest = &rest[line + 4 + size..];
    }
}

async fn get_with(rig: &Rig, path: &str, headers: &str) -> Reply {
    let request = format!("GET {path} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    raw(rig.http, request.as_bytes()).await
}

/// Gets a path of the page.
pub async fn get(rig: &Rig, path: &str) -> Reply {
    let host = format!("Host: {}\r\n", rig.http);
    get_with(rig, path, &host).await
}

async fn ask(rig: &Rig, method: &str, path: &str) -> Reply {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
        rig.http
    );
    raw(rig.http, request.as_bytes()).await
}

/// Sends a body.
pub async fn send(rig: &Rig, method: &str, path: &str, headers: &str, body: &str) -> Reply {
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        rig.http,
        body.len()
    );
    raw(rig.http, request.as_bytes()).await
}

/// Calls QueryService as a browser does; returns messages and trailers.
async fn call(rig: &Rig, method: &str, request: &impl Message, headers: &str) -> Reply {
    let message = request.encode_to_vec();
    let mut body = vec![0];
    body.extend((message.len() as u32).to_be_bytes());
    body.extend(message);
    let head = format!(
        "POST /fleetprof.collector.v1.QueryService/{method} HTTP/1.1\r\nHost: {}\r\n\
         Connection: close\r\nContent-Type: application/grpc-web+proto\r\nX-Grpc-Web: 1\r\n{headers}\
         Content-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    raw(rig.http, &[head.into_bytes(), body].concat()).await
}

/// Messages and trailers of a gRPC-Web body.
pub fn frames(mut body: &[u8]) -> (Vec<Vec<u8>>, String) {
    let (mut messages, mut trailers) = (Vec::new(), String::new());
    while let [flag, rest @ ..] = body {
        let (size, rest) = rest.split_first_chunk::<4>().expect("a size");
        let (content, rest) = rest.split_at(u32::from_be_bytes(*size) as usize);
        match flag {
            0x80 => trailers.push_str(&String::from_utf8_lossy(content)),
            _ => messages.push(content.to_vec()),
        }
        body = rest;
    }
    (messages, trailers)
}

async fn filled() -> Rig {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    agent.store(1, &["main;read", "main;write"]).await;
    rig
}

#[tokio::test]
async fn every_answer_tells_browsers_what_they_may_do() {
    let rig = Rig::start().await;
    for path in ["/", "/metrics", "/healthz", "/nothing.js", "/api/none"] {
        let reply = get(&rig, path).await;
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.starts_with("default-src 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(reply.header("x-frame-options"), Some("DENY"));
        assert_eq!(reply.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(reply.header("access-control-allow-origin"), None, "{path}");
    }
}

#[tokio::test]
async fn the_page_is_there_and_paths_do_not_lead_out_of_it() {
    let rig = Rig::start().await;
    let page = get(&rig, "/").await;
    assert_eq!(page.status, 200);
    assert!(page.text().contains("<title>"), "{}", page.text());
    assert_eq!(get(&rig, "/index.html").await.body, page.body);
    for path in [
        "/../Cargo.toml",
        "/%2e%2e/Cargo.toml",
        "//etc/passwd.txt",
        "/a/link",
        "/a/app.js",
        "/hosts",
    ] {
        assert_eq!(get(&rig, path).await.status, 404, "{path}");
        let head = ask(&rig, "HEAD", path).await;
        assert_eq!((head.status, head.body.len()), (404, 0), "{path}");
    }
    let head = ask(&rig, "HEAD", "/").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    let length = page.body.len().to_string();
    assert_eq!(head.header("content-length"), Some(length.as_str()));
    for path in ["/", "/app.js", "/metrics", "/healthz", "/api/profile.svg"] {
        let refused = ask(&rig, "DELETE", path).await;
        assert_eq!(refused.status, 405, "{path}");
        assert!(
            refused
                .header("allow")
                .is_some_and(|allow| allow.contains("GET"))
        );
    }
}

#[tokio::test]
async fn who_takes_one_port_for_the_other_is_told() {
    let rig = Rig::start().await;
    // Any call of gRPC on the page's port.
    let mut lost = QueryServiceClient::new(channel(rig.http).await);
    let told = lost.status(wire::StatusRequest {}).await;
    let told = told.expect_err("it is no gRPC");
    assert_eq!(told.code(), tonic::Code::FailedPrecondition);
    let here = format!("gRPC is at {}", rig.grpc);
    assert!(told.message().contains(&here), "{told}");
    let mut agent = PushStream::connect(channel(rig.http).await).await;
    if let Ok(agent) = &mut agent {
        assert_eq!(agent.end().await.code(), tonic::Code::FailedPrecondition);
    }
    // A browser on the port of gRPC.
    for method in ["GET", "POST"] {
        let head = format!(
            "{method} / HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
            rig.grpc
        );
        let reply = raw(rig.grpc, head.as_bytes()).await;
        assert_eq!(reply.status, 400);
        let there = format!("the page is at http://{}/", rig.http);
        assert!(reply.text().contains(&there), "{}", reply.text());
    }
    assert!(rig.metrics.wrong_port_http.get() >= 1);
    assert_eq!(rig.metrics.wrong_port_grpc.get(), 2);
    until("they are gone", || rig.metrics.connections_grpc.get() == 0).await;
}

#[tokio::test]
async fn other_names_and_other_sites_get_nothing() {
    let rig = filled().await;
    for headers in [
        "Host: example.com\r\n",
        "Host: rebound.example.com:7610\r\n",
        "Host: localhost\r\nOrigin: http://example.com\r\n",
        "Host: localhost\r\nSec-Fetch-Site: cross-site\r\n",
        "",
    ] {
        for path in ["/", "/metrics", "/api/profile.folded"] {
            let reply = get_with(&rig, path, headers).await;
            assert!(matches!(reply.status, 400 | 403), "{path} {headers}");
            assert!(!reply.text().contains("main"), "{path} {headers}");
        }
    }
    assert!(rig.metrics.http_refused.get() >= 12);
    assert_eq!(
        get_with(&rig, "/", "Host: localhost:1\r\n").await.status,
        200
    );
}

#[tokio::test]
async fn links_of_other_sites_start_no_downloads_and_the_pages_own_do() {
    let rig = filled().await;
    let follow = async |site: &str, path: &str| {
        let headers = format!(
            "Host: {}\r\nSec-Fetch-Site: {site}\r\nSec-Fetch-Mode: navigate\r\n",
            rig.http
        );
        get_with(&rig, path, &headers).await.status
    };
    let download = "/api/profile.folded?from=0";
    assert_eq!(follow("cross-site", download).await, 403);
    assert_eq!(follow("same-site", download).await, 403);
    assert_eq!(rig.metrics.queries_ok.get(), 0);
    assert_eq!(follow("cross-site", "/").await, 200);
    assert_eq!(follow("same-origin", download).await, 200);
    assert_eq!(follow("none", download).await, 200);
}

#[tokio::test]
async fn grpc_web_answers_unary_and_streams() {
    let rig = filled().await;
    let all = wire::Selection {
        range: Some(proto::agent::TimeRange::default()),
        ..wire::Selection::default()
    };
    let request = wire::TopRequest {
        selection: Some(all.clone()),
        ..wire::TopRequest::default()
    };
    let reply = call(&rig, "Top", &request, "").await;
    assert_eq!(reply.status, 200);
    let (messages, trailers) = frames(&reply.body);
    assert!(trailers.contains("grpc-status:0"), "{trailers}");
    let top = wire::TopResponse::decode(messages[0].as_slice()).expect("a table");
    assert_eq!(top.rows.len(), 3);

    let request = wire::ProfileRequest {
        selection: Some(all),
        ..wire::ProfileRequest::default()
    };
    let own = format!(
        "Origin: http://{}\r\nSec-Fetch-Site: same-origin\r\n",
        rig.http
    );
    let reply = call(&rig, "Profile", &request, &own).await;
    let (messages, trailers) = frames(&reply.body);
    assert!(trailers.contains("grpc-status:0"), "{trailers}");
    let mut assembler = proto::ProfileAssembler::new();
    for message in &messages {
        let part = wire::ProfileResponse::decode(message.as_slice()).expect("a part");
        if let Some(chunk) = part.chunk {
            assembler.push(chunk).expect("sound");
        }
    }
    assert_eq!(assembler.finish().expect("whole").total().count, 2);
}

#[tokio::test]
async fn grpc_web_errors_are_told_and_ingest_is_not_there() {
    let rig = Rig::start().await;
    let request = wire::LabelValuesRequest::default();
    let reply = call(&rig, "LabelValues", &request, "").await;
    let told = reply.header("grpc-status").map(str::to_owned);
    let trailers = frames(&reply.body).1;
    assert!(
        told.as_deref() == Some("3") || trailers.contains("grpc-status:3"),
        "{trailers}"
    );
    let from_elsewhere = "Origin: http://example.com\r\n";
    let reply = call(&rig, "Status", &wire::StatusRequest {}, from_elsewhere).await;
    assert_eq!(reply.status, 403);
    let path = "/fleetprof.collector.v1.IngestService/Push";
    let post = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    assert!(raw(rig.http, post.as_bytes()).await.status >= 400);
}

#[tokio::test]
async fn profiles_are_downloaded_in_every_format() {
    let rig = filled().await;
    let url = |format: &str| format!("/api/profile.{format}?selector=unit%3Dweb.service&from=0");
    let folded = get(&rig, &url("folded")).await;
    assert_eq!(folded.status, 200, "{}", folded.text());
    assert_eq!(folded.text(), "main;read 10\nmain;write 10\n");
    let disposition = folded.header("content-disposition").expect("a file");
    assert!(disposition.contains(".folded\""), "{disposition}");
    for (format, kind) in [
        ("pprof", "application/octet-stream"),
        ("speedscope.json", "application/json"),
        ("svg", "image/svg+xml"),
        ("html", "text/html; charset=utf-8"),
        ("json", "application/json"),
        ("firefox.json", "application/json"),
        ("perf.txt", "text/plain; charset=utf-8"),
        ("bundle.html", "text/html; charset=utf-8"),
        ("parquet", "application/vnd.apache.parquet"),
    ] {
        let reply = get(&rig, &url(format)).await;
        assert_eq!(reply.status, 200, "{format}");
        assert_eq!(reply.header("content-type"), Some(kind));
        let policy = reply.header("content-security-policy").expect("a policy");
        assert!(policy.contains("sandbox"), "{format}: {policy}");
        assert!(!reply.body.is_empty());
    }
    let filtered = get(&rig, &(url("folded") + "&frame=keep:^write$&group_by=host")).await;
    assert_eq!(filtered.text(), "a;main;write 10\n");
    for (path, status) in [
        ("/api/profile.exe", 404),
        ("/api/profile.folded?from=yesterday", 400),
        ("/api/profile.folded?selector=unit%3D", 400),
        ("/api/profile.folded?x=1", 400),
        ("/api/profile.folded?step=10", 400),
        ("/api/profile.parquet?step=10&group_by=*", 400),
        ("/api/profile.parquet?step=10&from=1", 400),
    ] {
        assert_eq!(get(&rig, path).await.status, status, "{path}");
    }
}

/// Windows of the wide profile, each defined in one message.
const WIDE_WINDOWS: u64 = 2;

/// Stores a profile whose file is about 6 MB: more than a connection buffers in the kernel.
pub async fn store_wide(agent: &mut PushStream) {
    for number in 1..=WIDE_WINDOWS {
        let names: Vec<String> = (0..800)
            .map(|at| format!("f{number}.{at}.{}", "x".repeat(4000)))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let ack = agent.store(number, &names).await;
        assert_eq!(ack.outcome, wire::Outcome::Stored as i32, "{}", ack.reason);
    }
}

/// Asks for the wide file and reads its head and no more; returns its status and text so far.
pub async fn ask_and_do_not_read(http: SocketAddr) -> (TcpStream, String) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("a small buffer");
    let mut stream = socket.connect(http).await.expect("a connection");
    let request = format!(
        "GET /api/profile.folded?from=0 HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut head = vec![0; 1024];
    let read = stream.read(&mut head).await.expect("an answer");
    (stream, String::from_utf8_lossy(&head[..read]).into_owned())
}

#[tokio::test]
async fn files_that_are_not_read_delay_no_acknowledgement() {
    let mut options = Options::default();
    options.query.timeout = Duration::from_secs(3600);
    let rig = Rig::with(options).await;
    let mut agent = rig.agent("a").await;
    store_wide(&mut agent).await;
    // All at once: one that is not read for half a minute gives its place back.
    let mut asked = JoinSet::new();
    for _ in 0..17 {
        asked.spawn(ask_and_do_not_read(rig.http));
    }
    let mut readers = asked.join_all().await;
    let refused = |(_, answer): &(TcpStream, String)| !answer.starts_with("HTTP/1.1 200 ");
    let at = readers.iter().position(refused);
    let (_, refusal) = readers.remove(at.expect("there are sixteen places"));
    assert!(!readers.iter().any(refused));
    assert!(refusal.starts_with("HTTP/1.1 503 "), "{refusal}");
    assert!(
        refusal.to_ascii_lowercase().contains("retry-after: 5\r\n"),
        "{refusal}"
    );
    assert!(
        refusal.contains("16 answers are already being sent"),
        "{refusal}"
    );
    for number in 100..110 {
        let ack = agent.store(number, &["main"]).await;
        assert_eq!(ack.outcome, wire::Outcome::Stored as i32);
    }
    // Nor do they keep out queries and metrics.
    assert_eq!(get(&rig, "/metrics").await.status, 200);
    let top = rig.queries().await.top(wire::TopRequest::default()).await;
    assert!(top.is_ok(), "{top:?}");
    drop(readers);
    until("what they held is given back", || {
        rig.metrics.answer_bytes.get() == 0
    })
    .await;
}

#[tokio::test]
async fn files_that_wait_to_be_read_have_the_memory_of_one_query() {
    const MEMORY: usize = 20 << 20;
    let mut options = Options::default();
    options.query.memory_bytes = MEMORY;
    let rig = Rig::with(options).await;
    store_wide(&mut rig.agent("a").await).await;
    let mut readers = Vec::new();
    let refusal = loop {
        let (stream, answer) = ask_and_do_not_read(rig.http).await;
        assert!(rig.metrics.answer_bytes.get() <= MEMORY as u64);
        if !answer.starts_with("HTTP/1.1 200 ") {
            break answer;
        }
        readers.push(stream);
    };
    assert!((2..16).contains(&readers.len()), "{}", readers.len());
    assert!(refusal.starts_with("HTTP/1.1 503 "), "{refusal}");
    assert!(refusal.contains("`query.memory_mib`"), "{refusal}");
    assert!(rig.metrics.answers_refused.get() >= 1);
    drop(readers);
    until("what they held is given back", || {
        rig.metrics.answer_bytes.get() == 0
    })
    .await;
    let whole = get(&rig, "/api/profile.folded?from=0").await;
    assert_eq!(whole.status, 200);
    assert_eq!(whole.text().lines().count(), 800 * WIDE_WINDOWS as usize);
    assert_eq!(rig.metrics.answer_bytes.get(), 0);
}

#[tokio::test]
async fn a_file_larger_than_the_memory_of_a_query_is_refused_for_good() {
    let mut options = Options::default();
    options.query.memory_bytes = 10 << 20;
    let rig = Rig::with(options).await;
    store_wide(&mut rig.agent("a").await).await;
    let refused = get(&rig, "/api/profile.folded?from=0").await;
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!(
        refused.text().contains("use fewer labels"),
        "{}",
        refused.text()
    );
    assert_eq!(refused.header("retry-after"), None);
}

#[test]
fn an_acknowledgement_needs_no_thread_that_others_may_hold() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let (release, held) = std::sync::mpsc::sync_channel::<()>(1);
    runtime.block_on(async move {
        // The only blocking thread is taken, by whatever it is.
        let taken = tokio::task::spawn_blocking(move || held.recv());
        let rig = Rig::start().await;
        let mut agent = rig.agent("a").await;
        let ack = agent.store(1, &["main"]).await;
        assert_eq!(ack.outcome, wire::Outcome::Stored as i32);
        drop(release);
        let _ = taken.await.expect("it ends");
    });
}

#[tokio::test]
async fn metrics_and_health_are_there() {
    let rig = filled().await;
    let metrics = get(&rig, "/metrics").await;
    assert_eq!(metrics.status, 200);
    let text = metrics.text();
    for line in [
        "fleetprof_collector_streams_opened_total 1\n",
        "fleetprof_collector_windows_total{outcome=\"stored\"} 1\n",
        "fleetprof_store_windows 1\n",
        "# TYPE fleetprof_collector_push_seconds_total counter\n",
        "fleetprof_collector_push_duration_seconds_count 2\n",
        "fleetprof_collector_window_duration_seconds_bucket{le=\"+Inf\"} 1\n",
    ] {
        assert!(text.contains(line), "{line}{text}");
    }
    let health = get(&rig, "/healthz").await;
    assert_eq!((health.status, health.text().as_str()), (200, "ok\n"));
}

#[tokio::test]
async fn a_store_that_takes_nothing_is_not_healthy_until_it_does() {
    let rig = Rig::start().await;
    let mut agent = rig.agent("a").await;
    rig.store.set_fault(Some(Fault::Unavailable));
    agent.part(window(1, &[])).await;
    agent.end().await;
    until("it is known", || rig.metrics.push_failing.get() == 1).await;
    let health = get(&rig, "/healthz").await;
    assert_eq!(health.status, 503);
    assert!(
        health.text().contains("rejects the windows"),
        "{}",
        health.text()
    );
    rig.store.set_fault(None);
    rig.agent("a").await.store(1, &["x"]).await;
    until("it is over", || rig.metrics.push_failing.get() == 0).await;
    let health = get(&rig, "/healthz").await;
    assert_eq!((health.status, health.text().as_str()), (200, "ok\n"));
}

#[tokio::test]
async fn a_survey_that_ended_is_not_healthy() {
    let rig = Rig::start().await;
    rig.metrics.survey_ended.set(1);
    let health = get(&rig, "/healthz").await;
    assert_eq!(health.status, 503);
    assert!(
        health.text().contains("hosts in trouble"),
        "{}",
        health.text()
    );
}

#[tokio::test]
async fn connections_that_say_nothing_shut_nobody_out() {
    let rig = Rig::start().await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(TcpStream::connect(rig.http).await.expect("a connection"));
    }
    assert_eq!(get(&rig, "/healthz").await.status, 200);
    assert!(rig.metrics.connections_evicted.get() > 0);
    drop(idle);
    until("they are gone", || rig.metrics.connections_http.get() == 0).await;
}

#[tokio::test]
async fn nonsense_is_refused() {
    let rig = Rig::start().await;
    assert_eq!(raw(rig.http, b"nonsense\r\n\r\n").await.status, 400);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    assert!(raw(rig.http, long.as_bytes()).await.status >= 400);
    let post =
        "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    assert_eq!(raw(rig.http, post.as_bytes()).await.status, 405);
}

#[tokio::test]
async fn a_browser_that_leaves_ends_its_query() {
    let mut options = Options::default();
    options.query.timeout = Duration::from_secs(3600);
    let rig = Rig::with(options).await;
    rig.store.hold(true);
    let head = format!(
        "GET /api/profile.folded HTTP/1.1\r\nHost: {}\r\n\r\n",
        rig.http
    );
    let mut stream = TcpStream::connect(rig.http).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("sent");
    until("it runs", || rig.metrics.queries_running.get() == 1).await;
    drop(stream);
    until("it is given up", || rig.store.cancelled() == 1).await;
}
