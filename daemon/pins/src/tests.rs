//! Tests pins next to a recorder that drops windows, and on disks that misbehave.

use super::*;
use aggregate::batch::RawTimestamp;
use aggregate::recorder::{Recorder, RecorderOptions, RecorderQuery, Row, WindowPart};
use host::time::MonotonicTime;
use profile::{Account, FrameRef, Query, SampleKey, StackEnd, Value, key};
use std::path::Path;
use std::sync::RwLock;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

mod uploader;

const MIB: u64 = 1 << 20;
static NEVER: AtomicBool = AtomicBool::new(false);

/// A recorder that keeps a minute of windows of ten seconds, and the pins of a directory.
struct Host {
    recorder: RwLock<Recorder>,
    pins: Arc<Pins>,
    writer: PinWriter,
    clock: Arc<WallAnchor>,
    start: MonotonicTime,
    windows: u64,
    /// Stacks of their own for each window.
    stacks: u64,
}

impl Host {
    fn new(dir: &Path) -> Host {
        Host::with(dir, 64 * MIB)
    }

    fn with(dir: &Path, budget: u64) -> Host {
        let clock = Arc::new(WallAnchor::new());
        let pins = Arc::new(Pins::new(dir.to_path_buf(), budget, Arc::clone(&clock)));
        let options = RecorderOptions {
            retention: Duration::from_secs(60),
            ..RecorderOptions::default()
        };
        Host {
            recorder: RwLock::new(Recorder::new(options)),
            writer: PinWriter::new(Arc::clone(&pins)),
            pins,
            clock,
            // Long enough ago for all windows, and after the boot of every machine that runs tests.
            start: MonotonicTime::now(),
            windows: 0,
            stacks: 1,
        }
    }

    fn at(&self, windows: u64) -> MonotonicTime {
        self.start.plus(Duration::from_secs(windows * 10))
    }

    fn wall(&self, from: u64, to: u64) -> (i64, i64) {
        let unix = |windows| self.clock.to_unix_ns(self.at(windows));
        (unix(from), unix(to))
    }

    /// Closes so many windows; number `n` has `n + 1` samples.
    fn pass(&mut self, windows: u64) {
        for _ in 0..windows {
            let number = self.windows;
            let mut recorder = self.recorder.write().unwrap();
            let dict = recorder.dict_mut();
            let labels = dict.intern_labels([(key::CGROUP, "/a"), (key::COMM, "c")]);
            let mut rows: Vec<Row> = Vec::new();
            for stack in 0..self.stacks {
                let function = format!("f{number}_{stack}");
                let function = function.as_str();
                let frame = dict.intern_frame(FrameRef {
                    function,
                    ..FrameRef::default()
                });
                let stack = dict.stacks.intern([frame]);
                let end = StackEnd::Complete;
                let (count, weight) = (number + 1, 10 * (number + 1));
                rows.push((SampleKey { labels, stack, end }, Value { count, weight }));
            }
            let timestamps: Vec<RawTimestamp> = (0..number + 1)
                .map(|sample| RawTimestamp {
                    row: 0,
                    time: self
                        .start
                        .plus(Duration::from_millis(number * 10_000 + sample)),
                    weight: 10,
                })
                .collect();
            let accounts = [Account {
                labels,
                ns: 5_000,
                estimated_ns: 0,
                ..Account::default()
            }];
            recorder.add(WindowPart {
                pressure: None,
                start: self.start.plus(Duration::from_secs(number * 10)),
                end: self.start.plus(Duration::from_secs(number * 10 + 10)),
                closes: true,
                period: 10,
                quality: profile::Quality::default(),
                rows: &mut rows,
                accounts: &accounts,
                timestamps: &timestamps,
                timestamps_refused: 0,
                timeless: 0,
            });
            drop(recorder);
            self.windows += 1;
            self.writer.tick(self.at(self.windows), &self.recorder);
        }
    }

    /// Fires now, keeping so many windows before and after.
    fn fire(&mut self, before: u64, after: u64) -> Option<u64> {
        self.fire_as("t", before, after)
    }

    fn fire_as(&mut self, trigger: &str, before: u64, after: u64) -> Option<u64> {
        let request = PinRequest {
            trigger: trigger.to_owned(),
            cause: "because".to_owned(),
            cgroup: "/a".to_owned(),
            fired: self.at(self.windows),
            before: Duration::from_secs(before * 10),
            after: Duration::from_secs(after * 10),
        };
        self.writer.open(&request, &self.recorder)
    }

