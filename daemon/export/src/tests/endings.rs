//! Tests how runs end, with a disk that rejects writes or by a kill, and how the next run
//! continues.

use super::*;
use crate::gaps::SpoolGap;
use testkit::SmallDisk;

/// A spool in which no file can be made, until it is dropped.
struct Blocked(Vec<PathBuf>);

impl Blocked {
    fn new(dir: &Path) -> Blocked {
        let segments = (1..40).map(|id| dir.join(format!("{id:016x}.seg")));
        let mut places: Vec<PathBuf> = segments.filter(|path| !path.exists()).collect();
        places.push(dir.join("gaps.new"));
        let _ = std::fs::remove_file(dir.join("gaps.new"));
        places
            .iter()
            .for_each(|path| std::fs::create_dir(path).unwrap());
        Blocked(places)
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        self.0
            .iter()
            .for_each(|path| std::fs::remove_dir(path).unwrap());
    }
}

impl Run {
    /// Ends it as both of its threads do.
    fn end(mut self) {
        self.writer.finish();
        self.shared.thread_ended(&identity());
    }

    fn gap(&self) -> Option<SpoolGap> {
        lock(&self.shared.index).gaps.bind(1, i64::MAX, true)
    }
}

#[test]
fn what_waits_in_memory_goes_to_the_disk_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().join("spool");
    std::fs::write(&place, "a file").unwrap();
    let mut run = Run::new(&place, settings());
    (0..20).for_each(|number| run.record(&sample(number)));
    let whole = run.read_all();
    // No minute has passed since the disk failed: only the end tries again.
    std::fs::remove_file(&place).unwrap();
    run.end();
    let later = Run::new(&place, settings());
    assert_eq!(later.read_all(), whole);
    assert_eq!(whole.len(), 20);
    assert_eq!(later.gap(), None);
}

#[test]
fn what_a_disk_that_failed_did_not_take_is_appended_when_it_works_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    (0..3).for_each(|number| run.record(&sample(number)));
    run.writer.fail();
    (3..6).for_each(|number| run.record(&sample(number)));
    run.shared
        .rotate
        .store(true, std::sync::atomic::Ordering::Release);
    (6..8).for_each(|number| run.record(&sample(number)));
    let whole = run.read_all();
    assert_eq!(segments(dir.path()).len(), 1);
    assert!(lock(&run.shared.index).only_in_memory().is_some());
    run.writer.forget_failure();
    run.shared
        .rotate
        .store(true, std::sync::atomic::Ordering::Release);
    run.record(&sample(8));
    assert_eq!(lock(&run.shared.index).only_in_memory(), None);
    assert_eq!(segments(dir.path()).len(), 3);
    drop(run);
    let later = Run::new(dir.path(), settings());
    let read = later.read_all();
    assert_eq!(read[..8], whole);
    assert_eq!(read.len(), 9);
}

#[test]
fn answers_to_windows_that_moved_to_the_disk_are_noted_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let blocked = Blocked::new(dir.path());
    (0..3).for_each(|number| run.record(&sample(number)));
    // Two are answered while they are in memory, one of them is taken for sent until after the
    // move.
    let before = run.pick().unwrap();
    let across = run.pick().unwrap();
    let done = |picked: &Picked| {
        let done = lock(&run.shared.index).done(picked.segment, picked.record);
        done.unwrap()
    };
    assert!(done(&before).there);
    drop(blocked);
    run.writer.finish();
    let noted = done(&across);
    assert!(noted.there && noted.segment != across.segment);
    let spool = run.shared.dir().unwrap();
    spool.ack(noted.segment, across.record as u32).unwrap();
    drop(spool);
    drop(run);
    let later = Run::new(dir.path(), settings());
    assert_eq!(later.waiting(), 1);
    let left = later.read_all();
    assert_eq!(left[0].1, expected(&sample(2)));
}

fn check_told(end: impl FnOnce(Run)) {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let blocked = Blocked::new(dir.path());
    (0..7).for_each(|number| run.record(&sample(number)));
    let picked = run.pick().unwrap();
    lock(&run.shared.index).done(picked.segment, picked.record);
    run.shared.save_gaps(&identity());
    let lost = lock(&run.shared.index).only_in_memory().unwrap();
    end(run);
    drop(blocked);
    for _ in 0..2 {
        let later = Run::new(dir.path(), settings());
        assert_eq!(later.dropped(Cause::DiskFull), (6, 6 * 5));
        assert_eq!(
            later.gap(),
            Some(lost),
            "it is told as long as nobody answered"
        );
    }
}

#[test]
fn windows_no_disk_takes_at_the_end_are_a_gap_at_the_next_start() {
    check_told(Run::end);
}

#[test]
fn windows_in_memory_of_a_killed_daemon_are_a_gap_at_the_next_start() {
    check_told(drop);
}

