//! Names that no host has: a stripped program has them in answers about windows that the collector
//! has stored already, once its symbols were uploaded or a debuginfod server was found to have
//! them.
#![expect(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use testkit::ctl::ctl;
use testkit::fleet::{Collector, Options};
use testkit::process::{Output, Proc, run, wait_for};
use testkit::workload::{Workload, bare_c};
use testkit::{Daemon, Need, beside};

/// Longest wait for windows to arrive, or for a server to have looked at its files.
const ARRIVE: Duration = Duration::from_secs(90);

/// Longest that a tool takes.
const TOOL: Duration = Duration::from_secs(60);

/// Functions of `split.c` that are on all of its stacks.
const FUNCTIONS: [&str; 3] = [";main;", ";run_part;", ";spend_seventy"];

/// In the first moments of a program its unwind information is not read yet.
const CUT: &str = "[truncated]";

/// What a stack that is not cut has, whatever of the program has names.
const WHOLE: &str = "__libc_start_call_main;";

/// What stands for a function without a name.
const NO_NAME: &str = "[stripped]";

/// `split.c` as a distribution has it: the program stripped, its symbols in a file of their own.
fn stripped(dir: &Path) -> (PathBuf, PathBuf) {
    let whole = bare_c("split.c", &["-Wl,--build-id", "-DTWIST=7"]).build();
    let (program, debug) = (dir.join("stripped"), dir.join("program.debug"));
    let objcopy = |option: &str, to: &Path| {
        let mut command = Command::new("objcopy");
        run(command.arg(option).arg(&whole).arg(to), TOOL).ok();
    };
    objcopy("--only-keep-debug", &debug);
    objcopy("--strip-all", &program);
    (program, debug)
}

/// A collector that has samples of a stripped program which runs no more.
struct Stored {
    options: Options,
    collector: Collector,
}

impl Stored {
    fn of(program: &Path, options: Options, dir: &Path) -> Stored {
        let collector = options.start(dir);
        let program = Workload::spawn(Command::new(program).args(["-p", "40"]));
        let daemon = Daemon::with()
            .set("windows.length_s=2")
            .set("collector.host_id=under-test")
            .set(&format!("collector.address={}", options.grpc()))
            .set(&format!(
                "collector.spool.dir={}",
                dir.join("spool").display()
            ))
            .start()
            .sampling();
        let stored = Stored { options, collector };
        let arrived = wait_for(ARRIVE, || {
            let text = stored.stacks().text();
            let whole = |line: &str| line.contains(WHOLE) && !line.contains(CUT);
            text.lines().any(whole).then_some(())
        });
        let said = stored.stacks();
        assert!(
            arrived.is_some(),
            "{}{}\n{}",
            said.text(),
            said.stderr,
            daemon.log()
        );
        drop((program, daemon));
        stored
    }

    fn ask(&self, words: &[&str]) -> Output {
        let address = self.options.grpc();
        ctl(["--collector", &address].iter().chain(words))
    }

    /// Folded stacks of the program, of all time.
    fn stacks(&self) -> Output {
        self.ask(&[
            "profile",
            "--since",
            "1h",
            "--format",
            "folded",
            "--selector",
            "comm=stripped",
        ])
    }
}

fn build_id(program: &Path) -> String {
    let notes = run(Command::new("readelf").arg("-n").arg(program), TOOL).ok();
    let text = notes.text();
    let id = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("Build ID: "));
    id.expect("it has one").to_owned()
}

/// True when a server on this port has what is asked for.
fn has(port: u16, path: &str) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
        let mut status = String::new();
        BufReader::new(stream).read_line(&mut status)?;
        Ok::<_, std::io::Error>(status)
    };
    ask().is_ok_and(|status| status.contains(" 200 "))
}

/// True when all functions have names, those on the way too.
fn is_named(said: &Output) -> bool {
    let text = said.text();
    let is_ours = |line: &&str| line.contains("spend_seventy") && !line.contains(CUT);
    let ours: Vec<&str> = text.lines().filter(is_ours).collect();
    let named = |line: &&str| FUNCTIONS.iter().all(|function| line.contains(function));
    !ours.is_empty() && ours.iter().all(named) && !text.contains(NO_NAME)
}

#[test]
fn uploaded_symbols_name_what_was_stored_before_needs_root() {
    let needs = [Need::Root, Need::Program("cc"), Need::Program("objcopy")];
    let Some(_live) = beside(&needs) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (program, debug) = stripped(dir.path());
    let stored = Stored::of(&program, Options::new(), dir.path());
    let (program, debug) = (program.to_str().unwrap(), debug.to_str().unwrap());
    // Only the files that have symbols are stored.
    let said = stored.ask(&["symbols", "upload", program, debug]);
    assert_eq!(said.code, Some(1), "{}", said.stderr);
    assert!(
        said.stderr.contains("upload it before you strip it"),
        "{}",
        said.stderr
    );
    assert!(
        said.text().contains("functions of build"),
        "{}",
        said.text()
    );
    let said = stored.stacks();
    assert!(is_named(&said), "{}{}", said.text(), said.stderr);
    assert!(said.stderr.contains("named by upload"), "{}", said.stderr);
    // Symbols outlive the collector.
    let Stored { options, collector } = stored;
    assert!(collector.stop().success());
    let collector = options.start(dir.path());
    let again = Stored { options, collector }.stacks();
    assert_eq!(again.text(), said.text());
}

