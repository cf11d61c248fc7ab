//! Tests which name an address gets.

use super::*;

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
    let budget = budget::FileBudget::default();
    assert!(matches!(
        inflate::mini_debug_info(&packed, 1 << 16, &budget),
        Err(elf::ElfError::TooLarge)
    ));
    assert_eq!(
        inflate::mini_debug_info(&packed, 1 << 20, &budget)
            .expect("fits")
            .len(),
        1 << 20
    );
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
        format!("native symbolize::tests::naming::known_rust_function {module}")
    );
    assert_eq!(known_rust_function(1), 3);
}

#[test]
fn the_vdso_has_names() {
    let Some(vdso) = open::own_vdso() else {
        testkit::skip("the kernel maps no vdso");
        return;
    };
    let dir = TempDir::new().expect("temporary directory");
    let copy = dir.path().join("vdso");
    fs::write(&copy, &vdso).expect("writes");
    let function = if cfg!(target_arch = "aarch64") {
        "__kernel_clock_gettime"
    } else {
        "__vdso_clock_gettime"
    };
    let offset = offset_of(&copy, function);
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
fn captures_have_lines_and_instructions_and_the_profile_keeps_its_frames() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", INLINED, &["-g"]) else {
        return;
    };
    let offset = FileOffset(offset_of(&path, "outer").0 - 3 + 6);
    let mut rig = Rig::plain();
    let usual = rig.name(&path, build_id(&path), offset);
    assert_eq!(usual, "native outer program");
    let (held, frames) = (rig.symbolizer.files_bytes(), rig.dict.frames.len());
    // As `BatchSymbolizer` has it: another `Symbolizer`, and another dictionary.
    let mut of_captures = Rig {
        symbolizer: rig.symbolizer.with_lines(16 << 20),
        store: rig.store.clone(),
        counters: rig.counters.clone(),
        dict: Dictionary::default(),
    };
    let lines = "inlined innermost program program.c:3 <- inlined middle program program.c:6 <- \
                 native outer program program.c:9";
    assert_eq!(of_captures.frames(offset).join(" <- "), lines);
    let without = of_captures.dict.frames.len();
    of_captures.symbolizer.start_capture(true);
    assert_eq!(of_captures.frames(offset).join(" <- "), lines);
    let data = fs::read(&path).expect("reads the program");
    let outer = object::File::parse(&*data)
        .expect("is ELF")
        .symbols()
        .find(|symbol| symbol.name() == Ok("outer"))
        .expect("has the function")
        .address();
    let told = of_captures.dict.frames.iter().skip(without);
    let told: Vec<String> = told
        .map(|frame| of_captures.dict.strings.get(frame.system_name).to_owned())
        .collect();
    let id = elf::read_build_id(&fs::File::open(&path).expect("opens")).expect("is ELF");
    let place = format!("{}+{:#x}", profile::build_id_text(&id), outer + 6);
    assert_eq!(
        told,
        vec![place; 3],
        "each frame of the instruction says it"
    );
    of_captures.symbolizer.start_capture(false);
    of_captures.frames(offset);
    assert_eq!(of_captures.dict.frames.len(), without + 3, "no new frames");
    // What captures read takes neither names nor time from the profile.
    rig.store.take_share(FileId(1));
    assert_eq!(of_captures.frames(offset).join(" <- "), lines);
    assert_eq!(rig.frames(offset).join(" <- "), usual);
    assert_eq!(rig.symbolizer.files_bytes(), held);
    assert_eq!(rig.dict.frames.len(), frames);
}

#[test]
fn lines_of_captures_are_within_their_memory_and_time() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", INLINED, &["-g"]) else {
        return;
    };
    let offset = offset_of(&path, "outer");
    let mut rig = Rig::plain();
    rig.name(&path, build_id(&path), offset);
    rig.symbolizer = rig.symbolizer.with_lines(2000);
    assert_eq!(rig.frames(offset), ["native outer program"]);
    assert!(rig.symbolizer.files_bytes() <= 2000);
    // And within the time of a batch: what is known already has its lines, the rest has its
    // function.
    rig.symbolizer = rig.symbolizer.with_lines(16 << 20);
    rig.symbolizer.start_capture(false);
    let known = rig.frames(offset);
    assert_eq!(known.len(), 3, "{known:?}");
    rig.symbolizer.lines_until = Some(Duration::ZERO);
    assert_eq!(rig.frames(offset), known);
    let other = FileOffset(offset.0 + 3);
    assert_eq!(rig.frames(other), ["native outer program"]);
    rig.symbolizer.start_capture(false);
    assert_eq!(rig.frames(other).len(), 3);
    // No file is read after it either.
    rig.symbolizer = rig.symbolizer.with_lines(16 << 20);
    rig.symbolizer.lines_until = Some(Duration::ZERO);
    let unread = rig.frames(other);
    assert!(
        unread.len() == 1 && unread[0].contains("[program]"),
        "{unread:?}"
    );
    rig.symbolizer.start_capture(false);
    assert_eq!(rig.frames(other).len(), 3);
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
        let copy = dir.path().join(format!("copy-{id}"));
        fs::copy(&path, &copy).expect("copies");
        let file = FileSeen {
            id: FileId(id),
            ..seen(&copy, build_id(&copy), std::process::id())
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

fn with_lines(cache_bytes: usize) -> Rig {
    Rig::new(SymbolOptions {
        lines: true,
        cache_bytes,
        debug_dirs: Vec::new(),
        ..SymbolOptions::default()
    })
}

#[test]
fn debug_information_is_freed_for_room_and_its_frames_stay() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", INLINED, &["-g"]) else {
        return;
    };
    let outer = FileOffset(offset_of(&path, "outer").0 + 3);
    let mut rig = with_lines(1 << 20);
    let named = rig.name(&path, build_id(&path), outer);
    let held = rig.symbolizer.heap_bytes();
    rig.symbolizer.evict(held - 1, None);
    assert!(rig.symbolizer.heap_bytes() < held);
    // Known without reading again: the file is cut short, so that reading would fail.
    fs::write(&path, "").expect("cuts");
    assert_eq!(named, "native outer program program.c:3");
    assert_eq!(rig.frames(outer), [named]);
}

