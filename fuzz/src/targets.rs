//! What each fuzz target does with its bytes, and what must hold whatever they are.
//!
//! A target is a function from bytes to nothing that panics when a promise is broken. The fuzzer
//! runs it under `fuzz_targets/`; `tests/tests/fuzz_corpus.rs` runs it over the corpus on the
//! compiler of the product, so this file uses nothing but the crates under test.

use agent_config::{Config, Configuration};
use cgroup::containers::{self, LABEL_BYTES_MAX, VALUE_BYTES_MAX};
use cgroup::{Hierarchy, Labels};
use collector::store::embedded::readers;
use host::facts::parse_cpu_list;
use host::proc;
use host::time::MonotonicTime;
use jit::code::{CodeLookup, CodeMap, When};
use jit::perfdata;
use jit::runtime::{Runtime, Settings};
use jit::{map::MapReader, target};
use offcpu::format::{SwitchFormat, WakingFormat};
use perf::record::{self, Layout, Record};
use profile::formats::{self, Format, ImportOptions, Options};
use profile::heatmap::{Grid, HeatMap};
use profile::names;
use profile::{FrameFilter, FrameFilterOp, Profile, Selector};
use prost::Message;
use proto::ProfileAssembler;
use std::path::{Component, Path};
use std::sync::atomic::{AtomicU64, Ordering};
use symbolize::budget::{FILE_CPU_MAX, FileBudget, Over};
use symbolize::elf::{self, SymbolTable};
use symbolize::go::lines::Source;
use symbolize::go::{self, values::Values};
use symbolize::{KernelSymbols, functions, inflate};
use unwind::process::maps;

mod fleet;
mod generated;
mod walks;
pub use fleet::{ingest_windows, pin_files, segment_files, segment_records, spool_segments};
pub use generated::jitdump;
pub use walks::unwinding;

/// Most memory that a target allows what it reads. Unit: bytes. Small, so that bounds are met
/// often.
const BYTES_MAX: usize = 1 << 20;

/// What a target does with its bytes.
pub type Target = fn(&[u8]);

/// Every name a target has, with its function: what the corpus's folders are called.
pub const ALL: &[(&str, Target)] = &[
    ("perf_records", perf_records),
    ("elf_images", elf_images),
    ("go_tables", go_tables),
    ("unwinding", unwinding),
    ("perf_maps", perf_maps),
    ("perf_data", perf_data),
    ("jitdump", jitdump),
    ("proc_text", proc_text),
    ("container_metadata", container_metadata),
    ("symbol_names", symbol_names),
    ("symbol_files", symbol_files),
    ("config", config),
    ("pprof", pprof),
    ("perf_script", perf_script),
    ("speedscope", speedscope),
    ("imports", imports),
    ("queries", queries),
    ("pyroscope_requests", pyroscope_requests),
    ("sent_profiles", sent_profiles),
    ("otlp_requests", otlp_requests),
    ("wire_chunks", wire_chunks),
    ("segment_records", segment_records),
    ("segment_files", segment_files),
    ("spool_segments", spool_segments),
    ("pin_files", pin_files),
    ("ingest_windows", ingest_windows),
    ("store_log", store_log),
    ("store_blocks", store_blocks),
];

/// Records of the ring, under every layout the daemon opens events with: whatever is not refused
/// lies inside the record.
pub fn perf_records(data: &[u8]) {
    let layouts = [
        (true, 0, false, false),
        (false, 0, false, false),
        (true, 0x1c0, true, false),
        (false, 0x1c0, true, false),
        (true, 0, false, true),
        (true, 0x1c0, true, true),
    ];
    let _ = record::time(data);
    let within = |part: &[u8]| {
        let (all, part) = (data.as_ptr_range(), part.as_ptr_range());
        assert!(part.start >= all.start && part.end <= all.end);
    };
    for (cgroup, user_regs, user_stack, raw) in layouts {
        let layout = Layout {
            cgroup,
            user_regs,
            user_stack,
            raw,
            fixed_period: 0,
        };
        match record::parse(data, &layout) {
            Ok(Record::Sample(sample)) => {
                assert!(record::is_sample(data) && record::time(data) == Ok(sample.time));
                assert_eq!(sample.callchain.iter().count(), sample.callchain.len());
                assert_eq!(sample.raw.is_some(), raw);
                sample.raw.into_iter().for_each(within);
                if let Some(user) = sample.user {
                    within(user.regs);
                    within(user.stack);
                    assert_eq!(user.regs.len(), user_regs.count_ones() as usize * 8);
                }
            }
            Ok(Record::Mmap(mmap)) => within(mmap.path),
            Ok(Record::Cgroup { path, .. }) => within(path),
            _ => {}
        }
    }
}

