//! The page in a browser, against the program itself with windows of this hour.
//!
//! What is looked at stands in `ui/tests/e2e/real.test.ts`, which knows the data that is made up
//! here.

use crate::program::Program;
use crate::rig::{PushStream, channel, hello, labels, starting, window};
use proto::collector::Outcome;
use rustix::process::{Pid, Signal, kill_process_group};
use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use testkit::clock::unix_ns;

/// Longest that the browser may take, on a loaded machine.
const BROWSER_LIMIT: Duration = Duration::from_secs(240);

/// Windows of a minute that each host pushes: nearly an hour, which the page shows without being
/// asked.
const MINUTES: u64 = 55;

/// When a function was replaced by another. Unit: minutes ago.
const DEPLOYED: u64 = 25;

const MINUTE_NS: i64 = 60_000_000_000;

/// Names that strangers gave.
const HOSTILE: [&str; 3] = [
    "main;<script>window.__pwned = 1</script>",
    "main;\u{1b}[31mred",
    "main;safe\u{202e}elif",
];

/// What a host has: its stacks `ago` minutes ago, and its cgroup.
fn made_up(host: &str, ago: u64) -> (Vec<&'static str>, &'static str) {
    if host == "db-1" {
        let cgroup = "/evil.slice/<img src=x onerror=window.__pwned=1>";
        return (HOSTILE.to_vec(), cgroup);
    }
    let hash = match ago < DEPLOYED {
        true => "main;handle;xxhash",
        false => "main;handle;crc32",
    };
    (
        vec!["main;handle;parse", hash, "main;handle"],
        "/system.slice/web.service",
    )
}

async fn push(program: &Program, host: &str) {
    let agent = PushStream::connect(channel(program.grpc).await).await;
    let mut agent = agent.expect("a stream");
    let mut who = hello(host, 1);
    who.now_unix_ns = unix_ns();
    agent.hello(who).await;
    let now = unix_ns();
    for ago in (1..=MINUTES).rev() {
        let (stacks, cgroup) = made_up(host, ago);
        let mut part = starting(now - ago as i64 * MINUTE_NS, window(0, &stacks));
        let unit = cgroup.rsplit('/').next().unwrap_or_default();
        part.label_sets = vec![labels(&[("cgroup", cgroup), ("unit", unit)])];
        part.sample_counts = (1..=stacks.len() as u64).map(|at| at * 100).collect();
        let facts = part.facts.as_mut().expect("facts");
        facts.duration_ns = MINUTE_NS as u64;
        facts.period = 10_000_000;
        facts.account_label_sets.clear();
        facts.account_ns.clear();
        facts.account_estimated_ns.clear();
        let ack = agent.store_part(part, &stacks).await;
        assert_eq!(ack.outcome, Outcome::Stored as i32, "{}", ack.reason);
    }
}

/// What is missing for a browser test, if anything.
fn missing(ui: &Path) -> Option<&'static str> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let has = |name: &str| std::env::split_paths(&paths).any(|dir| dir.join(name).is_file());
    let chromium = [
        "chromium-headless-shell",
        "chromium",
        "chromium-browser",
        "google-chrome",
    ];
    if !ui.join("node_modules/vitest").is_dir() {
        Some("needs the page's packages: `npm ci` in collector/ui")
    } else if !has("npm") {
        Some("needs npm")
    } else if std::env::var_os("CHROMIUM").is_none() && !chromium.iter().any(|name| has(name)) {
        Some("needs chromium")
    } else {
        None
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_of_the_program_works_in_a_browser() {
    let ui = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui");
    if let Some(why) = missing(&ui) {
        testkit::skip(format_args!("{why}"));
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let program = Program::start(dir.path());
    tokio::join!(
        push(&program, "web-1"),
        push(&program, "web-2"),
        push(&program, "db-1")
    );
    let mut child = Command::new("npm")
        .args(["run", "--silent", "real"])
        .current_dir(&ui)
        .env("BASE_URL", format!("http://{}", program.http))
        .env("GRPC_URL", format!("http://{}", program.grpc))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // With all it starts, so that all of it ends.
        .process_group(0)
        .spawn()
        .expect("npm starts");
    let mut out = child.stdout.take().expect("a pipe");
    let said = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = out.read_to_string(&mut said);
        said
    });
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().expect("a status") {
            Some(status) => break Some(status),
            None if begin.elapsed() < BROWSER_LIMIT => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            None => {
                let group = Pid::from_child(&child);
                kill_process_group(group, Signal::KILL).expect("it is there");
                break child.wait().ok();
            }
        }
    };
    let said = said.join().expect("no panic");
    println!("{said}");
    assert!(status.is_some_and(|status| status.success()), "{status:?}");
}