#[test]
fn windows_that_arrived_after_all_are_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let blocked = Blocked::new(dir.path());
    (0..3).for_each(|number| run.record(&sample(number)));
    while let Some(picked) = run.pick() {
        lock(&run.shared.index).done(picked.segment, picked.record);
    }
    run.end();
    drop(blocked);
    let later = Run::new(dir.path(), settings());
    assert_eq!(later.gap(), None);
}

#[test]
fn a_disk_full_to_the_last_byte_still_takes_the_gap_needs_root() {
    let Some(dir) = SmallDisk::mount("256k") else {
        return;
    };
    let place = dir.path().join("spool");
    let mut run = Run::new(&place, settings());
    run.record(&sample(0));
    let filler = dir.path().join("filler");
    let filled = std::fs::write(&filler, vec![7; 1 << 20]);
    run.record(&large());
    let error = lock(&run.shared.progress).spool_error.clone();
    run.record(&sample(2));
    run.end();
    std::fs::remove_file(&filler).unwrap();
    let later = Run::new(&place, settings());
    let (read, told) = (later.read_all().len(), later.dropped(Cause::DiskFull));
    drop(later);
    assert!(filled.is_err() && error.unwrap().contains("No space left"));
    assert_eq!((read, told), (1, (2, 6005)));
}

#[test]
fn the_time_since_a_run_broke_off_is_a_gap_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    let last = run.pick().unwrap().header.end_unix_ns;
    let next = run.at + 100 * S;
    drop(run);
    let mut later = Run::new(dir.path(), settings());
    later.at = next;
    assert_eq!(
        later.dropped(Cause::Unsaved).0,
        0,
        "nobody knows until when"
    );
    later.record(&sample(2));
    assert_eq!(later.dropped(Cause::Unsaved), (1, 0));
    let gap = later.gap().unwrap();
    assert_eq!(gap.start_unix_ns, last);
    let seconds = (gap.end_unix_ns - last) as f64 / 1e9;
    assert!((seconds - 100.0).abs() < 1.0, "{seconds} s");
    later.record(&sample(3));
    assert_eq!(later.dropped(Cause::Unsaved), (1, 0));
}

#[test]
fn a_run_that_came_to_its_end_leaves_no_gap() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    let next = run.at + 100 * S;
    run.end();
    let mut later = Run::new(dir.path(), settings());
    later.at = next;
    later.record(&sample(2));
    assert_eq!(later.gap(), None);
}

#[test]
fn a_segment_that_cannot_be_read_is_a_gap_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    let path = segments(dir.path())[0].clone();
    run.end();
    // Opening it fails, as it does on a disk that does not answer.
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    for _ in 0..3 {
        let mut run = Run::new(dir.path(), settings());
        assert_eq!(run.dropped(Cause::Damaged), (1, 0));
        let gap = run.gap().unwrap();
        assert_eq!(gap.cause, Cause::Damaged);
        assert!(gap.end_unix_ns > 1_600_000_000_000_000_000, "it has a time");
        run.record(&sample(2));
        run.end();
    }
    assert!(
        path.with_extension("seg.bad").exists(),
        "people may look at it"
    );
}

#[test]
fn windows_torn_together_are_cut_off_at_one_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    let path = || segments(dir.path())[0].clone();
    let mut ends = Vec::new();
    for number in 0..3 {
        run.record(&sample(number));
        ends.push(std::fs::metadata(path()).unwrap().len() as usize);
    }
    run.end();
    let mut bytes = std::fs::read(path()).unwrap();
    for end in &ends[1..] {
        bytes[end - 3] ^= 1;
    }
    std::fs::write(path(), bytes).unwrap();
    for _ in 0..2 {
        let later = Run::new(dir.path(), settings());
        assert_eq!((later.waiting(), later.read_all().len()), (1, 1));
        assert_eq!(later.dropped(Cause::Damaged).0, 1);
    }
}

#[test]
fn a_segment_of_another_version_is_set_aside_and_a_gap_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut run = Run::new(dir.path(), settings());
    run.record(&sample(1));
    let path = segments(dir.path())[0].clone();
    run.end();
    let mut bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[..8], b"FPSPOOL\x02");
    bytes[7] = 1;
    std::fs::write(&path, &bytes).unwrap();
    for earlier in 0..2 {
        let mut run = Run::new(dir.path(), settings());
        assert_eq!(run.waiting(), earlier);
        assert_eq!(run.dropped(Cause::Damaged), (1, 0));
        run.record(&sample(2));
        assert_eq!(run.read_all().len() as u64, earlier + 1);
        run.end();
    }
    assert_eq!(
        std::fs::read(path.with_extension("seg.bad")).unwrap(),
        bytes
    );
}
