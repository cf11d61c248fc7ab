//! Tests with files of real runtimes, handwritten files, and hostile files.

use super::*;
use crate::code::CodeLookup;
use host::ids::Avma;
use proptest::prelude::*;
use unwind::info::rule::Rule;

/// Cut from what Node 20.19 wrote with `--perf-prof --perf-prof-unwinding-info`, to a few
/// functions.
const OF_NODE: &[u8] = include_bytes!("../../../../fuzz/corpus/jitdump/node-20");

/// Cut from what CPython 3.13.0 wrote with `-X perf_jit`.
const OF_CPYTHON: &[u8] = include_bytes!("../../../../fuzz/corpus/jitdump/cpython-3.13");

/// A complete file written by wasmtime 50.0.
const OF_WASMTIME: &[u8] = include_bytes!("../../../../fuzz/corpus/jitdump/wasmtime-50");

/// When the files are read in these tests: later than all that is in them.
const READ: MonotonicTime = MonotonicTime(u64::MAX / 2);

const PID: u32 = 77;

/// `e_machine` of x86-64, of which the recordings are, and of one that nothing runs on.
const X86_64: u16 = 62;
const NO_MACHINE: u16 = 3;

/// True where the unwinding information of the recordings is this machine's.
const READS_THEIR_RULES: bool = ELF_MACHINE == X86_64;

struct Rig {
    reader: DumpReader,
    code: CodeMap,
    rules: RulesBuilder,
}

impl Rig {
    fn new() -> Rig {
        Rig {
            reader: DumpReader::default(),
            code: CodeMap::new(1 << 20),
            rules: RulesBuilder::default(),
        }
    }

