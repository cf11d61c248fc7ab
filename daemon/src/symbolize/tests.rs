//! Real executables, built here with gcc, to frames.
//!
//! Tests that need a compiler, root or another tool report a skip on stderr where it is missing.

use super::files::{FileSeen, RELATIVES};
use super::*;
use crate::ids::{Avma, Pid};
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
            eprintln!("skipped: {name} is not installed");
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
        if frame.unnamed != Unnamed::No {
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
        let mut byte = [0];
        let stdout = child.stdout.as_mut().expect("is piped");
        std::io::Read::read_exact(stdout, &mut byte).expect("writes when it is ready");
        Running(child)
    }

    /// Begin and end of its mapping with code of a file whose path ends so.
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
        eprintln!("skipped: needs root");
    }
    root
}

#[test]
fn programs_of_every_layout_are_named() {
    let dir = TempDir::new().expect("temporary directory");
    let layouts: [(&str, &[&str]); 5] = [
        ("pie", &["-pie", "-fPIE"]),
        ("fixed", &["-no-pie"]),
        ("static", &["-static"]),
        ("static-pie", &["-static-pie", "-fPIE"]),
        ("separate-code", &["-Wl,-z,noseparate-code"]),
    ];
    for (name, flags) in layouts {
        let Some(path) = build(dir.path(), name, PROGRAM, flags) else {
            return;
        };
        let offset = offset_of(&path, "busy_leaf");
        let named = Rig::plain().name(&path, build_id(&path), offset);
        assert_eq!(named, format!("native busy_leaf {name}"));
    }
}

#[test]
fn a_stripped_program_says_why_it_has_no_names() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    assert!(tool("strip", &[text(&path)]));
    let named = Rig::plain().name(&path, build_id(&path), offset);
    assert_eq!(named, "native [program] program (no_symbols)");
}

#[test]
fn a_place_between_functions_is_not_in_symbols() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let named = Rig::plain().name(&path, build_id(&path), FileOffset(1));
    assert_eq!(named, "native [program] program (not_in_symbols)");
    let beyond = Rig::plain().name(&path, build_id(&path), FileOffset(1 << 40));
    assert_eq!(beyond, "native [program] program (not_in_symbols)");
}

fn with_debug_dir(dir: &Path) -> Rig {
    Rig::new(SymbolOptions {
        debug_dirs: vec![dir.to_owned()],
        ..SymbolOptions::default()
    })
}

#[test]
fn a_debug_file_is_found_by_build_id() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &["-g"]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let FileIdentity::BuildId { bytes, len } = build_id(&path) else {
        panic!("no build id")
    };
    let hex: String = bytes[..usize::from(len)]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let debug = dir.path().join("debug");
    let place = debug.join(".build-id").join(&hex[..2]);
    fs::create_dir_all(&place).expect("creates");
    let place = place.join(format!("{}.debug", &hex[2..]));
    assert!(tool(
        "objcopy",
        &["--only-keep-debug", text(&path), text(&place)]
    ));
    assert!(tool("strip", &[text(&path)]));
    let mut rig = with_debug_dir(&debug);
    assert_eq!(
        rig.name(&path, build_id(&path), offset),
        "native busy_leaf program"
    );

    // A debug file of other code in its place is not believed.
    let other = PROGRAM.replace("busy_leaf", "other_leaf");
    let other = build(dir.path(), "other", &other, &["-g"]).expect("compiler is there");
    assert!(tool(
        "objcopy",
        &["--only-keep-debug", text(&other), text(&place)]
    ));
    let named = with_debug_dir(&debug).name(&path, build_id(&path), offset);
    assert_eq!(named, "native [program] program (no_symbols)");
}

#[test]
fn a_debug_file_is_found_by_link_and_checksum() {
    let dir = TempDir::new().expect("temporary directory");
    let flags = ["-g", "-Wl,--build-id=none"];
    let Some(path) = build(dir.path(), "program", PROGRAM, &flags) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let debug = dir.path().join("debug");
    fs::create_dir(&debug).expect("creates");
    let place = debug.join("program.debug");
    assert!(tool(
        "objcopy",
        &["--only-keep-debug", text(&path), text(&place)]
    ));
    let link = format!("--add-gnu-debuglink={}", text(&place));
    assert!(tool("objcopy", &["--strip-all", &link, text(&path)]));
    let named = with_debug_dir(&debug).name(&path, inode(&path), offset);
    assert_eq!(named, "native busy_leaf program");

    let mut content = fs::read(&place).expect("reads");
    *content.last_mut().expect("is not empty") ^= 1;
    fs::write(&place, content).expect("writes");
    let named = with_debug_dir(&debug).name(&path, inode(&path), offset);
    assert_eq!(named, "native [program] program (no_symbols)");
}

