//! `agent-ctl completions`: what a shell needs to complete the command line.

use crate::cli::Cli;
use crate::{exit, terminal::Out};
use anyhow::Result;
use clap::CommandFactory;
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

/// Runs the command.
pub fn run(out: &Out, args: Args) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "agent-ctl", &mut script);
    out.write(&String::from_utf8_lossy(&script))?;
    Ok(exit::OK)
}
