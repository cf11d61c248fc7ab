//! Recordings that are built here, byte by byte: what a record means, and what damage does.
//! Recordings of the real perf are in `tests/recordings.rs`.

use super::*;
use crate::attr::sample::*;
use profile::{Profile, StackEnd, key};

const LIMIT: usize = 1 << 20;

/// Damaged copies of each real recording.
const DAMAGED: usize = 100;

/// Bytes of a file from its start.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u16(mut self, value: u16) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u32(mut self, value: u32) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Bytes {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn words(self, values: &[u64]) -> Bytes {
        values.iter().fold(self, |bytes, &value| bytes.u64(value))
    }

    /// A text, padded to a multiple of 8 bytes.
    fn text(mut self, text: &str) -> Bytes {
        self.0.extend(text.as_bytes());
        self.0.resize((self.0.len() + 1).next_multiple_of(8), 0);
        self
    }

    /// Appends a record.
    fn record(self, kind: u32, misc: u16, body: Bytes) -> Bytes {
        let size = body.0.len() as u16 + 8;
        let mut bytes = self.u32(kind).u16(misc).u16(size);
        bytes.0.extend(body.0);
        bytes
    }
}

fn bytes() -> Bytes {
    Bytes::default()
}

/// Fields of every sample here.
const FIELDS: u64 = IP | TID | TIME | CALLCHAIN | PERIOD | IDENTIFIER;
/// Flag of an event that asks for build ids, and what a record says that has one.
const BUILD_IDS: u64 = 1 << 34;
const HAS_BUILD_ID: u16 = 1 << 14;
const KERNEL: u16 = 1;
const USER: u16 = 2;
const CONTEXT_USER: u64 = -512i64 as u64;

/// A `perf_event_attr` of a software event, with a frequency and `sample_id_all`.
fn attr(config: u64, sample_type: u64) -> Bytes {
    attr_with(config, sample_type, 0)
}

/// The same with further flags.
fn attr_with(config: u64, sample_type: u64, flags: u64) -> Bytes {
    let flags = flags | 1 << 10 | 1 << 18;
    let start = bytes().u32(1).u32(112);
    start.words(&[config, 99, sample_type, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0])
}

/// A pipe of these events, numbered from 1, and records.
fn pipe(attrs: &[Bytes], records: Bytes) -> Vec<u8> {
    let mut file = bytes();
    file.0.extend(b"PERFILE2");
    file = file.u64(16);
    for (attr, id) in attrs.iter().zip(1..) {
        file = file.record(64, 0, attr.clone().u64(id));
    }
    file.0.extend(records.0);
    file.0
}

/// What other records end with.
fn end(record: Bytes, time: u64, id: u64) -> Bytes {
    record.u32(7).u32(7).u64(time).u64(id)
}

fn sample(records: Bytes, time: u64, id: u64, chain: &[u64]) -> Bytes {
    let body = bytes().u64(id).u64(chain[0]).u32(7).u32(7).u64(time);
    let body = body.u64(10).u64(chain.len() as u64 + 1).u64(CONTEXT_USER);
    records.record(9, USER, body.words(chain))
}

fn comm(records: Bytes, time: u64, name: &str) -> Bytes {
    let body = bytes().u32(7).u32(7).text(name);
    records.record(3, 0, end(body, time, 1))
}

fn mmap(records: Bytes, time: u64, start: u64, path: &str) -> Bytes {
    let body = bytes().u32(7).u32(7).words(&[start, 0x1000, 0]);
    let body = body
        .u32(8)
        .u32(1)
        .u64(start)
        .u64(0)
        .u32(5)
        .u32(2)
        .text(path);
    records.record(10, USER, end(body, time, 1))
}

fn import(file: &[u8], event: Option<usize>) -> Result<Import, PerfDataError> {
    read(
        file,
        Options {
            bytes_max: LIMIT,
            event,
            local: false,
        },
    )
}

fn imported(file: &[u8]) -> Import {
    import(file, None).expect("a recording")
}

/// Each stack with its number of samples: names of frames, root first.
fn folded(profile: &Profile) -> Vec<String> {
    let mut all: Vec<String> = profile
        .samples
        .iter()
        .map(|(key, value)| {
            let mut frames = Vec::new();
            profile.dict.stacks.root_first(key.stack, &mut frames);
            let names = frames
                .iter()
                .map(|&frame| profile.dict.frame(frame).function);
            let comm = profile.dict.label(key.labels, key::COMM).unwrap_or("");
            let stack: Vec<&str> = std::iter::once(comm).chain(names).collect();
            format!("{} {}", stack.join(";"), value.count)
        })
        .collect();
    all.sort();
    all
}

