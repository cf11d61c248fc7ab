//! Tests the path of a window: out of the recorder, into the spool, and back, across restarts and
//! bad disks.

use super::disk::Dir;
use super::gaps::Cause;
use super::identity::Identity;
use super::reader::{ReadError, Readers};
use super::spool::Picked;
use super::stream::Stream;
use super::window_exporter::{SpoolEntry, WindowExporter};
use super::writer::Writer;
use super::{ExportState, Settings};
use aggregate::recorder::{Recorder, RecorderOptions, WindowPart};
use host::sync::lock;
use host::time::{MonotonicTime, WallAnchor};
use profile::{Account, FrameKind, FrameRef, Quality, SampleKey, StackEnd, StackId, Value};
use proptest::prelude::*;
use prost::Message;
use segment::window::{self, Tables, Window};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use testkit::wait::until_blocking;

mod endings;
mod hung;
mod waiting;
mod withheld;

const S: u64 = 1_000_000_000;
const PERIOD: u64 = 10_101_010;

/// A sample as text: labels, functions from the leaf, end; and its value.
type Text = (BTreeMap<String, String>, Vec<String>, StackEnd, Value);

/// What is added up.
type TextKey = (BTreeMap<String, String>, Vec<String>, u8);

/// What is put into a window: cgroup, pid, functions from the root, number of samples.
type Given = (u8, u8, Vec<u8>, u64);

fn settings() -> Settings {
    Settings {
        drop_labels: vec!["pid".to_owned()],
        withhold: Arc::default(),
        max_bytes: 64 << 20,
        max_age_ns: i64::MAX,
        ..Settings::default()
    }
}

fn identity() -> Arc<Identity> {
    Arc::new(Identity {
        host_id: "host".to_owned(),
        boot_id: [7; 16],
    })
}

/// One run of a daemon with a spool.
struct Run {
    shared: Arc<ExportState>,
    recorder: Recorder,
    entries: Receiver<SpoolEntry>,
    writer: Writer,
    at: u64,
}

impl Run {
    fn new(dir: &Path, settings: Settings) -> Run {
        Run::as_host(dir, settings, &identity())
    }

    fn as_host(dir: &Path, settings: Settings, identity: &Arc<Identity>) -> Run {
        let shared = Arc::new(ExportState::new(settings));
        let clock = Arc::new(WallAnchor::new());
        let (queue, entries) = sync_channel(2);
        let sink = WindowExporter::new(queue, Arc::clone(&shared), Arc::clone(&clock));
        let mut recorder = Recorder::new(RecorderOptions::default());
        recorder.set_sink(Box::new(sink));
        let mut writer = Writer::new(
            Arc::clone(&shared),
            dir.to_path_buf(),
            Arc::clone(identity),
            clock,
        );
        // A thread that still holds the directory of an earlier run lets it go in a moment.
        until_blocking("the directory of an earlier run", || {
            writer.open_dir();
            let error = lock(&shared.progress).spool_error.clone();
            !error.is_some_and(|error| error.contains("another daemon uses it"))
        });
        Run {
            shared,
            recorder,
            entries,
            writer,
            at: MonotonicTime::now().0,
        }
    }

    /// Closes a window with these samples; it is left in the queue.
    fn close(&mut self, samples: &[Given]) {
        let mut rows = Vec::new();
        let mut taken = 0;
        let dict = self.recorder.dict_mut();
        for (cgroup, pid, functions, count) in samples {
            let (cgroup, pid) = (format!("/c{cgroup}"), pid.to_string());
            let labels = dict.intern_labels([("cgroup", &*cgroup), ("pid", &*pid)]);
            let mut stack = StackId::EMPTY;
            for function in functions {
                let frame = dict.intern_frame(FrameRef {
                    kind: FrameKind::Native,
                    function: &format!("f{function}"),
                    module: "m.so",
                    ..FrameRef::default()
                });
                stack = dict.stacks.child(stack, frame);
            }
            let end = StackEnd::ALL[usize::from(*pid.as_bytes().last().unwrap()) % 9];
            let key = SampleKey { labels, stack, end };
            let weight = count * PERIOD + u64::from(*count == 3);
            taken += count;
            rows.push((
                key,
                Value {
                    count: *count,
                    weight,
                },
            ));
        }
        let labels = dict.intern_labels([("cgroup", "/c0")]);
        let accounts = [Account {
            labels,
            ns: 5000,
            estimated_ns: 1000,
            throttled_ns: Some(3000),
            limit_millicores: 200,
        }];
        let start = MonotonicTime(self.at);
        self.at += S;
        self.recorder.add(WindowPart {
            pressure: Some(profile::Pressure {
                cpu_ns: 70,
                ..profile::Pressure::default()
            }),
            timestamps: &[],
            timestamps_refused: 0,
            timeless: 0,
            start,
            end: MonotonicTime(self.at),
            closes: true,
            period: PERIOD,
            quality: Quality {
                taken,
                ..Quality::default()
            },
            rows: &mut rows,
            accounts: &accounts,
        });
    }

