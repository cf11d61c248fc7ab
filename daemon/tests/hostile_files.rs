//! Measures what reading hostile files takes: memory and CPU time of each reading, in processes
//! that do nothing else.
//!
//! Each file is read three times, as `fp-blocking`, `fp-symbolize` and `fp-files` do, by this
//! program started again with the file's name in its environment. Memory is the peak of the
//! resident set above what it was before: what the kernel counts, and what ends a daemon.

use host::ids::{Avma, FileId, FileOffset, Pid};
use host::time::thread_cpu;
use profile::{Dictionary, UnnamedReason};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use symbolize::debug_files::{self, DebugFileOptions};
use symbolize::files::{FileIdentity, FileSeen, FileStore, Image, RELATIVES};
use symbolize::{Named, SymbolCounters, SymbolOptions, Symbolizer};
use testkit::hostile_elf::Hostile;
use unwind::info::module::Module;

/// Most memory above what was there before. Unit: bytes. 48 MiB for the file, and what the
/// allocator and the dictionary take in pages of their own.
const BYTES_MAX: u64 = 64 << 20;

/// Most CPU time of one reading: two seconds, and as much again for what lies between two looks at
/// the clock in a build that is not optimized, on a busy host.
const CPU_MAX: Duration = Duration::from_secs(4);

/// Says which file the child reads, and how.
const FILE: &str = "FLEETPROF_TEST_HOSTILE_FILE";
const READING: &str = "FLEETPROF_TEST_HOSTILE_READING";
const READINGS: [&str; 3] = ["open", "names", "unwind"];
/// As `unwind`, with rows for code that the file does not describe.
const DERIVING: &str = "derive";

/// What a reading took and came to.
#[derive(Debug)]
struct Took {
    bytes: u64,
    cpu: Duration,
    outcome: String,
}

fn status_kib(field: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("readable");
    let line = status.lines().find(|line| line.starts_with(field));
    let words = line.and_then(|line| line.split_whitespace().nth(1));
    words.and_then(|word| word.parse().ok()).expect("a number")
}

/// A store in which the file is open, as file 1.
fn seen(path: &Path) -> Arc<FileStore> {
    let store = FileStore::new(None, Arc::new(SymbolCounters::default()));
    store.see(&FileSeen {
        id: FileId(1),
        identity: FileIdentity::Path,
        path: path.as_os_str().as_encoded_bytes().into(),
        pid: Pid(std::process::id()),
        range: (Avma(0), Avma(0)),
        relatives: [Pid(0); RELATIVES],
    });
    Arc::new(store)
}

/// The reading, by its name; what came of it.
fn read(reading: &str, path: &Path) -> String {
    let dirs = vec![path.parent().expect("in a directory").to_path_buf()];
    if reading == "open" {
        let image = Image::open(fs::File::open(path).expect("opens")).expect("opens");
        let wanted = DebugFileOptions { dirs, lines: true };
        let name = path.as_os_str().as_encoded_bytes();
        let pid = Pid(std::process::id());
        let debug = debug_files::at_first_sight(&wanted, &image, pid, name);
        return format!("debug file: {}", debug.is_some());
    }
    let store = seen(path);
    let found = store.get(FileId(1));
    if reading == "unwind" || reading == DERIVING {
        let derives = reading == DERIVING;
        let image = found.image.expect("it is open");
        let budget = store.budget(&image).expect("nothing was read before");
        return match Module::read(&image, None, &found.path, (&dirs, derives), &budget) {
            Ok(Some(module)) => format!("{} functions", module.functions()),
            Ok(None) => "none".to_owned(),
            Err(over) => format!("refused: {over}"),
        };
    }
    let options = SymbolOptions {
        debug_dirs: dirs,
        cache_bytes: 1 << 30,
        ..SymbolOptions::default()
    };
    let mut symbolizer = Symbolizer::new(options, store, Arc::new(SymbolCounters::default()));
    let (mut dict, mut out) = (Dictionary::default(), Named::default());
    symbolizer.file(FileId(1), &[FileOffset(0x1100)], &mut dict, &mut out);
    let frame = dict.frame(out.frames_of(0)[0]);
    match frame.unnamed {
        UnnamedReason::No => frame.function.to_owned(),
        reason => reason.word().to_owned(),
    }
}