fn one_sample() -> Bytes {
    let records = mmap(comm(bytes(), 0, "web"), 0, 0x1000, "/bin/web");
    sample(
        mmap(records, 0, 0x4000, "/lib/libc.so"),
        100,
        1,
        &[0x1010, 0x4020],
    )
}

#[test]
fn a_sample_is_in_the_files_of_its_process() {
    let Import { profile, .. } = imported(&pipe(&[attr(0, FIELDS)], one_sample()));
    assert_eq!(folded(&profile), ["web;[libc.so];[web] 1"]);
    let info = &profile.info;
    assert_eq!(
        (info.event.as_str(), info.unit.as_str()),
        ("cpu-clock", "nanoseconds")
    );
    assert_eq!((profile.total().weight, info.period), (10, 10));
}

#[test]
fn records_count_in_order_of_time_wherever_they_stand() {
    let late = sample(comm(one_sample(), 150, "web2"), 50, 1, &[0x1010]);
    let Import { profile, .. } =
        imported(&pipe(&[attr(0, FIELDS)], sample(late, 200, 1, &[0x1010])));
    assert_eq!(
        folded(&profile),
        ["web2;[web] 1", "web;[libc.so];[web] 1", "web;[web] 1"]
    );
    let times: Vec<u64> = profile
        .timestamps
        .list
        .iter()
        .map(|one| one.at_ns)
        .collect();
    assert_eq!((times, profile.info.start_unix_ns), (vec![0, 50, 150], 50));
}

#[test]
fn what_was_lost_is_counted_and_said() {
    let records = one_sample().record(2, 0, end(bytes().u64(1).u64(40), 120, 1));
    let records = records.record(13, 0, end(bytes().u64(2), 130, 1));
    let records = records.record(5, 0, end(bytes().words(&[140, 1, 1]), 140, 1));
    let Import { profile, notes, .. } = imported(&pipe(&[attr(0, FIELDS)], records));
    let quality = profile.info.quality;
    assert_eq!((quality.lost, quality.throttled, quality.taken), (42, 1, 1));
    assert!(
        notes
            .iter()
            .any(|note| note == "42 records were lost while perf recorded"),
        "{notes:?}"
    );
}

#[test]
fn one_of_several_events_is_taken() {
    let records = sample(sample(one_sample(), 110, 2, &[0x1010]), 120, 2, &[0x1010]);
    let file = pipe(
        &[attr(0, FIELDS), attr(9, FIELDS), attr(3, FIELDS)],
        records.clone(),
    );
    let Import { profile, notes, .. } = imported(&file);
    assert_eq!(
        (profile.info.event.as_str(), profile.total().count),
        ("cpu-clock", 1)
    );
    assert!(
        notes[0].starts_with("2 samples of events other than `cpu-clock`"),
        "{notes:?}"
    );
    let Import { profile, .. } = import(&file, Some(2)).expect("the second event");
    assert_eq!(
        (profile.info.event.as_str(), profile.total().count),
        ("dummy", 2)
    );
    let error = import(&file, Some(3))
        .expect_err("the third has no samples")
        .to_string();
    assert_eq!(
        error,
        "there is no event 3 in the recording: 1 is `cpu-clock`, 2 is `dummy`"
    );
}

#[test]
fn of_many_events_with_long_names_a_note_has_a_few_starts() {
    let (events, long) = (7, "x".repeat(1000));
    let names = (0..events).fold(bytes().u64(12).u32(events).u32(0), |all, _| {
        all.u32(0).u32(1008).text(&long)
    });
    let host = bytes().u64(3).u32(1004).text(&long);
    let records = bytes().record(80, 0, names).record(80, 0, host);
    let records = (1..=events.into()).fold(records, |all, id| sample(all, id, id, &[0x1010]));
    let attrs = vec![attr(0, FIELDS); events as usize];
    let Import { profile, notes, .. } = imported(&pipe(&attrs, records));
    let sample = profile.samples.keys().next().expect("a sample");
    let host = profile.dict.label(sample.labels, key::HOST).unwrap_or("");
    assert_eq!((host.len(), profile.info.event.len()), (256, 256));
    assert!(notes[0].ends_with(" and 2 more"), "{notes:?}");
    assert_eq!(notes[0].matches(&long[..256]).count(), 1 + 5, "{notes:?}");
}