    /// Closes a window and writes it.
    fn record(&mut self, samples: &[Given]) {
        self.close(samples);
        self.drain();
    }

    fn drain(&mut self) {
        while let Ok(entry) = self.entries.try_recv() {
            self.writer.take(entry);
        }
    }

    fn pick(&self) -> Option<Picked> {
        lock(&self.shared.index).pick(&identity(), true)
    }

    /// Reads everything that waits, oldest first.
    fn read_all(&self) -> Vec<(u64, Vec<Text>)> {
        let (mut readers, stream) = (Readers::default(), Stream::new(1 << 20, 0, true));
        let mut windows = Vec::new();
        while let Some(picked) = self.pick() {
            match readers.window(&self.shared, &picked, stream.epoch()) {
                Ok((window, reader)) => {
                    windows.push((window.facts.sequence, texts(&reader.tables, &window)));
                }
                Err(ReadError::Gone) => {}
                Err(ReadError::Damaged(from, _)) => {
                    lock(&self.shared.index).damaged(picked.segment, from);
                }
            }
        }
        lock(&self.shared.index).unsend(&identity());
        windows.sort_by_key(|(sequence, _)| *sequence);
        windows
    }

    fn dropped(&self, cause: Cause) -> (u64, u64) {
        lock(&self.shared.index).gaps.totals()[cause as usize]
    }

    fn waiting(&self) -> u64 {
        lock(&self.shared.index).waiting().windows
    }
}

fn texts(tables: &Tables, window: &Window) -> Vec<Text> {
    let dict = &tables.dict;
    let mut texts: Vec<Text> = window
        .rows
        .iter()
        .map(|(key, value)| {
            let labels = dict.labels(key.labels);
            let frames = dict.stacks.leaf_first(key.stack);
            (
                labels.map(|(k, v)| (k.into(), v.into())).collect(),
                frames.map(|id| dict.frame(id).function.into()).collect(),
                key.end,
                *value,
            )
        })
        .collect();
    texts.sort_by(|a, b| (&a.0, &a.1, a.2 as u8).cmp(&(&b.0, &b.1, b.2 as u8)));
    texts
}

/// What should come out: without pids, added up.
fn expected(samples: &[Given]) -> Vec<Text> {
    let mut sums: BTreeMap<TextKey, Value> = BTreeMap::new();
    for (cgroup, pid, functions, count) in samples {
        let labels = BTreeMap::from([("cgroup".to_owned(), format!("/c{cgroup}"))]);
        let frames = functions.iter().rev().map(|f| format!("f{f}")).collect();
        let end = usize::from(*pid.to_string().as_bytes().last().unwrap()) % 9;
        *sums
            .entry((labels, frames, StackEnd::ALL[end] as u8))
            .or_default() += Value {
            count: *count,
            weight: count * PERIOD + u64::from(*count == 3),
        };
    }
    sums.into_iter()
        .map(|((labels, frames, end), value)| {
            let end = StackEnd::from_u8(end).unwrap();
            (labels, frames, end, value)
        })
        .collect()
}

fn sample(number: u8) -> Vec<Given> {
    vec![
        (number % 3, number, vec![1, 2, number], 2),
        (1, 9, vec![1, number, number], 3),
    ]
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "seg"))
        .collect();
    found.sort();
    found
}