/// Only with a file named in the environment: reads it and prints what that took.
#[test]
fn child() {
    let (Some(path), Ok(reading)) = (std::env::var_os(FILE), std::env::var(READING)) else {
        return;
    };
    let path = PathBuf::from(path);
    // What every first reading takes is there before.
    read(&reading, &std::env::current_exe().expect("this program"));
    fs::write("/proc/self/clear_refs", "5").expect("resets the peak");
    let (before, begin) = (status_kib("VmRSS:"), thread_cpu());
    let outcome = read(&reading, &path);
    let cpu = thread_cpu().saturating_sub(begin);
    let kib = status_kib("VmHWM:").saturating_sub(before);
    println!("took {kib} {} {outcome}", cpu.as_micros());
}

fn measure(reading: &str, path: &Path) -> Took {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture", "--test-threads=1"]);
    let said = command.env(FILE, path).env(READING, reading).output();
    let said = said.expect("it runs");
    let text = String::from_utf8_lossy(&said.stdout);
    let line = text
        .lines()
        .find_map(|line| Some(line.split_once("took ")?.1));
    let line = line.unwrap_or_else(|| panic!("{reading} {}: {said:?}", path.display()));
    let mut words = line.splitn(3, ' ');
    let mut number = || -> u64 {
        words
            .next()
            .and_then(|word| word.parse().ok())
            .expect("a number")
    };
    let (kib, micros) = (number(), number());
    Took {
        bytes: kib << 10,
        cpu: Duration::from_micros(micros),
        outcome: words.next().unwrap_or_default().to_owned(),
    }
}

fn check(hostile: Hostile, names: &[&str], unwind: &[&str]) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("program");
    hostile
        .write(&path)
        .unwrap_or_else(|e| panic!("{hostile:?}: {e}"));
    let bounded = |reading: &str| {
        let took = measure(reading, &path);
        let text = format!("{hostile:?} {reading}: {took:?}");
        eprintln!("{text}");
        assert!(took.bytes <= BYTES_MAX, "{text}");
        assert!(took.cpu <= CPU_MAX, "{text}");
        (took, text)
    };
    bounded(DERIVING);
    for (reading, expected) in READINGS.iter().zip([&["debug file: false"], names, unwind]) {
        let (took, text) = bounded(reading);
        let outcome = &*took.outcome;
        assert!(
            expected.iter().any(|start| outcome.starts_with(start)),
            "{text}"
        );
    }
}

const REFUSED: &str = "refused";
const NO_SYMBOLS: &str = "no_symbols";
const OVER_BUDGET: &str = "over_budget";

#[test]
fn sections_that_share_a_name_without_end_are_bounded() {
    check(Hostile::SharedName, &[NO_SYMBOLS], &["none"]);
}

#[test]
fn a_symbol_table_of_a_terabyte_is_refused_before_it_is_read() {
    check(Hostile::SparseSymbols, &[OVER_BUDGET], &["none"]);
}

#[test]
fn more_functions_than_fit_leave_the_file_without_names() {
    check(Hostile::ManyFunctions, &[OVER_BUDGET], &["none"]);
}

#[test]
fn section_names_of_a_terabyte_are_cut() {
    check(Hostile::SparseNames, &[NO_SYMBOLS], &["none"]);
}

#[test]
fn descriptions_of_one_function_are_one() {
    check(
        Hostile::RepeatedDescriptions,
        &[NO_SYMBOLS],
        &["1 functions", REFUSED],
    );
}

#[test]
fn an_entry_that_the_header_repeats_is_read_once() {
    check(Hostile::DuplicateHeader, &[NO_SYMBOLS], &["1 functions"]);
}

#[test]
fn a_deep_description_is_read_once() {
    check(Hostile::DeepDescription, &[NO_SYMBOLS], &["1 functions"]);
}