#[test]
fn a_recording_without_callers_says_so() {
    let fields = IP | TID | TIME | PERIOD | IDENTIFIER;
    let records = mmap(comm(bytes(), 0, "web"), 0, 0x1000, "/bin/web");
    let body = bytes().words(&[1, 0x1010]).u32(7).u32(7).words(&[100, 10]);
    let Import { profile, notes, .. } =
        imported(&pipe(&[attr(0, fields)], records.record(9, USER, body)));
    assert_eq!(folded(&profile), ["web;[web] 1"]);
    let ends: Vec<StackEnd> = profile.samples.keys().map(|key| key.end).collect();
    assert_eq!(ends, [StackEnd::NoUserStack]);
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("recorded without callers")),
        "{notes:?}"
    );
}

#[test]
fn a_sample_has_the_path_of_its_cgroup() {
    let fields = FIELDS | CGROUP;
    let records = mmap(comm(bytes(), 0, "web"), 0, 0x1000, "/bin/web");
    let records = records.record(19, 0, end(bytes().u64(77).text("/system.slice"), 0, 1));
    let body = bytes()
        .words(&[1, 0x1010])
        .u32(7)
        .u32(7)
        .words(&[100, 10, 2, CONTEXT_USER, 0x1010]);
    let Import { profile, .. } = imported(&pipe(
        &[attr(0, fields)],
        records.record(9, USER, body.u64(77)),
    ));
    let sample = profile.samples.keys().next().expect("a sample");
    assert_eq!(
        profile.dict.label(sample.labels, key::CGROUP),
        Some("/system.slice")
    );
}

#[test]
fn kernel_and_files_that_are_not_looked_at_are_noted() {
    let body = bytes()
        .words(&[1, 0xffff_ffff_8100_0010])
        .u32(7)
        .u32(7)
        .u64(100);
    let chain = [10, 2, -128i64 as u64, 0xffff_ffff_8100_0010];
    let records = one_sample().record(9, KERNEL, body.words(&chain));
    let Import { profile, notes, .. } = imported(&pipe(&[attr(0, FIELDS)], records));
    assert_eq!(profile.info.quality.unnamed, 2);
    let has = |text: &str| notes.iter().any(|note| note.contains(text));
    assert!(
        has("functions of the kernel have no names") && has("web"),
        "{notes:?}"
    );
}

#[test]
fn a_cut_file_is_read_as_far_as_it_goes() {
    let file = pipe(&[attr(0, FIELDS)], sample(one_sample(), 110, 1, &[0x1010]));
    let Import { profile, notes, .. } = imported(&file[..file.len() - 1]);
    assert_eq!(profile.total().count, 1);
    assert!(
        notes[0].starts_with("the file ends in the middle of a record"),
        "{notes:?}"
    );
}

#[test]
fn damaged_records_are_skipped_and_counted() {
    let records = one_sample().record(9, USER, bytes().words(&[1, 2, 3, 4, 5, u64::MAX]));
    let build_id = bytes().u32(7).u32(7).words(&[0, 1, 0, u64::MAX, 0, 0, 0]);
    let records = records.record(10, USER | HAS_BUILD_ID, end(build_id, 100, 1));
    let Import { profile, notes, .. } =
        imported(&pipe(&[attr_with(0, FIELDS, BUILD_IDS)], records));
    assert_eq!(
        (profile.total().count, profile.info.quality.malformed),
        (1, 2)
    );
    assert!(
        notes
            .iter()
            .any(|note| note == "2 damaged records were skipped"),
        "{notes:?}"
    );
}

#[test]
fn what_is_compressed_counts_and_has_the_same_bound() {
    let packed = |records: &[u8]| zstd::encode_all(records, 3).expect("packed");
    let in_records = |packed: &[u8]| {
        let parts = packed.chunks(60_000);
        parts.fold(bytes(), |all, part| all.record(81, 0, Bytes(part.to_vec())))
    };
    let file = pipe(&[attr(0, FIELDS)], in_records(&packed(&one_sample().0)));
    assert_eq!(folded(&imported(&file).profile), ["web;[libc.so];[web] 1"]);
    let bomb = pipe(&[attr(0, FIELDS)], in_records(&packed(&vec![0; LIMIT + 1])));
    assert!(bomb.len() < 1000);
    let error = import(&bomb, None).expect_err("a bomb");
    assert!(matches!(error, PerfDataError::TooLarge { .. }), "{error}");
    let noise = pipe(&[attr(0, FIELDS)], in_records(b"noise that no zstd wrote"));
    let error = import(&noise, None).expect_err("noise");
    assert!(matches!(error, PerfDataError::Unpack(_)), "{error}");
}