/// The tables of programs in Go: whatever an image says, functions come in order and end, names and
/// places are looked up within it, and what is kept of it is not much larger than it.
pub fn go_tables(data: &[u8]) {
    assert!(Values::new(data, 1).count() <= data.len());
    let Ok(headers) = elf::read_headers(data) else {
        return;
    };
    let budget = FileBudget::new(64 * BYTES_MAX, FILE_CPU_MAX);
    let Ok(Some(tables)) = go::find(data, &headers, &budget) else {
        return;
    };
    let _ = go::roles::roles(data, &tables, &budget);
    let Ok(source) = Source::new(data, &headers, tables, true, &budget) else {
        return;
    };
    let (mut behind, mut functions) = (0, 0usize);
    let each = tables.each(data, &budget, |function| {
        assert!(behind <= function.start && function.start < function.end);
        behind = function.end;
        functions += 1;
        if functions <= 64 {
            let calls = source.calls(data, function.start, &budget)?;
            assert!(calls.len() <= 65);
        }
        Ok::<(), Over>(())
    });
    if each.is_ok() {
        assert!(functions <= data.len());
    }
    let budget = FileBudget::new(64 * BYTES_MAX, FILE_CPU_MAX);
    let Ok(Some(symbols)) = go::symbols(data, &tables, &budget) else {
        return;
    };
    assert!(symbols.heap_bytes() <= 4 * data.len());
    for index in 0..symbols.len().min(64) as u32 {
        symbols.name(data, index);
    }
}

/// ELF images: headers, symbol tables, names, compressed sections, look-ups of every offset.
pub fn elf_images(data: &[u8]) {
    let budget = || FileBudget::new(64 * BYTES_MAX, FILE_CPU_MAX);
    let _ = inflate::mini_debug_info(data, BYTES_MAX, &budget());
    let _ = elf::find_build_id(data, 4);
    let _ = elf::find_build_id(data, 8);
    let Ok(headers) = elf::read_headers(data) else {
        return;
    };
    assert_eq!(
        elf::read_build_id(data).ok(),
        Some(headers.build_id.clone())
    );
    headers.debug_link(data);
    let _ = functions::place_of(data, b"main");
    for section in headers.sections.iter().filter(|section| section.compressed) {
        let budget = budget();
        let content = inflate::content(data, section, headers.is_64, BYTES_MAX, &budget);
        if let Ok(content) = content {
            assert!(content.len() <= BYTES_MAX);
        }
    }
    for name in [&b".symtab"[..], b".dynsym"] {
        let budget = FileBudget::new(BYTES_MAX, FILE_CPU_MAX);
        let table = SymbolTable::read(data, &headers, name, &headers.segments, &budget);
        let Ok(Some(table)) = table else { continue };
        assert!(table.heap_bytes() <= BYTES_MAX && !table.is_empty());
        let mut hint = 0;
        for offset in (0..data.len() as u64).step_by(16) {
            let Some(address) = headers.address_of(offset) else {
                continue;
            };
            let found = table.find(address, &mut hint);
            assert_eq!(
                found,
                table.find(address, &mut 0),
                "a hint changes the answer"
            );
        }
        for index in 0..table.len().min(64) as u32 {
            table.name(data, index);
        }
    }
}