#[test]
fn symbols_packed_into_the_program_are_found() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let mini = dir.path().join("mini");
    assert!(tool(
        "objcopy",
        &["--only-keep-debug", text(&path), text(&mini)]
    ));
    let mut packed = Vec::new();
    let mini_bytes = fs::read(&mini).expect("reads");
    let mut encoder = xz2::read::XzEncoder::new(&*mini_bytes, 1);
    std::io::Read::read_to_end(&mut encoder, &mut packed).expect("packs");
    fs::write(&mini, packed).expect("writes");
    let section = format!(".gnu_debugdata={}", text(&mini));
    assert!(tool(
        "objcopy",
        &["--strip-all", "--add-section", &section, text(&path)]
    ));
    let named = Rig::plain().name(&path, build_id(&path), offset);
    assert_eq!(named, "native busy_leaf program");
}

#[test]
fn packed_symbols_that_expand_too_far_are_refused() {
    let zeros = vec![0u8; 1 << 20];
    let mut packed = Vec::new();
    let mut encoder = xz2::read::XzEncoder::new(&*zeros, 6);
    std::io::Read::read_to_end(&mut encoder, &mut packed).expect("packs");
    assert!(packed.len() < 4096);
    assert!(matches!(
        inflate::mini_debug_info(&packed, 1 << 16),
        Err(elf::ElfError::TooLarge)
    ));
    assert_eq!(
        inflate::mini_debug_info(&packed, 1 << 20)
            .expect("fits")
            .len(),
        1 << 20
    );
}

#[test]
fn a_deleted_program_is_named_through_its_mapping_as_root() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &["-no-pie"]) else {
        return;
    };
    if !is_root() {
        return;
    }
    let (offset, identity) = (offset_of(&path, "busy_leaf"), build_id(&path));
    let running = Running::start(&mut Command::new(&path));
    fs::remove_file(&path).expect("removes");
    let mut file = seen(&path, identity, running.0.id());
    file.path = format!("{} (deleted)", text(&path)).into_bytes().into();
    file.range = running.mapping("/program");
    let mut rig = Rig::plain();
    rig.store.see(&file);
    // Gone altogether: the open file still has the names.
    drop(running);
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);
}

#[test]
fn a_file_gone_before_it_was_opened_may_be_found_later() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let (offset, identity) = (offset_of(&path, "busy_leaf"), build_id(&path));
    let hidden = dir.path().join("hidden");
    fs::rename(&path, &hidden).expect("renames");
    let mut rig = Rig::plain();
    assert_eq!(
        rig.name(&path, identity, offset),
        "native [program] program (file_gone)"
    );
    fs::rename(&hidden, &path).expect("renames");
    assert_eq!(
        rig.name(&path, identity, offset),
        "native busy_leaf program"
    );
}

#[test]
fn another_file_at_the_path_is_refused() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let identities = [build_id(&path), inode(&path)];
    let other = PROGRAM.replace("busy_leaf", "other_leaf");
    let other = build(dir.path(), "other", &other, &[]).expect("compiler is there");
    fs::rename(&other, &path).expect("replaces");
    for identity in identities {
        let named = Rig::plain().name(&path, identity, offset);
        assert_eq!(named, "native [program] program (file_changed)");
    }
}

#[test]
fn a_file_written_over_while_open_gives_no_names() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let (leaf, main) = (offset_of(&path, "busy_leaf"), offset_of(&path, "main"));
    let mut rig = Rig::plain();
    assert_eq!(
        rig.name(&path, build_id(&path), leaf),
        "native busy_leaf program"
    );
    fs::OpenOptions::new()
        .write(true)
        .truncate(true)
        .open(&path)
        .expect("is cut short");
    assert_eq!(
        rig.frames(leaf),
        ["native busy_leaf program"],
        "is known already"
    );
    assert_eq!(
        rig.frames(main),
        ["native [program] program (file_changed)"]
    );
}