    /// What is pinned of the first two windows, as a capture would have found it.
    fn evidence(&self) -> Evidence {
        let captured = self.pins.within(self.wall(0, 2), all(), &NEVER);
        let captured = captured.unwrap().unwrap().profile;
        let mut evidence = Evidence::default();
        for chunk in proto::Chunks::with_target(&captured, 64) {
            evidence.push(&chunk);
        }
        evidence
    }

    /// Windows and samples that a pin has of a range of windows.
    fn pinned(&self, from: u64, to: u64) -> Option<(usize, u64)> {
        let range = self.wall(from, to);
        let answer = self.pins.within(range, all(), &NEVER);
        let answer = answer.expect("a pin that can be read")?;
        let start = answer.profile.info.start_unix_ns;
        assert!((start - range.0).abs() < 1_000_000, "{start} {range:?}");
        Some((answer.covered.windows, answer.profile.total().count))
    }
}

/// Every sample, with its time.
fn all() -> RecorderQuery<'static> {
    static QUERY: OnceLock<Query> = OnceLock::new();
    RecorderQuery {
        query: QUERY.get_or_init(Query::default),
        times: true,
        withhold: profile::Withholding::nothing(),
    }
}

fn file(dir: &Path, id: u64) -> PathBuf {
    dir.join(format!("{id:016x}.pin"))
}

#[test]
fn minutes_around_a_firing_outlive_the_recorder() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(4);
    assert_eq!(host.fire(2, 2), Some(1));
    assert!(host.pins.list()[0].open);
    host.pass(20);
    assert!(
        !host
            .recorder
            .read()
            .unwrap()
            .holds_fine(host.at(2), host.at(6))
    );
    // Windows 2 to 5 with 3 to 6 samples.
    assert_eq!(host.pinned(2, 6), Some((4, 18)));
    assert_eq!(host.pinned(3, 4), Some((1, 4)), "a part of it");
    assert_eq!(host.pinned(1, 6), None, "more than it has");
    let pin = host.pins.list().remove(0);
    assert!(!pin.open);
    let range = pin.range.unwrap();
    assert_eq!((range.start_unix_ns, range.end_unix_ns), host.wall(2, 6));
    assert!(!host.writer.is_busy());
}

#[test]
fn what_the_kernel_accounted_is_kept_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(2);
    host.fire(2, 0);
    let answer = host.pins.within(host.wall(0, 2), all(), &NEVER);
    let answer = answer.unwrap().unwrap();
    assert_ne!(answer.profile.info.coverage, profile::Coverage::default());
}

#[test]
fn when_samples_were_taken_is_kept_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(3);
    host.fire(2, 0);
    let answer = host.pins.within(host.wall(1, 3), all(), &NEVER);
    let timestamps = answer.unwrap().unwrap().profile.timestamps;
    let found: Vec<(u64, u64)> = timestamps
        .list
        .iter()
        .map(|m| (m.at_ns, m.weight))
        .collect();
    let ms = |ms: u64| (ms * 1_000_000, 10);
    assert_eq!(found, [ms(0), ms(1), ms(10_000), ms(10_001), ms(10_002)]);
    assert_eq!(timestamps.start_unix_ns, host.wall(1, 3).0);
    assert_eq!(
        (timestamps.duration_ns, timestamps.dropped),
        (20_000_000_000, 0)
    );
}

#[test]
fn a_range_that_overlaps_a_pin_has_what_there_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(4);
    host.fire(2, 0);
    let found = host.pins.overlapping(host.wall(0, 3), all(), &NEVER);
    assert_eq!(found.unwrap().unwrap().profile.total().count, 3);
    let none = host.pins.overlapping(host.wall(7, 9), all(), &NEVER);
    assert!(none.unwrap().is_none());
}