/// The distribution's debuginfod, once it has found the debug file of the program.
struct Server {
    url: String,
    _process: Proc,
}

impl Server {
    fn start(program: &Path, debug: &Path, dir: &Path) -> Server {
        let files = dir.join("files");
        std::fs::create_dir(&files).unwrap();
        std::fs::rename(debug, files.join("program.debug")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let mut command = Command::new("debuginfod");
        command.args(["-p", &port.to_string(), "-d", ":memory:", "-F"]);
        let process = Proc::spawn(command.arg(&files), dir, "debuginfod");
        let asked = format!("/buildid/{}/debuginfo", build_id(program));
        let scanned = wait_for(ARRIVE, || has(port, &asked).then_some(()));
        assert!(scanned.is_some(), "the server has not found the file");
        Server {
            url: format!("http://127.0.0.1:{port}"),
            _process: process,
        }
    }
}

const WITH_SERVER: &[Need] = &[
    Need::Root,
    Need::Program("cc"),
    Need::Program("objcopy"),
    Need::Program("debuginfod"),
];

#[test]
fn a_debuginfod_server_names_what_was_stored_before_needs_root() {
    let Some(_live) = beside(WITH_SERVER) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (program, debug) = stripped(dir.path());
    let server = Server::start(&program, &debug, dir.path());
    let set = format!("symbols.debuginfod={}", server.url);
    let stored = Stored::of(&program, Options::new().set(&set), dir.path());
    let named = wait_for(ARRIVE, || is_named(&stored.stacks()).then_some(()));
    let said = stored.stacks();
    let log = stored.collector.log();
    assert!(named.is_some(), "{}{}\n{log}", said.text(), said.stderr);
    let by = "named by debuginfod";
    assert!(said.stderr.contains(by), "{}", said.stderr);
    let list = stored.ask(&["symbols", "list", "--json"]).ok();
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).unwrap();
    let mut files = list["files"].as_array().unwrap().iter();
    assert!(files.any(|file| file["source"] == "debuginfod"), "{list}");
}

/// A server that does this with each request, and its address.
fn bad_server(answer: impl Fn(&mut TcpStream) + Clone + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let answer = answer.clone();
            std::thread::spawn(move || answer(&mut stream));
        }
    });
    url
}

#[test]
#[ignore = "a server that never answers is given up after a minute and a half"]
fn servers_that_hang_lie_or_never_end_hold_up_no_answer_needs_root() {
    let Some(_live) = beside(WITH_SERVER) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (program, debug) = stripped(dir.path());
    let hangs = bad_server(|_| std::thread::sleep(Duration::from_secs(600)));
    let endless = bad_server(|stream| {
        let _ = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
        while stream.write_all(&[0; 1 << 20]).is_ok() {}
    });
    let lies = bad_server(|stream| {
        let other = std::fs::read("/proc/self/exe").unwrap();
        let length = other.len();
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n");
        let _ = write!(stream, "{head}Connection: close\r\n\r\n");
        let _ = stream.write_all(&other);
    });
    let server = Server::start(&program, &debug, dir.path());
    for bad in [lies, endless, hangs] {
        let set = format!("symbols.debuginfod=[{bad},{}]", server.url);
        let dir = tempfile::tempdir().unwrap();
        let stored = Stored::of(&program, Options::new().set(&set), dir.path());
        let longest = std::cell::Cell::new(Duration::ZERO);
        let named = wait_for(Duration::from_secs(200), || {
            let asked = std::time::Instant::now();
            let said = stored.stacks();
            longest.set(longest.get().max(asked.elapsed()));
            is_named(&said).then_some(())
        });
        let log = stored.collector.log();
        assert!(named.is_some(), "{bad}: {}\n{log}", stored.stacks().text());
        // An answer takes some tenths of a second; one that waited would take a minute and more.
        let longest = longest.get();
        assert!(longest < Duration::from_secs(20), "{bad}: {longest:?}");
    }
}

#[test]
fn an_agent_names_what_comes_after_a_server_had_its_symbols_needs_root() {
    let Some(_live) = beside(WITH_SERVER) else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (program, debug) = stripped(dir.path());
    let server = Server::start(&program, &debug, dir.path());
    let kept = dir.path().join("kept");
    let _program = Workload::spawn(&mut Command::new(&program));
    let daemon = Daemon::with()
        .set("windows.length_s=1")
        .set(&format!("symbols.debuginfod={}", server.url))
        .set(&format!("symbols.debuginfod_dir={}", kept.display()))
        .start()
        .sampling();
    let of = [
        "profile",
        "--since",
        "2s",
        "--format",
        "folded",
        "--selector",
    ];
    let stacks = || daemon.ctl(&[&of[..], &["comm=stripped"]].concat());
    let named = wait_for(ARRIVE, || is_named(&stacks()).then_some(()));
    let said = stacks();
    let log = daemon.log();
    assert!(named.is_some(), "{}{}\n{log}", said.text(), said.stderr);
    let id = build_id(&program);
    let (first, rest) = id.split_at(2);
    let kept = kept.join(format!(".build-id/{first}/{rest}.debug"));
    assert!(kept.is_file());
}
