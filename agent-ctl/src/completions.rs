//! `agent-ctl completions`: prints completion scripts for shells.
//!
//! The scripts contain commands, options and fixed values. For units, containers, processes,
//! labels, pins, captures and events they call this program, which asks (`complete.rs`).

use crate::{exit, terminal::Out};
use anyhow::Result;
use clap::builder::PossibleValuesParser;
use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

/// Prints completions for a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  agent-ctl completions bash > /etc/bash_completion.d/agent-ctl
  agent-ctl completions fish > ~/.config/fish/completions/agent-ctl.fish
  agent-ctl completions zsh > \"${fpath[1]}/_agent-ctl\"")]
pub struct Args {
    /// The shell
    shell: Shell,
}

/// Name of the program.
const NAME: &str = "agent-ctl";

/// Events offered before anybody is asked. A tracepoint or uprobe is as good an event as these: its
/// words are offered up to where the name starts.
const EVENTS: [&str; 10] = [
    "cpu-clock",
    "task-clock",
    "off-cpu",
    "cycles",
    "instructions",
    "cache-misses",
    "page-faults",
    "context-switches",
    "cpu-migrations",
    "block-io",
];

/// Values offered for options that take any text, by the id of the option.
const VALUES: [(&str, &[&str]); 3] = [
    ("event", &EVENTS),
    (
        "group_by",
        &[
            "none",
            "slice",
            "unit",
            "container",
            "container_name",
            "image",
            "pod",
            "namespace",
            "cgroup",
            "comm",
            "thread",
            "pid",
            "context",
            "host",
        ],
    ),
    ("unwind", &["stack-copy", "frame-pointer"]),
];

/// Options with values that only an agent or a collector knows, by their long names; `complete.rs`
/// says what those are.
pub const LIVE: [&str; 13] = [
    "unit",
    "slice",
    "container",
    "comm",
    "thread",
    "pid",
    "cgroup",
    "host",
    "service",
    "by",
    "group-by",
    "trigger",
    "event",
];

/// Names of values that are files or directories.
const PATHS: [&str; 4] = [
    "FILE",
    "DIR",
    "RANGE|FILE|pin:NAME|capture:ID",
    "unix:PATH|HOST:PORT",
];

/// Runs the command for the command line `cli`.
pub fn run(out: &Out, cli: Command, args: Args) -> Result<u8> {
    out.write(&script(cli, args.shell))?;
    Ok(exit::OK)
}

fn script(cli: Command, shell: Shell) -> String {
    let mut script = Vec::new();
    let mut command = prepared(cli);
    clap_complete::generate(shell, &mut command, NAME, &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let script = match shell {
        // The generator writes a hyphen of the program's name in two ways, so that no case of the
        // script is ever reached: `agent__ctl` where it notes the subcommand, `agent__subcmd__ctl`
        // where it looks.
        Shell::Bash => script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__")),
        _ => script,
    };
    match shell {
        Shell::Bash => with_live_values(&script, "_agent__ctl() {", "_agent__ctl_fixed() {", BASH),
        Shell::Zsh => with_live_values(&script, "_agent-ctl() {", "_agent-ctl-fixed() {", ZSH),
        Shell::Fish => fish(&script),
        _ => script,
    }
}

/// Asks for live values; where there are none, the generated function goes on. The shell breaks
/// words at `:`, `=` and `@` too, so what it has of a word before the cursor is taken off.
const BASH: &str = r#"_agent__ctl() {
    local line="${COMP_LINE:0:${COMP_POINT:-0}}" live word lead value
    [ -n "$line" ] || line="${COMP_WORDS[*]:0:COMP_CWORD+1}"
    if live=$("${COMP_WORDS[0]}" --complete-line "$line" 2>/dev/null); then
        word="${line##*[[:space:]]}"
        lead="${word%"${COMP_WORDS[COMP_CWORD]}"}"
        case "$word" in
            --*=*) lead="${lead#*=}" ;;
        esac
        COMPREPLY=()
        while IFS= read -r value; do
            [ -n "$value" ] && COMPREPLY+=("${value#"$lead"}")
        done <<< "$live"
        return 0
    fi
    _agent__ctl_fixed "$@"
}

"#;

/// The same for zsh.
const ZSH: &str = r#"_agent-ctl() {
    local line="${(j: :)words[1,CURRENT]}" live
    if live="$("${words[1]}" --complete-line "$line" 2>/dev/null)"; then
        local -a values
        values=("${(@f)live}")
        compset -P '--*='
        compadd -a values
        return
    fi
    _agent-ctl-fixed "$@"
}

"#;

/// The same for fish.
const FISH: &str = r#"
function __agent_ctl_live
    set -l words (commandline -opc)
    command $words[1] --complete-line (commandline -cp | string collect) 2>/dev/null
end
complete -c agent-ctl -n "__fish_agent_ctl_using_subcommand labels" -f -a "(__agent_ctl_live)"
complete -c agent-ctl -n "__fish_agent_ctl_using_subcommand pins; and __fish_seen_subcommand_from show" -f -a "(__agent_ctl_live)"
complete -c agent-ctl -n "__fish_agent_ctl_using_subcommand captures; and __fish_seen_subcommand_from get cancel delete" -f -a "(__agent_ctl_live)"
complete -c agent-ctl -n "__fish_agent_ctl_using_subcommand events; and __fish_seen_subcommand_from delete" -f -a "(__agent_ctl_live)"
"#;

/// The script with its function renamed, and one before it that asks first.
fn with_live_values(script: &str, function: &str, renamed: &str, asking: &str) -> String {
    script.replacen(function, &format!("{asking}{renamed}"), 1)
}

/// A script for fish that asks for the values of options.
fn fish(script: &str) -> String {
    let mut asking = String::with_capacity(script.len() + 4096);
    for line in script.lines() {
        asking.push_str(line);
        let mut words = line.split(" -l ").skip(1);
        let option = words.next().and_then(|rest| rest.split(' ').next());
        if option.is_some_and(|option| LIVE.contains(&option)) && line.ends_with(" -r -f") {
            asking.push_str(" -a \"(__agent_ctl_live)\"");
        }
        asking.push('\n');
    }
    asking + FISH
}

/// The command line with what is known of its values: a shell offers files for those that are some,
/// and nothing where it would only guess.
fn prepared(command: Command) -> Command {
    let command = command.mut_args(hinted);
    command.mut_subcommands(prepared)
}

fn hinted(arg: Arg) -> Arg {
    let known = VALUES.iter().find(|(id, _)| arg.get_id() == id);
    if let Some((_, values)) = known {
        return arg.value_parser(PossibleValuesParser::new(values.iter().copied()));
    }
    if !arg.get_action().takes_values() || !arg.get_possible_values().is_empty() {
        return arg;
    }
    let names = arg.get_value_names().unwrap_or_default();
    let is_path = match names {
        [] => true,
        names => names.iter().any(|name| PATHS.contains(&name.as_str())),
    };
    arg.value_hint(match is_path {
        true => ValueHint::AnyPath,
        false => ValueHint::Other,
    })
}
