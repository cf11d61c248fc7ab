//! Container runtimes that are none: what they say of a real cgroup reaches samples and nothing
//! else, and who says nothing delays nothing.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use profile::key;
use proto::agent::agent_service_client::AgentServiceClient;
use proto::agent::{GetLedgerRequest, LabelMatcher, MatchOp};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use testkit::process::wait_for;
use testkit::workload::c;
use testkit::{Cgroup, Daemon, Need, View, beside, live, require};

const NEEDS: &[Need] = &[Need::Root, Need::StaticC, Need::Cgroup2];
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const PATIENCE: Duration = Duration::from_secs(60);
/// Samples that are enough to judge by.
const ENOUGH: u64 = 40;

/// A socket, and who listens on it.
struct Engine {
    _dir: tempfile::TempDir,
    socket: PathBuf,
}

impl Engine {
    fn start(talk: impl Fn(UnixStream) + Send + Sync + 'static) -> Engine {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("docker.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let talk = Arc::new(talk);
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let talk = Arc::clone(&talk);
                std::thread::spawn(move || talk(stream));
            }
        });
        Engine { _dir: dir, socket }
    }

    /// Says this of the container, and of every other.
    fn saying(answer: serde_json::Value) -> Engine {
        let body = answer.to_string();
        Engine::start(move |mut stream| {
            // One request fits into one read.
            let _ = stream.read(&mut [0; 4096]);
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
            let _ = stream.write_all((head + &body).as_bytes());
        })
    }

    fn daemon(&self, labels: &str) -> Daemon {
        Daemon::with()
            .set("windows.length_s=1")
            .set(&format!(
                "containers.sources=docker:{}",
                self.socket.display()
            ))
            .set(&format!("containers.labels={labels}"))
            .start()
            .sampling()
    }
}

/// A cgroup named as a container's.
struct Container {
    inner: Cgroup,
    // Removed after the one in it.
    _outer: Cgroup,
}

impl Container {
    fn new() -> Container {
        let outer = Cgroup::new("runtime");
        let inner = outer.child(format!("docker-{ID}.scope"));
        Container {
            inner,
            _outer: outer,
        }
    }
}

/// Waits until there are enough samples that hold.
fn until(daemon: &Daemon, container: &Container, holds: impl Fn(&View) -> View) -> View {
    let mut last = View::default();
    let found = wait_for(PATIENCE, || {
        let everything = daemon.client().everything();
        last = holds(&everything.in_cgroup(container.inner.path()));
        (last.count() >= ENOUGH).then_some(())
    });
    assert!(found.is_some(), "{}\n{}", last.dump(), daemon.log());
    last
}

#[test]
fn a_runtime_that_hangs_delays_nothing_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    // Every connection is taken, and kept without a word.
    let engine = Engine::start(std::mem::forget);
    let container = Container::new();
    let daemon = engine.daemon("");
    let _run = c("split.c").start_in(&container.inner, &["-p", "30"]);
    let view = until(&daemon, &container, View::clone);
    for sample in &view.samples {
        assert_eq!(sample.label(key::CONTAINER), ID);
        assert_eq!(sample.label(key::CONTAINER_NAME), "");
    }
    assert!(view.count_with("spend_seventy") > 0, "{}", view.dump());
    // Its first window was the only one that waited, if it closed while the question was open.
    let late = wait_for(PATIENCE, || {
        let client = daemon.client();
        let failed = client.counter("fleetprof_containers_failed_total");
        (failed > 0).then(|| client.counter("fleetprof_containers_late_total"))
    });
    assert!(late.is_some_and(|late| late <= 1), "{late:?}");
    let status = daemon.client().status().unwrap();
    let stalled = status
        .degradations
        .iter()
        .any(|d| d.id.ends_with("stalled"));
    assert!(!stalled, "{:?}", status.degradations);
    daemon.stop();
}

