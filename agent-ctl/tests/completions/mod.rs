//! Tests completion in a real bash that runs the printed script.

use super::{command, run};
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