#[test]
fn the_hosts_file_is_not_taken_for_a_containers_as_root() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(inner) = build(dir.path(), "inner", PROGRAM, &[]) else {
        return;
    };
    let outer = PROGRAM.replace("busy_leaf", "wrong_leaf");
    let outer = build(dir.path(), "outer", &outer, &[]).expect("compiler is there");
    if !is_root() {
        return;
    }
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).expect("creates");
    let path = bin.join("program");
    fs::copy(&outer, &path).expect("copies");
    let (offset, identity) = (offset_of(&inner, "busy_leaf"), build_id(&inner));
    let script = format!(
        "mount -t tmpfs none {0} && cp {1} {0}/program && exec {0}/program",
        text(&bin),
        text(&inner)
    );
    let container = || Running::start(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    let running = container();
    // By the path alone, in the process's own root: no mapping is told.
    let mut rig = Rig::plain();
    rig.store.see(&seen(&path, identity, running.0.id()));
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);

    // Its root is gone, a relative in the same container is not.
    let sibling = container();
    let gone = running.0.id();
    drop(running);
    let mut file = seen(&path, identity, gone);
    file.relatives[1] = Pid(sibling.0.id());
    let mut rig = Rig::plain();
    rig.store.see(&file);
    assert_eq!(rig.frames(offset), ["native busy_leaf program"]);

    // All gone: the file at the same path on the host is another.
    drop(sibling);
    let mut rig = Rig::plain();
    rig.store.see(&seen(&path, identity, gone));
    assert_eq!(
        rig.frames(offset),
        ["native [program] program (file_changed)"]
    );
}

#[test]
fn pipes_and_directories_are_refused_without_waiting() {
    let dir = TempDir::new().expect("temporary directory");
    let pipe = dir.path().join("pipe");
    if !tool("mkfifo", &[text(&pipe)]) {
        return;
    }
    for path in [&pipe, dir.path(), Path::new("/dev/zero")] {
        let named = Rig::plain().name(path, FileIdentity::Path, FileOffset(0));
        assert!(named.ends_with("(file_unreadable)"), "{named}");
    }
}

#[test]
fn what_is_no_program_is_unreadable() {
    let dir = TempDir::new().expect("temporary directory");
    let path = dir.path().join("text");
    fs::write(&path, "#!/bin/sh\n").expect("writes");
    let named = Rig::plain().name(&path, inode(&path), FileOffset(0));
    assert_eq!(named, "native [text] text (file_unreadable)");
}

#[test]
fn cpp_names_are_demangled() {
    let dir = TempDir::new().expect("temporary directory");
    let source = "namespace shop { volatile int sink; struct Cart { __attribute__((noinline)) void add(int n) { sink += n; } }; }\n\
        int main() { shop::Cart cart; cart.add(1); return 0; }";
    let Some(path) = build(dir.path(), "program", source, &[]) else {
        return;
    };
    let offset = offset_of(&path, "_ZN4shop4Cart3addEi");
    let named = Rig::plain().name(&path, build_id(&path), offset);
    assert_eq!(named, "native shop::Cart::add(int) program");
}

/// Offset in its file of an address of this process, and the file.
fn own_place(address: u64) -> (PathBuf, FileOffset) {
    let maps = fs::read_to_string("/proc/self/maps").expect("reads");
    for line in maps.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields
            .next()
            .and_then(|range| range.split_once('-'))
            .expect("range");
        let number = |text| u64::from_str_radix(text, 16).expect("is hexadecimal");
        let offset = fields.nth(1).expect("offset");
        if (number(start)..number(end)).contains(&address) {
            let path = fields.nth(2).expect("is a file");
            return (
                path.into(),
                FileOffset(address - number(start) + number(offset)),
            );
        }
    }
    panic!("not mapped");
}

#[inline(never)]
fn known_rust_function(value: u64) -> u64 {
    std::hint::black_box(value) * 3
}

#[test]
fn rust_names_have_no_hash() {
    let (path, offset) = own_place(known_rust_function as *const () as u64 + 1);
    let identity = inode(&path);
    let named = Rig::plain().name(&path, identity, offset);
    let module = path
        .file_name()
        .and_then(|name| name.to_str())
        .expect("has a name");
    assert_eq!(
        named,
        format!("native daemon::symbolize::tests::known_rust_function {module}")
    );
    assert_eq!(known_rust_function(1), 3);
}

