//! Fake runtimes: servers that answer as real ones were seen to answer, or as none should.

mod cri;
mod http;
mod kept;

use super::*;
use crate::Labels;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Instant;
use tempfile::TempDir;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A socket and somebody behind it, for each connection a thread.
struct Server {
    _dir: TempDir,
    path: PathBuf,
    calls: Arc<AtomicU64>,
}

impl Server {
    /// Hands each connection to `talk`.
    fn start(talk: impl Fn(UnixStream) + Send + Sync + 'static) -> Server {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let calls = Arc::new(AtomicU64::new(0));
        let (talk, counted) = (Arc::new(talk), Arc::clone(&calls));
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                counted.fetch_add(1, Ordering::Relaxed);
                let talk = Arc::clone(&talk);
                std::thread::spawn(move || talk(stream));
            }
        });
        Server {
            _dir: dir,
            path,
            calls,
        }
    }

    /// Answers each path with bytes; what it does not know with 404.
    fn http(answers: Vec<(String, Vec<u8>)>) -> Server {
        Server::start(move |mut stream| {
            let Some(path) = requested(&mut stream) else {
                return;
            };
            let found = answers.iter().find(|(known, _)| *known == path);
            let _ = match found {
                Some((_, answer)) => stream.write_all(answer),
                None => stream.write_all(&response("404 Not Found", b"{\"message\":\"no\"}")),
            };
        })
    }

    /// As the configuration names it.
    fn source(&self, kind: &str) -> Source {
        format!("{kind}:{}", self.path.display()).parse().unwrap()
    }
}

/// The path of a request, when it is a GET.
fn requested(stream: &mut UnixStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).ok()?;
    let path = head.strip_prefix("GET ")?.split(' ').next()?;
    Some(path.to_owned())
}

fn response(status: &str, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

/// Containers that are asked for, until dropped.
struct Asking {
    containers: Containers,
    counts: Arc<ProviderCounts>,
}

impl Asking {
    fn of(sources: Vec<Source>, chosen: &[&str]) -> Asking {
        let counts = Arc::new(ProviderCounts::default());
        let chosen = chosen.iter().map(|&name| name.into()).collect();
        let (containers, provider) = Containers::new(sources, &chosen, Arc::clone(&counts));
        std::thread::spawn(move || provider.run());
        Asking { containers, counts }
    }

    /// Meets a container and waits until it was asked for, late or not.
    fn learn(&self, id: &str, runtime: Option<&'static str>) -> Option<Arc<Metadata>> {
        let before = self.answered();
        self.containers.meet([(id, runtime)]);
        self.wait(|| self.answered() > before);
        self.known(id)
    }

    fn known(&self, id: &str) -> Option<Arc<Metadata>> {
        self.containers.of(&Labels {
            container: Some(id.into()),
            ..Labels::default()
        })
    }

    fn answered(&self) -> u64 {
        self.counts.found.load(Ordering::Relaxed) + self.counts.unknown.load(Ordering::Relaxed)
    }

    fn failed(&self, cause: Cause) -> u64 {
        self.counts.failed[cause as usize].load(Ordering::Relaxed)
    }

    fn wait(&self, until: impl Fn() -> bool) {
        let started = Instant::now();
        while !until() {
            assert!(started.elapsed() < PATIENCE, "{:?}", self.counts);
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// Compares the labels as `key=value`, one each line.
fn check(found: Option<Arc<Metadata>>, expected: &[&str]) {
    let found = found.expect("somebody knows it");
    let pairs = found.pairs();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(pairs, expected);
}

#[test]
fn sources_are_read_as_they_are_written() {
    for text in ["docker:/run/docker.sock", "bundles:/run/x", "cri:/a:b"] {
        let source: Source = text.parse().unwrap();
        assert_eq!(source.to_string(), text);
    }
    for text in [
        "",
        "auto",
        "docker",
        "docker:",
        "docker:run",
        "dockerd:/run/x",
        ":/x",
    ] {
        assert!(text.parse::<Source>().is_err(), "{text}");
    }
    let list = ["auto".to_owned(), "podman:/x".to_owned()];
    let sources = Source::of_config(&list);
    assert_eq!(sources.len(), Source::usual().count() + 1);
}

#[test]
fn what_is_no_id_is_asked_of_nobody() {
    let server = Server::http(Vec::new());
    let asking = Asking::of(vec![server.source("docker")], &[]);
    let names = [
        "web",
        "",
        "../../etc/passwd",
        "ABCDEF0123456789",
        &"a".repeat(65),
    ];
    asking.containers.meet(names.map(|name| (name, None)));
    asking
        .containers
        .meet([(ID, Some("lxc")), (ID, Some("systemd-nspawn"))]);
    assert_eq!(asking.counts.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn without_anybody_to_ask_nothing_is_known() {
    let containers = Containers::none();
    containers.meet([(ID, None)]);
    let labels = Labels {
        container: Some(ID.into()),
        ..Labels::default()
    };
    assert_eq!(containers.of(&labels), None);
    let asking = Asking::of(Vec::new(), &[]);
    assert_eq!(asking.learn(ID, None), None);
}
