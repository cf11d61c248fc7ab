//! The store killed between any two of its operations on files.
//!
//! A child does all that a store does to its directory: it pushes into one partition and into
//! several, flushes, cuts logs, closes, downsamples partitions, and removes them. `strace` kills
//! it at its nth operation on a file. After each of them the directory opens, has no issue, and
//! answers what was acknowledged, once. Which of them are tried is drawn each time;
//! `FLEETPROF_TEST_EVERY_STEP=7` tries every seventh, and 1 all, which takes most of an hour.

use super::fleet::{Fleet, Random};
use super::{BEGIN, HOUR, SMALL, push, quick_flushes, total};
use collector::store::embedded::{EmbeddedStore, Options};
use collector::store::{
    HostFacts, HostRecord, NewWindow, PushOutcome, StoreStatus as _, WindowSink as _,
};
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

/// Where the child finds its directory.
const DIR: &str = "FLEETPROF_TEST_STEPS_DIR";

/// Distance of the steps that are tried, when it is set.
const EVERY: &str = "FLEETPROF_TEST_EVERY_STEP";

/// Steps tried otherwise.
const TRIED: u64 = 12;

/// Operations that change files. `strace` counts each kind by itself, so the nth is that of the
/// kind that comes to n first: mostly a write. Those of the directory of temporary files and of
/// standard output count as well, which does no harm.
const OPERATIONS: &str = "openat,write,pwrite64,ftruncate,fsync,fdatasync,mkdir,rename,unlink,\
                          unlinkat,rmdir";

const DAY: i64 = 24 * HOUR;

/// Host and number of windows pushed together.
const PUSHES: [&[(u64, u64)]; 6] = [
    &[(0, 0)],
    &[(0, 1), (1, 0), (0, 130)],
    &[(0, 131), (2, 2)],
    &[(1, 131)],
    &[(2, 131)],
    &[(2, 3)],
];

fn options() -> Options {
    Options {
        windows_ns: 2 * DAY as u64,
        minutes_ns: 3 * DAY as u64,
        ten_minutes_ns: 4 * DAY as u64,
        retention_ns: 14 * DAY as u64,
        ..quick_flushes()
    }
}

fn open_as(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, options(), BEGIN + HOUR).unwrap()
}

fn window(fleet: &Fleet, (host, sequence): (u64, u64)) -> NewWindow {
    fleet.window(host, sequence, BEGIN)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

#[test]
fn child_of_the_steps_test() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let dir = Path::new(&dir);
    let fleet = Fleet::new(7, SMALL);
    let mut pushes = PUSHES.iter();
    let mut push_next = |store: &EmbeddedStore| {
        let windows: Vec<_> = pushes.next().unwrap().iter().collect();
        let windows: Vec<_> = windows.iter().map(|id| window(&fleet, **id)).collect();
        let stacks = windows.iter().flat_map(|window| &window.rows);
        let stacks: Vec<_> = stacks.map(|row| row.stack).collect();
        let now = BEGIN + HOUR;
        let taken = store.push(&windows, &fleet.define(&stacks), now).unwrap();
        assert!(taken.iter().all(|taken| *taken == PushOutcome::Stored));
        say("steps: acked");
    };
    let store = open_as(dir);
    push_next(&store);
    push_next(&store);
    store.maintain(BEGIN + 40 * HOUR).unwrap();
    push_next(&store);
    let host = HostRecord {
        key: Fleet::host(3),
        facts: HostFacts::default(),
        first_seen_unix_ns: BEGIN,
        last_seen_unix_ns: BEGIN,
        clock_ahead_ns: 0,
    };
    store.put_hosts(&[host]).unwrap();
    push_next(&store);
    store.maintain(BEGIN + 40 * HOUR).unwrap();
    store.close().unwrap();
    drop(store);
    let store = open_as(dir);
    push_next(&store);
    for days in [2, 3, 4] {
        for _ in 0..3 {
            store.maintain(BEGIN + (days + 1) * DAY).unwrap();
        }
        if days == 2 {
            push_next(&store);
        }
    }
    say("steps: removing");
    store.maintain(BEGIN + 20 * DAY).unwrap();
    say("steps: done");
}