fn given() -> impl Strategy<Value = Given> {
    let stack = prop::collection::vec(any::<u8>(), 0..6);
    (0..4u8, any::<u8>(), stack, 1..5u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn what_was_recorded_is_read_back_after_restarts(
        windows in prop::collection::vec(prop::collection::vec(given(), 0..12), 1..8),
        restart_at in 0..8usize,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut run = Run::new(dir.path(), settings());
        for (number, samples) in windows.iter().enumerate() {
            if number == restart_at {
                drop(run);
                run = Run::new(dir.path(), settings());
            }
            run.record(samples);
        }
        let read: Vec<Vec<Text>> = run.read_all().into_iter().map(|(_, texts)| texts).collect();
        let expected: Vec<Vec<Text>> = windows.iter().map(|samples| expected(samples)).collect();
        prop_assert_eq!(read, expected);
    }

    #[test]
    fn damaged_bytes_are_a_gap_and_never_another_window(
        at in any::<prop::sample::Index>(), flip in 1..255u8,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let mut run = Run::new(dir.path(), settings());
        let samples: Vec<_> = (0..4).map(sample).collect();
        samples.iter().for_each(|samples| run.record(samples));
        let whole = run.read_all();
        drop(run);
        // The damaged segment is not the newest: nobody was writing to it.
        let mut later = Run::new(dir.path(), settings());
        later.record(&sample(99));
        drop(later);
        let path = &segments(dir.path())[0];
        let mut bytes = fs::read(path).unwrap();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        fs::write(path, &bytes).unwrap();
        let run = Run::new(dir.path(), settings());
        let read = run.read_all();
        let error = lock(&run.shared.progress).spool_error.clone();
        prop_assert!((1..=5).contains(&read.len()), "{} windows: {error:?}", read.len());
        prop_assert_eq!(&read[..read.len() - 1], &whole[..read.len() - 1]);
        prop_assert!(run.dropped(Cause::Damaged).0 > 0, "byte {} went unnoticed", at);
    }
}

/// As `WindowPart.sequence` in `ingest.proto` promises, and as the collector's tests number.
#[test]
fn windows_are_numbered_by_their_start_since_the_boot() {
    let promise = include_str!("../../../../proto/fleetprof/collector/v1/ingest.proto");
    let said = "The agent uses the start of the window: nanoseconds";
    assert!(promise.contains(said), "`ingest.proto` says it otherwise");
    // The clock that the protocol promises, read together with the one used to record windows.
    let uptime = fs::read_to_string("/proc/uptime").unwrap();
    let uptime_s: f64 = uptime.split(' ').next().unwrap().parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let first = run.at;
    run.record(&sample(1));
    run.at += 7 * S;
    run.record(&sample(2));
    // Two that start together: a daemon that starts again soon after it ended.
    run.at = first + 8 * S;
    run.record(&sample(3));
    let read = run.read_all();
    let sequences: Vec<u64> = read.iter().map(|(sequence, _)| *sequence).collect();
    let of_first = sequences[0];
    assert_eq!(sequences[1..], [of_first + 8 * S, of_first + 8 * S + 1]);
    let apart_s = of_first as f64 / S as f64 - uptime_s;
    assert!(apart_s.abs() < 60.0, "{of_first} ns at {uptime_s} s");
}

#[test]
fn a_segment_cut_at_any_byte_keeps_every_whole_window() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let mut ends = Vec::new();
    for number in 0..3 {
        run.record(&sample(number));
        ends.push(fs::metadata(&segments(dir.path())[0]).unwrap().len());
    }
    let whole = run.read_all();
    drop(run);
    let path = segments(dir.path())[0].clone();
    let bytes = fs::read(&path).unwrap();
    for cut in 0..=bytes.len() {
        let other = tempfile::tempdir().unwrap();
        let name = path.file_name().unwrap();
        fs::write(other.path().join(name), &bytes[..cut]).unwrap();
        let mut run = Run::new(other.path(), settings());
        let kept = ends.iter().filter(|end| **end <= cut as u64).count();
        assert_eq!(run.read_all(), whole[..kept], "cut at {cut}");
        assert_eq!(run.dropped(Cause::Damaged), (0, 0), "cut at {cut}");
        run.record(&sample(9));
        assert_eq!(run.waiting(), kept as u64 + 1, "cut at {cut}");
    }
}

#[test]
fn damage_is_counted_once_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    (0..3).for_each(|number| run.record(&sample(number)));
    drop(run);
    Run::new(dir.path(), settings()).record(&sample(9));
    let path = &segments(dir.path())[0];
    let mut bytes = fs::read(path).unwrap();
    bytes.extend([7; 100]);
    fs::write(path, &bytes).unwrap();
    for _ in 0..3 {
        let mut run = Run::new(dir.path(), settings());
        run.record(&sample(10));
        assert_eq!(run.dropped(Cause::Damaged).0, 1);
    }
}