#[test]
fn pins_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let before = {
        let mut host = Host::new(dir.path());
        host.pass(4);
        host.fire(3, 5);
        host.pass(1);
        let list = host.pins.list();
        (list, host.start)
    };
    let mut host = Host::new(dir.path());
    host.start = before.1;
    let list = host.pins.list();
    assert_eq!(list.len(), 1);
    let (was, is) = (&before.0[0], &list[0]);
    assert_eq!(
        (&is.trigger, &is.cause, &is.cgroup),
        (&was.trigger, &was.cause, &was.cgroup)
    );
    assert_eq!((is.fired_unix_ns, is.bytes), (was.fired_unix_ns, was.bytes));
    assert!(
        !is.open,
        "what was not there at the end of the daemon will not come"
    );
    assert_eq!(
        is.range.unwrap().end_unix_ns,
        was.range.unwrap().start_unix_ns + 40_000_000_000
    );
    assert_eq!(host.pinned(1, 5), Some((4, 14)));
    assert_eq!(host.pins.fired_since("t", is.fired_unix_ns), 1);
    assert_eq!(host.pins.fired_since("t", is.fired_unix_ns + 1), 0);
    assert_eq!(host.pins.last_fired("t", "/a"), Some(is.fired_unix_ns));
    host.pass(1);
    assert_eq!(host.fire(1, 0), Some(2), "numbers go on");
}

#[test]
fn over_the_budget_the_oldest_pin_goes() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::with(dir.path(), 3 * MIB / 2);
    host.stacks = 6000;
    let mut opened = 0;
    while host.pins.counts.dropped.load(Ordering::Relaxed) == 0 {
        host.pass(2);
        opened = host.fire(2, 0).unwrap();
        assert!(opened < 100, "nothing is dropped");
    }
    let ids: Vec<u64> = host.pins.list().iter().map(|pin| pin.id).collect();
    assert!(ids.contains(&opened) && !ids.contains(&1), "{ids:?}");
    assert!(!file(dir.path(), 1).exists());
    let (used, budget) = host.pins.bytes();
    assert!(used <= budget, "{used}");
}

#[test]
fn a_pin_is_cut_at_its_share() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::with(dir.path(), MIB / 8);
    host.stacks = 2000;
    host.pass(5);
    host.fire(5, 5);
    assert_eq!(host.pins.counts.cut.load(Ordering::Relaxed), 1);
    let pin = host.pins.list().remove(0);
    assert!(
        !pin.open && pin.bytes > 0 && pin.bytes <= MIB / 32 + 1024,
        "{pin:?}"
    );
    let range = pin.range.unwrap();
    assert!(
        range.start_unix_ns < range.end_unix_ns && range.end_unix_ns <= host.wall(0, 5).1,
        "what is there, not what was planned: {pin:?}"
    );
}

#[test]
fn pins_that_are_open_keep_to_the_budget_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::with(dir.path(), MIB);
    host.stacks = 6000;
    host.pass(1);
    let ids: Vec<_> = (0..writer::OPEN_MAX).map(|_| host.fire(1, 5)).collect();
    assert!(ids.iter().all(Option::is_some));
    for _ in 0..5 {
        host.pass(1);
        let (used, budget) = host.pins.bytes();
        // Heads of files come on top.
        assert!(used <= budget + 8 * 1024, "{used}");
    }
    assert!(host.pins.counts.cut.load(Ordering::Relaxed) > 0);
}

#[test]
fn a_trigger_that_fires_all_the_time_leaves_pins_of_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::with(dir.path(), 3 * MIB / 2);
    host.stacks = 6000;
    host.pass(2);
    let rare = host.fire_as("rare", 2, 0).unwrap();
    while host.pins.counts.dropped.load(Ordering::Relaxed) < 3 {
        host.pass(2);
        host.fire_as("noisy", 2, 0).unwrap();
        assert!(host.windows < 200, "nothing is dropped");
    }
    assert!(host.pins.list().iter().any(|pin| pin.id == rare));
}

#[test]
fn a_capture_waits_in_memory_while_the_disk_takes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pins");
    std::fs::write(&path, b"in the way").unwrap();
    let mut host = Host::new(&path);
    host.pass(2);
    let id = host.fire(2, 0).unwrap();
    let evidence = host.evidence();
    assert!(host.pins.keep_capture(id, evidence).is_ok());
    assert!(host.pins.list()[0].capture_bytes > 0);
    let before = host.pins.capture(id).unwrap().total();
    std::fs::remove_file(&path).unwrap();
    host.pass(2);
    assert!(path.join(format!("{id:016x}.capture")).exists());
    assert_eq!(host.pins.capture(id).unwrap().total(), before);
}