/// Runs the child until its nth operation. Returns how many pushes were acknowledged, whether it
/// started to remove partitions, and whether it ended by itself.
fn run_until(nth: u64, dir: &Path) -> (usize, bool, bool) {
    // What is not traced is not counted either.
    let trace = format!("trace={OPERATIONS}");
    let inject = format!("inject={OPERATIONS}:signal=KILL:when={nth}");
    let child = Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", &trace, "-e"])
        .arg(inject)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "steps::child_of_the_steps_test", "--nocapture"])
        .arg("--test-threads=1")
        .env(DIR, dir)
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    let has = |what: &str| said.contains(what);
    let done = has("steps: done");
    // `strace` ends as its child did.
    let killed = child.status.signal() == Some(9);
    assert!(killed || done, "it failed by itself at {nth}: {said}");
    (
        said.matches("steps: acked").count(),
        has("steps: removing"),
        done,
    )
}

fn check(nth: u64) -> bool {
    let folder = tempfile::tempdir().unwrap();
    let fleet = Fleet::new(7, SMALL);
    let (acked, removing, done) = run_until(nth, folder.path());
    let samples = |pushes: &[&[(u64, u64)]]| -> u64 {
        let windows = pushes.iter().flat_map(|push| push.iter());
        windows.map(|id| Fleet::samples(&window(&fleet, *id))).sum()
    };
    let expected = samples(&PUSHES[..acked]);
    for opened in 0..2 {
        let store = open_as(folder.path());
        let at = format!("killed at {nth}, after {acked} pushes, opened {opened} times before");
        assert_eq!(store.issues(), Vec::<String>::new(), "{at}");
        let found = total(&store);
        if removing {
            continue;
        }
        // The push that it was killed in: any of its partitions may be durable.
        let unheard = PUSHES.get(acked).copied().unwrap_or_default();
        let unheard = unheard.iter().map(|id| window(&fleet, *id));
        let more = found.checked_sub(expected);
        let most: u64 = unheard.map(|window| Fleet::samples(&window)).sum();
        assert!(
            more.is_some_and(|more| more <= most),
            "{at}: {found} of {expected}"
        );
        for id in PUSHES[..acked].iter().flat_map(|push| push.iter()) {
            let again = push(&store, &fleet, window(&fleet, *id)).unwrap();
            assert_eq!(again, PushOutcome::Duplicate, "{at}: {id:?}");
        }
        assert_eq!(total(&store), found, "{at}");
    }
    let store = open_as(folder.path());
    if removing {
        store.maintain(BEGIN + 20 * DAY).unwrap();
        assert_eq!(total(&store), 0, "killed at {nth}");
    }
    // It goes on.
    let next = window(&fleet, (0, 400));
    let stored = push(&store, &fleet, next).unwrap();
    assert_eq!(stored, PushOutcome::Stored, "killed at {nth}");
    done
}

#[test]
fn a_kill_between_any_two_operations_on_files_loses_nothing_needs_strace() {
    let can_trace = Command::new("strace")
        .args(["-qq", "-o", "/dev/null", "true"])
        .stderr(Stdio::null())
        .status();
    if !can_trace.is_ok_and(|status| status.success()) {
        testkit::skip("killing at an operation needs strace, and that it may trace");
        return;
    }
    assert!(!check(1), "`strace` kills nobody");
    if let Ok(every) = std::env::var(EVERY) {
        let mut steps = (1..).step_by(every.parse().unwrap());
        let last = steps.find(|&nth| check(nth)).unwrap();
        println!("killed up to step {last}");
        return;
    }
    // How many there are is found by the way: at one beyond the last, the child ends by itself.
    let mut random = Random::new(std::process::id().into());
    let mut most = 1500;
    for _ in 0..TRIED {
        let nth = 1 + random.below(most);
        if check(nth) {
            most = nth.max(2);
        }
    }
}