#[test]
fn the_vdso_has_names() {
    let Some(vdso) = open::own_vdso() else {
        eprintln!("skipped: the kernel maps no vdso");
        return;
    };
    let dir = TempDir::new().expect("temporary directory");
    let copy = dir.path().join("vdso");
    fs::write(&copy, &vdso).expect("writes");
    let offset = offset_of(&copy, "__vdso_clock_gettime");
    let mut rig = Rig::plain();
    let named = rig.name(Path::new("[vdso]"), FileIdentity::Vdso, offset);
    assert!(named.ends_with("clock_gettime [vdso]"), "{named}");
}

const INLINED: &str = "volatile int sink;
static inline __attribute__((always_inline)) void innermost(int i) {
    sink += i;
}
static inline __attribute__((always_inline)) void middle(int i) {
    innermost(i);
}
__attribute__((noinline)) void outer(int i) {
    middle(i);
}
int main(void) { outer(3); return 0; }
";

#[test]
fn lines_and_inlined_functions_on_request() {
    let dir = TempDir::new().expect("temporary directory");
    for (name, packing) in [("plain", "-gz=none"), ("zlib", "-gz=zlib")] {
        let Some(path) = build(dir.path(), name, INLINED, &["-g", packing]) else {
            return;
        };
        let offset = FileOffset(offset_of(&path, "outer").0 - 3 + 6);
        let both = SymbolOptions {
            lines: true,
            inlined_frames: true,
            ..SymbolOptions::default()
        };
        let named = Rig::new(both.clone()).name(&path, build_id(&path), offset);
        let expected = format!(
            "inlined innermost {name} {name}.c:3 <- inlined middle {name} {name}.c:6 <- native outer {name} {name}.c:9"
        );
        assert_eq!(named, expected);
        let inlined = SymbolOptions {
            lines: false,
            ..both.clone()
        };
        let named = Rig::new(inlined).name(&path, build_id(&path), offset);
        let expected =
            format!("inlined innermost {name} <- inlined middle {name} <- native outer {name}");
        assert_eq!(named, expected);
        let lines = SymbolOptions {
            inlined_frames: false,
            ..both
        };
        let mut rig = Rig::new(lines);
        assert_eq!(
            rig.name(&path, build_id(&path), offset),
            format!("native outer {name} {name}.c:3")
        );
        assert_eq!(rig.frames(offset).len(), 1, "once more, from the cache");
    }
}

#[test]
fn many_places_keep_their_order() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let mut offsets = vec![
        offset_of(&path, "main"),
        offset_of(&path, "busy_leaf"),
        FileOffset(1),
    ];
    offsets.sort_unstable();
    let mut rig = Rig::plain();
    rig.store
        .see(&seen(&path, build_id(&path), std::process::id()));
    let mut together = Named::default();
    rig.symbolizer
        .file(FileId(1), &offsets, &mut rig.dict, &mut together);
    let together: Vec<_> = (0..3)
        .map(|index| rig.show(together.frames_of(index)[0]))
        .collect();
    let single: Vec<_> = offsets
        .iter()
        .map(|&offset| rig.frames(offset).join(""))
        .collect();
    assert_eq!(together, single);
}

#[test]
fn frames_are_made_anew_for_a_new_dictionary() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let (leaf, main) = (offset_of(&path, "busy_leaf"), offset_of(&path, "main"));
    let mut rig = Rig::plain();
    rig.name(&path, build_id(&path), main);
    rig.frames(leaf);
    rig.dict = Dictionary::default();
    rig.symbolizer.forget_frames();
    assert_eq!(rig.frames(leaf), ["native busy_leaf program"]);
}

#[test]
fn the_cache_stays_under_its_limit() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", PROGRAM, &[]) else {
        return;
    };
    let offset = offset_of(&path, "busy_leaf");
    let options = SymbolOptions {
        cache_bytes: 2000,
        debug_dirs: Vec::new(),
        ..SymbolOptions::default()
    };
    let mut rig = Rig::new(options);
    let mut out = Named::default();
    for id in 0..20 {
        let file = FileSeen {
            id: FileId(id),
            ..seen(&path, build_id(&path), std::process::id())
        };
        rig.store.see(&file);
        rig.symbolizer
            .file(FileId(id), &[offset], &mut rig.dict, &mut out);
        assert!(rig.symbolizer.heap_bytes() <= 2000);
    }
    let evicted = rig
        .counters
        .tables_evicted
        .load(std::sync::atomic::Ordering::Relaxed);
    assert!((1..=20).contains(&evicted), "{evicted}");
    assert!(
        out.frames
            .iter()
            .all(|&frame| rig.dict.frame(frame).function == "busy_leaf")
    );
}