    /// What a runtime wrote on x86-64, as if on this machine: names and places have no
    /// architecture.
    fn of(file: &[u8]) -> Rig {
        let mut file = file.to_vec();
        if file[12..16] == u32::from(X86_64).to_le_bytes() {
            file[12..16].copy_from_slice(&u32::from(ELF_MACHINE).to_le_bytes());
        }
        let mut rig = Rig::new();
        rig.feed(&file).expect("a sound file");
        rig
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<(), DumpError> {
        self.feed_at(bytes, When::at(READ))
    }

    fn feed_at(&mut self, bytes: &[u8], read: When) -> Result<(), DumpError> {
        self.reader
            .feed(bytes, read, &mut self.code, &mut self.rules)
    }

    fn name(&self, address: u64, at: u64) -> Option<&str> {
        match self.code.find(address, MonotonicTime(at)) {
            CodeLookup::Code(code, _) => Some(&code.name),
            CodeLookup::Nothing => None,
            CodeLookup::Unsure => Some("unsure"),
        }
    }

    /// All there is now, as text.
    fn listed(&self) -> Vec<String> {
        let piece = |(range, code): (Range<u64>, &crate::code::Code)| {
            let places = (0..64).map(|at| code.place(at * 8));
            let places: Vec<_> = places.collect();
            format!("{range:x?} {} {places:?}", code.name)
        };
        self.code.iter().map(piece).collect()
    }

    fn counts(&mut self) -> DumpCounts {
        self.reader.take_counts()
    }
}

/// A file of these records, written by process [`PID`].
fn file(flags: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let words = [
        MAGIC,
        VERSION,
        HEAD_BYTES as u32,
        ELF_MACHINE.into(),
        0,
        PID,
    ];
    let mut file: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    file.extend_from_slice(&5u64.to_le_bytes());
    file.extend_from_slice(&flags.to_le_bytes());
    file.extend(records.iter().flatten());
    file
}

fn record(id: u32, time: u64, body: &[u8]) -> Vec<u8> {
    let size = (PREFIX_BYTES + body.len()) as u32;
    let prefix = [
        &id.to_le_bytes()[..],
        &size.to_le_bytes(),
        &time.to_le_bytes(),
    ];
    [&prefix.concat(), body].concat()
}

fn words(pid: u32, words: &[u64]) -> Vec<u8> {
    let mut body = [pid.to_le_bytes(), pid.to_le_bytes()].concat();
    body.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    body
}

fn load(time: u64, start: u64, size: u64, name: &str) -> Vec<u8> {
    let mut body = words(PID, &[start, start, size, 0]);
    body.extend_from_slice(name.as_bytes());
    body.push(0);
    body.resize(body.len() + size as usize, 0xcc);
    record(0, time, &body)
}

fn moved(time: u64, from: u64, to: u64, size: u64) -> Vec<u8> {
    record(1, time, &words(PID, &[to, from, to, size, 0]))
}

fn lines(start: u64, count: u64, entries: &[(u64, u32, &[u8])]) -> Vec<u8> {
    let mut body = [start.to_le_bytes(), count.to_le_bytes()].concat();
    for (address, line, name) in entries {
        body.extend_from_slice(&address.to_le_bytes());
        body.extend_from_slice(&line.to_le_bytes());
        body.extend_from_slice(&[0; 4]);
        body.extend_from_slice(name);
        body.push(0);
    }
    record(2, 1, &body)
}

#[test]
fn functions_of_node_have_names_lines_and_rules() {
    let mut rig = Rig::of(OF_NODE);
    let names: Vec<&str> = rig.code.iter().map(|(_, code)| &*code.name).collect();
    assert!(names.contains(&"JS:^mid /tmp/app/hot.js:2:13"), "{names:?}");
    assert!(names.contains(&"Builtin:RecordWriteSaveFP"));
    let mid = rig.code.iter().find(|(_, code)| code.name.contains("^mid"));
    let (range, mid) = mid.expect("is listed");
    assert_eq!(range, 0x7f2d_72fc_6f40..0x7f2d_72fc_6f9c);
    // Counted from the head of an image: 64 bytes further.
    assert_eq!(mid.place(0), Some(("/tmp/app/hot.js", 2)));
    let optimised = rig
        .code
        .iter()
        .filter(|(_, code)| code.name.starts_with("JS:*"));
    let optimised: Vec<u64> = optimised.map(|(range, _)| range.start).collect();
    if READS_THEIR_RULES {
        let rules = rig.rules.take().expect("optimised code is described");
        for start in optimised {
            let known = |offset| rules.rule(Avma(start + offset)) != Rule::UNKNOWN;
            assert!(known(0) && known(100), "{start:x}");
        }
        assert_eq!(rules.rule(Avma(0x7f2d_72fc_6f40)), Rule::UNKNOWN);
        assert_eq!(rig.rules.take_counts().senseless, 0);
    }
    let counts = rig.counts();
    assert_eq!((counts.loads, counts.skipped, counts.untimed), (9, 0, 0));
}

#[test]
fn a_freed_file_name_of_node_makes_no_lines_of_nonsense() {
    let mut rig = Rig::of(OF_NODE);
    let leaf = rig
        .code
        .iter()
        .find(|(_, code)| code.name.contains("^leaf"));
    let (_, leaf) = leaf.expect("is listed");
    assert_eq!(leaf.place(u64::MAX), None);
    assert!(rig.counts().lines_dropped >= 2);
}

#[test]
fn functions_of_cpython_have_names_and_rules() {
    let mut rig = Rig::of(OF_CPYTHON);
    assert!(
        rig.listed()
            .iter()
            .any(|line| line.contains("py::leaf:/tmp/app/hot.py"))
    );
    let leaf = rig
        .code
        .iter()
        .find(|(_, code)| code.name.starts_with("py::leaf"));
    let start = leaf.expect("is listed").0.start;
    if READS_THEIR_RULES {
        let rules = rig.rules.take().expect("all are described");
        assert_eq!(rules.rule(Avma(start + 4)), Rule::return_address_at(8));
    }
    assert_eq!(rig.counts().untimed, 0);
}

#[test]
fn functions_of_wasmtime_have_names() {
    let mut rig = Rig::of(OF_WASMTIME);
    let names: Vec<&str> = rig.code.iter().map(|(_, code)| &*code.name).collect();
    assert_eq!(names[..2], ["leaf", "outer"]);
    assert_eq!(names.len(), 4);
    let counts = rig.counts();
    assert_eq!((counts.loads, counts.skipped, counts.untimed), (4, 0, 0));
}

#[test]
fn code_has_the_name_of_its_time() {
    let rig = Rig::of(&file(
        0,
        &[
            load(100, 0x1000, 64, "first"),
            load(200, 0x1000, 64, "second"),
            moved(300, 0x1000, 0x3000, 64),
            load(300, 0x1020, 16, "third"),
            record(99, 400, b"of a later version"),
            record(3, 500, b""),
            load(600, 0x9000, 16, "behind the end"),
        ],
    ));
    assert_eq!(rig.name(0x1020, 99), None);
    assert_eq!(rig.name(0x1020, 150), Some("first"));
    assert_eq!(rig.name(0x1020, 299), Some("second"));
    assert_eq!(rig.name(0x3020, 299), None);
    assert_eq!(rig.name(0x3020, 300), Some("second"));
    assert_eq!(rig.name(0x1020, 300), Some("third"));
    assert_eq!(rig.name(0x1000, 300), None);
    assert_eq!(rig.name(0x9000, 700), None);
    assert!(rig.reader.is_closed());
    assert_eq!(rig.reader.pid, PID);
}

#[test]
fn times_that_cannot_be_are_those_of_the_reading() {
    let read = When::between(MonotonicTime(1000), MonotonicTime(2000));
    let mut rig = Rig::new();
    let records = [
        load(900, 0x1000, 16, "known"),
        load(5000, 0x2000, 16, "of the future"),
        load(950, 0x3000, 16, "behind it"),
        load(0, 0x4000, 16, "without"),
    ];
    rig.feed_at(&file(0, &records), read).expect("a sound file");
    assert_eq!(rig.name(0x1000, 900), Some("known"));
    for start in [0x2000, 0x3000, 0x4000] {
        assert_eq!(rig.name(start, 999), None, "{start:x}");
        assert!(rig.name(start, 2000).is_some(), "{start:x}");
    }
    assert_eq!(rig.counts().untimed, 3);
    // Records in the next reading are in order again.
    let later = When::between(MonotonicTime(2000), MonotonicTime(3000));
    rig.feed_at(&load(2500, 0x1000, 16, "later"), later)
        .expect("sound");
    assert_eq!(rig.name(0x1000, 2499), Some("known"));
    assert_eq!(rig.counts().untimed, 0);
}

#[test]
fn times_of_another_clock_are_those_of_the_reading() {
    let mut rig = Rig::new();
    let file = file(FLAG_ARCH_TIMESTAMP, &[load(10, 0x1000, 16, "a")]);
    let read = When::between(MonotonicTime(1000), MonotonicTime(2000));
    rig.feed_at(&file, read).expect("a sound file");
    assert_eq!(rig.name(0x1000, 500), None);
    assert_eq!(rig.name(0x1000, 2000), Some("a"));
    assert_eq!(rig.counts().untimed, 1);
}

#[test]
fn records_of_a_child_that_writes_on_are_not_of_the_parent() {
    let mut body = words(PID + 1, &[0x1000, 0x1000, 4, 0]);
    body.extend_from_slice(b"child's\0code");
    let mut rig = Rig::of(&file(0, &[load(1, 0x1000, 4, "own"), record(0, 2, &body)]));
    assert_eq!(rig.name(0x1000, 10), Some("own"));
    assert_eq!(rig.counts().foreign, 1);
}

#[test]
fn damaged_records_are_passed_over_by_their_size() {
    let mut rig = Rig::of(&file(
        0,
        &[
            load(1, 0x1000, 16, "good"),
            record(0, 2, b"too short"),
            record(1, 2, b"too short"),
            record(2, 2, b"too short"),
            record(4, 2, b"too short"),
            // Around the end of all addresses, and in the kernel's half.
            record(0, 2, &words(PID, &[0, u64::MAX - 3, 16, 0])),
            record(0, 2, &words(PID, &[0, 1 << 63, 16, 0])),
            // Without a name: whatever it is, it is not what was there.
            load(3, 0x1000, 16, ""),
            moved(4, 0x7777, 0x2000, 16),
            load(5, 0x2000, 16, "last"),
        ],
    ));
    assert_eq!(rig.name(0x1000, 2), Some("good"));
    assert_eq!(rig.name(0x1000, 3), None);
    assert_eq!(rig.name(0x2000, 5), Some("last"));
    assert_eq!(rig.counts().skipped, 8);
}

#[test]
fn a_record_without_a_size_that_can_be_is_the_end() {
    for size in [0u32, 15, RECORD_BYTES_MAX + 1, u32::MAX] {
        let mut rig = Rig::new();
        let mut bad = record(0, 1, b"");
        bad[4..8].copy_from_slice(&size.to_le_bytes());
        let file = file(0, &[load(1, 0x1000, 16, "good"), bad]);
        assert_eq!(rig.feed(&file), Err(DumpError::RecordSize(size)));
        assert_eq!(rig.feed(b"more"), Err(DumpError::RecordSize(size)));
        assert_eq!(rig.name(0x1000, 2), Some("good"), "what was read stays");
    }
}

#[test]
fn what_is_no_jitdump_of_this_machine_is_refused_with_the_reason() {
    let head = file(0, &[]);
    let with = |at: usize, word: u32| {
        let mut head = head.clone();
        head[at..at + 4].copy_from_slice(&word.to_le_bytes());
        Rig::new().feed(&head)
    };
    assert_eq!(with(0, 7), Err(DumpError::NotADump));
    assert_eq!(with(0, MAGIC.swap_bytes()), Err(DumpError::ByteOrder));
    assert_eq!(with(4, 2), Err(DumpError::Version(2)));
    assert_eq!(with(8, 39), Err(DumpError::RecordSize(39)));
    let other = u32::from(NO_MACHINE);
    assert_eq!(with(12, other), Err(DumpError::Machine(other)));
    assert_eq!(with(12, 0), Ok(()), "CPython names no machine");
    assert_eq!(with(8, 48), Ok(()));
}

#[test]
fn a_longer_head_of_a_later_version_is_passed_over() {
    let mut file = file(0, &[]);
    file[8..12].copy_from_slice(&48u32.to_le_bytes());
    file.extend_from_slice(&[7; 8]);
    file.extend(load(1, 0x1000, 16, "first"));
    assert_eq!(Rig::of(&file).name(0x1000, 1), Some("first"));
}

#[test]
fn lines_belong_to_the_code_that_follows_at_their_address() {
    let rig = Rig::of(&file(
        0,
        &[
            lines(
                0x1000,
                3,
                &[
                    (0x1000, 7, b"a.c"),
                    (0x1008, 9, b"\xff"),
                    (0x1004, 8, b"b.h"),
                ],
            ),
            lines(0x2000, 1, &[(0x2000, 1, b"c.c")]),
            load(1, 0x2000, 16, "other"),
            load(1, 0x1000, 16, "first"),
            load(2, 0x1000, 16, "without"),
        ],
    ));
    let CodeLookup::Code(first, offset) = rig.code.find(0x100a, MonotonicTime(1)) else {
        panic!("is listed")
    };
    assert_eq!(
        (&*first.name, first.place(offset)),
        ("first", Some(("a.c", 9)))
    );
    assert_eq!(first.place(5), Some(("b.h", 8)));
    let CodeLookup::Code(without, _) = rig.code.find(0x100a, MonotonicTime(2)) else {
        panic!("is listed")
    };
    assert_eq!(without.place(0), None);
}

#[test]
fn lines_without_measure_take_no_memory_without_measure() {
    let name = vec![b'x'; 5000];
    let many: Vec<(u64, u32, &[u8])> = (0..5000).map(|at| (0x1000 + at, 1, &name[..2])).collect();
    let mut rig = Rig::new();
    let records: Vec<Vec<u8>> = (0..40)
        .map(|at| lines(0x1000 + at, u64::MAX, &many))
        .chain([lines(0x1000, 1, &[(0x1000, 1, &name)])])
        .collect();
    rig.feed(&file(0, &records)).expect("sound");
    assert!(
        rig.reader.heap_bytes() < 2 << 20,
        "{}",
        rig.reader.heap_bytes()
    );
    assert!(rig.counts().lines_dropped > 5000);
}

#[test]
fn hostile_names_are_made_harmless() {
    let long = "y".repeat(100_000);
    let rig = Rig::of(&file(
        0,
        &[
            load(1, 0x1000, 16, "a\x1b[31m\nb"),
            load(1, 0x2000, 16, &long),
            load(1, 0x3000, 16, "after"),
        ],
    ));
    assert_eq!(rig.name(0x1000, 1), Some("a\u{fffd}[31m\u{fffd}b"));
    let name = rig.name(0x2000, 1).expect("is listed");
    assert!(name.len() <= NAME_BYTES_MAX && name.ends_with('…'));
    assert_eq!(rig.name(0x3000, 1), Some("after"));
}

#[test]
fn unwinding_information_too_long_is_left_out_and_not_given_to_others() {
    let mut content = vec![0; UNWINDING_BYTES];
    content.extend(vec![0; UNWINDING_BYTES_MAX + 1]);
    let mut rig = Rig::of(&file(
        0,
        &[record(4, 1, &content), load(1, 0x1000, 16, "a")],
    ));
    assert_eq!(rig.counts().unwinding_dropped, 1);
    assert!(rig.rules.take().is_none());
    assert_eq!(rig.name(0x1000, 1), Some("a"));
}

#[test]
fn code_bytes_are_not_kept() {
    let mut rig = Rig::new();
    let record = load(1, 0x1000, 8 << 20, "large");
    rig.feed(&file(0, &[])).expect("sound");
    for piece in record.chunks(4096) {
        rig.feed(piece).expect("sound");
        assert!(rig.reader.heap_bytes() < 64 << 10);
    }
    assert_eq!(rig.name(0x1000, 1), Some("large"));
}

/// A sound file with a few bytes changed.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let sound = prop_oneof![
        Just(OF_NODE.to_vec()),
        Just(OF_CPYTHON.to_vec()),
        Just(OF_WASMTIME.to_vec())
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20);
    (sound, changes).prop_map(|(mut file, changes)| {
        for (at, value) in changes {
            let at = at.index(file.len());
            file[at] = value;
        }
        file
    })
}

proptest! {
    #[test]
    fn any_cut_into_pieces_reads_the_same(
        file in damaged(),
        cuts in prop::collection::vec(1usize..400, 1..200),
    ) {
        let (mut whole, mut pieces) = (Rig::new(), Rig::new());
        let outcome = whole.feed(&file);
        let mut rest = &file[..];
        for cut in cuts.iter().cycle() {
            let (piece, behind) = rest.split_at((*cut).min(rest.len()));
            let _ = pieces.feed(piece);
            rest = behind;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(pieces.feed(&[]), outcome);
        prop_assert_eq!(pieces.listed(), whole.listed());
        prop_assert_eq!(pieces.counts(), whole.counts());
        prop_assert_eq!(pieces.rules.take_counts(), whole.rules.take_counts());
    }

    #[test]
    fn any_bytes_are_survived(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let mut rig = Rig::new();
        let file = [&file(0, &[])[..], &bytes].concat();
        let _ = rig.feed(&file);
        prop_assert!(rig.reader.heap_bytes() < 1 << 20);
        prop_assert!(rig.code.heap_bytes() <= 2 << 20);
    }
}