#[test]
fn many_deep_descriptions_are_given_up() {
    check(
        Hostile::ManyDeepDescriptions,
        &[NO_SYMBOLS],
        &["1 functions", REFUSED],
    );
}

#[test]
fn rows_that_are_computed_each_time_are_bounded() {
    check(Hostile::ManyRules, &[NO_SYMBOLS], &[REFUSED]);
}

#[test]
fn expressions_are_kept_once() {
    check(Hostile::ManyExpressions, &[NO_SYMBOLS], &[REFUSED]);
}

#[test]
fn long_expressions_are_kept_for_the_walk_to_bound() {
    check(Hostile::LongExpressions, &[NO_SYMBOLS], &["1 functions"]);
}

#[test]
fn unwind_information_of_a_terabyte_is_given_up() {
    check(Hostile::SparseFrames, &[NO_SYMBOLS], &[REFUSED]);
}

#[test]
fn a_section_is_unpacked_within_the_budget() {
    check(Hostile::PackedZeros, &[NO_SYMBOLS], &["none"]);
}

#[test]
fn notes_of_terabytes_are_cut() {
    check(Hostile::HugeNotes, &[NO_SYMBOLS], &["none"]);
}

#[test]
fn program_headers_behind_nothing_are_read_where_they_are() {
    check(Hostile::FarHeaders, &[NO_SYMBOLS], &["none"]);
}

#[test]
fn code_without_end_is_followed_within_the_budget() {
    check(Hostile::TediousCode, &[NO_SYMBOLS], &["none"]);
}

#[test]
fn a_debug_link_to_the_file_itself_ends() {
    check(Hostile::OwnDebugLink, &[NO_SYMBOLS], &["none"]);
}

/// The largest files of this host, when they are there: they have names, and unwind information.
#[test]
fn large_files_of_distributions_are_within_the_budget() {
    let mut places: Vec<PathBuf> = [
        "/usr/bin/node",
        "/usr/lib/chromium/chromium",
        "/usr/lib/chromium/chromium-headless-shell",
        "/usr/lib/x86_64-linux-gnu/libLLVM-15.so.1",
        "/usr/lib/x86_64-linux-gnu/libLLVM.so.22.1",
        "/usr/bin/dockerd",
    ]
    .map(PathBuf::from)
    .to_vec();
    places.extend(rustc_libraries());
    places.push(std::env::current_exe().expect("this program"));
    // Some of those names are scripts for the linker.
    let large = |path: &&PathBuf| fs::metadata(path).is_ok_and(|facts| facts.len() > 1 << 20);
    for path in places.iter().filter(large) {
        // A debug build on a busy machine comes close to the limit of CPU time: two more tries.
        let [names, unwind] = ["names", DERIVING].map(|reading| {
            let mut took = measure(reading, path);
            for _ in 0..2 {
                if took.outcome == OVER_BUDGET || took.outcome.contains(REFUSED) {
                    took = measure(reading, path);
                }
            }
            took
        });
        eprintln!("{}: {names:?} {unwind:?}", path.display());
        assert!(
            names.bytes <= BYTES_MAX && unwind.bytes <= BYTES_MAX,
            "{}",
            path.display()
        );
        assert_ne!(names.outcome, OVER_BUDGET, "{}", path.display());
        assert!(
            unwind.outcome.ends_with("functions"),
            "{}: {unwind:?}",
            path.display()
        );
    }
}

/// The compiler and LLVM, which come with what built this.
fn rustc_libraries() -> Vec<PathBuf> {
    let said = Command::new("rustc").args(["--print", "sysroot"]).output();
    let Ok(said) = said else { return Vec::new() };
    let root = PathBuf::from(String::from_utf8_lossy(&said.stdout).trim());
    let files = fs::read_dir(root.join("lib"))
        .into_iter()
        .flatten()
        .flatten();
    let files = files.map(|file| file.path());
    files
        .filter(|path| path.to_string_lossy().contains(".so"))
        .collect()
}