#[test]
fn acknowledged_windows_do_not_wait_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    (0..4).for_each(|number| run.record(&sample(number)));
    let open = Dir::open(dir.path());
    assert!(open.is_err(), "the spool is one daemon's");
    let picked = run.pick().unwrap();
    lock(&run.shared.index).done(picked.segment, picked.record);
    let spool = run.shared.dir().unwrap();
    spool.ack(picked.segment, picked.record as u32).unwrap();
    drop(spool);
    drop(run);
    let run = Run::new(dir.path(), settings());
    assert_eq!(run.waiting(), 3);
    let read = run.read_all();
    assert!(
        read.iter()
            .all(|(sequence, _)| *sequence != picked.header.sequence)
    );
}

#[test]
fn a_segment_that_is_done_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    (0..61).for_each(|number| run.record(&sample(number)));
    assert_eq!(segments(dir.path()).len(), 2, "60 windows a segment");
    let spool = run.shared.dir().unwrap();
    while let Some(picked) = run.pick() {
        let done = lock(&run.shared.index).done(picked.segment, picked.record);
        if done.unwrap().remove {
            spool.remove(picked.segment);
        }
    }
    assert_eq!(segments(dir.path()).len(), 1, "the open one stays");
    assert_eq!(run.waiting(), 0);
}

#[test]
fn the_oldest_are_given_up_at_the_bound_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let max_bytes = 20_000;
    let bounded = Settings {
        max_bytes,
        ..settings()
    };
    let mut run = Run::new(dir.path(), bounded);
    for number in 0..200u8 {
        let functions = |at: u8| vec![number, at, at.wrapping_mul(number)];
        let samples: Vec<Given> = (0..40).map(|at| (0, at, functions(at), 1)).collect();
        run.record(&samples);
        let files: u64 = segments(dir.path())
            .iter()
            .map(|path| fs::metadata(path).unwrap().len())
            .sum();
        assert!(files <= max_bytes, "{files} after {number}");
    }
    let (windows, samples) = run.dropped(Cause::SpoolBytes);
    assert_eq!(samples, windows * 40);
    assert_eq!(run.waiting() + windows, 200);
    assert_eq!(run.dropped(Cause::DiskFull), (0, 0));
    let read = run.read_all();
    assert_eq!(read.len() as u64, run.waiting());
    let gap = lock(&run.shared.index)
        .gaps
        .bind(1, i64::MAX, true)
        .unwrap();
    assert_eq!((gap.cause, gap.windows), (Cause::SpoolBytes, windows));
    assert!(gap.end_unix_ns > gap.start_unix_ns);
}

#[test]
fn windows_older_than_they_may_be_are_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.at -= 5000 * S.min(run.at / 6000);
    run.record(&sample(1));
    drop(run);
    let aged = Settings {
        max_age_ns: 600_000_000_000,
        ..settings()
    };
    let mut run = Run::new(dir.path(), aged);
    let old = run.waiting();
    run.at += S;
    run.record(&sample(2));
    assert_eq!(old, 1);
    let age = MonotonicTime::now().0 / 6000 * 5000;
    let expected = u64::from(age > 600 * S);
    assert_eq!(run.dropped(Cause::SpoolAge).0, expected);
}

#[test]
fn a_full_queue_drops_windows_and_not_what_they_defined() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    for number in 0..5 {
        run.close(&sample(number));
    }
    run.drain();
    // What the lost ones defined is used again.
    run.record(&sample(4));
    let read = run.read_all();
    assert_eq!(run.dropped(Cause::DiskFull).0, 3);
    assert_eq!(read.len(), 3);
    assert_eq!(read[2].1, expected(&sample(4)));
}

#[test]
fn without_a_directory_windows_wait_in_memory_and_the_disk_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("spool");
    fs::write(&place, "a file").unwrap();
    let mut run = Run::new(&place, settings());
    (0..10).for_each(|number| run.record(&sample(number)));
    assert_eq!(run.read_all().len(), 10);
    assert!(lock(&run.shared.progress).spool_error.is_some());
    fs::remove_file(&place).unwrap();
    run.writer.forget_failure();
    (0..10).for_each(|number| run.record(&sample(number)));
    assert_eq!(run.read_all().len(), 20);
    assert!(lock(&run.shared.progress).spool_error.is_none());
    assert!(!segments(&place).is_empty());
}

