//! The command line.

use crate::peer::{Connection, DEFAULT_TARGET};
use crate::{
    alerts, annotate, audit, capture, captures, cgroups, completions, config, diff, doctor, events,
    exit, heatmap, hosts, import, incidents, join, labels, login, man, overview, page, pins,
    profile_cmd, series, status, symbols, tail, top, users, views,
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use profile::fleet::COLLECTOR_PORT;
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
    /// The subcommand.
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
  agent-ctl profile --since 30m --callers '^malloc$'
  agent-ctl profile --since 5m --unit nginx -o nginx.svg
  agent-ctl series --by unit --since 1h
  agent-ctl capture --unit nginx --duration 10s --rate 997 --before 5m -o nginx.html
  agent-ctl capture -o build.html -- make -j4
  agent-ctl annotate handle_request --unit api
  agent-ctl diff --before -1h..-30m --after -5m..
  agent-ctl --agent db1:4317 --tls-ca ca.pem status
  agent-ctl --collector c1 hosts
  agent-ctl --collector c1 profile --since 1h --host web-1 -o web-1.svg
  agent-ctl --collector c1 symbols upload target/release/api
  agent-ctl --collector c1 capture --select unit=api.service,zone=a --duration 30s -o api.html

Choose an agent or a collector:
  the agent of this host    no option; the default is {DEFAULT_TARGET}
  the agent of another      --agent HOST:PORT, usually with --tls-ca FILE and --token-file FILE
  the collector of a fleet  --collector HOST [default port: {COLLECTOR_PORT}]; on another machine run
                            agent-ctl login first, then use its name
Without --agent and --collector, the collector of the last login is used if no agent runs here.
Environment: FLEETPROF_AGENT and FLEETPROF_COLLECTOR replace the options --agent and --collector; \
NO_COLOR turns colour off.

A collector answers status, doctor, hosts, cgroups, top, profile, labels, series, diff, capture, annotate, captures, pins, \
events, alerts, incidents, views, symbols, page, users, whoami and audit; the other commands need an agent.

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
    /// Show what changed on a fleet: services, hosts and functions, since when, with the error
    Overview(Box<overview::Args>),
    /// List the hosts of a fleet: last seen, CPU time, missing data
    Hosts(hosts::Args),
    /// Show the tree of cgroups with their CPU time
    Cgroups(cgroups::Args),
    /// Watch functions, cgroups and processes live, or those of a fleet and its hosts
    Top(top::Args),
    /// Export a profile of a past time range
    Profile(profile_cmd::Args),
    /// Record a new profile: any rate or event, optionally with the minutes before it
    Capture(Box<capture::Args>),
    /// Record samples and show which lines and instructions of a function take the time
    Annotate(annotate::Args),
    /// List captures, cancel one, or get the profile of one
    Captures(captures::Args),
    /// Draw a heat map of when samples were taken, to find short bursts
    Heatmap(heatmap::Args),
    /// Read a profile from another tool and write it in any format
    Import(import::Args),
    /// List the labels of samples, or the values of one with their CPU time
    Labels(labels::Args),
    /// Show CPU time over time, by any label: as lines, table, CSV or JSON
    Series(series::Args),
    /// Compare two times, two selections, pins, captures or files
    Diff(diff::Args),
    /// List the minutes that triggers pinned, or show the profile of one
    Pins(pins::Args),
    /// List deploys and notes of a fleet; add or delete one
    Events(events::Args),
    /// List what is firing, pending or without data, by the rules of a collector
    Alerts(alerts::Args),
    /// List incidents with their timelines; open, acknowledge and close them
    Incidents(incidents::Args),
    /// List saved views of the page; save, keep and delete them
    Views(views::Args),
    /// Upload symbol tables to a collector, so that stripped programs have names
    Symbols(symbols::Args),
    /// Print a line for each window as it closes
    Tail(tail::Args),
    /// Join this host to a fleet: it pushes to the fleet's collector
    Join(join::Args),
    /// Remove this host from its fleet: it stops pushing
    Leave(join::LeaveArgs),
    /// Log in to a collector and make it the default
    Login(login::Args),
    /// Delete the stored token for a collector
    Logout(login::LogoutArgs),
    /// Show your name and role at a collector
    Whoami(login::WhoamiArgs),
    /// Print a link that opens the page of a collector
    Page(page::Args),
    /// List, add and remove the users of a collector
    Users(users::Args),
    /// Show the audit log of a collector: who did what
    Audit(audit::Args),
    /// Check a configuration file; show or reload the agent's
    Config(config::Args),
    /// Print completions for a shell
    Completions(completions::Args),
    /// Print the manual page, or write all manual pages to a directory
    Man(man::Args),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Words that are Rust's and not ours.
    const RUST: [&str; 4] = [
        "invalid digit",
        "found in string",
        "number too large to fit",
        "is not in ",
    ];

    fn refused(words: &[String]) -> String {
        let words = words.iter().map(OsString::from);
        parse(words).map_or_else(|error| error.to_string(), |_| String::new())
    }

    fn check(command: &clap::Command, path: &[String]) {
        for argument in command.get_arguments() {
            if !argument.get_action().takes_values() {
                continue;
            }
            for value in ["x", "99999999999999999999", "-1.5"] {
                let mut words = path.to_vec();
                match argument.get_long() {
                    Some(long) => words.push(format!("--{long}={value}")),
                    None => words.push(value.to_owned()),
                }
                let text = refused(&words);
                let found = RUST.iter().find(|word| text.contains(**word));
                assert_eq!(found, None, "{words:?}: {text}");
            }
        }
        for below in command.get_subcommands() {
            let path = [path, &[below.get_name().to_owned()]].concat();
            check(below, &path);
        }
    }

    #[test]
    fn no_error_of_a_value_is_in_the_words_of_rust() {
        let mut command = Cli::command();
        command.build();
        check(&command, &["agent-ctl".to_owned()]);
    }

    #[test]
    fn durations_of_microseconds_are_taken() {
        let words = ["agent-ctl", "capture", "--min-wait", "100us"];
        assert!(parse(words.map(OsString::from)).is_ok());
    }

    #[test]
    fn until_is_another_word_for_to() {
        let words = [
            "agent-ctl",
            "profile",
            "--since",
            "yesterday",
            "--until",
            "now",
        ];
        assert!(parse(words.map(OsString::from)).is_ok());
    }
}