/// Perf maps: the same names whatever pieces the file is read in, memory within the bound.
pub fn perf_maps(data: &[u8]) {
    let (mut whole, mut pieces) = (CodeMap::new(BYTES_MAX), CodeMap::new(BYTES_MAX));
    let (mut at_once, mut by_pieces) = (MapReader::default(), MapReader::default());
    let read = When::between(MonotonicTime(1), MonotonicTime(2));
    at_once.feed(data, read, &mut whole);
    for piece in data.chunks(7) {
        by_pieces.feed(piece, read, &mut pieces);
    }
    assert_eq!(whole.len(), pieces.len());
    assert_eq!(at_once.take_skipped(), by_pieces.take_skipped());
    assert!(whole.heap_bytes() + at_once.heap_bytes() <= 3 * BYTES_MAX);
    let name = |map: &CodeMap, address: u64| match map.find(address, MonotonicTime(3)) {
        CodeLookup::Code(code, _) => Some(code.name.to_string()),
        _ => None,
    };
    for line in data.split(|&byte| byte == b'\n') {
        let Some((start, end, _)) = jit::map::parse_line(line) else {
            continue;
        };
        assert!(start < end);
        assert_eq!(name(&whole, start), name(&pieces, start));
        if let Some(name) = name(&whole, end - 1) {
            assert!(!name.chars().any(char::is_control));
        }
    }
}

/// Text of `/proc` and cgroup files that holds names of strangers.
pub fn proc_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for map in maps::executable(data) {
        assert!(map.start < map.end);
    }
    proc::start_ticks(data);
    proc::unescape(data);
    for mount in data
        .split(|&byte| byte == b'\n')
        .filter_map(proc::Mount::parse)
    {
        assert!(!mount.kind.contains(&b' '));
    }
    target::parse_status(&text);
    target::root_uid(&text);
    parse_cpu_list(&text);
    let half = data.len() / 2;
    let found = Hierarchy::parse(&data[..half], &data[half..]);
    let path = found.path_in(data);
    assert!(path.iter().all(|path| path.starts_with(b"/")));
    for path in path.iter().map(Vec::as_slice).chain([data]) {
        if let (Some(directory), Some(mount)) = (found.directory(path), &found.mount) {
            let below = directory.strip_prefix(mount).expect("inside the mount");
            assert!(below.components().all(|part| part != Component::ParentDir));
        }
    }
    for line in text.lines() {
        for (_, value) in Labels::of_path(line).pairs() {
            assert!(!value.is_empty() && !value.chars().any(char::is_control));
        }
    }
    let kernel = KernelSymbols::parse(data).expect("reading from memory");
    for (start, end) in kernel.idle_ranges() {
        assert!(start < end);
    }
    kernel.find(0xffff_ffff_8100_0000);
    if let Ok(format) = SwitchFormat::parse(data) {
        format.read(data);
    }
    if let Ok(format) = WakingFormat::parse(data) {
        format.read(data);
    }
    // What a runtime was started with, and what a JVM tells of itself.
    let words: Vec<String> = text.split('\0').map(str::to_owned).collect();
    for runtime in [Runtime::HotSpot, Runtime::Php, Runtime::DotNet] {
        Settings::of(runtime, &words, &words, Some(data));
    }
    perfdata::text(data, "java.rt.vmArgs");
}

/// What runtimes say of containers, whole and broken off: few bytes of plain text come of it.
pub fn container_metadata(data: &[u8]) {
    let chosen: Vec<Box<str>> = ["team", "app.kubernetes.io/name", ""]
        .map(Box::from)
        .to_vec();
    let id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let mut found = vec![
        containers::container_status(data, &chosen),
        containers::pod_status(data, &chosen),
        containers::image_info(data, &chosen),
    ];
    for cut in [false, true] {
        found.push(containers::inspected(data, cut, &chosen));
        found.push(containers::pod(data, cut, &chosen));
        found.push(containers::bundle(data, cut, &chosen));
        found.extend(containers::stored(data, cut, id).transpose());
    }
    for found in found {
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                continue;
            }
        };
        for (key, value) in found.metadata.pairs() {
            assert!(!key.is_empty() && !value.is_empty() && value.len() <= VALUE_BYTES_MAX);
            assert!(!value.chars().any(profile::text::is_hostile), "{value:?}");
        }
        let labels = found.metadata.labels.iter();
        let bytes: usize = labels.map(|(name, value)| name.len() + value.len()).sum();
        assert!(bytes <= LABEL_BYTES_MAX);
    }
}

