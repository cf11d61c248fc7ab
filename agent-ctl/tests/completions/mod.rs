//! Tests completion in a real bash that runs the printed script.

use super::{agent, command, run, sound};
use std::process::Command;

/// Calls the completion as bash does for a line with a last word that is being typed.
const CALL: &str = r#"
source "$1"
shift
complete -p agent-ctl > /dev/null || exit 9
compopt() { :; }
COMP_WORDS=(agent-ctl "$@")
COMP_CWORD=$#
_agent__ctl agent-ctl "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;

fn completed(words: &[&str]) -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("completions.bash");
    std::fs::write(
        &script,
        run(command("unix:/x", &["completions", "bash"])).out,
    )
    .unwrap();
    let output = Command::new("bash")
        .args(["--norc", "-c", CALL, "bash"])
        .arg(&script)
        .args(words)
        .current_dir(dir.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    let words = String::from_utf8(output.stdout).unwrap();
    words.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_and_values() {
    for (line, expected) in [
        (&["prof"] as &[&str], "profile"),
        (&["config", ""], "reload"),
        (&["pins", "sh"], "show"),
        (&["captures", ""], "cancel"),
        (&["completions", "z"], "zsh"),
        (&["profile", "--un"], "--unit"),
        (&["profile", "--format", ""], "bundle"),
        (
            &["profile", "--unit", "nginx", "--format", "speed"],
            "speedscope",
        ),
        (&["diff", "--format", "s"], "svg"),
        (&["top", "--view", "cg"], "cgroups"),
        (&["capture", "--event", "off"], "off-cpu"),
        (&["capture", "-e", "page"], "page-faults"),
        (&["capture", "--unwind", ""], "frame-pointer"),
        (&["profile", "--group-by", "sl"], "slice"),
        (&["pins", "show", "--fo"], "--format"),
        (&["--collector", "c1", "hosts", "--so"], "--sort"),
        (&["--collector", "c1", "hosts", "--sort", "c"], "cpu"),
        // The file of the script itself lies there.
        (&["profile", "-o", "comp"], "completions.bash"),
    ] {
        let words = completed(line);
        assert!(
            words.iter().any(|word| word == expected),
            "{line:?}: {words:?}"
        );
        let typed = line.last().unwrap();
        assert!(
            words.iter().all(|word| word.starts_with(typed)),
            "{line:?}: {words:?}"
        );
    }
}

#[test]
fn bash_offers_no_file_for_a_value_that_is_none() {
    for line in [
        &["profile", "--since", ""] as &[&str],
        &["profile", "--unit", ""],
        &["capture", "--duration", ""],
    ] {
        let words = completed(line);
        assert!(words.iter().all(String::is_empty), "{line:?}: {words:?}");
    }
}

/// Calls the completion as bash does while a line is typed, with this program in the path.
const CALL_LIVE: &str = r#"
source <(agent-ctl completions bash)
COMP_LINE="$1"
COMP_POINT=${#COMP_LINE}
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_agent__ctl
printf '%s\n' "${COMPREPLY[@]}"
"#;

fn live(mut command: Command, agent: &str) -> Vec<String> {
    let program = std::path::Path::new(env!("CARGO_BIN_EXE_agent-ctl"));
    let path = format!(
        "{}:{}",
        program.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let home = tempfile::tempdir().unwrap();
    let output = command
        .env("PATH", path)
        .env("HOME", home.path())
        .env("FLEETPROF_AGENT", agent)
        .env_remove("FLEETPROF_COLLECTOR")
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(errors.is_empty(), "{errors}");
    let words = String::from_utf8(output.stdout).unwrap();
    words.lines().map(str::to_owned).collect()
}

#[test]
fn bash_offers_what_the_agent_knows() {
    let running = sound();
    let agent = agent(&running);
    for (words, expected) in [
        (
            &["agent-ctl", "profile", "--unit", "ng"] as &[&str],
            "nginx.service",
        ),
        (&["agent-ctl", "profile", "--comm", ""], "nginx"),
        (&["agent-ctl", "labels", "co"], "container"),
        (&["agent-ctl", "pins", "show", ""], "fake/12"),
        (&["agent-ctl", "capture", "-e", "page"], "page-faults"),
    ] {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", CALL_LIVE, "bash", &words.join(" ")])
            .args(words);
        let offered = live(bash, &agent);
        assert!(
            offered.iter().any(|word| word == expected),
            "{words:?}: {offered:?}"
        );
    }
}

#[test]
fn nobody_who_answers_offers_nothing_and_says_nothing() {
    let mut bash = Command::new("bash");
    let words = ["agent-ctl", "profile", "--unit", ""];
    bash.args([
        "--norc",
        "-c",
        CALL_LIVE,
        "bash",
        "agent-ctl profile --unit ",
    ])
    .args(words);
    assert_eq!(live(bash, "unix:/nobody"), [""]);
}

#[test]
fn fish_offers_what_the_agent_knows() {
    if Command::new("fish").arg("--version").output().is_err() {
        eprintln!("SKIPPED: there is no fish");
        return;
    }
    let running = sound();
    let agent = agent(&running);
    for (line, expected) in [
        ("agent-ctl profile --unit ng", "nginx.service"),
        ("agent-ctl labels un", "unit"),
        ("agent-ctl profile --format spee", "speedscope"),
    ] {
        let mut fish = Command::new("fish");
        let script = format!("agent-ctl completions fish | source; complete -C '{line}'");
        fish.args(["--no-config", "-c", &script]);
        let offered = live(fish, &agent);
        let has = |word: &String| word.split('\t').next() == Some(expected);
        assert!(offered.iter().any(has), "{line}: {offered:?}");
    }
}
