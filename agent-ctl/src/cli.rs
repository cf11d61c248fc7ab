//! The command line.

use crate::peer::{Connection, DEFAULT_TARGET};
use crate::{
    annotate, audit, capture, captures, cgroups, completions, config, diff, doctor, events, exit,
    heatmap, hosts, import, join, login, man, overview, page, pins, profile_cmd, status, symbols,
    tail, top, users,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use proto::COLLECTOR_PORT;
use std::ffi::OsString;

/// Query a Fleetprof agent (one host) or collector (a fleet).
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
    /// How to reach the agent or the collector.
    #[command(flatten)]
    pub connection: Connection,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Reads the command line.
///
/// # Errors
/// When it is not understood, or asks for help.
pub fn parse(words: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let mut command = Cli::command();
    let matches = command.try_get_matches_from_mut(words)?;
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    let noted = cli.connection.note(&matches);
    noted.map_err(|error| error.format(&mut command))?;
    Ok(cli)
}

fn long_help() -> String {
    format!(
        "\
Examples:
  agent-ctl doctor
  agent-ctl top
  agent-ctl profile --since 5m --unit nginx -o nginx.svg
  agent-ctl capture --unit nginx --duration 10s --rate 997 --before 5m -o nginx.html
  agent-ctl annotate handle_request --unit api
  agent-ctl diff --before -1h..-30m --after -5m..
  agent-ctl --agent db1:4317 --tls-ca ca.pem status
  agent-ctl --collector c1 hosts
  agent-ctl --collector c1 profile --since 1h --host web-1 -o web-1.svg
  agent-ctl --collector c1 symbols upload target/release/api
  agent-ctl --collector c1 capture --select unit=api.service,zone=a --duration 30s -o api.html

Whom to ask:
  the agent of this host    nothing to give: {DEFAULT_TARGET}
  the agent of another      --agent HOST:PORT, most often with --tls-ca FILE and --token-file FILE
  the collector of a fleet  --collector HOST, at port {COLLECTOR_PORT} unless given; of another machine after
                            agent-ctl login, by its name
After a login its collector is asked where neither --agent nor --collector says whom, if no agent runs here.
Environment: FLEETPROF_AGENT and FLEETPROF_COLLECTOR name who is asked when the command line does not; \
NO_COLOR turns colour off.

A collector answers status, hosts, cgroups, top, profile, diff, capture, annotate, captures, pins, events, symbols, page, users, \
whoami and audit; the other commands ask an agent.

{}",
        exit::HELP
    )
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show what the agent or collector is doing, what it costs and what is degraded
    Status(status::Args),
    /// Check that sampling works; show what is degraded and how to fix it
    Doctor(doctor::Args),
    /// Show what changed on a fleet: services, hosts and functions, since when, and how sure it is
    Overview(Box<overview::Args>),
    /// List the hosts of a fleet: when each was last seen, its CPU time, missing data
    Hosts(hosts::Args),
    /// Show the tree of cgroups with their CPU time
    Cgroups(cgroups::Args),
    /// Watch functions, cgroups and processes live, or those of a fleet and its hosts
    Top(top::Args),
    /// Export a profile of a past time range
    Profile(profile_cmd::Args),
    /// Record a new profile: any rate or event, optionally with the minutes before it
    Capture(Box<capture::Args>),
    /// Record, and show which lines and instructions of a function take the time
    Annotate(annotate::Args),
    /// List captures that run and those that ended, or end one
    Captures(captures::Args),
    /// Draw when samples were taken: seconds against parts of a second, to find what comes and goes
    Heatmap(heatmap::Args),
    /// Read a profile of another tool and write it in any format
    Import(import::Args),
    /// Compare two times, two selections or two files
    Diff(diff::Args),
    /// List the minutes that triggers pinned, or show the profile of one
    Pins(pins::Args),
    /// List deploys and notes of a fleet, add one, or take one back
    Events(events::Args),
    /// Upload symbol tables to a collector, so that stripped programs have names
    Symbols(symbols::Args),
    /// Print a line for each window as it closes
    Tail(tail::Args),
    /// Have this host push to a collector of a fleet that invited it
    Join(join::Args),
    /// Have this host push to its fleet no more
    Leave(join::LeaveArgs),
    /// Log in to a collector: after that it is asked without any option
    Login(login::Args),
    /// Forget the token for a collector
    Logout(login::LogoutArgs),
    /// Say who a collector takes you for, and what you may do there
    Whoami(login::WhoamiArgs),
    /// Print a link that opens the page of a collector
    Page(page::Args),
    /// Show and change who may ask a collector
    Users(users::Args),
    /// Show what was done at a collector, and by whom
    Audit(audit::Args),
    /// Check a configuration file; show or reload the agent's
    Config(config::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Print the manual page, or write all of them to a directory
    Man(man::Args),
}
