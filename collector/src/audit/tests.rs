//! Tests the chain: it stays intact across restarts and crashes, and any other change breaks it.

use super::chain::{Chain, FILE_BYTES_MAX, listed};
use super::*;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

const NOW: i64 = 1_790_000_000_000_000_000;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn event(action: &'static str) -> Event {
    Event::by("anna", "10.0.0.1:7".to_owned(), action).with("x", "y")
}

fn chain(dir: &TempDir) -> Chain {
    Chain::new(dir.path(), 1 << 30)
}

fn append(chain: &mut Chain, count: usize) {
    for _ in 0..count {
        chain.append(&[&event("capture")], NOW).expect("written");
    }
}

fn verdict(chain: &mut Chain) -> Verdict {
    verify(&chain.snapshot(NOW).expect("files")).expect("read")
}

/// The one file of a log.
fn file(dir: &TempDir) -> PathBuf {
    let files = listed(dir.path()).expect("files");
    assert_eq!(files.len(), 1);
    files[0].1.clone()
}

/// Changes the lines of the one file.
fn edit(dir: &TempDir, change: impl FnOnce(&mut Vec<String>)) {
    let path = file(dir);
    let text = fs::read_to_string(&path).expect("text");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    change(&mut lines);
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::write(&path, text).expect("written");
}

/// What is wrong, by the collector that wrote it, and by one that is started on it.
fn problems(change: impl Fn(&mut Vec<String>)) -> (Vec<String>, Vec<String>) {
    let dir = dir();
    let mut running = chain(&dir);
    append(&mut running, 5);
    edit(&dir, change);
    let found = verdict(&mut running).problems;
    let mut restarted = chain(&dir);
    append(&mut restarted, 2);
    (found, verdict(&mut restarted).problems)
}

#[test]
fn a_log_that_nobody_touched_is_sound_over_restarts() {
    let dir = dir();
    for _ in 0..3 {
        append(&mut chain(&dir), 4);
    }
    let found = verdict(&mut chain(&dir));
    assert_eq!(found.problems, Vec::<String>::new());
    assert_eq!((found.lines, found.first_seq, found.last_seq), (12, 1, 12));
}

#[test]
fn an_edited_line_is_found() {
    for at in 0..5 {
        let (running, restarted) = problems(|lines| lines[at] = lines[at].replace("anna", "benn"));
        assert!(!running.is_empty(), "line {at}");
        assert!(!restarted.is_empty(), "line {at}");
    }
}

#[test]
fn a_removed_line_is_found() {
    for at in 0..5 {
        let (running, restarted) = problems(|lines| {
            lines.remove(at);
        });
        assert!(!running.is_empty(), "line {at}");
        assert!(!restarted.is_empty(), "line {at}");
    }
}

#[test]
fn a_truncated_line_is_found() {
    for at in 0..5 {
        let (running, restarted) = problems(|lines| lines[at].truncate(40));
        assert!(!running.is_empty(), "line {at}");
        assert!(!restarted.is_empty(), "line {at}");
    }
}

#[test]
fn lines_that_changed_places_are_found() {
    let (running, restarted) = problems(|lines| lines.swap(1, 2));
    assert!(!running.is_empty() && !restarted.is_empty());
}

#[test]
fn a_log_that_was_emptied_is_found() {
    let (running, restarted) = problems(Vec::clear);
    assert!(!running.is_empty() && !restarted.is_empty());
    let dir = dir();
    append(&mut chain(&dir), 5);
    fs::remove_file(file(&dir)).expect("removed");
    let mut restarted = chain(&dir);
    append(&mut restarted, 1);
    let found = verdict(&mut restarted);
    assert!(!found.problems.is_empty(), "{found:?}");
}

#[test]
fn a_line_that_a_crash_cut_is_cut_off_and_told_of() {
    for part in [&b"{\"seq\":6,\"ti"[..], b"{", b"\xff\xff"] {
        let dir = dir();
        append(&mut chain(&dir), 5);
        let mut end = OpenOptions::new()
            .append(true)
            .open(file(&dir))
            .expect("the file");
        end.write_all(part).expect("written");
        let mut restarted = chain(&dir);
        append(&mut restarted, 1);
        let found = verdict(&mut restarted);
        assert_eq!(found.problems, Vec::<String>::new());
        // Five, that it was cut, and one more.
        assert_eq!((found.lines, found.last_seq), (7, 7));
        let text = fs::read_to_string(file(&dir)).expect("text");
        assert!(text.contains("audit-cut"), "{text}");
    }
}