#[test]
fn what_is_no_recording_is_refused_with_the_reason() {
    for (file, expected) in [
        (b"PERFILE2".to_vec(), "the header is damaged"),
        (
            b"PERFILE2\x68\0\0\0\0\0\0\0".to_vec(),
            "the header is damaged",
        ),
        (
            b"2ELIFREP\0\0\0\0\0\0\0\x68".to_vec(),
            "the other byte order",
        ),
        (pipe(&[], one_sample()), "it describes no event"),
        (pipe(&[attr(0, FIELDS)], bytes()), "there is no sample"),
        (vec![0; LIMIT + 1], "more than 1048576 bytes"),
    ] {
        let error = import(&file, None).expect_err("no recording").to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn ids_of_events_have_no_more_room_than_the_file() {
    let events = 2;
    let (attr, len) = (attr(0, FIELDS), 104 + events * 128);
    let header = |ids: u64| {
        let mut file = bytes();
        file.0.extend(b"PERFILE2");
        let file = file.words(&[104, 128, 104, events * 128, 104, 0, 0, 0, 0, 0, 0, 0]);
        (0..events).fold(file, |mut file, _| {
            file.0.extend(&attr.0);
            file.words(&[0, ids])
        })
    };
    let error = import(&header(len / events).0, None).expect_err("no samples");
    assert!(matches!(error, PerfDataError::NoSamples), "{error}");
    let error = import(&header(len).0, None).expect_err("each has the whole file");
    assert!(matches!(error, PerfDataError::Header), "{error}");
}

/// The next number of a sequence that looks random and is the same every time (xorshift64).
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn real_recordings_with_damage_anywhere_end_in_a_profile_or_an_error() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/perf_data");
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for file in std::fs::read_dir(corpus).expect("the corpus") {
        let whole = std::fs::read(file.expect("a file").path()).expect("a file");
        for _ in 0..DAMAGED {
            let mut bytes = whole.clone();
            for _ in 0..next(&mut state) % 8 + 1 {
                let at = next(&mut state) as usize % bytes.len();
                // Single bits and whole bytes: lengths become slightly and much too large.
                bytes[at] = match next(&mut state) % 3 {
                    0 => 0xff,
                    1 => bytes[at] ^ 1 << (next(&mut state) % 8),
                    _ => next(&mut state) as u8,
                };
            }
            let most = next(&mut state) as usize % (2 * bytes.len());
            bytes.truncate(most);
            if let Ok(import) = import(&bytes, None) {
                let times = import.profile.timestamps.list.len() as u64;
                let total = import.profile.total().count;
                assert!(times == total || times == 0);
            }
        }
    }
}

#[test]
fn processes_that_ended_leave_room_for_others() {
    /// More than are known at once.
    const PROCESSES: u32 = 300_000;
    let all = |with_ends: bool| {
        let mut records = one_sample();
        for (pid, time) in (8..8 + PROCESSES).zip(200..) {
            let task = bytes().u32(pid).u32(7).u32(pid).u32(7).u64(time);
            records = records.record(7, 0, end(task.clone(), time, 1));
            if with_ends {
                records = records.record(4, 0, end(task, time, 1));
            }
        }
        let options = Options {
            bytes_max: 1 << 26,
            event: None,
            local: false,
        };
        let import = read(&pipe(&[attr(0, FIELDS)], records), options);
        let notes = import.expect("a recording").notes;
        notes.iter().any(|note| note.contains("found no room"))
    };
    assert_eq!([all(false), all(true)], [true, false]);
}

#[test]
fn a_build_id_that_another_session_asked_for_is_an_inode() {
    // The device's number is no length of a build id.
    let body = bytes().u32(7).u32(7).words(&[0x1000, 0x1000, 0]);
    let body = body.u32(254).u32(0).words(&[9, 0]).u32(5).u32(2);
    let mapping = |body: Bytes| bytes().record(10, USER | HAS_BUILD_ID, end(body, 0, 1));
    let records = comm(mapping(body.text("/bin/web")), 0, "web");
    let records = sample(records, 100, 1, &[0x1010]);
    let Import { profile, .. } = imported(&pipe(&[attr(0, FIELDS)], records.clone()));
    assert_eq!(folded(&profile), ["web;[web] 1"]);
    let asked = pipe(&[attr_with(0, FIELDS, BUILD_IDS)], records);
    assert_eq!(imported(&asked).profile.info.quality.malformed, 1);
}
