//! Profiles that are exported: what arrives at a real receiver is what is stored, once, whatever
//! happens to the receiver, the collector and its agents.

use crate::program::{Program, push_at};
use crate::rig::{LIMIT, Options, Rig, SECOND, until};
use crate::web::{get, raw};
use collector::config::{OtlpProtocol, OtlpTarget};
use collector::export::ExportOptions;
use collector::senders::SenderOptions;
use flate2::read::GzDecoder;
use proto::collector::StatusRequest;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use testkit::process::wait_for;
use testkit::require;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const SENT: &str = "sent_cpu:cpu:nanoseconds:cpu:nanoseconds";

const PATH: &str = "/v1development/profiles";

/// The first window of a complete minute, 200 seconds ago. Windows up to 351 are due.
const FIRST: u64 = 340;

/// A receiver over HTTP that answers as a test says, and keeps what it took.
#[derive(Clone)]
struct Receiver {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    /// Further lines of the head, and the body.
    answer: Arc<Mutex<(String, Vec<u8>)>>,
    is_silent: Arc<AtomicBool>,
    attempts: Arc<AtomicU32>,
    got: Arc<Mutex<Vec<Vec<u8>>>>,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Receiver {
    async fn start() -> Receiver {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let receiver = Receiver {
            address: listener.local_addr().expect("an address"),
            status: Arc::new(AtomicU16::new(200)),
            answer: Arc::default(),
            is_silent: Arc::default(),
            attempts: Arc::default(),
            got: Arc::default(),
            heads: Arc::default(),
        };
        let serving = receiver.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(stream));
            }
        });
        receiver
    }

    async fn serve(self, mut stream: TcpStream) -> Option<()> {
        let mut bytes = Vec::new();
        let (head, end) = loop {
            let mut piece = [0; 65536];
            let read = stream
                .read(&mut piece)
                .await
                .ok()
                .filter(|read| *read > 0)?;
            bytes.extend_from_slice(&piece[..read]);
            let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
            let Some(end) = end else { continue };
            let head = String::from_utf8_lossy(&bytes[..end]).to_ascii_lowercase();
            let length = head.split("content-length: ").nth(1).expect("a length");
            let length = length.lines().next().expect("a line").parse::<usize>();
            if bytes.len() >= end + 4 + length.expect("a number") {
                break (head, end + 4);
            }
        };
        self.attempts.fetch_add(1, Ordering::Relaxed);
        if self.is_silent.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        assert!(head.starts_with(&format!("post {PATH} ")), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        assert!(head.contains("content-encoding: gzip"), "{head}");
        let status = self.status.load(Ordering::Relaxed);
        if status == 200 {
            let mut plain = Vec::new();
            let read = GzDecoder::new(&bytes[end..]).read_to_end(&mut plain);
            read.expect("gzip");
            self.got.lock().expect("no panic").push(plain);
        }
        self.heads.lock().expect("no panic").push(head);
        let (more, body) = self.answer.lock().expect("no panic").clone();
        let length = body.len();
        let answer = format!(
            "HTTP/1.1 {status} X\r\n{more}Connection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream
            .write_all(&[answer.as_bytes(), &body].concat())
            .await
            .ok()
    }

    fn answers(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    fn attempts(&self) -> u32 {
        self.attempts.load(Ordering::Relaxed)
    }

    fn got(&self) -> Vec<Vec<u8>> {
        self.got.lock().expect("no panic").clone()
    }

    /// Hands on what it took from a collector to another at the same time, and returns that.
    async fn reads(&self, from: &Rig) -> Rig {
        let rig = taker(1000).await;
        let now = from.clock.load(Ordering::Relaxed);
        rig.clock.store(now, Ordering::Relaxed);
        for body in self.got() {
            let head = format!(
                "POST {PATH} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
                 Content-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
                rig.http,
                body.len()
            );
            let reply = raw(rig.http, &[head.as_bytes(), &body].concat()).await;
            assert_eq!(reply.status, 200, "{}", reply.text());
            assert!(reply.body.is_empty(), "{}", reply.text());
        }
        rig
    }
}

/// A collector that takes profiles of others, up to so many series.
async fn taker(series: usize) -> Rig {
    Rig::with(Options {
        senders: Some(SenderOptions {
            request_bytes: 4 << 20,
            bytes_per_minute: 100 << 20,
            series,
        }),
        ..Options::default()
    })
    .await
}

fn export(dir: &Path, url: &str, protocol: OtlpProtocol) -> ExportOptions {
    ExportOptions {
        dir: dir.to_owned(),
        target: OtlpTarget {
            url: url.parse().expect("a URL"),
            protocol,
            headers_file: None,
            ca_file: None,
            cert: None,
        },
        selector: "".parse().expect("a selector"),
        service_labels: vec!["unit".to_owned()],
        interval_ns: 60 * SECOND,
        backlog_ns: 3600 * SECOND,
        retry: (Duration::from_millis(1), Duration::from_millis(4)),
    }
}

fn to(receiver: &Receiver, dir: &Path) -> Options {
    let url = format!("http://{}", receiver.address);
    Options {
        export: Some(export(dir, &url, OtlpProtocol::Http)),
        ..Options::default()
    }
}

fn own() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

async fn round(rig: &Rig) {
    rig.export.as_ref().expect("it exports").round().await;
}

/// Rounds until nothing that is due waits.
async fn rounds(rig: &Rig, waiting: u64) {
    let exporting = async {
        loop {
            round(rig).await;
            if rig.metrics.export_waiting.get() == waiting {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let done = tokio::time::timeout(LIMIT, exporting).await;
    done.expect("everything is sent");
}

/// The folded stacks of a type, with their weights.
async fn folded(rig: &Rig, profile_type: &str) -> BTreeMap<String, u64> {
    let reply = get(
        rig,
        &format!("/api/profile.folded?from=0&type={profile_type}"),
    )
    .await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    let text = reply.text();
    let lines = text.lines().filter_map(|line| line.rsplit_once(' '));
    lines
        .map(|(stack, weight)| (stack.to_owned(), weight.parse().expect("a weight")))
        .collect()
}

/// Two minutes of two hosts.
async fn fill(rig: &Rig) {
    for host in ["a", "b"] {
        let mut agent = rig.agent(host).await;
        for number in FIRST..FIRST + 12 {
            agent
                .store(number, &["main;read", "main;write;flush", "idle"])
                .await;
        }
    }
}

async fn troubles(rig: &Rig) -> Vec<String> {
    let status = rig.queries().await.status(StatusRequest::default()).await;
    let found = status.expect("a status").into_inner().degradations;
    let found = found.into_iter().filter(|one| one.id == "otlp_export");
    found.map(|one| one.message).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_arrives_is_what_is_stored() {
    for protocol in [OtlpProtocol::Grpc, OtlpProtocol::Http] {
        let (to, dir) = (taker(1000).await, own());
        let address = match protocol {
            OtlpProtocol::Grpc => to.grpc,
            OtlpProtocol::Http => to.http,
        };
        let url = format!("http://{address}");
        let from = Rig::with(Options {
            export: Some(export(dir.path(), &url, protocol)),
            ..Options::default()
        })
        .await;
        fill(&from).await;
        round(&from).await;
        let stored = folded(&from, "").await;
        assert_eq!(stored.len(), 3);
        assert_eq!(folded(&to, SENT).await, stored, "{protocol:?}");
        assert_eq!(from.metrics.export_sent.get(), 24, "twelve of each");
        assert_eq!(
            from.metrics.export_profiles.get(),
            4,
            "a host and a minute each"
        );
        assert_eq!(to.metrics.sent_otlp_new.get(), 1);
        assert_eq!(troubles(&from).await, Vec::<String>::new());
        // A resource is the service, on its host.
        let of = |label: &str, value: &str| format!("{SENT}&selector={label}%3D%22{value}%22");
        for (label, value) in [
            ("service_name", "web.service"),
            ("systemd.unit", "web.service"),
            ("otel.scope.name", "fleetprof-collector"),
        ] {
            assert_eq!(folded(&to, &of(label, value)).await, stored, "{label}");
        }
        let half = folded(&to, &of("host", "a")).await;
        assert!(
            half.iter()
                .all(|(stack, weight)| stored[stack] == 2 * weight)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_ten_minutes_without_a_receiver_everything_arrives_once() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    let mut agent = rig.agent("a").await;
    receiver.answers(503);
    let mut number = FIRST;
    for _ in 0..10 {
        for _ in 0..6 {
            agent.store(number, &["main;read"]).await;
            number += 1;
        }
        rig.clock.fetch_add(60 * SECOND, Ordering::Relaxed);
        round(&rig).await;
    }
    assert!(receiver.attempts() > 0 && receiver.got().is_empty());
    let troubles_then = troubles(&rig).await;
    assert_eq!(troubles_then.len(), 1);
    assert!(
        troubles_then[0].contains("it answered 503"),
        "{troubles_then:?}"
    );
    assert!(
        troubles_then[0].contains("10 min of hosts wait"),
        "{troubles_then:?}"
    );
    assert_eq!(rig.metrics.export_failing.get(), 1);
    receiver.answers(200);
    rounds(&rig, 0).await;
    assert_eq!(
        folded(&receiver.reads(&rig).await, SENT).await,
        folded(&rig, "").await
    );
    assert_eq!(troubles(&rig).await, Vec::<String>::new());
    assert_eq!(rig.metrics.export_sent.get(), 60);
    let gone = [&rig.metrics.export_too_old, &rig.metrics.export_empty];
    assert!(gone.iter().all(|counter| counter.get() == 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_longer_outage_than_the_bound_gives_up_the_oldest_and_counts_it() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    fill(&rig).await;
    rig.clock
        .fetch_add(3600 * SECOND - 140 * SECOND, Ordering::Relaxed);
    round(&rig).await;
    assert_eq!(
        rig.metrics.export_too_old.get(),
        12,
        "a minute of two hosts"
    );
    assert_eq!(rig.metrics.export_sent.get(), 12);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_that_is_started_again_goes_on_where_it_was() {
    let (receiver, dir) = (Receiver::start().await, own());
    let first = Rig::with(to(&receiver, dir.path())).await;
    fill(&first).await;
    round(&first).await;
    let before = receiver.got().len();
    // Not due yet, and a minute of before that comes late.
    let mut agent = first.agent("a").await;
    agent.store(FIRST + 12, &["main;read"]).await;
    agent.store(FIRST - 12, &["main;read"]).await;
    first.export.as_ref().expect("it exports").close();
    let second = Rig::on(first.store.clone(), to(&receiver, dir.path())).await;
    second.clock.fetch_add(120 * SECOND, Ordering::Relaxed);
    round(&second).await;
    assert_eq!(receiver.got().len(), before + 1);
    assert_eq!(second.metrics.export_sent.get(), 2, "and nothing again");
    assert_eq!(
        folded(&receiver.reads(&second).await, SENT).await,
        folded(&first, "").await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_crash_what_was_stored_last_is_found_in_the_store() {
    let (receiver, dir) = (Receiver::start().await, own());
    let first = Rig::with(to(&receiver, dir.path())).await;
    fill(&first).await;
    round(&first).await;
    let mut agent = first.agent("a").await;
    // After the first start, before which nothing is sent that is not told.
    first.clock.fetch_add(60 * SECOND, Ordering::Relaxed);
    agent.store(FIRST + 20, &["main;read"]).await;
    agent.store(FIRST + 21, &["main;read"]).await;
    // Nobody closes it.
    let second = Rig::on(first.store.clone(), to(&receiver, dir.path())).await;
    second.clock.fetch_add(240 * SECOND, Ordering::Relaxed);
    round(&second).await;
    assert_eq!(second.metrics.export_sent.get(), 2);
    assert_eq!(
        folded(&receiver.reads(&second).await, SENT).await,
        folded(&first, "").await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_again_is_known_by_its_ids() {
    let (receiver, dirs) = (Receiver::start().await, [own(), own()]);
    let first = Rig::with(to(&receiver, dirs[0].path())).await;
    let mut agent = first.agent("a").await;
    for number in FIRST..FIRST + 6 {
        agent.store(number, &["main;read"]).await;
    }
    // As after a crash between the answer and the write of the file.
    first.export.as_ref().expect("it exports").close();
    let file = "otlp.json";
    std::fs::copy(dirs[0].path().join(file), dirs[1].path().join(file)).expect("copied");
    round(&first).await;
    let second = Rig::on(first.store.clone(), to(&receiver, dirs[1].path())).await;
    round(&second).await;
    let got = receiver.got();
    assert_eq!(got.len(), 2);
    assert!(got[0] == got[1], "the same bytes, and so the same ids");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_cannot_be_read_is_told_and_kept() {
    let (receiver, dir) = (Receiver::start().await, own());
    std::fs::write(dir.path().join("otlp.json"), "{").expect("written");
    let rig = Rig::with(to(&receiver, dir.path())).await;
    let found = troubles(&rig).await;
    assert!(found[0].contains("is kept as `otlp.damaged`"), "{found:?}");
    assert!(dir.path().join("otlp.damaged").exists());
    fill(&rig).await;
    round(&rig).await;
    assert_eq!(rig.metrics.export_sent.get(), 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_that_come_late_are_sent_and_the_others_not_again() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    let mut agent = rig.agent("a").await;
    for number in [FIRST, FIRST + 1, FIRST + 3, FIRST + 4, FIRST + 5] {
        agent.store(number, &["main;read"]).await;
    }
    round(&rig).await;
    assert_eq!(rig.metrics.export_sent.get(), 5);
    agent.store(FIRST + 2, &["main;late"]).await;
    round(&rig).await;
    assert_eq!(rig.metrics.export_sent.get(), 6);
    assert_eq!(
        folded(&receiver.reads(&rig).await, SENT).await,
        folded(&rig, "").await
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minute_waits_for_windows_on_their_way() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    let mut agent = rig.agent("a").await;
    agent.store(FIRST + 12, &["main;read"]).await;
    round(&rig).await;
    assert_eq!(
        (receiver.attempts(), rig.metrics.export_waiting.get()),
        (0, 1)
    );
    rig.clock.fetch_add(10 * SECOND, Ordering::Relaxed);
    round(&rig).await;
    assert_eq!(
        (receiver.attempts(), rig.metrics.export_waiting.get()),
        (1, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_receiver_refuses_is_dropped_and_told() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    receiver.answers(400);
    fill(&rig).await;
    round(&rig).await;
    assert_eq!(receiver.attempts(), 1);
    assert_eq!(rig.metrics.export_refused.get(), 24);
    assert_eq!(rig.metrics.export_profiles_refused.get(), 4);
    assert_eq!(rig.metrics.export_waiting.get(), 0);
    let found = troubles(&rig).await;
    assert!(
        found[0].contains("refuses them: it answered 400"),
        "{found:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_with_no_room_is_asked_again_but_not_forever() {
    let (to, dir) = (taker(1).await, own());
    let url = format!("http://{}", to.grpc);
    let rig = Rig::with(Options {
        export: Some(export(dir.path(), &url, OtlpProtocol::Grpc)),
        ..Options::default()
    })
    .await;
    fill(&rig).await;
    rounds(&rig, 0).await;
    assert_eq!(rig.metrics.export_requests_failed.get(), 4);
    assert_eq!(rig.metrics.export_requests_refused.get(), 1);
    assert_eq!(rig.metrics.export_refused.get(), 24);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_people_can_put_right_is_kept_for_them() {
    // It takes no profiles of others.
    let (to, dir) = (Rig::start().await, own());
    let url = format!("http://{}", to.grpc);
    let rig = Rig::with(Options {
        export: Some(export(dir.path(), &url, OtlpProtocol::Grpc)),
        ..Options::default()
    })
    .await;
    fill(&rig).await;
    round(&rig).await;
    assert_eq!(rig.metrics.export_waiting.get(), 24);
    let found = troubles(&rig).await;
    assert!(found[0].contains("it answered Unimplemented"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_says_when_to_come_again_is_left_alone_until_then() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    receiver.answers(429);
    receiver.answer.lock().expect("no panic").0 = "Retry-After: 3600\r\n".to_owned();
    fill(&rig).await;
    for _ in 0..3 {
        round(&rig).await;
        // Longer than the longest wait without the header.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(receiver.attempts(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn profiles_that_are_rejected_from_a_request_are_counted() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    // `partial_success` with one rejected profile and a sentence.
    let partial = [&b"\x0a\x0b\x08\x01\x12\x07"[..], b"no room"].concat();
    receiver.answer.lock().expect("no panic").1 = partial;
    fill(&rig).await;
    round(&rig).await;
    assert_eq!(rig.metrics.export_profiles_rejected.get(), 1);
    assert_eq!(rig.metrics.export_profiles.get(), 3);
    assert_eq!(
        rig.metrics.export_waiting.get(),
        0,
        "they are not sent again"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_does_not_answer_holds_up_nobody() {
    let (receiver, dir) = (Receiver::start().await, own());
    let rig = Rig::with(to(&receiver, dir.path())).await;
    fill(&rig).await;
    receiver.is_silent.store(true, Ordering::Relaxed);
    let export = rig.export.clone().expect("it exports");
    let exporting = tokio::spawn(async move { export.round().await });
    until("an attempt", || receiver.attempts() == 1).await;
    let mut agent = rig.agent("a").await;
    agent.store(FIRST + 12, &["main;read"]).await;
    assert_eq!(folded(&rig, "").await.len(), 3);
    assert_eq!(troubles(&rig).await, Vec::<String>::new());
    assert!(!exporting.is_finished());
    exporting.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_what_is_selected_is_sent_and_nothing_of_other_senders() {
    let (receiver, dir) = (Receiver::start().await, own());
    let mut options = to(&receiver, dir.path());
    options.senders = Some(SenderOptions {
        request_bytes: 4 << 20,
        bytes_per_minute: 100 << 20,
        series: 100,
    });
    let export = options.export.as_mut().expect("it exports");
    export.selector = "host=\"b\"".parse().expect("a selector");
    let rig = Rig::with(options).await;
    let body = include_bytes!("otlp/1.10.pb");
    let head = format!(
        "POST {PATH} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\
         Content-Type: application/x-protobuf\r\nContent-Length: {}\r\n\r\n",
        rig.http,
        body.len()
    );
    let reply = raw(rig.http, &[head.as_bytes(), body].concat()).await;
    assert_eq!(reply.status, 200, "{}", reply.text());
    fill(&rig).await;
    rig.clock.fetch_add(300 * SECOND, Ordering::Relaxed);
    round(&rig).await;
    let selected = folded(&rig, "&selector=host%3Db").await;
    assert_eq!(folded(&receiver.reads(&rig).await, SENT).await, selected);
    assert_eq!(
        (
            rig.metrics.export_sent.get(),
            rig.metrics.export_empty.get()
        ),
        (12, 12)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_of_a_file_come_with_each_request() {
    let (receiver, dir) = (Receiver::start().await, own());
    let file = dir.path().join("headers");
    std::fs::write(&file, "Authorization: Bearer old\n").expect("written");
    let mut options = to(&receiver, dir.path());
    options
        .export
        .as_mut()
        .expect("it exports")
        .target
        .headers_file = Some(file.clone());
    let rig = Rig::with(options).await;
    let mut agent = rig.agent("a").await;
    agent.store(FIRST, &["main;read"]).await;
    round(&rig).await;
    std::fs::write(&file, "Authorization: Bearer new\n").expect("written");
    agent.store(FIRST + 6, &["main;read"]).await;
    round(&rig).await;
    let heads = receiver.heads.lock().expect("no panic").clone();
    assert!(
        heads[0].contains("authorization: bearer old"),
        "{}",
        heads[0]
    );
    assert!(
        heads[1].contains("authorization: bearer new"),
        "{}",
        heads[1]
    );
    std::fs::remove_file(&file).expect("removed");
    agent.store(FIRST + 7, &["main;read"]).await;
    round(&rig).await;
    assert_eq!(
        rig.metrics.export_waiting.get(),
        1,
        "nothing goes without its token"
    );
    let found = troubles(&rig).await;
    assert!(found[0].contains("failed to use"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_confined_program_exports_to_another() {
    let (here, there) = (own(), own());
    let to = Program::start_with(there.path(), &["--set", "senders.enabled=true"]);
    let url = format!("export.otlp.url=http://{}", to.grpc);
    let from = Program::start_with(here.path(), &["--set", &url]);
    // A minute ago and more, so it is due.
    push_at(&from, (0..6).map(|number| (300 + 10 * number) * SECOND)).await;
    let found = wait_for(LIMIT, || {
        let log = from.log();
        assert!(!log.contains("are not exported"), "{log}");
        std::fs::read_dir(there.path().join("senders")).ok()?;
        exported(&from).filter(|sent| *sent >= 6)
    });
    assert_eq!(found, Some(6), "{}", from.log());
    assert!(from.end(Signal::TERM).success());
    assert!(here.path().join("export/otlp.json").exists());
    assert!(to.end(Signal::TERM).success());
}

/// The Python with OpenTelemetry's classes, where `collector/tests/otlp.sh` put it.
fn python() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let cache = cache.or_else(home).unwrap_or_default();
    let path = cache.join("fleetprof/opentelemetry-1.45.2/bin/python");
    path.exists().then_some(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn opentelemetrys_own_classes_find_no_rule_broken() {
    let Some(python) = python() else {
        return require::skip("no OpenTelemetry for Python; collector/tests/otlp.sh installs it");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/server/otlp/receive.py");
    let mut receiver = Command::new(python)
        .arg(script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(receiver.stdout.take().expect("an output")).lines();
    let mut line = || lines.next().expect("a line").expect("text");
    let port = line();
    let port = port.strip_prefix("port=").expect("a port");
    let (dir, url) = (own(), format!("http://127.0.0.1:{port}"));
    let rig = Rig::with(Options {
        export: Some(export(dir.path(), &url, OtlpProtocol::Grpc)),
        ..Options::default()
    })
    .await;
    fill(&rig).await;
    rounds(&rig, 0).await;
    assert_eq!(line(), "profiles=4 samples=12 problems=[]");
    // It ends with its input.
    drop(receiver.stdin.take());
    receiver.wait().expect("it ends");
}

/// Slices that a program has sent.
fn exported(program: &Program) -> Option<u64> {
    use std::io::Write;
    let mut stream = std::net::TcpStream::connect(program.http).ok()?;
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        program.http
    );
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    let name = "fleetprof_collector_otlp_export_slices_total{outcome=\"sent\"} ";
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().parse().ok()
}