/// Files that people upload for their symbols: what is taken is in order, has names, and ends.
pub fn symbol_files(data: &[u8]) {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let (process, number) = (std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let path = std::env::temp_dir().join(format!("symbol-file-{process}-{number}"));
    std::fs::write(&path, data).expect("a writable directory");
    let file = std::fs::File::open(&path).expect("the file");
    // It is open, and needs no name.
    std::fs::remove_file(&path).expect("the file");
    let Ok(found) = collector::symbols::Functions::read(&file) else {
        return;
    };
    assert!(profile::is_build_id(&found.build_id));
    assert!(
        found
            .list
            .is_sorted_by(|left, right| left.start < right.start)
    );
    for function in &found.list {
        assert!(function.start < function.end);
        let name = found.name(function);
        assert!(!name.is_empty() && name.len() <= names::MANGLED_BYTES_MAX);
    }
}

/// Symbol names: demangling ends, in few bytes; what runtimes write leaves a function, in few bytes
/// too.
pub fn symbol_names(data: &[u8]) {
    let raw = String::from_utf8_lossy(data);
    let cleaned = jit::names::clean(&raw);
    assert!(!cleaned.function.trim().is_empty());
    assert!(cleaned.line == 0 || !cleaned.file.is_empty());
    let mut dict = profile::Dictionary::default();
    let frame = jit::names::intern(&mut dict, &raw, None);
    let frame = dict.frame(frame);
    for text in [frame.function, frame.file] {
        assert!(text.len() <= names::NAME_BYTES_MAX && !text.contains(char::is_control));
    }
    assert!(names::readable(data).len() <= names::NAME_BYTES_MAX);
    assert!(names::capped_bytes(data).len() <= names::NAME_BYTES_MAX);
}

/// Configuration files: what is taken is written out again as the same configuration.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let path = Path::new("agent.yaml");
    match Config::parse(text, path) {
        Ok(config) => {
            let again = Config::parse(&config.to_yaml(), path).expect("what was written is read");
            assert_eq!(again.to_yaml(), config.to_yaml());
        }
        Err(error) => {
            let shown = error.to_string();
            assert!(!shown.is_empty());
        }
    }
}

/// pprof files of any writer: what is read is written in every format.
pub fn pprof(data: &[u8]) {
    let Ok(profile) = formats::pprof::decode(data, BYTES_MAX as u64) else {
        return;
    };
    written(&profile);
}

/// Text of perf script: what is read is written in every format, and read back from its own text
/// with as many samples.
pub fn perf_script(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = formats::perf_script::looks_like(&text);
    let Ok(import) = formats::perf_script::read(&text) else {
        return;
    };
    let profile = import.profile;
    written(&profile);
    let mut out = Vec::new();
    let options = Options::default();
    if formats::write(&profile, Format::PerfScript, &options, &mut out).is_ok() {
        let text = String::from_utf8(out).expect("text");
        let again = formats::perf_script::read(&text).expect("our own text");
        assert_eq!(again.profile.total().count, profile.total().count);
    }
    let mut before = 0;
    for timestamp in &profile.timestamps.list {
        assert!(timestamp.at_ns >= before && timestamp.at_ns < profile.timestamps.duration_ns);
        before = timestamp.at_ns;
    }
}

/// JSON of speedscope.
pub fn speedscope(data: &[u8]) {
    for which in [None, Some(1), Some(2)] {
        if let Ok(import) = formats::speedscope::read(data, which) {
            written(&import.profile);
        }
    }
}

/// What `perf record` wrote: the profile has as many samples as times, and can be written.
pub fn perf_data(data: &[u8]) {
    for event in [None, Some(2)] {
        let options = ::perf_data::Options {
            bytes_max: BYTES_MAX,
            event,
            local: false,
        };
        if let Ok(import) = ::perf_data::read(data, options) {
            written(&import.profile);
            let (total, times) = (import.profile.total(), &import.profile.timestamps);
            assert!(times.is_absent() || times.list.len() as u64 == total.count);
            assert!(total.count <= data.len().max(BYTES_MAX) as u64 / 8);
        }
    }
}

