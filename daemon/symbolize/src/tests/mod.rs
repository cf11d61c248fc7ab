//! Tests naming on real executables, built here with gcc.
//!
//! Tests that need a compiler, root or another tool report a skip on stderr where it is missing.

mod images;
mod naming;
mod opening;

use super::files::{FileSeen, RELATIVES};
use super::*;
use host::ids::{Avma, Pid};
use object::{Object, ObjectSegment, ObjectSymbol};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const PROGRAM: &str = "
    #include <unistd.h>
    volatile int sink;
    __attribute__((noinline)) void busy_leaf(void) { for (int i = 0; i < 1000; i++) sink += i; }
    int main(void) { busy_leaf(); char c; write(1, \"x\", 1); read(0, &c, 1); return sink == 42; }
";

/// Runs a tool; false, with a line on stderr, when it is not there.
fn tool(name: &str, arguments: &[&str]) -> bool {
    match Command::new(name).args(arguments).status() {
        Ok(status) => {
            assert!(status.success(), "{name} {arguments:?}");
            true
        }
        Err(_) => {
            testkit::skip(format_args!("{name} is not installed"));
            false
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are text")
}

/// Builds a program; `None` when there is no compiler.
fn build(dir: &Path, name: &str, source: &str, flags: &[&str]) -> Option<PathBuf> {
    let cpp = source.contains("namespace");
    let input = dir.join(format!("{name}.{}", if cpp { "cc" } else { "c" }));
    fs::write(&input, source).expect("writes the source");
    let output = dir.join(name);
    let mut arguments = vec!["-O1", "-o", text(&output), text(&input)];
    arguments.extend(flags);
    tool(if cpp { "g++" } else { "gcc" }, &arguments).then_some(output)
}

/// Offset in the file, some bytes into a function.
fn offset_of(path: &Path, function: &str) -> FileOffset {
    let data = fs::read(path).expect("reads the program");
    let file = object::File::parse(&*data).expect("is ELF");
    let mut symbols = file.symbols().chain(file.dynamic_symbols());
    let symbol = symbols
        .find(|symbol| symbol.name() == Ok(function))
        .expect("has the function");
    let inside = |segment: &object::Segment<'_, '_>| {
        (segment.address()..segment.address() + segment.size()).contains(&symbol.address())
    };
    let segment = file.segments().find(inside).expect("is in a segment");
    FileOffset(symbol.address() - segment.address() + segment.file_range().0 + 3)
}

fn build_id(path: &Path) -> FileIdentity {
    let id = elf::read_build_id(&fs::File::open(path).expect("opens")).expect("is ELF");
    FileIdentity::build_id(&id).expect("has a build id")
}

fn inode(path: &Path) -> FileIdentity {
    let file = fs::File::open(path).expect("opens");
    let (major, minor, inode) = open::device_and_inode(&file).expect("stats");
    let generation = open::inode_generation(&file).map_or(0, u64::from);
    FileIdentity::Inode {
        major,
        minor,
        inode,
        generation,
    }
}

fn seen(path: &Path, identity: FileIdentity, pid: u32) -> FileSeen {
    FileSeen {
        id: FileId(1),
        identity,
        path: text(path).as_bytes().into(),
        pid: Pid(pid),
        range: (Avma(0), Avma(0)),
        relatives: [Pid(0); RELATIVES],
    }
}

struct Rig {
    symbolizer: Symbolizer,
    store: Arc<FileStore>,
    counters: Arc<SymbolCounters>,
    dict: Dictionary,
}

impl Rig {
    fn new(options: SymbolOptions) -> Rig {
        let counters = Arc::new(SymbolCounters::default());
        let store = Arc::new(FileStore::new(None, counters.clone()));
        let symbolizer = Symbolizer::new(options, store.clone(), counters.clone());
        Rig {
            symbolizer,
            store,
            counters,
            dict: Dictionary::default(),
        }
    }

    fn plain() -> Rig {
        Rig::new(SymbolOptions {
            debug_dirs: Vec::new(),
            ..SymbolOptions::default()
        })
    }

    /// Frames of one place, leaf first, as `kind function module file:line (reason)`.
    fn frames(&mut self, offset: FileOffset) -> Vec<String> {
        let mut out = Named::default();
        self.symbolizer
            .file(FileId(1), &[offset], &mut self.dict, &mut out);
        assert_eq!(out.spans.len(), 1);
        out.frames_of(0)
            .iter()
            .map(|&frame| self.show(frame))
            .collect()
    }

    fn show(&self, frame: FrameId) -> String {
        let frame = self.dict.frame(frame);
        let mut text = format!("{} {} {}", frame.kind.word(), frame.function, frame.module);
        if !frame.file.is_empty() {
            let file = frame.file.rsplit('/').next().unwrap_or_default();
            text.push_str(&format!(" {file}:{}", frame.line));
        }
        if frame.unnamed != UnnamedReason::No {
            text.push_str(&format!(" ({})", frame.unnamed.word()));
        }
        text
    }

    /// The only frame of a place in a program that this process sees at `path`.
    fn name(&mut self, path: &Path, identity: FileIdentity, offset: FileOffset) -> String {
        self.store.see(&seen(path, identity, std::process::id()));
        self.frames(offset).join(" <- ")
    }
}

/// A process that waits to be fed, killed when dropped.
struct Running(Child);

impl Running {
    /// Starts it and waits for its first byte of output.
    fn start(command: &mut Command) -> Running {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        testkit::process::wait_until_ready(&mut child);
        Running(child)
    }

    /// Start and end of its code mapping of a file with a path that ends this way.
    fn mapping(&self, path_end: &str) -> (Avma, Avma) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.0.id())).expect("is alive");
        let code = |line: &&str| {
            line.contains(" r-xp ") && line.trim_end_matches(" (deleted)").ends_with(path_end)
        };
        let line = maps.lines().find(code).expect("is mapped");
        let (start, end) = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'))
            .expect("range");
        let number = |text| Avma(u64::from_str_radix(text, 16).expect("is hexadecimal"));
        (number(start), number(end))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_root() -> bool {
    let root = fs::metadata("/proc/self")
        .is_ok_and(|facts| std::os::unix::fs::MetadataExt::uid(&facts) == 0);
    if !root {
        testkit::skip("needs root");
    }
    root
}
