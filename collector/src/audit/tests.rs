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

/// What is said of damage in the lines of a log.
fn damages(chain: &mut Chain) -> Vec<String> {
    let snapshot = chain.snapshot(NOW).expect("files");
    let mut said = Vec::new();
    chain::lines(&snapshot, 0, 0, &mut |line| {
        let line: Value = serde_json::from_str(&line).expect("JSON");
        if line["action"] == "audit-damaged" {
            said.push(line["what"]["found"].as_str().expect("text").to_owned());
        }
        true
    })
    .expect("read");
    said
}

/// Lines that the one newest file has.
fn lines_of(path: &std::path::Path) -> usize {
    fs::read_to_string(path).expect("text").lines().count()
}

#[test]
fn a_file_that_is_replaced_while_the_collector_runs_takes_no_line_with_it() {
    let dir = dir();
    let mut running = chain(&dir);
    append(&mut running, 5);
    let path = file(&dir);
    // As `sed -i` does: another file of the same name.
    let other = dir.path().join("other");
    fs::copy(&path, &other).expect("copied");
    fs::rename(&other, &path).expect("renamed");
    append(&mut running, 2);
    // What was there, that it was replaced, and the two lines.
    assert_eq!(lines_of(&path), 8);
    assert_eq!(running.damages(), 1);
    assert!(damages(&mut running)[0].contains("replaced"));
    // Nothing of it was changed.
    assert_eq!(verdict(&mut running).problems, Vec::<String>::new());
    append(&mut running, 1);
    assert_eq!(running.damages(), 1);
}

#[test]
fn lines_that_were_cut_from_a_file_that_was_replaced_are_found() {
    let dir = dir();
    let mut running = chain(&dir);
    append(&mut running, 5);
    let path = file(&dir);
    let text = fs::read_to_string(&path).expect("text");
    let kept: String = text
        .lines()
        .take(3)
        .map(|line| format!("{line}\n"))
        .collect();
    let other = dir.path().join("other");
    fs::write(&other, kept).expect("written");
    fs::rename(&other, &path).expect("renamed");
    // Whoever is thorough takes away what says how it was.
    fs::remove_file(dir.path().join("head.json")).expect("removed");
    append(&mut running, 2);
    let said = damages(&mut running);
    assert!(
        said.iter().any(|text| text.contains("lines 4 to 5")),
        "{said:?}"
    );
    for mut chain in [running, chain(&dir)] {
        let problems = verdict(&mut chain).problems;
        assert!(
            problems.iter().any(|text| text.contains("lines 4 to 5")),
            "{problems:?}"
        );
    }
}

#[test]
fn a_file_that_is_renamed_away_is_missed_and_the_log_goes_on() {
    let dir = dir();
    let mut running = chain(&dir);
    append(&mut running, 5);
    let path = file(&dir);
    fs::rename(&path, dir.path().join("elsewhere")).expect("renamed");
    let found = verdict(&mut running).problems;
    assert!(
        found.iter().any(|text| text.contains("renamed")),
        "{found:?}"
    );
    append(&mut running, 2);
    // Nothing went to the file that is not there.
    assert_eq!(lines_of(&dir.path().join("elsewhere")), 5);
    assert_eq!(lines_of(&file(&dir)), 4);
    assert!(running.damages() > 0);
    assert!(!verdict(&mut running).problems.is_empty());
    // With it back in its place nothing is missing.
    fs::rename(dir.path().join("elsewhere"), path).expect("renamed");
    assert_eq!(verdict(&mut chain(&dir)).problems, Vec::<String>::new());
}

#[test]
fn what_somebody_added_behind_the_last_line_is_found() {
    for added in ["garbage", "garbage\n", "{\"seq\":6}\n"] {
        let dir = dir();
        let mut running = chain(&dir);
        append(&mut running, 5);
        let mut behind = OpenOptions::new()
            .append(true)
            .open(file(&dir))
            .expect("opens");
        behind.write_all(added.as_bytes()).expect("written");
        let found = verdict(&mut running).problems;
        assert!(
            found
                .iter()
                .any(|text| text.contains("behind its last line")),
            "{found:?}"
        );
        append(&mut running, 2);
        assert_eq!(running.damages(), 1, "{added:?}");
        let said = damages(&mut running);
        assert!(said[0].contains("behind its last line"), "{said:?}");
    }
}

#[test]
fn a_line_that_follows_on_from_the_last_is_nobodys_where_the_collector_runs() {
    let dir = dir();
    let mut running = chain(&dir);
    append(&mut running, 5);
    let last = verdict(&mut running).last_hash;
    let forged = format!(
        "{{\"seq\":6,\"time\":\"2026-11-27T16:20:00Z\",\"who\":\"emma\",\"prev\":\"{last}\"}}\n"
    );
    let mut behind = OpenOptions::new()
        .append(true)
        .open(file(&dir))
        .expect("opens");
    behind.write_all(forged.as_bytes()).expect("written");
    assert!(!verdict(&mut running).problems.is_empty());
    append(&mut running, 2);
    for mut chain in [running, chain(&dir)] {
        assert!(!verdict(&mut chain).problems.is_empty());
    }
}

#[test]
fn what_was_found_waits_until_it_is_written() {
    let dir = dir();
    append(&mut chain(&dir), 5);
    edit(&dir, |lines| lines.truncate(3));
    let mut restarted = chain(&dir);
    restarted.find(vec![event("audit-cut")]);
    append(&mut restarted, 1);
    // Both, and the line.
    assert_eq!(lines_of(&file(&dir)), 6);
}

#[test]
fn files_that_were_copied_are_checked_without_a_collector() {
    let dir = dir();
    append(&mut chain(&dir), 5);
    let sound = verify_dir(dir.path()).expect("read");
    assert_eq!(sound.problems, Vec::<String>::new());
    assert_eq!((sound.lines, sound.last_seq, sound.behind), (5, 5, Some(0)));
    // Lines that came after head.json was copied.
    let head = fs::read(dir.path().join("head.json")).expect("a file");
    append(&mut chain(&dir), 2);
    let newer = fs::read(dir.path().join("head.json")).expect("a file");
    fs::write(dir.path().join("head.json"), head).expect("written");
    let later = verify_dir(dir.path()).expect("read");
    assert_eq!((later.problems.len(), later.behind), (0, Some(2)));
    fs::write(dir.path().join("head.json"), newer).expect("written");
    edit(&dir, |lines| lines.truncate(6));
    let cut = verify_dir(dir.path()).expect("read").problems;
    assert!(cut[0].contains("at the end are missing"), "{cut:?}");
    fs::remove_file(dir.path().join("head.json")).expect("removed");
    let unknown = verify_dir(dir.path()).expect("read");
    assert_eq!((unknown.problems.len(), unknown.behind), (0, None));
    edit(&dir, |lines| lines[2] = lines[2].replace("anna", "emma"));
    assert!(!verify_dir(dir.path()).expect("read").problems.is_empty());
    let empty = tempfile::tempdir().expect("a directory");
    assert!(verify_dir(empty.path()).is_err());
}
