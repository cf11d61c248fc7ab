//! The store killed at any moment, and killed while its files are destroyed.
//!
//! What is promised, and what these tests hold:
//!
//! - A window that was acknowledged is answered after any kill, once, as a whole. A window that was
//!   not may be there as well, once, as a whole: its acknowledgement was lost.
//! - When the file of a partition is replaced by garbage, cut short or removed while the store is
//!   down, the windows that had been flushed into *that* file may be gone. All others that were
//!   acknowledged are answered: those of other partitions, and those that the log alone had. What
//!   is gone is said, and nothing counts twice; where the log still has it, it may be back after
//!   the next start.
//! - The same at the next kill: what came back from the log is as safe as it was.

use super::fleet::{Fleet, PERIOD, Random, WINDOW_NS};
use super::{BEGIN, HOUR, SMALL, ample, by_host, counts, open, push, quick_flushes};
use collector::store::embedded::EmbeddedStore;
use collector::store::{
    PushOutcome, Scope, StoreQueries as _, StoreStatus as _, TimeRange, WindowSink as _,
};
use profile::Selector;
use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// Where the child of the crash test finds its directory.
const CRASH_DIR: &str = "FLEETPROF_TEST_CRASH_DIR";

/// Windows of each host that are stored already.
const CRASH_FROM: &str = "FLEETPROF_TEST_CRASH_FROM";

/// Pushes windows of each host in its own thread and says which are durable, until it is killed.
#[test]
fn child_of_the_crash_test() {
    let Some(dir) = std::env::var_os(CRASH_DIR) else {
        return;
    };
    let fleet = Fleet::new(7, SMALL);
    let from = std::env::var(CRASH_FROM).unwrap();
    let from: Vec<u64> = from
        .split(',')
        .map(|number| number.parse().unwrap())
        .collect();
    let store = open(Path::new(&dir), &quick_flushes());
    std::thread::scope(|scope| {
        for (host, &from) in from.iter().enumerate() {
            let (store, fleet) = (&store, &fleet);
            scope.spawn(move || {
                for sequence in from.. {
                    let window = fleet.window(host as u64, sequence, BEGIN);
                    let now = window.range.end_unix_ns;
                    let taken = push(store, fleet, window).unwrap();
                    assert!(
                        matches!(taken, PushOutcome::Stored | PushOutcome::Duplicate),
                        "{taken:?}"
                    );
                    let line = format!("acked {host} {sequence}\n");
                    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
                    if sequence % 5 == host as u64 {
                        store.maintain(now).unwrap();
                    }
                }
            });
        }
    });
}

/// Runs the child until it has acknowledged `acks` windows, kills it `after` then, and returns how
/// many windows of each host were acknowledged.
fn run_until_killed(dir: &Path, stored: &[u64], acks: u64, after: Duration) -> Vec<u64> {
    let from: Vec<String> = stored.iter().map(u64::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crashes::child_of_the_crash_test",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(CRASH_DIR, dir)
        .env(CRASH_FROM, from.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut acked = stored.to_vec();
    let mut note = |line: &str| {
        let mut words = line
            .split(' ')
            .skip_while(|word| !word.ends_with("acked"))
            .skip(1);
        let (Some(host), Some(sequence)) = (words.next(), words.next()) else {
            return 0;
        };
        let (host, sequence): (usize, u64) = (host.parse().unwrap(), sequence.parse().unwrap());
        acked[host] = sequence + 1;
        1
    };
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let (mut line, mut seen) = (String::new(), 0);
    while seen < acks && lines.read_line(&mut line).unwrap() > 0 {
        seen += note(line.trim_end());
        line.clear();
    }
    std::thread::sleep(after);
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    // What it said before it died counts; a line cut in the middle does not.
    while lines.read_line(&mut line).unwrap() > 0 {
        if line.ends_with('\n') {
            note(line.trim_end());
        }
        line.clear();
    }
    acked
}

/// A window by host and number.
type Id = (u64, u64);

/// The windows that are answered; each must be complete, and rows and sums must agree.
fn found(store: &EmbeddedStore, fleet: &Fleet, windows: u64) -> BTreeSet<Id> {
    let scope = Scope {
        range: TimeRange {
            start_unix_ns: BEGIN,
            end_unix_ns: BEGIN + windows as i64 * WINDOW_NS,
        },
        selector: Selector::default(),
    };
    let by = ["host".to_owned()];
    let answer = store.series(&scope, &by, WINDOW_NS as u64, &ample());
    let lines = answer.unwrap().data;
    assert_eq!(lines.start_unix_ns, BEGIN);
    let (mut found, mut samples) = (BTreeSet::new(), 0);
    for line in &lines.lines {
        let host = line.labels.get("host").strip_prefix("host-").unwrap();
        let host: u64 = host.parse().unwrap();
        for (sequence, &weight) in line.weights.iter().enumerate() {
            let sequence = sequence as u64;
            if weight > 0 {
                let whole = Fleet::samples(&fleet.window(host, sequence, BEGIN));
                assert_eq!(weight, whole * PERIOD, "window {sequence} of host {host}");
                found.insert((host, sequence));
                samples += whole;
            }
        }
    }
    assert_eq!(counts(store).values().sum::<u64>(), samples);
    found
}

/// The windows that are in files, without the log.
fn in_files(dir: &Path, fleet: &Fleet, windows: u64) -> BTreeSet<Id> {
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("partitions")).unwrap();
    for file in std::fs::read_dir(dir.join("partitions")).unwrap() {
        let path = file.unwrap().path();
        let to = copy
            .path()
            .join("partitions")
            .join(path.file_name().unwrap());
        std::fs::copy(&path, to).unwrap();
    }
    found(&open(copy.path(), &quick_flushes()), fleet, windows)
}

/// Destroys the file of one partition; returns which windows it is for.
fn destroy(dir: &Path, random: &mut Random) -> Option<std::ops::Range<u64>> {
    let files = std::fs::read_dir(dir.join("partitions")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "sqlite"));
    files.sort();
    // Most often the last ones, which are written to.
    let newest = random.below(files.len().min(2) as u64) as usize;
    let path = files.iter().rev().nth(newest)?;
    let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
    match random.below(5) {
        0 => std::fs::write(path, vec![0x5a; 40_000]).unwrap(),
        1 => {
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        }
        2 => std::fs::remove_file(path).unwrap(),
        3 => {
            for name in ["", "-wal", "-shm"].map(beside) {
                let _ = std::fs::remove_file(name);
            }
        }
        _ => {
            for name in ["", "-wal"].map(beside) {
                std::fs::write(name, b"garbage").unwrap();
            }
        }
    }
    let start: i64 = path.file_stem()?.to_str()?.parse().unwrap();
    let first = ((start * 1_000_000_000 - BEGIN) / WINDOW_NS) as u64;
    let len = quick_flushes().partition_ns / WINDOW_NS as u64;
    Some(first..first + len)
}