#[test]
fn open_files_stay_under_their_limit() {
    let dir = TempDir::new().expect("temporary directory");
    let counters = Arc::new(SymbolCounters::default());
    let store = FileStore::new(Some(8), counters.clone());
    for index in 0..50u32 {
        let path = dir.path().join(format!("file{index}"));
        fs::write(&path, "x").expect("writes");
        let file = seen(&path, inode(&path), std::process::id());
        store.see(&FileSeen {
            id: FileId(index),
            ..file
        });
        assert!(store.open_files() <= 8);
    }
    assert!(store.get(FileId(49)).image.is_ok());
    assert!(matches!(store.get(FileId(0)).image, Err(Unnamed::Limit)));
    assert_eq!(
        &*store.get(FileId(0)).path,
        text(&dir.path().join("file0")).as_bytes()
    );
    assert_eq!(
        counters
            .files_evicted
            .load(std::sync::atomic::Ordering::Relaxed),
        42
    );
}

#[test]
fn a_file_nobody_told_of_is_unknown() {
    assert_eq!(
        Rig::plain().frames(FileOffset(0)),
        ["native [unknown]  (limit)"]
    );
}

#[test]
fn kernel_addresses_are_named_or_say_why_not() {
    let shown = "ffffffff81000000 T start\nffffffffa0000000 t probe\t[nf_tables]\n";
    let mut rig = Rig::plain();
    let mut names = |table: &str, address: u64| {
        let symbols = KernelSymbols::parse(table.as_bytes()).expect("reads from memory");
        rig.symbolizer.set_kernel_symbols(symbols);
        let mut out = Named::default();
        rig.symbolizer
            .kernel(&[address, address], &mut rig.dict, &mut out);
        assert_eq!(out.frames[0], out.frames[1]);
        rig.show(out.frames[0])
    };
    assert_eq!(names(shown, 0xffffffff81000010), "kernel start [kernel]");
    assert_eq!(names(shown, 0xffffffffa0000010), "kernel probe nf_tables");
    assert_eq!(
        names(shown, 0xffffffffb0000000),
        "kernel [kernel] [kernel] (not_in_kallsyms)"
    );
    let hidden = "0000000000000000 T start\n";
    assert_eq!(
        names(hidden, 0xffffffff81000010),
        "kernel [kernel] [kernel] (kernel_hidden)"
    );
}

mod damaged {
    use super::*;
    use proptest::prelude::*;
    use std::sync::OnceLock;

    fn program() -> Option<&'static [u8]> {
        static PROGRAM_BYTES: OnceLock<Option<Vec<u8>>> = OnceLock::new();
        let build = || {
            let dir = TempDir::new().expect("temporary directory");
            let path = build(dir.path(), "program", PROGRAM, &["-g"])?;
            Some(fs::read(path).expect("reads"))
        };
        PROGRAM_BYTES.get_or_init(build).as_deref()
    }

    proptest! {
        #[test]
        fn images_do_no_harm(
            headers in any::<bool>(),
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..12),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let Some(program) = program() else { return Ok(()) };
            let mut bytes = program.to_vec();
            // The interesting numbers are at both ends: file and program headers, section headers.
            let len = bytes.len();
            for (place, value) in damage {
                let place = place.index(if headers { 1024 } else { len });
                let place = if value & 1 == 0 { place } else { len - 1 - place };
                bytes[place] = value;
            }
            bytes.truncate(cut.map_or(len, |cut| cut.index(len)));
            let Ok(headers) = elf::read_headers(&*bytes) else { return Ok(()) };
            let table = elf::SymbolTable::read(&*bytes, &headers, b".symtab", &headers.segments, 1 << 20);
            if let Ok(Some(table)) = table {
                for index in 0..table.len() as u32 {
                    table.name(&*bytes, index);
                }
                for offset in (0..len as u64).step_by(16) {
                    headers.address_of(offset).and_then(|address| table.find(address));
                }
            }
            if let Ok(Some(lines)) = lines::LineSource::new(&*bytes, &headers, true, 1 << 20) {
                let _ = lines.places(&[0x1150, 0x1160], |_, _| ());
            }
        }

        #[test]
        fn notes_do_no_harm(notes in prop::collection::vec(any::<u8>(), 0..200), align in 0u64..9) {
            elf::find_build_id(&notes, align);
        }
    }
}
