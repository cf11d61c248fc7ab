//! Tests the text report of profiles, and what is on a terminal instead of a file.

use super::{agent, ask, sound};
use std::process::Command;
use testkit::terminal::Terminal;

#[test]
fn functions_have_their_cores_and_shares() {
    let ended = ask(&sound(), &["profile", "--format", "top", "--to", "now"]);
    insta::assert_snapshot!(ended.all());
}

#[test]
fn callers_and_callees_of_a_function_are_trees() {
    let running = sound();
    let callers = ask(&running, &["profile", "--callers", "^tcp_sendmsg$", "-q"]);
    assert_eq!(callers.code, 0, "{}", callers.all());
    let lines: Vec<&str> = callers.out.lines().collect();
    assert!(
        lines[0].starts_with("callers of `^tcp_sendmsg$`, which is in "),
        "{}",
        callers.out
    );
    let names: Vec<&str> = lines[2..]
        .iter()
        .filter_map(|line| line.split_whitespace().nth(2))
        .collect();
    assert_eq!(
        names,
        [
            "tcp_sendmsg",
            "do_syscall_64",
            "ngx_worker_process_cycle",
            "main"
        ],
        "{}",
        callers.out
    );
    let callees = ask(&running, &["profile", "--callees", "^main$", "-q"]);
    assert!(
        callees.out.contains("ngx_worker_process_cycle"),
        "{}",
        callees.out
    );
}

#[test]
fn values_of_a_label_are_rows_when_it_is_asked_for() {
    let args = ["profile", "--format", "top", "--group-by", "comm", "-q"];
    let ended = ask(&sound(), &args);
    let heading = ended.out.lines().next().unwrap();
    assert!(
        heading.ends_with("COMM") && heading.contains("CORES"),
        "{heading}"
    );
    assert!(ended.out.contains("  nginx\n"), "{}", ended.out);
}

#[test]
fn options_of_the_report_go_with_nothing_else() {
    let running = sound();
    let path = running.dir().join("cpu.svg");
    let args = ["profile", "--callers", "main", "-o", path.to_str().unwrap()];
    let ended = ask(&running, &args);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
    assert!(ended.err.contains("give --format top"), "{}", ended.err);
    let ended = ask(&running, &["profile", "--callers", "("]);
    assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{}", ended.all());
    let ended = ask(&running, &["profile", "--callers", "^nosuch$"]);
    assert_eq!((ended.code, ended.out.as_str()), (6, ""), "{}", ended.all());
    assert!(
        ended.err.contains("no function of the 1,900 samples"),
        "{}",
        ended.err
    );
}

#[test]
fn a_report_goes_into_a_text_file_that_is_asked_for() {
    let running = sound();
    let path = running.dir().join("cpu.txt");
    let args = ["profile", "--cum", "-o", path.to_str().unwrap()];
    assert_eq!(ask(&running, &args).code, 0);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.starts_with("SELF CORES"), "{text}");
}

#[test]
fn a_terminal_gets_the_report_and_a_pipe_folded_stacks() {
    let running = sound();
    let line = format!(
        "{} --agent {} profile; sleep 60",
        env!("CARGO_BIN_EXE_agent-ctl"),
        agent(&running)
    );
    let mut shell = Command::new("sh");
    shell.args(["-c", &line]);
    let terminal = Terminal::open(&shell);
    assert!(terminal.shows("SELF CORES") && terminal.shows("coverage"));
    let screen = terminal.screen();
    assert!(!screen.contains("main;"), "{screen}");
    let ended = ask(&running, &["profile", "-q"]);
    assert!(ended.out.contains("main;"), "{}", ended.out);
}