#[test]
fn what_a_runtime_says_is_text_everywhere_needs_root() {
    let Some(_live) = beside(NEEDS) else { return };
    let evil = "\u{1b}]0;owned\u{7};<script>name\r\n\"'&\u{9b}31m\u{202e}";
    let huge = "<script>huge;\n".repeat(1 << 13);
    let engine = Engine::saying(serde_json::json!({
        "Id": ID,
        "Name": format!("/{evil}"),
        "Config": {"Image": huge, "Labels": {"team": evil, "tier": huge}},
    }));
    let container = Container::new();
    let daemon = engine.daemon("team,tier");
    let _run = c("split.c").start_in(&container.inner, &["-p", "30"]);
    let view = until(&daemon, &container, |view| {
        view.only(|sample| !sample.label(key::IMAGE).is_empty())
    });
    let plain = |text: &str| !text.chars().any(profile::text::is_hostile);
    for (name, value) in view.samples.iter().flat_map(|sample| &sample.labels) {
        assert!(
            plain(name) && plain(value) && value.len() < 4096,
            "{name}: {value:?}"
        );
    }
    let name = view.samples[0].label(key::CONTAINER_NAME);
    assert!(name.contains(";<script>name"), "the rest is kept: {name:?}");
    let group = "container_name,image,container.label/team,container.label/tier";
    let dir = tempfile::tempdir().unwrap();
    for format in ["folded", "json", "speedscope", "svg", "html"] {
        let file = dir.path().join(format);
        let file = file.to_str().unwrap();
        let args = ["profile", "--since", "1m", "--format", format, "-o", file];
        let by = ["--group-by", group];
        daemon.ctl(&[args.as_slice(), &by].concat()).ok();
        let text = std::fs::read_to_string(file).unwrap();
        let hostile = |c: char| profile::text::is_hostile(c) && !matches!(c, '\n' | '\t');
        assert!(!text.contains(hostile), "{format}");
        let is_page = matches!(format, "svg" | "html");
        assert!(!is_page || !text.contains("<script>name"), "{format}");
    }
    let selector = format!("container_name={name:?}");
    let listed = daemon.ctl(&["cgroups", "--json"]).ok().text();
    assert!(listed.contains(ID) && !listed.contains('\u{1b}'));
    let chosen = [
        "profile",
        "--since",
        "1m",
        "--format",
        "folded",
        "--selector",
        &selector,
    ];
    let folded = daemon.ctl(&chosen).ok().text();
    assert!(folded.contains("spend_seventy"), "{folded}");
    daemon.stop();
}

#[test]
fn selections_by_name_have_the_kernels_accounting_beside_them_needs_root() {
    let Some(_live) = live(NEEDS) else { return };
    let engine = Engine::saying(serde_json::json!({
        "Id": ID, "Name": "/web-1", "Config": {"Image": "web:1", "Labels": {"team": "blue"}},
    }));
    let container = Container::new();
    let daemon = engine.daemon("team");
    let _run = c("split.c").start_in(&container.inner, &["-p", "30"]);
    until(&daemon, &container, |view| {
        view.only(|sample| sample.label(key::CONTAINER_NAME) == "web-1")
    });
    for (label, value) in [("image", "web:1"), ("container.label/team", "blue")] {
        let request = GetLedgerRequest {
            matchers: vec![LabelMatcher {
                label: label.to_owned(),
                op: MatchOp::Equal.into(),
                value: value.to_owned(),
            }],
            ..GetLedgerRequest::default()
        };
        let accounted = wait_for(PATIENCE, || {
            let client = daemon.client();
            let mut agent = AgentServiceClient::new(client.channel());
            let answer = client.block_on(agent.get_ledger(request.clone())).unwrap();
            let rows = answer.into_inner().rows;
            let row = rows.into_iter().find(|row| row.container == ID)?;
            assert_eq!((&*row.container_name, &*row.image), ("web-1", "web:1"));
            row.expected.filter(|expected| expected.ns > 0)
        });
        assert!(accounted.is_some(), "{label}");
    }
    daemon.stop();
}

#[test]
fn systemd_scopes_and_slices_are_labels_needs_root() {
    let needs = [NEEDS, &[Need::Program("systemd-run")]].concat();
    if !require::met(&needs) {
        return;
    }
    if !std::path::Path::new("/run/systemd/system").is_dir() {
        return testkit::cannot("needs systemd as the init of this machine");
    }
    let Some(_live) = beside(&needs) else { return };
    let daemon = Daemon::with().set("windows.length_s=1").start().sampling();
    let unit = format!("fleetprof-test-{}", std::process::id());
    let mut command = std::process::Command::new("systemd-run");
    command
        .args([
            "--scope",
            "--quiet",
            "--collect",
            "--slice=fleetprof-tests.slice",
        ])
        .arg(format!("--unit={unit}"))
        .arg(c("split.c").build());
    let _run = testkit::Workload::spawn(&mut command);
    let found = wait_for(PATIENCE, || {
        let view = daemon.client().everything().only(|sample| {
            sample.label(key::UNIT) == format!("{unit}.scope")
                && sample.label(key::SLICE) == "fleetprof-tests.slice"
                && sample.has("spend_seventy")
        });
        (view.count() >= ENOUGH).then_some(())
    });
    assert!(found.is_some(), "{}", daemon.client().everything().dump());
    daemon.stop();
}