#[test]
fn a_crash_before_the_head_was_noted_does_no_harm() {
    let dir = dir();
    append(&mut chain(&dir), 3);
    let head = fs::read(dir.path().join("head.json")).expect("a head");
    append(&mut chain(&dir), 2);
    fs::write(dir.path().join("head.json"), head).expect("written");
    let mut restarted = chain(&dir);
    append(&mut restarted, 1);
    assert_eq!(verdict(&mut restarted).problems, Vec::<String>::new());
}

#[test]
fn old_files_go_and_what_is_left_is_a_chain() {
    let dir = dir();
    let mut chain = Chain::new(dir.path(), 3 * FILE_BYTES_MAX);
    let long = "x".repeat(1000);
    let mut event = event("capture");
    for number in 0..20 {
        event = event.with(&format!("long{number}"), long.as_str());
    }
    let events: Vec<&Event> = (0..64).map(|_| &event).collect();
    for _ in 0..30 {
        chain.append(&events, NOW).expect("written");
    }
    let files = listed(dir.path()).expect("files");
    let sizes = files
        .iter()
        .map(|(_, path)| fs::metadata(path).expect("there").len());
    let all: u64 = sizes.sum();
    assert!(all <= 3 * FILE_BYTES_MAX, "{all}");
    assert!(files.len() > 1 && files[0].0 > 1, "{files:?}");
    let found = verdict(&mut chain);
    assert_eq!(found.problems, Vec::<String>::new());
    assert_eq!(found.last_seq, 30 * 64);
    // That the first of them is taken away is no age.
    fs::remove_file(&files[0].1).expect("removed");
    assert!(!verdict(&mut chain).problems.is_empty());
}

#[test]
fn what_others_say_is_a_text_within_a_line() {
    let dir = dir();
    let mut chain = chain(&dir);
    let hostile = "a\n{\"seq\":9}\u{202e}\"\u{1b}[31m".repeat(1000);
    let event = Event::by(&hostile, String::new(), "login").with("why", hostile.as_str());
    chain.append(&[&event], NOW).expect("written");
    let found = verdict(&mut chain);
    assert_eq!((found.lines, found.problems.len()), (1, 0));
}

#[test]
fn lines_are_read_from_a_time_on_and_the_newest_of_them() {
    let dir = dir();
    let mut chain = chain(&dir);
    for number in 0..10_i64 {
        let event = event("capture").with("number", number);
        let at = NOW + number * 1_000_000_000;
        chain.append(&[&event], at).expect("written");
    }
    let snapshot = chain.snapshot(NOW).expect("files");
    let read = |since, limit| {
        let mut lines = Vec::new();
        let mut take = |line: String| {
            let line: Value = serde_json::from_str(&line).expect("JSON");
            lines.push(line["what"]["number"].as_i64().expect("a number"));
            true
        };
        super::chain::lines(&snapshot, since, limit, &mut take).expect("read");
        lines
    };
    assert_eq!(read(0, 0).len(), 10);
    assert_eq!(read(NOW + 7_000_000_000, 0), [7, 8, 9]);
    assert_eq!(read(0, 2), [8, 9]);
}

#[tokio::test]
async fn what_cannot_be_written_is_refused_and_counted() {
    let dir = dir();
    // No directory can be made below a file.
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    let metrics = Arc::new(Metrics::default());
    let clock = Clock::new(|| NOW);
    let path = file.join("audit");
    let audit = Audit::start(&path, 1 << 30, clock, metrics.clone()).expect("a thread");
    let refused = audit.record(event("invite")).await.expect_err("refused");
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    assert_eq!(metrics.audit_failing.get(), 1);
    assert_eq!(metrics.audit_refused.get(), 1);
    // Once there is room it goes on.
    fs::remove_file(&file).expect("removed");
    audit.record(event("invite")).await.expect("written");
    assert_eq!(metrics.audit_failing.get(), 0);
    assert_eq!(audit.verify().expect("read").lines, 1);
}