#[test]
fn memory_for_windows_without_a_disk_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("spool");
    fs::write(&place, "a file").unwrap();
    let mut run = Run::new(&place, settings());
    run.writer.set_memory_max(4000);
    (0..120).for_each(|number| run.record(&sample(number)));
    let bytes = lock(&run.shared.index).memory_bytes();
    assert!(bytes <= 4000, "{bytes}");
    let read = run.read_all();
    assert!(!read.is_empty());
    assert_eq!(run.dropped(Cause::DiskFull).0 + read.len() as u64, 120);
    // The newest are kept.
    let newest = read.last().unwrap();
    assert_eq!(newest.1, expected(&sample(119)));
}

#[test]
fn a_directory_others_can_write_to_is_refused() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let dir = tempfile::tempdir().unwrap();
    let open = dir.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    for bad in [&open, &link] {
        let refused = Dir::open(bad).unwrap_err().to_string();
        assert!(
            refused.starts_with("failed to use spool directory"),
            "{refused}"
        );
    }
    let made = dir.path().join("a/b");
    drop(Dir::open(&made).unwrap());
    let mode = fs::metadata(&made).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn sequences_grow_over_restarts_and_name_the_window() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    // The same time again: a clock that stands still.
    run.at -= S;
    run.record(&sample(2));
    let first = run.read_all();
    assert!(first[0].0 < first[1].0);
    drop(run);
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(3));
    let all = run.read_all();
    assert_eq!(all[..2], first);
    assert!(all[2].0 > first[1].0);
}

#[test]
fn windows_of_another_boot_wait_under_their_own_identity() {
    let dir = tempfile::tempdir().unwrap();
    let before = Arc::new(Identity {
        host_id: "host".to_owned(),
        boot_id: [1; 16],
    });
    let mut run = Run::as_host(dir.path(), settings(), &before);
    run.record(&sample(1));
    drop(run);
    let run = Run::new(dir.path(), settings());
    assert_eq!(run.pick(), None);
    let index = lock(&run.shared.index);
    assert_eq!(index.other_identity(&identity()).as_deref(), Some(&*before));
}

#[test]
fn a_window_under_suspicion_is_sent_again_before_those_that_closed_since() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    let suspect = run.pick().unwrap().header.sequence;
    lock(&run.shared.index).unsend(&identity());
    for number in 2..8 {
        run.record(&sample(number));
    }
    assert_ne!(run.pick().unwrap().header.sequence, suspect);
    let again = || lock(&run.shared.index).pick_window(&identity(), suspect);
    assert_eq!(again().unwrap().header.sequence, suspect);
    assert_eq!(again(), None, "it is sent already");
}

#[test]
fn the_newest_windows_go_before_the_backlog() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    (0..10).for_each(|number| run.record(&sample(number)));
    let order: Vec<usize> = std::iter::from_fn(|| run.pick().map(|picked| picked.record)).collect();
    assert_eq!(order, [7, 8, 9, 0, 1, 2, 3, 4, 5, 6]);
}

/// A window with many stacks, as one on a large host.
fn large() -> Vec<Given> {
    (0..6000u32)
        .map(|at| {
            let stack = vec![(at % 251) as u8, (at / 251) as u8, (at % 13) as u8];
            ((at % 4) as u8, (at % 7) as u8, stack, 1)
        })
        .collect()
}

#[test]
fn every_message_is_within_the_bound_and_nothing_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&large());
    let limit = super::stream::MESSAGE_BYTES_MIN;
    let mut stream = Stream::new(limit, 0, true);
    let mut readers = Readers::default();
    let picked = run.pick().unwrap();
    let (window, reader) = readers
        .window(&run.shared, &picked, stream.epoch())
        .unwrap();
    let parts = stream.parts(&reader.tables, &mut reader.remap, &window, None);
    assert!(parts.len() > 1);
    let lasts: Vec<bool> = parts.iter().map(|part| part.last).collect();
    assert_eq!(lasts.iter().filter(|last| **last).count(), 1);
    assert_eq!(lasts.last(), Some(&true));
    let sizes = parts.iter().map(|part| part.encoded_len() as u64);
    assert!(sizes.max().unwrap() < limit);
    let counts = parts.iter().flat_map(|part| &part.sample_counts);
    assert_eq!(counts.sum::<u64>(), 6000);
    // Sent again on the same stream everything is known.
    let again = stream.parts(&reader.tables, &mut reader.remap, &window, None);
    assert!(
        again
            .iter()
            .all(|part| part.stack_hashes.is_empty() && part.label_sets.is_empty())
    );
}