/// Files of any kind that is known, packed or not.
pub fn imports(data: &[u8]) {
    let options = ImportOptions {
        bytes_max: BYTES_MAX as u64,
        profile: None,
    };
    if let Ok((import, _)) = formats::import(data, options) {
        written(&import.profile);
        if let Ok(map) = HeatMap::new(&import.profile.timestamps, Grid::default()) {
            assert_eq!(map.total.count, import.profile.timestamps.list.len() as u64);
        }
    }
}

/// Chunks of a profile on the wire, each after its length.
pub fn wire_chunks(data: &[u8]) {
    let mut rest = data;
    let mut assembler = ProfileAssembler::with_limit(BYTES_MAX);
    while !rest.is_empty() {
        let Ok(chunk) = proto::wire::ProfileChunk::decode_length_delimited(&mut rest) else {
            return;
        };
        if assembler.push(chunk).is_err() {
            assert!(!assembler.is_complete());
            return;
        }
    }
    if let Ok(profile) = assembler.finish() {
        written(&profile);
    }
}

/// The collector's write-ahead log: segments, records, and the dictionaries beside it.
pub fn store_log(data: &[u8]) {
    readers::log(data);
}

/// The collector's blocks: columns, heads, and what is kept of windows.
pub fn store_blocks(data: &[u8]) {
    readers::block(data);
}

/// What clients ask for: selectors of labels and filters of frames.
pub fn queries(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let _ = text.parse::<Selector>();
    let _ = FrameFilter::new(FrameFilterOp::Focus, &text);
    let _ = text.parse::<Format>();
    Format::of_file_name(&text);
}

/// What Grafana asks: JSON of a request, which is read as the message that protocol buffers have,
/// and the selectors and profile types in it.
pub fn pyroscope_requests(data: &[u8]) {
    use collector::pyroscope::querier::v1::SelectMergeStacktracesRequest as Request;
    use collector::pyroscope::{ProfileType, Selection, read_json};
    const CALL: &str = "/querier.v1.QuerierService/SelectMergeStacktraces";
    if let Ok(bytes) = read_json(CALL, data) {
        let request = <Request as prost::Message>::decode(&bytes[..]);
        let request = request.expect("what was read from JSON is a message");
        let _ = Selection::parse(&request.label_selector);
        let _ = ProfileType::parse(&request.profile_type_id);
    }
    let text = String::from_utf8_lossy(data);
    let _ = Selection::parse(&text);
    if let Ok(of) = ProfileType::parse(&text) {
        assert_eq!(ProfileType::parse(&of.id()).expect("its own id"), of);
    }
}

/// What other senders send: a line with the query of `/ingest`, as `key=value` pairs with `&`
/// between them, and the body, which is read as a request of push and of `WriteRaw` as well.
pub fn sent_profiles(data: &[u8]) {
    let end = data.iter().position(|&byte| byte == b'\n');
    let (query, body) = data.split_at(end.unwrap_or(data.len()));
    let query = String::from_utf8_lossy(query);
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let body = body.get(1..).unwrap_or_default();
    let _ = collector::senders::read_ingest(pairs.collect(), body);
    for is_parca in [false, true] {
        let _ = collector::senders::read_push(is_parca, body);
    }
    if let Ok(types) = profile::formats::pprof::Types::decode(body, 1 << 20) {
        for place in 0..types.count() {
            let _ = types.read(place);
        }
    }
}

/// Requests of OTLP: JSON where they start as it does, protocol buffers otherwise.
pub fn otlp_requests(data: &[u8]) {
    let _ = collector::senders::read_otlp(data.starts_with(b"{"), data);
}

/// Writes a profile in every format and reads pprof and the wire form back.
fn written(profile: &Profile) {
    let options = Options::default();
    for format in Format::ALL {
        let mut out = Vec::new();
        let done = formats::write(profile, format, &options, &mut out);
        // Its numbers are signed: what is beyond stands at the most they can say.
        let total = profile.total();
        let fits = i64::try_from(total.weight.max(total.count)).is_ok();
        if done.is_ok() && format == Format::Pprof && fits {
            let again = formats::pprof::decode(&out, u64::MAX - 1).expect("our own file");
            assert_eq!(again.total(), profile.total());
        }
        if format.is_text() {
            let text = String::from_utf8(out).expect("text formats are UTF-8");
            let control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
            assert!(!text.contains(control), "{format} holds control characters");
        }
    }
}