#[test]
fn names_that_take_too_much_memory_start_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.stacks = 40_000;
    host.pass(1);
    // One pin has a few MiB of names of each window: eight of them are over the bound at once.
    let ids: Vec<_> = (0..writer::OPEN_MAX).map(|_| host.fire(1, 2)).collect();
    assert!(ids.iter().all(Option::is_some));
    host.pass(2);
    let expected = (3, 40_000 * (1 + 2 + 3));
    assert_eq!(host.pinned(0, 3), Some(expected));
}

#[test]
fn only_so_many_are_open_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(1);
    for _ in 0..writer::OPEN_MAX {
        assert!(host.fire(1, 10).is_some());
    }
    assert_eq!(host.fire(1, 10), None);
}

#[test]
fn a_file_that_was_cut_has_the_windows_before_and_one_of_rubbish_goes() {
    let dir = tempfile::tempdir().unwrap();
    let start = {
        let mut host = Host::new(dir.path());
        host.pass(3);
        host.fire(3, 0);
        host.fire(3, 0);
        host.start
    };
    let whole = std::fs::read(file(dir.path(), 1)).unwrap();
    std::fs::write(file(dir.path(), 1), &whole[..whole.len() - 1]).unwrap();
    std::fs::write(file(dir.path(), 2), b"rubbish").unwrap();
    std::fs::write(dir.path().join("0000000000000009.capture"), b"of no pin").unwrap();
    std::fs::write(dir.path().join("0000000000000003.tmp"), b"never finished").unwrap();
    let mut host = Host::new(dir.path());
    host.start = start;
    assert_eq!(host.pins.counts.damaged.load(Ordering::Relaxed), 2);
    assert_eq!(host.pinned(0, 2), Some((2, 3)));
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "the pin and the lock: {left:?}");
}

#[test]
fn a_window_that_was_torn_is_counted_once_and_those_before_answer() {
    let dir = tempfile::tempdir().unwrap();
    let start = {
        let mut host = Host::new(dir.path());
        host.pass(3);
        host.fire(3, 0);
        host.start
    };
    let mut bytes = std::fs::read(file(dir.path(), 1)).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(file(dir.path(), 1), bytes).unwrap();
    for damaged in [1, 0] {
        let mut host = Host::new(dir.path());
        host.start = start;
        assert_eq!(host.pins.counts.damaged.load(Ordering::Relaxed), damaged);
        assert_eq!(host.pinned(0, 2), Some((2, 3)));
        assert_eq!(host.pinned(0, 3), None);
    }
}

#[test]
fn a_pin_of_another_version_is_set_aside_with_its_capture() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(2);
    let id = host.fire(2, 0).unwrap();
    let evidence = host.evidence();
    host.pins.keep_capture(id, evidence).unwrap();
    drop(host);
    let mut bytes = std::fs::read(file(dir.path(), id)).unwrap();
    assert_eq!(&bytes[..8], b"FPPIN\0\0\x02");
    bytes[7] = 1;
    std::fs::write(file(dir.path(), id), &bytes).unwrap();
    let mut host = Host::new(dir.path());
    assert!(host.pins.is_empty());
    assert_eq!(host.pins.counts.damaged.load(Ordering::Relaxed), 1);
    let aside = |end: &str| dir.path().join(format!("{id:016x}.{end}.bad"));
    assert_eq!(std::fs::read(aside("pin")).unwrap(), bytes);
    assert!(aside("capture").exists());
    host.pass(2);
    let next = host.fire(2, 0).unwrap();
    assert!(file(dir.path(), next).exists() && aside("pin").exists());
}

#[test]
fn no_byte_of_a_file_can_be_changed_unseen() {
    let dir = tempfile::tempdir().unwrap();
    let start = {
        let mut host = Host::new(dir.path());
        host.pass(2);
        host.fire(2, 0);
        host.start
    };
    let path = file(dir.path(), 1);
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x40;
        std::fs::write(&path, &bytes).unwrap();
        let mut host = Host::new(dir.path());
        host.start = start;
        let bad = host.pins.counts.damaged.load(Ordering::Relaxed);
        let asked = host.pins.within(host.wall(0, 2), all(), &NEVER);
        assert!(bad > 0 || asked.is_err(), "byte {at}");
    }
}

