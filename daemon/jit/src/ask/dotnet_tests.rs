//! Tests the diagnostics port against a thread that answers as .NET 8 was recorded to, and against
//! .NET itself, in a program that `tests/dotnet.sh` installs.

use super::*;
use crate::code::{CodeLookup, CodeMap, When};
use crate::map::MapReader;
use std::io::Write;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use symbolize::open::Root;
use tempfile::TempDir;

/// What the recorded server answers to the next connection.
#[derive(Clone, Copy)]
pub(in crate::ask) enum Answer {
    Yes,
    No(u32),
    Nonsense,
}

/// A root with a process's files: `/tmp` and its port.
pub(in crate::ask) struct Recorded {
    dir: TempDir,
    commands: Receiver<Vec<u8>>,
}

impl Recorded {
    /// A server of process 17 that answers once for each of these, and writes a map when it says
    /// yes.
    pub(in crate::ask) fn new(answers: &[Answer]) -> Recorded {
        let dir = TempDir::new().expect("temporary directory");
        let tmp = dir.path().join("tmp");
        std::fs::create_dir(&tmp).expect("makes");
        let listener = UnixListener::bind(tmp.join("dotnet-diagnostic-17-4242-socket"));
        let listener = listener.expect("binds");
        let (told, commands) = sync_channel(answers.len().max(1));
        let answers = answers.to_vec();
        std::thread::spawn(move || {
            for answer in answers {
                let Ok((mut stream, _)) = listener.accept() else {
                    return;
                };
                let mut head = [0; HEAD_BYTES];
                stream.read_exact(&mut head).expect("a head");
                let mut payload = vec![0; length(&head).expect("a length") - HEAD_BYTES];
                stream.read_exact(&mut payload).expect("a payload");
                if head[17] == ENABLE_PERF_MAP && matches!(answer, Answer::Yes) {
                    std::fs::write(tmp.join("perf-17.map"), MAP).expect("writes");
                }
                let said = match answer {
                    Answer::Yes => message(SET_SERVER, 0x00, &0u32.to_le_bytes()),
                    Answer::No(code) => message(SET_SERVER, 0xff, &code.to_le_bytes()),
                    Answer::Nonsense => b"HTTP/1.1 400 Bad Request\r\n".to_vec(),
                };
                let _ = stream.write_all(&said);
                let _ = told.send([&head[..], &payload].concat());
            }
        });
        Recorded { dir, commands }
    }

    fn target(&self) -> Target {
        Target {
            root: Root::of_dir(self.dir.path()).expect("opens"),
            inner_pid: 17,
            uids: [own().uid; 4],
            root_uid: None,
            started_unix_ns: 0,
        }
    }

    pub(in crate::ask) fn enable(&self) -> Result<Writing, DotNetError> {
        enable_as(std::process::id(), &self.target(), own(), b"tmp")
    }

    pub(in crate::ask) fn map(&self) -> PathBuf {
        self.dir.path().join("tmp/perf-17.map")
    }
}

/// Lines as .NET 8 writes them: a stub, a method of tier 0, the same optimised.
const MAP: &str = "\
00007F3C0A5B0000 40 GenerateResolveStub<00007F3C0A5B0000>
00007F3C0A5C1A40 1f2 void [app] Program::Main(string[])[Tier0]
00007F3C0A5C2B00 8c int32 [app] Program::Hot(int32)[OptimizedTier1]
";

