//! The command line.

use crate::client::Connection;
use crate::{
    cgroups, completions, config, diff, doctor, exit, man, profile_cmd, status, tail, top,
};
use clap::{Parser, Subcommand};

/// Asks the Fleetprof agent of a host: what it does, and what the host's CPUs did.
#[derive(Debug, Parser)]
#[command(
    name = "agent-ctl",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = exit::HELP,
    after_long_help = long_help()
)]
pub struct Cli {
    /// How to reach the agent.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

fn long_help() -> String {
    format!(
        "\
Examples:
  agent-ctl doctor
  agent-ctl top
  agent-ctl profile --since 5m --unit nginx -o nginx.svg
  agent-ctl diff --before -1h..-30m --after -5m..
  agent-ctl --agent db1:4317 --tls-ca ca.pem status

{}",
        exit::HELP
    )
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the agent is doing, what it costs and what is degraded
    Status(status::Args),
    /// Prove that samples arrive and name whatever is degraded, with the command that mends it
    Doctor(doctor::Args),
    /// Show the tree of cgroups with their CPU time
    Cgroups(cgroups::Args),
    /// Watch functions, cgroups and processes live
    Top(top::Args),
    /// Save or print a profile of a time in the last hour
    Profile(profile_cmd::Args),
    /// Compare two times, two selections or two files
    Diff(diff::Args),
    /// Print a line for each window as it closes
    Tail(tail::Args),
    /// Check, show or reload the agent's configuration
    Config(config::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Print the manual page, or write all of them to a directory
    Man(man::Args),
}