/// A process that is being started holds the locks of this one for a moment: one test at a time.
static ALONE: Mutex<()> = Mutex::new(());

fn check_kills(seed: u64, kills: usize, destroys: bool) {
    let _alone = ALONE.lock();
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(7, SMALL);
    let mut random = Random::new(seed);
    let mut stored = vec![0u64; SMALL.hosts as usize];
    let (mut expected, mut ever) = (BTreeSet::<Id>::new(), BTreeSet::<Id>::new());
    let (mut lost, mut destroyed) = (0, 0);
    for kill in 0..kills {
        let after = Duration::from_micros(random.below(30_000));
        let acked = run_until_killed(folder.path(), &stored, random.below(60), after);
        for (host, (&from, &to)) in stored.iter().zip(&acked).enumerate() {
            expected.extend((from..to).map(|sequence| (host as u64, sequence)));
        }
        let windows = acked.iter().max().unwrap() + 2;
        let mut may_be_gone = BTreeSet::new();
        if destroys && random.below(2) == 0 {
            let flushed = in_files(folder.path(), &fleet, windows);
            if let Some(hit) = destroy(folder.path(), &mut random) {
                destroyed += 1;
                may_be_gone.extend(flushed.into_iter().filter(|id| hit.contains(&id.1)));
            }
        }
        let store = open(folder.path(), &quick_flushes());
        if may_be_gone.is_empty() {
            let issues = store.issues();
            let of_before = |text: &String| destroyed > 0 && text.starts_with("partition");
            assert!(issues.iter().all(of_before), "kill {kill}: {issues:?}");
        } else {
            // Some damage is found by the first who asks, and upkeep sets the file aside.
            for _ in 0..2 {
                let _ = by_host(&store);
                store.maintain(BEGIN + HOUR).unwrap();
            }
        }
        let is = found(&store, &fleet, windows);
        let gone: Vec<_> = expected.difference(&is).collect();
        let wrong: Vec<_> = gone.iter().filter(|id| !may_be_gone.contains(id)).collect();
        let issues = store.issues();
        assert!(
            wrong.is_empty(),
            "kill {kill}: {wrong:?} are gone; {issues:?}"
        );
        let is_said = !store.issues().is_empty();
        assert!(
            gone.is_empty() || is_said,
            "kill {kill}: what is gone is said"
        );
        lost += gone.len();
        for &(host, sequence) in is.difference(&expected) {
            // One window may have become durable without its acknowledgement having been heard; one
            // that was gone with its file may come back from the log.
            let is_unheard = sequence == acked[host as usize];
            let is_back = destroys && ever.contains(&(host, sequence));
            assert!(is_unheard || is_back, "kill {kill}: {sequence} of {host}");
        }
        for (host, stored) in stored.iter_mut().enumerate() {
            let unheard = is.contains(&(host as u64, acked[host]));
            *stored = acked[host] + u64::from(unheard);
            let last = stored.checked_sub(1).map(|last| (host as u64, last));
            if let Some((host, last)) = last.filter(|last| is.contains(last)) {
                let again = fleet.window(host, last, BEGIN);
                assert_eq!(push(&store, &fleet, again).unwrap(), PushOutcome::Duplicate);
            }
        }
        assert_eq!(by_host(&store).quality.windows, is.len() as u64);
        ever.extend(expected.into_iter().chain(is.iter().copied()));
        expected = is;
    }
    let windows: u64 = stored.iter().sum();
    println!(
        "killed {kills} times over {windows} windows; {destroyed} files destroyed, {lost} windows gone"
    );
    assert!(windows > kills as u64, "the child got somewhere");
}

#[test]
fn nothing_acknowledged_is_lost_and_nothing_counts_twice_however_often_it_is_killed() {
    check_kills(11, 32, false);
}

#[test]
fn nothing_but_what_was_flushed_into_a_destroyed_file_is_lost_however_often_it_is_killed() {
    check_kills(23, 32, true);
}