fn own() -> Identity {
    Identity {
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

#[test]
fn a_map_is_written_on_command_and_ends_with_another() {
    let server = Recorded::new(&[Answer::Yes, Answer::Yes]);
    let writing = server.enable().expect("it writes");
    let command = server.commands.recv().expect("was told");
    let expected = b"DOTNET_IPC_V1\0\x18\0\x04\x05\0\0\x03\0\0\0";
    assert_eq!(command, expected);
    // It goes on writing.
    let mut map = std::fs::OpenOptions::new()
        .append(true)
        .open(server.map())
        .expect("is there");
    map.write_all(b"7F3C0A5C3000 10 more\n").expect("appends");
    writing.end_as().expect("it stops");
    let command = server.commands.recv().expect("was told");
    assert_eq!(command, b"DOTNET_IPC_V1\0\x14\0\x04\x06\0\0");
    assert!(!server.map().exists());
}

#[test]
fn a_refusal_has_its_reason() {
    let server = Recorded::new(&[Answer::No(UNKNOWN_COMMAND), Answer::No(0x8013_1515)]);
    let error = server.enable().expect_err("it refuses");
    assert!(error.is_final());
    assert!(error.to_string().contains(".NET 8 or later"), "{error}");
    let error = server.enable().expect_err("it refuses");
    assert!(!error.is_final() && error.to_string().contains("0x80131515"));
}

#[test]
fn what_is_no_port_is_an_error() {
    let server = Recorded::new(&[Answer::Nonsense]);
    assert!(matches!(server.enable(), Err(DotNetError::Talk(_))));
    let nobody = Recorded::new(&[]);
    let socket = nobody
        .dir
        .path()
        .join("tmp/dotnet-diagnostic-17-4242-socket");
    std::fs::remove_file(&socket).expect("removes");
    assert!(matches!(nobody.enable(), Err(DotNetError::NoPort)));
    // Left behind by an earlier process of the same number.
    drop(UnixListener::bind(&socket).expect("binds"));
    assert!(matches!(nobody.enable(), Err(DotNetError::NoPort)));
}

#[test]
fn a_port_left_behind_hides_no_other() {
    let server = Recorded::new(&[Answer::Yes]);
    for key in ["1", "9999"] {
        let stale = format!("tmp/dotnet-diagnostic-17-{key}-socket");
        drop(UnixListener::bind(server.dir.path().join(stale)).expect("binds"));
    }
    assert!(server.enable().is_ok());
}

#[test]
fn what_was_planted_at_the_map_is_refused() {
    let server = Recorded::new(&[Answer::Yes]);
    std::os::unix::fs::symlink("elsewhere", server.map()).expect("links");
    assert!(matches!(server.enable(), Err(DotNetError::Planted { .. })));
}

#[test]
fn a_process_that_ended_leaves_a_map_to_remove() {
    let server = Recorded::new(&[Answer::Yes]);
    let writing = server.enable().expect("it writes");
    std::fs::remove_file(
        server
            .dir
            .path()
            .join("tmp/dotnet-diagnostic-17-4242-socket"),
    )
    .expect("removes");
    writing.end_as().expect("nobody to tell");
    assert!(!server.map().exists());
}

#[test]
fn a_map_that_is_another_file_by_now_stays() {
    let server = Recorded::new(&[Answer::Yes, Answer::Yes]);
    let writing = server.enable().expect("it writes");
    // Created under another name first, so that the inode number differs.
    let other = server.map().with_extension("new");
    std::fs::write(&other, "1000 10 mine\n").expect("writes");
    std::fs::rename(&other, server.map()).expect("replaces");
    writing.end_as().expect("it stops");
    assert!(server.map().exists());
}

#[test]
fn answers_that_make_no_sense_are_none() {
    assert_eq!(parse_answer(b""), None);
    assert_eq!(parse_answer(&message(SET_PROCESS, 0, &[])), None);
    assert_eq!(parse_answer(&message(SET_SERVER, 0, &[])), Some(0));
    assert_eq!(parse_answer(&message(SET_SERVER, 0xff, &[])), Some(1));
    assert_eq!(parse_answer(&message(SET_SERVER, 0x07, &[0; 4])), None);
}

#[test]
fn lines_of_its_maps_are_read() {
    let (mut lines, mut code) = (MapReader::default(), CodeMap::new(1 << 20));
    lines.feed(MAP.as_bytes(), When::at(MonotonicTime(1)), &mut code);
    let CodeLookup::Code(found, _) = code.find(0x7f3c_0a5c_2b10, MonotonicTime(2)) else {
        panic!("not listed");
    };
    assert_eq!(
        &*found.name,
        "int32 [app] Program::Hot(int32)[OptimizedTier1]"
    );
    assert_eq!((code.len(), lines.take_skipped()), (3, 0));
}

#[test]
fn this_process_is_no_dotnet() {
    let pid = std::process::id();
    let enabled = std::thread::spawn(move || enable(pid, MonotonicTime::now()));
    let enabled = enabled.join().expect("no panic");
    assert!(matches!(enabled, Err(DotNetError::NotDotNet)));
    assert_eq!(temporary_dir(u32::MAX), b"tmp");
}

/// A program in .NET that runs until this is dropped.
struct Program(Child);

impl Program {
    fn start() -> Option<Program> {
        let mut command = match testkit::runtimes::dotnet() {
            Ok(command) => command,
            Err(missing) => {
                testkit::skip(&missing);
                return None;
            }
        };
        command.env_remove("TMPDIR");
        let silent = command.stdin(Stdio::piped()).stdout(Stdio::null());
        Some(Program(
            silent.stderr(Stdio::null()).spawn().expect("starts"),
        ))
    }

    /// Has it write its map, as soon as it has a port.
    fn enable(&self) -> Writing {
        let (pid, mut found) = (self.0.id(), None);
        testkit::wait::until_blocking("a program in .NET has a port", || {
            let enabled = std::thread::spawn(move || enable(pid, MonotonicTime::now()));
            match enabled.join().expect("no panic") {
                Ok(writing) => found = Some(writing),
                // It has just been started.
                Err(DotNetError::NotDotNet | DotNetError::NoPort) => {}
                Err(error) => panic!("{error:?}"),
            }
            found.is_some()
        });
        found.expect("it has one")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn dotnet_itself_writes_a_map_that_is_read_and_removed_needs_dotnet() {
    let Some(program) = Program::start() else {
        return;
    };
    let writing = program.enable();
    let map = PathBuf::from(format!("/tmp/perf-{}.map", program.0.id()));
    // It goes on writing as it compiles.
    testkit::wait::until_blocking("a map of a hundred pieces of code", || {
        let text = std::fs::read(&map).expect("it is written");
        let (mut lines, mut code) = (MapReader::default(), CodeMap::new(64 << 20));
        lines.feed(&text, When::at(MonotonicTime(1)), &mut code);
        assert_eq!(lines.take_skipped(), 0);
        code.len() > 100
    });
    let ended = std::thread::spawn(move || writing.end());
    ended.join().expect("no panic").expect("it stops");
    assert!(!map.exists());
}