#[test]
fn without_a_disk_pins_wait_in_memory_and_answer_and_are_written_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pins");
    std::fs::write(&path, b"in the way").unwrap();
    let mut host = Host::new(&path);
    host.pass(2);
    let id = host.fire(2, 0).unwrap();
    assert_eq!(host.pinned(0, 2), Some((2, 3)));
    let told = host.pins.degradation().expect("a degradation");
    assert_eq!(told.id, "pins_disk");
    std::fs::remove_file(&path).unwrap();
    host.pass(2);
    assert_eq!(host.pins.degradation(), None);
    assert!(file(&path, id).exists());
    assert_eq!(host.pinned(0, 2), Some((2, 3)));
}

#[test]
fn a_pin_made_while_the_disk_could_not_be_used_leaves_older_ones_alone() {
    let dir = tempfile::tempdir().unwrap();
    let mode = |bits| {
        let bits = std::os::unix::fs::PermissionsExt::from_mode(bits);
        std::fs::set_permissions(dir.path(), bits).unwrap();
    };
    let mut host = Host::new(dir.path());
    host.pass(2);
    host.fire(2, 0);
    drop(host);
    let before = std::fs::read(file(dir.path(), 1)).unwrap();
    mode(0o777);
    let mut host = Host::new(dir.path());
    host.pass(2);
    // It is still added to when the disk comes.
    let id = host.fire(2, 4).unwrap();
    assert!(host.pins.degradation().is_some());
    mode(0o700);
    host.pass(6);
    assert_eq!(host.pins.degradation(), None);
    assert_eq!(std::fs::read(file(dir.path(), 1)).unwrap(), before);
    assert!(file(dir.path(), id).exists());
}

#[test]
fn a_file_removed_by_somebody_else_takes_its_pin_along() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(2);
    host.fire(2, 3);
    std::fs::remove_file(file(dir.path(), 1)).unwrap();
    host.pass(1);
    assert!(host.pins.is_empty());
    assert_eq!(host.pins.degradation(), None);
    assert!(!host.writer.is_busy());
}

#[test]
fn directories_of_others_and_of_other_daemons_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = Host::new(dir.path());
    let second = Host::new(dir.path());
    let told = second.pins.degradation().expect("a degradation").message;
    assert!(told.contains("another daemon uses it"), "{told}");
    drop(first);
    let open = dir.path().join("open");
    std::fs::create_dir(&open).unwrap();
    let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    std::fs::set_permissions(&open, everybody).unwrap();
    let told = Host::new(&open).pins.degradation().expect("a degradation");
    assert!(
        told.message.contains("other users may write"),
        "{}",
        told.message
    );
}

#[test]
fn a_capture_is_kept_with_its_pin_and_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(2);
    let id = host.fire(2, 0).unwrap();
    assert!(matches!(host.pins.capture(id), Err(PinError::Unknown(_))));
    let captured = host.pins.within(host.wall(0, 2), all(), &NEVER);
    let captured = captured.unwrap().unwrap().profile;
    let evidence = host.evidence();
    host.pins.set_capture(id, 12);
    assert!(host.pins.keep_capture(id, evidence).is_ok());
    let pin = host.pins.list().remove(0);
    assert_eq!(pin.capture_id, 12);
    assert!(pin.capture_bytes > 0 && pin.bytes > pin.capture_bytes);
    drop(host);
    let host = Host::new(dir.path());
    let found = host.pins.capture(id).unwrap();
    assert_eq!(found.total(), captured.total());
    assert_eq!(found.samples.len(), captured.samples.len());
    assert_eq!(host.pins.list()[0].capture_id, 0, "numbers start again");
    host.pins.set_budget(1);
    assert!(!dir.path().join(format!("{id:016x}.capture")).exists());
}

#[test]
fn nothing_is_made_where_there_are_no_triggers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pins");
    let pins = Pins::new(path.clone(), MIB, Arc::new(WallAnchor::new()));
    assert!(pins.is_empty() && !path.exists());
    assert_eq!(pins.degradation(), None);
}

#[test]
fn a_pin_dropped_while_its_file_is_written_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = Host::new(dir.path());
    host.pass(2);
    let id = host.fire(2, 0).unwrap();
    host.pass(1);
    let disk = host.pins.disk.get().unwrap();
    assert!(!host.pins.remove_dropped(disk, id), "it is known");
    assert!(file(dir.path(), id).exists());
    // As the budget does, before there was a file.
    lock(&host.pins.list).clear();
    assert!(host.pins.remove_dropped(disk, id));
    assert!(!file(dir.path(), id).exists());
}