#[test]
fn debug_information_waits_where_the_files_of_its_owner_took_their_share() {
    let dir = TempDir::new().expect("temporary directory");
    let Some(path) = build(dir.path(), "program", INLINED, &["-g"]) else {
        return;
    };
    // What root installed has no share; for anybody else nothing changes.
    let _ = std::os::unix::fs::chown(&path, Some(4321), None);
    let [outer, main] =
        ["outer", "main"].map(|function| FileOffset(offset_of(&path, function).0 + 3));
    let mut rig = with_lines(1 << 20);
    let named = rig.name(&path, build_id(&path), outer);
    assert_eq!(named, "native outer program program.c:3");
    rig.store.take_share(FileId(1));
    assert_eq!(rig.frames(main), ["native main program"], "by its symbol");
    assert_eq!(rig.frames(outer), [named], "what is known stays");
    let put_off = &rig.counters.files_put_off;
    assert_eq!(put_off.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[test]
fn debug_information_that_does_not_fit_is_not_read() {
    let dir = TempDir::new().expect("temporary directory");
    for (name, packing) in [("plain", "-gz=none"), ("zlib", "-gz=zlib")] {
        let Some(path) = build(dir.path(), name, INLINED, &["-g", packing]) else {
            return;
        };
        let outer = FileOffset(offset_of(&path, "outer").0 + 3);
        let mut rig = with_lines(2048);
        let named = rig.name(&path, build_id(&path), outer);
        assert_eq!(named, format!("native outer {name}"), "by its symbol");
        rig.frames(outer);
        let refused = rig
            .counters
            .lines_refused
            .load(std::sync::atomic::Ordering::Relaxed);
        assert_eq!(refused, 1, "{name}: known from then on");
    }
}

#[test]
fn a_stripped_program_in_go_has_names_and_on_request_lines_and_inlined_calls() {
    let path = match testkit::golang::build(testkit::golang::Build::Stripped) {
        Ok(path) => path,
        Err(why) => return testkit::skip(why),
    };
    let image = fs::File::open(&path).expect("opens");
    let headers = elf::read_headers(&image).expect("is ELF");
    let budget = budget::FileBudget::default();
    let tables = go::find(&image, &headers, &budget).expect("within the budget");
    let functions = go::symbols(&image, &tables.expect("is in Go"), &budget).expect("sound");
    let functions = functions.expect("functions");
    let post = b"main.(*Ledger).Post";
    let (start, len) = functions.named(&image, post, &budget).expect("is there");
    let offset = |into: u64| FileOffset(headers.offset_of(start + into).expect("is code"));
    let mut plain = Rig::plain();
    let name = plain.name(&path, inode(&path), offset(5));
    assert_eq!(name, "native main.(*Ledger).Post orders-stripped");
    let mut rig = Rig::new(SymbolOptions {
        lines: true,
        inlined_frames: true,
        debug_dirs: Vec::new(),
        ..SymbolOptions::default()
    });
    rig.store
        .see(&seen(&path, inode(&path), std::process::id()));
    let source = fs::read_to_string(testkit::workload::source("orders.go")).expect("readable");
    let line = |text: &str| {
        1 + source
            .lines()
            .position(|line| line.contains(text))
            .expect(text)
    };
    let expected = [
        format!(
            "inlined main.rounded orders-stripped orders.go:{}",
            line("return (sum ^")
        ),
        format!(
            "inlined main.fee orders-stripped orders.go:{}",
            line("return rounded(sum)")
        ),
        format!(
            "native main.(*Ledger).Post orders-stripped orders.go:{}",
            line("+= fee(")
        ),
    ];
    let mut places = (0..u64::from(len)).map(|into| rig.frames(offset(into)));
    assert!(places.any(|frames| frames == expected), "{expected:?}");
}
