//! `agent-ctl completions`: prints completion scripts for shells.
//!
//! The scripts contain commands, options and fixed values. They do not ask a host for its units,
//! containers or pins.

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

/// Values offered for options that take any text, by the id of the option. A tracepoint or uprobe
/// is as good an event as these: its words are offered up to where the name starts.
const VALUES: [(&str, &[&str]); 3] = [
    (
        "event",
        &[
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
        ],
    ),
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

/// Names of values that are files or directories.
const PATHS: [&str; 4] = ["FILE", "DIR", "RANGE|FILE", "unix:PATH|HOST:PORT"];

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
    match shell {
        // The generator writes a hyphen of the program's name in two ways, so that no case of the
        // script is ever reached: `agent__ctl` where it notes the subcommand, `agent__subcmd__ctl`
        // where it looks.
        Shell::Bash => script.replace(&NAME.replace('-', "__subcmd__"), &NAME.replace('-', "__")),
        _ => script,
    }
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