#[test]
fn definitions_give_the_hashes_that_were_sent() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&large());
    let limit = super::stream::MESSAGE_BYTES_MIN;
    let mut stream = Stream::new(limit, 0, true);
    let mut readers = Readers::default();
    let picked = run.pick().unwrap();
    let (window, reader) = readers
        .window(&run.shared, &picked, stream.epoch())
        .unwrap();
    let parts = stream.parts(&reader.tables, &mut reader.remap, &window, None);
    let hashes: Vec<u8> = parts
        .iter()
        .flat_map(|part| part.stack_hashes.clone())
        .collect();
    let (hashes, _) = hashes.as_chunks::<16>();
    let all: Vec<u32> = (1..=hashes.len() as u32).collect();
    let need = |stacks: &[u32]| proto::collector::Need {
        sequence: 9,
        stacks: stacks.to_vec(),
        all_callers: false,
    };
    let messages = stream.definitions(&need(&all)).unwrap();
    let mut assembler = proto::ProfileAssembler::new();
    let count = messages.len();
    for (number, message) in messages.into_iter().enumerate() {
        assert!((message.encoded_len() as u64) < limit);
        assert_eq!(message.more, number + 1 < count);
        assembler.push(message.tables.unwrap()).unwrap();
    }
    let profile = assembler.finish().unwrap();
    let defined: Vec<[u8; 16]> = profile.dict.content_ids().iter().map(|id| id.0).collect();
    assert!(hashes.iter().all(|hash| defined.contains(hash)));
    assert!(stream.definitions(&need(&[0])).is_err());
    assert!(stream.definitions(&need(&[u32::MAX])).is_err());
    // Once the window is stored nothing of it needs to come again, whatever is asked.
    stream.answered(window.facts.sequence, true);
    let again = stream.definitions(&need(&all)).unwrap();
    let nodes = again.iter().flat_map(|message| &message.tables);
    assert_eq!(nodes.flat_map(|tables| &tables.stack_parents).count(), 0);
    let named: Vec<u8> = again.into_iter().flat_map(|of| of.known_stacks).collect();
    assert_eq!(named, hashes.as_flattened());
}

#[test]
fn a_dictionary_is_full_when_the_collector_wants_to_remember_no_more_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let picked: Vec<Picked> = [1, 5]
        .map(|number| {
            run.record(&sample(number));
            run.pick().unwrap()
        })
        .into();
    // Two stacks each: four windows of these, or four times what it wants.
    for (told, full) in [
        (0, [false; 2]),
        (1, [false, true]),
        (2, [false; 2]),
        (1 << 20, [false; 2]),
    ] {
        let (mut stream, mut readers) = (Stream::new(1 << 20, told, true), Readers::default());
        assert!(!stream.is_full());
        let found = [0, 1].map(|at| {
            let (window, reader) = readers
                .window(&run.shared, &picked[at], stream.epoch())
                .unwrap();
            stream.parts(&reader.tables, &mut reader.remap, &window, None);
            stream.is_full()
        });
        assert_eq!(found, full, "{told}");
        stream.start_dictionary();
        assert!(!stream.is_full());
    }
}

#[test]
fn a_new_dictionary_counts_from_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    let mut stream = Stream::new(1 << 20, 0, true);
    let mut readers = Readers::default();
    let picked = run.pick().unwrap();
    let (window, reader) = readers
        .window(&run.shared, &picked, stream.epoch())
        .unwrap();
    let first = stream.parts(&reader.tables, &mut reader.remap, &window, None);
    stream.start_dictionary();
    let (window, reader) = readers
        .window(&run.shared, &picked, stream.epoch())
        .unwrap();
    let mut second = stream.parts(&reader.tables, &mut reader.remap, &window, None);
    assert!(second[0].new_dictionary && !first[0].new_dictionary);
    second[0].new_dictionary = false;
    assert_eq!(first, second);
}

#[test]
fn every_field_of_the_quality_is_kept() {
    let numbers = std::array::from_fn(|at| u64::MAX - at as u64);
    let mut window = Window::default();
    window.facts.quality = Quality::of_numbers(numbers);
    let mut body = Vec::new();
    window::encode_body(&mut body, &window);
    let payload = window::join(&[], &body);
    let mut tables = Tables::default();
    tables.take(&payload).unwrap();
    assert_eq!(tables.window(&payload).unwrap(), window);
}

proptest! {
    #[test]
    fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut tables = Tables::default();
        if tables.take(&bytes).is_ok() {
            let _ = tables.window(&bytes);
        }
    }
}
